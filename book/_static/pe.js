/* What scrolls sideways can be reached by the keyboard; what does not is no stop of the tab key. */
"use strict";

(() => {
  const boxes = ".pe-pair, .pe-results, .pst-scrollable-table-container, div.math, " +
    "mjx-container[display=true], div.cell_output, article pre";
  function stops() {
    for (const box of document.querySelectorAll(boxes)) {
      const scrolls = box.scrollWidth > box.clientWidth + 1;
      // The theme gives -1 to what did not scroll when the page was opened.
      if (scrolls && box.tabIndex < 0) box.dataset.scrolls = box.tabIndex = 0;
      else if (!scrolls && "scrolls" in box.dataset) {
        box.removeAttribute("tabindex");
        delete box.dataset.scrolls;
      }
    }
  }
  window.addEventListener("load", () => {
    stops();
    window.MathJax?.startup?.promise.then(stops); // formulas are set later
  });
  window.addEventListener("resize", stops);
})();
