// The list of runs: sorted, filtered, grouped by recipe; and the ones that are chosen, over each
// other.
import { el } from "./base.js";
import { annotateTools, savedViews } from "./annotate.js";
import { ask, setText } from "./dom.js";
import { matches, parsed } from "./filter.js";
import { groupOf, summary } from "./groups.js";
import { hear, received, runs } from "./live.js";
import { overlay } from "./overlay.js";
import { here, link, note } from "./place.js";
import { allKeys, differing, fullKey, hasRecipe, loadRecipes, shortKey, telling, valueOf } from "./recipes.js";
import { COLUMNS, RECIPE_WIDTH, groupRow, runRow } from "./rows.js";
import { parse } from "./words.js";

// Lines at first; runs that are drawn together, each by itself or as seeds of recipes; columns of
// the recipe that are shown where none were chosen.
const PAGE = 100, MOST = 12, MOST_POOLED = 24, MOST_COLUMNS = 6;
// Milliseconds that the first drawing waits for the recipes, so that no column comes in later.
const WAIT = 400;
const collator = new Intl.Collator(undefined, { numeric: true });

export function listView(main) {
  const state = read();
  const rows = new Map(), groups = new Map();
  let shown = PAGE, timer = null, ready = false, recipeTimer = null;
  // Asked for beside the list of runs, and not after it.
  const coming = loadRecipes().catch(() => {});

  const search = el("input", { type: "search", placeholder: "find a run, or lr>1e-4", "aria-label": "Find a run", title: "Words, and conditions such as optimiser.lr=2e-4, seed!=0, pass>0.6, tag=best, name=loo-*", value: state.q, oninput: () => { state.q = search.value; shown = PAGE; keep(); order(); } });
  const group = el("button", { type: "button", "aria-pressed": String(state.group), onclick: () => { state.group = !state.group; group.setAttribute("aria-pressed", String(state.group)); keep(); order(); } }, "group by recipe");
  const veiled = el("button", { type: "button", hidden: true, onclick: () => { state.hidden = !state.hidden; keep(); order(); } });
  const picker = el("div", { class: "choices" });
  const columns = el("details", { class: "menu", ontoggle: () => { if (columns.open) offer(); } }, el("summary", {}, "columns"), picker);
  const count = el("span", { class: "small", role: "status" });
  const marks = annotateTools(() => [...state.with].filter((id) => runs.has(id)), order);
  const steps = el("a", { class: "button" }, "step metrics");
  const chosenBar = el("div", { class: "tools chosen-tools", role: "toolbar", "aria-label": "Chosen runs", hidden: true },
    el("button", { type: "button", onclick: () => choose([]) }, "clear choice"), steps, marks.node);
  const drawn = el("section", { "aria-labelledby": "over", hidden: true });
  const over = overlay(drawn, state, keep, { most: MOST, mostPooled: MOST_POOLED });
  const head = el("tr");
  const body = el("tbody");
  const table = el("table", {}, el("caption", { class: "skip" }, "Runs"), el("thead", {}, head), body);
  const more = el("button", { type: "button", hidden: true, onclick: () => { shown += 5 * PAGE; order(); } });
  const empty = el("div", { class: "empty", hidden: true });
  main.replaceChildren(
    el("h1", { class: "skip" }, "Runs"),
    drawn,
    el("div", { class: "tools", role: "toolbar", "aria-label": "List" }, search, group, veiled, columns, savedViews(), el("span", { class: "gap" }), count),
    chosenBar, empty,
    el("div", { class: "list" }, table), more,
  );

  function read() {
    const { params } = here(), seeds = params.get("seeds") === "1";
    const list = (name) => (params.get(name) || "").split(",").filter(Boolean);
    return {
      q: params.get("q") || "", sort: params.get("sort") || "", down: params.get("down") === "1", seeds,
      group: params.get("group") === "1", with: new Set(list("with").slice(0, seeds ? MOST_POOLED : MOST)),
      hidden: params.get("hidden") === "1", cols: params.has("cols") ? list("cols") : null, open: new Set(list("open")), columns: [], recipes: 0,
      axis: params.get("axis") || "", linear: params.get("linear") === "1",
      ...Object.fromEntries(["from", "to", "budget"].map((k) => [k, number(params.get(k))])),
    };
  }

  function keep() {
    note("runs", "", {
      q: state.q, sort: state.sort, down: state.down, group: state.group, hidden: state.hidden, seeds: state.seeds,
      cols: state.cols === null ? null : state.cols.join(",") || "-", open: [...state.open].join(","), with: [...state.with].join(","), axis: state.axis, linear: state.linear,
      ...(state.with.size ? { from: state.from, to: state.to, budget: state.budget } : {}),
    });
  }

  // ---- columns of the recipe
  function offer() {
    const differ = new Set(differing([...runs.keys()])), keys = allKeys();
    const sorted = [...keys.filter((k) => differ.has(k)), ...keys.filter((k) => !differ.has(k))];
    const find = el("input", { type: "search", placeholder: "find a key", "aria-label": "Find a key of the recipe", oninput: () => fill() });
    const list = el("div", { class: "options" });
    const fill = () => list.replaceChildren(...sorted.filter((k) => k.includes(find.value)).slice(0, 60).map((key) => {
      const box = el("input", { type: "checkbox", onchange: () => { const now = new Set(state.columns); if (box.checked) now.add(key); else now.delete(key); state.cols = [...now]; keep(); order(); } });
      box.checked = state.columns.includes(key);
      return el("label", {}, box, key, differ.has(key) ? "" : el("span", { class: "small" }, " (the same)"));
    }));
    picker.replaceChildren(find, el("button", { type: "button", onclick: () => { state.cols = null; keep(); order(); offer(); } }, "those that differ"), list);
    fill();
  }

  function chooseColumns(list) {
    const wanted = state.cols === null
      ? telling(list.map((r) => r.id).filter(hasRecipe), MOST_COLUMNS).filter((key) => key !== "seed" || !state.group)
      : state.cols.map(fullKey).filter(Boolean);
    if (head.children.length && wanted.join() === state.columns.join()) return;
    state.columns = wanted;
    const heads = COLUMNS.map(([key, label, hide]) => [key, label, hide, ""]);
    heads.push(...wanted.map((key) => [`recipe:${key}`, shortKey(key, wanted), "knob hide-narrow", key]));
    head.replaceChildren(el("th", { class: "pick", scope: "col" }, el("span", { class: "skip" }, "Show in the chart")),
      ...heads.map(([key, label, hide, title]) => el("th", { scope: "col", class: hide, "data-key": key, title: title || null }, el("button", { type: "button", class: "sort", onclick: () => sortBy(key) }, label))),
      el("td", { class: "filler" }));
    // Fixed widths: a column that comes in moves no other.
    const width = 1.8 + COLUMNS.reduce((sum, column) => sum + column[4], 0) + RECIPE_WIDTH * wanted.length;
    table.style.setProperty("--least", `${width}rem`);
  }

  // ---- order
  function sortBy(key) {
    const first = !(key === "name" || key === "status");
    if (state.sort !== key) { state.sort = key; state.down = first; }
    else if (state.down === first) state.down = !first;
    else { state.sort = ""; state.down = false; }
    keep();
    order();
  }

  const sorting = () => {
    if (state.sort.startsWith("recipe:")) return (r) => valueOf(r.id, state.sort.slice(7));
    return COLUMNS.find(([key]) => key === state.sort)?.[3];
  };

  function chosen() {
    const query = parsed(state.q), asks = query.conditions.some((c) => c.key === "hidden");
    const list = [...runs.values()].filter((r) => (state.hidden || asks || !r.hidden) && matches(query, r));
    const value = sorting(), sign = state.down ? -1 : 1;
    const plain = (a, b) => collator.compare(a.where, b.where) || collator.compare(a.name, b.name);
    const live = (r) => r.status === "running" || r.status === "growing" ? 0 : 1;
    return list.sort((a, b) => b.pinned - a.pinned || (value ? compare(value(a), value(b), sign) : live(a) - live(b)) || plain(a, b));
  }

  // Groups in the order of their first run, or by the mean of what is sorted by.
  function grouped(list) {
    const found = new Map();
    for (const run of list) { const key = groupOf(run); if (!found.has(key)) found.set(key, []); found.get(key).push(run); }
    const made = [...found.entries()];
    const means = { pass: "pass", ceiling: "ceiling", gain: "gain", compute: "compute", step: "step" }[state.sort];
    const at = (mates) => means ? summary(mates)[means]?.mean ?? null : null;
    const sign = state.down ? -1 : 1;
    // Runs without a recipe or a group stand last, each by itself.
    return made.sort(([a, x], [b, y]) => !a - !b || (means ? compare(at(x), at(y), sign) : 0));
  }

  function order() {
    if (!ready) return;
    const list = chosen(), out = [];
    chooseColumns(list);
    if (state.group) {
      for (const [key, mates] of grouped(list).slice(0, shown)) {
        if (key) { const line = groupOfRow(key); line.update(mates, state, state.seeds ? MOST_POOLED : MOST); line.mates = mates; out.push(line.node); }
        if (!key || state.open.has(key)) out.push(...mates.map((run) => rowOf(run).node));
      }
    } else out.push(...list.slice(0, shown).map((run) => rowOf(run).node));
    const same = body.children.length === out.length && out.every((node, i) => body.children[i] === node);
    if (!same) body.replaceChildren(...out);
    for (const th of head.querySelectorAll("[data-key]")) {
      if (th.dataset.key === state.sort) th.setAttribute("aria-sort", state.down ? "descending" : "ascending");
      else th.removeAttribute("aria-sort");
    }
    more.hidden = list.length <= shown;
    setText(more, `show ${Math.min(list.length - shown, 5 * PAGE)} more`);
    setText(count, list.length === runs.size ? `${runs.size} run${runs.size === 1 ? "" : "s"}` : `${list.length} of ${runs.size} runs`);
    const away = [...runs.values()].filter((r) => r.hidden).length;
    veiled.hidden = !away;
    veiled.setAttribute("aria-pressed", String(state.hidden));
    setText(veiled, `${away} hidden`);
    chosenBar.hidden = !state.with.size;
    steps.href = link("metrics", "", { with: [...state.with].join(","), seeds: state.seeds });
    marks.update();
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
    if (!row) { row = runRow(run, state, toggle); rows.set(run.id, row); }
    row.update(run);
    return row;
  }

  function groupOfRow(key) {
    let line = groups.get(key);
    if (!line) {
      const mates = () => groups.get(key).mates.map((r) => r.id);
      line = groupRow(key, {
        open: (k) => state.open.has(k),
        draw: () => choose(mates()),
        toggle: (k) => { if (!state.open.delete(k)) state.open.add(k); keep(); order(); },
        pickAll: (on) => choose([...[...state.with].filter((id) => !mates().includes(id)), ...(on ? mates() : [])]),
      });
      groups.set(key, line);
    }
    return line;
  }

  function toggle(id, on) { choose(on ? [...state.with, id] : [...state.with].filter((each) => each !== id)); }

  function choose(ids) {
    state.with = new Set(ids.slice(-(state.seeds ? MOST_POOLED : MOST)));
    keep();
    order();
    over.show();
  }

  // ---- as it goes
  function later() {
    if (timer) return;
    timer = setTimeout(() => { timer = null; order(); }, 400);
  }

  // Recipes are asked for again when a run has another one than before.
  const allRecipes = () => [...runs.values()].map((r) => r.recipe_id || "").join();
  let knownRecipes = null;
  async function recipes() {
    recipeTimer = null;
    const now = allRecipes(), lacks = [...runs.values()].some((r) => r.recipe_id && !hasRecipe(r.id));
    if (now === knownRecipes && !lacks) return;
    knownRecipes = now;
    await loadRecipes().catch(() => {});
    state.recipes++;
    order();
  }
  async function first() {
    if (!received.list) return;
    knownRecipes = allRecipes();
    await Promise.race([coming, new Promise((done) => setTimeout(done, WAIT))]);
    ready = true;
    order();
  }

  let due = null;
  const stop = hear((news) => {
    if (news.kind === "gone") rows.delete(news.id);
    if (news.kind === "all") first();
    else if (news.kind === "back") order(); else later();
    if (ready && !recipeTimer) recipeTimer = setTimeout(recipes, 1000);
    if (state.with.has(news.run?.id) && "from" in news && !due) due = setTimeout(() => { due = null; if (!over.held) over.show(); }, 1500);
    if (news.kind === "back" || news.kind === "all") over.show();
  });
  const clock = setInterval(() => { for (const run of runs.values()) rows.get(run.id)?.update(run); }, 10000);
  first();
  if (runs.size || state.with.size) over.show();
  return { close() { stop(); clearInterval(clock); clearTimeout(timer); clearTimeout(due); clearTimeout(recipeTimer); over.close(); }, find() { search.focus(); } };
}

// What has no value stands last, whichever way the others go.
function compare(x, y, sign) {
  const none = (v) => v === null || v === undefined;
  if (none(x) || none(y)) return none(x) - none(y);
  return sign * (typeof x === "number" && typeof y === "number" ? x - y : collator.compare(String(x), String(y)));
}

const number = (text) => { const v = parse(text || ""); return Number.isFinite(v) ? v : null; };
