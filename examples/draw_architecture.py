"""`python -m examples.draw_architecture`: draw the packages and the way of a reservation for the page on architecture.

The arrows between packages are the imports of the code. The stations of a reservation's way are functions of the code.
A test compares the drawings with what this command would write.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Final, NamedTuple

import grimp

FOLDER: Final = Path(__file__).parents[1] / "docs" / "pictures"
ROOTS: Final = ("leasehold", "tasks", "workers", "scheduler")
PACKAGES: Final = {
    "leasehold": "client, agent, command line",
    "tasks": "Celery tasks and beat",
    "workers": "settings, services of a process, EC2",
    "scheduler.simulation": "fleets and clouds in memory",
    "scheduler.operations": "commands, the tick, machines",
    "scheduler.store": "SQLite and PostgreSQL",
    "scheduler.view": "Redis: view cache, lock, notices",
    "scheduler.ports": "interfaces of store, view, cloud",
    "scheduler.explain": "why a reservation waits",
    "scheduler.policy": "the rules: plan()",
    "scheduler.model": "rows, messages, transitions",
    "leasehold.common": "what client and stack share",
}
"""Package -> what it contains. Modules of a package that is listed by itself do not count for its parent."""
ROOMS: Final = {
    "scheduler.policy.plan": "calls the steps in order",
    "scheduler.policy.replan": "the last cycle goes on",
    "scheduler.policy.placement": "which slot a reservation gets",
    "scheduler.policy.quota": "accounts, levels, preemption",
    "scheduler.policy.elastic": "elastic instances",
    "scheduler.policy.queueing": "order, feasibility, claims",
    "scheduler.policy.scaling": "launches, warm pools, scale-in",
    "scheduler.policy.lifecycle": "expiry, failures, timeouts",
    "scheduler.policy.cycle": "the state of one cycle",
    "scheduler.policy.capacity": "what fits on a slot",
}
WAY: Final = (
    ("client", "leasehold.client.client:Client.submit", "sends the request to the queue of reservations"),
    ("reservations worker", "tasks.reservations:_accept", "hands the verified message to its command"),
    ("", "scheduler.operations.commands.intake:accept", "validates the request, writes the row, answers the client"),
    ("ticks worker", "scheduler.operations.tick.tick:tick", "takes the lock of the leader and loads the view"),
    ("", "scheduler.policy.plan:plan", "decides: assign the reservation, or launch a machine for it"),
    ("", "scheduler.operations.tick.commit:commit", "checks each decision on fresh rows and writes it"),
    ("", "scheduler.operations.tick.tick:carry_out", "publishes the view and notices, sends launch tasks"),
    ("launch worker", "scheduler.operations.machines.launch:launch", "calls EC2 with the request that the row holds"),
    ("health worker", "scheduler.operations.machines.check:check", "finds that the machine is ready, asks for a tick"),
    ("client", "leasehold.client.lease:Lease", "wakes up with the lease, renews it, releases it"),
)
"""(process, or "" for the same one; module:function; what it does to a reservation), in the order of time."""

_WIDTH: Final = 860
_STYLE: Final = (
    "text{font-family:sans-serif;font-size:14px;fill:#222}.name{font-weight:bold}.note{fill:#555;font-size:12px}"
    "rect{fill:#eef3f8;stroke:#5b7a99}path{fill:none;stroke:#8a8a8a}.process{fill:#345;font-weight:bold}"
)


class _Box(NamedTuple):
    name: str
    x: float
    y: float
    width: float


def find_arrows(packages: Iterable[str]) -> set[tuple[str, str]]:
    """Return the pairs (importing package, imported package) among these packages, as the code imports."""
    graph = grimp.build_graph(*ROOTS)
    names = sorted(packages, key=len, reverse=True)

    def find_package(module: str) -> str | None:
        return next((name for name in names if f"{module}.".startswith(f"{name}.")), None)

    found = {
        (find_package(module), find_package(imported))
        for module in graph.modules
        for imported in graph.find_modules_directly_imported_by(module)
    }
    return {(start, end) for start, end in found if start and end and start != end}


def find_levels(packages: Sequence[str], arrows: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the packages by level: each package stands above all that it imports."""
    level = dict.fromkeys(packages, 0)
    pairs = list(arrows)
    for _ in packages:
        for start, end in pairs:
            level[start] = max(level[start], level[end] + 1)
    return [[name for name in packages if level[name] == number] for number in range(max(level.values()), -1, -1)]


