// The difference of two texts by words: a longest common subsequence, of bounded length.

// Words of each text that are compared: the table of a comparison has this many squared cells of
// two bytes, 8 MB.
export const MOST_WORDS = 2000;

// Characters up to which a run of letters and digits is one word; a longer one (a notation without
// spaces) is compared character by character.
const MOST_OF_WORD = 20;
const parted = (word) => word.length > MOST_OF_WORD && /[\p{L}\p{N}]/u.test(word) ? [...word] : [word];
const words = (text) => text.slice(0, 20 * MOST_WORDS).match(/\s+|[\p{L}\p{N}_]+|[^\s\p{L}\p{N}_]/gu)?.flatMap(parted) ?? [];

// [["same" | "old" | "new", text], …], and whether both texts were compared to their ends.
export function diff(before, after) {
  const a = words(before), b = words(after);
  const whole = a.length <= MOST_WORDS && b.length <= MOST_WORDS && before.length <= 20 * MOST_WORDS && after.length <= 20 * MOST_WORDS;
  a.length = Math.min(a.length, MOST_WORDS);
  b.length = Math.min(b.length, MOST_WORDS);
  let start = 0, end = 0;
  while (start < a.length && start < b.length && a[start] === b[start]) start++;
  while (end < a.length - start && end < b.length - start && a[a.length - 1 - end] === b[b.length - 1 - end]) end++;
  const parts = [
    ["same", a.slice(0, start).join("")],
    ...middle(a.slice(start, a.length - end), b.slice(start, b.length - end)),
    ["same", end ? a.slice(-end).join("") : ""],
  ];
  return { parts: joined(parts), whole };
}

function middle(a, b) {
  const width = b.length + 1, table = new Uint16Array((a.length + 1) * width);
  // Numbers for words: equal words have equal numbers, and numbers are compared ten times as fast.
  const numbers = new Map(), numbered = (list) => Int32Array.from(list, (word) => numbers.get(word) ?? numbers.set(word, numbers.size).size - 1);
  const p = numbered(a), q = numbered(b);
  for (let i = a.length - 1; i >= 0; i--) {
    for (let j = b.length - 1; j >= 0; j--) {
      const down = table[(i + 1) * width + j], right = table[i * width + j + 1];
      table[i * width + j] = p[i] === q[j] ? table[(i + 1) * width + j + 1] + 1 : down > right ? down : right;
    }
  }
  const out = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { out.push(["same", a[i]]); i++; j++; }
    else if (i < a.length && (j === b.length || table[(i + 1) * width + j] >= table[i * width + j + 1])) out.push(["old", a[i++]]);
    else out.push(["new", b[j++]]);
  }
  return out;
}

// Neighbours of one kind as one part. A space that is the same between two changes belongs to both,
// so that a rewritten sentence is read as two sentences and not as words in turns.
function joined(parts) {
  const out = [["same", ""]];
  let old = "", added = "", space = "";
  const flush = () => {
    if (old) out.push(["old", old]);
    if (added) out.push(["new", added]);
    if (space) out.push(["same", space]);
    old = added = space = "";
  };
  for (const [kind, text] of parts) {
    if (!text) continue;
    if (kind === "same" && (old || added) && !space && /^[^\S\n]+$/.test(text)) { space = text; continue; }
    if (kind === "same") {
      flush();
      if (out.at(-1)[0] === "same") out.at(-1)[1] += text; else out.push(["same", text]);
    } else {
      old += space + (kind === "old" ? text : "");
      added += space + (kind === "new" ? text : "");
      space = "";
    }
  }
  flush();
  return out.filter(([, text]) => text);
}
