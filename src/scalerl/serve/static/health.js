// The health of a run at a glance: how old its tokens are, what waits for what, which prompts still
// teach, what is cut off, its environment, its machine and its cost. Means over the last steps.
import { link } from "./place.js";
import { amount, el } from "./base.js";
import { ask, setText } from "./dom.js";
import { parse, waits } from "./words.js";

// Steps that the means are over.
const LAST = 50;
// From these shares on a card asks for a look: they are seldom right, and never by accident.
const TRUNCATED = 0.05, FAILED = 0.05, TOOLS = 0.1, WAITING = 0.5, NO_GRADIENT = 0.8, MEMORY = 0.92;

const percent = (v) => v === null || v === undefined ? "–" : `${(100 * v).toFixed(v < 0.0995 && v > 0 ? 1 : 0)} %`;
const number = (v, digits = 3) => v === null || v === undefined ? "–" : String(+v.toPrecision(digits));

// A bar of parts: [name, share, class of the style sheet]; what is left is empty.
function bar(parts) {
  // Thinner than a pixel is nothing.
  const known = parts.filter(([, share]) => share > 0.0005);
  return [
    el("div", { class: "stack", role: "img", "aria-label": known.map(([name, share]) => `${name} ${percent(share)}`).join(", ") },
      known.map(([, share, style]) => { const part = el("span", { class: style }); part.style.width = `${100 * share}%`; return part; })),
    el("ul", { class: "parts", "aria-hidden": "true" }, known.map(([name, share, style]) => el("li", {}, el("span", { class: `dot ${style}` }), ` ${name} `, el("b", {}, percent(share))))),
  ];
}

const card = (title, look, ...inside) => el("article", { class: "card vital" }, el("h3", {}, title, look ? el("span", { class: "flag", title: look }, "look") : ""), ...inside, look ? el("p", { class: "small" }, look) : "");
const fact = (value, words) => el("p", { class: "vital-fact" }, el("b", {}, value), ` ${words}`);

function staleness({ staleness: s, mismatch }) {
  if (!s.lags.length) return null;
  const most = Math.max(...s.lags.map((l) => l.share)), kls = s.lags.some((l) => l.kl !== null);
  const rows = s.lags.slice(0, 12).map((l) => {
    const fill = el("span", { class: "fill" });
    fill.style.width = `${100 * l.share / most}%`;
    return el("tr", {}, el("th", { scope: "row" }, l.lag), el("td", { class: "lag" }, fill), el("td", {}, percent(l.share)), kls ? el("td", {}, number(l.kl)) : "");
  });
  return card("Staleness", "",
    fact(number(s.mean), `versions on average, at most ${s.max}`),
    el("table", { class: "lags" }, el("caption", { class: "skip" }, "Tokens by their staleness"), el("thead", {}, el("tr", {}, ["versions", "", "tokens", ...(kls ? ["KL, nats"] : [])].map((h) => h ? el("th", { scope: "col" }, h) : el("td", {})))), el("tbody", {}, rows)),
    el("p", { class: "small" }, `KL of generators and trainer ${number(mismatch.kl)} nats; effective sample size ${percent(mismatch.ess)}${kls ? "" : ". The record has no KL of each staleness"}.`));
}

function waiting({ waits: w }) {
  const { trainer: t, generators: g } = w;
  if (!Object.keys(t).length && !Object.keys(g).length) return null;
  const idle = (t.check_wait || 0) + (t.rollout_wait || 0);
  const look = idle > WAITING ? `The trainer waits ${percent(idle)} of its time${(t.check_wait || 0) > (t.rollout_wait || 0) ? ", mostly for checks or environments" : ", mostly for rollouts"}.` : (g.wait || 0) > WAITING ? `The generators wait ${percent(g.wait)} of their time.` : "";
  return card("What waits for what", look,
    el("h4", {}, "Trainer"), ...bar([["trains", t.train, "p0"], ["waits for checks or environments", t.check_wait, "p1"], ["waits for rollouts", t.rollout_wait, "rest"]]),
    el("h4", {}, "Generators"), ...bar([["write", g.generate, "p0"], ["load weights", g.hand_over, "p2"], ["wait", g.wait, "rest"]]),
    w.now ? el("p", { class: "small" }, `Now: ${waits({ waits_for: w.now })}.`) : "");
}

function prompts({ prompts: p, held_out: h }) {
  if (p.with_gradient === null && !h) return null;
  const rest = 1 - (p.with_gradient ?? 0), split = p.always_solved !== null && p.never_solved !== null;
  const parts = split ? [["with gradient", p.with_gradient, "p0"], ["always solved", p.always_solved, "p2"], ["never solved", p.never_solved, "p1"], ["other", Math.max(rest - p.always_solved - p.never_solved, 0), "rest"]] : [["with gradient", p.with_gradient, "p0"], ["all rollouts the same", rest, "rest"]];
  return card("Prompts", p.with_gradient !== null && rest > NO_GRADIENT ? `${percent(rest)} of the prompts teach nothing: all their rollouts have one reward.` : "",
    ...(p.with_gradient === null ? [] : [el("h4", {}, "In training"), ...bar(parts)]),
    ...(h ? [el("h4", {}, `Held out, step ${h.step.toLocaleString("en")}`), ...bar([["sometimes", 1 - h.always_solved - h.never_solved, "p0"], ["always solved", h.always_solved, "p2"], ["never solved", h.never_solved, "p1"]])] : []));
}

// Links to the episodes that a number is about: [words, filter] each.
const read = (id, ...links) => el("p", { class: "small" }, "Read ", links.flatMap(([words, filter], i) => [i ? ", or " : "", el("a", { href: link("episodes", id, filter) }, words)]), ".");

