// Keys of the episodes view, and the window that lists them.
import { el } from "./base.js";

const MEANING = [
  ["j", "next episode"], ["k", "previous episode"], ["n", "next failure: wrong, cut off, or a tool failed"], ["f", "go to the filter"],
  ["g", "the group of this episode, side by side"], ["v", "this prompt across versions"], ["e", "the episode alone"], ["c", "next colour of tokens"],
  ["← →", "from token to token, in coloured text; from bar to bar, in a histogram (with Shift: a range)"], ["?", "this list"], ["Esc", "close, or back to the run"],
];

// actions: a function for each key. Returns what listens, and help().
export function keys(actions) {
  const dialog = el("dialog", { class: "keys", "aria-labelledby": "keys-title" },
    el("h2", { id: "keys-title" }, "Keys"),
    el("dl", {}, MEANING.map(([key, text]) => el("div", {}, el("dt", {}, key.split(" ").map((each) => el("kbd", {}, each))), el("dd", {}, text)))),
    el("form", { method: "dialog" }, el("button", { type: "button", onclick: () => dialog.close() }, "close")));
  const help = () => { if (!dialog.open) dialog.showModal(); };

  function pressed(event) {
    const at = event.target;
    // Out of a field, so that the next key is a command.
    if ((event.key === "Escape" && /^(INPUT|SELECT)$/.test(at.tagName)) || (event.key === "Enter" && at.type === "search")) { at.blur(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey || dialog.open || (/^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName) && at.type !== "radio")) return;
    const action = event.key === "?" ? help : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }
  addEventListener("keydown", pressed);
  return { dialog, help, close() { removeEventListener("keydown", pressed); dialog.remove(); } };
}
