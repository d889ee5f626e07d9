// The segments of an episode: what the model saw, by who wrote it, token by token.
import { el } from "./base.js";
import { many } from "./episode_data.js";
import { SCALES, about } from "./episode_scales.js";
import { nodes, token } from "./episode_text.js";

// Tokens and characters of a segment that are drawn before "show more" is pressed.
const MOST_TOKENS = 2500;
const MOST_CHARACTERS = 12000;
// Characters of a context segment that are drawn at first: prompts repeat from episode to episode.
const MOST_OF_CONTEXT = 1500;
// How calls of tools are written, in the formats that scalerl reads.
const CALL = /<tool_call>|<function=|<\|python_tag\|>|\[TOOL_CALLS\]/;

// The source of a segment in words: context after the first is what the environment answered.
function sourceOf(segment, i) {
  if (segment.source === "context") return i ? "environment" : "prompt";
  return segment.source;
}

function head(segment, i) {
  const parts = segment.count ? [many(segment.count, "token")] : [];
  const versions = (segment.versions || []).map(([version]) => version);
  if (versions.length) parts.push(versions.length === 1 ? `version ${versions[0]}` : `versions ${Math.min(...versions)} to ${Math.max(...versions)}`);
  if (segment.reward !== null && segment.reward !== undefined) parts.push(`reward ${+segment.reward.toPrecision(3)}`);
  return el("p", { class: "about" }, el("b", {}, sourceOf(segment, i)), ` ${parts.join(" · ")}`, segment.source === "policy" && CALL.test(segment.text) ? el("span", { class: "flag mild" }, "calls a tool") : "");
}

// A text in bounded parts: draw(limit) returns the nodes up to it, and further(limit) says how much is left.
function bounded(box, limit, draw, left) {
  const fill = (most) => {
    box.replaceChildren(...draw(most));
    if (left(most) > 0) box.append(el("button", { type: "button", class: "further", onclick: () => fill(most * 4) }, `show more (${left(most).toLocaleString("en")} left)`));
  };
  fill(limit);
}

function body(segment, colour) {
  const scale = SCALES[colour];
  const isContext = segment.source === "context";
  if (!scale?.of || !scale.has(segment)) {
    const box = el("div", { class: "text", dir: "auto" });
    if (!segment.text) { box.append(el("span", { class: "nothing" }, "(nothing)")); return box; }
    bounded(box, isContext ? MOST_OF_CONTEXT : MOST_CHARACTERS, (most) => nodes(segment.text.slice(0, most)), (most) => segment.text.length - most);
    return box;
  }
  const box = el("div", { class: "text tokens", tabindex: 0, role: "group", "aria-label": `${segment.source} text by ${scale.label}: arrows move from token to token` });
  const of = scale.of(segment);
  const name = (i) => { const key = of(i); return key === null ? "" : scale.name(key); };
  const draw = (most) => segment.tokens.slice(0, most).map((text, i) => {
    const node = token(text, i, name(i));
    // A change of the version is marked where it happens.
    if (colour === "version" && (i === 0 || of(i) !== of(i - 1))) node.prepend(el("sup", {}, `v${of(i)}`));
    return node;
  });
  bounded(box, MOST_TOKENS, draw, (most) => segment.tokens.length - most);
  return box;
}

// The rows of an episode with one colour. read(text) receives what is known of the token under the
// pointer or the cursor.
export function rows(episode, colour, read = () => {}) {
  return episode.rows.map((row, r) => el("div", { class: "row" },
    episode.rows.length > 1 ? el("h3", {}, r ? `Row ${r + 1}: the history was rewritten` : "Row 1") : "",
    row.map((segment, i) => {
      const text = body(segment, colour);
      if (text.classList.contains("tokens")) watch(text, segment, read);
      // A group, not a section: an episode of many turns would be a hundred landmarks of one name.
      return el("div", { class: `segment ${sourceOf(segment, i)}`, role: "group", "aria-label": sourceOf(segment, i) }, head(segment, i), text);
    })));
}

function watch(box, segment, read) {
  let at = null;
  const point = (node) => {
    if (!node || node === at) return;
    at?.classList.remove("at");
    at = node;
    node.classList.add("at");
    read(about(segment, Number(node.dataset.i)));
  };
  box.addEventListener("pointerover", (event) => point(event.target.closest(".t")));
  box.addEventListener("focus", () => point(at?.isConnected ? at : box.querySelector(".t")));
  box.addEventListener("keydown", (event) => {
    const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
    if (!step || event.target !== box) return;
    event.preventDefault();
    const to = at?.isConnected ? at[step] : box.querySelector(".t");
    if (to?.classList.contains("t")) { point(to); to.scrollIntoView({ block: "nearest" }); }
  });
}

// What the policy wrote of an episode, for comparisons.
export const written = (episode) => (episode.rows.at(-1) || []).filter((segment) => segment.source !== "context").map((segment) => segment.text).join("\n⋯\n");

