"""Write the page of `leasehold simulate --html`: one file with its styles, its script and its data, which loads nothing
else.

Texts of users are in the data only. The script writes them as texts, and the policy in the page (Content-Security-
Policy) permits no other script.

The data are figures, curves, slots and waits of simulations, as JSON values in a bounded amount.
"""

import contextlib
import hashlib
import html
import json
import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, inf
from operator import attrgetter
from pathlib import Path
from string import Template
from typing import Any, Final

from leasehold.errors import LeaseholdError
from leasehold.simulate.run import ROWS, Run, list_widths
from leasehold.texts.values import show_seconds
from scheduler.model.transitions import ENDED, SLOT_STATES
from scheduler.protocol.visible import escape_json, make_visible
from scheduler.simulation.metrics import Curve, Spread
from scheduler.simulation.price_walk import HOUR
from scheduler.simulation.runner import Runner
from scheduler.simulation.timeline import BOUNDS, CURVES, MOST_LANES, MOST_LONG_WAITS, USES, Lanes, LongWait, Timeline
from scheduler.simulation.workload import Workload

_FOLDER: Final = Path(__file__).parent / "report_page"
_SCRIPTS: Final = ("base.js", "curves.js", "lanes.js", "tables.js", "main.js")
_ESCAPES: Final = {ord(mark): f"\\u{ord(mark):04x}" for mark in "<>&\u2028\u2029"}
"""Character that could end the HTML element with the data, or a line of the data -> its escape in JSON."""
_MODE: Final = 0o666
"""Mode of the page before the umask is applied, as for every file that a command writes on request."""


class ReportError(LeaseholdError):
    """Raised if the page cannot be written. The message is the reason."""


def check_report(path: Path) -> None:
    """Raise ReportError if the page cannot be written to `path`. The check is made before the first simulation."""
    if not path.parent.is_dir():
        raise ReportError(f"--html: there is no folder {path.parent}")
    if path.is_dir():
        raise ReportError(f"--html: {path} is a folder, expected a file")
    if path.exists() and not path.is_file():
        raise ReportError(f"--html: {path} is no regular file")
    part = _name_part(path)
    with _explaining(path):
        os.close(_create(part))
        part.unlink()


def write_report(path: Path, document: Mapping[str, Any]) -> None:
    """Write the page for this document to `path`. An earlier file is replaced only when the new one is complete. Raises
    ReportError if that fails: an earlier file then stays as it was, and no partial file is left.
    """
    part = _name_part(path)
    with _explaining(path):
        try:
            with open(_create(part), "w", encoding="utf-8") as file:
                file.write(make_page(document))
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def make_page(document: Mapping[str, Any]) -> str:
    """Return the whole page for a document that the module `report_data` has made."""
    style = _read("style.css")
    # One block for all files, so that their names are not visible outside of it.
    script = '"use strict";\n{\n' + "".join(map(_read, _SCRIPTS)) + "}\n"
    return Template(_read("page.html")).substitute(
        title=html.escape(document["title"]),
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        data=embed(document),
    )


def embed(value: object) -> str:
    """Return `value` as JSON that cannot end the element of HTML in which it stands."""
    return escape_json(json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)).translate(
        _ESCAPES
    )


