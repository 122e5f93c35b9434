"""Writes docs/explanation/flexible.md and its picture from the figures of `examples.flexible`."""

from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from examples.flexible.figures import STUDENT, UNSETTLED, Estimate, Figures, compare
from examples.flexible.workload import SIZES

TEMPLATE = Path(__file__).with_suffix(".md")
HOUR = 3600.0
HEADS = (
    *("load", "queue", "`elastic`", "turnaround, h", "of rigid", "of malleable"),
    *("queuing, h", "slowdown p50, p95", "cpus, memory"),
)
COLOURS = {"rigid": "#7a7a7a", "malleable": "#4c8bbf", "flexible": "#d1603d", "yielding": "#e0b040"}
OTHER_SIZES = """
The mean turnaround as a multiple of that under `rigid`, where `size` is another estimate (2D: T × instances,
3D: that × cpus × memory of one; with error: each times a lognormal of sigma 0.5), at a load of 0.9:
""".strip()
SECOND_MIX = """
The same on the second mix (64 % elastic batch, 16 % rigid batch, 20 % interactive ones, which come first under
`priority`), without and with `preemption`, at a load of 0.9:
""".strip()
Groups = dict[tuple[str, float, str, str, str], list[Figures]]
"""By study, load, queue, size and the name of the setting: a play for each seed."""


def group(figures: Sequence[Figures]) -> Groups:
    """Return the runs in groups that differ only in their seed."""
    found: Groups = {}
    for each in sorted(figures, key=_find_order):
        case = each.case
        found.setdefault((case.study, case.load, case.setting.queue, case.setting.size, case.name), []).append(each)
    return found


def _find_order(each: Figures) -> tuple[float | str, ...]:
    """Plays come in the order in which they end."""
    case, setting = each.case, each.case.setting
    names = list(COLOURS)
    return (case.load, setting.queue, SIZES.index(setting.size), names.index(setting.elastic), case.name, case.seed)


def _list_values(groups: Groups, at: int) -> list[Any]:
    """The different values of one part of their keys, as they came."""
    return list(dict.fromkeys(key[at] for key in groups))


def _pick(groups: Groups, study: str) -> Groups:
    return {key: found for key, found in groups.items() if key[0] == study}


def list_table(figures: Sequence[Figures]) -> Iterator[str]:
    """All tables, as lines of Markdown."""
    groups = group(figures)
    if loads := _pick(groups, "loads"):
        yield from _list_loads(loads)
    if sizes := _pick(groups, "sizes"):
        yield from ["", OTHER_SIZES, "", *_list_ratios("size", sizes, 3)]
    if mix := _pick(groups, "preemption"):
        yield from ["", SECOND_MIX, "", *_list_ratios("queue", mix, 2)]


def _list_loads(groups: Groups) -> Iterator[str]:
    yield f"| {' | '.join(HEADS)} |"
    yield f"|{'---|' * len(HEADS)}"
    for load, queue in product(_list_values(groups, 1), _list_values(groups, 2)):
        alike = {key[4]: found for key, found in groups.items() if key[1:3] == (load, queue)}
        for name, found in alike.items():
            ratios = [str(compare(found, alike[other])) if other != name else "1" for other in ("rigid", "malleable")]
            slow = [fmean(each.by_class["all"]["slowdown"].p50 for each in found)]
            slow.append(fmean(each.by_class["all"]["slowdown"].p95 for each in found))
            cells = [
                f"{load:g}",
                f"`{queue}`",
                f"`{name}`",
                f"{fmean(each.mean() for each in found) / HOUR:.2f}",
                *ratios,
                f"{fmean(each.mean('queuing') for each in found) / HOUR:.2f}",
                f"{slow[0]:.2f}, {slow[1]:.2f}",
                f"{fmean(each.cpus for each in found):.0%}, {fmean(each.memory for each in found):.0%}",
            ]
            yield f"| {' | '.join(cells)} |"


def _list_ratios(title: str, groups: Groups, at: int) -> Iterator[str]:
    """The mean turnaround as a multiple of that under rigid, for the values of one part of the keys."""
    names = _list_values(groups, 4)
    yield f"| {title} | {' | '.join(f'`{name}`' for name in names)} |"
    yield f"|---|{'---|' * len(names)}"
    for value in _list_values(groups, at):
        alike = {key[4]: found for key, found in groups.items() if key[at] == value}
        cells = [str(compare(alike[name], alike["rigid"])) if name != "rigid" else "1" for name in names]
        yield f"| {value} | {' | '.join(cells)} |"


def list_verdicts(figures: Sequence[Figures]) -> Iterator[str]:
    """Whether the target is reached, for each load at which it is set."""
    groups = _pick(group(figures), "loads")
    for load in _list_values(groups, 1):
        alike = {key[4]: found for key, found in groups.items() if key[1:3] == (load, "size")}
        for less, more in (("malleable", "rigid"), ("flexible", "malleable")):
            ratio = compare(alike[less], alike[more])
            below = sum(each.mean() < other.mean() for each, other in zip(alike[less], alike[more], strict=True))
            yield f"| {load:g} | {less} below {more} | {ratio} | {below} of {len(alike[less])} | {_judge(ratio)} |"


def _judge(ratio: Estimate) -> str:
    """Whether a ratio is below 1, as far as its interval shows it."""
    if ratio.mean + ratio.half < 1:
        return "yes"
    if ratio.mean - ratio.half > 1:
        return "**no**"
    return f"{'in the mean' if ratio.mean < 1 else 'not in the mean'}; the interval holds 1"


