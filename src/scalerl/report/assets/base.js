// Elements and numbers, for the report and the live page. Text from runs only ever becomes text.
const SVG = "http://www.w3.org/2000/svg";
const SUFFIXES = ["", "k", "M", "G", "T", "P", "E", "Z", "Y"];

// An element with attributes, event listeners ("onclick") and children; "*svg" makes an SVG element.
export function el(name, attributes = {}, ...children) {
  const node = name[0] === "*" ? document.createElementNS(SVG, name.slice(1)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined));
  return node;
}

// An amount of compute as report/words.py writes it: three digits and an SI suffix.
export function amount(v) {
  if (v === null || v === undefined || Number.isNaN(v)) return "–";
  if (!Number.isFinite(v)) return "never";
  if (v === 0) return "0";
  if (Math.abs(v) < 1e-3) return String(+v.toPrecision(3));
  const power = Math.min(Math.max(Math.floor(Math.log10(Math.abs(v)) / 3 + 1e-9), 0), 8);
  return String(+(v / 1000 ** power).toPrecision(3)) + SUFFIXES[power];
}

// A name in about n characters, cut in the middle: names of runs often differ at the end only.
export const short = (name, n) => name.length > n ? name.slice(0, n >> 1) + "…" + name.slice(1 - (n >> 1)) : name;
