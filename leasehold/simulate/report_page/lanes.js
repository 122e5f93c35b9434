// The lives of slots on a canvas: a row for each slot, coloured by state, filled by its load. The canvas shows texts of
// users as pixels; the line below it and the table have them as texts.

const MOST_TABLE_ROWS = 500;

// The periods of a slot: [begin, end, state, load, holders].
function listPeriods(run, lane) {
  if (lane.steps) {
    return lane.steps.map(([begin, end, state, load, ids]) => [begin, end, data.states[state], load, ids]);
  }
  const found = [];
  for (let index = 0; index < lane.states.length; index += 1) {
    const state = data.states[Number(lane.states[index])];
    const load = Number(lane.loads[index]) / 9;
    const last = found[found.length - 1];
    const end = Math.min((index + 1) * run.width, run.end);
    if (last && last[2] === state && last[3] === load) last[1] = end;
    else if (index * run.width < run.end) found.push([index * run.width, end, state, load, []]);
  }
  return found.filter((each) => each[2] !== "empty");
}

function describePeriod(run, [begin, end, state, load, ids]) {
  const names = ids.map((id) => run.ids[id]).join(", ");
  const used = load > 0 ? `, ${formatShare(load)} used` : "";
  return `${formatSeconds(begin)} to ${formatSeconds(end)}: ${state}${used}${names ? `, by ${names}` : ""}`;
}

