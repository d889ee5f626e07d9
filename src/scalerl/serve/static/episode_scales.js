// What tokens can be coloured by. Each class has a line of its own kind under or over the token as
// well as a colour, and a legend says how many tokens are in it.
import { el } from "./base.js";

const bins = (limits, labels) => ({ labels, of: (v) => { const at = limits.findIndex((limit) => v < limit); return at < 0 ? limits.length : at; } });
// Probabilities in classes that a reader thinks in: sure, likely, a coin toss, unlikely, a surprise.
const CHANCE = bins([-4.605, -2.303, -0.693, -0.105], ["p < 0.01", "0.01 to 0.1", "0.1 to 0.5", "0.5 to 0.9", "p > 0.9"]);
// 0.8 and 1.25: what a clip range of 0.2 lets through on both sides.
const RATIO = bins([0.5, 0.8, 1.25, 2], ["below 0.5", "0.5 to 0.8", "0.8 to 1.25", "1.25 to 2", "above 2"]);
// 0.69 nats is a coin toss between two tokens.
const ENTROPY = bins([0.1, 0.35, 0.69, 1.4], ["below 0.1", "0.1 to 0.35", "0.35 to 0.69", "0.69 to 1.4", "above 1.4 nats"]);

function binned(field, found, classes) {
  return {
    has: (segment) => Array.isArray(segment[field]),
    of(segment) { const values = segment[field]; return (i) => Number.isFinite(values[i]) ? found.of(values[i]) : null; },
    name: (key) => classes[key],
    words: (key) => found.labels[key],
  };
}

// The version of token i, from run lengths.
function versionsOf(segment) {
  const ends = [];
  let end = 0;
  for (const [version, count] of segment.versions) ends.push([end += count, version]);
  return (i) => ends.find(([to]) => i < to)?.[1] ?? null;
}

export const SCALES = {
  source: { label: "source", has: () => true },
  version: { label: "version", has: (segment) => Boolean(segment.versions?.length), of: versionsOf, name: (version) => `v${version % 6}`, words: (version) => `version ${version}` },
  logprob: { label: "log-prob", ...binned("logprobs", CHANCE, ["s4", "s3", "s2", "s1", "s0"]) },
  ratio: { label: "ratio π_train / π_gen", ...binned("ratios", RATIO, ["l2", "l1", "s0", "h1", "h2"]) },
  entropy: { label: "entropy", ...binned("entropies", ENTROPY, ["s0", "s1", "s2", "s3", "s4"]) },
};

export const segmentsOf = (episode) => episode.rows.flat();

// Names of the scales that an episode has numbers for.
export const scalesOf = (episode) => Object.keys(SCALES).filter((name) => segmentsOf(episode).some((segment) => SCALES[name].has(segment)));

// The classes that occur in some episodes, in order, with their numbers of tokens.
export function legend(name, episodes) {
  const scale = SCALES[name];
  if (!scale?.of) return [];
  const counts = new Map();
  for (const segment of episodes.flatMap(segmentsOf)) {
    if (!scale.has(segment)) continue;
    const of = scale.of(segment);
    for (let i = 0; i < segment.tokens.length; i++) {
      const key = of(i);
      if (key !== null) counts.set(key, (counts.get(key) || 0) + 1);
    }
  }
  return [...counts].sort((a, b) => a[0] - b[0]).map(([key, n]) => el("li", {}, el("span", { class: `t ${scale.name(key)}` }, scale.words(key)), ` ${n}`));
}

// What is known of one token, in words.
export function about(segment, i) {
  const parts = [`token ${i}`];
  if (segment.token_ids?.[i] !== undefined) parts.push(`id ${segment.token_ids[i]}`);
  if (SCALES.version.has(segment)) parts.push(`version ${versionsOf(segment)(i)}`);
  const logprob = segment.logprobs?.[i];
  if (Number.isFinite(logprob)) parts.push(`log-prob ${logprob.toFixed(3)} (p ${Math.exp(logprob).toFixed(3)})`);
  if (Number.isFinite(segment.ratios?.[i])) parts.push(`ratio ${segment.ratios[i].toFixed(3)}`);
  if (Number.isFinite(segment.entropies?.[i])) parts.push(`entropy ${segment.entropies[i].toFixed(3)} nats`);
  return parts.join(" · ");
}
