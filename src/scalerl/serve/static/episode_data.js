// Episodes as the API gives them.
import { ask } from "./dom.js";

export const many = (n, what) => `${n.toLocaleString("en")} ${what}${n === 1 ? "" : "s"}`;

// One episode with its text. Every segment has tokens: where the record does not say how its text is
// cut into them, it is a single one, and numbers of tokens cannot be drawn.
export async function episodeOf(run, id) {
  const found = await ask(`/api/v1/runs/${run}/episodes/${encodeURIComponent(id)}`);
  for (const segment of found.rows.flat()) {
    segment.count = segment.token_ids?.length ?? segment.tokens?.length ?? 0;
    if (Array.isArray(segment.tokens)) continue;
    segment.tokens = segment.text ? [segment.text] : [];
    segment.logprobs = segment.ratios = segment.entropies = segment.token_ids = null;
  }
  return found;
}
