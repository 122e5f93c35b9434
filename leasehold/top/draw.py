"""Draw the figures of `leasehold top` as lines for a terminal of a given size, or without colours for a file."""

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from leasehold.cli.tables import find_style
from leasehold.common.visible import make_visible
from leasehold.texts.values import show_seconds, show_time
from leasehold.top.counts import PoolCounts
from leasehold.top.figures import Figures

STATES: Final = ("ready", "launching", "booting", "binding", "draining", "terminating", "error")
PHASES: Final = ("pending", "leased", "revoking")
LATE_SECONDS: Final = 15.0
"""Age of the last tick in seconds from which it is marked as late."""
_NO_WIDTH: Final = 200
_BAR: Final = 10
_FULL: Final = 0.9
_LEAST_HEIGHT: Final = 6


def draw(figures: Figures, width: int | None, height: int | None) -> list[str]:
    """Return the lines of the display. With `width` None they have no colours. No line is wider than `width`, and there
    are at most `height` lines (None: no limit).
    """
    above: list[Text | Table] = [
        *_draw_head(figures),
        Text(),
        *_draw_queue(figures),
        Text(),
        _draw_pools(figures.pools, height),
    ]
    lines = _render(above, width)
    room = None if height is None else max(height, _LEAST_HEIGHT) - len(lines) - 2
    if figures.events and (room is None or room > 0):
        shown = figures.events if room is None else figures.events[-room:]
        lines += _render([Text(), _title("Events"), *map(_draw_event, shown)], width)
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
            console.print(thing, no_wrap=True, overflow="ellipsis", crop=True)
    return [line.rstrip() for line in captured.get().splitlines()]


def _title(text: str) -> Text:
    return Text(text, style="bold")


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


def _draw_queue(figures: Figures) -> list[Text]:
    oldest = f"   longest wait {show_seconds(figures.longest_wait)}" if figures.longest_wait else ""
    waiting = sorted(figures.waiting.items(), key=lambda each: (-each[1], each[0]))
    lines = [
        _pairs("Reservations", {phase: figures.phases.get(phase, 0) for phase in PHASES}, oldest),
        _pairs("Waiting for", dict(waiting)),
        _draw_rates(figures),
        _draw_queues(figures),
    ]
    if figures.at_quota:
        lines.append(Text.assemble(("At quota      ", "bold"), (make_visible(", ".join(figures.at_quota)), "yellow")))
    return lines


def _pairs(title: str, counts: Mapping[str, int], more: str = "") -> Text:
    text = Text(f"{title:<14}", style="bold")
    for name, count in counts.items():
        text.append(f"{make_visible(name)} ", style=f"not bold {find_style(name)}".strip())
        text.append(f"{count:,}  ", style="not bold")
    return text.append("" if counts else "nothing", style="not bold").append(more, style="not bold")


def _draw_rates(figures: Figures) -> Text:
    title = ("Per second    ", "bold")
    rates = figures.rates
    if rates is None:
        return Text.assemble(title, "known from the second refresh on")
    shown = (("submitted", rates.submitted), ("leased", rates.leased), ("released", rates.released))
    ended = f"   ended otherwise {rates.ended:.1f}" if rates.ended else ""
    return Text.assemble(title, "   ".join(f"{name} {value:.1f}" for name, value in shown), ended)


def _draw_queues(figures: Figures) -> Text:
    lag = f"   oldest request {show_seconds(figures.queue_lag)}" if figures.queue_lag is not None else ""
    processes = f"   {figures.processes} processes" if figures.processes else ""
    return _pairs("Messages", figures.queues, lag + processes)


def _draw_pools(pools: Mapping[str, PoolCounts], height: int | None) -> Table:
    """Return the table of pools, with a line of sums. Pools that do not fit in half of `height` lines are summed up in
    one line.
    """
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("Pool", no_wrap=True, overflow="ellipsis", min_width=6)
    # A column more for fleets with stopped slots.
    states = (*STATES, "stopped") if any(pool.states.get("stopped") for pool in pools.values()) else STATES
    for name in ("busy", *states, "cordoned"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("load", no_wrap=True, min_width=4)
    most = len(pools) if height is None else max(1, height // 2 - 3)
    names = list(pools)
    for name in names[:most]:
        table.add_row(*_draw_pool(make_visible(name), [pools[name]], pools[name].load, states))
    if names[most:]:
        rest = [pools[name] for name in names[most:]]
        table.add_row(*_draw_pool(f"{len(rest)} more", rest, None, states))
    if len(names) > 1:
        table.add_row(*_draw_pool("all", list(pools.values()), None, states), style="bold")
    return table


def _draw_pool(name: str, pools: Sequence[PoolCounts], load: float | None, states: Sequence[str]) -> list[Text]:
    counts = [sum(pool.states.get(state, 0) for pool in pools) for state in states]
    cells = [Text(name), _count(sum(pool.busy for pool in pools))]
    cells += [_count(count, find_style(state)) for state, count in zip(states, counts, strict=True)]
    return [*cells, _count(sum(pool.cordoned for pool in pools), "magenta"), _draw_load(load)]


def _count(count: int, style: str = "") -> Text:
    return Text(f"{count:,}", style=style) if count else Text("·", style="dim")


def _draw_load(load: float | None) -> Text:
    if load is None:
        return Text()
    filled = round(min(load, 1.0) * _BAR)
    return Text.assemble(
        f"{load:4.0%} ", ("█" * filled, "red" if load > _FULL else "green"), ("░" * (_BAR - filled), "dim")
    )


def _draw_event(event: Mapping[str, object]) -> Text:
    about = " ".join(str(event[key]) for key in ("reservation", "slot") if event.get(key))
    at = show_time(float(str(event["at"])))[11:19]
    return Text(make_visible(f"{at}  {event['name']:<22} {about}  {event.get('text', '')}"))
