// Values under the pointer: of a single point of a curve, with its interval and step, and of the
// small charts that the server draws.
import { swatch } from "./chart.js";
import { amount, el, short } from "./base.js";

// Pixels within which a point, or an event, counts as meant.
const NEAR = 26;

function tip(box) {
  const node = el("div", { class: "tip", role: "presentation", hidden: true });
  box.append(node);
  return {
    node,
    // Beside the pointer, inside of the box.
    at(x, y, ...content) {
      node.replaceChildren(...content);
      node.hidden = false;
      const width = node.offsetWidth, height = node.offsetHeight, room = box.clientWidth;
      node.style.left = `${x + 14 + width > room ? Math.max(x - 14 - width, 0) : x + 14}px`;
      node.style.top = `${Math.max(y - height - 10, 0)}px`;
    },
    hide() { node.hidden = true; },
  };
}

const digits = (v) => v.toFixed(3);

// On a Chart: show(curves) with { name, colour, compute, score, step, low, high, unit, events }.
export function pointTips(chart) {
  const { box } = chart, label = tip(box), ring = el("div", { class: "ring", hidden: true, "aria-hidden": "true" });
  const strip = el("div", { class: "marks", "aria-hidden": "true" });
  box.append(ring, strip);
  let curves = [], size = "";

  function place(x, y) {
    const over = chart.plot.over.getBoundingClientRect(), mine = box.getBoundingClientRect();
    return [chart.plot.valToPos(x, "x") + over.left - mine.left, chart.plot.valToPos(y, "y") + over.top - mine.top];
  }

  function nearest(px, py) {
    let best = null, least = NEAR ** 2;
    for (const curve of curves) {
      for (let i = 0; i < curve.compute.length; i++) {
        if (curve.compute[i] <= 0 && chart.log) continue;
        const [x, y] = place(curve.compute[i], curve.score[i]);
        const d = (x - px) ** 2 + (y - py) ** 2;
        if (d < least) { least = d; best = { curve, i, x, y }; }
      }
    }
    return best;
  }

  function moved(event) {
    if (!chart.plot || chart.holding) { leave(); return; }
    const mine = box.getBoundingClientRect(), found = nearest(event.clientX - mine.left, event.clientY - mine.top);
    if (!found) { leave(); return; }
    const { curve, i, x, y } = found, low = curve.low?.[i], high = curve.high?.[i];
    ring.hidden = false;
    ring.style.left = `${x}px`;
    ring.style.top = `${y}px`;
    label.at(x, y, el("b", {}, swatch(curve.colour), ` ${short(curve.name, 40)}`),
      el("span", {}, digits(curve.score[i]), low === undefined || low === null ? "" : ` (90 % of one evaluation: ${digits(low)} to ${digits(high)})`),
      el("span", {}, curve.step ? `step ${curve.step[i].toLocaleString("en")}, ` : "", `${amount(curve.compute[i])} ${curve.unit}`));
  }

  function leave() { label.hide(); ring.hidden = true; }

  // Events as marks at the foot of the chart, each of which says what happened.
  function marks() {
    if (!chart.plot) return;
    const { first, last, low } = chart.range();
    strip.replaceChildren(...curves.flatMap((curve) => (curve.events || []).filter((e) => e.x >= first && e.x <= last).map((e) => {
      const [x, y] = place(e.x, low);
      const node = el("span", { class: `event ${e.event}`, onpointerenter: () => label.at(x, y - 12, el("b", {}, `${e.event} at step ${e.step.toLocaleString("en")}`), el("span", {}, e.why || short(curve.name, 40))), onpointerleave: () => label.hide() });
      node.style.left = `${x}px`;
      node.style.top = `${y}px`;
      return node;
    })));
  }

  let next = null;
  const move = (event) => {
    if (event.target.classList?.contains("event")) return;
    if (next === null) requestAnimationFrame(() => { const last = next; next = null; if (last) moved(last); });
    next = event;
  };
  const redraw = new ResizeObserver(() => { const now = `${box.clientWidth}`; if (now !== size) { size = now; requestAnimationFrame(marks); } });
  box.addEventListener("pointermove", move);
  box.addEventListener("pointerleave", leave);
  redraw.observe(box);
  return {
    show(list) { curves = list; marks(); },
    close() { redraw.disconnect(); box.removeEventListener("pointermove", move); box.removeEventListener("pointerleave", leave); },
  };
}