function makeLanes() {
  const canvas = make("canvas", { tabindex: "0", role: "img" });
  const output = make("output", { "aria-live": "polite" });
  const about = make("figcaption", {});
  const place = make("div", {}, canvas);
  const figure = make("figure", { id: "lanes" }, make("h3", {}, "Slots one by one"), about, place, output);
  const numbers = make("div", {});
  const legend = make("ul", { class: "legend" });
  figure.append(legend, numbers);
  let run = data.runs[0];
  let lanes = [];
  let known = 0;
  let row = 0;
  let at = 0;
  const heightOf = () => (lanes.length <= 24 ? 22 : lanes.length <= 48 ? 14 : 9);
  const gutterOf = () => Math.min(140, Math.floor(known / 4));

  const redraw = () => {
    if (!known) return;
    const scale = window.devicePixelRatio || 1;
    const [height, gutter, axis] = [heightOf(), gutterOf(), 20];
    const whole = lanes.length * height + axis;
    canvas.width = known * scale;
    canvas.height = whole * scale;
    canvas.style.height = `${whole}px`;
    const paint = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`).trim();
    paint.scale(scale, scale);
    paint.font = `${Math.min(12, height - 1)}px system-ui, "DejaVu Sans", sans-serif`;
    paint.textBaseline = "middle";
    const inner = known - gutter;
    const x = (time) => gutter + (time / (run.end || 1)) * inner;
    lanes.forEach(({ lane, periods }, index) => {
      const top = index * height;
      paint.fillStyle = colour("empty");
      paint.fillRect(gutter, top, inner, height - 1);
      for (const [begin, end, state, load, ids] of periods) {
        const [left, width] = [x(begin), Math.max(0.5, x(end) - x(begin))];
        paint.fillStyle = colour(state);
        paint.fillRect(left, top, width, height - 1);
        const filled = (height - 1) * load;
        paint.fillStyle = colour("busy");
        paint.fillRect(left, top + height - 1 - filled, width, filled);
        const text = ids.map((id) => run.ids[id]).join(", ");
        if (height > 20 && text && paint.measureText(text).width < width - 6) {
          // The border keeps the text legible where the filled part ends behind it.
          paint.lineWidth = 3;
          paint.strokeStyle = colour(load > 0.6 ? "busy" : state);
          paint.strokeText(text, left + 3, top + height / 2);
          paint.fillStyle = colour(load > 0.6 ? "on-busy" : "text");
          paint.fillText(text, left + 3, top + height / 2);
        }
      }
      paint.fillStyle = colour(index === row ? "text" : "soft");
      paint.fillText(shorten(paint, lane.slot, gutter - 6), 0, top + height / 2);
    });
    paint.fillStyle = colour("soft");
    for (const [share, text] of listTimeMarks(run.end || 1, inner)) {
      const width = paint.measureText(text).width;
      const middle = gutter + share * inner - width / 2;
      paint.fillText(text, Math.min(known - width, Math.max(gutter, middle)), whole - axis / 2 + 1);
    }
    if (lanes.length && document.activeElement === canvas) {
      paint.lineWidth = 1;
      paint.strokeStyle = colour("text");
      paint.strokeRect(gutter + 0.5, row * height + 0.5, inner - 1, height - 2);
      paint.fillStyle = colour("text");
      paint.fillRect(x(at), row * height, 1.5, height);
    }
  };

  const show = () => {
    const lane = lanes[row];
    if (!lane) return;
    const index = lane.periods.findIndex(([begin, end]) => begin <= at && at < end);
    const period = index < 0 ? `${formatSeconds(at)}: empty` : describePeriod(run, lane.periods[index]);
    output.textContent = `${lane.lane.slot}, ${period}`;
    redraw();
  };
  // An arrow to the side moves to the next or the last change of the slot.
  const step = (right, down) => {
    row = Math.min(lanes.length - 1, Math.max(0, row + down));
    const turns = (lanes[row] ? lanes[row].periods : []).flatMap(([begin, end]) => [begin, end]);
    if (right > 0) at = turns.find((turn) => turn > at + 1e-9) ?? at;
    if (right < 0) at = turns.reverse().find((turn) => turn < at - 1e-9) ?? 0;
    show();
  };
  followCursor(
    canvas,
    (left, top) => {
      row = Math.min(lanes.length - 1, Math.max(0, Math.floor(top / heightOf())));
      at = Math.max(0, ((left - gutterOf()) / (known - gutterOf())) * run.end);
      show();
    },
    step,
  );
  canvas.addEventListener("focus", show);
  canvas.addEventListener("blur", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  keepWidth(place, (width) => {
    known = width;
    redraw();
  });

  const choose = (chosen) => {
    [run, row, at] = [chosen, 0, 0];
    lanes = run.lanes.map((lane) => ({ lane, periods: listPeriods(run, lane) }));
    const count = run.used > lanes.length ? `the ${lanes.length} of ${run.used} slots that were used first` : "each used slot";
    about.textContent = `A row for ${count}: the colour is the state, the filled part the used share.`;
    canvas.setAttribute("aria-label", `${about.textContent} Arrow keys move from change to change; a table is below.`);
    output.textContent = lanes.length ? "Point at a slot, or use the arrow keys." : "No slot was used.";
    const seen = data.states.filter((state) => lanes.some(({ periods }) => periods.some((each) => each[2] === state)));
    const entries = [...seen.map((state) => [state, state]), ["busy", "used share"], ["empty", "empty"]];
    legend.replaceChildren(...entries.map(([name, text]) => make("li", {}, makeSwatch(`var(--${name})`), text)));
    numbers.replaceChildren(makeNumbers(() => makeLaneTable(run, lanes)));
    redraw();
  };
  choose(run);
  return { figure, choose };
}

function shorten(paint, text, width) {
  if (paint.measureText(text).width <= width) return text;
  let length = text.length;
  while (length > 1 && paint.measureText(`…${text.slice(-length)}`).width > width) length -= 1;
  return `…${text.slice(-length)}`;
}

function makeLaneTable(run, lanes) {
  if (run.exact) {
    const rows = lanes.flatMap(({ lane, periods }) =>
      periods.map(([begin, end, state, load, ids]) => [
        lane.slot,
        formatSeconds(begin),
        formatSeconds(end),
        state,
        formatShare(load),
        [ids.map((id) => run.ids[id]).join(", "), "text"],
      ]),
    );
    const more = rows.length > MOST_TABLE_ROWS ? `, the first ${MOST_TABLE_ROWS} of ${rows.length} periods` : "";
    const heads = ["slot", "from", "to", "state", "used", "reservations"];
    return makeTable(`Periods of each slot${more}`, heads, rows.slice(0, MOST_TABLE_ROWS));
  }
  const rows = lanes.map(({ lane, periods }) => {
    const spent = data.states.map((state) =>
      periods.reduce((sum, each) => sum + (each[2] === state ? each[1] - each[0] : 0), 0),
    );
    const all = spent.reduce((sum, each) => sum + each, 0);
    const used = periods.reduce((sum, each) => sum + (each[1] - each[0]) * each[3], 0);
    return [lane.slot, formatShare(all ? used / all : 0), ...spent.slice(1).map(formatSeconds)];
  });
  return makeTable("Time of each slot in each state, approximately", ["slot", "used", ...data.states.slice(1)], rows);
}
