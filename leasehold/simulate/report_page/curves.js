// Line drawings of curves over the virtual time, of several simulations, and the stack of slots by use.

const MOST_ROWS = 60;
const MARGIN = { left: 46, right: 12, top: 8, bottom: 22 };

function makeFrame(width, height, top, times, label, format, isWhole) {
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img", tabindex: "0", "aria-label": label });
  const inner = { width: width - MARGIN.left - MARGIN.right, height: height - MARGIN.top - MARGIN.bottom };
  const x = (at, end) => MARGIN.left + (at / end) * inner.width;
  const y = (value) => MARGIN.top + inner.height * (1 - value / top);
  for (const value of listValues(top, isWhole)) {
    const line = { x1: MARGIN.left, x2: width - MARGIN.right, y1: y(value), y2: y(value), class: "grid" };
    svg.append(draw("line", line));
    svg.append(draw("text", { x: MARGIN.left - 6, y: y(value) + 4, "text-anchor": "end" }, format(value)));
  }
  for (const [at, text] of times) {
    const anchor = at > 0.93 ? "end" : at < 0.02 ? "start" : "middle";
    svg.append(draw("text", { x: x(at, 1), y: height - 6, "text-anchor": anchor }, text));
  }
  return { svg, inner, x, y };
}

function listTimeMarks(end, width) {
  return listTimes(end, Math.max(2, Math.floor(width / 90))).map(([at, text]) => [at / end, text]);
}

// The path of a curve whose value is constant within each bin.
function makeSteps(curve, values, frame, end, runEnd) {
  let path = "";
  let open = false;
  values.forEach((value, index) => {
    if (value === null) {
      open = false;
      return;
    }
    const begin = frame.x(index * curve.width, end).toFixed(1);
    const stop = frame.x(Math.min((index + 1) * curve.width, runEnd), end).toFixed(1);
    const height = frame.y(value).toFixed(1);
    path += `${open ? "L" : "M"}${begin} ${height}H${stop}`;
    open = true;
  });
  return path;
}

const valueAt = (curve, values, at) => values[Math.min(values.length - 1, Math.floor(at / curve.width))];

// A figure with one line for each visible simulation. `pick(run)` returns its curve.
function makeCurves({ id, title, about, pick, format, axis, least, isWhole, hasPeaks }, visible) {
  const place = make("div", {});
  const output = make("output", { "aria-live": "polite" }, "Point at the drawing, or use the arrow keys.");
  const figure = make("figure", { id }, make("h3", {}, title), make("figcaption", {}, about), place, output);
  let at = 0;
  let frame = null;
  const shown = () => data.runs.map((run, index) => [run, index]).filter(([, index]) => visible.has(index));
  const show = () => {
    const texts = shown().map(([run]) => {
      const value = at <= run.end ? format(valueAt(pick(run), pick(run).peaks || pick(run).means, at)) : "ended";
      return data.runs.length > 1 ? `${run.label}: ${value}` : value;
    });
    output.textContent = `${formatSeconds(at)}: ${texts.slice(0, 8).join("; ")}${texts.length > 8 ? "; …" : ""}`;
    frame.cursor.setAttribute("x1", frame.x(at, endOfAll));
    frame.cursor.setAttribute("x2", frame.x(at, endOfAll));
  };
  const redraw = (width) => {
    const values = shown().flatMap(([run]) => (hasPeaks ? pick(run).peaks : pick(run).means));
    const top = Math.max(least, ...values.filter((value) => value !== null)) || 1;
    const marks = listTimeMarks(endOfAll, width);
    frame = makeFrame(width, 220, top, marks, `${title}: ${about} The table below has the numbers.`, axis || format, isWhole);
    for (const [run, index] of shown()) {
      const curve = pick(run);
      const style = { stroke: colourOf(index), "stroke-dasharray": dashOf(index) || null };
      if (hasPeaks) {
        const path = makeSteps(curve, curve.peaks, frame, endOfAll, run.end);
        frame.svg.append(draw("path", { class: "curve peak", d: path, ...style }));
      }
      const path = makeSteps(curve, curve.means, frame, endOfAll, run.end);
      frame.svg.append(draw("path", { class: "curve", d: path, ...style }));
    }
    frame.cursor = draw("line", { class: "cursor", y1: MARGIN.top, y2: 220 - MARGIN.bottom, x1: -9, x2: -9 });
    frame.svg.append(frame.cursor);
    const limit = (value) => Math.min(endOfAll, Math.max(0, value));
    followCursor(
      frame.svg,
      (x) => {
        at = limit(((x - MARGIN.left) / frame.inner.width) * endOfAll);
        show();
      },
      (right) => {
        at = limit(at + (right * endOfAll) / 100);
        show();
      },
    );
    place.replaceChildren(frame.svg);
  };
  let known = 0;
  keepWidth(place, (width) => redraw((known = width)));
  figure.append(makeNumbers(() => makeCurveTable(title, pick, format, hasPeaks)));
  return { figure, redraw: () => known && redraw(known) };
}

