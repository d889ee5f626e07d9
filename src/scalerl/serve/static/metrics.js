// Step metrics across runs: a chart for each metric, all with the same stretch of steps.
import { amount, el, short } from "./base.js";
import { ask, setText } from "./dom.js";
import { groupOf } from "./groups.js";
import { hear, runs } from "./live.js";
import { here, link, note } from "./place.js";
import { meanOf, smoothed } from "./smooth.js";
import { StepChart, key, tick } from "./stepchart.js";
import { parse } from "./words.js";

const USUAL = ["reward", "pass_rate", "length/mean", "entropy", "grad_norm", "staleness/mean", "ratio/max", "zero_variance"];
const AXES = [["step", "steps"], ["compute/device_hours", "device-hours"], ["compute/flops", "FLOPs"], ["compute/generated_tokens", "generated tokens"], ["compute/samples", "rollouts"], ["compute/minutes", "minutes"]];
// Metrics that can be drawn at once, and runs.
const MOST = 12, MOST_RUNS = 24;
let meanings = null;

export function metricsView(main) {
  const { params } = here(), list = (name) => (params.get(name) || "").split(",").filter(Boolean);
  const number = (name) => { const v = parse(params.get(name) || ""); return Number.isFinite(v) ? v : null; };
  const state = {
    with: list("with").slice(0, MOST_RUNS), metrics: list("m").length ? list("m").slice(0, MOST) : USUAL, x: params.get("x") || "step",
    smooth: Math.min(Math.max(number("smooth") ?? 0, 0), 0.99), logX: params.get("logx") === "1", logY: params.get("logy") === "1",
    seeds: params.get("seeds") === "1", from: number("from"), to: number("to"),
  };
  let open = true, latest = null, asking = false, again = false, due = null;
  const charts = new Map();

  const sub = el("p", { class: "sub", role: "status" }, "reading…");
  const axis = el("select", { "aria-label": "Horizontal axis", onchange: () => { state.x = axis.value; state.from = state.to = null; changed(true); } }, AXES.map(([value, label]) => el("option", { value }, label)));
  axis.value = state.x;
  const toggle = (name, label, title) => { const b = el("button", { type: "button", title, "aria-pressed": String(state[name]), onclick: () => { state[name] = !state[name]; b.setAttribute("aria-pressed", String(state[name])); changed(false); } }, label); return b; };
  const smooth = el("input", { type: "range", min: 0, max: 0.98, step: 0.02, value: state.smooth, "aria-label": "Smoothing", oninput: () => { state.smooth = Number(smooth.value); changed(false); } });
  const field = (name, hint) => el("input", { type: "text", inputmode: "decimal", "aria-label": hint, placeholder: hint, onchange: (event) => { const v = parse(event.target.value); event.target.setAttribute("aria-invalid", String(Number.isNaN(v))); if (!Number.isNaN(v)) { state[name] = v; changed(true); } } });
  const from = field("from", "from"), to = field("to", "to");
  const whole = el("button", { type: "button", onclick: () => zoom(null, null) }, "whole");
  const find = el("input", { type: "search", placeholder: "find a metric", "aria-label": "Find a metric", oninput: () => offer() });
  const options = el("div", { class: "options" });
  const picker = el("details", { class: "menu", ontoggle: () => { if (picker.open) offer(); } }, el("summary", {}, "metrics"), el("div", { class: "choices" }, find, options));
  const keys = el("div", { class: "run-keys", role: "group", "aria-label": "Runs" });
  const grid = el("div", { class: "metrics" });
  const table = el("div", { class: "scroll" });
  main.replaceChildren(
    el("p", { class: "small" }, el("a", { href: link("runs", "", { with: state.with.join(","), seeds: state.seeds }) }, "← back to the list")),
    el("h1", {}, "Step metrics"), sub,
    el("div", { class: "tools", role: "toolbar", "aria-label": "Charts" }, picker, el("label", {}, "against", axis), toggle("logX", "log x"), toggle("logY", "log y"),
      toggle("seeds", "mean of seeds", "Seeds of a recipe as their mean and the range between them"), el("label", {}, "smooth", smooth), el("label", {}, "zoom", from), to, whole),
    keys, grid, el("details", {}, el("summary", {}, "The last values as a table"), table),
  );

  function keep() {
    note("metrics", "", { with: state.with.join(","), m: state.metrics.join() === USUAL.join() ? null : state.metrics.join(","), x: state.x === "step" ? null : state.x, smooth: state.smooth || null, logx: state.logX, logy: state.logY, seeds: state.seeds, from: state.from, to: state.to });
  }

  function changed(read) { keep(); draw(); if (read) load(); }

  function zoom(a, b) {
    state.from = a === null ? null : +a.toPrecision(4);
    state.to = b === null ? null : +b.toPrecision(4);
    changed(true);
  }

  async function offer() {
    meanings ??= new Map((await ask("/api/steps/metrics").catch(() => [])).map((m) => [m.name, m]));
    const known = new Set(latest?.runs.flatMap((r) => r.known) || []);
    const text = find.value.toLowerCase();
    const names = [...known].filter((name) => `${name} ${meanings.get(name)?.meaning || ""}`.toLowerCase().includes(text) && name !== "step");
    options.replaceChildren(...names.slice(0, 120).map((name) => {
      const m = meanings.get(name), box = el("input", { type: "checkbox", onchange: () => { state.metrics = box.checked ? [...state.metrics, name].slice(-MOST) : state.metrics.filter((each) => each !== name); changed(true); } });
      box.checked = state.metrics.includes(name);
      return el("label", {}, box, name, el("span", { class: "small" }, m ? ` ${m.meaning}${m.unit ? `, ${m.unit}` : ""}` : " a metric of this run"));
    }));
  }

  // ---- data
  async function load() {
    if (!state.with.length) { setText(sub, "No runs are chosen: tick some in the list."); return; }
    if (asking) { again = true; return; }
    asking = true;
    const q = new URLSearchParams([...state.with.map((id) => ["run", id]), ...new Set([...state.metrics, state.x])].map((each) => Array.isArray(each) ? each : ["metric", each]));
    // A stretch of steps is read again in more detail; of other axes the whole run is there.
    if (state.x === "step") for (const name of ["from", "to"]) if (state[name] !== null) q.set(name, state[name]);
    try {
      meanings ??= new Map((await ask("/api/steps/metrics")).map((m) => [m.name, m]));
      const found = await ask(`/api/steps?${q}`);
      if (!open) return;
      latest = found;
      const most = Math.max(...found.runs.map((r) => r.every), 1);
      setText(sub, [`${found.runs.length} run${found.runs.length === 1 ? "" : "s"}`, most > 1 ? `lines are means over up to ${most} steps, bands reach from the smallest to the largest` : "every step", ...found.left_out].join(" · "));
      draw();
    } catch (error) { if (open) setText(sub, error.fromServer ? error.message : "The server does not answer."); }
    finally { asking = false; if (again && open) { again = false; load(); } }
  }

  // The lines of one metric: a run each, or a recipe each.
  function lines(metric) {
    const single = latest.runs.filter((r) => r.metrics[metric]).map((r) => {
      const m = r.metrics[metric], xs = state.x === "step" ? r.step : r.metrics[state.x]?.high ?? r.metrics[state.x]?.mean ?? [];
      return { id: r.id, name: r.name, x: xs.map((x) => x ?? NaN), y: m.mean, low: m.low, high: m.high };
    }).filter((line) => line.x.length);
    const names = order();
    if (!state.seeds) return single.map((line) => ({ ...line, colour: names.indexOf(line.id), raw: state.smooth ? line.y : null, y: smoothed(line.y, state.smooth) }));
    const groups = new Map();
    for (const line of single) { const g = groupOf(runs.get(line.id) || {}) || line.id; if (!groups.has(g)) groups.set(g, []); groups.get(g).push({ ...line, y: smoothed(line.y, state.smooth) }); }
    return [...groups.entries()].map(([g, mates]) => ({ name: nameOf(g, mates), ...meanOf(mates), colour: names.indexOf(g), id: g }));
  }

  // What has a colour: runs, or recipes, in the order in which they were chosen.
  const order = () => state.seeds ? [...new Set(state.with.map((id) => groupOf(runs.get(id) || {}) || id))] : state.with;
  const nameOf = (g, mates) => mates.length > 1 ? `${runs.get(mates[0].id)?.group || mates[0].name} (${mates.length} seeds)` : mates[0].name;

  // ---- drawing
  function draw() {
    whole.disabled = state.from === null && state.to === null;
    if (document.activeElement !== from) from.value = state.from === null ? "" : amount(state.from);
    if (document.activeElement !== to) to.value = state.to === null ? "" : amount(state.to);
    for (const [name, one] of charts) if (!state.metrics.includes(name)) { one.chart.close(); one.node.remove(); charts.delete(name); }
    for (const name of state.metrics) grid.append(chartOf(name).node);
    if (!latest) return;
    const unit = AXES.find(([value]) => value === state.x)?.[1] ?? state.x, shown = new Map();
    for (const name of state.metrics) {
      const mine = lines(name), one = chartOf(name), m = meanings?.get(name);
      setText(one.unit, m?.unit || "");
      one.title.title = m?.meaning || "";
      const lost = state.logY && mine.some((line) => line.y.some((y) => y !== null && y <= 0));
      setText(one.none, !mine.length ? "not in the record of these runs" : lost ? "values up to 0 are left out" : "");
      one.box.classList.toggle("empty-chart", !mine.length);
      one.chart.label = `${name} against ${unit}: ${mine.map((l) => `${l.name} ${last(l.y)}`).join(", ")}`;
      one.chart.show(mine, { logX: state.logX, logY: state.logY, unit, from: state.from, to: state.to });
      for (const line of mine) shown.set(line.id, line);
    }
    keys.replaceChildren(...order().filter((id) => shown.has(id)).map((id, i) => el("span", { class: "key" }, key(order().indexOf(id)), " ", state.seeds && !runs.has(id) ? short(shown.get(id).name, 50) : el("a", { href: link("run", id) }, short(shown.get(id).name, 50)))));
    table.replaceChildren(el("table", {}, el("caption", { class: "skip" }, "The last value of each metric"),
      el("thead", {}, el("tr", {}, el("th", { scope: "col" }, state.seeds ? "Recipe" : "Run"), state.metrics.map((m) => el("th", { scope: "col" }, m)))),
      el("tbody", {}, [...shown.values()].map((line) => el("tr", {}, el("th", { scope: "row" }, line.name), state.metrics.map((m) => el("td", {}, last(lines(m).find((l) => l.id === line.id)?.y || []))))))));
  }

  const last = (ys) => { const v = ys.findLast?.((y) => y !== null && y !== undefined); return v === undefined ? "–" : tick(v); };

  function chartOf(name) {
    if (charts.has(name)) return charts.get(name);
    const box = el("div", { class: "stepbox" }), none = el("span", { class: "small" }), unit = el("span", { class: "small" }), title = el("b", {}, name);
    const tip = el("div", { class: "tip", hidden: true });
    const node = el("figure", { class: "metric" }, el("figcaption", {}, title, " ", unit, " ", none), box);
    box.append(tip);
    const chart = new StepChart(box, { label: name, zoomed: zoom, pointed: (x, from, event) => point(name, x, event) });
    charts.set(name, { chart, node, box, none, unit, title, tip });
    return charts.get(name);
  }

  // The same place in every chart; the values in the one under the pointer.
  function point(name, x, event) {
    for (const [other, one] of charts) { one.chart.pointAt(x); if (other !== name || x === null) one.tip.hidden = true; }
    if (x === null) return;
    const { chart, tip, box } = charts.get(name);
    const found = chart.lines.map((line) => ({ line, at: chart.valueAt(line, x) })).filter((one) => one.at).sort((a, b) => b.at.y - a.at.y);
    if (!found.length) return;
    const unit = AXES.find(([value]) => value === state.x)?.[1] ?? state.x;
    tip.replaceChildren(...found.slice(0, 12).map(({ line, at }) => el("span", {}, key(line.colour), ` ${tick(at.y)}${at.low !== null && at.high > at.low ? ` (${tick(at.low)} to ${tick(at.high)})` : ""} `, el("i", {}, `${short(line.name, 26)}, ${state.x === "step" ? `step ${Math.round(at.x).toLocaleString("en")}` : `${amount(at.x)} ${unit}`}`))));
    tip.hidden = false;
    const mine = box.getBoundingClientRect(), px = event.clientX - mine.left, width = tip.offsetWidth;
    tip.style.left = `${px + 16 + width > mine.width ? Math.max(px - 16 - width, 0) : px + 16}px`;
    tip.style.top = "8px";
  }

  draw();
  load();
  window.stepCharts = charts;
  const stop = hear((news) => {
    if (news.kind === "all" || news.kind === "back") draw();
    if ((news.kind === "back" || state.with.includes(news.run?.id)) && !due) due = setTimeout(() => { due = null; load(); }, 3000);
  });
  return { close() { open = false; stop(); clearTimeout(due); for (const { chart } of charts.values()) chart.close(); }, back() { location.hash = link("runs", "", { with: state.with.join(",") }); }, find() { picker.open = true; find.focus(); } };
}
