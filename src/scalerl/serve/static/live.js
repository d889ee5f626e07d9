// What the server tells: runs by id, and who wants to know of changes.
import { ask } from "./dom.js";

export const runs = new Map();
const hearers = new Set();
let source = null, lost = null;
// Whether the list was told at all: without it, nothing can be said of there being no runs.
export const told = { once: false };

export const hear = (hearer) => { hearers.add(hearer); return () => hearers.delete(hearer); };
const say = (news) => { for (const hearer of [...hearers]) hearer(news); };

function gone(text) {
  const line = document.getElementById("gone");
  line.hidden = !text;
  line.textContent = text || "";
  document.body.classList.toggle("is-gone", Boolean(text));
}

export function connect() {
  if (source) source.close();
  source = new EventSource("/api/events");
  source.addEventListener("all", (event) => {
    clearTimeout(lost);
    lost = null;
    gone("");
    runs.clear();
    for (const run of JSON.parse(event.data)) runs.set(run.id, run);
    const again = told.once;
    told.once = true;
    say({ kind: again ? "back" : "all" });
  });
  source.addEventListener("run", (event) => {
    const news = JSON.parse(event.data);
    runs.set(news.run.id, news.run);
    say(news);
  });
  source.addEventListener("gone", (event) => {
    const news = JSON.parse(event.data);
    runs.delete(news.id);
    say(news);
  });
  source.addEventListener("studies", () => say({ kind: "studies" }));
  source.addEventListener("error", drop);
}

function drop() {
  if (lost) return;
  lost = setTimeout(() => {
    gone("The server is gone. The page shows what it was last told, and goes on by itself when it is back.");
    retry();
  }, 1200);
}

// The browser reconnects by itself after a break, but not after an answer that is no stream.
function retry() {
  if (!lost) return;
  if (source.readyState === EventSource.CLOSED) ask("/api/about").then(connect, () => {});
  setTimeout(retry, 2000);
}
