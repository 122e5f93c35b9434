"""Run times, the starvation guard and forecasts of starts: `python -m bench.foresight --kth LOG --nasa LOG`.

The table compares what was asked with what is reached on two logs of the Parallel Workloads Archive: KTH-SP2 on 100
hosts, NASA iPSC/860 on 128. Each log is played with the engine. The rows about the guard are waits (`bench._guard`),
those about forecasts how well these were kept (`bench._forecasts`), and the last ones what forecasts cost. Rows without
their log are left out. `--only live` compares a live stack with the simulation (`bench._live`), which takes 40 minutes,
and `--only ticks` ticks beside plays with ticks alone (`bench._ticks_beside_forecasts`).
`python -m bench.foresight LOG` measures the forecasts on any other log.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, Final

from bench._forecasts import Cost, Played, Quality, judge, measure_cost, play_forecasts
from bench._guard import Waits, find_worst, play_easy, play_guard
from bench._live import Live, play_live
from bench._logs import Log
from bench._ticks_beside_forecasts import BesideForecasts, measure_ticks
from scheduler.foresight.forecaster import PLAYS, SHORT_WAIT

PARTS: Final = ("guard", "forecasts", "cost")
LIVE: Final = "live"
TICKS: Final = "ticks"
"""These two are measured only if they are named, each alone: others would slow them."""
COST_PLAYS: Final = 2
TICK_TURNS: Final = 10
LIVE_SECONDS: Final = 1_800.0
"""For how long jobs come to the live stack. The last one starts about five minutes later."""
KTH_JOBS, KTH_MORE_JOBS, KTH_HOSTS, NASA_HOSTS = 5_000, 6_000, 100, 128
NASA_FACTOR: Final = 0.6
"""Of the time between arrivals, for forecasts: as the log is, hardly anything waits."""

Bounds = tuple[float, float]
Step = Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Row:
    """One figure that was asked for: what is reached, and between what it must be, and should be."""

    what: str
    reached: float
    least: Bounds
    aim: Bounds | None = None
    unit: str = "s"

    @property
    def result(self) -> str:
        if self.aim is not None and self.aim[0] <= self.reached <= self.aim[1]:
            return "aim"
        return "reached" if self.least[0] <= self.reached <= self.least[1] else "missed"

    def list_cells(self) -> tuple[str, ...]:
        """Return the texts of the row."""
        aim = "" if self.aim is None else self._show_bounds(self.aim)
        return self.what, self._show_bounds(self.least), aim, self._show(self.reached), self.result

    def _show_bounds(self, bounds: Bounds) -> str:
        low, high = bounds
        if low == -inf:
            return self._show(high)
        return f"{self._show(low)} to {self._show(high)}" if high < inf else f"from {self._show(low)}"

    def _show(self, value: float) -> str:
        match self.unit:
            case "%":
                return f"{100 * value:.3g} %"
            case "×":
                return f"{value:.2f} ×"
            case "s" | "MiB" | "waits":
                return f"{value:,.0f} {self.unit}"
            case _:
                return f"{value:.2g}"


HEAD: Final = ("what", "at least", "aim", "reached", "result")


def list_steps(kth: Path | None, nasa: Path | None, plays: int, parts: Iterable[str]) -> Mapping[str, Step]:
    """Return what has to be measured, by name. The longest ones come first."""
    steps: dict[str, Step] = {}
    if kth is not None and "guard" in parts:
        log, more = Log(kth, KTH_HOSTS, KTH_JOBS), Log(kth, KTH_HOSTS, KTH_MORE_JOBS)
        steps |= {
            "strict": partial(play_guard, log, "strict"),
            "shadow": partial(play_guard, log, "shadow"),
            "limits": partial(play_guard, log, "shadow", "limit"),
            "more limits": partial(play_guard, more, "shadow", "limit"),
            "easy": partial(play_easy, log),
            "more easy": partial(play_easy, more),
        }
    if nasa is not None and "guard" in parts:
        steps |= {
            "nasa strict": partial(play_guard, Log(nasa, NASA_HOSTS), "strict"),
            "nasa shadow": partial(play_guard, Log(nasa, NASA_HOSTS), "shadow"),
        }
    if nasa is not None and "forecasts" in parts:
        steps["nasa forecasts"] = partial(play_forecasts, Log(nasa, NASA_HOSTS, None, NASA_FACTOR), plays, None)
    if kth is not None and "forecasts" in parts:
        steps["forecasts"] = partial(play_forecasts, Log(kth, KTH_HOSTS, KTH_JOBS), plays, "expected")
    if LIVE in parts:
        steps["live"] = partial(play_live, LIVE_SECONDS)
    if "cost" in parts:
        steps["cost"] = partial(measure_cost, 10_000, 100_000, COST_PLAYS)
    if TICKS in parts:
        steps[TICKS] = partial(measure_ticks, 10_000, 100_000, TICK_TURNS)
    return steps


def list_rows(found: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of what was measured, in the order of the table."""
    if "shadow" in found:
        yield from _list_waits("KTH, 5,000, no input of users", found["shadow"], (12_000, 160_000), (9_000, 125_000))
        yield from _list_waits("KTH, 5,000, limits", found["limits"], (10_000, 125_000), (9_000, 112_000))
        ours, easy = found["more limits"], found["more easy"]
        ratios = Waits(ours.mean / easy.mean, ours.p99 / easy.p99, {})
        yield from _list_waits("KTH, 6,000, limits, against EASY", ratios, (1.2, 1.2), (1.0, 1.0), "×")
    if "nasa shadow" in found:
        seconds, _ = find_worst(found["nasa strict"], found["nasa shadow"])
        yield Row("NASA, accounts, p95 beyond strict: the most", seconds, (-inf, 60))
    if "shadow" in found:
        _, factor = find_worst(found["strict"], found["shadow"])
        yield Row("KTH, accounts, p95 against strict: the most", factor, (-inf, 1.1), unit="×")
    for name, step in (("KTH, requested times", "forecasts"), ("NASA, arrivals × 0.6", "nasa forecasts")):
        if step in found:
            yield from _list_forecasts(name, found[step])
    if "live" in found:
        live: Live = found["live"]
        yield Row("forecasts, live stack: waits with a forecast", live.waits, (300, inf), unit="waits")
        yield Row(
            "the same: coverage beside the simulation's", abs(live.coverage - live.simulated), (0, 0.05), unit="%"
        )
    if "cost" in found:
        cost: Cost = found["cost"]
        yield Row("forecasts, 10,000 × 100,000: cores", cost.cores, (-inf, 1), (-inf, 0.3), "")
        yield Row("the same: memory beside the view", cost.mebibytes, (-inf, 954), unit="MiB")
    if TICKS in found:
        ticks: BesideForecasts = found[TICKS]
        yield Row("the same: a tick beside plays, against one alone", ticks.ratio, (-inf, 1.02), unit="×")


