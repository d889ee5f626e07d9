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

// Keys in which these runs differ, in the order of the recipe; what only names a run comes last.
const NAMES = ["seed", "name", "description", "source"];
export function differing(ids) {
  const at = ids.map((id) => places.get(id)).filter((i) => i !== undefined);
  const found = Object.keys(table.differ).filter((key) => {
    const { of } = table.differ[key];
    return at.some((i) => of[i] !== of[at[0]]);
  });
  // Keys that some of them lack come later: often another version of scalerl wrote the recipe.
  const lacks = (key) => { const { of, values } = table.differ[key]; return at.some((i) => values[of[i]] === null); };
  const named = found.filter((key) => !NAMES.includes(key));
  return [...named.filter((key) => !lacks(key)), ...named.filter(lacks), ...found.filter((key) => key === "seed")];
}

// The last part of a key, with the one before it where another key of the list ends the same.
export function shortKey(key, others) {
  const parts = key.split("."), last = parts.at(-1);
  const twice = others.some((other) => other !== key && other.split(".").at(-1) === last);
  return twice ? parts.slice(-2).join(".") : last;
}

export function shown(value) {
  if (value === undefined) return "";
  if (value === null) return "unset";
  if (typeof value === "number" && !Number.isInteger(value)) return String(+value.toPrecision(4));
  return String(value);
}
