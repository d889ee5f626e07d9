// Studies: the list of them, and one with its table, its knob map and what the race does next.
import { el } from "./base.js";
import { copied } from "./copy.js";
import { adopt, ask, setText } from "./dom.js";
import { smallTips } from "./hover.js";
import { hear, runs } from "./live.js";
import { link } from "./place.js";
import { score } from "./words.js";

export function studiesView(main) {
  const box = el("div");
  main.replaceChildren(el("h1", {}, "Studies"), box);
  let open = true;
  async function load() {
    const list = await ask("/api/studies").catch(() => null);
    if (!open || !list) return;
    if (!list.length) { box.replaceChildren(el("div", { class: "empty" }, el("p", {}, "No studies here yet. Start one: "), el("pre", {}, el("code", {}, "scalerl study DIR scalerl tiny --leave-one-out")))); return; }
    box.replaceChildren(el("div", { class: "members" }, ...list.map((s) => el("article", { class: "card" },
      el("h2", {}, el("a", { href: link("study", s.id) }, s.name)),
      el("p", { class: "small" }, s.problem || `${s.members} runs: ${Object.entries(s.status).map(([word, n]) => `${n} ${word}`).join(", ")}`),
      el("p", { class: "small" }, s.where)))));
  }
  load();
  const stop = hear((news) => { if (news.kind === "studies" || news.kind === "back") load(); });
  const timer = setInterval(load, 10000);
  return { close() { open = false; stop(); clearInterval(timer); } };
}

// What the race does next, and why.
function raced(s) {
  const { race } = s, next = s.members.find((m) => m.name === race.next);
  const chances = Object.entries(race.chances).sort((a, b) => b[1] - a[1]);
  const share = race.spent / race.of;
  return [
    el("h2", { class: "tight" }, "The race"),
    el("p", {}, race.ended ? "It is over: " : ["Next is ", el("b", {}, next?.run ? el("a", { href: link("run", next.run) }, race.next) : race.next), ": "], `${race.why}.`),
    el("p", { class: "small" }, el("progress", { max: 1, value: share, "aria-label": "Share of all budgets that is spent" }), ` ${Math.round(100 * share)} % of all budgets spent; ${race.decided} of ${race.decided + chances.length} verdicts decided`, chances.length ? `; still open, with the chance that the budget decides it: ${chances.map(([name, p]) => `${name} ${Math.round(100 * p)} %`).join(", ")}` : "", "."),
  ];
}

export function studyView(main, id) {
  const title = el("h1", {}, "…"), sub = el("p", { class: "sub", role: "status" }, "Working it out…");
  const answer = el("section", { "aria-label": "Answer" }), race = el("div");
  const curves = el("div", { id: "curves" });
  // Only a study of a force has doses.
  const doses = el("div", { id: "force" }), force = el("section", { "aria-labelledby": "f", hidden: true }, el("h2", { id: "f" }, "Doses"), doses);
  const table = el("div", { id: "variants" }), map = el("div", { id: "knobs" }), members = el("div", { class: "members" });
  // Shown when it is filled, so that its headings do not move.
  const below = el("div", { hidden: true },
    answer, force,
    el("section", { "aria-labelledby": "c" }, el("h2", { id: "c" }, "Curves"), curves), race,
    el("section", { "aria-labelledby": "t" }, el("h2", { id: "t" }, "Variants"), table),
    el("section", { "aria-labelledby": "m" }, el("h2", { id: "m" }, "Knob map"), map),
    el("section", { "aria-labelledby": "r" }, el("h2", { id: "r" }, "Runs"), members),
    copied ? "" : el("p", { class: "tools" }, el("span", { class: "small" }, "Take it with you:"), el("a", { href: `/api/studies/${id}/report.zip`, download: true }, "report")));
  main.replaceChildren(el("p", { class: "small" }, el("a", { href: "#/studies" }, "← all studies")), title, sub, below);
  let open = true, before = "", reading = false, again = false;
  const parts = {};
  smallTips(curves);
  const put = (node, html) => { if (parts[node.id] !== html) { parts[node.id] = html; adopt(node, html); } };

  async function load() {
    if (reading) { again = true; return; }
    reading = true;
    try {
      const s = await ask(`/api/studies/${id}`);
      if (!open) return;
      setText(title, s.name);
      document.title = `${s.name} · scalerl`;
      const counts = {};
      for (const m of s.members) counts[m.status] = (counts[m.status] || 0) + 1;
      setText(sub, `${s.where} · reference ${s.reference} · ${Object.entries(counts).map(([word, n]) => `${n} ${word}`).join(", ")}`);
      if (before !== s.html.answer) { before = s.html.answer; adopt(answer, s.html.answer); }
      force.hidden = !s.html.force;
      put(doses, s.html.force);
      put(curves, s.html.curves);
      put(table, s.html.table);
      put(map, s.html.knob_map);
      race.replaceChildren(...(s.race ? raced(s) : []));
      members.replaceChildren(...s.members.map((m) => el("article", { class: "card" },
        el("p", {}, m.run ? el("a", { href: link("run", m.run) }, m.name) : m.name),
        el("p", { class: "small" }, el("span", { class: `status ${m.status}` }, m.status), ` · step ${m.step} · ${score(m.pass_rate)}`),
        m.why ? el("p", { class: "small" }, m.why) : "")));
      below.hidden = false;
    } catch (error) { if (open) setText(sub, error.fromServer ? error.message : "The server does not answer."); }
    finally { reading = false; if (again) { again = false; setTimeout(load, 1000); } }
  }
  load();
  let due = null;
  const stop = hear((news) => {
    const mine = news.kind === "back" || runs.get(news.run?.id)?.study === id || news.kind === "studies";
    if (mine && !due) due = setTimeout(() => { due = null; load(); }, 3000);
  });
  return { close() { open = false; stop(); clearTimeout(due); document.title = "scalerl"; }, back() { location.hash = "#/studies"; } };
}
