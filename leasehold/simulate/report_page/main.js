// The page: figures, curves of all simulations, and the slots and waits of one of them.

function makeLegend(visible, redraw) {
  const entries = data.runs.map((run, index) => {
    const box = make("input", { type: "checkbox" });
    box.checked = true;
    box.addEventListener("change", () => {
      if (box.checked) visible.add(index);
      else visible.delete(index);
      redraw();
    });
    const style = { stroke: colourOf(index), "stroke-width": 3, "stroke-dasharray": dashOf(index) || null };
    const line = draw("svg", { "aria-hidden": "true", viewBox: "0 0 28 12" }, draw("path", { d: "M0 6H28", ...style }));
    return make("label", {}, box, line, run.label);
  });
  return make("div", { class: "legend", role: "group", "aria-label": "Simulations that are drawn" }, ...entries);
}

function makeChoice(choose) {
  const select = make("select", { id: "run" }, ...data.runs.map((run, index) => make("option", { value: index }, run.label)));
  select.addEventListener("change", () => choose(data.runs[Number(select.value)]));
  return make("p", { class: "choice" }, make("label", { for: "run" }, "Simulation:"), select);
}

function build() {
  const main = document.getElementById("main");
  const isCompared = data.runs.length > 1;
  document.getElementById("title").textContent = data.title;
  document.getElementById("about").textContent = data.about;
  const visible = new Set(data.runs.keys());
  const all = [
    {
      id: "queue",
      title: "Queue",
      about: "Reservations that wait for their first lease: the mean, and as a thin line the peak.",
      pick: (run) => run.curves.waiting,
      format: formatNumber,
      least: 1,
      isWhole: true,
      hasPeaks: true,
    },
    {
      id: "machines",
      title: "Machines",
      about: "Slots with a machine.",
      pick: (run) => run.curves.machines,
      format: formatNumber,
      least: 1,
      isWhole: true,
    },
    {
      id: "utilisation",
      title: "Utilisation",
      about: "Used share of all machines; a gap where there is none.",
      pick: (run) => run.utilisation,
      format: formatShare,
      axis: formatWholeShare,
      least: 1,
    },
    {
      id: "launches",
      title: "Launches",
      about: "Launches so far.",
      pick: (run) => run.curves.launches,
      format: formatNumber,
      least: 1,
      isWhole: true,
    },
    {
      id: "price",
      title: "Price",
      about: "Price per hour of all launched machines.",
      pick: (run) => run.curves.price,
      format: formatNumber,
      least: 0,
    },
  ];
  const hasValues = ({ pick }) => data.runs.some((run) => pick(run).means.some((value) => value));
  const drawings = all
    .filter((each) => !["launches", "price"].includes(each.id) || hasValues(each))
    .map((each) => makeCurves(each, visible));
  drawings.push(makeWaits(visible));
  const [stack, lanes] = [makeStack(), makeLanes()];
  const tables = make("div", { class: "panels" });
  const choose = (run) => {
    stack.choose(run);
    lanes.choose(run);
    tables.replaceChildren(makeClasses(run), makeLongest(run));
  };
  tables.replaceChildren(makeClasses(data.runs[0]), makeLongest(data.runs[0]));
  const notes = data.notes.map((note) => make("li", {}, note));
  main.replaceChildren(
    ...(notes.length ? [make("ul", { class: "notes" }, ...notes)] : []),
    make("h2", {}, isCompared ? "Settings compared" : "Figures"),
    isCompared ? makeComparison() : makeTiles(data.runs[0]),
    make("h2", {}, "Over time"),
    ...(isCompared ? [makeLegend(visible, () => drawings.forEach((each) => each.redraw()))] : []),
    make("div", { class: "panels" }, ...drawings.map((each) => each.figure)),
    make("h2", {}, isCompared ? "One simulation" : "Slots and waits"),
    ...(isCompared ? [makeChoice(choose)] : []),
    make("div", { class: "panels one" }, stack.figure, lanes.figure),
    make("h2", {}, "Waits"),
    tables,
    ...(isCompared ? [] : [make("h2", {}, "All figures"), makeFigures(data.runs[0])]),
  );
  document.documentElement.dataset.ready = "yes";
}

build();
