// Seeds of one recipe as one line of the list: means, and the spread between the seeds.

// What seeds share: the recipe without its seed, and its name; of a log, the group that its importer
// found. Without commas: the address lists the groups that are unfolded.
export const groupOf = (run) => run.recipe_id || run.group ? `${run.recipe_id || "group"} ${run.group || ""}`.replaceAll(",", " ") : "";

export const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;

// Standard deviation between seeds; null for one.
export function spread(values) {
  if (values.length < 2) return null;
  const m = mean(values);
  return Math.sqrt(values.reduce((a, v) => a + (v - m) ** 2, 0) / (values.length - 1));
}

const known = (values) => values.filter((v) => v !== null && v !== undefined);

export function summary(runs) {
  const of = (get) => { const found = known(runs.map(get)); return found.length ? { n: found.length, mean: mean(found), sd: spread(found), low: Math.min(...found), high: Math.max(...found) } : null; };
  const counts = {};
  for (const run of runs) counts[run.status] = (counts[run.status] || 0) + 1;
  return {
    status: Object.entries(counts).map(([word, n]) => `${n} ${word}`).join(", "),
    live: runs.some((r) => r.status === "running" || r.status === "growing"),
    step: of((r) => r.step), compute: of((r) => r.compute), pass: of((r) => r.pass_rate),
    ceiling: of((r) => r.forecast && !r.forecast.alarm && r.forecast.identified ? r.forecast.A : null),
    open: runs.filter((r) => r.forecast && !r.forecast.alarm && !r.forecast.identified).length,
    gain: of((r) => r.forecast && !r.forecast.alarm ? r.forecast.next_doubling.gain : null),
    alarms: runs.filter((r) => r.forecast?.alarm).length,
    warnings: runs.reduce((sum, r) => sum + r.warnings, 0),
    changed: Math.max(...runs.map((r) => r.changed)),
    units: [...new Set(runs.map((r) => r.unit))],
  };
}

// Mean and extremes of small curves, each stretched over the same number of points.
export function meanSpark(runs) {
  const curves = runs.map((r) => r.spark).filter((s) => s.length > 1);
  if (!curves.length) return null;
  const n = Math.max(...curves.map((c) => c.length));
  const at = (curve, i) => curve[Math.round(i * (curve.length - 1) / (n - 1))];
  const columns = Array.from({ length: n }, (_, i) => curves.map((c) => at(c, i)));
  return { mean: columns.map(mean), low: columns.map((c) => Math.min(...c)), high: columns.map((c) => Math.max(...c)) };
}
