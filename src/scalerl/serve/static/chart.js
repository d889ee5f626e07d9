// The curve with its band and forecast, drawn by uPlot; and what can be dragged on it.
import { el } from "./dom.js";
import { amount } from "./words.js";

const COLOURS = 7;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clear = (colour, share) => `color-mix(in srgb, ${colour} ${share}%, transparent)`;
const smooth = uPlot.paths.spline();
const none = () => null;

export function swatch(i) {
  const svg = el("*svg", { width: 14, height: 10, "aria-hidden": "true" });
  svg.append(el("*path", { d: "M0 5h14", stroke: `var(--c${i % COLOURS})`, "stroke-width": 3 }));
  return svg;
}

export class Chart {
  // handles: { lo, hi, budget } are told of a drag: moved(name, value, done)
  constructor(box, { height = 420, moved = null, label = "" } = {}) {
    this.box = box;
    this.height = height;
    this.moved = moved;
    this.log = true;
    this.runs = [];
    this.marks = {};
    this.handles = {};
    this.holding = null;
    this.plot = null;
    box.classList.add("chartbox");
    this.label = label;
    this.watch = new ResizeObserver(() => {
      if (this.plot && Math.abs(this.plot.width - this.width()) > 1) this.build();
    });
    this.watch.observe(box);
    this.theme = matchMedia("(prefers-color-scheme: dark)");
    this.repaint = () => this.build();
    this.theme.addEventListener("change", this.repaint);
  }

  close() {
    this.watch.disconnect();
    this.theme.removeEventListener("change", this.repaint);
    this.plot?.destroy();
    this.plot = null;
  }

  width() { return Math.max(this.box.clientWidth, 260); }

  // runs: [{ name, colour, curve: {x, median, low, high, end, used, held, unit}, ceiling }]
  // marks: { lo, hi, budget, target, points: [compute] }
  show(runs, marks = {}, log = this.log) {
    const shape = `${runs.map((r) => `${r.colour}${Boolean(r.curve.x.length)}`).join()}|${log}|${runs[0]?.curve.unit}`;
    this.runs = runs;
    this.marks = marks;
    this.log = log;
    if (!this.plot || shape !== this.shape) { this.shape = shape; this.build(); return; }
    this.plot.setData(this.data());
  }

  first() {
    let first = Infinity;
    for (const r of this.runs) for (const xs of [r.curve.used[0], r.curve.held[0], r.curve.x]) for (const x of xs) if (x > 0 && x < first) first = x;
    return Number.isFinite(first) ? first : 1;
  }

  data() {
    const floor = this.first() / 1.06;
    const at = (xs) => this.log ? xs.map((x) => Math.max(x, floor)) : xs;
    const tables = [];
    for (const { curve } of this.runs) {
      const split = curve.x.filter((x) => x <= curve.end * 1.00001).length;
      tables.push([at(curve.x), curve.high, curve.low]);
      tables.push([at(curve.x.slice(0, split)), curve.median.slice(0, split)]);
      tables.push([at(curve.x.slice(Math.max(split - 1, 0))), curve.median.slice(Math.max(split - 1, 0))]);
      tables.push(once(at(curve.used[0]), curve.used[1]));
      tables.push(once(at(curve.held[0]), curve.held[1]));
    }
    if (!tables.length || tables.every((t) => !t[0].length)) return [[1, 2], ...Array(6 * this.runs.length).fill([null, null])];
    return uPlot.join(tables);
  }