// On the small charts inside a node, drawn by the server: the values of all lines at the nearest
// step, read off the drawing with the scales that it names.
export function smallTips(root) {
  let label = null, on = null;
  root.addEventListener("pointermove", (event) => {
    const svg = event.target.closest?.("svg[data-x]");
    if (!svg) { label?.hide(); return; }
    const figure = svg.closest("figure");
    if (figure !== on) { label?.node.remove(); figure.classList.add("tipped"); label = tip(figure); on = figure; }
    const box = svg.getBoundingClientRect(), mine = figure.getBoundingClientRect(), view = svg.viewBox.baseVal;
    const x = (event.clientX - box.left) * view.width / box.width;
    const scale = { x: scaleOf(svg.dataset.x), y: scaleOf(svg.dataset.y) };
    const found = lines(svg).map((line) => ({ ...line, at: near(line.points, x) })).filter((line) => line.at);
    if (!found.length) { label.hide(); return; }
    const at = found.reduce((a, b) => Math.abs(a.at[0] - x) < Math.abs(b.at[0] - x) ? a : b).at[0];
    const names = [...figure.querySelectorAll(".key")].map((key) => key.textContent);
    const values = found.filter((line) => Math.abs(line.at[0] - at) < 6).map((line, i) => {
      const ends = line.edges?.map((edge) => three(scale.y(near(edge, at)[1]))) ?? [];
      return el("span", {}, `${line.name || names[i] || ""} ${three(scale.y(line.at[1]))}${ends.length ? ` (${ends[1]} to ${ends[0]})` : ""}`);
    });
    label.at((at * box.width / view.width) + box.left - mine.left, event.clientY - mine.top, el("b", {}, svg.dataset.of === "step" ? `step ${Math.round(scale.x(at)).toLocaleString("en")}` : `${amount(scale.x(at))} ${svg.dataset.of}`), ...values);
  });
  root.addEventListener("pointerleave", () => label?.hide());
}

const three = (v) => Math.abs(v) >= 1000 ? amount(v) : String(+v.toPrecision(3));
const numbers = (d) => [...d.matchAll(/[ML](-?[\d.]+) (-?[\d.]+)/g)].map((m) => [Number(m[1]), Number(m[2])]);

// The lines and the points of a drawing; the first line has the two edges of a band, if there is one.
function lines(svg) {
  const found = [...svg.querySelectorAll(".dot, .cross")].map((path) => ({ name: path.classList.contains("cross") ? "unstable" : "validation", points: numbers(path.getAttribute("d")) }));
  const drawn = [...svg.querySelectorAll(".line")].map((path) => ({ name: path.classList.contains("beside") ? "reference" : "", points: numbers(path.getAttribute("d")) }));
  const band = svg.querySelector(".band");
  if (band && drawn.length) {
    const edge = numbers(band.getAttribute("d")), half = edge.length / 2;
    (drawn.find((line) => !line.name) ?? drawn[0]).edges = [edge.slice(0, half), edge.slice(half)];
  }
  return [...found, ...drawn];
}

function near(points, x) {
  let best = null;
  for (const p of points) if (!best || Math.abs(p[0] - x) < Math.abs(best[0] - x)) best = p;
  return best;
}

// "low high log first last": a value on the axis, from its place in the drawing.
function scaleOf(text) {
  const [low, high, log, first, last] = text.split(" ").map(Number);
  return (at) => {
    const share = (at - first) / (last - first);
    return log ? low * (high / low) ** share : low + share * (high - low);
  };
}