def _list_classes(figures: Sequence[Figures], load: float) -> Iterator[str]:
    yield "| class | `elastic` | turnaround, h | of rigid | queuing, h | slowdown |"
    yield "|---|---|---|---|---|---|"
    groups = _pick(group(figures), "loads")
    alike = {key[4]: found for key, found in groups.items() if key[1:3] == (load, "size")}
    for kind in ("elastic", "rigid"):
        for name, found in alike.items():
            having = [each for each in found if kind in each.by_class]
            means = [fmean(each.mean(measure, kind) for each in having) for measure in ("turnaround", "queuing")]
            slowdown = fmean(each.mean("slowdown", kind) for each in having)
            ratio = "1" if name == "rigid" else compare(found, alike["rigid"], kind=kind)
            hours = [f"{mean / HOUR:.2f}" for mean in means]
            yield f"| {kind} batch | `{name}` | {hours[0]} | {ratio} | {hours[1]} | {slowdown:.2f} |"


def write_page(figures: Sequence[Figures]) -> str:
    """The page: what was played, how it was reduced, the tables, and whether the target is reached."""
    case = figures[0].case
    loads = _list_values(_pick(group(figures), "loads"), 1)
    left_out = {each.case.seed: each.left_out for each in figures if each.case.mix == "batch"}
    head = max(load for load in loads if load < 1) if min(loads) < 1 else loads[0]
    return TEMPLATE.read_text(encoding="utf-8").format(
        verdicts="\n".join(list_verdicts(figures)),
        table="\n".join(list_table(figures)),
        classes="\n".join(_list_classes(figures, head)),
        head=head,
        edge=UNSETTLED,
        machines=case.machines,
        applications=case.applications,
        seeds=len(left_out),
        left_out=sum(left_out.values()),
        drawn=sum(left_out.values()) + case.applications * len(left_out),
        order="passed over (`backfill`)" if case.setting.backfill else "not passed over (`backfill` false)",
        few=FEW.format(seeds=len(left_out)) if len(left_out) < len(STUDENT) else "",
        unplayed=_list_unplayed(figures),
    )


FEW = """
**Only {seeds} seeds were played for this page, where ten are wanted**: an interval that holds 1 shows neither that
a setting is better nor that it is worse.
"""
UNPLAYED = {
    "loads": "other loads (`--loads`)",
    "sizes": "sizes of two and three dimensions and with an error (`--studies sizes`)",
    "preemption": "the second mix, with interactive applications, for `preemption` (`--studies preemption`)",
}


def _list_unplayed(figures: Sequence[Figures]) -> str:
    played = {each.case.study for each in figures}
    left = [text for study, text in UNPLAYED.items() if study not in played]
    return f"\nNot played for this page: {'; '.join(left)}.\n" if left else ""


def draw(figures: Sequence[Figures], path: Path) -> None:
    """Ratios to rigid with their intervals, and where the time goes; needs the extra `plot`."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - an extra, which only this needs

    groups = _pick(group(figures), "loads")
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.4), layout="constrained")
    settings = list(product(_list_values(groups, 2), _list_values(groups, 1)))
    _draw_ratios(left, groups, settings)
    _draw_times(right, groups, settings)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw_ratios(axes: Any, groups: Groups, settings: Sequence[tuple[str, float]]) -> None:
    names = [name for name in COLOURS if name != "rigid"]
    for number, name in enumerate(names):
        ratios = [_compare_with_rigid(groups, queue, load, name) for queue, load in settings]
        places = [at + (number - 1) * 0.24 for at in range(len(settings))]
        axes.bar(places, [each.mean for each in ratios], 0.22, color=COLOURS[name], label=name)
        axes.errorbar(
            places,
            [each.mean for each in ratios],
            [each.half for each in ratios],
            fmt="none",
            ecolor="#222222",
            capsize=3,
        )
    axes.axhline(1, color=COLOURS["rigid"], linestyle="--", linewidth=1.2, label="rigid")
    axes.set_xticks(range(len(settings)), [f"{queue}\nload {load:g}" for queue, load in settings])
    axes.set_ylabel("mean turnaround, multiple of rigid")
    axes.set_title("How much sooner applications end (95 % interval over seeds)", fontsize=10)
    axes.set_ylim(0, None)
    axes.legend(frameon=False, fontsize=9, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    axes.spines[["top", "right"]].set_visible(False)


def _compare_with_rigid(groups: Groups, queue: str, load: float, name: str) -> Estimate:
    found, rigid = (groups["loads", load, queue, SIZES[0], each] for each in (name, "rigid"))
    return compare(found, rigid)


def _draw_times(axes: Any, groups: Groups, settings: Sequence[tuple[str, float]]) -> None:
    labels: list[str] = []
    for queue, load in settings:
        for name, colour in COLOURS.items():
            found = groups["loads", load, queue, SIZES[0], name]
            queuing = fmean(each.mean("queuing") for each in found) / HOUR
            whole = fmean(each.mean() for each in found) / HOUR
            at = -len(labels) - (len(labels) // len(COLOURS)) * 0.8
            axes.barh(at, queuing, 0.8, color=colour, alpha=0.45, hatch="///", edgecolor="white")
            axes.barh(at, whole - queuing, 0.8, left=queuing, color=colour)
            labels.append(f"{name}, {queue} {load:g}")
    places = [-index - (index // len(COLOURS)) * 0.8 for index in range(len(labels))]
    axes.set_yticks(places, labels, fontsize=8)
    axes.set_xlabel("hours: waiting for its essential instances (hatched), then running")
    axes.set_title("Where the mean turnaround goes", fontsize=10)
    axes.spines[["top", "right"]].set_visible(False)
