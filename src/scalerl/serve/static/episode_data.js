// Episodes as the API gives them.
import { ask } from "./dom.js";

export const many = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

// One episode with its text. Every segment has tokens: where the record does not say how its text is
// cut into them, it is a single one, and numbers of tokens cannot be drawn. An episode without the
// text that the model saw (a foreign log) begins with its question.
export async function episodeOf(run, id) {
  const found = await ask(`/api/v1/runs/${run}/episodes/${encodeURIComponent(id)}`);
  for (const segment of found.rows.flat()) {
    segment.count = segment.n_tokens ?? segment.tokens?.length ?? 0;
    if (Array.isArray(segment.tokens)) continue;
    segment.tokens = segment.text ? [segment.text] : [];
    segment.logprobs = segment.ratios = segment.entropies = segment.token_ids = null;
  }
  if (!found.rows.length) found.rows.push([]);
  if (found.rows[0][0]?.source !== "context" && found.question) found.rows[0].unshift({ source: "context", text: found.question, tokens: [found.question], count: 0 });
  return found;
}
