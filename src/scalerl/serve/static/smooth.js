// Lines before they are drawn: smoothed, and seeds of a recipe as their mean with its range.

// An exponential mean of weight w (0: as it is), which starts without bias.
export function smoothed(ys, w) {
  if (!w) return ys;
  let sum = 0, weight = 0;
  return ys.map((y) => {
    if (y === null) return null;
    sum = w * sum + (1 - w) * y;
    weight = w * weight + (1 - w);
    return sum / weight;
  });
}

// The mean of several lines and the range between them, at every x that one of them has; a line
// counts between its own ends.
export function meanOf(lines) {
  const xs = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const readers = lines.map(interpolation);
  const out = { x: [], y: [], low: [], high: [], n: lines.length };
  for (const x of xs) {
    const found = readers.map((at) => at(x)).filter((y) => y !== null);
    if (!found.length) continue;
    out.x.push(x);
    out.y.push(found.reduce((a, b) => a + b, 0) / found.length);
    out.low.push(Math.min(...found));
    out.high.push(Math.max(...found));
  }
  return out;
}

// Reads a line at ascending x.
function interpolation({ x: xs, y: ys }) {
  const at = xs.map((_, i) => i).filter((i) => ys[i] !== null);
  let k = 0;
  return (x) => {
    if (!at.length || x < xs[at[0]] || x > xs[at.at(-1)]) return null;
    while (k < at.length - 2 && xs[at[k + 1]] < x) k++;
    const a = at[k], b = at[Math.min(k + 1, at.length - 1)];
    if (xs[b] === xs[a]) return ys[a];
    const share = Math.min(Math.max((x - xs[a]) / (xs[b] - xs[a]), 0), 1);
    return ys[a] + share * (ys[b] - ys[a]);
  };
}