function makeCurveTable(title, pick, format, hasPeaks) {
  const rows = [];
  for (let number = 0; number < MOST_ROWS; number += 1) {
    const at = (endOfAll * (number + 0.5)) / MOST_ROWS;
    const cells = data.runs.map((run) => {
      const curve = pick(run);
      if (at > run.end) return "–";
      const peak = hasPeaks ? ` (at most ${format(valueAt(curve, curve.peaks, at))})` : "";
      return format(valueAt(curve, curve.means, at)) + peak;
    });
    rows.push([formatSeconds(at), ...cells]);
  }
  return makeTable(`${title}, at ${MOST_ROWS} times`, ["time", ...data.runs.map((run) => run.label)], rows);
}

// The slots of one simulation by use, one above the other.
function makeStack() {
  const place = make("div", {});
  const output = make("output", { "aria-live": "polite" }, "Point at the drawing, or use the arrow keys.");
  const about = "Number of slots that are not empty, by use: busy slots have a lease, idle ones are ready without one.";
  const figure = make("figure", { id: "stack" }, make("h3", {}, "Slots by use"), make("figcaption", {}, about), place, output);
  const uses = data.uses;
  let run = data.runs[0];
  let at = 0;
  let known = 0;
  let frame = null;
  const sumsOf = (index) => {
    let sum = 0;
    return uses.map((use) => (sum += run.curves[use].means[index] || 0));
  };
  const show = () => {
    const curve = run.curves[uses[0]];
    const index = Math.min(curve.means.length - 1, Math.floor(at / curve.width));
    const parts = uses.map((use) => [use, run.curves[use].means[index]]).filter(([, value]) => value > 0);
    const texts = parts.map(([use, value]) => `${formatNumber(value)} ${use}`);
    output.textContent = `${formatSeconds(at)}: ${texts.join(", ") || "no slot is used"}`;
    frame.cursor.setAttribute("x1", frame.x(at, run.end));
    frame.cursor.setAttribute("x2", frame.x(at, run.end));
  };
  const redraw = (width) => {
    const { width: bin, means } = run.curves[uses[0]];
    const sums = means.map((_, index) => sumsOf(index));
    const top = Math.max(1, ...sums.map((each) => each[each.length - 1]));
    const end = run.end || 1;
    frame = makeFrame(width, 220, top, listTimeMarks(end, width), `Slots by use. ${about}`, formatNumber, true);
    uses.forEach((use, layer) => {
      let up = "";
      let down = "";
      sums.forEach((each, index) => {
        const begin = frame.x(Math.min(index * bin, end), end).toFixed(1);
        const stop = frame.x(Math.min((index + 1) * bin, end), end).toFixed(1);
        up += `L${begin} ${frame.y(each[layer]).toFixed(1)}H${stop}`;
        const below = frame.y(layer ? each[layer - 1] : 0).toFixed(1);
        down = `L${stop} ${below}H${begin}${down}`;
      });
      if (sums.some((each) => each[layer] > (layer ? each[layer - 1] : 0))) {
        frame.svg.append(draw("path", { class: `use ${use}`, fill: `var(--${use})`, d: `M${up.slice(1)}${down}Z` }));
      }
    });
    frame.cursor = draw("line", { class: "cursor", y1: MARGIN.top, y2: 220 - MARGIN.bottom, x1: -9, x2: -9 });
    frame.svg.append(frame.cursor);
    const limit = (value) => Math.min(end, Math.max(0, value));
    followCursor(
      frame.svg,
      (x) => {
        at = limit(((x - MARGIN.left) / frame.inner.width) * end);
        show();
      },
      (right) => {
        at = limit(at + (right * end) / 100);
        show();
      },
    );
    place.replaceChildren(frame.svg);
  };
  keepWidth(place, (width) => redraw((known = width)));
  const legend = make("ul", { class: "legend" });
  const numbers = make("div", {});
  const choose = (chosen) => {
    run = chosen;
    at = 0;
    if (known) redraw(known);
    const seen = uses.filter((use) => run.curves[use].means.some((value) => value > 0));
    legend.replaceChildren(...seen.map((use) => make("li", {}, makeSwatch(`var(--${use})`), use)));
    numbers.replaceChildren(makeNumbers(() => makeStackTable(run, seen)));
  };
  figure.append(legend, numbers);
  choose(run);
  return { figure, choose };
}

