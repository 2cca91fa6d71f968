/* Explorer of encodings: what a rotary model saw in training, and what a longer text shows it.
   The formulas are those of pe/encodings; tests/test_explorer.py holds the numbers equal to the
   package's. */
"use strict";

window.peEncodings = (() => {
  const TURN = 2 * Math.PI;
  const pairs = (dim) => Array.from({ length: dim / 2 }, (_, i) => i);
  const clip = (value, low, high) => Math.min(Math.max(value, low), high);

  /** w_i = theta^(-2i/d), radians per token (arXiv:2104.09864). */
  const base = (dim, theta) => pairs(dim).map((i) => theta ** -((2 * i) / dim));

  /** Full rotations of each frequency within `length` tokens. */
  const turns = (frequencies, length) => frequencies.map((w) => (w * length) / TURN);

  const magnitude = (factor) => (factor > 1 ? 0.1 * Math.log(factor) + 1 : 1);

  /** Math.round rounds halves up; this rounds them to the even number, as IEEE 754 does. */
  function halfToEven(value) {
    const below = Math.floor(value);
    const rest = value - below;
    if (rest !== 0.5) return Math.round(value);
    return below % 2 ? below + 1 : below;
  }

  function slowedByBase(frequencies, dim, alpha) {
    if (dim < 4) throw new RangeError("NTK-aware scaling needs at least 4 rotated channels");
    return frequencies.map((w, i) => w * alpha ** ((-2 * i) / (dim - 2)));
  }

  function yarn({ dim, theta, trained }, frequencies, factor) {
    if (theta <= 1) throw new RangeError("YaRN needs frequencies that fall: a base above 1");
    const index = (rotations) =>
      (dim * Math.log(trained / (rotations * TURN))) / (2 * Math.log(theta));
    const low = Math.max(Math.floor(index(32)), 0);
    let high = Math.min(Math.ceil(index(1)), dim - 1);
    if (high <= low) high = low + 0.001;
    if (factor <= 1) return [...frequencies];
    return frequencies.map((w, i) => {
      const keep = 1 - clip((i - low) / (high - low), 0, 1);
      return keep * w + ((1 - keep) * w) / factor;
    });
  }

  function rounded(frequencies) {
    return frequencies.map((w) => (w > 0 ? TURN / Math.max(halfToEven(TURN / w), 1) : 0));
  }

  /** The smallest group with which `factor` times the training length has no new distance, and its
      window. */
  function grouping(trained, factor) {
    for (let group = 1; ; group += 1) {
      const share = Math.max(1, Math.floor(trained / 4));
      const window = Math.floor(share / group) * group || share;
      const longest = (trained - window + Math.floor(window / group)) * group;
      if (longest >= factor * trained) return { group, window };
    }
  }

  /** By name, from the settings and RoPE's frequencies to {frequencies, magnitude}; where tokens are
      counted otherwise, `distance` from the last token as it is rotated. */
  const METHODS = {
    "": (s, w) => ({ frequencies: w, magnitude: 1 }),
    pi: (s, w) => ({ frequencies: w.map((one) => one / s.factor), magnitude: 1 }),
    ntk: (s, w) => ({ frequencies: slowedByBase(w, s.dim, s.factor), magnitude: 1 }),
    dynamic_ntk: (s, w) => {
      const alpha = 1 + s.factor * Math.max(s.length / s.trained - 1, 0);
      return { frequencies: slowedByBase(w, s.dim, alpha), magnitude: 1 };
    },
    abf: (s, w) => {
      const first = w.findIndex((one) => one * s.trained < TURN);
      if (first < 1) {
        throw new RangeError(
          "In training all frequencies completed a rotation, or not even the first did, so no larger " +
          "base follows from the factor",
        );
      }
      const theta = s.theta * s.factor ** (s.dim / (2 * first));
      return { frequencies: base(s.dim, theta), magnitude: 1, theta };
    },
    yarn: (s, w) => ({ frequencies: yarn(s, w, s.factor), magnitude: magnitude(s.factor) }),
    dynamic_yarn: (s, w) => {
      const factor = Math.max(s.length / s.trained, 1);
      return { frequencies: yarn(s, w, factor), magnitude: magnitude(factor) };
    },
    llama3: (s, w) => {
      const frequencies = w.map((one) => {
        const keep = clip(((s.trained * one) / TURN - 1) / (4 - 1), 0, 1);
        return one * (keep + (1 - keep) / s.factor);
      });
      return { frequencies, magnitude: 1 };
    },
    longrope: (s, w) => {
      const scaled = s.factor > 1 ? Math.sqrt(1 + Math.log(s.factor) / Math.log(s.trained)) : 1;
      // without a search, texts beyond the training length get YaRN's frequencies
      const frequencies = s.length > s.trained ? yarn(s, w, s.factor) : w;
      return { frequencies, magnitude: scaled };
    },
    self_extend: (s, w) => {
      const { group, window } = grouping(s.trained, s.factor);
      const last = Math.floor((s.length - 1) / group) + window - Math.floor(window / group);
      const distance = (d) => (d < window ? d : last - Math.floor((s.length - 1 - d) / group));
      const note = `Groups of ${group} tokens, beyond a window of ${window}.`;
      return { frequencies: w, magnitude: 1, distance, note };
    },
    resonance: (s, w) => ({ frequencies: rounded(w), magnitude: 1 }),
    "yarn+resonance": (s, w) => {
      const stretched = METHODS.yarn(s, w);
      return { ...stretched, frequencies: rounded(stretched.frequencies) };
    },
  };

  /** For each frequency the first distance below `reach` with an angle that training did not have;
      Infinity: none. `distance` grows with the number of tokens between. */
  function firstNew(seen, changed, trained, reach, distance) {
    return seen.map((w, i) => {
      const least = Math.ceil((trained * w) / changed[i] - 1e-6);
      const never = (w * trained) / TURN >= 1 || changed[i] === 0 || distance(reach - 1) < least;
      if (never) return Infinity;
      let [low, high] = [0, reach - 1];
      while (low < high) {
        const middle = Math.floor((low + high) / 2);
        if (distance(middle) >= least) high = middle;
        else low = middle + 1;
      }
      return low;
    });
  }

  function check(s) {
    const whole = { dim: "Rotated channels", trained: "Training length", length: "Target length" };
    for (const [key, name] of Object.entries(whole)) {
      if (!Number.isInteger(s[key]) || s[key] < 2) {
        throw new RangeError(`${name}: expected a whole number of at least 2`);
      }
    }
    if (s.dim % 2 || s.dim > 1024) {
      throw new RangeError("Rotated channels: expected an even number of at most 1,024");
    }
    if (!(s.theta > 1)) throw new RangeError("Base: expected a number above 1");
    if (!(s.factor >= 1)) throw new RangeError("Factor: expected a number of at least 1");
    if (s.window && !(Number.isInteger(s.window) && s.window >= 1)) {
      throw new RangeError("Window: expected a whole number of at least 1, or nothing");
    }
    if (!METHODS[s.method]) throw new RangeError(`Method: ${s.method} is not known here`);
  }

  /**
   * Everything that the page shows.
   *
   * settings: {theta, dim, trained, length, method, factor, window}; method "" is RoPE as it is,
   *   window 0 none. Throws RangeError that says which setting is wrong.
   */
  function compute(settings) {
    check(settings);
    const before = base(settings.dim, settings.theta);
    const { frequencies, magnitude: m, theta, distance = (d) => d, note = "" } =
      METHODS[settings.method](settings, before);
    const reach = settings.window ? Math.min(settings.window, settings.length) : settings.length;
    const trainedReach = settings.window
      ? Math.min(settings.window, settings.trained) : settings.trained;
    const seen = turns(before, trainedReach);
    const furthest = distance(reach - 1);
    const there = turns(frequencies, furthest + 1);
    const first = firstNew(before, frequencies, trainedReach, reach, distance);
    return {
      before,
      frequencies,
      theta: theta || settings.theta,
      magnitude: m,
      logits: m * m,
      distance,
      note,
      reach,
      furthest,
      trainedReach,
      turns: seen,
      turnsAtLength: there,
      completed: seen.filter((n) => n >= 1).length,
      firstNew: first,
      unseen: first.filter(Number.isFinite).length,
      firstUnseen: Math.min(...first),
    };
  }

  /** Mean over frequencies of cos(w distance), times m^2: the logit of a query and a key whose
      channels are all equal, over its value at distance 0 without a temperature. */
  function logit(frequencies, m, distance) {
    let sum = 0;
    for (const w of frequencies) sum += Math.cos(w * distance);
    return (m * m * sum) / frequencies.length;
  }

  return { METHODS, base, turns, firstNew, compute, logit };
})();

