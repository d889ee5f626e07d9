// The list of runs: sorted, filtered, grouped; and the ones that are chosen, over each other.
import { Chart, swatch } from "./chart.js";
import { ask, el, setText } from "./dom.js";
import { hear, runs } from "./live.js";
import { here, link, note } from "./place.js";
import { ago, amount, score, short, signed } from "./words.js";

const PAGE = 200, MOST = 12;
const COLUMNS = [
  ["name", "Run", "", (r) => r.name.toLowerCase()],
  ["status", "Status", "", (r) => r.status],
  ["step", "Step", "hide-narrow", (r) => r.step],
  ["compute", "Compute", "hide-phone", (r) => r.compute],
  ["pass", "Pass rate", "", (r) => r.pass_rate],
  ["ceiling", "Ceiling", "", (r) => r.forecast && !r.forecast.alarm ? (r.forecast.identified ? r.forecast.A : r.forecast.A - 10) : null],
  ["gain", "Next doubling", "hide-narrow", (r) => r.forecast ? r.forecast.next_doubling.gain : null],
  ["changed", "Changed", "hide-narrow", (r) => r.changed],
];

export function listView(main) {
  const state = read();
  const rows = new Map();
  let shown = PAGE, chart = null, asked = 0, timer = null;

  const search = el("input", { type: "search", placeholder: "find a run", "aria-label": "Find a run", value: state.q, oninput: () => { state.q = search.value; shown = PAGE; keep(); order(); } });
  const group = el("button", { type: "button", "aria-pressed": String(state.group), onclick: () => { state.group = !state.group; group.setAttribute("aria-pressed", String(state.group)); keep(); order(); } }, "group by recipe");
  const clear = el("button", { type: "button", hidden: true, onclick: () => { state.with.clear(); keep(); order(); overlay(); } }, "clear choice");
  const count = el("span", { class: "small", role: "status" });
  const over = el("section", { "aria-labelledby": "over", hidden: true });
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
    over,
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
    };
  }

  function keep() {
    note("runs", "", { q: state.q, sort: state.sort, down: state.down, group: state.group, with: [...state.with].join(","), axis: state.axis, linear: state.linear });
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
    if (words.length) list = list.filter((r) => { const text = `${r.name} ${r.where} ${r.group || ""} ${r.status} ${r.forecast?.alarm ? "alarm" : ""}`.toLowerCase(); return words.every((w) => text.includes(w)); });
    const column = COLUMNS.find(([key]) => key === state.sort);
    const sign = state.down ? -1 : 1;
    const plain = (a, b) => a.where.localeCompare(b.where, undefined, { numeric: true }) || a.name.localeCompare(b.name, undefined, { numeric: true });
    const live = (r) => r.status === "running" || r.status === "growing" ? 0 : 1;
    list.sort((a, b) => {
      if (state.group) { const g = (a.group || "").localeCompare(b.group || ""); if (g) return g; }
      if (!column) return live(a) - live(b) || plain(a, b);
      const x = column[3](a), y = column[3](b);
      // What has no number stands last, whichever way the others go.
      if (x === null || x === undefined || y === null || y === undefined) return ((x ?? null) === null) - ((y ?? null) === null) || plain(a, b);
      return sign * (typeof x === "string" ? x.localeCompare(y) : x - y) || plain(a, b);
    });
    return list;
  }

  function order() {
    const list = chosen(), visible = list.slice(0, shown);
    const out = [];
    let last = null;
    for (const run of visible) {
      if (state.group && run.group !== last) {
        last = run.group;
        const mates = list.filter((r) => r.group === last).length;
        out.push(el("tr", { class: "grouped" }, el("th", { colspan: COLUMNS.length + 1, scope: "rowgroup" }, `${last || "no recipe"} (${mates})`)));
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
    empty.hidden = runs.size > 0;
    if (!runs.size) sayEmpty();
  }

  async function sayEmpty() {
    const about = await ask("/api/about").catch(() => null);
    if (runs.size || !about) return;
    empty.replaceChildren(
      el("p", {}, el("b", {}, "No runs yet"), ` under ${about.directories.join(", ")}. What comes is shown here by itself.`),
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
    const status = el("span", { class: "status" }), waits = el("span", { class: "small" });
    const bar = el("span", { class: "progress", hidden: true }, el("span"));
    const step = el("td", { class: "num hide-narrow" }), compute = el("td", { class: "num hide-phone" });
    const pass = el("td", { class: "num" }), ceiling = el("td"), gain = el("td", { class: "num hide-narrow" });
    const changed = el("td", { class: "num hide-narrow small" });
    const node = el("tr", {}, el("td", { class: "pick" }, pick), el("th", { scope: "row", class: "run-cell" }, name, where, sparks),
      el("td", {}, status, bar, waits), step, compute, pass, ceiling, gain, changed);
    let before = "";
    function update(r) {
      const now = JSON.stringify([r.version, r.status, r.step, r.waits_for, r.forecast, r.problem, r.budget, r.warnings, state.with.has(r.id)]);
      setText(changed, ago(r.changed));
      if (now === before) return;
      before = now;
      pick.checked = state.with.has(r.id);
      pick.setAttribute("aria-label", `Show ${r.name} in the chart`);
      setText(name, short(r.name, 60));
      setText(where, short(r.where, 60) + (r.group && r.group !== r.name ? ` · ${short(r.group, 40)}` : ""));
      status.className = `status ${r.status}`;
      setText(status, r.status);
      setText(waits, r.waits_for ? `waits for ${short(r.waits_for, 60)}` : r.why ? short(r.why, 60) : "");
      bar.hidden = !r.budget;
      if (r.budget) { bar.firstChild.style.width = `${100 * r.budget.share}%`; bar.title = r.budget.text; }
      setText(step, r.step === null ? "" : r.step.toLocaleString("en"));
      setText(compute, r.compute === null ? "" : `${amount(r.compute)} ${r.unit}`);
      setText(pass, score(r.pass_rate));
      const f = r.forecast;
      ceiling.replaceChildren();
      if (f) ceiling.append(f.alarm ? el("span", { class: "flag", title: f.alarm }, "alarm") : f.ceiling, el("span", { class: "range" }, f.alarm ? "in decline" : f.range));
      else ceiling.append(el("span", { class: "range" }, r.problem ? short(r.problem, 80) : r.points ? "…" : "no points yet"));
      if (r.warnings) ceiling.append(el("span", { class: "flag" }, `${r.warnings} warning${r.warnings === 1 ? "" : "s"}`));
      setText(gain, f ? signed(f.next_doubling.gain) : "");
      sparks.firstChild.setAttribute("d", path(r.spark));
    }
    return { node, update };
  }

  function toggle(id, on) {
    if (on) state.with.add(id); else state.with.delete(id);
    while (state.with.size > MOST) state.with.delete([...state.with][0]);
    keep();
    order();
    overlay();
  }

  // ---- several runs over each other, and the verdict on them
  async function overlay() {
    const ids = [...state.with].filter((id) => runs.has(id));
    over.hidden = !ids.length;
    if (!ids.length) { chart?.close(); chart = null; over.replaceChildren(); return; }
    const turn = ++asked;
    if (!chart) {
      const box = el("div", { id: "overlay" });
      over.replaceChildren(
        el("h2", { class: "tight", id: "over" }, "Chosen runs"), el("p", { class: "lead" }), el("p", { class: "said", role: "status" }), box, el("ul", { class: "names" }),
        el("div", { class: "tools", role: "toolbar", "aria-label": "Chart" },
          el("button", { type: "button", class: "log", onclick: () => { state.linear = !state.linear; keep(); overlay(); } }, "log axis"),
          el("label", {}, "compute", el("select", { class: "axis", "aria-label": "Kind of compute", onchange: (e) => { state.axis = e.target.value; keep(); overlay(); } })),
          el("span", { class: "gap" }), el("span", { class: "exports" })),
      );
      chart = new Chart(box, { height: 340, label: "Pass rate against compute of the chosen runs" });
      window.overlayChart = chart;
    }
    over.querySelector(".log").setAttribute("aria-pressed", String(!state.linear));
    try {
      const question = { runs: ids, ...(state.axis ? { axis: state.axis } : {}) };
      const [found, first] = await Promise.all([ask("/api/compare", question), ask(`/api/runs/${ids[0]}`)]);
      if (turn !== asked || !chart) return;
      const axis = over.querySelector(".axis");
      axis.replaceChildren(el("option", { value: "" }, "as recorded"), ...first.axes.map((a) => el("option", { value: a.name }, a.label)));
      axis.value = state.axis;
      over.querySelector(".said").textContent = found.left_out.join(" ");
      over.querySelector(".lead").textContent = found.words.slice(0, 3).join(" ") + (found.words.length > 3 ? ` (${found.words.length - 3} more pairs)` : "");
      chart.show(found.runs.map((r, i) => ({ ...r, colour: i, ceiling: null })), {}, !state.linear);
      over.querySelector(".names").replaceChildren(...found.runs.map((r, i) => el("li", {}, swatch(i), el("a", { href: link("run", r.id) }, short(r.name, 50)), ` ${r.alarm ? "alarm: in decline" : r.A === null ? "ceiling not identified" : `ceiling ${score(r.A)}`}`)));
      const query = ids.map((id) => `run=${id}`).join("&") + (state.axis ? `&axis=${encodeURIComponent(state.axis)}` : "");
      over.querySelector(".exports").replaceChildren(...["figure.png", "figure.svg", "report.zip"].map((file) => el("a", { class: "button", href: `/api/export/${file}?${query}`, download: true }, `${file.split(".")[1].toUpperCase()} `)));
    } catch (error) {
      if (turn === asked) over.querySelector(".said").textContent = error.told ? error.message : "";
    }
  }

  function later() {
    if (timer) return;
    timer = setTimeout(() => { timer = null; order(); }, 400);
  }
  let due = null;
  const stop = hear((news) => {
    if (news.kind === "gone") rows.delete(news.id);
    if (news.kind === "all") order(); else later();
    if (state.with.has(news.run?.id) && "from" in news && !due) due = setTimeout(() => { due = null; overlay(); }, 1500);
    if (news.kind === "back" || news.kind === "all") overlay();
  });
  const clock = setInterval(() => { for (const run of runs.values()) rows.get(run.id)?.update(run); }, 10000);
  order();
  if (runs.size) overlay();
  return { close() { stop(); clearInterval(clock); clearTimeout(timer); clearTimeout(due); chart?.close(); }, find() { search.focus(); } };
}

function path(values) {
  if (values.length < 2) return "";
  const low = Math.min(...values), span = Math.max(Math.max(...values) - low, 1e-6);
  return values.map((v, i) => `${i ? "L" : "M"}${(1 + 70 * i / (values.length - 1)).toFixed(1)} ${(22 - 20 * (v - low) / span).toFixed(1)}`).join("");
}
