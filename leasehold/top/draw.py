"""Draw the figures of `leasehold top` as lines for a terminal of a given size, or without colours for a file."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.table import Table
from rich.text import Text

from leasehold.texts.values import find_style, show_seconds, show_time
from leasehold.top.figures import Figures, PoolCounts
from scheduler.protocol.visible import make_visible

STATES: Final = ("ready", "launching", "booting", "binding", "draining", "terminating", "error", "stopped")
_MERGED: Final = {
    **dict.fromkeys(("launching", "booting", "binding"), "starting"),
    **dict.fromkeys(("draining", "terminating"), "ending"),
}
"""State -> the column of a narrow terminal that sums it up with others."""
PHASES: Final = ("pending", "leased", "revoking")
LATE_SECONDS: Final = 15.0
"""Age of the last tick in seconds from which it is marked as late."""
_NO_WIDTH: Final = 200
_BAR: Final = 10
_INDENT: Final = 14
_LEAST_HEIGHT: Final = 6
_LEAST_NAME: Final = 6
_SHORT_NAME: Final = 20
"""Width to which the longest names of pools are cut before columns are left out."""


def draw(figures: Figures, width: int | None, height: int | None) -> list[str]:
    """Return the lines of the display. With `width` None they have no colours. No line is wider than `width`, and no
    number is cut: longer lines are continued, and columns are summed up or left out. There are at most `height` lines
    (None: no limit).
    """
    columns = _NO_WIDTH if width is None else width
    above: list[Text | Table] = [
        *_draw_head(figures),
        Text(),
        *_draw_queue(figures, columns),
        Text(),
        _draw_pools(figures.pools, columns, height),
    ]
    lines = _render(above, width)
    room = None if height is None else max(height, _LEAST_HEIGHT) - len(lines) - 2
    if figures.events and (room is None or room > 0):
        shown = figures.events if room is None else figures.events[-room:]
        lines += _render([Text(), Text("Events", style="bold"), *(_draw_event(each, columns) for each in shown)], width)
    return lines if height is None else lines[:height]


def _render(things: Iterable[Text | Table], width: int | None) -> list[str]:
    console = Console(
        file=io.StringIO(),
        width=_NO_WIDTH if width is None else width,
        force_terminal=width is not None,
        color_system=None if width is None else "auto",
        highlight=False,
        markup=False,
        emoji=False,
    )
    with console.capture() as captured:
        for thing in things:
            console.print(thing, overflow="fold", crop=True)
    return [line.rstrip() for line in captured.get().splitlines()]


def _draw_head(figures: Figures) -> list[Text]:
    tick = figures.tick
    first = Text.assemble(("leasehold top", "bold"), f"  {make_visible(figures.url)}  {show_time(figures.at)}")
    lines = [first]
    if tick:
        age = Text(f"last tick {show_seconds(tick['age'])} ago", style="red" if tick["age"] > LATE_SECONDS else "")
        took = "" if tick["seconds"] is None else f", took {tick['seconds'] * 1000:.0f} ms"
        lag = "" if tick["view_lag"] is None else f", view lag {show_seconds(tick['view_lag'])}"
        leader = f", leader {make_visible(tick['leader'])}" if tick["leader"] else ""
        lines.append(age.append(f"{took}, {tick['decisions'] or 0} decisions{lag}{leader}"))
    lines += [Text(f"! {make_visible(problem)}", style="red") for problem in figures.problems]
    for clock in figures.clocks:
        text = f"! the clock of {clock['process']} on {clock['host']} is {clock['seconds']:+.1f} s off"
        lines.append(Text(make_visible(text), style="yellow"))
    return lines


def _draw_queue(figures: Figures, width: int) -> list[Text]:
    oldest = [Text(f"longest wait {show_seconds(figures.longest_wait)}")] if figures.longest_wait else []
    waiting = sorted(figures.waiting.items(), key=lambda each: (-each[1], each[0]))
    lag = [Text(f"oldest request {show_seconds(figures.queue_lag)}")] if figures.queue_lag is not None else []
    processes = [Text(f"{figures.processes} processes")] if figures.processes else []
    rows = [
        ("Reservations", [*_pair({phase: figures.phases.get(phase, 0) for phase in PHASES}), *oldest]),
        ("Commands", _pair(figures.commands) if figures.commands else []),
        ("Waiting for", _pair(dict(waiting))),
        ("Per second", _draw_rates(figures)),
        ("Messages", [*_pair(figures.queues), *lag, *processes]),
        ("At quota", [Text(make_visible(name), style="yellow") for name in figures.at_quota]),
    ]
    # Many installations have neither.
    shown = [(title, parts) for title, parts in rows if parts or title not in {"Commands", "At quota"}]
    return [line for title, parts in shown for line in _flow(title, parts, width)]


def _pair(counts: Mapping[str, int]) -> list[Text]:
    return [
        Text.assemble((f"{make_visible(name)} ", find_style(name)), f"{count:,}") for name, count in counts.items()
    ] or [Text("nothing")]


def _flow(title: str, parts: Sequence[Text], width: int) -> list[Text]:
    """Return the parts as one line after `title`, or as several of at most `width` characters. A part is never
    divided.
    """
    lines = [Text.assemble((f"{title:<{_INDENT}}", "bold"))]
    for part in parts:
        is_first = lines[-1].cell_len <= _INDENT
        if not is_first and lines[-1].cell_len + 2 + part.cell_len > width:
            lines.append(Text(" " * _INDENT))
            is_first = True
        lines[-1].append("" if is_first else "  ").append_text(part)
    return lines


def _draw_rates(figures: Figures) -> list[Text]:
    rates = figures.rates
    if rates is None:
        return [Text("known from the second refresh on")]
    shown = (("submitted", rates.submitted), ("leased", rates.leased), ("released", rates.released))
    ended = [Text(f"ended otherwise {rates.ended:.1f}")] if rates.ended else []
    return [*(Text(f"{name} {value:.1f}") for name, value in shown), *ended]


@dataclass(frozen=True)
class _Row:
    """A line of the table of pools: some pools together, and their load (None: it is not known)."""

    name: str
    pools: Sequence[PoolCounts]
    load: float | None = None

    def count(self, column: str) -> int:
        """Return the number of slots that are counted in `column`."""
        if column in {"busy", "cordoned"}:
            return sum(getattr(pool, column) for pool in self.pools)
        states = [each for each in STATES if column in {each, _MERGED.get(each)}]
        return sum(pool.states.get(state, 0) for pool in self.pools for state in states)


def _draw_pools(pools: Mapping[str, PoolCounts], width: int, height: int | None) -> Table:
    """Return the table of pools, with a line of sums. Pools that do not fit in half of `height` lines are summed up in
    one line. A column of zeros is left out, except for `busy` and `ready`.
    """
    most = len(pools) if height is None else max(1, height // 2 - 3)
    names = list(pools)
    rows = [_Row(make_visible(name), [pools[name]], pools[name].load) for name in names[:most]]
    if names[most:]:
        rows.append(_Row(f"{len(names) - most} more", [pools[name] for name in names[most:]]))
    if len(names) > 1:
        rows.append(_Row("all", list(pools.values())))
    merged = tuple(dict.fromkeys(_MERGED.get(state, state) for state in STATES))
    longest = max([_LEAST_NAME, *(cell_len(row.name) for row in rows)])
    columns: list[str] = []
    has_bar, room = False, longest
    # The first choice that fits: all columns; without the bar; with states summed up; then without the last columns.
    choices = [(STATES, True), (STATES, False), (merged, True), (merged, False)]
    choices += [(merged[:count], False) for count in range(len(merged) - 1, 0, -1)]
    for states, has_bar in choices:
        columns = [
            each
            for each in ("busy", *states, "cordoned")
            if each in {"busy", "ready"} or any(row.count(each) for row in rows)
        ]
        room = width - sum(_measure(rows, each) + 2 for each in columns) - (5 + _BAR if has_bar else 4) - 2
        if room >= min(_SHORT_NAME, longest):
            break
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("Pool", no_wrap=True, overflow="ellipsis", width=min(longest, max(room, _LEAST_NAME)))
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True, min_width=_measure(rows, name))
    table.add_column("load", no_wrap=True, min_width=4)
    for row in rows:
        cells = [_count(row.count(name), "magenta" if name == "cordoned" else find_style(name)) for name in columns]
        style = "bold" if row is rows[-1] and len(names) > 1 else ""
        table.add_row(Text(row.name), *cells, _draw_load(row.load, has_bar=has_bar), style=style)
    return table


def _measure(rows: Sequence[_Row], column: str) -> int:
    return max([len(column), *(len(f"{row.count(column):,}") for row in rows)])


def _count(count: int, style: str = "") -> Text:
    return Text(f"{count:,}", style=style) if count else Text("·", style="dim")


def _draw_load(load: float | None, *, has_bar: bool) -> Text:
    if load is None:
        return Text()
    filled = round(min(load, 1.0) * _BAR) if has_bar else 0
    return Text.assemble(
        f"{load:4.0%}", (f" {'█' * filled}" if has_bar else "", "green"), ("░" * (_BAR - filled) * has_bar, "dim")
    )


def _draw_event(event: Mapping[str, object], width: int) -> Text:
    about = " ".join(str(event[key]) for key in ("reservation", "slot") if event.get(key))
    at = show_time(float(str(event["at"])))[11:19]
    line = make_visible(f"{at}  {event['name']:<22} {about}  {event.get('text', '')}").rstrip()
    if cell_len(line) > width:
        # Cut between words, so that no number loses digits.
        line = f"{set_cell_size(line, width - 1).rpartition(' ')[0].rstrip()} …"
    return Text(line, no_wrap=True)
