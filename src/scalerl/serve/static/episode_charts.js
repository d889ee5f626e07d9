// Histograms whose bars filter, and counts by kind that filter: what stands out, before reading.
import { amount, el } from "./base.js";
import { setText } from "./dom.js";
import { plain } from "./episode_text.js";

const KINDS = { correct: "result", finish: "finish", task: "task", source: "from" };
const RESULTS = { true: "✓ right", false: "✗ wrong", none: "◦ unscored" };
// Values of a kind that are listed: the commonest.
const MOST_VALUES = 24;
// Bins of a histogram up to which each may stand for one value: the API's own bound.
const MOST_SINGLE = 8;

const number = (v) => Math.abs(v) >= 1000 ? amount(v) : String(+v.toPrecision(3));

// The values that bins stand for, where each bin is of one value: the API puts their edges halfway
// between them. Null for bins of ranges.
function valuesOf(edges) {
  const n = edges.length - 1;
  if (n < 1 || n > MOST_SINGLE) return null;
  const values = [(edges[0] + edges[1]) / 2];
  for (let i = 1; i < n; i++) values.push(2 * edges[i] - values[i - 1]);
  return values.map((v) => +v.toPrecision(6));
}

// A histogram with keys [least, most] of the state; with whole, of whole numbers.
export function histogram(label, keys, whole, state, changed) {
  const [least, most] = keys;
  const bars = el("div", { class: "bars", role: "group", "aria-label": `${label}: choose a range` });
  const axis = el("p", { class: "ends small", "aria-hidden": "true" });
  const chosen = el("button", { type: "button", class: "chosen-range", hidden: true, onclick: () => set("", "") });
  const node = el("figure", { class: "histogram" }, el("figcaption", {}, el("b", {}, label), chosen), bars, axis);
  let edges = [], first = null;

  function set(low, high) {
    state[least] = String(low);
    state[most] = String(high);
    changed(least);
  }
  // Filters include both ends, and bins only their lower one. A value at an edge is often there for a
  // reason (a reward of 0.5), so both ends are a little lower than the edges.
  const below = (i, parts) => +(edges[i] - parts * (edges[1] - edges[0]) / 1000).toPrecision(9);
  const low = (i) => whole ? Math.ceil(edges[i]) : below(i, 1);
  const high = (i) => whole ? Math.ceil(edges[i + 1]) - 1 : below(i + 1, i === edges.length - 2 ? -1 : 2);
  const inside = (i) => (state[least] !== "" || state[most] !== "") && (state[least] === "" || low(i) >= Number(state[least])) && (state[most] === "" || high(i) <= Number(state[most]));

  function press(i, extend) {
    if (extend && first !== null) { set(low(Math.min(first, i)), high(Math.max(first, i))); return; }
    const alone = inside(i) && !(i && inside(i - 1)) && !(i < edges.length - 2 && inside(i + 1));
    first = i;
    if (alone) set("", ""); else set(low(i), high(i));
  }

  function key(event) {
    const all = [...bars.children], at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    for (const bar of all) bar.tabIndex = bar === all[to] ? 0 : -1;
    all[to].focus();
    if (event.shiftKey) press(to, true);
  }
  bars.addEventListener("keydown", key);

  function show(found) {
    const { all = [], matched = [] } = found || {};
    edges = found?.edges || [];
    node.hidden = !found;
    if (bars.children.length !== all.length) bars.replaceChildren(...all.map((_, i) => el("button", { type: "button", tabindex: i ? -1 : 0, onclick: (event) => press(i, event.shiftKey) }, el("span", { class: "all" }), el("span", { class: "matched" }))));
    const values = valuesOf(edges), top = Math.max(1, ...all);
    const name = (i) => values ? number(values[i]) : whole ? `${number(low(i))} to ${number(high(i))}` : `${number(edges[i])} to ${number(edges[i + 1])}`;
    all.forEach((n, i) => {
      const bar = bars.children[i], text = `${label} ${name(i)}: ${matched[i].toLocaleString("en")} of ${n.toLocaleString("en")} episodes`;
      bar.setAttribute("aria-label", text);
      bar.title = text;
      bar.setAttribute("aria-pressed", String(inside(i)));
      [n, matched[i]].forEach((count, j) => {
        bar.children[j].hidden = !count;
        bar.children[j].style.height = `${Math.max(2, 100 * count / top)}%`;
      });
    });
    axis.classList.toggle("single", Boolean(values));
    axis.replaceChildren(...(values || (edges.length ? (whole ? [low(0), high(edges.length - 2)] : [edges[0], edges.at(-1)]) : [])).map((v) => el("span", {}, number(v))));
    chosen.hidden = !state[least] && !state[most];
    const bins = all.flatMap((_, i) => inside(i) ? [i] : []), [one] = bins;
    const ends = !bins.length ? [state[least], state[most]].map((v) => v === "" ? "" : number(Number(v)))
      : values ? [number(values[one]), number(values[bins.at(-1)])] : whole ? [low(one), high(bins.at(-1))].map(number) : [edges[one], edges[bins.at(-1) + 1]].map(number);
    setText(chosen, `${values && bins.length === 1 ? ends[0] : `${ends[0]} to ${ends[1]}`} ✕`);
    chosen.setAttribute("aria-label", `${label} ${chosen.textContent}: show all again`);
  }
  return { node, show };
}

