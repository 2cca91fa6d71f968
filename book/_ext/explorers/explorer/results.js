/* Explorer of results: lines and a table of any recorded study.
   window.peResults (data.js) lists the sets; sets/N.js holds values, intervals and texts of one as the
   book's tables write them, and is loaded when it is chosen. Nothing is averaged here. */
"use strict";

(() => {
  const { make, labelled, select, draw, sample, whenResized } = window.peChart;
  const VIEWS = {
    c: "the seeds that all rows have", a: "all seeds of each row", e: "each seed by itself",
  };

  /** The set of a name, loaded once. */
  const loaded = new Map();
  function load({ name, file }, prefix) {
    if (!loaded.has(name)) {
      loaded.set(name, new Promise((resolve, reject) => {
        window.peResults.found = (one) => window.peResults.waiting.get(one.name)(one);
        (window.peResults.waiting ??= new Map()).set(name, resolve);
        document.head.append(make("script", { src: `${prefix}explorer/${file}`,
          onerror: () => reject(new Error(`${file} could not be loaded`)) }));
      }));
    }
    return loaded.get(name);
  }

  function start(root) {
    const data = window.peResults;
    let own = null;
    const prefix = root.dataset.root;
    const state = { study: data.sets[0].name, quantity: "", seeds: "c", length: "", hidden: new Set(),
      words: "", sort: null, cut: true, bands: true, columns: false };
    read();

    const chart = make("div", { class: "pe-x-box" });
    const detail = make("p", { class: "pe-x-detail" });
    const legend = make("fieldset", { class: "pe-x-rows" });
    const status = make("p", { class: "pe-x-status", role: "status", "aria-live": "polite" });
    const table = make("div", { class: "pe-x-table", tabindex: 0, role: "region",
      "aria-label": "Table of results" });
    const about = make("p", { class: "pe-x-hint" });
    const form = make("form", { class: "pe-x-controls flat",
      onsubmit: (event) => event.preventDefault() });
    const search = make("input", { type: "search", placeholder: "a name",
      oninput: () => { state.words = search.value; fill(); } });
    root.replaceChildren(form, about, legend, chart, detail,
      make("div", { class: "pe-x-controls flat" }, labelled("Rows of the table with", search)),
      status, table);

    // What is chosen -------------------------------------------------------------------------

    const set = () => own;
    const quantity = () => set().quantities.find(({ key }) => key === state.quantity);
    const href = (run) => (run.page ? prefix + run.page : null);

    function links(row) {
      return row.runs.map((i) => {
        const run = set().runs[i];
        return { name: run.name, href: href(run), seed: run.seed };
      });
    }

    /** Rows of the study on the chosen seeds; a quantity that none of them has hides a row. */
    function rows() {
      return set().rows.filter((row) => row.views.includes(state.seeds));
    }

    const shown = () => rows().filter((row) => !state.hidden.has(row.key));

    /** {text, value, low, high} of a row; null where nothing was measured. */
    function cell(row, key, i) {
      const found = row.cells[key]?.[i];
      if (!found) return null;
      const [text, value = null, low = null, high = null] = found;
      return { text, value, low, high };
    }

    /** What does not fit the study is set to the first choice that does. */
    function settle() {
      if (!quantity()) state.quantity = set().quantities[0].key;
      const views = Object.keys(VIEWS).filter((key) => set().rows.some((row) => row.views.includes(key)));
      if (!views.includes(state.seeds)) [state.seeds] = views;
      if (state.length !== "" && !quantity().lengths[state.length]) state.length = "";
    }

    function write() {
      const share = { study: state.study, quantity: state.quantity };
      if (state.seeds !== "c") share.seeds = state.seeds;
      if (state.length !== "") share.length = state.length;
      if (state.hidden.size) share.without = [...state.hidden].join("~");
      window.history.replaceState(null, "", `#${new URLSearchParams(share)}`);
    }

    function read() {
      const share = new URLSearchParams(window.location.hash.slice(1));
      for (const key of ["study", "quantity", "seeds"]) state[key] = share.get(key) || state[key];
      const length = share.get("length");
      if (length !== null && length !== "") state.length = Number(length);
      state.hidden = new Set((share.get("without") || "").split("~").filter(Boolean));
    }

    // The parts of the page ------------------------------------------------------------------

    async function choose(key, value) {
      state[key] = value;
      if (key === "study") {
        state.hidden = new Set();
        state.sort = null;
      }
      if (key === "quantity") state.sort = null;
      await update();
      // the control that was used is made anew: the keyboard stays where it was
      form.querySelector(`[data-key="${key}"]`)?.focus();
    }

    function control(key, text, options) {
      const field = select(options, String(state[key]), (value) =>
        choose(key, key === "length" && value !== "" ? Number(value) : value));
      field.dataset.key = key;
      return labelled(text, field);
    }

    function tick(key, text, changed) {
      const box = make("input", { type: "checkbox", checked: state[key],
        onchange: () => { state[key] = box.checked; changed(); } });
      return make("label", { class: "pe-x-tick" }, box, text);
    }

    function controls() {
      const views = Object.entries(VIEWS).filter(([key]) =>
        own.rows.some((row) => row.views.includes(key)));
      const lengths = quantity().lengths;
      form.replaceChildren(
        control("study", "Study", data.sets.map(({ name, title }) => [name, title])),
        control("quantity", "Quantity", own.quantities.map(({ key, title }) => [key, title])),
        ...(lengths.length > 1 ? [control("length", "Length", [["", "all lengths"],
          ...lengths.map(({ text }, i) => [String(i), text])])] : []),
        ...(views.length > 1 ? [control("seeds", "Seeds", views)] : []),
        make("div", { class: "pe-x-ticks" },
          tick("bands", "95% intervals", fillChart),
          own.cut && own.cut.cells[state.quantity] ? tick("cut", "cut line", fillChart) : null,
          tick("columns", "every quantity in the table", fill)),
      );
      about.replaceChildren(own.about, " ", make("a", { href: prefix + own.page }, own.pageTitle), ".");
    }

    function fillLegend() {
      const boxes = rows().map((row) => {
        const box = make("input", { type: "checkbox", checked: !state.hidden.has(row.key),
          onchange: () => {
            state.hidden[box.checked ? "delete" : "add"](row.key);
            fill();
            fillChart();
            write();
          } });
        return make("label", { class: "pe-x-tick" }, box, sample(row), row.title);
      });
      const all = (hide) => () => {
        state.hidden = new Set(hide ? rows().map(({ key }) => key) : []);
        update();
      };
      legend.replaceChildren(make("legend", {}, "Rows"),
        make("button", { type: "button", onclick: all(false) }, "all"),
        make("button", { type: "button", onclick: all(true) }, "none"), ...boxes);
    }

    function point(row, i, x) {
      const found = cell(row, state.quantity, i);
      if (!found || found.value === null) return { x, y: NaN };
      const { text, value, low, high } = found;
      const where = quantity().lengths[i];
      return { x, y: value, low, high, links: links(row),
        text: `${where ? `${where.text}: ` : ""}${quantity().short} ${text}` };
    }

    function onpoint(row, at, opened) {
      const found = at.links.map(({ name, href: to }) => (to ? make("a", { href: to }, name) : name));
      detail.replaceChildren(make("strong", {}, row.name), `, ${at.text}. Made from `,
        ...found.flatMap((one, i) => (i ? [", ", one] : [one])), ".");
      if (opened && at.links.length > 1) detail.querySelector("a")?.focus();
    }

    function fillChart() {
      const what = quantity();
      const one = state.length !== "" || what.lengths.length < 2;
      const there = shown();
      const common = { bands: state.bands, onpoint };
      const y = { title: what.axis, log: what.log, most: what.limit || undefined,
        format: what.share ? (value) => `${Math.round(100 * value)}%` : undefined };
      if (what.share) Object.assign(y, { domain: [-0.03, 1.03], ticks: [0, 0.25, 0.5, 0.75, 1]
        .map((at) => ({ at, text: `${100 * at}%` })) });
      if (!there.length) {
        chart.replaceChildren(make("p", {}, "No row is chosen."));
        return;
      }
      if (one) {
        const i = state.length === "" ? 0 : state.length;
        const known = there.filter((row) => Number.isFinite(cell(row, state.quantity, i)?.value));
        const sorted = known.sort((a, b) =>
          (what.more ? -1 : 1) * (cell(a, state.quantity, i).value - cell(b, state.quantity, i).value));
        draw(chart, { ...common,
          label: `${what.title}, one row each, best on top. The table below has the same numbers.`,
          x: { ...y, domain: y.domain, title: `${what.axis}${what.lengths[i] ? `, ${what.lengths[i].text}` : ""}` },
          y: { names: sorted.map((row) => row.title) },
          lines: sorted.map((row, place) => {
            const at = point(row, i, 0);
            return { ...look(row), joined: false, points: [{ ...at, x: at.y, y: place,
              low: NaN, high: NaN, xlow: at.low, xhigh: at.high }] };
          }),
          rules: cutAt(i),
        });
        return;
      }
      const lengths = what.lengths;
      const faint = there.length > 12;
      draw(chart, { ...common, bands: state.bands && there.length <= 8,
        label: `${what.title} by length, ${there.length} lines. The table below has the same numbers.`,
        x: { title: what.along, log: true, domain: [lengths[0].at / 1.1, lengths[lengths.length - 1].at * 1.1],
          ticks: lengths.map(({ at, text }) => ({ at, text })) },
        y,
        lines: there.map((row) => ({ ...look(row), faint,
          points: lengths.map(({ at }, i) => point(row, i, at)) })),
        rules: set().trained && lengths.some(({ at }) => at === 1)
          ? [{ x: 1, text: "trained up to here" }] : [],
        steps: state.cut && set().cut?.cells[state.quantity]
          ? [{ points: lengths.map(({ at }, i) => [at, set().cut.cells[state.quantity][i]])
            .filter(([, value]) => value !== null) }] : [],
      });
      if (state.cut && set().cut?.cells[state.quantity]) {
        chart.append(make("p", { class: "pe-x-hint" }, `Dashed: ${set().cut.title}.`));
      }
    }

    function cutAt(i) {
      const value = state.cut && set().cut?.cells[state.quantity]?.[i];
      return Number.isFinite(value) ? [{ x: value, text: "cut" }] : [];
    }

    const look = (row) => ({ name: row.title, colour: row.colour, marker: row.marker, dash: row.dash });

    /** Columns of the table: {key, i, title, more}. */
    function columns() {
      const wanted = state.columns ? set().quantities : [quantity()];
      return wanted.flatMap(({ key, title, lengths, more }) => {
        const places = key === state.quantity && state.length !== "" ? [state.length]
          : lengths.length ? lengths.map((_, i) => i) : [0];
        return places.map((i) => ({ key, i, more, title: lengths[i]
          ? (state.columns ? `${title} ${lengths[i].text}` : lengths[i].text) : title }));
      });
    }

    function sorted(found, heads) {
      if (!state.sort) return found;
      const { column, up } = state.sort;
      const head = heads[column - 2];
      const value = (row) => {
        if (column === 0) return row.title.toLowerCase();
        if (column === 1) return row.seeds.length;
        return head ? cell(row, head.key, head.i)?.value ?? null : null;
      };
      return [...found].sort((one, other) => {
        const [a, b] = [value(one), value(other)];
        if (a === null || b === null) return (a === null) - (b === null); // what is missing is last
        return (a < b ? -1 : a > b ? 1 : 0) * (up ? 1 : -1);
      });
    }

    function fill() {
      const heads = columns();
      const words = state.words.toLowerCase().split(/\s+/).filter(Boolean);
      const found = sorted(shown().filter((row) =>
        words.every((word) => `${row.title} ${row.label} ${row.pe}`.toLowerCase().includes(word))), heads);
      const best = heads.map(({ key, i, more }) => {
        const values = found.map((row) => cell(row, key, i)?.value).filter(Number.isFinite);
        if (more === null || values.length < 2) return NaN;
        return more ? Math.max(...values) : Math.min(...values);
      });
      const titles = ["run", "seeds", ...heads.map(({ title }) => title)];
      const head = titles.map((title, column) => {
        const first = state.sort?.column === column;
        const button = make("button", { type: "button", onclick: () => {
          state.sort = { column, up: first ? !state.sort.up : true };
          fill();
          table.querySelectorAll("thead button")[column].focus();
        } }, title, make("span", { "aria-hidden": "true" }, first ? (state.sort.up ? " ↑" : " ↓") : " ↕"));
        return make("th", { scope: "col", "aria-sort": first
          ? (state.sort.up ? "ascending" : "descending") : "none" }, button);
      });
      const body = found.map((row) => make("tr", {},
        make("th", { scope: "row" }, row.title),
        make("td", {}, links(row).flatMap(({ name, href: to, seed }, i) => [i ? ", " : "",
          to ? make("a", { href: to, title: name, "aria-label": `seed ${seed}, ${name}` }, String(seed))
            : make("span", { title: name }, String(seed))])),
        ...heads.map(({ key, i }, column) => {
          const there = cell(row, key, i);
          const top = there && there.value === best[column];
          return make("td", { class: top ? "best" : null }, there ? there.text : "–");
        })));
      table.replaceChildren(make("table", {},
        make("thead", {}, make("tr", {}, head)), make("tbody", {}, body)));
      const number = `${found.length} ${found.length === 1 ? "row" : "rows"}`;
      status.textContent = `${number} of ${set().title}: ${quantity().title}` +
        `${state.sort ? `, sorted by ${titles[state.sort.column]}, ${state.sort.up ? "ascending" : "descending"}` : ""}.`;
    }

    async function update() {
      const chosen = data.sets.find(({ name }) => name === state.study) || data.sets[0];
      state.study = chosen.name;
      try {
        const found = await load(chosen, prefix);
        if (state.study !== chosen.name) return; // another one was chosen meanwhile
        own = found;
      } catch (error) {
        status.textContent = `${error.message}.`;
        return;
      }
      settle();
      controls();
      fillLegend();
      fill();
      fillChart();
      write();
    }

    whenResized(root, () => own && fillChart());
    update();
  }

  for (const root of document.querySelectorAll("[data-pe-explorer=results]")) start(root);
})();
