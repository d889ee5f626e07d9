// The chart of pass rate against compute, for the report and the live page. uPlot gives scales, axes
// and the canvas; curves, bands and points are drawn onto it here.
import { amount, el, short } from "./base.js";

// Colours --c0 to --c13 of the style sheet; runs beyond the last are grey: no colour is used twice.
const COLOURS = 14;
// Shapes of points.
const SHAPES = 7;
// Up to this many curves are named at their end; more are drawn thin, without bands.
export const NAMED = 6;
// Pixels right of the axes for names, where the chart is wide enough for them.
const NAME_ROOM = 170, NAME_LEAST = 640;
// Points of a run from which they are drawn small and pale.
const MANY_POINTS = 120;

// Least height of the axis in pass rate: the noise of a few equal scores must not fill it.
const LEAST_SPAN = 0.05;

// Labels of an axis; of neighbours that read alike only the first.
const distinct = (labels) => labels.map((text, i) => i && text === labels[i - 1] ? "" : text);

const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clear = (colour, share) => `color-mix(in srgb, ${colour} ${share}%, transparent)`;
const nameOf = (i) => i < COLOURS ? `--c${i}` : "--muted";
const colourOf = (i) => css(nameOf(i));

// Each run has a shape as well as a colour, so that colour-blind readers can tell them apart.
// An SVG path: the canvas takes it as well.
function mark(i, x, y, r) {
  const s = r * 0.9, t = r * 1.2;
  switch (i % SHAPES) {
    case 1: return `M${x - s} ${y - s}h${2 * s}v${2 * s}h${-2 * s}z`;
    case 2: return `M${x} ${y - t}l${t} ${t}l${-t} ${t}l${-t} ${-t}z`;
    case 3: return `M${x} ${y - t}l${t} ${2 * s}h${-2 * t}z`;
    case 4: return `M${x} ${y + t}l${t} ${-2 * s}h${-2 * t}z`;
    case 5: return `M${x - t} ${y}h${2 * t}M${x} ${y - t}v${2 * t}`;
    case 6: return `M${x - s} ${y - s}l${2 * s} ${2 * s}m0 ${-2 * s}l${-2 * s} ${2 * s}`;
    default: return `M${x - r} ${y}a${r} ${r} 0 1 0 ${2 * r} 0a${r} ${r} 0 1 0 ${-2 * r} 0z`;
  }
}

export function swatch(i) {
  const colour = `var(${nameOf(i)})`;
  return el("*svg", { width: 14, height: 12, "aria-hidden": "true" },
    el("*path", { d: `M0 6h14${mark(i, 7, 6, 3.6)}`, stroke: colour, fill: colour, "stroke-width": 1.6 }));
}

// Median and intervals of a curve at a compute, interpolated in log compute; null outside of it.
export function valueAt(c, x) {
  const n = c.x.length;
  if (!n || x < c.x[0] * 0.999 || x > c.x[n - 1] * 1.001) return null;
  let k = 1;
  while (k < n - 1 && c.x[k] < x) k++;
  // Near a knot its own numbers, which are those of the tables.
  const near = Math.abs(c.x[k] - x) < Math.abs(c.x[k - 1] - x) ? k : k - 1;
  const exact = Math.abs(c.x[near] / x - 1) < 1e-3;
  const t = Math.min(Math.max(Math.log(x / c.x[k - 1]) / Math.log(c.x[k] / c.x[k - 1]), 0), 1);
  const at = (a) => !a ? null : exact ? a[near] : a[k - 1] + t * (a[k] - a[k - 1]);
  return { median: at(c.median), low: at(c.low), high: at(c.high), seenLow: at(c.seenLow), seenHigh: at(c.seenHigh) };
}

