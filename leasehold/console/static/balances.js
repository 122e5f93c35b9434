"use strict";
// The curve of an account's balances, drawn by uPlot from the data in the page.
(() => {
  const place = document.getElementById("curve");
  const source = document.getElementById("curve-data");
  if (!place || !source) return;
  const data = JSON.parse(source.textContent);
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const strokes = ["--accent", "--info", "--warn", "--bad", "--muted"].map(colour);
  const dashes = [[], [6, 3], [2, 3], [8, 3, 2, 3], [1, 4]];
  const axis = { stroke: colour("--muted"), grid: { stroke: colour("--line"), width: 1 }, ticks: { stroke: colour("--line") } };
  const options = {
    width: place.clientWidth,
    height: 260,
    scales: { x: { time: true } },
    axes: [axis, { ...axis, size: 64 }],
    series: [{}, ...data.levels.map((_, level) => ({ label: `level ${level}`, stroke: strokes[level % 5], dash: dashes[level % 5], width: 2, points: { show: data.at.length < 40 } }))],
  };
  const plot = new uPlot(options, [data.at, ...data.levels], place);
  new ResizeObserver(() => plot.setSize({ width: place.clientWidth, height: 260 })).observe(place);
})();
