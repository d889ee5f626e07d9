// Filters, orders and histograms of episodes, for a copy of the page: as the server does them.
const CORRECT = { true: true, false: false, none: null };
const YES = ["1", "true", "yes"];
const ORDERS = {
  newest: (a, b) => b.step - a.step || b.at - a.at, oldest: (a, b) => a.step - b.step || a.at - b.at,
  reward: (a, b) => number(a.reward, Infinity) - number(b.reward, Infinity), "-reward": (a, b) => number(b.reward, -Infinity) - number(a.reward, -Infinity),
  length: (a, b) => a.tokens - b.tokens, "-length": (a, b) => b.tokens - a.tokens,
};
const number = (value, otherwise) => value === null ? otherwise : value;

// The texts that a search reads: question, segments, and what the check found.
const textsOf = (episode) => [episode.question, episode.why, ...episode.rows.flat().map((segment) => segment.text)];

function textTest(params) {
  const pattern = params.get("regex"), text = params.get("text");
  try {
    if (text && (pattern === "1" || pattern === "true")) return new RegExp(text, "i");
    return pattern ? new RegExp(pattern, "i") : null;
  } catch { throw Object.assign(new Error(`${pattern || text} is no regular expression`), { fromServer: true }); }
}

// The episodes that meet the filter; the text of `whole`, in the same order, where it is given.
export function matching(episodes, params, whole = null) {
  const has = (key) => params.get(key) !== null && params.get(key) !== "";
  const same = (key, value) => !has(key) || params.get(key) === value;
  const within = (key, value) => (!has(`${key}_min`) || (value !== null && value >= Number(params.get(`${key}_min`)))) && (!has(`${key}_max`) || (value !== null && value <= Number(params.get(`${key}_max`))));
  const yes = (key, value) => !has(key) || YES.includes(params.get(key)) === value;
  const pattern = textTest(params), words = (params.get("text") || "").toLowerCase();
  const said = (episode) => pattern ? textsOf(episode).some((text) => pattern.test(text)) : textsOf(episode).some((text) => text.toLowerCase().includes(words));
  return episodes.filter((e, i) => same("source", e.source) && same("task", e.task) && same("prompt", e.prompt) && same("finish", e.finish)
    && (!has("correct") || CORRECT[params.get("correct")] === e.correct)
    && yes("truncated", e.truncated) && yes("tool_failed", e.tool_failed)
    && (!has("step_from") || e.step >= Number(params.get("step_from"))) && (!has("step_to") || e.step <= Number(params.get("step_to")))
    && within("reward", e.reward) && within("length", e.tokens)
    && (!whole || (!words && !pattern) || said(whole[i])));
}

export function pageOf(all, found, params, order) {
  const at = new Map(all.map((episode, i) => [episode.id, all.length - i]));
  const sorted = found.map((episode) => ({ ...episode, at: at.get(episode.id) })).sort(ORDERS[params.get("sort")] || ORDERS[order]);
  const after = params.get("after"), limit = Number(params.get("limit")) || 50;
  const begin = after ? sorted.findIndex((episode) => episode.id === after) + 1 : 0;
  const episodes = sorted.slice(begin, begin + limit);
  const next = begin + limit < sorted.length ? episodes.at(-1).id : null;
  return { total: all.length, matched: sorted.length, complete: true, searched: 0, to_search: 0, episodes, next };
}

const BINS = 24;
// Of whole numbers each bin has equally many, as the server makes them: its filters take both ends.
function edgesOf(values, whole) {
  if (!values.length) return [];
  const few = [...new Set(values)].sort((a, b) => a - b), low = few[0], high = few.at(-1);
  if (few.length === 1) return [low - 0.5, low + 0.5];
  if (few.length > 8 && whole) {
    const width = Math.floor((high - low) / BINS) + 1;
    return Array.from({ length: Math.floor((high - low) / width) + 2 }, (_, i) => low + i * width);
  }
  if (few.length > 8) return Array.from({ length: BINS + 1 }, (_, i) => low + (high - low) * i / BINS);
  const middle = few.slice(1).map((value, i) => (value + few[i]) / 2);
  return [2 * low - middle[0], ...middle, 2 * high - middle.at(-1)];
}

function histogram(all, found, key, whole = false) {
  const values = (list) => list.map((episode) => episode[key]).filter((value) => value !== null);
  const edges = edgesOf(values(all), whole);
  const counts = (list) => {
    const out = Array(Math.max(edges.length - 1, 0)).fill(0);
    for (const value of values(list)) {
      const bin = edges.findIndex((edge, i) => value < edges[i + 1] || i === out.length - 1);
      if (bin >= 0 && bin < out.length) out[bin]++;
    }
    return out;
  };
  return { edges, all: counts(all), matched: counts(found) };
}

function countsBy(found, of) {
  const out = {};
  for (const episode of found) { const key = of(episode); out[key] = (out[key] || 0) + 1; }
  return Object.fromEntries(Object.entries(out).sort((a, b) => b[1] - a[1]));
}

export function histogramsOf(all, found) {
  const word = (value) => value === null ? "none" : String(value);
  return {
    total: all.length, matched: found.length, complete: true,
    reward: histogram(all, found, "reward"), length: histogram(all, found, "tokens", true), step: histogram(all, found, "step", true),
    by: { finish: countsBy(found, (e) => e.finish), task: countsBy(found, (e) => e.task), source: countsBy(found, (e) => e.source), correct: countsBy(found, (e) => word(e.correct)) },
  };
}
