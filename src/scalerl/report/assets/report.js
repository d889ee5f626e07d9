"use strict";
// The interactive chart: plain SVG, redrawn whole on every change. Data: payload.py.
(function () {
  const data = JSON.parse(document.getElementById("data").textContent);
  const figure = document.getElementById("chart");
  if (!figure) return;
  const caption = figure.querySelector("figcaption");
  const NS = "http://www.w3.org/2000/svg";
  const COLOURS = 7, DIRECT = 6, CROWD = 12, ROWS = 6;
  const state = {
    log: true, bands: data.runs.length <= DIRECT, seen: false, power: data.runs.length === 1, law: data.runs.length === 1,
    held: true, kind: 0, shown: new Set(data.runs.map((_, i) => i)), focus: -1, at: null,
  };
  let view = null;

  function el(name, attributes, parent, text) {
    const node = name[0] === "*" ? document.createElementNS(NS, name.slice(1)) : document.createElement(name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.appendChild(node);
    return node;
  }

  const colour = (i) => `var(--c${i % COLOURS})`;

  function amount(v) {
    if (v === 0) return "0";
    const power = Math.min(Math.max(Math.floor(Math.log10(Math.abs(v)) / 3 + 1e-9), 0), 8);
    return String(+(v / 1000 ** power).toPrecision(3)) + ["", "k", "M", "G", "T", "P", "E", "Z", "Y"][power];
  }

  const short = (name, n) => name.length > n ? name.slice(0, n >> 1) + "…" + name.slice(1 - (n >> 1)) : name;

  // ---- marks: every run has a shape of its own, for readers who do not tell the colours apart
  function mark(i, x, y, r) {
    const s = r * 0.9, t = r * 1.2;
    switch (i % COLOURS) {
      case 1: return `M${x - s} ${y - s}h${2 * s}v${2 * s}h${-2 * s}z`;
      case 2: return `M${x} ${y - t}l${t} ${t}l${-t} ${t}l${-t} ${-t}z`;
      case 3: return `M${x} ${y - t}l${t} ${2 * s}h${-2 * t}z`;
      case 4: return `M${x} ${y + t}l${t} ${-2 * s}h${-2 * t}z`;
      case 5: return `M${x - t} ${y}h${2 * t}M${x} ${y - t}v${2 * t}`;
      case 6: return `M${x - s} ${y - s}l${2 * s} ${2 * s}m0 ${-2 * s}l${-2 * s} ${2 * s}`;
      default: return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
    }
  }

  // ---- scales
  function ticksLinear(low, high, n) {
    const raw = (high - low) / Math.max(n, 1);
    const unit = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((s) => s >= raw);
    const out = [];
    for (let v = Math.ceil(low / step) * step; v <= high * (1 + 1e-9); v += step) out.push(+v.toPrecision(12));
    return out;
  }

  function ticksLog(low, high, n) {
    const decades = Math.log10(high / low);
    const every = Math.max(1, Math.ceil(decades / n));
    const parts = decades < 1 ? [1, 1.5, 2, 3, 5, 7] : decades * 3 <= n ? [1, 2, 5] : [1];
    const out = [];
    for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e += 1) {
      if (parts.length === 1 && e % every) continue;
      for (const p of parts) if (p * 10 ** e >= low && p * 10 ** e <= high) out.push(p * 10 ** e);
    }
    return out;
  }

  const visible = () => [...state.shown].filter((i) => data.runs[i].kind === state.kind).sort((a, b) => a - b);

  function range(ids) {
    let first = Infinity, last = 0, low = 1, high = 0;
    for (const i of ids) {
      const r = data.runs[i];
      const groups = state.held ? [r.used, r.held] : [r.used];
      for (const [xs, ys] of groups) {
        for (const x of xs) if (x > 0) first = Math.min(first, x);
        for (const y of ys) { low = Math.min(low, y); high = Math.max(high, y); }
      }
      first = Math.min(first, r.x[0]);
      last = Math.max(last, r.x[r.x.length - 1]);
      const lines = [r.median].concat(state.bands ? [r.low, r.high] : [], state.seen ? [r.seenLow, r.seenHigh] : []);
      for (const line of lines) for (const y of line) { low = Math.min(low, y); high = Math.max(high, y); }
      if (r.ceiling && ids.length === 1) { low = Math.min(low, r.ceiling[1]); high = Math.max(high, r.ceiling[2]); }
    }
    if (data.truth) { low = Math.min(low, data.truth); high = Math.max(high, data.truth); }
    if (!ids.length) return { first: 1, last: 10, low: 0, high: 1 };
    const pad = 0.05 * Math.max(high - low, 0.02);
    return { first: first / 1.06, last: last, low: Math.max(low - pad, -0.02), high: Math.min(high + pad, 1.02) };
  }

  // ---- drawing
  function layout() {
    const width = Math.max(stage.clientWidth, 280);
    const height = Math.round(Math.min(Math.max(width * 0.5, 300), 500));
    const ids = visible();
    const named = ids.length <= DIRECT && width > 640;
    const right = named ? 170 : ids.length === 1 ? 16 : 12;
    const box = { left: 46, top: 30, right: width - right, bottom: height - 44 };
    const r = range(ids);
    const start = state.log ? Math.log(r.first) : 0, stop = state.log ? Math.log(r.last) : r.last;
    const X = (v) => box.left + (box.right - box.left) * ((state.log ? Math.log(Math.max(v, r.first)) : v) - start) / (stop - start);
    const Y = (v) => box.bottom - (box.bottom - box.top) * (v - r.low) / (r.high - r.low);
    const back = (px) => {
      const t = start + (stop - start) * (px - box.left) / (box.right - box.left);
      return state.log ? Math.exp(t) : t;
    };
    return { width, height, ids, named, box, r, X, Y, back };
  }

  function path(xs, ys) {
    let d = "", pen = "M";
    for (let k = 0; k < xs.length; k++) {
      if (ys[k] === null) { pen = "M"; continue; }
      d += `${pen}${view.X(xs[k]).toFixed(1)} ${view.Y(ys[k]).toFixed(1)}`;
      pen = "L";
    }
    return d;
  }

  function band(svg, r, low, high, i, opacity) {
    const there = path(r.x, high), back = path(r.x.slice().reverse(), low.slice().reverse());
    el("*path", { d: `${there}L${back.slice(1)}z`, fill: colour(i), opacity: opacity }, svg);
  }

  function drawAxes(svg) {
    const { box, r, X, Y, width } = view;
    const room = (box.right - box.left) / 70;
    for (const v of ticksLinear(r.low, r.high, (box.bottom - box.top) / 60)) {
      el("*line", { x1: box.left, x2: box.right, y1: Y(v), y2: Y(v), stroke: "var(--faint)" }, svg);
      el("*text", { x: box.left - 8, y: Y(v) + 4, "text-anchor": "end" }, svg, String(+v.toFixed(3)));
    }
    const ticks = state.log ? ticksLog(r.first, r.last, room) : ticksLinear(0, r.last, room);
    for (const v of ticks) {
      el("*line", { x1: X(v), x2: X(v), y1: box.bottom, y2: box.bottom + 5, stroke: "var(--muted)" }, svg);
      el("*text", { x: X(v), y: box.bottom + 19, "text-anchor": "middle" }, svg, amount(v));
    }
    el("*line", { x1: box.left, x2: box.right, y1: box.bottom, y2: box.bottom, stroke: "var(--muted)" }, svg);
    el("*text", { x: (box.left + box.right) / 2, y: box.bottom + 38, "text-anchor": "middle" }, svg,
      data.kinds[state.kind] + (state.log ? ", log scale" : ""));
    el("*text", { x: box.left - 38, y: 12 }, svg, "pass rate");
    return width;
  }

  function drawRun(svg, i, total) {
    const r = data.runs[i], crowd = total > DIRECT, hot = state.focus === i;
    const fade = state.focus >= 0 && !hot && crowd ? 0.25 : 1;
    const g = el("*g", { opacity: fade }, svg);
    if (state.seen && (!crowd || hot)) band(g, r, r.seenLow, r.seenHigh, i, 0.1);
    if (state.bands && (!crowd || hot)) band(g, r, r.low, r.high, i, 0.2);
    const size = crowd || r.used[0].length > 120 ? 1.6 : 3;
    const points = (set, filled) => {
      let d = "";
      for (let k = 0; k < set[0].length; k++) d += mark(i, view.X(set[0][k]), view.Y(set[1][k]), size);
      el("*path", {
        d, fill: filled ? colour(i) : "none", stroke: colour(i), "stroke-width": filled ? 0.6 : 1.1,
        opacity: crowd ? 0.3 : r.used[0].length > 120 ? 0.4 : 0.8, "clip-path": "url(#frame)",
      }, g);
    };
    points(r.used, true);
    if (state.held && r.held[0].length) points(r.held, false);
    if (state.power && r.power && (!crowd || hot)) {
      el("*path", { d: path(r.x, r.power), fill: "none", stroke: total === 1 ? "var(--c1)" : colour(i), "stroke-width": 1.4, "stroke-dasharray": "5 4", "clip-path": "url(#frame)" }, g);
    }
    if (state.law && r.law && r.law.length && (!crowd || hot)) {
      el("*path", { d: path(r.x.slice(0, r.law.length), r.law), fill: "none", stroke: total === 1 ? "var(--ink)" : colour(i), "stroke-width": 1.2, "stroke-dasharray": "1.5 2.5", "clip-path": "url(#frame)" }, g);
    }
    const split = r.x.filter((x) => x <= r.end * 1.00001).length;
    const width = hot ? 3 : crowd ? 1.4 : 2.4;
    el("*path", { d: path(r.x.slice(0, split), r.median.slice(0, split)), fill: "none", stroke: colour(i), "stroke-width": width }, g);
    el("*path", { d: path(r.x.slice(split - 1), r.median.slice(split - 1)), fill: "none", stroke: colour(i), "stroke-width": width * 0.8, "stroke-dasharray": "7 4" }, g);
    el("*path", { d: mark(i, view.X(r.end), view.Y(r.median[split - 1]), crowd ? 3 : 4.5), fill: colour(i), stroke: colour(i), "stroke-width": 1 }, g);
  }

  function drawSingle(svg, i) {
    const r = data.runs[i], { box, X, Y } = view, x = X(r.end);
    el("*line", { x1: x, x2: x, y1: box.top, y2: box.bottom, stroke: "var(--muted)", "stroke-dasharray": "1 3" }, svg);
    el("*text", { x, y: box.top - 8, "text-anchor": "middle" }, svg, "fitted | forecast");
    if (state.power && r.power) {
      const n = r.x.length - 1, side = r.power[n] < r.median[n] ? 16 : -7;
      const y = Math.min(Math.max(Y(r.power[n]) + side, box.top + 8), box.bottom - 8);
      el("*text", { x: box.right - 4, y, "text-anchor": "end", class: "halo" }, svg, `power law, A = ${r.powerA.toFixed(3)}`);
    }
    if (!r.ceiling) return;
    const [a, low, high] = r.ceiling;
    el("*line", { x1: box.left, x2: box.right, y1: Y(a), y2: Y(a), stroke: colour(i), "stroke-dasharray": "2 3" }, svg);
    el("*rect", { x: box.right + 3, y: Y(high), width: 4, height: Math.max(Y(low) - Y(high), 2), fill: colour(i) }, svg);
    if (!view.named) el("*text", { x: box.left + 6, y: Y(a) - 6, class: "halo" }, svg, `ceiling ${a.toFixed(3)}`);
  }

  function drawNames(svg) {
    const { ids, box, Y } = view, gap = 34;
    const labels = ids.map((i) => ({ i, y: Y(data.runs[i].median[data.runs[i].median.length - 1]) })).sort((a, b) => a.y - b.y);
    labels.forEach((l, k) => { l.at = Math.max(l.y, k ? labels[k - 1].at + gap : box.top + 8); });
    for (let k = labels.length - 1; k >= 0; k--) {
      labels[k].at = Math.min(labels[k].at, k === labels.length - 1 ? box.bottom - 8 : labels[k + 1].at - gap);
    }
    for (const l of labels) {
      const r = data.runs[l.i], x = view.X(r.x[r.x.length - 1]);
      el("*path", { d: `M${x} ${l.y}L${box.right + 12} ${l.at}`, stroke: colour(l.i), fill: "none", opacity: 0.7 }, svg);
      el("*text", { x: box.right + 16, y: l.at - 2, class: "name" }, svg, short(r.name, 22));
      const note = r.alarm ? "alarm: in decline" : r.ceiling ? `ceiling ${r.ceiling[0].toFixed(3)}` : "ceiling not identified";
      el("*text", { x: box.right + 16, y: l.at + 13 }, svg, note);
    }
  }

  function draw() {
    view = layout();
    stage.querySelector("svg")?.remove();
    const { width, height, box, ids } = view;
    const svg = el("*svg", { viewBox: `0 0 ${width} ${height}`, height, "aria-hidden": "true" });
    const clip = el("*clipPath", { id: "frame" }, el("*defs", {}, svg));
    el("*rect", { x: box.left - 5, y: box.top - 5, width: box.right - box.left + 10, height: box.bottom - box.top + 5 }, clip);
    drawAxes(svg);
    for (const i of ids) if (i !== state.focus) drawRun(svg, i, ids.length);
    if (ids.includes(state.focus)) drawRun(svg, state.focus, ids.length);
    if (ids.length === 1) drawSingle(svg, ids[0]);
    if (data.truth) {
      el("*line", { x1: box.left, x2: box.right, y1: view.Y(data.truth), y2: view.Y(data.truth), stroke: "var(--muted)", "stroke-dasharray": "9 3 2 3" }, svg);
      el("*text", { x: box.left + 6, y: view.Y(data.truth) - 6, class: "halo" }, svg, `ceiling by construction ${data.truth.toFixed(3)}`);
    }
    if (view.named) drawNames(svg);
    view.cursor = el("*g", { "pointer-events": "none" }, svg);
    stage.appendChild(svg);
    readOut();
  }

  // ---- reading values off the curves
  function valueAt(r, x) {
    const n = r.x.length;
    if (x < r.x[0] * 0.999 || x > r.x[n - 1] * 1.001) return null;
    let k = 1;
    while (k < n - 1 && r.x[k] < x) k++;
    // On a knot its own numbers, as the tables print them (the heading shows three digits of x).
    const near = Math.abs(r.x[k] - x) < Math.abs(r.x[k - 1] - x) ? k : k - 1;
    const exact = Math.abs(r.x[near] / x - 1) < 1e-3;
    const t = Math.min(Math.max(Math.log(x / r.x[k - 1]) / Math.log(r.x[k] / r.x[k - 1]), 0), 1);
    const mix = (a) => exact ? a[near] : a[k - 1] + t * (a[k] - a[k - 1]);
    return { median: mix(r.median), low: mix(r.low), high: mix(r.high), seenLow: mix(r.seenLow), seenHigh: mix(r.seenHigh) };
  }

  function readOut() {
    const { ids, box, X, Y } = view;
    const asked = ids.map((i) => data.runs[i].at || 2 * data.runs[i].end).sort((a, b) => a - b);
    const usual = asked.length > DIRECT ? asked[asked.length >> 1] : asked[asked.length - 1] || 2;
    const x = state.at === null ? Math.min(usual, view.r.last) : state.at;
    let rows = ids.map((i) => ({ i, v: valueAt(data.runs[i], x) })).filter((r) => r.v);
    if (rows.length > ROWS) {
      const y = state.y === undefined ? 1 : state.y;
      rows.sort((a, b) => (b.i === state.focus) - (a.i === state.focus) || Math.abs(a.v.median - y) - Math.abs(b.v.median - y));
      rows = rows.slice(0, ROWS);
    }
    view.cursor.replaceChildren();
    if (ids.length) el("*line", { x1: X(x), x2: X(x), y1: box.top, y2: box.bottom, stroke: "var(--muted)", opacity: 0.5 }, view.cursor);
    for (const { i, v } of rows) {
      el("*circle", { cx: X(x), cy: Y(v.median), r: 4.5, fill: "var(--paper)", stroke: colour(i), "stroke-width": 2 }, view.cursor);
    }
    const table = el("table", {});
    const top = el("tr", {}, el("thead", {}, table));
    for (const h of [`At ${amount(+x.toPrecision(3))} ${data.kinds[state.kind]}`, "pass rate", `${data.level} true`, `${data.level} one evaluation`]) el("th", { scope: "col" }, top, h);
    const body = el("tbody", {}, table);
    for (const { i, v } of rows) {
      const row = el("tr", {}, body), head = el("th", { scope: "row" }, row);
      head.appendChild(swatch(i));
      head.append(" " + short(data.runs[i].name, view.width > 640 ? 60 : 18) + (x > data.runs[i].end ? " (forecast)" : ""));
      el("td", {}, row, v.median.toFixed(3));
      el("td", {}, row, `${v.low.toFixed(3)} to ${v.high.toFixed(3)}`);
      el("td", {}, row, `${v.seenLow.toFixed(3)} to ${v.seenHigh.toFixed(3)}`);
    }
    readout.replaceChildren(table);
  }

  function moveTo(x, y) {
    state.at = Math.min(Math.max(x, view.r.first), view.r.last);
    state.y = y;
    let nearest = -1;
    if (view.ids.length > DIRECT && y !== undefined) {
      let best = 0.05 * (view.r.high - view.r.low);
      for (const i of view.ids) {
        const v = valueAt(data.runs[i], state.at);
        if (v && Math.abs(v.median - y) < best) { best = Math.abs(v.median - y); nearest = i; }
      }
    }
    if (nearest !== state.focus) { state.focus = nearest; draw(); } else readOut();
  }

  // ---- controls
  function swatch(i) {
    const svg = el("*svg", { width: 14, height: 12, "aria-hidden": "true" });
    el("*path", { d: `M0 6h14${mark(i, 7, 6, 3.6)}`, stroke: colour(i), fill: colour(i), "stroke-width": 1.6 }, svg);
    return svg;
  }

  function toggle(parent, label, get, set) {
    const button = el("button", { type: "button" }, parent, label);
    const show = () => button.setAttribute("aria-pressed", String(get()));
    button.addEventListener("click", () => { set(!get()); show(); draw(); });
    show();
    return { button, show };
  }

  const tools = el("div", { class: "tools", role: "toolbar", "aria-label": "Chart" });
  toggle(tools, "log axis", () => state.log, (v) => { state.log = v; });
  toggle(tools, `${data.level} band`, () => state.bands, (v) => { state.bands = v; });
  toggle(tools, "one evaluation", () => state.seen, (v) => { state.seen = v; });
  if (data.runs.some((r) => r.law && r.law.length)) toggle(tools, "law alone", () => state.law, (v) => { state.law = v; });
  if (data.runs.some((r) => r.power)) toggle(tools, "power law", () => state.power, (v) => { state.power = v; });
  if (data.runs.some((r) => r.held[0].length)) toggle(tools, "held-out points", () => state.held, (v) => { state.held = v; });
  if (data.kinds.length > 1) {
    const select = el("select", { "aria-label": "Kind of compute" }, tools);
    data.kinds.forEach((k, i) => el("option", { value: i }, select, k));
    select.addEventListener("change", () => { state.kind = +select.value; state.at = null; chips(); draw(); });
  }
  const stage = el("div", {
    class: "stage", tabindex: "0", role: "application",
    "aria-label": "Chart of pass rate against compute. Left and right arrow keys move the reading line.",
  });
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const list = el("div", { class: "runs tools", role: "group", "aria-label": "Runs shown" });

  function chips(filter) {
    list.replaceChildren();
    const mine = data.runs.map((r, i) => i).filter((i) => data.runs[i].kind === state.kind);
    if (mine.length < 2) return;
    if (mine.length > CROWD) {
      const input = el("input", { type: "search", placeholder: "find a run", "aria-label": "Find a run", value: filter || "" }, list);
      input.addEventListener("input", () => { chips(input.value); const next = list.querySelector("input"); next.focus(); next.setSelectionRange(next.value.length, next.value.length); });
    }
    if (mine.length > 2) {
      const all = el("button", { type: "button" }, list, "all");
      all.addEventListener("click", () => { mine.forEach((i) => state.shown.add(i)); chips(filter); draw(); });
      const none = el("button", { type: "button" }, list, "none");
      none.addEventListener("click", () => { mine.forEach((i) => state.shown.delete(i)); chips(filter); draw(); });
    }
    for (const i of mine) {
      const r = data.runs[i];
      if (filter && !r.name.toLowerCase().includes(filter.toLowerCase())) continue;
      const { button } = toggle(list, "", () => state.shown.has(i), (v) => { if (v) state.shown.add(i); else state.shown.delete(i); });
      button.append(swatch(i), r.name + (r.alarm ? " (alarm)" : ""));
      const focus = (v) => () => { if (view.ids.length > DIRECT) { state.focus = v; draw(); } };
      button.addEventListener("mouseenter", focus(i));
      button.addEventListener("mouseleave", focus(-1));
    }
  }

  let latest = null;
  stage.addEventListener("pointermove", (event) => {
    // Many moves may come between two frames: only the last of them is worth drawing.
    if (latest === null) requestAnimationFrame(() => { const last = latest; latest = null; follow(last); });
    latest = event;
  });
  function follow(event) {
    const place = stage.getBoundingClientRect();
    const scale = view.width / place.width;
    const { box, r } = view;
    const py = (event.clientY - place.top) * scale;
    moveTo(view.back((event.clientX - place.left) * scale), r.low + (r.high - r.low) * (box.bottom - py) / (box.bottom - box.top));
  }
  stage.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const now = state.at === null ? view.r.first : state.at;
    const pixel = view.X(now) + step * (event.shiftKey ? 40 : 8);
    moveTo(view.back(Math.min(Math.max(pixel, view.box.left), view.box.right)));
  });

  for (const part of [tools, stage, readout, list]) figure.insertBefore(part, caption);
  chips();
  draw();
  let wide = stage.clientWidth;
  new ResizeObserver(() => { if (stage.clientWidth !== wide) { wide = stage.clientWidth; draw(); } }).observe(stage);
})();
