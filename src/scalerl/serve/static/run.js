// One run: its curve with everything that can be handled, and what is inside.
import { Chart, valueAt } from "./chart.js";
import { amount, el, short } from "./base.js";
import { adopt, ask, downloads, setText } from "./dom.js";
import { following, measured } from "./follow.js";
import { pointTips, smallTips } from "./hover.js";
import { annotateTools } from "./annotate.js";
import { healthPart } from "./health.js";
import { hear, runs } from "./live.js";
import { here, link, note } from "./place.js";
import { tabs } from "./tabs.js";
import { ago, parse, parseScore, waits } from "./words.js";

const NUMBERS = ["from", "to", "budget", "target", "price", "value", "known"];
// What may be written into a field, for a text that cannot be read.
const WRITE = {
  budget: "an amount of compute, such as 50k, 1.5M or 2e12",
  target: "a pass rate above 0 and up to 1, such as 0.8 or 80%",
  price: "a number, such as 2 or 1.5e-12",
  value: "a number, such as 100 or 1k",
};
// Up to this many points there is no window to choose: a fit needs five.
const YOUNG = 5;
// What a device-hour costs: no number of the fit.
const HOUR = "hour";

export function runView(main, id) {
  const { params } = here();
  const state = { axis: params.get("axis") || "", linear: params.get("linear") === "1", beside: params.get("beside") || "" };
  for (const key of NUMBERS) { const v = parse(params.get(key) || ""); state[key] = Number.isFinite(v) ? v : null; }
  const cost = parse(params.get(HOUR) || "");
  state.hour = Number.isFinite(cost) ? cost : null;
  let whole = null, latest = null, open = true, seen = "", step = null;

  // ---- the page
  const title = el("h1", {}, runs.get(id)?.name || "…");
  const sub = el("p", { class: "sub", role: "status" });
  const alarm = el("div", { class: "alarm", role: "alert", hidden: true });
  const facts = el("dl", { class: "facts filling", "aria-live": "polite" });
  const lead = el("p", { class: "lead answer" });
  const said = el("p", { class: "said", role: "status" });
  const readout = el("p", { class: "small readout-line", "aria-live": "off" });
  const wrong = el("p", { class: "said", role: "alert", hidden: true });
  const box = el("div", { id: "curve" });
  const axis = el("select", { "aria-label": "Kind of compute", onchange: () => { state.axis = axis.value; latest = null; for (const k of ["from", "to", "budget", "known"]) state[k] = null; load(); } });
  const logs = el("button", { type: "button", onclick: () => { state.linear = !state.linear; keep(); draw(); } }, "log axis");
  const reset = el("button", { type: "button", onclick: () => { for (const k of NUMBERS) state[k] = null; for (const i of Object.values(inputs)) { i.value = ""; i.removeAttribute("aria-invalid"); } wrong.hidden = true; keep(); marks(); fit(false); } }, "whole run");
  const inputs = {};
  const field = (key, label, hint, meaning) => {
    const input = inputs[key] = el("input", { type: "text", inputmode: "decimal", placeholder: hint, title: meaning, "aria-label": label, value: state[key] === null ? "" : state[key], onchange: () => {
      const v = (key === "target" ? parseScore : parse)(input.value);
      input.setAttribute("aria-invalid", String(Number.isNaN(v)));
      wrong.hidden = !Number.isNaN(v);
      if (Number.isNaN(v)) { setText(wrong, `${label}: “${short(input.value, 30)}” cannot be read; write ${WRITE[key]}.`); return; }
      state[key] = v;
      keep();
      marks();
      fit(false);
    } });
    return el("label", {}, label, input);
  };
  const slider = el("input", { type: "range", min: 0, max: 0, value: 0, "aria-label": "As it was known at", oninput: () => replay(false), onchange: () => replay(true) });
  const when = el("output");
  const exports = el("span", { class: "exports" });
  const copy = el("button", { type: "button", onclick: async () => { try { await navigator.clipboard.writeText(location.href); setText(copy, "copied"); } catch { prompt("The link", location.href); } setTimeout(() => setText(copy, "copy link"), 1500); } }, "copy link");
  const vitals = healthPart(id, state, () => keep());
  const notes = annotateTools(() => runs.has(id) ? [id] : [], () => notes.update());
  const inside = el("div", { id: "inside" }), answers = el("div", { id: "answers" });
  const pickStep = el("select", { "aria-label": "Answers of which validation", onchange: () => { step = pickStep.value || null; panels(); } });
  const pickRow = el("p", { class: "tools", hidden: true }, el("label", {}, "answers at step", pickStep));
  const beside = el("select", { "aria-label": "Compare the recipe with that of", onchange: () => { state.beside = beside.value; keep(); difference(); } });
  const differs = el("div");
  const recipes = el("section", { hidden: true, "aria-labelledby": "beside" }, el("h3", { id: "beside" }, "Recipe beside another run's"), el("p", { class: "tools" }, beside), differs);
  const past = el("div", { class: "replay" }, el("label", { for: "known" }, "as it was known at"), slider, when);
  // Room is kept for the numbers and the chart; they are shown together with the first answer, and
  // what is below them after that, so that nothing moves while the page fills.
  const below = el("div", { hidden: true },
    lead, el("div", { class: "tools", role: "toolbar", "aria-label": "Pin, tags and note" }, notes.node), vitals.node,
    el("section", { "aria-labelledby": "in" }, el("h2", { id: "in" }, "Inside the run"), inside, pickRow, answers), recipes);
  const above = el("section", { "aria-label": "Curve", class: "filling" },
      el("div", { class: "tools", role: "toolbar", "aria-label": "Chart" }, el("label", {}, "compute", axis), logs, field("budget", "budget", "2 × now", "Compute to forecast to, such as 50k or 2e12"), field("target", "target", "0.8", "A pass rate: when, and how likely, it is reached"), field("price", "price", "a unit", "What a unit of compute costs"), field("value", "value", "a point", "What a point of pass rate is worth: whether going on pays"), reset),
      wrong, box, readout, past,
      el("div", { class: "tools", role: "toolbar", "aria-label": "Take it with you" }, el("span", { class: "small" }, "Take it with you:"), exports, copy));
  main.replaceChildren(el("p", { class: "small" }, el("a", { href: "#/" }, "← all runs")), title, tabs(id, "run"), sub, alarm, facts, said, above, below);
  slider.id = "known";
  const chart = new Chart(box, { moved, label: "Pass rate against compute, with the fitted law, its band and the forecast" });
  window.runChart = chart;
  const hover = pointTips(chart);
  smallTips(inside);
  chart.reading = (x) => setText(readout, x === null || !latest ? " " : read(x));

  // ---- state in the address
  function keep() {
    const numbers = Object.fromEntries(NUMBERS.map((k) => [k, state[k]]));
    note("run", id, { ...numbers, [HOUR]: state.hour, axis: state.axis, linear: state.linear, beside: state.beside });
    links();
  }

  function question(quick) {
    const q = { run: id, quick };
    for (const key of NUMBERS) if (state[key] !== null) q[key] = state[key];
    if (state.axis) q.axis = state.axis;
    return q;
  }

  function links() {
    exports.replaceChildren(...downloads([id], NUMBERS.map((k) => [k, state[k]]), state.axis));
  }

  // A problem, in the colour of one; or, if `calm`, just how things stand.
  function say(text, calm = false) {
    setText(said, text);
    said.classList.toggle("calm", calm);
  }

  function filled() {
    for (const each of [facts, above]) each.classList.remove("filling");
    below.hidden = false;
    reachable();
  }

  // A long answer scrolls by itself: it is reached by keyboard.
  function reachable() {
    for (const each of below.querySelectorAll("pre")) if (each.scrollHeight > each.clientHeight) each.tabIndex = 0;
  }
  below.addEventListener("toggle", reachable, true);

  // ---- data
  async function load() {
    keep();
    try {
      whole = await ask(`/api/runs/${id}${state.axis ? `?axis=${encodeURIComponent(state.axis)}` : ""}`);
    } catch (error) {
      say(error.fromServer ? error.message : "The server does not answer.");
      filled();
      return;
    }
    if (!open) return;
    say("");
    axis.replaceChildren(...whole.axes.map((a) => el("option", { value: a.name }, a.label)));
    axis.value = state.axis || (whole.axes.find((a) => a.name === whole.x || a.label === whole.unit) || whole.axes[0])?.name || "";
    about(whole);
    points();
    fit(false);
    panels();
    vitals.load();
    others();
  }

  // The points as they are, until an answer has more; and where the sliders may go.
  function points() {
    const curve = whole.curve;
    if (!curve) {
      filled();
      const none = "0 of 5 validations. New ones appear here by themselves; the first forecast comes with the fifth.";
      say(whole.problem || none, !whole.problem);
      return;
    }
    const n = curve.compute.length;
    past.hidden = n <= YOUNG;
    slider.min = Math.min(5, n);
    slider.max = n;
    if (state.known === null) slider.value = n;
    else slider.value = curve.compute.filter((x) => x <= state.known).length;
    sayWhen();
    marks();
    draw();
  }

  function marks() {
    const xs = whole?.curve?.compute || [];
    const end = state.known ?? xs.at(-1) ?? 1, hi = Math.min(state.to ?? end, end), young = xs.length <= YOUNG;
    chart.marks = { lo: young ? null : state.from ?? xs[0], hi: young ? null : hi, budget: young ? null : budget() ?? 2 * hi, target: state.target, points: xs };
  }

  // One budget for the handle, the numbers and the sentence: the one set here, else that of the
  // answer that is shown.
  function budget() {
    return state.budget ?? latest?.forecast.at?.[0].compute ?? null;
  }

  function draw() {
    logs.setAttribute("aria-pressed", String(!state.linear));
    const curve = latest?.curve ?? bare();
    if (!curve) return;
    if (chart.holding !== "budget" && latest?.forecast.at) chart.marks.budget = budget();
    const f = latest?.fit;
    const ceiling = f?.identified ? [f.params.A, ...f.intervals.A] : null;
    chart.show([{ name: whole?.name || "", colour: 0, curve, ceiling }], chart.marks, !state.linear);
    if (whole?.curve) hover.show([{ name: whole.name, colour: 0, ...whole.curve, events: whole.events }]);
  }

  function bare() {
    const c = whole?.curve;
    return c && { x: [], median: [], low: [], high: [], end: 0, used: [c.compute, c.score], held: [[], []], unit: c.unit };
  }

  const follow = following(
    async () => {
      if (!whole?.curve) return;
      const begun = performance.now();
      facts.classList.add("stale");
      try {
        const found = await ask("/api/fit", question(true));
        if (!open) return;
        latest = found;
        say("");
        tell(found);
        draw();
        filled();
        measured(begun);
      } catch (error) {
        if (!open) return;
        say(error.fromServer ? error.message : "");
        filled();
        if (error.fromServer) { latest = null; facts.replaceChildren(); setText(lead, ""); draw(); }
      } finally { facts.classList.remove("stale"); }
    },
    // Words, and what would identify the ceiling.
    async (still) => {
      if (!whole?.curve) return;
      lead.classList.add("busy");
      try {
        const found = await ask("/api/fit", question(false));
        if (still()) tell(found);
      } catch { /* the quick question has said it */ } finally { lead.classList.remove("busy"); }
    },
  );
  const fit = (moving) => follow.ask(moving);

  function tell(found) {
    facts.replaceChildren(...found.facts.map((f) => el("div", {}, el("dt", {}, f.name), el("dd", {}, el("b", {}, f.value), " ", el("span", {}, f.note)))), ...extra(found));
    alarm.hidden = !found.fit.alarm;
    alarm.replaceChildren(el("strong", {}, "Alarm "), found.fit.alarm || "");
    setText(lead, found.words.join(" "));
    if (found.fit.warnings?.length) lead.append(el("span", { class: "small" }, ` ${found.fit.warnings.join("; ")}.`));
  }

  function extra(found) {
    const out = [];
    for (const t of found.forecast.targets) out.push(["Target " + t.score, t.probability.toFixed(2), t.compute.median === null ? "probability; most futures never get there" : `probability; at about ${amount(t.compute.median)}`]);
    for (const c of found.cost?.budget || []) out.push(["Cost of going on", amount(c.cost), `to ${amount(c.compute)}`]);
    const r = found.forecast.recommendation;
    if (r) out.push(["Advice", r.action, r.reason + beyond(found)]);
    return out.map(([name, value, note]) => el("div", {}, el("dt", {}, name), el("dd", {}, el("b", {}, value), " ", el("span", {}, note))));
  }

  // The advice is about the best amount of compute: what the budget is worth stands beside it.
  function beyond(found) {
    const b = found.cost?.budget?.[0], net = b?.expected_net;
    if (net === null || net === undefined) return "";
    return `; to the budget of ${amount(b.compute)} it is expected to ${net < 0 ? "cost" : "be worth"} ${amount(Math.abs(+net.toPrecision(3)))} more than it ${net < 0 ? "is worth" : "costs"}`;
  }

  function read(x) {
    const c = latest.curve, v = valueAt(c, x);
    if (!v) return " ";
    return `At ${amount(+x.toPrecision(3))} ${c.unit}: ${v.median.toFixed(3)} (${v.low.toFixed(3)} to ${v.high.toFixed(3)})${x > c.end ? ", forecast" : ""}`;
  }

  // ---- handling
  function moved(name, value, done) {
    const xs = whole.curve.compute, end = state.known ?? xs.at(-1);
    if (name === "lo") state.from = value <= xs[0] ? null : value;
    if (name === "hi") state.to = value >= end ? null : value;
    if (name === "budget") { state.budget = value; inputs.budget.value = amount(+value.toPrecision(3)); }
    if (done) keep();
    fit(!done);
  }

  function replay(done) {
    const xs = whole?.curve?.compute;
    if (!xs) return;
    const at = Number(slider.value);
    state.known = at >= xs.length ? null : xs[at - 1];
    sayWhen();
    marks();
    if (done) keep();
    fit(!done);
  }

  function sayWhen() {
    const text = state.known === null ? "now" : `${amount(state.known)} ${whole.curve.unit}, ${slider.value} of ${slider.max} points`;
    setText(when, text);
    slider.setAttribute("aria-valuetext", text);
  }

  function about(run) {
    setText(title, short(run.name, 100));
    document.title = `${short(run.name, 40)} · scalerl`;
    const parts = [run.status, run.step === null || run.budget?.text.startsWith("step") ? null : `step ${run.step.toLocaleString("en")}`, run.budget?.text, `${run.points} evaluations`, run.where, run.group, waits(run), run.why, `changed ${ago(run.changed)}`];
    sub.replaceChildren(el("span", { class: `status ${run.status}` }, parts.filter(Boolean).join(" · ")));
    if (run.study) sub.append(" · ", el("a", { href: link("study", run.study) }, "its study"));
    sub.append(" · ", el("a", { href: link("runs", "", { with: id }) }, "draw over others"));
    if (run.kind === "run") sub.append(" · ", el("a", { href: link("metrics", "", { with: id }) }, "step metrics"));
    notes.update();
  }

  // ---- what is inside
  let reading = false;
  async function panels() {
    if (reading) return;
    reading = true;
    try {
      const found = await ask(`/api/runs/${id}/inside${step ? `?step=${step}` : ""}`);
      if (!open) return;
      const kept = [...inside.querySelectorAll("details")].map((d) => d.open);
      adopt(inside, found.html || "<p class=\"small\">Nothing but its curve is known of this run.</p>");
      inside.querySelectorAll("details").forEach((d, i) => { d.open = Boolean(kept[i]); });
      adopt(answers, found.answers);
      reachable();
      pickRow.hidden = found.answered.length < 2;
      const steps = found.answered.map(String);
      if (steps.join() !== [...pickStep.options].map((o) => o.value).join()) pickStep.replaceChildren(...steps.map((s) => el("option", { value: s }, s)));
      pickStep.value = String(found.step ?? "");
    } catch { /* what is there stays there */ } finally { reading = false; }
  }

  function others() {
    const list = [...runs.values()].filter((r) => r.kind === "run" && r.id !== id && r.recipe);
    recipes.hidden = !list.length || !whole.recipe;
    beside.replaceChildren(el("option", { value: "" }, "choose a run"), ...list.slice(0, 500).map((r) => el("option", { value: r.id }, short(`${r.name} (${r.where})`, 80))));
    beside.value = state.beside;
    if (state.beside) difference();
  }

  async function difference() {
    if (!state.beside) { differs.replaceChildren(); return; }
    try { adopt(differs, (await ask(`/api/runs/${id}/diff?with=${state.beside}`)).html); }
    catch (error) { differs.replaceChildren(el("p", { class: "said" }, error.fromServer ? error.message : "")); }
  }

  // ---- as it goes
  let due = null, panelsDue = null;
  const stop = hear((news) => {
    if (news.kind === "back") { load(); return; }
    if (news.kind === "all" && whole) others();
    if (news.kind === "gone" && news.id === id) { say("The run is gone from the directory."); return; }
    if (news.run?.id !== id) return;
    about(news.run);
    const now = `${news.run.version}`;
    if (now !== seen) { seen = now; grow(news); }
    if (!panelsDue) panelsDue = setTimeout(() => { panelsDue = null; panels(); vitals.load(); }, 4000);
  });

  function grow(news) {
    const curve = whole?.curve;
    // New points come with the news; a curve that was thinned, or another axis, is read again.
    if (curve && !state.axis && "from" in news && curve.total === news.from && curve.compute.length === curve.total && curve.total < 1400) {
      curve.compute.push(...news.new[0]);
      curve.score.push(...news.new[1]);
      curve.total += news.new[0].length;
      const follows = Number(slider.value) >= Number(slider.max);
      slider.max = curve.compute.length;
      past.hidden = curve.compute.length <= YOUNG;
      if (follows) slider.value = slider.max;
      if (chart.holding === null) { marks(); if (latest && state.known === null && state.to === null) { latest.curve.used[0].push(...news.new[0]); latest.curve.used[1].push(...news.new[1]); } draw(); }
      if (!due) due = setTimeout(() => { due = null; if (chart.holding === null) fit(false); }, 800);
    } else if (!due) due = setTimeout(() => { due = null; if (chart.holding === null) load(); }, 1500);
  }

  load();
  return { close() { open = false; stop(); clearTimeout(due); clearTimeout(panelsDue); follow.close(); hover.close(); vitals.close(); chart.close(); document.title = "scalerl"; }, back() { location.hash = "#/"; } };
}
