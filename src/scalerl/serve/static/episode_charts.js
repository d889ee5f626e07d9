// Histograms whose bars filter, and counts by kind that filter: what stands out, before reading.
import { amount, el } from "./base.js";
import { setText } from "./dom.js";
import { plain } from "./episode_text.js";

const KINDS = { correct: "result", finish: "finish", task: "task", source: "from" };
const RESULTS = { true: "✓ right", false: "✗ wrong", none: "◦ unscored" };
// Values of a kind that are listed: the commonest.
const MOST_VALUES = 24;
const HEIGHT = 84;

const number = (v) => Math.abs(v) >= 1000 ? amount(v) : String(+v.toPrecision(3));

// A histogram of what = "reward" or "length"; sets what_min and what_max in the state.
export function histogram(what, label, state, changed) {
  const bars = el("div", { class: "bars", role: "group", "aria-label": `${label}: choose a range` });
  const axis = el("p", { class: "ends small" }, el("span"), el("span"));
  const chosen = el("button", { type: "button", class: "chosen-range", hidden: true, onclick: () => set(null, null) });
  const node = el("figure", { class: "histogram" }, el("figcaption", {}, el("b", {}, label), chosen), bars, axis);
  let edges = [], first = null;

  function set(low, high) {
    state[`${what}_min`] = low === null ? "" : String(low);
    state[`${what}_max`] = high === null ? "" : String(high);
    changed(what);
  }
  const inside = (i) => state[`${what}_min`] !== "" && state[`${what}_max`] !== "" && edges[i] >= Number(state[`${what}_min`]) && edges[i + 1] <= Number(state[`${what}_max`]);

  function press(i, extend) {
    if (extend && first !== null) { set(edges[Math.min(first, i)], edges[Math.max(first, i) + 1]); return; }
    const alone = inside(i) && !inside(i - 1) && !inside(i + 1);
    first = i;
    if (alone) set(null, null); else set(edges[i], edges[i + 1]);
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
    edges = found?.edges || [];
    const top = Math.max(1, ...(found?.all || []));
    const heights = (n) => n ? Math.max(2, HEIGHT * n / top) : 0;
    if (bars.children.length !== (found?.all.length || 0)) bars.replaceChildren(...(found?.all || []).map((_, i) => el("button", { type: "button", tabindex: i ? -1 : 0, onclick: (event) => press(i, event.shiftKey) }, el("span", { class: "all" }), el("span", { class: "matched" }))));
    (found?.all || []).forEach((n, i) => {
      const bar = bars.children[i], text = `${label} ${number(edges[i])} to ${number(edges[i + 1])}: ${found.matched[i].toLocaleString("en")} of ${n.toLocaleString("en")} episodes`;
      bar.setAttribute("aria-label", text);
      bar.title = text;
      bar.setAttribute("aria-pressed", String(inside(i)));
      bar.children[0].hidden = !n;
      bar.children[0].style.height = `${heights(n)}px`;
      bar.children[1].style.height = `${heights(found.matched[i])}px`;
    });
    setText(axis.children[0], edges.length ? number(edges[0]) : "");
    setText(axis.children[1], edges.length ? number(edges.at(-1)) : "");
    const low = state[`${what}_min`], high = state[`${what}_max`];
    chosen.hidden = !low && !high;
    setText(chosen, `${low ? number(Number(low)) : ""} to ${high ? number(Number(high)) : ""} ✕`);
    chosen.setAttribute("aria-label", `Show every ${label} again`);
  }
  return { node, show };
}

// Counts by kind; each value is a button that filters by it.
export function counts(state, changed) {
  const node = el("div", { class: "counts" });
  const boxes = Object.fromEntries(Object.entries(KINDS).map(([key, label]) => {
    const list = el("div", { class: "values" });
    node.append(el("div", { role: "group", "aria-label": `Filter by ${label}`, hidden: key === "source" || key === "task" }, el("h3", {}, label), list));
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
      const had = list.contains(document.activeElement) ? document.activeElement.dataset.value : null;
      list.replaceChildren(...found.slice(0, MOST_VALUES).map(([value, all]) => one(key, value, by?.[key]?.[value] || 0, all, most)));
      if (had !== null) [...list.children].find((each) => each.dataset.value === had)?.focus();
    }
  }

  function one(key, value, n, all, most) {
    const name = key === "correct" ? RESULTS[value] ?? value : plain(value) || "none";
    const outer = el("span", { class: "share of-all" }), inner = el("span", { class: "share" });
    outer.style.width = `${100 * all / most}%`;
    inner.style.width = `${100 * n / most}%`;
    const count = n === all ? all.toLocaleString("en") : `${n.toLocaleString("en")} of ${all.toLocaleString("en")}`;
    return el("button", { type: "button", "data-value": value, "aria-pressed": String(state[key] === value), title: `${name}: ${count}`, onclick: () => { state[key] = state[key] === value ? "" : value; changed(key); } }, outer, inner, el("bdi", {}, name), el("span", { class: "n" }, count));
  }
  return { node, show };
}
