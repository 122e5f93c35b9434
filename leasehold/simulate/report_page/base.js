// Elements, numbers and times. Every text becomes a text node, so no text of a user can become markup.

const data = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

const make = (tag, attributes, ...children) => fill(document.createElement(tag), attributes, children);
const draw = (tag, attributes, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);

function formatNumber(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return value.toLocaleString("en", { maximumFractionDigits: digits });
}

const formatWholeShare = (value) => `${Math.round(value * 100)} %`;
const formatShare = (value) => (value === null || value === undefined ? "–" : `${(value * 100).toFixed(1)} %`);

function formatSeconds(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const size = Math.abs(seconds);
  const [unit, name] = size < 60 ? [1, "s"] : size < 3600 ? [60, "min"] : size < 86400 ? [3600, "h"] : [86400, "d"];
  const value = seconds / unit;
  return `${Number.isInteger(value) ? value : value.toFixed(Math.abs(value) < 10 ? 1 : 0)} ${name}`;
}

// A time at a mark of an axis: all marks of one axis have the same unit.
function formatMark(at, step) {
  const [unit, name] = step < 60 ? [1, "s"] : step < 3600 ? [60, "min"] : step < 86400 ? [3600, "h"] : [86400, "d"];
  return `${formatNumber(at / unit)} ${name}`;
}

const TIME_STEPS = [
  0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800,
  432000, 864000, 2592000, 7776000, 31536000,
];

function listTimes(end, most) {
  const step = TIME_STEPS.find((each) => end / each <= most) || end / most;
  const found = [];
  for (let number = 0; number * step <= end * 1.0001; number += 1) found.push([number * step, formatMark(number * step, step)]);
  return found;
}

function listValues(top, isWhole) {
  const rough = top / 4;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10, 20, 50, 100].map((each) => each * power).find((each) => each >= rough * 0.999 && (!isWhole || Number.isInteger(each)));
  const found = [];
  for (let number = 0; number * step <= top * 1.0001; number += 1) found.push(number * step);
  return found;
}

const endOfAll = Math.max(...data.runs.map((run) => run.end), 1e-9);
const colourOf = (index) => `var(--c${index % 7})`;
const dashOf = (index) => ["", "6 3", "2 3", "8 3 2 3"][Math.floor(index / 7) % 4];

// Keep a drawing as wide as its place: `redraw` gets the width in pixels.
function keepWidth(place, redraw) {
  let known = 0;
  const look = () => {
    const width = Math.floor(place.clientWidth);
    if (width > 0 && width !== known) {
      known = width;
      redraw(width);
    }
  };
  if (typeof ResizeObserver === "function") new ResizeObserver(look).observe(place);
  look();
}

// Let a pointer and the arrow keys move a cursor. `move` gets the share of the width, or a step of -1 or 1 in x or y.
function followCursor(element, place, step) {
  element.addEventListener("pointermove", (event) => {
    const box = element.getBoundingClientRect();
    place(event.clientX - box.left, event.clientY - box.top);
  });
  element.addEventListener("keydown", (event) => {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (moves[event.key]) {
      event.preventDefault();
      step(...moves[event.key]);
    }
  });
}

// A table; cells are texts, or [text, class], or elements.
function makeTable(caption, heads, rows, attributes) {
  const cell = (value, index) => {
    if (value instanceof Node) return make("td", { class: "bar" }, value);
    const [text, kind] = Array.isArray(value) ? value : [value, index ? "" : "text"];
    return index ? make("td", { class: kind || null }, text) : make("th", { scope: "row" }, text);
  };
  const isText = (index) => !index || (rows.length > 0 && Array.isArray(rows[0][index]) && rows[0][index][1] === "text");
  const head = heads.map((each, index) =>
    make("th", { scope: "col", class: isText(index) ? "text" : null }, each instanceof Node ? each : String(each)),
  );
  return make(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    make(
      "table",
      attributes,
      make("caption", {}, caption),
      make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))),
    ),
  );
}

// A table below a drawing that is made when it is opened.
function makeNumbers(build) {
  const details = make("details", {}, make("summary", {}, "The numbers as a table"));
  details.addEventListener("toggle", () => {
    if (details.open && details.childElementCount === 1) details.append(build());
  });
  return details;
}
