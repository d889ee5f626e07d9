// The list of episodes that were found: a line of facts and the beginning of each.
import { el } from "./base.js";
import { setText } from "./dom.js";
import { many } from "./episode_data.js";
import { plain } from "./episode_text.js";

// Characters of a preview that two lines can hold.
const MOST_OF_PREVIEW = 240;

export const MARK = { true: "✓", false: "✗", null: "◦" };
export const WORD = { true: "right", false: "wrong", null: "unscored" };

export const reward = (value) => value === null || value === undefined ? "no reward" : `reward ${+value.toPrecision(3)}`;

// Whether a reader who looks for trouble wants to see it: wrong, or not ended by itself, or a tool failed.
export const failed = (episode) => episode.correct === false || Boolean(episode.tool_failed) || !["stop", "interrupted"].includes(episode.finish);

// What has to be said of an episode before it is read.
export function flags(episode) {
  const out = [];
  if (episode.finish && episode.finish !== "stop") out.push(el("span", { class: `flag ${episode.finish === "interrupted" ? "mild" : ""}` }, plain(episode.finish)));
  if (episode.tool_failed) out.push(el("span", { class: "flag" }, "tool failed"));
  return out;
}

// choose(id) opens an episode; more() asks for the next page and resolves when it is there.
export function episodeList({ address, choose, more, renew }) {
  const items = el("ol", { class: "episode-list", tabindex: 0, "aria-label": "Episodes that were found" });
  const count = el("span", { class: "small", role: "status" });
  const fresh = el("button", { type: "button", class: "fresh", hidden: true, onclick: () => renew() });
  const further = el("button", { type: "button", hidden: true, onclick: () => more() });
  const node = el("div", { class: "found" }, el("p", { class: "count" }, count, fresh), items, further);
  let episodes = [], open = "";

  function item(episode) {
    const facts = [`step ${episode.step.toLocaleString("en")}`, reward(episode.reward), many(episode.tokens, "token")];
    if (episode.turns > 1) facts.push(`${episode.turns} turns`);
    const preview = plain((episode.preview || "").slice(0, MOST_OF_PREVIEW)).trim();
    return el("li", {}, el("a", { href: address(episode.id), "data-id": episode.id, onclick: (event) => { if (event.metaKey || event.ctrlKey || event.shiftKey) return; event.preventDefault(); choose(episode.id); } },
      el("span", { class: "head" }, el("b", { class: `mark-${WORD[episode.correct]}` }, `${MARK[episode.correct]} ${WORD[episode.correct]}`), ` ${facts.join(" · ")} `, flags(episode)),
      el("bdi", { class: "preview", dir: "auto" }, episode.tokens ? preview : el("i", {}, "(nothing was written) "), episode.tokens ? "" : preview),
      el("bdi", { class: "why" }, [episode.why === WORD[episode.correct] ? "" : episode.why, episode.source === "training" ? "" : episode.source, episode.prompt || episode.task].filter(Boolean).map(plain).join(" · "))));
  }

  // A page of the list: the "first", the first "again", or the "next".
  function show(found, which) {
    const top = which === "first" ? 0 : items.scrollTop;
    if (which !== "next") { episodes = []; items.replaceChildren(); }
    episodes = [...episodes, ...found.episodes];
    items.append(...found.episodes.map(item));
    if (!episodes.length && found.complete) items.append(el("li", { class: "none" }, "No episode meets all of these conditions."));
    const n = found.matched.toLocaleString("en"), all = found.total.toLocaleString("en");
    const searching = found.to_search > found.searched ? `, ${found.searched.toLocaleString("en")} of ${found.to_search.toLocaleString("en")} texts searched…` : ", still being read…";
    setText(count, `${found.matched === found.total ? many(found.total, "episode") : `${n} of ${all} episodes`}${found.complete ? "" : searching}`);
    further.hidden = !found.next;
    setText(further, "show more");
    if (which !== "next") fresh.hidden = true;
    items.scrollTop = top;
    if (which === "first") mark(open);
  }

  // Marks the episode that is open, and brings it into the list's own view.
  function mark(id) {
    open = id;
    for (const link of items.querySelectorAll("[aria-current]")) link.removeAttribute("aria-current");
    const link = [...items.querySelectorAll("a")].find((each) => each.dataset.id === id);
    if (!link) return;
    link.setAttribute("aria-current", "true");
    const box = items.getBoundingClientRect(), at = link.getBoundingClientRect();
    if (at.top < box.top) items.scrollTop -= box.top - at.top + 4;
    if (at.bottom > box.bottom) items.scrollTop += at.bottom - box.bottom + 4;
    if (items.contains(document.activeElement)) link.focus({ preventScroll: true });
  }

  // The next episode in a direction that is wanted; null where the list has none.
  function next(step, wanted = () => true) {
    const at = episodes.findIndex((episode) => episode.id === open);
    for (let i = at < 0 ? (step > 0 ? 0 : -1) : at + step; i >= 0 && i < episodes.length; i += step) if (wanted(episodes[i])) return episodes[i].id;
    return null;
  }

  function announce(n) {
    fresh.hidden = n <= 0;
    setText(fresh, `${n.toLocaleString("en")} new`);
    fresh.setAttribute("aria-label", `${n} new episodes: show them`);
  }

  return { node, show, mark, next, announce };
}