export class Chart {
  // height    pixels, or a function of the width
  // moved     called as moved(handle, value, done) when a handle (lo, hi, budget) is dragged
  // label     what a screen reader says in place of the picture
  // names     name each curve at its end, where there is room
  constructor(box, { height = 420, moved = null, label = "", names = false } = {}) {
    Object.assign(this, { box, height, moved, label, names });
    this.log = true;
    this.runs = [];
    this.marks = {};
    this.layers = { bands: true, seen: false, law: false, power: false, held: true };
    this.focus = null; // of many runs the one that stands out
    this.reading = null; // called as reading(x, y) while a pointer is over the chart, and with null
    this.at = null; // compute at which a line is drawn with the values of some runs
    this.read = [];
    this.handles = {};
    this.holding = null;
    this.plot = null;
    box.classList.add("chartbox");
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
  named() { return this.names && this.runs.length <= NAMED && this.width() > NAME_LEAST; }
  redraw() { this.plot?.redraw(false); }

  // runs: [{ name, colour, curve, ceiling: [A, low, high], note, alarm }], where a curve is { x,
  //       median, low, high, end, breaks, used, held, unit } and in the report also seenLow, seenHigh, law,
  //       power, powerA; used and held are [compute, score]
  // marks: { lo, hi, budget, target, truth, points: [compute] }
  show(runs, marks = {}, log = this.log, layers = {}) {
    Object.assign(this, { runs, marks, log });
    Object.assign(this.layers, layers);
    const shape = [log, runs[0]?.curve.unit, this.named()].join();
    if (!this.plot || shape !== this.shape) { this.shape = shape; this.build(); return; }
    this.plot.setData(this.data());
  }

  // uPlot draws nothing of these: they only span the scales.
  data() { const r = this.range(); return [[r.first, r.last], [r.low, r.high]]; }

  range() {
    const { layers } = this;
    let first = Infinity, last = 0, low = 1, high = 0;
    const span = (y) => { if (y !== null && y !== undefined) { low = Math.min(low, y); high = Math.max(high, y); } };
    for (const { curve, ceiling } of this.runs) {
      for (const xs of [curve.x, curve.used[0], layers.held ? curve.held[0] : []]) {
        for (const x of xs) { if (x > 0) first = Math.min(first, x); last = Math.max(last, x); }
      }
      const lines = [curve.used[1], layers.held ? curve.held[1] : [], curve.median];
      if (layers.bands) lines.push(curve.low, curve.high);
      if (layers.seen) lines.push(curve.seenLow, curve.seenHigh);
      for (const ys of lines) ys.forEach(span);
      if (ceiling && this.runs.length === 1) { span(ceiling[1]); span(ceiling[2] ?? ceiling[0]); }
    }
    span(this.marks.target || null);
    span(this.marks.truth || null);
    if (this.marks.budget) last = Math.max(last, this.marks.budget * 1.04);
    if (!Number.isFinite(first)) first = 1;
    if (low > high) { low = 0; high = 1; }
    const short = LEAST_SPAN - (high - low);
    if (short > 0) { low -= short / 2; high += short / 2; }
    const pad = 0.05 * (high - low);
    first = this.log ? first / 1.06 : 0;
    return { first, last: Math.max(last, first * 1.5, 1e-9), low: Math.max(low - pad, -0.02), high: Math.min(high + pad, 1.02) };
  }

  build() {
    if (!this.runs.length && !this.plot) return;
    const focused = document.activeElement?.dataset?.handle;
    this.plot?.destroy();
    this.handles = {};
    const ink = css("--muted"), faint = css("--faint"), width = this.width();
    const font = "12px " + getComputedStyle(document.body).fontFamily;
    const axis = { stroke: ink, font, labelFont: font, grid: { stroke: faint, width: 1 }, ticks: { stroke: ink, width: 1, size: 5 } };
    const unit = this.runs[0]?.curve.unit ?? "";
    this.plot = new uPlot({
      width, height: typeof this.height === "function" ? this.height(width) : this.height,
      padding: [26, this.named() ? NAME_ROOM : 18, 0, 0],
      series: [{}, { paths: () => null, points: { show: false } }],
      legend: { show: false },
      cursor: { x: Boolean(this.moved), y: false, points: { show: false }, drag: { x: false, y: false } },
      scales: {
        x: { time: false, distr: this.log ? 3 : 1, range: () => { const r = this.range(); return [r.first, r.last]; } },
        y: { range: () => { const r = this.range(); return [r.low, r.high]; } },
      },
      axes: [
        { ...axis, grid: { show: false }, border: { show: true, stroke: ink, width: 1 }, size: 34, label: `${unit}${this.log ? ", log scale" : ""}`, labelSize: 22, values: (_, vs) => distinct(vs.map((v) => v === null ? null : amount(v))), ...(this.log ? { splits: (u, _, low, high) => ticks(low, high, (u.width - 60) / 60), filter: (_, vs) => vs } : {}) },
        { ...axis, ticks: { show: false }, size: 46, space: 50, values: (_, vs) => distinct(vs.map((v) => String(+v.toFixed(3)))) },
      ],
      hooks: { draw: [(u) => { this.paint(u); this.place(); }] },
    }, this.data(), this.box);
    const canvas = this.plot.root.querySelector("canvas");
    canvas.setAttribute("aria-label", this.label);
    canvas.setAttribute("role", "img");
    this.listen();
    if (this.moved) for (const name of ["lo", "hi", "budget"]) this.addHandle(name);
    if (focused) this.handles[focused]?.focus();
    // A chart that is rebuilt while a handle is dragged keeps the drag.
    if (this.holding) { try { this.handles[this.holding].setPointerCapture(this.pointer); } catch { this.holding = null; } }
  }

  listen() {
    const { over } = this.plot;
    let latest = null;
    over.addEventListener("pointermove", (event) => {
      // Many moves may come between two frames: only the last of them is worth drawing.
      if (latest === null) requestAnimationFrame(() => { const last = latest; latest = null; this.pointAt(last); });
      latest = event;
    });
    over.addEventListener("pointerleave", () => this.reading?.(null));
  }

  pointAt(event) {
    if (!this.plot || !this.reading) return;
    const box = this.plot.over.getBoundingClientRect();
    this.reading(this.plot.posToVal(event.clientX - box.left, "x"), this.plot.posToVal(event.clientY - box.top, "y"));
  }

  // ---- drawing, in pixels of the canvas
  paint(u) {
    const { ctx, bbox } = u, px = devicePixelRatio, total = this.runs.length;
    const pen = {
      ctx, px, left: bbox.left, right: bbox.left + bbox.width, top: bbox.top, bottom: bbox.top + bbox.height,
      X: (v) => u.valToPos(Math.max(v, u.scales.x.min), "x", true), Y: (v) => u.valToPos(v, "y", true),
      font: `${12 * px}px ${getComputedStyle(document.body).fontFamily}`,
    };
    ctx.save();
    ctx.lineJoin = "round";
    this.text(pen, "pass rate", 8 * px, pen.top - 14 * px);
    ctx.save();
    ctx.beginPath();
    // Points on an edge are drawn whole.
    ctx.rect(pen.left - 5 * px, pen.top - 5 * px, bbox.width + 10 * px, bbox.height + 5 * px);
    ctx.clip();
    for (const run of this.runs) if (run !== this.focus) this.drawRun(pen, run, total);
    if (this.runs.includes(this.focus)) this.drawRun(pen, this.focus, total);
    ctx.restore();
    if (total === 1) this.drawSingle(pen, this.runs[0]);
    const { target, truth } = this.marks;
    if (truth) this.across(pen, truth, css("--muted"), [9, 3, 2, 3], `ceiling by construction ${truth.toFixed(3)}`);
    if (target) this.across(pen, target, css("--c3"), [6, 3], `target ${target}`, 0.3);
    if (this.named()) this.drawNames(pen);
    this.drawReading(pen);
    ctx.restore();
  }

  text({ ctx, px, font }, words, x, y, { align = "left", colour = css("--muted"), halo = false } = {}) {
    ctx.font = font;
    ctx.textAlign = align;
    ctx.textBaseline = "alphabetic";
    if (halo) { ctx.lineWidth = 4 * px; ctx.strokeStyle = css("--paper"); ctx.strokeText(words, x, y); }
    ctx.fillStyle = colour;
    ctx.fillText(words, x, y);
  }

  stroke({ ctx, px }, colour, width, dash) {
    ctx.strokeStyle = colour;
    ctx.lineWidth = width * px;
    ctx.setLineDash(dash.map((d) => d * px));
    ctx.stroke();
    ctx.setLineDash([]);
  }

  // A curve; null ends a piece of it.
  line(pen, xs, ys, colour, width, dash = []) {
    const { ctx, X, Y } = pen;
    let gap = true;
    ctx.beginPath();
    for (let k = 0; k < xs.length; k++) {
      if (ys[k] !== null) ctx[gap ? "moveTo" : "lineTo"](X(xs[k]), Y(ys[k]));
      gap = ys[k] === null;
    }
    this.stroke(pen, colour, width, dash);
  }

  straight(pen, x0, y0, x1, y1, colour, width = 1, dash = []) {
    pen.ctx.beginPath();
    pen.ctx.moveTo(x0, y0);
    pen.ctx.lineTo(x1, y1);
    this.stroke(pen, colour, width, dash);
  }

  across(pen, y, colour, dash, words, share = 0.01) {
    const { px, left, right, top } = pen, at = pen.Y(y);
    this.straight(pen, left, at, right, at, colour, 1.2, dash);
    this.text(pen, words, left + share * (right - left), at - 5 * px < top + 9 * px ? at + 14 * px : at - 5 * px, { colour, halo: true });
  }

  band({ ctx, X, Y }, xs, low, high, fill) {
    ctx.beginPath();
    xs.forEach((x, k) => ctx[k ? "lineTo" : "moveTo"](X(x), Y(high[k])));
    for (let k = xs.length - 1; k >= 0; k--) ctx.lineTo(X(xs[k]), Y(low[k]));
    ctx.closePath();
    ctx.fillStyle = fill;
    ctx.fill();
  }

  drawRun(pen, run, total) {
    const { ctx, px, X, Y } = pen, { curve } = run, { layers } = this;
    const colour = colourOf(run.colour), crowd = total > NAMED, hot = run === this.focus, lone = total === 1;
    ctx.globalAlpha = this.focus && !hot && crowd ? 0.25 : 1;
    if (layers.seen && (!crowd || hot)) this.band(pen, curve.x, curve.seenLow, curve.seenHigh, clear(colour, 10));
    if (layers.bands && (!crowd || hot)) this.band(pen, curve.x, curve.low, curve.high, clear(colour, 20));
    const many = curve.used[0].length > MANY_POINTS, size = (crowd || many ? 1.6 : 3) * px;
    const pale = clear(colour, crowd ? 30 : many ? 40 : 80);
    for (const [[xs, ys], filled] of [[curve.used, true], [layers.held ? curve.held : [[], []], false]]) {
      const path = new Path2D(xs.map((x, k) => mark(run.colour, X(x), Y(ys[k]), size)).join(""));
      ctx.strokeStyle = ctx.fillStyle = pale;
      ctx.lineWidth = (filled ? 0.6 : 1.1) * px;
      if (filled) ctx.fill(path);
      ctx.stroke(path);
    }
    if (layers.power && curve.power && (!crowd || hot)) this.line(pen, curve.x, curve.power, lone ? css("--c1") : colour, 1.4, [5, 4]);
    if (layers.law && curve.law?.length && (!crowd || hot)) this.line(pen, curve.x.slice(0, curve.law.length), curve.law, lone ? css("--ink") : colour, 1.2, [1.5, 2.5]);
    const split = curve.x.filter((x) => x <= curve.end * 1.00001).length;
    if (!split) { ctx.globalAlpha = 1; return; }
    const width = hot ? 3 : crowd ? 1.4 : 2.4;
    this.line(pen, curve.x.slice(0, split), curve.median.slice(0, split), colour, width);
    this.line(pen, curve.x.slice(split - 1), curve.median.slice(split - 1), colour, 0.8 * width, [7, 4]);
    const end = new Path2D(mark(run.colour, X(curve.end), Y(curve.median[split - 1]), (crowd ? 3 : 4.5) * px));
    ctx.strokeStyle = ctx.fillStyle = colour;
    ctx.lineWidth = px;
    ctx.fill(end);
    ctx.stroke(end);
    ctx.globalAlpha = 1;
  }

  // What one run alone has room for: the end of its window, its ceiling, the power law's answer.
  drawSingle(pen, run) {
    const { ctx, px, X, Y, left, right, top, bottom } = pen, { curve, ceiling } = run, muted = css("--muted");
    if (!this.moved && curve.x.length) {
      this.straight(pen, X(curve.end), top, X(curve.end), bottom, muted, 1, [1, 3]);
      this.text(pen, "fitted | forecast", X(curve.end), top - 8 * px, { align: "center" });
    }
    for (const at of curve.breaks ?? []) {
      this.straight(pen, X(at), top, X(at), bottom, muted, 1.2, [4, 2]);
      this.text(pen, "changed", X(at) - 4 * px, bottom - 8 * px, { align: "right", halo: true });
    }
    if (this.layers.power && curve.power) {
      const n = curve.x.length - 1, side = curve.power[n] < curve.median[n] ? 16 : -7;
      const y = Math.min(Math.max(Y(curve.power[n]) + side * px, top + 8 * px), bottom - 8 * px);
      this.text(pen, `power law, A = ${curve.powerA.toFixed(3)}`, right - 4 * px, y, { align: "right", halo: true });
    }
    if (!ceiling) return;
    const [a, low, high] = ceiling, colour = colourOf(run.colour);
    const bar = Y(high ?? 1);
    ctx.fillStyle = colour;
    ctx.fillRect(right + 3 * px, bar, 4 * px, Math.max(Y(low) - bar, 2 * px));
    if (this.named()) this.straight(pen, left, Y(a), right, Y(a), colour, 1, [2, 3]);
    else this.across(pen, a, colour, [2, 3], `ceiling ${a.toFixed(3)}`, 0.3);
  }

  // Names right of the axes, joined to the ends of their curves and kept apart.
  drawNames(pen) {
    const { px, X, Y, right, top, bottom } = pen, gap = 34 * px;
    const labels = this.runs.filter((r) => r.curve.x.length).map((r) => ({ r, y: Y(r.curve.median.at(-1)) })).sort((a, b) => a.y - b.y);
    labels.forEach((l, k) => { l.at = Math.max(l.y, k ? labels[k - 1].at + gap : top + 8 * px); });
    for (let k = labels.length - 1; k >= 0; k--) {
      labels[k].at = Math.min(labels[k].at, k === labels.length - 1 ? bottom - 8 * px : labels[k + 1].at - gap);
    }
    for (const { r, y, at } of labels) {
      this.straight(pen, X(r.curve.x.at(-1)), y, right + 12 * px, at, clear(colourOf(r.colour), 70));
      this.text(pen, short(r.name, 22), right + 16 * px, at - 2 * px, { colour: css("--ink") });
      if (r.note) this.text(pen, r.note, right + 16 * px, at + 13 * px);
    }
  }

  drawReading(pen) {
    if (this.at === null || !this.runs.length) return;
    const { ctx, px, X, Y, top, bottom } = pen, x = X(this.at);
    this.straight(pen, x, top, x, bottom, clear(css("--muted"), 50));
    for (const { run, value } of this.read) {
      ctx.beginPath();
      ctx.arc(x, Y(value.median), 4.5 * px, 0, 2 * Math.PI);
      ctx.fillStyle = css("--paper");
      ctx.strokeStyle = colourOf(run.colour);
      ctx.lineWidth = 2 * px;
      ctx.fill();
      ctx.stroke();
    }
  }

  // ---- handles: sliders on the chart, by pointer and by key
  addHandle(name) {
    const labels = { lo: "Start of the fitted window", hi: "End of the fitted window", budget: "Budget" };
    const handle = el("div", { class: `handle ${name}`, role: "slider", tabindex: "0", "aria-label": labels[name], "aria-orientation": "horizontal", "data-handle": name }, el("span"));
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

// Ticks of a log axis: powers of ten, and parts of them where there is room.
export function ticks(low, high, room) {
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
