// One line of the list: a run, or the seeds of a recipe together.
import { amount, el, short } from "./base.js";
import { setText } from "./dom.js";
import { meanSpark, summary } from "./groups.js";
import { link } from "./place.js";
import { shown, valueOf } from "./recipes.js";
import { ago, score, signed, waits } from "./words.js";

// Key, head, where it is hidden, what is sorted by, and its width in rem.
export const COLUMNS = [
  ["name", "Run", "", (r) => r.name.toLowerCase(), 17],
  ["status", "Status", "", (r) => r.status, 8],
  ["step", "Step", "hide-narrow", (r) => r.step, 3.6],
  ["compute", "Compute", "hide-phone", (r) => r.compute, 7],
  ["pass", "Pass rate", "", (r) => r.pass_rate, 6.4],
  ["ceiling", "Ceiling", "", (r) => r.forecast && !r.forecast.alarm ? (r.forecast.identified ? r.forecast.A : r.forecast.A - 10) : null, 9.6],
  ["gain", "Next doubling", "hide-narrow", (r) => r.forecast && !r.forecast.alarm ? r.forecast.next_doubling.gain : null, 7.4],
  ["alarms", "Alarms", "hide-narrow", (r) => (r.forecast?.alarm ? 1000 : 0) + r.warnings || null, 5.6],
  ["changed", "Changed", "hide-narrow", (r) => r.changed, 5.6],
];
// Width of a column with values of a recipe, in rem.
export const RECIPE_WIDTH = 5.4;

const warned = (n) => el("span", { class: "flag mild", title: `${n} warning${n === 1 ? "" : "s"}` }, `${n}⚠`, el("span", { class: "skip" }, ` warning${n === 1 ? "" : "s"}`));
const since = (seconds) => ago(seconds).replace(" ago", "");

// The cells that both kinds of lines have, in the order of COLUMNS.
function cells() {
  return {
    status: el("td", { class: "state" }), step: el("td", { class: "num hide-narrow" }), compute: el("td", { class: "num hide-phone" }),
    pass: el("td", { class: "num" }), ceiling: el("td", { class: "ceiling" }), gain: el("td", { class: "num hide-narrow" }),
    alarms: el("td", { class: "hide-narrow" }), changed: el("td", { class: "num hide-narrow small" }), filler: el("td", { class: "filler", "aria-hidden": "true" }),
  };
}

function recipeCells(node, filler, keys, value) {
  for (const old of [...node.querySelectorAll("td.knob")]) old.remove();
  for (const key of keys) {
    const text = shown(value(key));
    node.insertBefore(el("td", { class: "knob hide-narrow", title: `${key} = ${text}` }, text), filler);
  }
}

export function runRow(run, state, toggle) {
  const pick = el("input", { type: "checkbox", onchange: () => toggle(run.id, pick.checked) });
  const star = el("span", { class: "star", title: "pinned", hidden: true }, "★ "), name = el("a", { href: link("run", run.id) }), marks = el("span", { class: "tags" }), where = el("span", { class: "small" });
  const sparks = el("*svg", { width: 64, height: 20, "aria-hidden": "true" }, el("*path", { class: "sparkline" }));
  const status = el("span", { class: "status" }), doing = el("span", { class: "small" }), flags = el("span", { class: "only-narrow" });
  const bar = el("span", { class: "progress", hidden: true }, el("span"));
  const c = cells();
  c.status.append(el("div", { class: "one" }, status, bar, doing));
  const node = el("tr", {}, el("td", { class: "pick" }, pick), el("th", { scope: "row", class: "run-cell" }, el("div", { class: "one" }, star, name, flags, marks, where), sparks), ...Object.values(c));
  let before = "";
  function update(r) {
    setText(c.changed, since(r.changed));
    const now = JSON.stringify([r.version, r.status, r.step, r.waits_for, r.why, r.forecast, r.problem, r.budget, r.warnings, r.pinned, r.hidden, r.tags, r.note, state.with.has(r.id), state.columns, state.recipes]);
    if (now === before) return;
    before = now;
    node.classList.toggle("is-hidden", r.hidden);
    pick.checked = state.with.has(r.id);
    pick.setAttribute("aria-label", `Show ${r.name} in the chart`);
    setText(name, short(r.name, 60));
    name.title = `${r.name} in ${r.where}`;
    star.hidden = !r.pinned;
    marks.replaceChildren(...r.tags.map((tag) => el("span", { class: "tag" }, tag)), ...(r.note ? [el("span", { class: "tag", title: r.note }, "✎", el("span", { class: "skip" }, r.note))] : []));
    const folder = r.where.endsWith(`/${r.name}`) ? r.where.slice(0, -r.name.length - 1) : r.where;
    setText(where, folder);
    status.className = `status ${r.status}`;
    setText(status, r.status);
    // That a run ended with its budget is what was planned: its step says as much.
    const told = waits(r) || (r.status === "ended" && /^budget\b/.test(r.why || "") ? "" : r.why) || "";
    setText(doing, short(told, 90));
    c.status.title = waits(r) || r.why || "";
    bar.hidden = !r.budget || ["ended", "failed"].includes(r.status);
    if (r.budget) { bar.firstChild.style.width = `${100 * r.budget.share}%`; bar.title = r.budget.text; }
    setText(c.step, r.step === null ? "" : r.step.toLocaleString("en"));
    c.compute.replaceChildren(...(r.compute === null ? [] : [`${amount(r.compute)} `, el("span", { class: "range" }, r.unit)]));
    setText(c.pass, score(r.pass_rate));
    const f = r.forecast;
    c.ceiling.title = f ? `${f.ceiling}, ${f.range}` : r.problem || "";
    // "Open" as in the report: the points allow too many ceilings to quote one.
    if (f) c.ceiling.replaceChildren(`${f.alarm || f.identified ? f.ceiling : "open"} `, el("span", { class: "range" }, f.range));
    else c.ceiling.replaceChildren(el("span", { class: "range" }, r.problem ? short(r.problem, 110) : r.points ? "being fitted…" : "no points yet"));
    for (const each of [c.alarms, flags]) {
      each.replaceChildren();
      if (f?.alarm) each.append(el("span", { class: "flag", title: f.alarm }, "alarm"));
      if (r.warnings) each.append(warned(r.warnings));
    }
    setText(c.gain, f && !f.alarm ? signed(f.next_doubling.gain) : "");
    sparks.firstChild.setAttribute("d", line(r.spark, extent(r.spark)));
    recipeCells(node, c.filler, state.columns, (key) => valueOf(r.id, key));
  }
  return { node, update };
}

