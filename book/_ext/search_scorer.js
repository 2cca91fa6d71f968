/* What the search puts first: the page that bears the name that was typed, then pages whose title
   holds the words in their order. Sphinx adds this to its search (html_search_scorer). */

var Scorer = {
  /* lower case, in words of letters and digits: "p-RoPE" and "p_rope" are p, rope */
  words: (text) => text.toLowerCase().match(/[\p{L}\p{N}]+/gu) ?? [],

  bonus: (query, docname, title, anchor) => {
    const asked = Scorer.words(query);
    if (!asked.length) return 0;
    const path = docname.split("/");
    const page = Scorer.words(path.at(-1)).join("");
    const together = asked.join("");
    const heading = ` ${Scorer.words(title).join(" ")} `;
    const method = path[0] === "methods" ? 20 : 0;
    const chapter = path[0] === "notebooks" ? -20 : 0;
    /* Page titles are "RoPE: rotary position embedding". */
    const called = Scorer.words(title.split(/[:,]/)[0]).join("");
    if (!anchor && (page === together || called === together)) return 1000 + method + chapter;
    if (!heading.includes(` ${asked.join(" ")} `)) return 0;
    return (anchor ? 100 : 500) + (heading.startsWith(` ${asked[0]} `) ? 50 : 0) + method + chapter;
  },

  score: ([docname, title, anchor, , score]) => {
    const query = new URLSearchParams(window.location.search).get("q") ?? "";
    const place = (anchor ?? "").replace(/^#/, "");
    return score + Scorer.bonus(query, docname, title, place);
  },

  /* as in Sphinx */
  objNameMatch: 11, objPartialMatch: 6, objPrio: {0: 15, 1: 5, 2: -5}, objPrioDefault: 0,
  title: 15, partialTitle: 7, term: 5, partialTerm: 2,
};
