// A copy of the page without its server: answers come from files that were written beside it.
// Each file calls scalerlAnswer(key, value), because pages from disk may load scripts and not fetch.
import { matching, histogramsOf, pageOf } from "./copy_episodes.js";

const index = window.scalerlCopy || null;
export const copied = index !== null;
const known = new Map(), waiting = new Map();

window.scalerlAnswer = (key, value) => known.set(key, value);

// One file, once.
function file(name) {
  if (!waiting.has(name)) {
    waiting.set(name, new Promise((resolve, reject) => {
      const script = document.createElement("script");
      script.onload = resolve;
      script.onerror = () => { waiting.delete(name); reject(missing("A file of this copy is missing.")); };
      script.src = `data/${name}`;
      document.head.append(script);
    }));
  }
  return waiting.get(name);
}

const missing = (why) => Object.assign(new Error(why), { fromServer: true });
const SETTLED = ["points", "limit", "last", "sort"];
const LEFT_OUT = "is not in this copy: scalerl serve has it.";

async function stored(key) {
  if (!(key in index.files)) throw missing(`${key.startsWith("fit ") || key.startsWith("compare ") ? "This fit or comparison" : "This"} ${LEFT_OUT}`);
  await file(index.files[key]);
  return structuredClone(known.get(key));
}

// The answer to a request of the page.
export async function answer(path, body) {
  const [place, query = ""] = path.split("?"), params = new URLSearchParams(query);
  const episodes = /^\/api\/v1\/runs\/([^/]+)\/(?:episodes(?:\/(.+))?|prompts\/(.+)\/episodes)$/.exec(place);
  if (episodes) return ofEpisodes(episodes, params);
  if (place === "/api/steps") return ofSteps(params);
  if (/^\/api\/v1\/runs\/[^/]+\/health$/.test(place)) return ofHealth(place, Number(params.get("price") || 0));
  if (body !== undefined) return stored(question(place, body));
  // How many points, and means over how many steps, was settled when the copy was made.
  const asked = [...params].some(([name, value]) => value && !SETTLED.includes(name));
  return stored(asked || path in index.files ? path : place);
}

// Fits of the whole run on its own axis, and verdicts on all runs together, were stored; what the
// page adds to be quick makes no difference.
function question(place, body) {
  const { quick, run, runs, pool, ...more } = body;
  const key = place === "/api/fit" ? `fit ${run}` : `compare ${[...(runs || [])].sort().join()}${pool ? " pooled" : ""}`;
  return Object.values(more).some((value) => value !== null && value !== false) ? `${key} otherwise` : key;
}

async function ofEpisodes([, run, one, prompt], params) {
  const base = `/api/v1/runs/${run}/episodes`;
  if (one && one !== "histograms") return stored(`${base}/${decodeURIComponent(one)}`);
  const facts = await stored(base);
  if (prompt) params.set("prompt", decodeURIComponent(prompt));
  let found = matching(facts, params);
  const wanted = (params.get("text") || params.get("regex") || "").trim();
  if (wanted) {
    const whole = await Promise.all(found.map((each) => stored(`${base}/${each.id}`)));
    found = matching(found, params, whole);
  }
  return one ? histogramsOf(facts, found) : pageOf(facts, found, params, prompt ? "oldest" : "newest");
}

// Costs were stored at a price of 1.
async function ofHealth(place, price) {
  const found = await stored(place);
  const cost = found.cost && price > 0 ? Object.fromEntries(Object.entries(found.cost).map(([name, value]) => [name, value === null ? null : value * price])) : null;
  return { ...found, cost };
}

// Step metrics of several runs, each stored with all its metrics.
async function ofSteps(params) {
  const wanted = params.getAll("metric"), from = Number(params.get("from") || -Infinity), to = Number(params.get("to") || Infinity);
  const runs = [], left = [];
  for (const id of params.getAll("run")) {
    const found = await stored(`/api/steps?run=${id}`).catch((error) => { left.push(error.message); return null; });
    if (!found) continue;
    const keep = found.step.map((step) => step >= from && step <= to);
    const pick = (list) => list && list.filter((_, i) => keep[i]);
    const metrics = {};
    for (const name of wanted) if (found.metrics[name]) metrics[name] = Object.fromEntries(Object.entries(found.metrics[name]).map(([kind, list]) => [kind, pick(list)]));
    runs.push({ ...found, step: pick(found.step), metrics });
  }
  return { runs, left_out: left };
}

// A line on the page that says what it is.
export function notice() {
  if (!copied) return;
  document.body.classList.add("is-copy");
  const line = document.createElement("p");
  line.className = "small copy-notice";
  line.textContent = `A copy of ${index.made}. ${index.left_out.join(" ")}`;
  document.querySelector("header.top").append(line);
}
