"use strict";
// The curves of a page, drawn by uPlot from the data in it: {at, series: [{name, values}], stepped, stacked, digits}.
// Stacked curves are areas that lie on each other: the topmost line is the sum, so
// their axis begins at 0.
(() => {
  const place = document.getElementById("curve");
  const source = document.getElementById("curve-data");
  if (!place || !source) return;
  const data = JSON.parse(source.textContent);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const strokes = ["--accent", "--info", "--warn", "--bad", "--muted", "--good", "--text", "--line-strong"].map(colour);
  const dashes = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 4], [10, 4], [4, 2], [3, 6]];
  const surface = colour("--surface");
  const mix = (stroke) => `color-mix(in srgb, ${stroke} 35%, ${surface})`;
  // Every page shows times in UTC, and a day as YEAR-MONTH-DAY. The columns: the least step, the label, and what is added
  // to it in a new year, month, day, hour, minute, second; 1: it is added below.
  const day = "\n{YYYY}-{MM}-{DD}";
  const within = (step, label) => [step, label, day, null, day, null, null, null, 1];
  const times = [
    [86400, "{MM}-{DD}", "\n{YYYY}", null, null, null, null, null, 1],
    within(60, "{HH}:{mm}"),
    within(1, "{HH}:{mm}:{ss}"),
  ];
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const named = data.series.map((each, index) => ({ ...each, stroke: strokes[index % strokes.length], dash: dashes[index % dashes.length] }));
  // The curve of a kind has the sum up to it, and its area is painted before those below it. The legend has its own value.
  const sums = data.at.map(() => 0);
  const drawn = named.map((each) => (data.stacked ? { ...each, sums: each.values.map((value, index) => (sums[index] += value)) } : each));
  if (data.stacked) drawn.reverse();
  const options = {
    width: place.clientWidth,
    height: 260,
    padding: [12, 34, 0, 0],
    tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1e3), "Etc/UTC"),
    scales: { x: { time: true }, y: data.stacked ? { range: (plot, least, most) => [0, (most || 1) * 1.05] } : {} },
    axes: [{ ...axis, values: times, space: 76 }, { ...axis, size: 64 }],
    series: [{ label: "UTC", value: "{YYYY}-{MM}-{DD} {HH}:{mm}:{ss}" }, ...drawn.map((each) => ({ label: each.name, stroke: each.stroke, dash: each.dash, width: 2, fill: data.stacked ? mix(each.stroke) : undefined, value: (plot, _, __, index) => (index === null ? "–" : (each.values[index]?.toFixed(data.digits ?? 2) ?? "–")), spanGaps: false, paths: data.stepped ? uPlot.paths.stepped({ align: 1 }) : undefined, points: { show: !data.stepped && data.at.length < 40, fill: surface } }))],
  };
  const plot = new uPlot(options, [data.at, ...drawn.map((each) => each.sums ?? each.values)], place);
  // A single point gets an hour around it.
  if (data.at.length === 1) plot.setScale("x", { min: data.at[0] - 1800, max: data.at[0] + 1800 });
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 260 })).observe(place);
})();