// What all names begin with, up to a separator: `environment:tasks:` of `environment:tasks:Stock` and
// `environment:tasks:Weather`. A narrow button shows what differs.
export function sharedStart(names) {
  if (names.length < 2) return "";
  let n = 0;
  while (n < names[0].length && names.every((name) => name[n] === names[0][n])) n++;
  return names[0].slice(0, n).replace(/[^:/.]*$/, "");
}

// Counts by kind; each value is a button that filters by it.
export function counts(state, changed) {
  const node = el("div", { class: "counts" });
  const boxes = Object.fromEntries(Object.entries(KINDS).map(([key, label]) => {
    const list = el("div", { class: "values" });
    node.append(el("div", { role: "group", "aria-label": `Filter by ${label}`, hidden: key === "source" || key === "task" }, el("p", { class: "kind" }, label), list));
    return [key, list];
  }));

  // by: counts of the episodes that are found; whole: of all.
  function show(by, whole) {
    for (const [key, list] of Object.entries(boxes)) {
      const found = Object.entries(whole?.[key] || {}).sort((a, b) => b[1] - a[1]);
      const chosen = state[key];
      if (chosen && !found.some(([value]) => value === chosen)) found.unshift([chosen, 0]);
      const most = Math.max(1, ...found.map(([, n]) => n));
      // A kind with a single value says nothing, unless it is what was filtered by.
      list.parentNode.hidden = found.length < 2 && !chosen && (key === "source" || key === "task");
      const start = key === "task" ? sharedStart(found.map(([value]) => value)) : "";
      const had = list.contains(document.activeElement) ? document.activeElement.dataset.value : null;
      list.replaceChildren(...found.slice(0, MOST_VALUES).map(([value, all]) => one(key, value, start, by?.[key]?.[value] || 0, all, most)));
      if (had !== null) [...list.children].find((each) => each.dataset.value === had)?.focus();
    }
  }

  function one(key, value, start, n, all, most) {
    const name = key === "correct" ? RESULTS[value] ?? value : plain(value) || "none";
    const outer = el("span", { class: "share of-all" }), inner = el("span", { class: "share" });
    outer.style.width = `${100 * all / most}%`;
    inner.style.width = `${100 * n / most}%`;
    const count = n === all ? all.toLocaleString("en") : `${n.toLocaleString("en")}/${all.toLocaleString("en")}`;
    return el("button", { type: "button", "data-value": value, disabled: value === "", "aria-pressed": String(state[key] === value), title: `${name}: ${count}`, onclick: () => { state[key] = state[key] === value ? "" : value; changed(key); } }, outer, inner, el("bdi", {}, name.slice(plain(start).length)), el("span", { class: "n" }, count));
  }
  return { node, show };
}
