// The reading pane: one episode, its group, or its prompt across versions.
import { el } from "./base.js";
import { setText } from "./dom.js";
import { group, versions } from "./episode_beside.js";
import { episodeOf, many } from "./episode_data.js";
import { MARK, WORD, flags, reward } from "./episode_list.js";
import { SCALES, legend, scalesOf } from "./episode_scales.js";
import { rows } from "./episode_segments.js";
import { plain } from "./episode_text.js";

// Characters of what the check found that are shown above the text.
const MOST_OF_WHY = 240;

const VIEWS = { "": "this episode", group: "its group", prompt: "prompt across versions" };

// state: { open, colour, beside, a, b }; keep() notes it in the address; leave() closes the pane, and
// step(by, failure) goes to another episode.
export function reader(run, state, { keep, leave, step, address }) {
  const title = el("h2", { tabindex: -1 }), facts = el("p", { class: "small facts-line" });
  const colour = el("select", { "aria-label": "Colour tokens by", onchange: () => { state.colour = colour.value; keep(); draw(); } });
  const views = el("div", { class: "views", role: "group", "aria-label": "What is shown" }, Object.entries(VIEWS).map(([key, label]) => el("button", { type: "button", "data-view": key, onclick: () => view(key) }, label)));
  const key = el("ul", { class: "legend", "aria-label": "Legend" }), token = el("p", { class: "small token-facts", role: "status" });
  const said = el("p", { class: "said" }), content = el("div", { class: "content" });
  const tools = el("div", { class: "tools" }, views, el("label", {}, "colour by", colour));
  const hint = el("p", { class: "hint small" }, "Choose an episode, or press ", el("kbd", {}, "j"), ". ", el("kbd", {}, "n"), " finds the next failure, ", el("kbd", {}, "?"), " lists all keys.");
  const button = (label, action, name = "") => el("button", { type: "button", class: name, onclick: action }, label);
  const moves = el("div", { class: "moves", role: "group", "aria-label": "Go to" }, button("← list", leave, "leave"), button("‹ previous", () => step(-1)), button("next ›", () => step(1)), button("next failure", () => step(1, true)));
  const head = el("div", { class: "reader-head", hidden: true }, title, facts, tools, key, token);
  const node = el("section", { class: "reader", "aria-label": "Episode", tabindex: 0 }, moves, hint, head, said, content);
  let episode = null, turn = 0;

  function view(name) { state.beside = name; state.a = state.b = ""; keep(); draw(); }
  const read = (text) => setText(token, text);

  function about() {
    title.replaceChildren(`${MARK[episode.correct]} ${WORD[episode.correct]}, ${reward(episode.reward)}, step ${episode.step.toLocaleString("en")} `, ...flags(episode));
    const play = episode.play || {}, told = [plain(episode.id), episode.task && `task ${plain(episode.task)}`, `prompt ${plain(episode.prompt)}`, episode.why && `why: ${plain(episode.why.slice(0, MOST_OF_WHY))}`];
    if (play.turns > 1 || play.tool_calls) told.push(`${many(play.turns || 0, "turn")}, ${many(play.tool_calls || 0, "tool call")}, ${play.tool_failures || 0} failed`, `${+(play.environment_seconds || 0).toPrecision(2)} s in the environment`);
    if (episode.cut) told.push("too long to be shown whole");
    facts.replaceChildren(...told.filter(Boolean).flatMap((text, i) => [i ? " · " : "", el("bdi", {}, text)]));
  }

  function choices() {
    const known = scalesOf(episode);
    colour.replaceChildren(...known.map((name) => el("option", { value: name }, SCALES[name].label)));
    colour.value = known.includes(state.colour) ? state.colour : "source";
    for (const button of views.children) button.setAttribute("aria-pressed", String(button.dataset.view === state.beside));
    colour.parentNode.hidden = state.beside === "prompt";
  }

  async function draw() {
    if (!episode) return;
    const mine = ++turn;
    choices();
    read("");
    content.classList.add("busy");
    try {
      const made = await parts();
      if (mine !== turn) return;
      content.replaceChildren(...made.drawn);
      key.replaceChildren(...legend(colour.value, made.episodes));
      setText(said, "");
    } catch (error) {
      if (mine === turn) { content.replaceChildren(); setText(said, error.fromServer ? error.message : "The server does not answer."); }
    } finally { if (mine === turn) content.classList.remove("busy"); }
  }

  async function parts() {
    if (state.beside === "group") return group(run, episode, { colour: colour.value, read, address });
    if (state.beside === "prompt") return versions(run, episode, state, keep);
    return { drawn: rows(episode, colour.value, read), episodes: [episode] };
  }

  async function open(id) {
    const mine = ++turn;
    hint.hidden = true;
    try {
      const found = await episodeOf(run, id);
      if (mine !== turn) return;
      episode = found;
      head.hidden = false;
      about();
      node.scrollTop = 0;
      await draw();
    } catch (error) {
      if (mine === turn) setText(said, error.fromServer ? error.message : "The server does not answer.");
    }
  }

  function nextColour() {
    if (!episode) return;
    const known = scalesOf(episode);
    state.colour = known[(known.indexOf(colour.value) + 1) % known.length];
    keep();
    draw();
  }

  return { node, open, view, nextColour, close() { turn = -1; } };
}
