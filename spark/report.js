// Tables are sorted by a click on a heading, and a box leaves out queues whose names lack what is typed.
"use strict";

function value(row, column) {
  const cell = row.cells[column];
  return "v" in cell.dataset ? Number(cell.dataset.v) : cell.textContent;
}

function compare(one, other) {
  return typeof one === "number" ? one - other : one.localeCompare(other, undefined, { numeric: true });
}

function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const body = table.tBodies[0];
      const rows = [...body.rows];
      const starts = typeof value(rows[0], column) === "number" ? "descending" : "ascending";
      const turned = starts === "descending" ? "ascending" : "descending";
      const order = head.ariaSort === starts ? turned : starts;
      for (const each of heads) each.ariaSort = each === head ? order : null;
      const sign = order === "ascending" ? 1 : -1;
      rows.sort((one, other) => sign * compare(value(one, column), value(other, column)));
      body.append(...rows);
    });
  });
}

function filter(text) {
  const wanted = text.toLowerCase();
  for (const row of document.querySelectorAll("table.sort tbody tr")) {
    row.hidden = !row.cells[0].textContent.toLowerCase().includes(wanted);
  }
  for (const section of document.querySelectorAll("section[data-queue]")) {
    section.hidden = !section.dataset.queue.toLowerCase().includes(wanted);
  }
}

document.querySelectorAll("table.sort").forEach(sortable);
const box = document.querySelector("input[type=search]");
if (box) {
  box.hidden = false;
  box.addEventListener("input", () => filter(box.value));
}
