// Chosen runs over each other: window and budget of all of them, and the verdict.
import { Chart, swatch } from "./chart.js";
import { amount, el, short } from "./base.js";
import { ask, downloads, setText } from "./dom.js";
import { following, measured } from "./follow.js";
import { received, runs } from "./live.js";
import { link } from "./place.js";
import { parse } from "./words.js";

const NUMBERS = ["from", "to", "budget"];

// state: { with, axis, linear, from, to, budget }; keep() notes it in the address.
export function overlay(section, state, keep) {
  let chart = null, latest = null, axes = "";
  const lead = el("p", { class: "lead", role: "status" }), said = el("p", { class: "said", role: "status" });
  const box = el("div", { id: "overlay" }), rows = el("tbody"), exports = el("span", { class: "exports" });
  const head = el("tr");
  const logs = el("button", { type: "button", onclick: () => { state.linear = !state.linear; keep(); draw(); } }, "log axis");
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

  const chosen = () => [...state.with].filter((id) => runs.has(id));
  const question = (quick) => {
    const q = { runs: chosen(), quick };
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
        el("label", {}, "compute", axis), logs, el("label", {}, "budget", budget), whole, el("span", { class: "gap" }), exports),
      box,
      el("div", { class: "scroll" }, el("table", { class: "chosen" }, el("caption", { class: "skip" }, "Chosen runs"), el("thead", {}, head), rows)),
    );
    chart = new Chart(box, { height: 340, moved, names: true, label: "Pass rate against compute of the chosen runs, with fits, bands and forecasts" });
    window.overlayChart = chart;
  }

  // With other runs, another axis, or new points.
  async function show() {
    const ids = chosen();
    // Before the list is there, a link's choice of runs is unknown: its room is kept.
    section.hidden = !ids.length && (received.list || !state.with.size);
    // A row of the table for each run, and what is above it: the list below must not move later.
    const phone = matchMedia("(max-width: 46rem)").matches;
    section.style.minHeight = `${(phone ? 760 : 560) + (phone ? 62 : 52) * state.with.size}px`;
    if (!ids.length) { close(); return; }
    if (!chart) build();
    if (state.budget !== null && document.activeElement !== budget) budget.value = amount(state.budget);
    follow.ask(false);
    links(ids);
    if (axes === ids.join()) return;
    axes = ids.join();
    try {
      const all = await Promise.all(ids.map((id) => ask(`/api/runs/${id}`)));
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
    const xs = [...new Set(latest.runs.flatMap((r) => [...r.curve.used[0], ...r.curve.held[0]]))].sort((a, b) => a - b);
    const marks = chart.holding ? { ...chart.marks, points: xs } : { lo: state.from ?? xs[0], hi: state.to ?? xs.at(-1), budget: state.budget ?? latest.budget[0], points: xs };
    chart.show(latest.runs.map((r, i) => ({ ...r, colour: i, ceiling: null })), marks, !state.linear, { bands: latest.runs.length <= 3 });
  }

  function tell(found) {
    setText(said, found.left_out.join(" "));
    const names = found.runs[0].facts.map((f) => f.name);
    head.replaceChildren(el("th", { scope: "col" }, "Run"), ...names.map((name) => el("th", { scope: "col" }, name)));
    rows.replaceChildren(...found.runs.map((r, i) => el("tr", {},
      el("th", { scope: "row" }, swatch(i), " ", el("a", { href: link("run", r.id) }, short(r.name, 50)), r.alarm ? el("span", { class: "flag", title: r.alarm }, "alarm") : ""),
      ...r.facts.map((f) => el("td", {}, f.value, el("span", { class: "range" }, f.note))))));
  }

  function verdict(found) {
    setText(lead, found.words.slice(0, 3).join(" ") + (found.words.length > 3 ? ` (${found.words.length - 3} more pairs)` : ""));
  }

  function close() {
    chart?.close();
    chart = latest = null;
    axes = "";
    section.replaceChildren();
  }
  return { show, close() { follow.close(); close(); }, get held() { return Boolean(chart?.holding); } };
}
