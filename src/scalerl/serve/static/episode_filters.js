// Which episodes are asked for: in the address, in the API, and in the bar of fields.
import { el } from "./base.js";

export const FILTERS = ["source", "step_from", "step_to", "task", "prompt", "finish", "correct", "truncated", "tool_failed", "reward_min", "reward_max", "length_min", "length_max", "text", "regex"];
const REST = ["sort", "open", "colour", "beside", "a", "b"];
const SORTS = { newest: "newest first", oldest: "oldest first", reward: "lowest reward first", "-reward": "highest reward first", length: "shortest first", "-length": "longest first" };

export const fromAddress = (params) => Object.fromEntries([...FILTERS, ...REST].map((key) => [key, params.get(key) || ""]));

// The state as parameters of a request, without what is only about the page. The API has two
// parameters for what to find; the page has one field, and a button that says how it is read.
export function asked(state, more = {}) {
  const query = new URLSearchParams();
  for (const key of FILTERS) if (state[key]) query.set(key, state[key]);
  if (state.regex) { query.delete("text"); query.delete("regex"); if (state.text) query.set("regex", state.text); }
  for (const [key, value] of Object.entries(more)) if (value) query.set(key, value);
  return query.toString();
}

export const filtered = (state) => FILTERS.some((key) => key !== "regex" && state[key]);

// The bar. changed() is called after the state has changed.
export function filterBar(state, changed) {
  const inputs = {};
  const set = (key, value) => { state[key] = value; changed(key); };
  const whole = (key, label, width) => inputs[key] = el("input", { type: "text", inputmode: "numeric", class: width, "aria-label": label, value: state[key], onchange: () => {
    const text = inputs[key].value.trim(), wrong = !/^\d*$/.test(text);
    inputs[key].setAttribute("aria-invalid", String(wrong));
    if (!wrong) set(key, text);
  } });
  const word = (key, hint, label) => inputs[key] = el("input", { type: "search", placeholder: hint, "aria-label": label, value: state[key], onchange: () => set(key, inputs[key].value.trim()) });
  let typing = null;
  const text = inputs.text = el("input", { type: "search", class: "words", placeholder: "find in text", "aria-label": "Find in text", "aria-keyshortcuts": "f /", value: state.text, oninput: () => { clearTimeout(typing); typing = setTimeout(search, 200); }, onchange: () => search() });
  // Also when the field is left, or the next field's change would put back the old text.
  const search = () => { clearTimeout(typing); if (text.value !== state.text) set("text", text.value); };
  const toggle = (key, label, title) => inputs[key] = el("button", { type: "button", title, "aria-pressed": "false", onclick: () => set(key, state[key] ? "" : "1") }, label);
  const sort = el("select", { "aria-label": "Order", onchange: () => set("sort", sort.value) }, Object.entries(SORTS).map(([value, label]) => el("option", { value }, label)));
  const clear = el("button", { type: "button", onclick: () => { for (const key of FILTERS) state[key] = ""; changed("all"); } }, "clear filters");
  const node = el("div", { class: "tools filters", role: "search", "aria-label": "Filter episodes" },
    text, toggle("regex", ".*", "Read the text as a regular expression"), el("label", {}, "steps", whole("step_from", "From step", "step"), "to", whole("step_to", "To step", "step")),
    word("prompt", "prompt id", "Prompt"), toggle("truncated", "truncated", "Only episodes that were cut off"), toggle("tool_failed", "tool failed", "Only episodes with a failed tool call"),
    clear, el("span", { class: "gap" }), sort);
  function show() {
    for (const [key, input] of Object.entries(inputs)) {
      if (input.tagName === "BUTTON") input.setAttribute("aria-pressed", String(Boolean(state[key])));
      else if (document.activeElement !== input) input.value = state[key];
    }
    sort.value = state.sort || "newest";
    clear.disabled = !filtered(state);
  }
  show();
  return { node, show, focus() { text.focus(); text.select(); }, close() { clearTimeout(typing); } };
}
