// The two pages of a run.
import { el } from "./base.js";
import { link } from "./place.js";

export const tabs = (id, on) => el("nav", { class: "tabs", "aria-label": "Of this run" },
  el("a", { href: link("run", id), "aria-current": on === "run" ? "page" : null }, "Curve"),
  el("a", { href: link("episodes", id), "aria-current": on === "episodes" ? "page" : null }, "Episodes"));
