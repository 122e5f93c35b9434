// Figures of one simulation as tiles, of several as a table that can be sorted; waits by class, and the longest ones.

const TILES = ["finished", "leased", "still waiting", "wait mean", "wait p95", "utilisation", "launches", "cost", "makespan"];

function makeTiles(run) {
  const found = TILES.map((name) => run.figures.find((figure) => figure.name === name)).filter(Boolean);
  const tiles = found.map(({ name, text }) => make("div", {}, make("dt", {}, name), make("dd", {}, text)));
  return make("dl", { class: "tiles" }, ...tiles);
}

function makeFigures(run) {
  const rows = run.figures.map(({ name, text }) => [name, text]);
  return makeTable("All figures", ["figure", "value"], rows, { id: "figures" });
}

function isBest(figure, index) {
  const values = data.runs.map((run) => run.figures[index].value);
  const best = figure.better < 0 ? Math.min(...values) : Math.max(...values);
  return figure.better !== 0 && figure.value === best && values.some((value) => value !== best);
}

// A row for each simulation. A head is a button that sorts by its column, best or smallest first, then reversed.
function makeComparison() {
  const place = make("div", {});
  let sorted = -1;
  let reversed = false;
  const build = () => {
    const order = data.runs.map((_, index) => index);
    if (sorted >= 0) order.sort((a, b) => data.runs[a].figures[sorted].value - data.runs[b].figures[sorted].value);
    if (reversed) order.reverse();
    const heads = data.runs[0].figures.map((figure, index) => {
      const button = make("button", { type: "button", "aria-label": `sort by ${figure.name}` }, figure.name);
      button.addEventListener("click", () => {
        reversed = sorted === index && !reversed;
        sorted = index;
        build();
        place.querySelectorAll("th button")[index].focus();
      });
      return button;
    });
    const rows = order.map((index) => [
      data.runs[index].label,
      ...data.runs[index].figures.map((figure, column) =>
        isBest(figure, column) ? [`★ ${figure.text}`, "best"] : figure.text,
      ),
    ]);
    const caption = "Figures of each simulation. A star marks the best value; a column is sorted by its head.";
    place.replaceChildren(makeTable(caption, ["settings", ...heads], rows, { id: "comparison" }));
    if (sorted >= 0) {
      const head = place.querySelectorAll("thead th")[sorted + 1];
      head.setAttribute("aria-sort", reversed ? "descending" : "ascending");
    }
  };
  build();
  return place;
}

function nameClass(index) {
  const bound = data.bounds[index];
  if (bound === null) return `more than ${formatSeconds(data.bounds[index - 1])}`;
  return `${index ? "up to" : "at most"} ${formatSeconds(bound)}`;
}

function makeClasses(run) {
  const most = Math.max(1, ...run.waits.classes);
  const rows = run.waits.classes.map((count, index) => {
    const bar = draw("rect", { width: (100 * count) / most, height: 10, fill: "var(--busy)" });
    const drawing = draw("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", "aria-hidden": "true" }, bar);
    return [nameClass(index), formatNumber(count), formatShare(run.waits.count ? count / run.waits.count : 0), drawing];
  });
  const still = run.waits.still ? `; ${formatNumber(run.waits.still)} still wait` : "";
  const caption = `Waits of ${formatNumber(run.waits.count)} leased reservations${still}`;
  return makeTable(caption, ["wait", "reservations", "share", ""], rows, { id: "classes" });
}

function makeLongest(run) {
  const hasCodes = run.longest.some((each) => each.code);
  const rows = run.longest.map((each) => [
    each.id,
    formatSeconds(each.wait),
    formatSeconds(each.submitted),
    each.leased === null ? "still waits" : formatSeconds(each.leased),
    [each.account, "text"],
    formatNumber(each.instances),
    ...(hasCodes ? [[each.code, "text"]] : []),
  ]);
  const heads = ["reservation", "wait", "submitted", "leased", "account", "instances", ...(hasCodes ? ["last reason"] : [])];
  return makeTable("The longest waits", heads, rows, { id: "longest" });
}
