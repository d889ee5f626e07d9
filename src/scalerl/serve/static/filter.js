// What is typed into the search box: words, and conditions such as lr=2e-4, seed!=0, pass>0.6 or
// tag="fig 2". A star stands for any text: name=loo-*.
import { valueOf } from "./recipes.js";
import { waits } from "./words.js";

const CONDITION = /^([\w./+-]+?)(!=|>=|<=|=|>|<)(.*)$/;

// Facts of a run besides its recipe; tags are a list, of which one has to match.
const FACTS = {
  name: (r) => r.name, status: (r) => r.status, where: (r) => r.where, group: (r) => r.group,
  step: (r) => r.step, pass: (r) => r.pass_rate, compute: (r) => r.compute, points: (r) => r.points,
  ceiling: (r) => r.forecast?.identified ? r.forecast.A : null, warnings: (r) => r.warnings,
  tag: (r) => r.tags, tags: (r) => r.tags, note: (r) => r.note, pinned: (r) => r.pinned, hidden: (r) => r.hidden,
};

export function parsed(text) {
  const words = [], conditions = [];
  for (const piece of text.match(/(?:[^\s"]|"[^"]*"?)+/g) || []) {
    const found = CONDITION.exec(piece.replaceAll('"', ""));
    if (found) conditions.push({ key: found[1], sign: found[2], value: found[3].trim() });
    else words.push(piece.replaceAll('"', "").toLowerCase());
  }
  return { words, conditions };
}

export function matches({ words, conditions }, run) {
  if (!conditions.every((c) => holds(c, run))) return false;
  if (!words.length) return true;
  const text = `${run.name} ${run.where} ${run.group || ""} ${run.status} ${waits(run)} ${run.forecast?.alarm ? "alarm" : ""} ${run.warnings ? "warning" : ""} ${run.tags.join(" ")} ${run.note}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function holds({ key, sign, value }, run) {
  const found = key in FACTS ? FACTS[key](run) : valueOf(run.id, key);
  const known = Array.isArray(found) ? found : [found];
  if (sign === "!=") return !known.some((each) => same(each, value));
  if (sign === "=") return known.some((each) => same(each, value));
  const a = Number(found), b = Number(value);
  if (found === null || found === undefined || found === "" || value === "" || Number.isNaN(a) || Number.isNaN(b)) return false;
  return { ">": a > b, "<": a < b, ">=": a >= b, "<=": a <= b }[sign];
}

function same(found, value) {
  if (found === undefined || found === null) return value === "" || value === "unset";
  const a = Number(found), b = Number(value);
  if (value !== "" && typeof found !== "boolean" && !Number.isNaN(a) && !Number.isNaN(b)) return Math.abs(a - b) <= 1e-9 * Math.max(Math.abs(a), Math.abs(b));
  const plain = value.toLowerCase().split("*").map((part) => part.replace(/[\\^$.|?+()[\]{}]/g, "\\$&"));
  return new RegExp(`^${plain.join(".*")}$`, "s").test(String(found).toLowerCase());
}
