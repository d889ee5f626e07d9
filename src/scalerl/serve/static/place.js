// What is shown is in the address: #/run/ID?from=…&to=…, so that a link restores the view.
export function here() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [view = "", id = ""] = path.split("/");
  return { view: view || "runs", id, params: new URLSearchParams(query) };
}

export function link(view, id = "", params = {}) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "" && value !== false) query.set(key, value === true ? "1" : value);
  }
  const text = query.toString();
  return `#/${view === "runs" ? "" : view + (id ? "/" + id : "")}${text ? "?" + text : ""}`;
}

// Another state of the same view: no new entry in the history for every pixel of a drag.
export function note(view, id, params) {
  const to = link(view, id, params);
  if (to !== location.hash) history.replaceState(null, "", to);
}

// Another state that Back leads away from again.
export function push(view, id, params) {
  const to = link(view, id, params);
  if (to !== location.hash) history.pushState(null, "", to);
}
