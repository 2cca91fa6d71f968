/* Charts of the explorers: plain SVG in the page's own colours, no library.
   A chart is drawn at the width of its box, so its text has the same size on every screen. */
"use strict";

window.peChart = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const DASHES = ["", "7 3", "2 3", "7 3 2 3"];
  let charts = 0;

  /** An element with attributes and children; a child may be text. `on...` attributes listen. */
  function make(name, attributes = {}, ...children) {
    const svg = ["svg", "g", "path", "line", "rect", "text", "title", "clipPath", "pattern"];
    const inSvg = svg.includes(name) || attributes.xmlns === SVG;
    const element = inSvg ? document.createElementNS(SVG, name) : document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false || key === "xmlns") continue;
      if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
      else element.setAttribute(key, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  /** A labelled control: <label>text <control></label>. */
  function labelled(text, control) {
    return make("label", { class: "pe-x-control" }, make("span", {}, text), control);
  }

  function select(options, value, onchange) {
    return make(
      "select", { onchange: (event) => onchange(event.target.value) },
      options.map(([key, text]) => {
        const option = make("option", { value: key }, text);
        option.selected = key === value;
        return option;
      }),
    );
  }

  /** Outlines of matplotlib's markers of this name, for the size r. */
  function outline(marker, r) {
    const polygon = (n, turn, size = r) =>
      Array.from({ length: n }, (_, i) => {
        const angle = turn + (2 * Math.PI * i) / n;
        return `${(size * Math.cos(angle)).toFixed(2)},${(size * Math.sin(angle)).toFixed(2)}`;
      });
    const closed = (points) => `M${points.join("L")}Z`;
    const up = -Math.PI / 2;
    switch (marker) {
      case "s": return closed(polygon(4, Math.PI / 4, r * 1.2));
      case "D": return closed(polygon(4, 0, r * 1.25));
      case "^": return closed(polygon(3, up, r * 1.3));
      case "v": return closed(polygon(3, -up, r * 1.3));
      case "<": return closed(polygon(3, Math.PI, r * 1.3));
      case ">": return closed(polygon(3, 0, r * 1.3));
      case "P": return cross(r * 1.1, 0);
      case "X": return cross(r * 1.1, Math.PI / 4);
      case "p": return closed(polygon(5, up, r * 1.15));
      case "h": return closed(polygon(6, up, r * 1.15));
      case "*": return star(r * 1.45, 5);
      case "d": return `M0,${-r * 1.3}L${r * 0.8},0L0,${r * 1.3}L${-r * 0.8},0Z`;
      default: return `M${-r},0A${r},${r} 0 1 0 ${r},0A${r},${r} 0 1 0 ${-r},0Z`;
    }
  }

  function star(r, points) {
    const corners = Array.from({ length: 2 * points }, (_, i) => {
      const angle = -Math.PI / 2 + (Math.PI * i) / points;
      const size = i % 2 ? r * 0.45 : r;
      return `${(size * Math.cos(angle)).toFixed(2)},${(size * Math.sin(angle)).toFixed(2)}`;
    });
    return `M${corners.join("L")}Z`;
  }

  function cross(r, turn) {
    const w = r * 0.38;
    const corners = [
      [-w, -r], [w, -r], [w, -w], [r, -w], [r, w], [w, w], [w, r], [-w, r], [-w, w], [-r, w],
      [-r, -w], [-w, -w],
    ].map(([x, y]) => {
      const [c, s] = [Math.cos(turn), Math.sin(turn)];
      return `${(x * c - y * s).toFixed(2)},${(x * s + y * c).toFixed(2)}`;
    });
    return `M${corners.join("L")}Z`;
  }

  const plain = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e15 || size < 1e-4) return value.toExponential(0).replace("e+", "e");
    if (size >= 1e5) {
      return value.toLocaleString("en-GB", { notation: "compact", maximumSignificantDigits: 3 });
    }
    return value.toLocaleString("en-GB", { maximumSignificantDigits: size >= 1000 ? 6 : 3 });
  };

  /** Ticks of a linear or logarithmic axis. */
  function ticks(low, high, log, count = 5) {
    if (log) {
      const found = [];
      const decades = Math.log10(high / low);
      const steps = decades > 3 ? [1] : decades > 0.8 ? [1, 2, 5] : [1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9];
      for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) {
        for (const step of steps) {
          const value = Number(`${step}e${e}`);
          if (value >= low * 0.999 && value <= high * 1.001) found.push(value);
        }
      }
      const every = Math.ceil(found.length / 8);
      return found.filter((_, i) => i % every === 0);
    }
    const rough = (high - low) / count || 1;
    const unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * unit).find((n) => n >= rough);
    const found = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-6; value += step) {
      found.push(Math.abs(value) < step * 1e-6 ? 0 : value);
    }
    return found;
  }

  function scale(domain, range, log) {
    const f = log ? Math.log : (x) => x;
    const [a, b] = domain.map(f);
    return (value) => range[0] + ((f(value) - a) / (b - a || 1)) * (range[1] - range[0]);
  }

  /**
   * Draw a chart into `box`.
   *
   * chart.x, chart.y: {title, log, domain?, ticks?: [{at, text}], format?}; a y axis of names has
   *   `names`, one for each whole number from 0, the first on top.
   * chart.lines: [{name, colour, marker, dash, faint, joined, points}], points [{x, y, low, high,
   *   xlow, xhigh, text, links: [{name, href}]}].
   * chart.rules: [{x or y, text}] thin lines; chart.steps: [{y: [..] by x, text}] dashed lines.
   * chart.areas: [{points: [[x, low, high]], colour}]. chart.bars: [{x, from, to, class}].
   * chart.label: what the chart is, for readers who do not see it.
   */
  function draw(box, chart) {
    const width = Math.max(280, box.clientWidth || 600);
    const narrow = width < 480;
    const points = chart.lines.flatMap((line) => line.points);
    const names = chart.y.names;
    const values = (keys) => [
      ...points.flatMap((point) => keys.map((key) => point[key])),
    ].filter((value) => Number.isFinite(value));
    const fit = (axis, keys) => {
      if (axis.domain) return axis.domain;
      const all = values(keys).filter((value) => !axis.log || value > 0);
      let [low, high] = [Math.min(...all), Math.max(...all)];
      if (!all.length) return axis.log ? [1, 10] : [0, 1];
      if (axis.log) {
        const room = Math.max((high / low) ** 0.05, 1.03);
        [low, high] = [low / room, high * room];
      } else {
        const room = (high - low || Math.abs(high) || 1) * 0.06;
        [low, high] = [low >= 0 && low < 0.3 * high ? 0 : low - room, high + room];
      }
      return [axis.least === undefined ? low : Math.max(low, axis.least),
        axis.most === undefined ? high : Math.min(high, axis.most)];
    };
    const xDomain = fit(chart.x, ["x", "xlow", "xhigh"]);
    const yDomain = names ? [-0.6, names.length - 0.4] : fit(chart.y, ["y", "low", "high"]);
    const longest = names ? Math.max(...names.map((name) => name.length), 4) : 0;
    const left = names ? Math.min(width * 0.42, 12 + 6.6 * longest) : narrow ? 46 : 58;
    const right = 14;
    const top = 14;
    const bottom = 44;
    const height = chart.height || (names ? top + bottom + 24 * names.length : narrow ? 300 : 360);
    const x = scale(xDomain, [left, width - right], chart.x.log);
    const y = names
      ? scale(yDomain, [top, height - bottom])
      : scale(yDomain, [height - bottom, top], chart.y.log);
    charts += 1;
    const clip = `pe-x-clip-${charts}`;
    const svg = make("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "group", class: "pe-x-chart",
      "aria-label": chart.label,
    });
    svg.append(make("clipPath", { id: clip }, make("rect", {
      x: left, y: top - 8, width: width - left - right + 8, height: height - top - bottom + 16,
    })));

    // Axes
    const axes = make("g", { class: "pe-x-axes", "aria-hidden": "true" });
    const xTicks = chart.x.ticks || ticks(...xDomain, chart.x.log, narrow ? 4 : 6)
      .map((at) => ({ at, text: (chart.x.format || plain)(at) }));
    let last = -Infinity;
    for (const { at, text } of xTicks) {
      const here = x(at);
      axes.append(make("line", { x1: here, x2: here, y1: top, y2: height - bottom, class: "grid" }));
      const half = text.length * 3.4;
      if (here - half < last + 4) continue;
      last = here + half;
      axes.append(make("text", { x: here, y: height - bottom + 16, "text-anchor": "middle" }, text));
    }
    axes.append(make("text", {
      x: (left + width - right) / 2, y: height - 8, "text-anchor": "middle", class: "title",
    }, chart.x.title));
    if (names) {
      names.forEach((name, i) => {
        const room = Math.floor((left - 12) / 6.4);
        const text = name.length > room ? `${name.slice(0, room - 1)}…` : name;
        axes.append(make("line", { x1: left, x2: width - right, y1: y(i), y2: y(i), class: "grid" }));
        axes.append(make("text", { x: left - 8, y: y(i) + 4, "text-anchor": "end" }, text));
      });
    } else {
      const yTicks = chart.y.ticks || ticks(...yDomain, chart.y.log)
        .map((at) => ({ at, text: (chart.y.format || plain)(at) }));
      for (const { at, text } of yTicks) {
        axes.append(make("line", { x1: left, x2: width - right, y1: y(at), y2: y(at), class: "grid" }));
        axes.append(make("text", { x: left - 7, y: y(at) + 4, "text-anchor": "end" }, text));
      }
      box.dataset.y = chart.y.title;
    }
    svg.append(axes);

    const plot = make("g", { "clip-path": `url(#${clip})` });
    const clamp = (value) => {
      const [low, high] = yDomain;
      return Number.isFinite(value) ? Math.min(Math.max(value, low), high) : value;
    };
    for (const area of chart.areas || []) {
      const up = area.points.map(([px, , high]) => `${x(px)},${y(clamp(high))}`);
      const down = area.points.map(([px, low]) => `${x(px)},${y(clamp(low))}`).reverse();
      plot.append(make("path", {
        d: `M${[...up, ...down].join("L")}Z`, class: `band ${area.class || ""}`, fill: area.colour,
      }));
    }
    for (const bar of chart.bars || []) {
      const [a, b] = [x(bar.x - 0.38), x(bar.x + 0.38)];
      const [y1, y2] = [y(bar.to), y(bar.from)];
      plot.append(make("rect", {
        x: a, width: Math.max(b - a, 1), y: y1, height: Math.max(y2 - y1, 0), class: bar.class,
      }));
    }
    const notes = [];
    for (const rule of chart.rules || []) {
      const upright = rule.x !== undefined;
      const at = upright ? x(rule.x) : y(rule.y);
      plot.append(make("line", upright
        ? { x1: at, x2: at, y1: top, y2: height - bottom, class: "rule" }
        : { x1: left, x2: width - right, y1: at, y2: at, class: "rule" }));
      if (!rule.text) continue;
      const half = rule.text.length * 6.2;
      const turned = upright && at + half > width - right;
      notes.push(make("text", {
        x: upright ? at + (turned ? -5 : 5) : width - right - 2,
        y: upright ? top + 4 + 14 * (rule.row || 0) : at - 4,
        "text-anchor": upright && !turned ? "start" : "end", class: "note",
      }, rule.text));
    }
    for (const step of chart.steps || []) {
      const d = step.points.map(([px, py]) => `${x(px)},${y(clamp(py))}`).join("L");
      plot.append(make("path", { d: `M${d}`, class: "cut" }));
    }

    // Lines, bands and points
    const marks = make("g", { class: "pe-x-points" });
    const entries = [];
    chart.lines.forEach((line, number) => {
      const known = line.points.filter((point) => Number.isFinite(point.y));
      const style = `--line: ${line.colour}`;
      const group = make("g", { class: `pe-x-line${line.faint ? " faint" : ""}`, style });
      if (chart.bands && line.joined !== false) {
        const banded = known.filter((point) => Number.isFinite(point.low));
        if (banded.length > 1) {
          const up = banded.map((point) => `${x(point.x)},${y(clamp(point.high))}`);
          const down = banded.map((point) => `${x(point.x)},${y(clamp(point.low))}`).reverse();
          group.append(make("path", { d: `M${[...up, ...down].join("L")}Z`, class: "band" }));
        }
      }
      if (line.joined !== false) {
        let d = "";
        let pen = false;
        for (const point of line.points) {
          if (Number.isFinite(point.y)) d += `${pen ? "L" : "M"}${x(point.x)},${y(clamp(point.y))}`;
          pen = Number.isFinite(point.y);
        }
        group.append(make("path", { d: d || "M0,0", class: "stroke",
          "stroke-dasharray": DASHES[(line.dash || 0) % DASHES.length] || null }));
      }
      plot.append(group);
      if (!line.marker) return;
      for (const point of known) {
        const [px, py] = [x(point.x), y(clamp(point.y))];
        if (chart.bands && Number.isFinite(point.xlow)) {
          const [a, b] = [point.xlow, point.xhigh].map((v) => x(Math.min(Math.max(v, xDomain[0]), xDomain[1])));
          plot.append(make("line", { x1: a, x2: b, y1: py, y2: py, class: "whisker", style }));
        }
        const links = point.links || [];
        const href = links.length === 1 ? links[0].href : null;
        const mark = make("a", {
          xmlns: SVG, class: "pe-x-point", style, tabindex: -1, href,
          role: href ? "link" : "button",
          "aria-label": `${line.name}, ${point.text}`,
        },
        make("path", { d: outline(line.marker, 11), class: "target" }),
        make("path", { d: outline(line.marker, narrow ? 3.6 : 4.2), class: "mark" }));
        mark.setAttribute("transform", `translate(${px.toFixed(1)},${py.toFixed(1)})`);
        entries.push({ mark, line, point, number, px, py });
        marks.append(mark);
      }
    });
    svg.append(plot, make("g", { "aria-hidden": "true" }, notes), marks);

    const tip = make("div", { class: "pe-x-tip", "aria-hidden": "true", hidden: true });
    box.replaceChildren(svg, tip);
    if (chart.y.title && !names) {
      box.prepend(make("p", { class: "pe-x-y", "aria-hidden": "true" }, chart.y.title));
    }
    listen(svg, tip, entries, chart, width);
    return svg;
  }

  function listen(svg, tip, entries, chart, width) {
    if (!entries.length) return;
    let current = null;
    const show = (entry) => {
      if (entry === current) return;
      current?.mark.classList.remove("on");
      current = entry;
      tip.hidden = !entry;
      svg.classList.toggle("pe-x-chosen", Boolean(entry));
      if (!entry) return;
      entry.mark.classList.add("on");
      const names = (entry.point.links || []).map((link) => link.name);
      const shown = names.length > 4 ? [...names.slice(0, 3), `and ${names.length - 3} more`] : names;
      tip.replaceChildren(
        make("strong", {}, entry.line.name), make("span", {}, entry.point.text),
        ...shown.map((name) => make("small", {}, name)),
      );
      const above = entry.py > 150;
      const down = svg.getBoundingClientRect().top - svg.parentNode.getBoundingClientRect().top;
      const side = Math.min(Math.max(entry.px, 110), width - 110);
      tip.style.left = `${side}px`;
      tip.style.top = `${down + entry.py + (above ? -12 : 14)}px`;
      tip.classList.toggle("below", !above);
      chart.onpoint?.(entry.line, entry.point, false);
    };
    const nearest = (event, most) => {
      const frame = svg.getBoundingClientRect();
      const [px, py] = [event.clientX - frame.left, event.clientY - frame.top];
      const far = (entry) => Math.hypot(entry.px - px, entry.py - py);
      const best = entries.reduce((a, b) => (far(b) < far(a) ? b : a));
      return far(best) <= most ? best : null;
    };
    svg.addEventListener("pointermove", (event) => {
      if (event.pointerType !== "touch") show(nearest(event, 40));
    });
    svg.addEventListener("pointerleave", () => show(null));
    svg.addEventListener("click", (event) => {
      // A point is opened with a mouse by one click; with a finger the first tap names it.
      const own = event.target.closest(".pe-x-point");
      const entry = event.detail === 0 // by the keyboard, which has no place
        ? entries.find(({ mark }) => mark === own) : nearest(event, 40);
      const byTouch = event.pointerType === "touch" && entry !== current;
      if (!entry || byTouch) event.preventDefault();
      if (!entry) return;
      show(entry);
      chart.onpoint?.(entry.line, entry.point, true);
      const links = entry.point.links || [];
      const onMark = own === entry.mark;
      if (!byTouch && links.length === 1 && !onMark && links[0].href) {
        event.preventDefault();
        window.location.assign(links[0].href);
      }
    });

    // One stop for the tab key; arrows move along a line and between lines.
    entries[0].mark.setAttribute("tabindex", 0);
    svg.addEventListener("focusin", (event) => {
      const entry = entries.find(({ mark }) => mark === event.target.closest(".pe-x-point"));
      if (!entry) return;
      for (const { mark } of entries) mark.setAttribute("tabindex", mark === entry.mark ? 0 : -1);
      show(entry);
    });
    svg.addEventListener("focusout", () => show(null));
    svg.addEventListener("keydown", (event) => {
      const at = entries.findIndex(({ mark }) => mark === document.activeElement);
      if (at < 0) return;
      const { number, point, px } = entries[at];
      let next;
      if (event.key === "ArrowRight") next = entries[at + 1];
      else if (event.key === "ArrowLeft") next = entries[at - 1];
      else if (event.key === "Home") [next] = entries;
      else if (event.key === "End") next = entries[entries.length - 1];
      else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
        const other = number + (event.key === "ArrowDown" ? 1 : -1);
        const there = entries.filter((entry) => entry.number === other);
        next = there.sort((a, b) => Math.abs(a.px - px) - Math.abs(b.px - px))[0];
      } else if ((event.key === "Enter" || event.key === " ") && (point.links || []).length !== 1) {
        event.preventDefault();
        chart.onpoint?.(entries[at].line, point, true);
        return;
      } else return;
      event.preventDefault();
      next?.mark.focus();
    });
  }

  /** A small picture of a line for a legend. */
  function sample(line) {
    const svg = make("svg", { viewBox: "0 0 30 14", width: 30, height: 14, "aria-hidden": "true",
      class: "pe-x-sample", style: `--line: ${line.colour}` });
    svg.append(make("path", { d: "M1,7L29,7", class: "stroke",
      "stroke-dasharray": DASHES[(line.dash || 0) % DASHES.length] || null }));
    if (line.marker) {
      const mark = make("path", { d: outline(line.marker, 4), class: "mark" });
      mark.setAttribute("transform", "translate(15,7)");
      svg.append(mark);
    }
    return svg;
  }

  /** Call `redraw` now and when the box has another width. */
  function whenResized(box, redraw) {
    let width = 0;
    new ResizeObserver(() => {
      const now = Math.round(box.clientWidth);
      if (now && now !== width) {
        width = now;
        redraw();
      }
    }).observe(box);
  }

  // An address of another view, opened where one is shown already. Views write theirs without this
  // event, and headings of the page have no "=".
  window.addEventListener("hashchange", () => {
    if (window.location.hash.includes("=")) window.location.reload();
  });

  return { make, labelled, select, draw, sample, plain, whenResized };
})();