function truncation({ truncation: t }, id) {
  if (t.training === null && t.validation === null) return null;
  const worst = Math.max(t.training ?? 0, t.validation ?? 0);
  return card("Cut off", worst >= TRUNCATED ? "Answers reach the token limit: their reward says little." : "",
    fact(percent(t.training), "of the rollouts in training"), fact(percent(t.validation), "of the answers of the last validation"),
    t.interrupted ? fact(percent(t.interrupted), "with thinking ended by its budget") : "",
    // What is cut off has seldom answered: a verifier that passes it has a fault.
    worst > 0 ? read(id, ["those cut off", { truncated: true }], ["those cut off and scored right", { truncated: true, correct: "true" }]) : "");
}

function environment({ environment: e, unscored }, id) {
  const reasons = Object.entries(unscored || {}).sort((a, b) => b[1] - a[1]).slice(0, 3);
  if (!e && !reasons.length) return null;
  const look = e?.failed > FAILED ? `${percent(e.failed)} of the episodes failed in the environment.` : e?.tool_failures > TOOLS ? `${percent(e.tool_failures)} of the tool calls failed.` : "";
  return card("Environment", look,
    ...(e ? [fact(`${number(e.seconds)} s`, "in the environment per episode"), fact(number(e.turns), "turns per episode"), e.tool_failures === null ? "" : fact(percent(e.tool_failures), "of the tool calls failed"), fact(percent(e.failed), "of the episodes failed"), fact(percent(e.out_of_turns), "ran out of turns")] : []),
    ...reasons.map(([why, n]) => fact(n.toLocaleString("en"), `without a reward: ${why}`)),
    e?.tool_failures > 0 ? read(id, ["those in which a tool failed", { tool_failed: true }]) : "",
    e?.failed > 0 || reasons.length ? read(id, ["those without a reward", { correct: "none" }]) : "");
}

function line(values, label) {
  const known = values.filter((v) => v !== null && v !== undefined);
  if (known.length < 2) return "";
  const d = values.map((v, i) => v === null || v === undefined ? "" : `${i ? "L" : "M"}${(200 * i / (values.length - 1)).toFixed(1)} ${(30 - 28 * Math.min(v, 1)).toFixed(1)}`).join("").replace(/^L/, "M");
  return el("*svg", { viewBox: "0 0 200 32", preserveAspectRatio: "none", class: "trend", role: "img", "aria-label": `${label}: from ${percent(known[0])} to ${percent(known.at(-1))}` }, el("*path", { d, class: "sparkline" }));
}

function machine({ system: s }, samples) {
  if (!s) return null;
  const used = s.memory_total ? s.memory_used / s.memory_total : null;
  const out = [s.cpu === null ? "" : fact(percent(s.cpu), `of ${s.cores ?? "its"} cores busy`), line(samples.map((x) => x.cpu), "Processors")];
  if (used !== null) out.push(fact(percent(used), `of ${amount(s.memory_total)}B memory in use${s.memory_run === null ? "" : `, ${amount(s.memory_run)}B by the run`}`), line(samples.map((x) => x.memory_total ? x.memory_used / x.memory_total : null), "Memory"));
  (s.gpus || []).forEach((gpu, i) => out.push(fact(percent(gpu.busy), `GPU ${i} busy, ${percent(gpu.memory_used / gpu.memory_total)} of ${amount(gpu.memory_total)}B`), line(samples.map((x) => x.gpus?.[i]?.busy ?? null), `GPU ${i}`)));
  return card("Machine", used > MEMORY ? "Memory is nearly full." : "", ...out);
}

// state.hour is what a device-hour costs; keep() notes it in the address.
export function healthPart(id, state, keep) {
  const grid = el("div", { class: "vitals" }), said = el("span", { class: "small", role: "status" });
  const price = el("input", { type: "text", inputmode: "decimal", placeholder: "cost of one", "aria-label": "Cost of a device-hour", value: state.hour ?? "", onchange: () => {
    const v = parse(price.value);
    price.setAttribute("aria-invalid", String(Number.isNaN(v)));
    if (!Number.isNaN(v)) { state.hour = v; keep(); load(); }
  } });
  const money = el("div");
  const cost = el("article", { class: "card vital" }, el("h3", {}, "Cost"), el("p", { class: "tools" }, el("label", {}, "a device-hour", price)), money);
  const node = el("section", { "aria-labelledby": "health", hidden: true }, el("h2", { id: "health" }, "Health"), said, grid);
  let open = true, reading = false;

  function showCost(c) {
    money.replaceChildren(...(c ? [fact(amount(c.spent), "so far"), fact(number(c.per_step), "a step"), c.whole === null ? "" : fact(amount(c.whole), "for the whole budget")] : [el("p", { class: "small" }, "Name a price to see what the run has cost, and will.")]));
  }

  async function load() {
    if (reading) return;
    reading = true;
    const asked = state.hour === null ? "" : `&price=${state.hour}`;
    try {
      const found = await ask(`/api/v1/runs/${id}/health?last=${LAST}${asked}`);
      const samples = found.system ? (await ask(`/api/v1/runs/${id}/system?points=120`)).samples : [];
      if (!open) return;
      node.hidden = !found.steps;
      setText(said, `Means over the last ${found.steps} steps, to step ${(found.step ?? 0).toLocaleString("en")}.`);
      showCost(found.cost);
      grid.replaceChildren(...[staleness, waiting, prompts, truncation, environment].map((make) => make(found, id)), machine(found, samples) ?? "", cost);
      for (const each of [...grid.childNodes]) if (each.nodeType !== 1) each.remove();
    } catch { /* a log of another framework has no steps */ } finally { reading = false; }
  }
  return { node, load, close() { open = false; } };
}