def _read(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Return the hash by which the policy of the page permits an inline style or script."""
    return f"sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _name_part(path: Path) -> Path:
    return path.with_name(f".{path.name[:200]}.{os.getpid()}.part")


def _create(part: Path) -> int:
    return os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0), _MODE)


@contextlib.contextmanager
def _explaining(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ReportError(f"--html: {path} cannot be written: {error.strerror or error}") from None


Document = dict[str, Any]
MOST_POINTS: Final = 300
"""The most points of one curve on a page with few simulations. The more simulations, the fewer points."""
LEAST_POINTS: Final = 60
ALL_POINTS: Final = 3000
"""The most points of all simulations for one curve, unless each simulation would have less than LEAST_POINTS."""
LEAST_LANES: Final = 8
"""The most slots that are drawn for one simulation if the page has very many simulations. With fewer simulations, more
slots are drawn.
"""
MOST_STEPS: Final = 8000
"""The most single changes of slots that are drawn on one page. If there are more, the states of slots in periods of
equal length are drawn instead.
"""
MOST_LABEL: Final = 200
"""The most characters of a text of a user on the page; a longer one is cut."""
LESS_IS_BETTER: Final = ("makespan", "wait", "turnaround", "slowdown", "instance hours", "cost", "launches")
MORE_IS_BETTER: Final = ("utilisation",)


def describe_trace(runs: Sequence[Run], workload: Workload, *, compared: bool) -> Document:
    """Return the document of the page for simulations of a workload trace. Each run must have a timeline. `compared`:
    whether the runs differ in their settings.
    """
    widths = list_widths([run.summary for run in runs])
    parts = [
        _describe_run(
            run.label or "this simulation",
            run.timeline,
            [
                *(_figure(name, show(run.summary), attrgetter(_find_field(name))(run.summary)) for name, show in ROWS),
                *(
                    _figure(name, show_seconds(seconds), seconds)
                    for name, find in widths
                    if (seconds := find(run.summary)) is not None
                ),
            ],
            len(runs),
        )
        for run in runs
        if run.timeline is not None
    ]
    for run, part in zip(runs, parts, strict=True):
        # The processors of a trace are known, so the share is that of the processors and not of the slots.
        part["utilisation"] = _divide(*run.processors, part["points"], part["end"])
        part["settings"] = {_show(name): _show(value) for name, value in run.settings.items()}
    about = f"A workload trace of {len(workload.jobs):,} jobs" + (f", played under {len(runs)} settings" * compared)
    notes = [f"{len(workload.skipped):,} lines of the trace were skipped."] if workload.skipped else []
    return _finish(_show(workload.path.name), about, notes, parts, [run.timeline for run in runs])


def describe_scenario(name: str, runner: Runner) -> Document:
    """Return the document of the page for the simulation of a scenario that has ended and recorded its timeline."""
    timeline = runner.finish_timeline()
    assert timeline is not None, "the runner was made with records=True"  # noqa: S101
    spread, events, phases = timeline.waits.spread, timeline.events, timeline.phases
    count: Callable[[str, int], Document] = lambda name, value: _figure(name, f"{value:,}", value)  # noqa: E731
    seconds: Callable[[str, float], Document] = lambda name, value: _figure(name, show_seconds(value), value)  # noqa: E731
    hours = timeline.machine_seconds / HOUR
    part = _describe_run(
        "this simulation",
        timeline,
        [
            count("submitted", events.get("reservation_submitted", 0)),
            count("leased", timeline.waits.count),
            *(count(phase, phases[phase]) for phase in sorted(ENDED) if phase in phases),
            count("still waiting", timeline.still_waiting),
            *(seconds(f"wait {part}", getattr(spread, part)) for part in Spread.__struct_fields__),
            _figure("utilisation", f"{timeline.utilisation:.1%}", timeline.utilisation),
            _figure("instance hours", f"{hours:,.2f}", hours),
            _figure("cost", f"{timeline.cost:,.2f}", timeline.cost),
            count("launches", events.get("slot_launching", 0)),
            count("interruptions", events.get("slot_interrupted", 0)),
            count("ticks", runner.ticks),
        ],
        1,
    )
    part["utilisation"] = _divide(timeline.curves["load"], timeline.curves["machines"], part["points"], timeline.end)
    return _finish(_show(name), f"A scenario of {show_seconds(timeline.end)}", [], [part], [timeline])


def _finish(
    title: str, about: str, notes: list[str], parts: list[Document], timelines: Sequence[Timeline | None]
) -> Document:
    found = [each for each in timelines if each is not None]
    return {
        "title": title,
        "about": f"{about}, on a virtual clock",
        "notes": [*notes, *_explain_bounds(parts, found)],
        "states": SLOT_STATES,
        "uses": USES,
        "bounds": [None if bound == inf else bound for bound in BOUNDS],
        "runs": parts,
    }


def _explain_bounds(parts: Sequence[Document], timelines: Sequence[Timeline]) -> list[str]:
    """Return a sentence for each part of the page that shows its data in part only, or as a mean."""
    notes = []
    if any(part["averaged"] for part in parts):
        most = max(part["points"] for part in parts)
        notes.append(
            f"Curves are means over periods of equal length, at most {most} of them; the queue has its peak too."
        )
    shown, used = max(len(part["lanes"]) for part in parts), max(each.lanes.used for each in timelines)
    if used > shown:
        notes.append(f"Of {used:,} slots that were used, the {shown} that were used first are drawn one by one.")
    if any(part["lanes"] and not part["exact"] for part in parts):
        notes.append(
            "Slots are drawn in periods of equal length: the state that lasted longest, and the mean load in it."
        )
    if any(each.waits.count + each.still_waiting > MOST_LONG_WAITS for each in timelines):
        notes.append(f"Of all waits, the {MOST_LONG_WAITS} longest are listed; the distribution counts all.")
    return notes


def _describe_run(label: str, timeline: Timeline, figures: list[Document], runs: int) -> Document:
    points = max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // runs))
    waits = timeline.waits
    return {
        "label": _show(label),
        "figures": figures,
        "end": timeline.end,
        "points": points,
        "averaged": any(len(curve.means) > points for curve in timeline.curves.values()),
        "curves": {name: _cut(timeline.curves[name], points, timeline.end, peaks=name == "waiting") for name in CURVES},
        **_describe_lanes(timeline.lanes, runs),
        "waits": {
            "count": waits.count,
            "still": timeline.still_waiting,
            "classes": waits.classes,
            "points": [[_round(wait), _round(share)] for wait, share in waits.points],
        },
        "longest": [_describe_wait(each) for each in timeline.longest],
    }


def _describe_wait(each: LongWait) -> Document:
    leased = None if each.leased is None else _round(each.leased)
    return {
        "id": _show(each.id),
        "wait": _round(each.wait),
        "submitted": _round(each.submitted),
        "leased": leased,
        "account": _show(each.account),
        "instances": each.instances,
        "code": _show(each.code),
    }


def _describe_lanes(lanes: Lanes, runs: int) -> Document:
    shown = lanes.lanes[: max(LEAST_LANES, 2 * MOST_LANES // runs)]
    is_exact = lanes.is_exact and runs * sum(len(lane.steps) for lane in shown) <= MOST_STEPS
    ids: dict[str, int] = {}
    described = []
    for lane in shown:
        line: Document = {"slot": _show(lane.slot), "pool": _show(lane.pool)}
        if is_exact:
            line["steps"] = [
                [
                    _round(step.begin),
                    _round(step.end),
                    SLOT_STATES.index(step.state),
                    round(step.load, 3),
                    [ids.setdefault(_show(each), len(ids)) for each in step.holders],
                ]
                for step in lane.steps
            ]
        else:
            line |= {"states": lane.states, "loads": lane.loads}
        described.append(line)
    return {"lanes": described, "exact": is_exact, "width": lanes.width, "used": lanes.used, "ids": list(ids)}


def _cut(curve: Curve, points: int, end: float, *, peaks: bool = False) -> Document:
    """Return a curve up to the time `end` with at most `points` points, each the mean of some consecutive bins (periods
    of equal length) of the curve. With `peaks`, each point also has the maximum of its bins.
    """
    # The last bin has no duration if the curve ends where the bin begins.
    bins = min(len(curve.means), max(1, ceil(end / curve.width - 1e-9)))
    together = max(1, -(-bins // points))
    groups = [slice(begin, min(begin + together, bins)) for begin in range(0, bins, together)]
    # The last bin may be shorter than the others.
    weights = [1.0] * (bins - 1) + [max(end / curve.width - (bins - 1), 1e-9)]
    means = [
        sum(mean * weight for mean, weight in zip(curve.means[each], weights[each], strict=True)) / sum(weights[each])
        for each in groups
    ]
    found: Document = {"width": curve.width * together, "means": [_round(mean) for mean in means]}
    if peaks:
        found["peaks"] = [_round(max(curve.peaks[each])) for each in groups]
    return found


def _divide(part: Curve, whole: Curve, points: int, end: float) -> Document:
    """Return the curve of the share `part` / `whole` in the form that `_cut` returns; a value is None where `whole` is
    0. Both curves have the same bins.
    """
    parts, wholes = _cut(part, points, end), _cut(whole, points, end)
    pairs = zip(parts["means"], wholes["means"], strict=True)
    return {**parts, "means": [_round(min(some / all_, 1.0)) if all_ else None for some, all_ in pairs]}


def _find_field(name: str) -> str:
    first, _, part = name.partition(" ")
    if part in Spread.__struct_fields__:
        return f"{first}.{part}"
    return "wall_seconds" if name == "wall clock" else name.replace(" ", "_")


def _figure(name: str, text: str, value: float) -> Document:
    """Return one number of the report with its name and its text. The key `better` follows from the name: -1 if a
    smaller value is better, 1 if a larger one is, 0 if neither.
    """
    better = -1 if name.startswith(LESS_IS_BETTER) else 1 if name.startswith(MORE_IS_BETTER) else 0
    return {"name": name, "text": text, "value": value, "better": better}


def _round(value: float) -> float:
    rounded = float(f"{value:.6g}")
    return int(rounded) if rounded.is_integer() else rounded


def _show(text: str) -> str:
    """Return a text of a user without control characters, at most MOST_LABEL characters long."""
    visible = make_visible(text)
    return visible if len(visible) <= MOST_LABEL else f"{visible[: MOST_LABEL - 1]}…"
