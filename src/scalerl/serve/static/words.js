// Numbers, times and states as the live page writes them.
export const score = (v) => v === null || v === undefined ? "–" : v.toFixed(3);
export const signed = (v) => v === null || v === undefined ? "–" : (v < 0 ? "" : "+") + v.toFixed(3);

export function ago(seconds) {
  const s = Math.max(0, Date.now() / 1000 - seconds);
  if (s < 5) return "just now";
  if (s < 90) return `${Math.round(s)} s ago`;
  if (s < 5400) return `${Math.round(s / 60)} min ago`;
  if (s < 129600) return `${Math.round(s / 3600)} h ago`;
  return `${Math.round(s / 86400)} days ago`;
}

// A number as people type it: 50k, 1.5M, 1e-3; null for nothing, NaN for no number.
export function parse(text) {
  const found = /^\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)\s*([kKMGBTP]?)\s*$/i.exec(text);
  if (text.trim() === "") return null;
  if (!found) return NaN;
  const scale = { k: 1e3, K: 1e3, M: 1e6, G: 1e9, B: 1e9, T: 1e12, P: 1e15, m: 1e6, g: 1e9, b: 1e9, t: 1e12, p: 1e15 }[found[2]] || 1;
  return Number(found[1]) * scale;
}

// A pass rate as people type it: 0.8, .8 or 80%; null for nothing, NaN for what is no pass rate.
export function parseScore(text) {
  const percent = /^\s*(\d+\.?\d*|\.\d+)\s*%\s*$/.exec(text);
  const v = percent ? Number(percent[1]) / 100 : parse(text);
  return v === null || (v > 0 && v <= 1) ? v : NaN;
}

// Which worker waits for which, as the run reports it.
export function waits(r) {
  if (!r.waits_for) return "";
  return /\bgroups?\b/.test(r.waits_for) ? `trainer waits for ${r.waits_for}` : `waits for ${r.waits_for}`;
}
