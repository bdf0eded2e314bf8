// Tables are sorted by a click on a heading, a box leaves out queues whose names lack what is typed, and another turns
// the lines of all charts to a logarithmic scale: each series says its values, and each chart the powers of ten around.
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

// Moves the points of a line, an area or a label to other heights; `at` gives one for each value, `base` is zero's.
function redraw(series, at, base) {
  const heights = series.dataset.v.split(",").map((text) => at(Number(text)));
  const dots = [...series.querySelectorAll("circle")];
  dots.forEach((dot, index) => dot.setAttribute("cy", heights[index]));
  const shapes = { polyline: 0, polygon: 0 };
  for (const shape of series.querySelectorAll("polyline,polygon")) {
    const xs = shape.getAttribute("points").split(" ").map((point) => point.split(",")[0]);
    const ys = xs.map((_, index) => heights[shapes[shape.tagName] + Math.floor(index / 2)]);
    if (shape.tagName === "polygon") {  // it begins and ends on the base
      const inner = xs.slice(1, -1).map((_, index) => heights[shapes.polygon + Math.floor(index / 2)]);
      ys.splice(0, ys.length, base, ...inner, base);
      shapes.polygon += inner.length / 2;
    } else {
      shapes.polyline += ys.length / 2;
    }
    shape.setAttribute("points", xs.map((x, index) => `${x},${ys[index].toFixed(1)}`).join(" "));
  }
}

function scale(isLogarithmic) {
  for (const axis of document.querySelectorAll("g.decades")) {
    const chart = axis.ownerSVGElement;
    const linear = axis.nextElementSibling;
    axis.setAttribute("display", isLogarithmic ? "inline" : "none");
    linear.setAttribute("display", isLogarithmic ? "none" : "inline");
    const lines = [...linear.querySelectorAll("line")].map((line) => Number(line.getAttribute("y1")));
    const base = lines[0];
    const [low, share] = [Number(axis.dataset.low), Number(axis.dataset.share)];
    for (const series of chart.querySelectorAll("g.series")) {
      const most = Number(linear.dataset.most);
      const height = base - lines.at(-1);
      const at = isLogarithmic
        ? (value) => base - share * Math.max(0, Math.log10(Math.max(value, low) / low))
        : (value) => base - (height * value) / most;
      if (series.dataset.v) redraw(series, at, base);
    }
  }
}

document.querySelectorAll("table.sort").forEach(sortable);
const tools = document.querySelector(".tools");
if (tools) {
  tools.hidden = false;
  const [box, logarithmic] = tools.querySelectorAll("input");
  box.addEventListener("input", () => filter(box.value));
  logarithmic.addEventListener("change", () => scale(logarithmic.checked));
}