/* The page. */
(() => {
  const { make, labelled, select, draw, plain, whenResized } = window.peChart || {};
  const { compute, logit, METHODS } = window.peEncodings;
  const LENGTHS = [128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 1048576];
  const count = (n, one, more = `${one}s`) => `${n.toLocaleString("en-GB")} ${n === 1 ? one : more}`;

  function start(root) {
    const options = JSON.parse(root.querySelector("script").textContent);
    const chosen = options.methods.filter(({ name }) => name in METHODS);
    const state = { ...options.start, automatic: true };
    for (const [key, value] of new URLSearchParams(window.location.hash.slice(1))) {
      if (key === "method" && chosen.some(({ name }) => name === value)) state.method = value;
      else if (key in state && key !== "method" && Number.isFinite(Number(value))) state[key] = Number(value);
      if (key === "factor") state.automatic = false;
    }
    const boxes = {};
    const status = make("p", { class: "pe-x-status", role: "status", "aria-live": "polite" });
    const error = make("p", { class: "pe-x-error", role: "alert" });
    const hint = make("p", { class: "pe-x-hint" });
    const fields = {};

    /** A number to type and, where it has steps, a slider over them. */
    function number(key, text, steps, attributes = {}) {
      const id = `pe-x-${key}`;
      const field = make("input", {
        type: "number", id, value: state[key] || "", inputmode: "numeric", ...attributes,
        oninput: () => { set(key, field.value === "" ? 0 : Number(field.value)); },
      });
      const at = (value) => steps.reduce((best, step, i) =>
        (Math.abs(Math.log(step / value)) < Math.abs(Math.log(steps[best] / value)) ? i : best), 0);
      const slider = make("input", {
        type: "range", min: 0, max: steps.length - 1, step: 1, value: at(state[key] || steps[0]),
        "aria-label": `${text}, slider`, "aria-valuetext": plain(state[key] || steps[0]),
        oninput: () => {
          field.value = steps[slider.value];
          set(key, steps[slider.value]);
        },
      });
      fields[key] = () => {
        if (document.activeElement !== field) field.value = state[key] || "";
        slider.value = at(state[key] || steps[0]);
        slider.setAttribute("aria-valuetext", plain(state[key] || steps[0]));
      };
      return make("div", { class: "pe-x-control" },
        make("label", { for: id }, text), make("span", { class: "pe-x-pair" }, field, slider));
    }

    function set(key, value) {
      state[key] = value;
      if (key === "factor") state.automatic = false;
      if (key === "method" || key === "trained" || key === "length") {
        if (key === "method") state.automatic = true;
        if (state.automatic) state.factor = automatic();
      }
      update();
    }

    /** The factor that the target asks for; Dynamic NTK's grows by itself. */
    function automatic() {
      if (state.method === "dynamic_ntk") return 1;
      return Math.max(1, Number((state.length / state.trained).toPrecision(6)) || 1);
    }

    const factor = number("factor", "Factor", [1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128],
      { min: 1, step: "any" });
    const form = make("form", { class: "pe-x-controls", onsubmit: (event) => event.preventDefault() },
      make("fieldset", {}, make("legend", {}, "The trained model"),
        number("theta", "Base θ", [100, 1000, 10000, 50000, 100000, 500000, 1000000, 10000000],
          { min: 1.01, step: "any" }),
        number("dim", "Rotated channels per head", [8, 16, 32, 64, 96, 128, 256], { min: 2, step: 2 }),
        number("trained", "Training length, tokens", LENGTHS.slice(0, 9), { min: 2 })),
      make("fieldset", {}, make("legend", {}, "The text it is to read"),
        number("length", "Target length, tokens", LENGTHS, { min: 2 }),
        number("window", "Window of each layer, tokens (empty: none)", LENGTHS, { min: 1 })),
      make("fieldset", {}, make("legend", {}, "The change"),
        labelled("Method", select(chosen.map(({ name, title }) => [name, title]), state.method,
          (value) => set("method", value))),
        factor, hint));

    function panel(name, title, text) {
      boxes[name] = make("div", { class: "pe-x-box" });
      return make("section", { class: "pe-x-panel", "aria-label": title },
        make("h2", {}, title), make("p", {}, text), boxes[name]);
    }

    const facts = make("dl", { class: "pe-x-facts" });
    const table = make("div", { class: "pe-x-table", tabindex: 0, role: "region",
      "aria-label": "Table of frequencies" });
    root.replaceChildren(
      form, error, status, facts,
      panel("angles", "Angles of each frequency",
        "One column per frequency, the fastest first. Filled: the part of a rotation that training " +
        "showed. Hatched: the part that only the longer text reaches."),
      panel("turns", "Rotations", "Rotations within the training length and within the target length. A " +
        "frequency above the line at 1 has shown every angle."),
      panel("logits", "Logit by distance", "A query and a key whose channels are all equal, over " +
        "their logit at distance 0. The temperature is part of the changed line."),
      make("details", {}, make("summary", {}, "All numbers as a table"), table),
    );
    if (state.automatic) state.factor = automatic();

    let last;
    function update() {
      for (const refresh of Object.values(fields)) refresh();
      const about = chosen.find(({ name }) => name === state.method);
      factor.hidden = !about.scaled;
      const paper = about.paper ? `arXiv:${about.paper}` : "";
      hint.textContent = about.scaled && state.method === "dynamic_ntk"
        ? "The factor is the slope of the published code: 1 is as the paper has it."
        : paper;
      const share = { ...state };
      delete share.automatic;
      if (state.automatic) delete share.factor;
      window.history.replaceState(null, "", `#${new URLSearchParams(share)}`);
      try {
        last = compute(state);
        error.textContent = "";
        hint.textContent += last.note && ` ${last.note}`;
      } catch (problem) {
        if (!(problem instanceof RangeError)) throw problem;
        error.textContent = `${problem.message}.`;
        return;
      }
      tell();
      drawAll();
    }

    function tell() {
      const all = last.before.length;
      const never = last.unseen
        ? `${count(last.unseen, "frequency", "frequencies")} of ${all} reach angles that training ` +
          `never showed, the first at distance ${last.firstUnseen.toLocaleString("en-GB")}.`
        : "No frequency reaches an angle that training never showed.";
      status.textContent =
        `${last.completed} of ${all} frequencies completed a rotation in training. ${never}`;
      const rows = [
        ["frequencies that completed a rotation in training", `${last.completed} of ${all}`],
        ["frequencies with angles never seen", `${last.unseen} of ${all}`],
        ["first distance with such an angle",
          last.unseen ? last.firstUnseen.toLocaleString("en-GB") : "none"],
        ["largest distance that is rotated", last.furthest.toLocaleString("en-GB")],
        ["logits multiplied by (temperature)", last.logits.toFixed(3)],
        ["base after the change", plain(Number(last.theta.toPrecision(6)))],
      ];
      facts.replaceChildren(...rows.map(([name, value]) =>
        make("div", {}, make("dt", {}, name), make("dd", {}, value))));
      const head = ["frequency", "radians per token", "rotations in training", "after the change",
        "rotations at the target", "first new distance"];
      table.replaceChildren(make("table", {},
        make("thead", {}, make("tr", {}, head.map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, last.before.map((w, i) => make("tr", {},
          make("th", { scope: "row" }, String(i)),
          ...[w.toPrecision(4), last.turns[i].toPrecision(4), last.frequencies[i].toPrecision(4),
            last.turnsAtLength[i].toPrecision(4),
            Number.isFinite(last.firstNew[i]) ? last.firstNew[i].toLocaleString("en-GB") : "–",
          ].map((text) => make("td", {}, text)))))));
    }

    function drawAll() {
      const all = last.before.length;
      const index = last.before.map((_, i) => i);
      const every = Math.max(1, Math.ceil(all / 8));
      const xTicks = index.filter((i) => i % every === 0).map((at) => ({ at, text: String(at) }));
      const x = { title: "frequency, the fastest first", domain: [-0.7, all - 0.3], ticks: xTicks };
      const bars = index.flatMap((i) => {
        const seen = Math.min(last.turns[i], 1);
        const there = Math.min(last.turnsAtLength[i], 1);
        const found = [{ x: i, from: 0, to: seen, class: "seen" }];
        if (Number.isFinite(last.firstNew[i]) && there > seen) {
          found.push({ x: i, from: seen, to: there, class: "unseen" });
        }
        return found;
      });
      const angles = draw(boxes.angles, {
        label: `Angles of ${all} frequencies. ${status.textContent}`, height: 230,
        x, y: { title: "part of a rotation", domain: [0, 1.04],
          ticks: [0, 0.25, 0.5, 0.75, 1].map((at) => ({ at, text: String(at) })) },
        lines: [], bars,
      });
      const hatch = make("pattern", { id: "pe-x-hatch", width: 6, height: 6,
        patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      make("rect", { width: 6, height: 6, class: "hatch-back" }),
      make("line", { x1: 0, x2: 0, y1: 0, y2: 6, class: "hatch" }));
      angles.prepend(hatch);
      const points = (values, name) => values.map((value, i) => ({
        x: i, y: value > 0 ? value : NaN, text: `frequency ${i}: ${plain(value)} rotations ${name}` }));
      draw(boxes.turns, {
        label: `Rotations of each frequency in training and at the target length`, height: 280,
        x, y: { title: "rotations", log: true },
        lines: [
          { name: "RoPE in training", colour: options.colours.before, marker: "o",
            points: points(last.turns, `in ${last.trainedReach.toLocaleString("en-GB")} tokens`) },
          { name: "at the target length", colour: options.colours.after, marker: "^",
            points: points(last.turnsAtLength, `in ${(last.furthest + 1).toLocaleString("en-GB")} tokens`) },
        ],
        rules: [{ y: 1, text: "one rotation" }],
      });
      const distances = steps(last.reach);
      const line = (w, m, distance) => distances.map((d) => ({
        x: Math.max(d, 0.5), y: logit(w, m, distance(d)) }));
      const rules = [{ x: last.trainedReach, text: "trained up to here" }];
      draw(boxes.logits, {
        label: "Logit by distance, of plain RoPE and after the change", height: 300,
        x: { title: "distance, tokens", log: true, domain: [0.5, Math.max(last.reach, 2)] },
        y: { title: "logit" },
        lines: [
          { name: "RoPE as trained", colour: options.colours.before, dash: 1, points: line(last.before, 1, (d) => d) },
          { name: "after the change", colour: options.colours.after,
            points: line(last.frequencies, last.magnitude, last.distance) },
        ],
        rules: last.trainedReach < last.reach ? rules : [],
      });
      boxes.turns.append(legend([["o", options.colours.before, "in training", 0], ["^", options.colours.after, "at the target length", 0]]));
      boxes.logits.append(legend([["", options.colours.before, "RoPE as trained", 1], ["", options.colours.after, "after the change", 0]]));
    }

    function legend(entries) {
      return make("ul", { class: "pe-x-legend" }, entries.map(([marker, colour, name, dash]) =>
        make("li", {}, window.peChart.sample({ marker, colour, dash }), name)));
    }

    whenResized(root, () => last && drawAll());
    update();
  }

  /** Distances on a logarithmic grid, 0 among them, and all below 64. */
  function steps(reach) {
    const found = new Set([0]);
    for (let d = 1; d < reach; d = Math.max(d + 1, Math.round(d * 1.012))) found.add(d);
    found.add(reach - 1);
    return [...found].filter((d) => d >= 0 && d < reach);
  }

  if (typeof document !== "undefined" && window.peChart) {
    for (const root of document.querySelectorAll("[data-pe-explorer=encodings]")) start(root);
  }
})();
