// Episodes of one prompt: a group side by side, and the prompt across versions with a difference.
import { el } from "./base.js";
import { ask } from "./dom.js";
import { episodeOf, many } from "./episode_data.js";
import { diff } from "./episode_diff.js";
import { MARK, WORD, flags, reward } from "./episode_list.js";
import { rows, written } from "./episode_segments.js";
import { nodes, plain } from "./episode_text.js";

// Episodes of a group that are drawn, and of a prompt that are listed.
const MOST_BESIDE = 16;
const MOST_VERSIONS = 100;

// The episodes of the same prompt and step, in columns.
export async function group(run, episode, { colour, read, address }) {
  const query = new URLSearchParams({ prompt: episode.prompt, step_from: episode.step, step_to: episode.step, source: episode.source, sort: "-reward", limit: MOST_BESIDE });
  const found = await ask(`/api/v1/runs/${run}/episodes?${query}`);
  const all = await Promise.all(found.episodes.map((each) => episodeOf(run, each.id)));
  const left = found.matched - all.length;
  const drawn = [
    el("p", { class: "small" }, `${many(all.length, "recorded episode")} of this prompt at step ${episode.step}, the highest reward first${left > 0 ? `; ${left} more are not drawn` : ""}.`),
    el("div", { class: "columns", tabindex: 0, role: "region", "aria-label": "Episodes of the group, side by side" }, all.map((each, i) => el("article", { class: "column", "aria-current": each.id === episode.id ? "true" : null },
      el("h3", {}, el("a", { href: address(each.id) }, `${MARK[each.correct]} ${WORD[each.correct]} · ${reward(each.reward)} · ${many(found.episodes[i].tokens, "token")}`), flags(found.episodes[i])),
      each.why ? el("p", { class: "small" }, el("bdi", {}, plain(each.why))) : "",
      // The prompt is the same for all.
      rows({ ...each, rows: each.rows.map((row, r) => r ? row : row.slice(row[0]?.source === "context" ? 1 : 0)) }, colour, read)))),
  ];
  return { drawn, episodes: all };
}

// The prompt at every step that it was recorded at, and the difference of two of its answers.
export async function versions(run, episode, state, keep) {
  const found = await ask(`/api/v1/runs/${run}/prompts/${encodeURIComponent(episode.prompt)}/episodes?sort=oldest&limit=${MOST_VERSIONS}`);
  const list = found.episodes, ids = list.map((each) => each.id);
  const box = el("div", { class: "difference", "aria-live": "polite" });
  const a = ids.includes(state.a) ? state.a : ids[0];
  const b = ids.includes(state.b) ? state.b : ids.includes(episode.id) && episode.id !== a ? episode.id : ids.at(-1);
  Object.assign(state, { a, b });
  const pick = (key, id, label) => el("input", { type: "radio", name: `version-${key}`, value: id, "aria-label": label, checked: state[key] === id, onchange: () => { state[key] = id; keep(); compare(); } });
  const line = (each) => el("tr", {}, el("td", {}, pick("a", each.id, `Compare from ${plain(each.id)}`)), el("td", {}, pick("b", each.id, `Compare to ${plain(each.id)}`)),
    el("td", { class: "num" }, each.step.toLocaleString("en")), el("td", { class: "line" }, `${MARK[each.correct]} ${WORD[each.correct]}`), el("td", { class: "num" }, each.reward === null ? "–" : String(+each.reward.toPrecision(3))),
    el("td", { class: "num" }, String(each.tokens)), el("td", { class: "hide-phone" }, el("bdi", { class: "preview" }, each.tokens ? plain(each.preview) : "(nothing was written)")));
  async function compare() {
    const mine = [state.a, state.b];
    const [before, after] = await Promise.all(mine.map((id) => episodeOf(run, id)));
    if (mine[0] !== state.a || mine[1] !== state.b) return;
    const { parts, whole } = diff(written(before), written(after));
    const tags = { same: "span", old: "del", new: "ins" };
    box.replaceChildren(
      el("p", { class: "small" }, el("del", {}, `step ${before.step}`), " to ", el("ins", {}, `step ${after.step}`), parts.every(([kind]) => kind === "same") ? ": the same text." : "", whole ? "" : " Only their beginnings are compared: the texts are long."),
      el("div", { class: "text" }, parts.map(([kind, text]) => el(tags[kind], {}, el("bdi", {}, nodes(text))))));
  }
  const drawn = [
    el("p", { class: "small" }, `${many(found.matched, "recorded episode")} of this prompt${found.matched > list.length ? `, the first ${list.length} of them` : ""}.`),
    el("div", { class: "scroll long versions", tabindex: 0, role: "region", "aria-label": "Episodes of this prompt" }, el("table", {}, el("caption", { class: "skip" }, "Episodes of this prompt"), el("thead", {}, el("tr", {}, ["from", "to", "step", "result", "reward", "tokens", "text"].map((label) => el("th", { scope: "col", class: label === "text" ? "hide-phone" : null }, label)))), el("tbody", {}, list.map(line)))),
    box,
  ];
  await compare();
  return { drawn, episodes: [] };
}