  range() {
    let last = 0, low = 1, high = 0;
    for (const { curve, ceiling } of this.runs) {
      for (const xs of [curve.x, curve.used[0], curve.held[0]]) for (const x of xs) last = Math.max(last, x);
      const lines = [curve.used[1], curve.held[1], curve.median];
      if (this.runs.length <= 3) lines.push(curve.low, curve.high);
      for (const ys of lines) for (const y of ys) if (y !== null) { low = Math.min(low, y); high = Math.max(high, y); }
      if (ceiling && this.runs.length === 1) high = Math.max(high, ceiling[2] ?? ceiling[0]);
    }
    if (this.marks.target) { low = Math.min(low, this.marks.target); high = Math.max(high, this.marks.target); }
    if (this.marks.budget) last = Math.max(last, this.marks.budget * 1.04);
    const pad = 0.06 * Math.max(high - low, 0.02);
    const first = this.log ? this.first() / 1.12 : 0;
    return { first, last: Math.max(last, first * 1.5), low: Math.max(low - pad, -0.02), high: Math.min(high + pad, 1.02) };
  }

  build() {
    if (!this.runs.length) return;
    const focused = document.activeElement?.dataset?.handle;
    this.plot?.destroy();
    this.handles = {};
    const ink = css("--muted"), faint = css("--faint");
    const series = [{}], bands = [];
    const crowd = this.runs.length > 3;
    for (const run of this.runs) {
      const colour = css(`--c${run.colour % COLOURS}`);
      const n = series.length;
      const edge = { stroke: "transparent", width: 0, points: { show: false }, spanGaps: true, paths: smooth };
      series.push(edge, { ...edge });
      if (!crowd) bands.push({ series: [n, n + 1], fill: clear(colour, 20) });
      const line = { stroke: colour, width: crowd ? 1.6 : 2.4, points: { show: false }, spanGaps: true, paths: smooth };
      series.push(line, { ...line, width: crowd ? 1.3 : 2, dash: [7, 4] });
      const many = run.curve.used[0].length > 120 || crowd;
      const dots = { stroke: clear(colour, many ? 45 : 80), paths: none };
      series.push({ ...dots, points: { show: true, size: many ? 3.5 : 6, width: 1, fill: clear(colour, many ? 45 : 80) } });
      series.push({ ...dots, points: { show: true, size: many ? 3.5 : 6, width: 1.2, fill: "transparent" } });
    }
    const font = "12px " + getComputedStyle(document.body).fontFamily;
    const axis = { stroke: ink, font, labelFont: font, grid: { stroke: faint, width: 1 }, ticks: { stroke: ink, width: 1, size: 5 } };
    this.plot = new uPlot({
      width: this.width(), height: this.height, series, bands,
      legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { time: false, distr: this.log ? 3 : 1, range: () => { const r = this.range(); return [r.first, r.last]; } },
        y: { range: () => { const r = this.range(); return [r.low, r.high]; } },
      },
      axes: [
        { ...axis, grid: { show: false }, size: 34, label: `${this.runs[0].curve.unit}${this.log ? ", log scale" : ""}`, labelSize: 22, values: (_, vs) => vs.map((v) => v === null ? null : amount(v)), ...(this.log ? { splits: (u, _, low, high) => ticks(low, high, (u.width - 60) / 60), filter: (_, vs) => vs } : {}) },
        { ...axis, size: 46, values: (_, vs) => vs.map((v) => String(+v.toFixed(3))) },
      ],
      hooks: { draw: [(u) => { this.lines(u); this.place(); }], setCursor: [(u) => this.read(u)] },
    }, this.data(), this.box);
    this.plot.root.setAttribute("aria-hidden", "false");
    this.plot.root.querySelector("canvas").setAttribute("aria-label", this.label);
    this.plot.root.querySelector("canvas").setAttribute("role", "img");
    if (this.moved) for (const name of ["lo", "hi", "budget"]) this.addHandle(name);
    if (focused) this.handles[focused]?.focus();
    // A chart that is built anew under a hand stays in it.
    if (this.holding) { try { this.handles[this.holding].setPointerCapture(this.pointer); } catch { this.holding = null; } }
  }

  // The ceiling with its interval, and the target.
  lines(u) {
    const { ctx, bbox } = u, dpr = devicePixelRatio;
    const across = (y, colour, dash, text) => {
      const at = u.valToPos(y, "y", true);
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour;
      ctx.setLineDash(dash.map((d) => d * dpr));
      ctx.lineWidth = 1.2 * dpr;
      ctx.beginPath(); ctx.moveTo(bbox.left, at); ctx.lineTo(bbox.left + bbox.width, at); ctx.stroke();
      ctx.font = `${12 * dpr}px sans-serif`;
      ctx.textAlign = "left";
      ctx.fillText(text, bbox.left + 0.3 * bbox.width, at - 5 * dpr < bbox.top + 9 * dpr ? at + 14 * dpr : at - 5 * dpr);
      ctx.restore();
    };
    if (this.runs.length === 1 && this.runs[0].ceiling) {
      const [a, low, high] = this.runs[0].ceiling, colour = css(`--c${this.runs[0].colour % COLOURS}`);
      across(a, colour, [2, 3], `ceiling ${a.toFixed(3)}`);
      const top = u.valToPos(high ?? 1, "y", true), bottom = u.valToPos(low, "y", true);
      ctx.save();
      ctx.fillStyle = colour;
      ctx.fillRect(bbox.left + bbox.width - 4 * dpr, top, 4 * dpr, Math.max(bottom - top, 2));
      ctx.restore();
    }
    if (this.runs.length > 1 && this.runs.length <= 6) this.names(u);
    if (this.marks.target) across(this.marks.target, css("--c3"), [6, 3], `target ${this.marks.target}`);
  }

  // Each curve is named at its end: colours alone do not tell runs apart for everybody.
  names(u) {
    const { ctx, bbox } = u, dpr = devicePixelRatio, gap = 14 * dpr;
    const labels = this.runs.filter((r) => r.curve.x.length).map((r) => ({ r, y: u.valToPos(r.curve.median.at(-1), "y", true) - 8 * dpr })).sort((a, b) => b.y - a.y);
    labels.forEach((l, i) => { if (i) l.y = Math.min(l.y, labels[i - 1].y - gap); });
    // What does not fit above is pushed down again.
    labels.reverse().forEach((l, i) => { l.y = Math.max(l.y, i ? labels[i - 1].y + gap : bbox.top + gap); });
    ctx.save();
    ctx.font = `${12 * dpr}px sans-serif`;
    ctx.textAlign = "right";
    ctx.lineWidth = 3 * dpr;
    ctx.strokeStyle = css("--paper");
    for (const { r, y } of labels) {
      ctx.fillStyle = css(`--c${r.colour % COLOURS}`);
      const name = r.name.length > 28 ? r.name.slice(0, 27) + "…" : r.name;
      ctx.strokeText(name, bbox.left + bbox.width - 4 * dpr, y);
      ctx.fillText(name, bbox.left + bbox.width - 4 * dpr, y);
    }
    ctx.restore();
  }

  read(u) {
    if (!this.reading) return;
    const x = u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null;
    this.reading(x);
  }

  // ---- handles: sliders on the chart, by pointer and by key
  addHandle(name) {
    const words = { lo: "Start of the fitted window", hi: "End of the fitted window", budget: "Budget" };
    const handle = el("div", { class: `handle ${name}`, role: "slider", tabindex: "0", "aria-label": words[name], "aria-orientation": "horizontal", "data-handle": name }, el("span"));
    handle.addEventListener("pointerdown", (event) => {
      event.preventDefault();
      handle.setPointerCapture(event.pointerId);
      handle.focus();
      this.holding = name;
      this.pointer = event.pointerId;
    });
    handle.addEventListener("pointermove", (event) => {
      if (this.holding !== name) return;
      const box = this.plot.over.getBoundingClientRect();
      const at = this.plot.posToVal(Math.min(Math.max(event.clientX - box.left, 0), box.width), "x");
      this.moveTo(name, +at.toPrecision(4), false);
    });
    const drop = () => { if (this.holding === name) { this.holding = null; this.moved(name, this.marks[name], true); } };
    handle.addEventListener("pointerup", drop);
    handle.addEventListener("pointercancel", drop);
    handle.addEventListener("keydown", (event) => {
      const to = this.byKey(name, event);
      if (to === null) return;
      event.preventDefault();
      this.moveTo(name, to, true);
    });
    this.plot.over.append(handle);
    this.handles[name] = handle;
  }

  byKey(name, event) {
    const step = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -5, PageUp: 5 }[event.key];
    const now = this.marks[name], points = this.marks.points;
    if (name === "budget") {
      const r = this.range();
      if (event.key === "Home") return points.at(-1);
      if (event.key === "End") return r.last;
      if (!step) return null;
      return now * (1 + 0.04 * step * (event.shiftKey ? 5 : 1));
    }
    if (event.key === "Home") return points[0];
    if (event.key === "End") return points.at(-1);
    if (!step) return null;
    let at = 0;
    points.forEach((x, i) => { if (Math.abs(x - now) < Math.abs(points[at] - now)) at = i; });
    return points[Math.min(Math.max(at + step * (event.shiftKey ? 5 : 1), 0), points.length - 1)];
  }

  moveTo(name, value, done) {
    const { lo, hi, points } = this.marks;
    const first = points.find((x) => x > 0) ?? points[0], last = points.at(-1);
    // A window keeps room for the five points that a fit needs.
    const room = (side) => { const inside = points.filter((x) => side === "lo" ? x <= hi : x >= lo); return side === "lo" ? inside.at(-5) ?? points[0] : inside[4] ?? last; };
    if (name === "lo") value = Math.min(Math.max(value, points[0] > 0 ? points[0] : this.log && value < first ? 0 : value), room("lo"));
    if (name === "hi") value = Math.max(Math.min(value, last), room("hi"));
    if (name === "budget") value = Math.max(value, first);
    this.marks[name] = value;
    this.place();
    this.moved(name, value, done);
  }

  place() {
    if (!this.plot || this.plot.scales.x.min === null) return;
    const { first, last } = this.range();
    const from = this.marks.points?.[0] ?? first;
    for (const [name, handle] of Object.entries(this.handles)) {
      const value = this.marks[name];
      handle.hidden = value === null || value === undefined;
      if (handle.hidden) continue;
      const left = this.plot.valToPos(Math.min(Math.max(value, first), last), "x");
      handle.style.left = `${left}px`;
      handle.classList.toggle("left", left > this.plot.over.clientWidth - 110);
      const text = name === "budget" ? `budget ${amount(value)}` : name === "lo" ? `from ${amount(value)}` : `to ${amount(value)}`;
      handle.firstChild.textContent = text;
      handle.setAttribute("aria-valuemin", from);
      handle.setAttribute("aria-valuemax", last);
      handle.setAttribute("aria-valuenow", value);
      handle.setAttribute("aria-valuetext", `${amount(value)} ${this.runs[0]?.curve.unit ?? ""}`);
    }
  }
}

// uPlot joins by x: of points at one place the last counts.
function once(xs, ys) {
  const x = [], y = [];
  for (let i = 0; i < xs.length; i++) {
    if (x.length && xs[i] <= x[x.length - 1]) { if (xs[i] === x[x.length - 1]) y[y.length - 1] = ys[i]; continue; }
    x.push(xs[i]); y.push(ys[i]);
  }
  return [x, y];
}

// Of a log axis: powers of ten, and parts of them where there is room.
function ticks(low, high, room) {
  const decades = Math.log10(high / low);
  const parts = decades < 1 ? [1, 1.5, 2, 3, 4, 5, 6, 8] : decades * 3 <= room ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / Math.max(room, 1)));
  const out = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.log10(high); e++) {
    if (parts.length === 1 && e % every) continue;
    for (const p of parts) if (p * 10 ** e >= low && p * 10 ** e <= high) out.push(p * 10 ** e);
  }
  return out;
}
