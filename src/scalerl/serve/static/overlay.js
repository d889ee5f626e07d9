// Chosen runs over each other: window and budget of all of them, and the verdict.
import { Chart, swatch } from "./chart.js";
import { amount, el, short } from "./base.js";
import { ask, downloads, setText } from "./dom.js";
import { following, measured } from "./follow.js";
import { groupOf } from "./groups.js";
import { pointTips } from "./hover.js";
import { received, runs } from "./live.js";
import { link } from "./place.js";
import { parse } from "./words.js";

const NUMBERS = ["from", "to", "budget"];

// state: { with, axis, linear, seeds, from, to, budget }; keep() notes it in the address. `most` runs
// are drawn by themselves, `mostPooled` as seeds of recipes.
export function overlay(section, state, keep, { most, mostPooled }) {
  let chart = null, latest = null, axes = "", hover = null;
  const points = new Map();
  const lead = el("p", { class: "lead", role: "status" }), said = el("p", { class: "said", role: "status" });
  const box = el("div", { id: "overlay" }), rows = el("tbody"), exports = el("span", { class: "exports" });
  const head = el("tr");
  const logs = el("button", { type: "button", onclick: () => { state.linear = !state.linear; keep(); draw(); } }, "log axis");
  const seeds = el("button", { type: "button", title: "Seeds of a recipe as one curve through all their points, with its band", onclick: () => { state.seeds = !state.seeds; if (!state.seeds) state.with = new Set([...state.with].slice(0, most)); keep(); show(); } }, "mean of seeds");
  const axis = el("select", { class: "axis", "aria-label": "Kind of compute", onchange: () => { state.axis = axis.value; for (const k of NUMBERS) state[k] = null; keep(); show(); } });
  const budget = el("input", { type: "text", inputmode: "decimal", placeholder: "2 × now", onchange: () => {
    const v = parse(budget.value);
    budget.setAttribute("aria-invalid", String(Number.isNaN(v)));
    if (Number.isNaN(v)) return;
    state.budget = v;
    keep();
    show();
  } });
  const whole = el("button", { type: "button", onclick: () => { for (const k of NUMBERS) state[k] = null; budget.value = ""; keep(); show(); } }, "whole runs");

  const chosen = () => [...state.with].filter((id) => runs.has(id)).slice(0, state.seeds ? mostPooled : most);
  const recipesOf = (ids) => new Set(ids.map((id) => groupOf(runs.get(id)) || id));
  const question = (quick) => {
    const q = { runs: chosen(), quick };
    if (state.seeds) q.pool = true;
    for (const k of NUMBERS) if (state[k] !== null) q[k] = state[k];
    if (state.axis) q.axis = state.axis;
    return q;
  };
  const follow = following(
    async () => {
      const begun = performance.now();
      // The verdict of before is not that of the window under the pointer.
      lead.classList.add("busy");
      try {
        const found = await ask("/api/compare", question(true));
        if (!chart) return;
        latest = found;
        tell(found);
        draw();
        measured(begun);
      } catch (error) { if (chart) setText(said, error.fromServer ? error.message : ""); }
    },
    async (still) => {
      lead.classList.add("busy");
      if (!lead.textContent && chosen().length > 1) setText(lead, "Comparing…");
      try {
        const found = await ask("/api/compare", question(false));
        if (still() && chart) verdict(found);
      } catch { /* the quick question has said it */ } finally { lead.classList.remove("busy"); }
    },
  );

  function build() {
    section.replaceChildren(
      el("h2", { class: "tight", id: "over" }, "Chosen runs"), lead, said,
      el("div", { class: "tools", role: "toolbar", "aria-label": "Chart of the chosen runs" },
        el("label", {}, "compute", axis), logs, seeds, el("label", {}, "budget", budget), whole, el("span", { class: "gap" }), exports),
      box,
      el("div", { class: "scroll" }, el("table", { class: "chosen" }, el("caption", { class: "skip" }, "Chosen runs"), el("thead", {}, head), rows)),
    );
    chart = new Chart(box, { height: 340, moved, names: true, label: "Pass rate against compute of the chosen runs, with fits, bands and forecasts" });
    window.overlayChart = chart;
    hover = pointTips(chart);
    // A line for each run at once: the table keeps its height when the numbers come.
    const names = state.seeds ? recipesOf(chosen()) : chosen();
    rows.replaceChildren(...[...names].map(() => el("tr", {}, el("th", { scope: "row" }, "…"), el("td", {}, " ", el("span", { class: "range" }, " ")))));
    head.replaceChildren(el("th", { scope: "col" }, "Run"), el("td", {}, " "));
  }

  // With other runs, another axis, or new points.
  async function show() {
    const ids = chosen();
    // Before the list is there, a link's choice of runs is unknown: its room is kept.
    section.hidden = !ids.length && (received.list || !state.with.size);
    // A row of the table for each run, and what is above it: the list below must not move later.
    const phone = matchMedia("(max-width: 46rem)").matches;
    const lines = state.seeds ? recipesOf(ids).size : state.with.size;
    section.style.minHeight = `${(phone ? 760 : 560) + (phone ? 132 : 52) * lines}px`;
    if (!ids.length) { close(); return; }
    if (!chart) build();
    if (state.budget !== null && document.activeElement !== budget) budget.value = amount(state.budget);
    follow.ask(false);
    links(ids);
    const asked = `${ids.join()} ${state.axis} ${ids.map((id) => runs.get(id)?.version).join()}`;
    if (axes === asked) return;
    axes = asked;
    try {
      const query = state.axis ? `?axis=${encodeURIComponent(state.axis)}` : "";
      const all = await Promise.all(ids.map((id) => ask(`/api/runs/${id}${query}`)));
      points.clear();
      for (const one of all) points.set(one.id, one);
      draw();
      const shared = all[0].axes.filter((a) => all.every((one) => one.axes.some((b) => b.name === a.name)));
      axis.replaceChildren(el("option", { value: "" }, "as recorded"), ...shared.map((a) => el("option", { value: a.name }, a.label)));
      axis.value = state.axis;
    } catch { axes = ""; }
  }

  function links(ids) {
    exports.replaceChildren(...downloads(ids, NUMBERS.map((k) => [k, state[k]]), state.axis));
  }

  function moved(name, value, done) {
    const xs = chart.marks.points;
    if (name === "lo") state.from = value <= xs[0] ? null : value;
    if (name === "hi") state.to = value >= xs.at(-1) ? null : value;
    if (name === "budget") { state.budget = value; budget.value = amount(+value.toPrecision(3)); }
    if (done) { keep(); links(chosen()); }
    follow.ask(!done);
  }

  function draw() {
    if (!chart || !latest) return;
    logs.setAttribute("aria-pressed", String(!state.linear));
    seeds.setAttribute("aria-pressed", String(state.seeds));
    const xs = [...new Set(latest.runs.flatMap((r) => [...r.curve.used[0], ...r.curve.held[0]]))].sort((a, b) => a - b);
    const marks = chart.holding ? { ...chart.marks, points: xs } : { lo: state.from ?? xs[0], hi: state.to ?? xs.at(-1), budget: state.budget ?? latest.budget[0], points: xs };
    chart.show(latest.runs.map((r, i) => ({ ...r, colour: i, ceiling: null })), marks, !state.linear, { bands: latest.runs.length <= 3 });
    hover.show(latest.runs.flatMap((r, i) => r.ids.map((id) => points.get(id)).filter(Boolean).map((one) => ({ name: one.name, colour: i, ...one.curve, events: one.events }))));
  }

  function tell(found) {
    setText(said, found.left_out.join(" "));
    const names = found.runs[0].facts.map((f) => f.name);
    head.replaceChildren(el("th", { scope: "col" }, "Run"), ...names.map((name) => el("th", { scope: "col" }, name)));
    rows.replaceChildren(...found.runs.map((r, i) => el("tr", {},
      el("th", { scope: "row" }, swatch(i), " ", ...named(r), r.alarm ? el("span", { class: "flag", title: r.alarm }, "alarm") : ""),
      ...r.facts.map((f) => el("td", {}, f.value, el("span", { class: "range" }, f.note))))));
  }

  // A run by its name; the seeds of a recipe by theirs, and what lies between them.
  function named(r) {
    if (r.ids.length === 1) return [el("a", { href: link("run", r.id) }, short(r.name, 50))];
    const spread = r.seed_sd === null ? "" : `, last scores ± ${r.seed_sd.toFixed(3)}`;
    return [short(r.name, 50), el("span", { class: "range" }, `mean of ${r.ids.length} seeds${spread}: `, ...r.ids.flatMap((id, i) => [i ? ", " : "", el("a", { href: link("run", id) }, short(runs.get(id)?.name || id, 30))]))];
  }

  function verdict(found) {
    setText(lead, found.words.slice(0, 3).join(" ") + (found.words.length > 3 ? ` (${found.words.length - 3} more pairs)` : ""));
  }

  function close() {
    hover?.close();
    chart?.close();
    chart = latest = hover = null;
    axes = "";
    section.replaceChildren();
  }
  return { show, close() { follow.close(); close(); }, get held() { return Boolean(chart?.holding); } };
}
