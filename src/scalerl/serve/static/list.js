// The list of runs: sorted, filtered, grouped; and the ones that are chosen, over each other.
import { amount, el, short } from "./base.js";
import { ask, setText } from "./dom.js";
import { hear, received, runs } from "./live.js";
import { overlay } from "./overlay.js";
import { here, link, note } from "./place.js";
import { ago, parse, score, signed, waits } from "./words.js";

const PAGE = 200, MOST = 12;
const collator = new Intl.Collator(undefined, { numeric: true });
// Key, head, where it is hidden, and what is sorted by.
const COLUMNS = [
  ["name", "Run", "", (r) => r.name.toLowerCase()],
  ["status", "Status", "", (r) => r.status],
  ["step", "Step", "hide-narrow", (r) => r.step],
  ["compute", "Compute", "hide-phone", (r) => r.compute],
  ["pass", "Pass rate", "", (r) => r.pass_rate],
  ["ceiling", "Ceiling", "", (r) => r.forecast && !r.forecast.alarm ? (r.forecast.identified ? r.forecast.A : r.forecast.A - 10) : null],
  ["gain", "Next doubling", "hide-narrow", (r) => r.forecast ? r.forecast.next_doubling.gain : null],
  ["alarms", "Alarms", "hide-narrow", (r) => (r.forecast?.alarm ? 1000 : 0) + r.warnings || null],
  ["changed", "Changed", "hide-narrow", (r) => r.changed],
];

