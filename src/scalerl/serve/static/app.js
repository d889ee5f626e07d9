// Which view is shown, and the keys that work everywhere.
import { el } from "./base.js";
import { notice } from "./copy.js";
import { ask } from "./dom.js";
import { listView } from "./list.js";
import { connect, hear } from "./live.js";
import { here } from "./place.js";
import { runView } from "./run.js";
import { studiesView, studyView } from "./study.js";

const main = document.getElementById("view"), nav = document.getElementById("nav");
let view = null, studies = 0;

function show() {
  const to = here(), { view: name, id } = to;
  if (view?.stays?.(to)) return;
  view?.close();
  const makers = { metrics: () => fetched(import("./metrics.js").then(({ metricsView }) => () => metricsView(main))), runs: () => listView(main), run: () => runView(main, id), episodes: () => fetched(import("./episodes.js").then(({ episodesView }) => () => episodesView(main, id))), studies: () => studiesView(main), study: () => studyView(main, id) };
  view = (makers[name] || makers.runs)();
  tabs(name);
  scrollTo(0, 0);
}

// A view whose modules are fetched when it is opened, so that the list does not wait for them.
function fetched(coming) {
  let inner = null, closed = false;
  coming.then((make) => { if (!closed) inner = make(); });
  return { close() { closed = true; inner?.close(); }, back() { inner?.back(); }, find() { inner?.find(); }, stays: (to) => Boolean(inner?.stays(to)) };
}

function tabs(name) {
  const link = (to, label, on) => el("a", { href: to, "aria-current": on ? "page" : null }, label);
  nav.replaceChildren(link("#/", "Runs", ["runs", "run", "metrics", "episodes"].includes(name)));
  if (studies) nav.append(link("#/studies", `Studies (${studies})`, name === "studies" || name === "study"));
}

async function about() {
  const found = await ask("/api/about").catch(() => null);
  if (!found) return;
  studies = found.studies;
  document.getElementById("where").textContent = found.directories.join(", ");
  document.getElementById("version").textContent = `Version ${found.version}.`;
  tabs(here().view);
}

addEventListener("hashchange", show);
document.querySelector(".skip").addEventListener("click", (event) => { event.preventDefault(); main.focus(); });
addEventListener("keydown", (event) => {
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) && event.target.type !== "checkbox" && event.target.type !== "range";
  if (event.key === "/" && !typing && view?.find) { event.preventDefault(); view.find(); }
  if (event.key === "Escape" && !typing) view?.back?.();
});
hear((news) => { if (news.kind === "studies" || news.kind === "back") about(); });
notice();
connect();
show();
about();
