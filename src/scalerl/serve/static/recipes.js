// The recipes of all runs as one table: keys with one value, and the values of those that differ.
import { ask } from "./dom.js";

let table = { same: {}, differ: {} }, places = new Map(), keys = [];

export async function loadRecipes() {
  const found = await ask("/api/recipes");
  table = found;
  places = new Map(found.runs.map((id, i) => [id, i]));
  keys = [...Object.keys(found.differ), ...Object.keys(found.same)];
}

export const hasRecipe = (id) => places.has(id);
export const allKeys = () => keys;

// A key by its own name, or by the end of it: lr is optimiser.lr where no other key ends so.
export function fullKey(text) {
  if (text in table.differ || text in table.same) return text;
  const ends = keys.filter((key) => key.endsWith(`.${text}`));
  return ends.length === 1 ? ends[0] : ends.find((key) => key in table.differ) ?? null;
}

// undefined where a run has no such key.
export function valueOf(id, text) {
  const at = places.get(id), key = fullKey(text);
  if (at === undefined || key === null) return undefined;
  const column = table.differ[key];
  return column ? column.values[column.of[at]] : table.same[key];
}

// Keys in which these runs differ, in the order of the recipe; what only names a run is left out, and
// the seed comes last.
const NAMES = ["seed", "name", "description", "source"];
export const differing = (ids) => ordered(valuesAmong(ids));

// The values of each key in which these runs differ; null where a run has none.
function valuesAmong(ids) {
  const at = ids.map((id) => places.get(id)).filter((i) => i !== undefined), found = new Map();
  for (const [key, { of, values }] of Object.entries(table.differ)) {
    const mine = new Set(at.map((i) => values[of[i]]));
    if (mine.size > 1) found.set(key, mine);
  }
  return found;
}

function ordered(found) {
  // Keys that some of them lack come later: often another version of scalerl wrote the recipe.
  const named = [...found.keys()].filter((key) => !NAMES.includes(key)), lacks = (key) => found.get(key).has(null);
  return [...named.filter((key) => !lacks(key)), ...named.filter(lacks), ...(found.has("seed") ? ["seed"] : [])];
}

// Sections that change neither what a step learns nor how it is sampled.
const LATER = ["validation", "budget", "checkpoint", "compute", "placement", "record", "seed"];

// So many of the keys in which these runs differ, in the order of the recipe: those that all of them
// have and that learning depends on, and of these the ones with the most values, since a knob that was
// swept has more values than one that two recipes differ in.
export function telling(ids, most) {
  const found = valuesAmong(ids), keys = ordered(found);
  const later = (key) => LATER.includes(key.split(".")[0]) || found.get(key).has(null);
  const chosen = [...keys].sort((a, b) => later(a) - later(b) || found.get(b).size - found.get(a).size).slice(0, most);
  return keys.filter((key) => chosen.includes(key));
}

// The last part of a key, with the one before it where it says little by itself, or another key of the
// list ends the same.
const VAGUE = ["name", "path", "dataset", "k", "rank", "mode", "history", "threshold", "every", "steps"];
export function shortKey(key, others) {
  const parts = key.split("."), last = parts.at(-1);
  const twice = VAGUE.includes(last) || others.some((other) => other !== key && other.split(".").at(-1) === last);
  return twice ? parts.slice(-2).join(".") : last;
}

export function shown(value) {
  if (value === undefined) return "";
  if (value === null) return "unset";
  if (typeof value === "number" && !Number.isInteger(value)) return String(+value.toPrecision(4));
  return String(value);
}