export function listView(main) {
  const state = read();
  const rows = new Map();
  let shown = PAGE, timer = null;

  const search = el("input", { type: "search", placeholder: "find a run", "aria-label": "Find a run", value: state.q, oninput: () => { state.q = search.value; shown = PAGE; keep(); order(); } });
  const group = el("button", { type: "button", "aria-pressed": String(state.group), onclick: () => { state.group = !state.group; group.setAttribute("aria-pressed", String(state.group)); keep(); order(); } }, "group by recipe");
  const clear = el("button", { type: "button", hidden: true, onclick: () => choose([]) }, "clear choice");
  const count = el("span", { class: "small", role: "status" });
  const drawn = el("section", { "aria-labelledby": "over", hidden: true });
  const over = overlay(drawn, state, keep);
  const head = el("tr", {}, el("th", { class: "pick", scope: "col" }, el("span", { class: "skip" }, "Show in the chart")));
  for (const [key, label, hide] of COLUMNS) {
    const th = el("th", { scope: "col", class: hide, "data-key": key }, el("button", { type: "button", class: "sort", onclick: () => sortBy(key) }, label));
    head.append(th);
  }
  const body = el("tbody");
  const table = el("table", {}, el("caption", { class: "skip" }, "Runs"), el("thead", {}, head), body);
  const more = el("button", { type: "button", hidden: true, onclick: () => { shown += 5 * PAGE; order(); } });
  const empty = el("div", { class: "empty", hidden: true });
  main.replaceChildren(
    el("h1", {}, "Runs"),
    drawn,
    el("div", { class: "tools", role: "toolbar", "aria-label": "List" }, search, group, clear, el("span", { class: "gap" }), count),
    empty,
    el("div", { class: "list" }, table), more,
  );

  function read() {
    const { params } = here();
    return {
      q: params.get("q") || "", sort: params.get("sort") || "", down: params.get("down") === "1",
      group: params.get("group") === "1", with: new Set((params.get("with") || "").split(",").filter(Boolean).slice(0, MOST)),
      axis: params.get("axis") || "", linear: params.get("linear") === "1",
      ...Object.fromEntries(["from", "to", "budget"].map((k) => [k, number(params.get(k))])),
    };
  }

  function keep() {
    note("runs", "", { q: state.q, sort: state.sort, down: state.down, group: state.group, with: [...state.with].join(","), axis: state.axis, linear: state.linear, ...(state.with.size ? { from: state.from, to: state.to, budget: state.budget } : {}) });
  }

  function sortBy(key) {
    const first = key === "name" || key === "status" ? false : true;
    if (state.sort !== key) { state.sort = key; state.down = first; }
    else if (state.down === first) state.down = !first;
    else { state.sort = ""; state.down = false; }
    keep();
    order();
  }

  function chosen() {
    const words = state.q.toLowerCase().split(/\s+/).filter(Boolean);
    let list = [...runs.values()];
    if (words.length) list = list.filter((r) => { const text = `${r.name} ${r.where} ${r.group || ""} ${r.status} ${waits(r)} ${r.forecast?.alarm ? "alarm" : ""} ${r.warnings ? "warning" : ""}`.toLowerCase(); return words.every((w) => text.includes(w)); });
    const column = COLUMNS.find(([key]) => key === state.sort);
    const sign = state.down ? -1 : 1;
    const plain = (a, b) => collator.compare(a.where, b.where) || collator.compare(a.name, b.name);
    const live = (r) => r.status === "running" || r.status === "growing" ? 0 : 1;
    list.sort((a, b) => {
      if (state.group) { const g = !a.group - !b.group || collator.compare(a.group || "", b.group || ""); if (g) return g; }
      if (!column) return live(a) - live(b) || plain(a, b);
      const x = column[3](a), y = column[3](b);
      // What has no number stands last, whichever way the others go.
      if (x === null || x === undefined || y === null || y === undefined) return ((x ?? null) === null) - ((y ?? null) === null) || plain(a, b);
      return sign * (typeof x === "string" ? collator.compare(x, y) : x - y) || plain(a, b);
    });
    return list;
  }

  function order() {
    const list = chosen(), visible = list.slice(0, shown);
    const out = [];
    let last;
    for (const run of visible) {
      if (state.group && run.group !== last) {
        last = run.group;
        const mates = list.filter((r) => r.group === last);
        out.push(el("tr", { class: "grouped" }, el("th", { colspan: COLUMNS.length + 1, scope: "rowgroup" }, `${last || "no recipe"} (${mates.length}) `, mates.length > MOST ? "" : el("button", { type: "button", onclick: () => choose(mates.map((r) => r.id)) }, "draw these"))));
      }
      out.push(rowOf(run).node);
    }
    const same = body.children.length === out.length && !state.group && out.every((node, i) => body.children[i] === node);
    if (!same) body.replaceChildren(...out);
    for (const th of head.querySelectorAll("[data-key]")) {
      if (th.dataset.key === state.sort) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
    more.hidden = list.length <= shown;
    setText(more, `show ${Math.min(list.length - shown, 5 * PAGE)} more`);
    setText(count, list.length === runs.size ? `${runs.size} run${runs.size === 1 ? "" : "s"}` : `${list.length} of ${runs.size} runs`);
    clear.hidden = !state.with.size;
    table.hidden = !runs.size;
    empty.hidden = runs.size > 0 || !received.list;
    if (!empty.hidden) sayEmpty();
  }

  async function sayEmpty() {
    const about = await ask("/api/about").catch(() => null);
    if (runs.size || !about) return;
    empty.replaceChildren(
      el("p", {}, el("b", {}, "No runs yet"), ` under ${about.directories.join(", ")}. New runs appear here by themselves.`),
      about.problem ? el("p", { class: "said" }, about.problem) : "",
      el("p", {}, "Start one: "), el("pre", {}, el("code", {}, "scalerl train scalerl tiny --out DIR/first")),
      el("p", {}, "or put a log there: a TensorBoard directory, a W&B offline folder, trainer_state.json, CSV or JSON Lines with a column of steps and one of scores."),
    );
  }

  function rowOf(run) {
    let row = rows.get(run.id);
    if (!row) { row = makeRow(run); rows.set(run.id, row); }
    row.update(run);
    return row;
  }

  function makeRow(run) {
    const pick = el("input", { type: "checkbox", onchange: () => toggle(run.id, pick.checked) });
    const name = el("a", { href: link("run", run.id) });
    const where = el("span", { class: "small" });
    const sparks = el("*svg", { width: 72, height: 24, "aria-hidden": "true" }, el("*path", { class: "sparkline" }));
    const status = el("span", { class: "status" }), doing = el("span", { class: "small" });
    const bar = el("span", { class: "progress", hidden: true }, el("span"));
    const step = el("td", { class: "num hide-narrow" }), compute = el("td", { class: "num hide-phone" });
    const pass = el("td", { class: "num" }), ceiling = el("td", { class: "ceiling" }), gain = el("td", { class: "num hide-narrow" });
    const alarms = el("td", { class: "hide-narrow" }), flags = el("span", { class: "only-narrow" });
    const changed = el("td", { class: "num hide-narrow small" });
    const node = el("tr", {}, el("td", { class: "pick" }, pick), el("th", { scope: "row", class: "run-cell" }, name, where, sparks),
      el("td", {}, status, bar, doing, flags), step, compute, pass, ceiling, gain, alarms, changed);
    let before = "";
    function update(r) {
      const now = JSON.stringify([r.version, r.status, r.step, r.waits_for, r.why, r.forecast, r.problem, r.budget, r.warnings, state.with.has(r.id)]);
      setText(changed, ago(r.changed));
      if (now === before) return;
      before = now;
      pick.checked = state.with.has(r.id);
      pick.setAttribute("aria-label", `Show ${r.name} in the chart`);
      setText(name, short(r.name, 60));
      name.title = r.name;
      const folder = r.where.endsWith(`/${r.name}`) ? r.where.slice(0, -r.name.length - 1) : r.where;
      setText(where, short(folder, 60) + (r.group && r.group !== r.name ? ` · ${short(r.group, 40)}` : ""));
      where.title = r.where;
      status.className = `status ${r.status}`;
      setText(status, r.status);
      setText(doing, short(waits(r) || r.why || "", 90));
      doing.title = r.why || "";
      doing.classList.toggle("line", r.status === "ended");
      bar.hidden = !r.budget || r.status === "ended";
      if (r.budget) { bar.firstChild.style.width = `${100 * r.budget.share}%`; bar.title = r.budget.text; }
      setText(step, r.step === null ? "" : r.step.toLocaleString("en"));
      compute.replaceChildren(...(r.compute === null ? [] : [amount(r.compute), el("span", { class: "range" }, r.unit)]));
      setText(pass, score(r.pass_rate));
      const f = r.forecast;
      ceiling.replaceChildren();
      if (f) ceiling.append(f.ceiling, el("span", { class: "range" }, f.range));
      else ceiling.append(el("span", { class: "range", title: r.problem || "" }, r.problem ? short(r.problem, 110) : r.points ? "being fitted…" : "no points yet"));
      for (const each of [alarms, flags]) {
        each.replaceChildren();
        if (f?.alarm) each.append(el("span", { class: "flag", title: f.alarm }, "alarm"));
        if (r.warnings) each.append(el("span", { class: "flag mild" }, `${r.warnings} warning${r.warnings === 1 ? "" : "s"}`));
      }
      setText(gain, f ? signed(f.next_doubling.gain) : "");
      sparks.firstChild.setAttribute("d", path(r.spark));
    }
    return { node, update };
  }

  function toggle(id, on) { choose(on ? [...state.with, id] : [...state.with].filter((each) => each !== id)); }

  function choose(ids) {
    state.with = new Set(ids.slice(-MOST));
    keep();
    order();
    over.show();
  }

  function later() {
    if (timer) return;
    timer = setTimeout(() => { timer = null; order(); }, 400);
  }
  let due = null;
  const stop = hear((news) => {
    if (news.kind === "gone") rows.delete(news.id);
    if (news.kind === "all" || news.kind === "back") order(); else later();
    if (state.with.has(news.run?.id) && "from" in news && !due) due = setTimeout(() => { due = null; if (!over.held) over.show(); }, 1500);
    if (news.kind === "back" || news.kind === "all") over.show();
  });
  const clock = setInterval(() => { for (const run of runs.values()) rows.get(run.id)?.update(run); }, 10000);
  order();
  if (runs.size) over.show();
  return { close() { stop(); clearInterval(clock); clearTimeout(timer); clearTimeout(due); over.close(); }, find() { search.focus(); } };
}

const number = (text) => { const v = parse(text || ""); return Number.isFinite(v) ? v : null; };

function path(values) {
  if (values.length < 2) return "";
  const low = Math.min(...values), span = Math.max(Math.max(...values) - low, 1e-6);
  return values.map((v, i) => `${i ? "L" : "M"}${(1 + 70 * i / (values.length - 1)).toFixed(1)} ${(22 - 20 * (v - low) / span).toFixed(1)}`).join("");
}
