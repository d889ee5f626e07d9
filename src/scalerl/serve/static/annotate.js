// Pins, tags and notes of the chosen runs, and the views that were saved.
import { el } from "./base.js";
import { ask, setText } from "./dom.js";
import { runs } from "./live.js";

// Change the annotation of runs; the list shows it at once, and other pages within a second.
export async function annotate(ids, change) {
  const found = await ask("/api/annotations", { runs: ids, ...change });
  for (const run of found.runs) if (runs.has(run.id)) runs.set(run.id, run);
}

// A toolbar for the runs that chosen() gives; changed() draws the list again.
export function annotateTools(chosen, changed) {
  const said = el("span", { class: "said", role: "status" });
  const change = async (asked) => {
    setText(said, "");
    try { await annotate(chosen(), asked); } catch (error) { setText(said, error.fromServer ? error.message : "The server does not answer."); }
    changed();
  };
  const button = (name, label) => el("button", { type: "button", onclick: () => change({ [name]: !chosen().every((id) => runs.get(id)?.[name]) }) }, label);
  const pin = button("pinned", "pin"), hide = button("hidden", "hide");
  const tag = el("input", { type: "text", placeholder: "tag", "aria-label": "Tag for the chosen runs", maxlength: 40, onkeydown: (event) => { if (event.key === "Enter") add(); } });
  const add = () => { if (tag.value.trim()) { change({ add: [tag.value] }); tag.value = ""; } };
  const note = el("input", { type: "text", class: "note", placeholder: "note", "aria-label": "Note for the chosen runs", maxlength: 4000, onchange: () => change({ note: note.value }) });
  const tags = el("span", { class: "tags" });
  const node = el("span", { class: "tools annotate" }, pin, hide, tag, el("button", { type: "button", onclick: add }, "add tag"), tags, note, said);
  function update() {
    const mine = chosen().map((id) => runs.get(id)).filter(Boolean);
    setText(pin, mine.length && mine.every((r) => r.pinned) ? "unpin" : "pin");
    setText(hide, mine.length && mine.every((r) => r.hidden) ? "unhide" : "hide");
    const known = [...new Set(mine.flatMap((r) => r.tags))];
    if (known.join() !== tags.dataset.known) {
      tags.dataset.known = known.join();
      tags.replaceChildren(...known.map((each) => el("button", { type: "button", class: "tag", "aria-label": `Remove the tag ${each}`, onclick: () => change({ remove: [each] }) }, `${each} ×`)));
    }
    if (document.activeElement !== note) note.value = mine.length === 1 ? mine[0].note : "";
  }
  return { node, update };
}

// The views that were saved under a name: an address each.
export function savedViews() {
  const choice = el("select", { "aria-label": "Saved views", onchange: () => { if (choice.value) location.hash = choice.value; choice.value = ""; } }, el("option", { value: "" }, "saved views"));
  const name = el("input", { type: "text", placeholder: "name of this view", "aria-label": "Name of this view", maxlength: 80 });
  const said = el("span", { class: "said", role: "status" });
  const send = async (body) => {
    setText(said, "");
    try { show(await ask("/api/views", body)); name.value = ""; } catch (error) { setText(said, error.fromServer ? error.message : "The server does not answer."); }
  };
  const node = el("details", { class: "menu" }, el("summary", {}, "views"), el("div", { class: "tools" }, choice, name,
    el("button", { type: "button", onclick: () => send({ name: name.value, address: location.hash || "#/" }) }, "save"),
    el("button", { type: "button", onclick: () => send({ name: name.value, address: null }) }, "remove"), said));
  function show(views) {
    choice.replaceChildren(el("option", { value: "" }, views.length ? `saved views (${views.length})` : "no saved views"), ...views.map((v) => el("option", { value: v.address }, v.name)));
  }
  node.addEventListener("toggle", () => { if (node.open) ask("/api/views").then(show, () => {}); });
  return node;
}
