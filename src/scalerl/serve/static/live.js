// The runs by id as the server last sent them, and the listeners for changes.
import { copied } from "./copy.js";
import { ask } from "./dom.js";

export const runs = new Map();
const hearers = new Set();
let source = null, lost = null;
// Whether the list has been received: before that, an empty list does not mean that there are no runs.
export const received = { list: false };

export const hear = (hearer) => { hearers.add(hearer); return () => hearers.delete(hearer); };
const say = (news) => { for (const hearer of [...hearers]) hearer(news); };

function gone(text) {
  const line = document.getElementById("gone");
  line.hidden = !text;
  line.textContent = text || "";
  document.body.classList.toggle("is-gone", Boolean(text));
}

export async function connect() {
  if (copied) {
    for (const run of await ask("/api/runs")) runs.set(run.id, run);
    received.list = true;
    say({ kind: "all" });
    return;
  }
  if (source) source.close();
  source = new EventSource("/api/events");
  source.addEventListener("all", (event) => {
    clearTimeout(lost);
    lost = null;
    gone("");
    runs.clear();
    for (const run of JSON.parse(event.data)) runs.set(run.id, run);
    const again = received.list;
    received.list = true;
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
    gone("The connection to the server is lost. The page shows the last known state and reconnects by itself.");
    retry();
  }, 1200);
}

// The browser reconnects by itself after a break, but not after an answer that is no stream.
function retry() {
  if (!lost) return;
  if (source.readyState === EventSource.CLOSED) ask("/api/about").then(connect, () => {});
  setTimeout(retry, 2000);
}
