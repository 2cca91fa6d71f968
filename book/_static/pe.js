/* What scrolls sideways can be reached by the keyboard; what does not is no stop of the tab key. */
"use strict";

(() => {
  const boxes = ".pe-pair, .pe-results, .pst-scrollable-table-container, div.math, article pre";
  function stops() {
    for (const box of document.querySelectorAll(boxes)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1;
      if (scrolls && !box.hasAttribute("tabindex")) box.dataset.scrolls = box.tabIndex = 0;
      else if (!scrolls && "scrolls" in box.dataset) {
        box.removeAttribute("tabindex");
        delete box.dataset.scrolls;
      }
    }
  }
  window.addEventListener("load", stops);
  window.addEventListener("resize", stops);
})();