def _list_waits(what: str, waits: Waits, least: Bounds, aim: Bounds, unit: str = "s") -> Iterator[Row]:
    yield Row(f"{what}: mean wait", waits.mean, (-inf, least[0]), (-inf, aim[0]), unit)
    yield Row("the same: p99", waits.p99, (-inf, least[1]), (-inf, aim[1]), unit)


def _list_forecasts(name: str, played: Played) -> Iterator[Row]:
    found, other = judge(played.forecast), judge(played.baseline)
    yield Row(f"forecasts, {name}: coverage of 80 %", found.coverage, (0.77, 0.83), unit="%")
    yield Row(f"the same: weeks with 70 to 90 %, of {found.weeks}", found.near, (0.8, inf), unit="%")
    yield Row("the same: weeks with 75 to 85 %", found.nearer, (0, inf), (0.8, inf), unit="%")
    yield Row("the same: median width", _divide(found.width, other.width), (-inf, 0.35), (-inf, 0.25), "×")
    yield Row("the same: pinball loss", _divide(found.loss, other.loss), (-inf, 0.3), (-inf, 0.2), "×")


def _divide(ours: float, others: float) -> float:
    return ours / max(1.0, others)


def describe_step(name: str, found: Any) -> Iterator[str]:
    """Yield lines with the figures of one step."""
    match found:
        case Waits():
            yield f"{name}: waits, mean {found.mean:,.0f} s, p99 {found.p99:,.0f} s, {len(found.accounts)} accounts"
        case Cost():
            yield f"{name}: CPU seconds, 10,000 leased slots, 100,000 waiting"
            yield f"  count the view {found.counted:.2f}   one play {found.play:.2f}   all answers {found.answers:.2f}"
            yield f"  memory beside the view {found.mebibytes:,.0f} MiB"
            yield f"  cores, with one run of {COST_PLAYS} plays: {found.cores:.2f}"
        case Live():
            yield f"{name}: {found.waits} waits with a forecast, coverage {found.coverage:.1%}"
            yield f"  in the simulation {found.simulated_waits}, {found.simulated:.1%}"
        case Played():
            yield from describe(name, found)


