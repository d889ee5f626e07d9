// The interactive chart of the report: what is shown, and the values at the reading line.
import { amount, el, short } from "./base.js";
import { Chart, NAMED, swatch, valueAt } from "./chart.js";

// Lines of the table below the chart, and runs from which a search box helps to find one.
const ROWS = 6, SEARCH = 12;

function report() {
  const figure = document.getElementById("chart");
  if (!figure) return;
  const data = JSON.parse(document.getElementById("data").textContent);
  const lone = data.runs.length === 1;
  const runs = data.runs.map((r, i) => ({
    name: r.name, colour: i, alarm: r.alarm, kind: r.kind, ceiling: r.ceiling, curve: { ...r, unit: data.kinds[r.kind] },
    note: r.alarm ? "alarm: in decline" : r.ceiling ? `ceiling ${r.ceiling[0].toFixed(3)}` : "ceiling not identified",
  }));
  const layers = { bands: runs.length <= NAMED, seen: false, law: lone, power: lone, held: true };
  const hidden = new Set();
  let log = true, kind = 0, score;
  const visible = () => runs.filter((r) => r.kind === kind && !hidden.has(r));

  // ---- the parts of the figure
  const tools = el("div", { class: "tools", role: "toolbar", "aria-label": "Chart" });
  const stage = el("div", {
    class: "stage", tabindex: "0", role: "application",
    "aria-label": "Chart of pass rate against compute. Left and right arrow keys move the reading line.",
  });
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const list = el("div", { class: "runs tools", role: "group", "aria-label": "Runs shown" });
  // Paper gets the drawn figure: its lines are sharp at any size, and its colours those of paper.
  const paper = el("div", { class: "on-paper" });
  paper.innerHTML = figure.querySelector("noscript")?.textContent ?? "";
  for (const part of [tools, stage, paper, readout, list]) figure.insertBefore(part, figure.querySelector("figcaption"));
  const chart = new Chart(stage, {
    height: (width) => Math.round(Math.min(Math.max(width * 0.5, 300), 500)), names: true,
    label: "Pass rate against compute, with fits, bands and forecasts; the table below has the values",
  });
  window.reportChart = chart;

  function draw() {
    chart.show(visible(), { truth: data.truth }, log, layers);
    readOut();
  }

  // ---- reading values off the curves
  function readOut() {
    const shown = chart.runs, r = chart.range();
    const asked = shown.map((run) => run.curve.at || 2 * run.curve.end).sort((a, b) => a - b);
    const usual = asked.length > NAMED ? asked[asked.length >> 1] : asked.at(-1) || 2;
    const x = chart.chosen ?? Math.min(usual, r.last);
    let found = shown.map((run) => ({ run, value: valueAt(run.curve, x) })).filter((one) => one.value);
    if (found.length > ROWS) {
      const y = score ?? 1;
      found.sort((a, b) => (b.run === chart.focus) - (a.run === chart.focus) || Math.abs(a.value.median - y) - Math.abs(b.value.median - y));
      found = found.slice(0, ROWS);
    }
    chart.at = x;
    chart.read = found;
    chart.redraw();
    const heads = [`At ${amount(+x.toPrecision(3))} ${data.kinds[kind]}`, "pass rate", `${data.level} true`, `${data.level} one evaluation`];
    const wide = stage.clientWidth > 640 ? 60 : 18;
    readout.replaceChildren(el("table", {},
      el("thead", {}, el("tr", {}, heads.map((h) => el("th", { scope: "col" }, h)))),
      el("tbody", {}, found.map(({ run, value: v }) => el("tr", {},
        el("th", { scope: "row" }, swatch(run.colour), ` ${short(run.name, wide)}${x > run.curve.end ? " (forecast)" : ""}`),
        el("td", {}, v.median.toFixed(3)),
        el("td", {}, `${v.low.toFixed(3)} to ${v.high.toFixed(3)}`),
        el("td", {}, `${v.seenLow.toFixed(3)} to ${v.seenHigh.toFixed(3)}`))))));
  }

  function moveTo(x, y) {
    const r = chart.range();
    chart.chosen = Math.min(Math.max(x, r.first), r.last);
    score = y;
    if (chart.runs.length > NAMED && y !== undefined) {
      let best = 0.05 * (r.high - r.low);
      chart.focus = null;
      for (const run of chart.runs) {
        const v = valueAt(run.curve, chart.chosen);
        if (v && Math.abs(v.median - y) < best) { best = Math.abs(v.median - y); chart.focus = run; }
      }
    }
    readOut();
  }

  chart.reading = (x, y) => { if (x !== null) moveTo(x, y); };
  stage.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const { plot } = chart, now = plot.valToPos(chart.chosen ?? chart.range().first, "x");
    const to = now + step * (event.shiftKey ? 40 : 8);
    moveTo(plot.posToVal(Math.min(Math.max(to, 0), plot.over.clientWidth), "x"));
  });

  // ---- controls
  function toggle(label, get, set) {
    const button = el("button", { type: "button", "aria-pressed": String(get()), onclick: () => {
      set(!get());
      button.setAttribute("aria-pressed", String(get()));
      draw();
    } }, label);
    return button;
  }

  const layer = (label, name) => toggle(label, () => layers[name], (v) => { layers[name] = v; });
  tools.append(toggle("log axis", () => log, (v) => { log = v; }), layer(`${data.level} band`, "bands"), layer("one evaluation", "seen"));
  if (data.runs.some((r) => r.law?.length)) tools.append(layer("law alone", "law"));
  if (data.runs.some((r) => r.power)) tools.append(layer("power law", "power"));
  if (data.runs.some((r) => r.held[0].length)) tools.append(layer("held-out points", "held"));
  if (data.kinds.length > 1) {
    const select = el("select", { "aria-label": "Kind of compute", onchange: () => { kind = +select.value; chart.chosen = undefined; chips(""); draw(); } },
      data.kinds.map((k, i) => el("option", { value: i }, k)));
    tools.append(select);
  }

  function chips(filter) {
    const mine = runs.filter((r) => r.kind === kind);
    list.replaceChildren();
    if (mine.length < 2) return;
    if (mine.length > SEARCH) {
      const input = el("input", { type: "search", placeholder: "find a run", "aria-label": "Find a run", value: filter, oninput: () => {
        chips(input.value);
        const next = list.querySelector("input");
        next.focus();
        next.setSelectionRange(next.value.length, next.value.length);
      } });
      list.append(input);
    }
    const every = (label, change) => el("button", { type: "button", onclick: () => { mine.forEach(change); chips(filter); draw(); } }, label);
    if (mine.length > 2) list.append(every("all", (r) => hidden.delete(r)), every("none", (r) => hidden.add(r)));
    for (const run of mine) {
      if (!run.name.toLowerCase().includes(filter.toLowerCase())) continue;
      const button = toggle([swatch(run.colour), run.name + (run.alarm ? " (alarm)" : "")], () => !hidden.has(run), (v) => { if (v) hidden.delete(run); else hidden.add(run); });
      const stand = (v) => () => { if (chart.runs.length > NAMED) { chart.focus = v; readOut(); } };
      button.addEventListener("mouseenter", stand(run));
      button.addEventListener("mouseleave", stand(null));
      list.append(button);
    }
  }

  chips("");
  draw();
}

report();
