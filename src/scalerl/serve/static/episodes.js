// The episodes of a run: find them by what is known of them, and read them.
import { el, short } from "./base.js";
import { ask, setText } from "./dom.js";
import { counts, histogram } from "./episode_charts.js";
import { asked, filterBar, filtered, fromAddress } from "./episode_filters.js";
import { keys } from "./episode_keys.js";
import { episodeList, failed } from "./episode_list.js";
import { reader } from "./episode_reader.js";
import { hear, runs } from "./live.js";
import { here, link, note, push } from "./place.js";
import { tabs } from "./tabs.js";

// Episodes of one page of the list; and pages that are searched for the next failure.
const PAGE = 50;
const MOST_PAGES = 20;
// Milliseconds until an index that is still being built is asked again, and between two looks for
// new episodes.
const AGAIN = 300;
const LOOK = 4000;

export function episodesView(main, id) {
  const state = fromAddress(here().params), path = `/api/v1/runs/${id}/episodes`;
  let open = true, turn = 0, cursor = null, matched = 0, again = null, scrolled = 0;

  const title = el("h1", {}), said = el("p", { class: "said", role: "status" });
  const address = (episode) => link("episodes", id, { ...state, open: episode });
  const keep = () => note("episodes", id, state);
  const bar = filterBar(state, changed);
  const drawn = {
    reward: histogram("reward", ["reward_min", "reward_max"], false, state, changed),
    length: histogram("tokens", ["length_min", "length_max"], true, state, changed),
    step: histogram("step", ["step_from", "step_to"], true, state, changed),
  };
  const kinds = counts(state, changed);
  const list = episodeList({ address, choose, more, renew: () => load() });
  const pane = reader(id, state, { keep, leave, step, address });
  const board = keys({ j: () => step(1), k: () => step(-1), n: () => step(1, true), f: () => bar.focus(), g: () => pane.view("group"), v: () => pane.view("prompt"), e: () => pane.view(""), c: () => pane.nextColour() });
  const panes = el("div", { class: "panes" }, list.node, pane.node), empty = el("div", { class: "empty", hidden: true });
  const charts = el("div", { class: "charts" }, Object.values(drawn).map((each) => each.node), kinds.node);
  const help = el("button", { type: "button", class: "help", onclick: board.help }, "keys ", el("kbd", {}, "?"));
  const body = el("div", { class: "episodes" }, charts, bar.node, said, panes);
  main.replaceChildren(el("p", { class: "small" }, el("a", { href: "#/" }, "← all runs")), title, el("div", { class: "tabs-line" }, tabs(id, "episodes"), help), empty, body, board.dialog);
  name();

  function name() {
    const known = runs.get(id)?.name;
    setText(title, known ? short(known, 100) : "…");
    document.title = `Episodes of ${short(known || "a run", 40)} · scalerl`;
  }

  // ---- finding
  function changed() {
    bar.show();
    keep();
    load();
  }

  async function load(quietly = false) {
    const mine = ++turn;
    clearTimeout(again);
    if (!quietly) list.node.classList.add("busy");
    try {
      const [found, histograms, whole] = await Promise.all([ask(`${path}?${asked(state, { sort: state.sort, limit: PAGE })}`), ask(`${path}/histograms?${asked(state)}`), filtered(state) ? ask(`${path}/histograms`) : null]);
      if (mine !== turn || !open) return;
      ({ next: cursor, matched } = found);
      setText(said, (found.problems || []).join(" "));
      none(found);
      list.show(found, quietly ? "again" : "first");
      for (const [key, each] of Object.entries(drawn)) each.show(histograms[key]);
      kinds.show(histograms.by, (whole || histograms).by);
      if (!found.complete) again = setTimeout(() => load(true), AGAIN);
    } catch (error) {
      if (mine === turn && open) setText(said, error.fromServer ? error.message : "The server does not answer.");
    } finally { if (mine === turn) list.node.classList.remove("busy"); }
  }

  function none(found) {
    const nothing = found.total === 0 && found.complete;
    empty.hidden = !nothing;
    body.hidden = nothing;
    if (!nothing || empty.firstChild) return;
    empty.append(
      el("p", {}, el("b", {}, "No episodes are recorded"), " of this run. New ones appear here by themselves."),
      el("p", {}, "A run keeps some episodes of each step where its recipe says so:"),
      el("pre", {}, el("code", {}, "scalerl train scalerl tiny record.episodes_per_step=8 --out DIR")),
      el("p", { class: "small" }, "A log of another framework has a curve and no episodes."));
  }

  async function more() {
    if (!cursor) return;
    const mine = turn;
    const found = await ask(`${path}?${asked(state, { sort: state.sort, limit: PAGE, after: cursor })}`).catch(() => null);
    if (mine !== turn || !open) return;
    // The place to go on from is gone where the record was cut meanwhile.
    if (!found) { load(); return; }
    cursor = found.next;
    list.show(found, "next");
  }

  // ---- reading
  function choose(episode) {
    const entered = narrow() && !state.open;
    if (entered) scrolled = scrollY;
    state.open = episode;
    if (entered) push("episodes", id, state); else keep();
    opened();
    if (entered) scrollTo(0, 0);
  }

  function opened() {
    panes.classList.toggle("is-open", Boolean(state.open));
    body.classList.toggle("is-reading", Boolean(state.open));
    list.mark(state.open);
    if (state.open) pane.open(state.open);
  }

  // On a phone the pane replaces the list, and Back leads to the list again.
  const narrow = () => matchMedia("(max-width: 46rem)").matches;
  function leave() {
    state.open = "";
    keep();
    opened();
    scrollTo(0, scrolled);
  }

  async function step(by, failure) {
    for (let page = 0; page < MOST_PAGES; page++) {
      const to = list.next(by, failure ? failed : undefined);
      if (to) { setText(said, ""); choose(to); return; }
      if (by < 0 || !cursor) break;
      await more();
    }
    setText(said, failure ? (cursor ? `No failure among the next ${MOST_PAGES * PAGE} episodes: filter by result.` : "No further failure in this list.") : "");
  }

  // ---- as it goes: episodes are recorded between two points of the curve, so the page looks itself
  async function fresh() {
    if (document.hidden) return;
    const mine = turn;
    const found = await ask(`${path}?${asked(state, { limit: 1 })}`).catch(() => null);
    if (!found || mine !== turn || !open) return;
    if (!empty.hidden && found.total) load(); else list.announce(found.matched - matched);
  }
  const look = setInterval(fresh, LOOK);
  const stop = hear((news) => {
    if (news.kind === "all" || news.kind === "back") name();
    if (news.kind === "back") load();
  });

  load();
  opened();
  return {
    close() { open = false; stop(); clearTimeout(again); clearInterval(look); bar.close(); pane.close(); board.close(); document.title = "scalerl"; },
    find: bar.focus,
    back() { if (board.dialog.open) return; if (state.open && narrow()) leave(); else location.hash = link("run", id); },
    // Another address of the same view: what differs is shown, and nothing is built again.
    stays(to) {
      if (to.view !== "episodes" || to.id !== id) return false;
      Object.assign(state, fromAddress(to.params));
      bar.show();
      load();
      opened();
      if (narrow() && !state.open) scrollTo(0, scrolled);
      return true;
    },
  };
}