def describe(name: str, found: Played) -> Iterator[str]:
    """Yield lines about the forecasts of a log."""
    ours, other = judge(found.forecast), judge(found.baseline)
    yield f"{name}: {ours.count:,} waits of more than {SHORT_WAIT:g} s with a forecast, {found.unknown:,} without"
    for kind, each in (("forecast", ours), ("baseline", other)):
        yield f"  {kind}  {_show_quality(each)}"
    width, loss = _divide(ours.width, other.width), _divide(ours.loss, other.loss)
    yield f"  ratio     width {width:.3f}   pinball loss {loss:.3f}   CPU time {found.cpu_seconds:,.0f} s"


def _show_quality(each: Quality) -> str:
    return (
        f"coverage {each.coverage:6.1%}   width {each.width:10,.0f} s   loss {each.loss:9,.0f} s   "
        f"weeks {each.weeks}, with 70-90 %: {each.near:.0%}, with 75-85 %: {each.nearer:.0%}"
    )


def measure(steps: Mapping[str, Step]) -> Mapping[str, Any]:
    """Measure all steps, each in a process of its own, and print what each one finds."""
    found = {}
    with ProcessPoolExecutor(os.cpu_count(), max_tasks_per_child=1) as processes:
        names = {processes.submit(step): name for name, step in steps.items()}
        for each in as_completed(names):
            found[names[each]] = each.result()
            print("\n".join(describe_step(names[each], found[names[each]])), flush=True)
    return found


def show_table(rows: Iterable[Row]) -> str:
    """Return the table in the form of the pages."""
    lines = [" | ".join(cells) for cells in (HEAD, *(row.list_cells() for row in rows))]
    lines.insert(1, "|".join(["---"] * len(HEAD)))
    return "\n".join(f"| {line} |" if line[0] != "-" else f"|{line}|" for line in lines)


def save(path: Path, played: Played) -> None:
    """Write each wait with its interval and that of the baseline, a JSON list in each line."""
    lines = [
        json.dumps([one.submitted_at, one.seconds, one.low, one.high, other.low, other.high])
        for one, other in zip(played.forecast, played.baseline, strict=True)
    ]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def main() -> None:
    """Measure the table, or the forecasts on one log."""
    parser = argparse.ArgumentParser(prog="python -m bench.foresight", description=__doc__.partition("\n")[0])
    parser.add_argument("--kth", type=Path, metavar="LOG", help="the log KTH-SP2, for the table")
    parser.add_argument("--nasa", type=Path, metavar="LOG", help="the log NASA iPSC/860, for the table")
    parser.add_argument(
        "--only",
        choices=(*PARTS, LIVE, TICKS),
        action="append",
        help=f"a part of the table; may be given repeatedly; default: all but {LIVE} (40 minutes) and {TICKS}",
    )
    parser.add_argument("--plays", type=int, default=PLAYS, help="number of plays for a forecast; default: %(default)s")
    other = parser.add_argument_group("the forecasts on any log, without the table")
    other.add_argument("log", type=Path, nargs="?", metavar="LOG")
    other.add_argument("--hosts", type=int, default=100, help="number of hosts of one cpu; default: %(default)s")
    other.add_argument("--limit", type=int, help="number of jobs to play, from the first one; default: all")
    other.add_argument("--arrivals", type=float, default=1.0, metavar="FACTOR", help="of the time between arrivals")
    other.add_argument("--requested-times", action="store_true", help="requested times become `expected_runtime`")
    other.add_argument("--save", type=Path, metavar="FILE", help="write each wait and interval as JSON lines")
    given = parser.parse_args()
    if given.log is None:
        print(show_table(list_rows(measure(list_steps(given.kth, given.nasa, given.plays, given.only or PARTS)))))
        return
    log = Log(given.log, given.hosts, given.limit, given.arrivals)
    played = play_forecasts(log, given.plays, "expected" if given.requested_times else None)
    print("\n".join(describe(given.log.name, played)))
    if given.save is not None:
        save(given.save, played)


if __name__ == "__main__":
    main()