const makeSwatch = (colour) =>
  draw("svg", { "aria-hidden": "true", viewBox: "0 0 28 12" }, draw("rect", { width: 28, height: 12, fill: colour }));

function makeStackTable(run, uses) {
  const rows = [];
  for (let number = 0; number < MOST_ROWS; number += 1) {
    const at = (run.end * (number + 0.5)) / MOST_ROWS;
    const values = uses.map((use) => formatNumber(valueAt(run.curves[use], run.curves[use].means, at)));
    rows.push([formatSeconds(at), ...values]);
  }
  return makeTable(`Slots by use, at ${MOST_ROWS} times`, ["time", ...uses], rows);
}

// The share of waits that are not longer than a time, on a logarithmic axis.
const WAIT_MARKS = [1, 10, 60, 600, 3600, 36000, 345600, 3456000, 34560000];

function makeWaits(visible) {
  const about = "Share of reservations that had their first lease within this time. The axis is logarithmic, from 1 s.";
  const place = make("div", {});
  const figure = make("figure", { id: "waits" }, make("h3", {}, "Waits"), make("figcaption", {}, about), place);
  let known = 0;
  const redraw = (width) => {
    const shown = data.runs.map((run, index) => [run, index]).filter(([, index]) => visible.has(index));
    const longest = Math.max(10, ...shown.flatMap(([run]) => run.waits.points.map(([wait]) => wait)));
    const scale = (wait) => Math.log(Math.max(1, wait)) / Math.log(longest);
    const found = WAIT_MARKS.filter((mark) => mark <= longest * 1.0001);
    const marks = found.map((mark) => [scale(mark), formatSeconds(mark)]);
    const frame = makeFrame(width, 220, 1, marks, `Waits: ${about} The table below has the numbers.`, formatWholeShare);
    for (const [run, index] of shown) {
      let path = "";
      let before = 0;
      for (const [wait, share] of run.waits.points) {
        const x = frame.x(scale(wait), 1).toFixed(1);
        path += `${path ? "H" : "M"}${x}${path ? "" : ` ${frame.y(before).toFixed(1)}`}V${frame.y(share).toFixed(1)}`;
        before = share;
      }
      if (path) path += `H${frame.x(1, 1)}`;
      const style = { stroke: colourOf(index), "stroke-dasharray": dashOf(index) || null };
      if (path) frame.svg.append(draw("path", { class: "curve", d: path, ...style }));
    }
    place.replaceChildren(frame.svg);
  };
  keepWidth(place, (width) => redraw((known = width)));
  return { figure, redraw: () => known && redraw(known) };
}
