"use strict";
// Tables that sort: a click, or Enter or Space, on the head of a column. Without scripts they are
// just tables.
(function () {
  // What a cell is sorted by: the number it was given, else the number it shows, else its text.
  function key(cell) {
    const given = cell.dataset.key;
    if (given !== undefined) return given === "" ? null : Number(given);
    const text = cell.textContent.trim();
    if (text === "") return null;
    return Number.isNaN(Number(text)) ? text : Number(text);
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), undefined, { numeric: true });
  }

  function sort(table, column, direction) {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows);
    const place = (row) => Number(row.dataset.place);
    rows.forEach((row, i) => { if (row.dataset.place === undefined) row.dataset.place = i; });
    rows.sort((a, b) => {
      if (direction === "none") return place(a) - place(b);
      const x = key(a.cells[column]), y = key(b.cells[column]);
      // What has no number stands last, whichever way the others go.
      if (x === null || y === null) return (x === null) - (y === null) || place(a) - place(b);
      return (direction === "ascending" ? 1 : -1) * compare(x, y) || place(a) - place(b);
    });
    body.append(...rows);
  }

  for (const table of document.querySelectorAll(".scroll > table")) {
    if (table.tBodies[0].rows.length < 2) continue;
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const sample = Array.from(table.tBodies[0].rows, (row) => key(row.cells[column]));
        const first = sample.some((k) => typeof k === "number") ? "descending" : "ascending";
        const second = first === "ascending" ? "descending" : "ascending";
        const now = head.getAttribute("aria-sort");
        const next = now === first ? second : now === second ? "none" : first;
        for (const other of heads) other.removeAttribute("aria-sort");
        if (next !== "none") head.setAttribute("aria-sort", next);
        sort(table, column, next);
      });
    });
  }
})();