// The seeds of a recipe: means with the standard deviation between the seeds.
export function groupRow(key, { open, draw, toggle, pickAll }) {
  const title = el("span", { class: "title" }), count = el("span", { class: "small" });
  const more = el("button", { type: "button", class: "fold", onclick: () => toggle(key) }, title);
  const pick = el("input", { type: "checkbox", onchange: () => pickAll(pick.checked) });
  const over = el("button", { type: "button", class: "mini", "aria-label": "draw these", title: "draw these", onclick: draw }, "draw");
  const sparks = el("*svg", { width: 64, height: 20, "aria-hidden": "true" }, el("*path", { class: "spark-band" }), el("*path", { class: "sparkline" }));
  const c = cells();
  const node = el("tr", { class: "grouped" }, el("td", { class: "pick" }, pick), el("th", { scope: "row", class: "run-cell" }, el("div", { class: "one" }, more, " ", count, " ", over), sparks), ...Object.values(c));
  const both = (cell, found, text, unit = "") => {
    cell.title = found && found.sd !== null ? `mean of ${found.n} seeds, ± their standard deviation` : "";
    cell.replaceChildren(...(found ? [text(found.mean), unit, el("span", { class: "range" }, found.sd === null ? "" : ` ±${found.sd.toFixed(3).replace("0.", ".")}`)] : []));
  };
  function update(runs, state, most) {
    const s = summary(runs), name = runs[0].group || runs[0].name;
    setText(title, name);
    setText(count, `(${runs.length})`);
    more.setAttribute("aria-expanded", String(open(key)));
    over.hidden = runs.length > most;
    pick.checked = runs.every((r) => state.with.has(r.id));
    pick.disabled = runs.length > most;
    pick.setAttribute("aria-label", `Show the runs of ${name} in the chart`);
    setText(c.status, s.status);
    setText(c.step, s.step ? Math.round(s.step.high).toLocaleString("en") : "");
    c.compute.replaceChildren(...(s.compute && s.units.length === 1 ? [`${amount(s.compute.high)} `, el("span", { class: "range" }, s.units[0])] : []));
    both(c.pass, s.pass, score);
    both(c.ceiling, s.ceiling, score);
    if (!s.ceiling && s.open) c.ceiling.replaceChildren(el("span", { title: "the points allow too many ceilings to quote one" }, "open"));
    both(c.gain, s.gain, signed);
    c.alarms.replaceChildren(...(s.alarms ? [el("span", { class: "flag", title: "runs in decline" }, s.alarms > 1 ? `alarm ×${s.alarms}` : "alarm")] : []), ...(s.warnings ? [warned(s.warnings)] : []));
    setText(c.changed, since(s.changed));
    const spark = meanSpark(runs);
    const size = spark && extent([...spark.low, ...spark.high]);
    sparks.firstChild.setAttribute("d", spark && runs.length > 1 ? band(spark.low, spark.high, size) : "");
    sparks.lastChild.setAttribute("d", spark ? line(spark.mean, size) : "");
    recipeCells(node, c.filler, state.columns, (k) => { const all = new Set(runs.map((r) => shown(valueOf(r.id, k)))); return all.size === 1 ? [...all][0] : `${all.size} values`; });
  }
  return { node, update };
}

const extent = (values) => [Math.min(...values), Math.max(Math.max(...values) - Math.min(...values), 1e-6)];
const dot = (v, i, n, [low, span]) => `${(1 + 62 * i / Math.max(n - 1, 1)).toFixed(1)} ${(18 - 16 * (v - low) / span).toFixed(1)}`;
const line = (values, size) => values.length < 2 ? "" : values.map((v, i) => `${i ? "L" : "M"}${dot(v, i, values.length, size)}`).join("");
const band = (low, high, size) => `M${[...high.map((v, i) => dot(v, i, high.length, size)), ...low.map((v, i) => dot(v, i, low.length, size)).reverse()].join("L")}Z`;
