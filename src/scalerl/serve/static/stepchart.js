// A chart of one step metric of several runs: mean lines with the range of each stretch, smoothed or
// not, on log axes or not. Drawn like chart.js: uPlot gives scales and axes.
import { amount, el } from "./base.js";
import { ticks } from "./chart.js";

const COLOURS = 7, HEIGHT = 230;
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const clear = (colour, share) => `color-mix(in srgb, ${colour} ${share}%, transparent)`;
export const colourOf = (i) => `--c${i % COLOURS}`;
// Beyond the seventh line colours come again, with dashes.
export const dashOf = (i) => DASHES[Math.floor(i / COLOURS) % DASHES.length];

export class StepChart {
  // zoomed(from, to) is called when a stretch of x was drawn over, with null for the whole;
  // pointed(x) while a pointer is over it.
  constructor(box, { label, zoomed, pointed }) {
    Object.assign(this, { box, label, zoomed, pointed });
    this.lines = [];
    this.at = null;
    this.view = { logX: false, logY: false, unit: "step", from: null, to: null };
    this.plot = null;
    box.classList.add("chartbox");
    this.watch = new ResizeObserver(() => { if (this.plot && Math.abs(this.plot.width - this.width()) > 1) this.build(); });
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

  width() { return Math.max(this.box.clientWidth, 240); }

  // lines: [{ name, colour, x, y, raw, low, high }]; low and high are a band, raw the line before it
  // was smoothed.
  show(lines, view) {
    const before = JSON.stringify([this.view.logX, this.view.logY, this.view.unit]);
    this.lines = lines;
    this.view = view;
    if (!this.plot || before !== JSON.stringify([view.logX, view.logY, view.unit])) { this.build(); return; }
    this.plot.setData(this.data());
  }

  pointAt(x) { this.at = x; this.plot?.redraw(false); }

  range() {
    const { logX, logY, from, to } = this.view;
    let first = Infinity, last = -Infinity, low = Infinity, high = -Infinity;
    for (const line of this.lines) {
      line.x.forEach((x, i) => {
        if (logX && !(x > 0)) return;
        if ((from !== null && x < from) || (to !== null && x > to)) return;
        first = Math.min(first, x);
        last = Math.max(last, x);
        for (const y of [line.y[i], line.low?.[i], line.high?.[i]]) {
          if (y === null || y === undefined || (logY && !(y > 0))) continue;
          low = Math.min(low, y);
          high = Math.max(high, y);
        }
      });
    }
    if (!Number.isFinite(first)) { first = 1; last = 2; }
    if (!Number.isFinite(low)) { low = logY ? 0.1 : 0; high = 1; }
    if (from !== null) first = logX ? Math.max(from, first) : from;
    if (to !== null) last = to;
    if (last <= first) last = first + 1;
    if (logY) return { first, last, low: low / 1.1, high: high * 1.1 };
    // A constant gets an axis around it, whose ticks differ in the digits that are shown.
    const pad = high - low > 1e-6 * Math.abs(high) ? 0.06 * (high - low) : 0.1 * Math.abs(high) || 1;
    return { first, last, low: low - pad, high: high + pad };
  }

  data() { const r = this.range(); return [[r.first, r.last], [r.low, r.high]]; }

  build() {
    if (!this.lines.length && !this.plot) return;
    this.plot?.destroy();
    const ink = css("--muted"), faint = css("--faint");
    const font = "12px " + getComputedStyle(document.body).fontFamily;
    const axis = { stroke: ink, font, labelFont: font, ticks: { stroke: ink, width: 1, size: 4 } };
    const { logX, logY } = this.view;
    // uPlot would label every multiple of a power of ten.
    const log = (room) => ({ splits: (_u, _i, low, high) => ticks(low, high, room), filter: (_, vs) => vs });
    this.plot = new uPlot({
      width: this.width(), height: HEIGHT, padding: [10, 12, 0, 0],
      series: [{}, { paths: () => null, points: { show: false } }],
      legend: { show: false },
      cursor: { x: false, y: false, points: { show: false }, drag: { x: true, y: false, setScale: false } },
      select: { show: true },
      scales: {
        x: { time: false, distr: logX ? 3 : 1, range: () => { const r = this.range(); return [r.first, r.last]; } },
        y: { distr: logY ? 3 : 1, range: () => { const r = this.range(); return [r.low, r.high]; } },
      },
      axes: [
        { ...axis, grid: { show: false }, border: { show: true, stroke: ink, width: 1 }, size: 30, space: 60, values: (_, vs) => vs.map((v) => v === null ? null : amount(v)), ...(logX ? log(this.width() / 70) : {}) },
        { ...axis, grid: { stroke: faint, width: 1 }, ticks: { show: false }, size: 54, space: 36, values: (_, vs) => vs.map((v) => v === null ? null : tick(v)), ...(logY ? log(5) : {}) },
      ],
      hooks: { draw: [(u) => this.paint(u)], setSelect: [(u) => this.selected(u)] },
    }, this.data(), this.box);
    const canvas = this.plot.root.querySelector("canvas");
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", this.label);
    const { over } = this.plot;
    over.addEventListener("pointermove", (event) => {
      const box = over.getBoundingClientRect();
      this.pointed(this.plot.posToVal(event.clientX - box.left, "x"), this, event);
    });
    over.addEventListener("pointerleave", () => this.pointed(null, this));
    over.addEventListener("dblclick", () => this.zoomed(null, null));
  }

  selected(u) {
    const { left, width } = u.select;
    if (width < 6) return;
    const [from, to] = [u.posToVal(left, "x"), u.posToVal(left + width, "x")];
    u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.zoomed(from, to);
  }

  // The value of a line at the stretch nearest to x.
  valueAt(line, x) {
    let best = -1;
    for (let i = 0; i < line.x.length; i++) if (line.y[i] !== null && (best < 0 || Math.abs(line.x[i] - x) < Math.abs(line.x[best] - x))) best = i;
    return best < 0 ? null : { x: line.x[best], y: line.y[best], low: line.low?.[best] ?? null, high: line.high?.[best] ?? null, raw: line.raw?.[best] ?? null };
  }

  paint(u) {
    const { ctx, bbox } = u, px = devicePixelRatio;
    const X = (v) => u.valToPos(v, "x", true), Y = (v) => u.valToPos(v, "y", true);
    const fits = (line, ys, i) => ys[i] !== null && ys[i] !== undefined && !(this.view.logX && line.x[i] <= 0) && !(this.view.logY && ys[i] <= 0);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineJoin = "round";
    for (const line of this.lines) if (line.low) this.band(ctx, line, X, Y, fits);
    for (const line of this.lines) {
      const colour = css(colourOf(line.colour));
      if (line.raw) this.path(ctx, line, line.raw, X, Y, fits, clear(colour, 30), px, []);
      this.path(ctx, line, line.y, X, Y, fits, colour, 1.8 * px, dashOf(line.colour).map((d) => d * px));
    }
    if (this.at !== null) this.crosshair(ctx, bbox, X, Y, px);
    ctx.restore();
  }

  path(ctx, line, ys, X, Y, fits, colour, width, dash) {
    let gap = true;
    ctx.beginPath();
    for (let i = 0; i < ys.length; i++) {
      const here = fits(line, ys, i);
      if (here) ctx[gap ? "moveTo" : "lineTo"](X(line.x[i]), Y(ys[i]));
      gap = !here;
    }
    ctx.strokeStyle = colour;
    ctx.lineWidth = width;
    ctx.setLineDash(dash);
    ctx.stroke();
    ctx.setLineDash([]);
  }

  band(ctx, line, X, Y, fits) {
    const at = line.x.map((_, i) => i).filter((i) => fits(line, line.high, i) && fits(line, line.low, i));
    if (at.length < 2) return;
    ctx.beginPath();
    at.forEach((i, k) => ctx[k ? "lineTo" : "moveTo"](X(line.x[i]), Y(line.high[i])));
    for (const i of at.reverse()) ctx.lineTo(X(line.x[i]), Y(line.low[i]));
    ctx.closePath();
    ctx.fillStyle = clear(css(colourOf(line.colour)), 16);
    ctx.fill();
  }

  crosshair(ctx, bbox, X, Y, px) {
    ctx.strokeStyle = clear(css("--muted"), 60);
    ctx.lineWidth = px;
    ctx.beginPath();
    ctx.moveTo(X(this.at), bbox.top);
    ctx.lineTo(X(this.at), bbox.top + bbox.height);
    ctx.stroke();
    for (const line of this.lines) {
      const found = this.valueAt(line, this.at);
      if (!found) continue;
      ctx.beginPath();
      ctx.arc(X(found.x), Y(found.y), 3.5 * px, 0, 2 * Math.PI);
      ctx.fillStyle = css("--paper");
      ctx.strokeStyle = css(colourOf(line.colour));
      ctx.lineWidth = 2 * px;
      ctx.fill();
      ctx.stroke();
    }
  }
}

export const tick = (v) => Math.abs(v) >= 1000 ? amount(v) : String(+v.toPrecision(3));

export function key(i) {
  const dash = dashOf(i).join(" ");
  return el("*svg", { width: 22, height: 8, "aria-hidden": "true" }, el("*path", { d: "M0 4h22", stroke: `var(${colourOf(i)})`, "stroke-width": 2.5, "stroke-dasharray": dash || null }));
}
