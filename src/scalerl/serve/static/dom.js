// Elements from the server, questions to it, and links to downloads.
import { el } from "./base.js";
import { answer as fromCopy, copied } from "./copy.js";

// Markup that the server made with the report's own functions, where everything from data is
// escaped. Style attributes come as data-style, since the page's policy refuses them in markup.
export function adopt(node, html) {
  node.innerHTML = html;
  for (const each of node.querySelectorAll("[data-style]")) {
    each.style.cssText = each.dataset.style;
    each.removeAttribute("data-style");
  }
}

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export async function ask(path, body) {
  if (copied) return fromCopy(path, body);
  const options = body === undefined ? {} : {
    method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body),
  };
  const answer = await fetch(path, options);
  if (answer.status === 401) { location.assign("/login" + location.hash); throw new Error("a token is needed"); }
  const found = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(found.error || "the request failed"), { fromServer: true });
  return found;
}

// Links to what can be taken away of the runs that are shown, as they are shown.
export function downloads(ids, numbers, axis) {
  if (copied) return [];
  const q = new URLSearchParams(ids.map((id) => ["run", id]));
  for (const [key, value] of numbers) if (value !== null) q.set(key, value);
  if (axis) q.set("axis", axis);
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? "&theme=dark" : "";
  const made = [["figure.png", "PNG"], ["figure.svg", "SVG"], ["data.csv", "CSV"], ["data.json", "JSON"], ["report.zip", "report"]];
  return made.map(([file, label]) => el("a", { href: `/api/export/${file}?${q}${file.startsWith("figure") ? dark : ""}`, download: true, title: `Download ${file}` }, label));
}