def draw_packages(packages: Mapping[str, str]) -> str:
    """Return an SVG of the packages. Arrows that follow from two others are left away."""
    arrows = find_arrows(packages)
    boxes: dict[str, _Box] = {}
    for row, names in enumerate(find_levels(list(packages), arrows)):
        width = min(250.0, (_WIDTH - 20) / len(names) - 20)
        for column, name in enumerate(names):
            middle = _WIDTH * (column + 0.5) / len(names)
            boxes[name] = _Box(name, middle - width / 2, 20 + row * 86, width)
    lines = [_draw_arrow(boxes[start], boxes[end]) for start, end in sorted(_reduce(arrows))]
    for name, box in boxes.items():
        lines += [
            f'<rect x="{box.x:.0f}" y="{box.y}" width="{box.width:.0f}" height="46" rx="4"/>',
            f'<text class="name" x="{box.x + 8:.0f}" y="{box.y + 19}">{name}</text>',
            f'<text class="note" x="{box.x + 8:.0f}" y="{box.y + 37}">{escape(packages[name])}</text>',
        ]
    return _frame(lines, max(box.y for box in boxes.values()) + 66)


def draw_way() -> str:
    """Return an SVG of the stations of one reservation, from above to below."""
    lines = []
    for row, (process, place, text) in enumerate(WAY):
        y = 20 + row * 64
        if row:
            lines.append(f'<path marker-end="url(#end)" d="M430 {y - 18}V{y - 3}"/>')
        lines += [
            f'<text class="process" x="20" y="{y + 28}">{process}</text>',
            f'<rect x="190" y="{y}" width="560" height="46" rx="4"/>',
            f'<text class="name" x="200" y="{y + 19}">{place}</text>',
            f'<text class="note" x="200" y="{y + 37}">{escape(text)}</text>',
        ]
    return _frame(lines, 20 + len(WAY) * 64)


def find_function(place: str) -> object:
    """Return what `module:name` stands for; raise AttributeError or ImportError if the code has no such thing."""
    module, _, path = place.partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def list_drawings() -> dict[str, str]:
    """Return the drawings by the name of their file."""
    return {"packages.svg": draw_packages(PACKAGES), "rules.svg": draw_packages(ROOMS), "way.svg": draw_way()}


def _reduce(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the arrows that do not follow from others: without A -> C where a longer way leads from A to C."""
    ends = {start: {end for each, end in arrows if each == start} for start, _ in arrows}

    def is_reached(start: str, end: str) -> bool:
        return end in ends.get(start, ()) or any(is_reached(each, end) for each in ends.get(start, ()))

    return {(start, end) for start, end in arrows if not any(is_reached(each, end) for each in ends[start] - {end})}


def _draw_arrow(start: _Box, end: _Box) -> str:
    x, y, to_x, to_y = start.x + start.width / 2, start.y + 46, end.x + end.width / 2, end.y - 3
    bend = (to_y - y) / 2
    curve = f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
    return f'<path marker-end="url(#end)" d="{curve}"/>'


def _frame(lines: Iterable[str], height: float) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}">'
    marker = (
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8" /></marker></defs>'
    )
    return "\n".join([head, f"<style>{_STYLE}</style>", marker, *lines, "</svg>", ""])


if __name__ == "__main__":
    for name, drawing in list_drawings().items():
        (FOLDER / name).write_text(drawing, encoding="utf-8")
