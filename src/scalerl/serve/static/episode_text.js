// Text that a model or a tool wrote, which may be hostile: it only ever becomes text, in bounded
// lengths, and what cannot be seen or turns a line around is written as an escape.
import { el } from "./base.js";

// Control and format characters, lone surrogates and everything that is drawn as nothing; without
// the line break, the tab, and the joiners that scripts and emoji are written with.
const HIDDEN = /(?![\n\t\u200c\u200d\ufe0f])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\p{Default_Ignorable_Code_Point}]/gu;
// Characters of one token that are drawn: a longer one is an attack or an accident, not a word.
const MOST_OF_TOKEN = 400;

// The escape of one character, as Python and JavaScript write it.
export function escaped(character) {
  const code = character.codePointAt(0).toString(16);
  return code.length > 4 ? `\\u{${code}}` : `\\u${code.padStart(4, "0")}`;
}

// Text with escapes in one string: for titles, labels and previews.
export const plain = (text) => String(text ?? "").replace(HIDDEN, escaped);

// The nodes of a text: strings, and an element for each escape.
export function nodes(text) {
  const out = [];
  let end = 0;
  for (const found of text.matchAll(HIDDEN)) {
    if (found.index > end) out.push(text.slice(end, found.index));
    out.push(el("span", { class: "esc" }, escaped(found[0])));
    end = found.index + found[0].length;
  }
  if (end < text.length) out.push(text.slice(end));
  return out;
}

// A token as an isolated element: its direction cannot reach its neighbours. A line break in it
// has a sign, since a colour behind a line break is not seen.
export function token(text, i, name) {
  const cut = text.length > MOST_OF_TOKEN ? [...nodes(text.slice(0, MOST_OF_TOKEN)), el("span", { class: "esc" }, `… ${text.length - MOST_OF_TOKEN} more characters`)] : nodes(text);
  const shown = cut.flatMap((part) => typeof part === "string" && part.includes("\n") ? part.split(/(?<=\n)/).flatMap((line) => line.endsWith("\n") ? [line.slice(0, -1), el("span", { class: "break" }), "\n"] : [line]) : [part]);
  return el("bdi", { class: `t ${name}`, "data-i": i }, shown);
}
