"""`python -m examples.draw_architecture`: draw the pictures of the pages that show how Leasehold is built.

The arrows between packages are the imports of the code, the moves of a state those of its table. The stations of a
reservation's way and the steps of a tick are functions of the code. A test compares the drawings with what this command
would write.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import grimp

from examples.draw_states import draw_moves
from examples.svg import WIDTH, arrow, box, frame
from scheduler.model.transitions import LEASE_MOVES, PHASES, RESERVATION_MOVES, SLOT_MOVES, SLOT_STATES

FOLDER: Final = Path(__file__).parents[1] / "docs" / "pictures"
ROOTS: Final = ("leasehold", "leasehold_emulator", "tasks", "workers", "scheduler")
PACKAGES: Final = {
    "leasehold": "client, agent, command line",
    "tasks": "Celery tasks and beat",
    "leasehold_emulator": "EC2 on this machine",
    "workers": "settings, services of a process, EC2",
    "scheduler.simulation": "fleets and clouds in memory",
    "scheduler.operations": "commands, the tick, machines",
    "scheduler.store": "SQLite and PostgreSQL",
    "scheduler.view": "Redis: view cache, lock, notices",
    "scheduler.ports": "interfaces of store, view, cloud",
    "scheduler.explain": "why a reservation waits",
    "scheduler.foresight": "when a reservation starts",
    "scheduler.policy": "the rules: plan()",
    "scheduler.model": "rows, messages, transitions",
    "scheduler.protocol": "what client and stack share",
}
"""Package -> what it contains. Modules of a package that is listed by itself do not count for its parent."""
ROOMS: Final = {
    "scheduler.policy.plan": "calls the steps in order",
    "scheduler.policy.replan": "goes on after few changes",
    "scheduler.policy.steps": "lists the steps",
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

STEPS: Final = (
    ("expire", "what is over ends"),
    ("heal", "losses, stuck slots"),
    ("charge", "accounts earn and pay"),
    ("order", "the queue is sorted"),
    ("place", "leases on ready slots"),
    ("launch", "slots for the rest"),
    ("warm pool", "minimum and reserve"),
    ("stopped tier", "machines stop for later"),
    ("scale in", "idle slots drain"),
    ("replacement", "old machines drain"),
    ("headroom", "room for launches"),
    ("budgets", "machines that cost too much"),
    ("cpu bursting", "spare cores are shared"),
    ("wake", "when the next tick is due"),
)
"""The steps of `plan()`: as the page on scheduling names them, and in a few words."""
FLOW: Final = {
    "producer": (20, 20, "a program or a person"),
    "queue reservations": (230, 20, "signed messages"),
    "intake": (440, 20, "one row for each request"),
    "SQL: intent": (650, 20, "decisions, always right"),
    "beat": (20, 140, "every 5 s, and when due"),
    "queue ticks": (230, 140, "one tick at a time"),
    "tick": (440, 140, "plan(view, rules, now)"),
    "Redis: belief": (650, 140, "a copy that may lag"),
    "sweep": (20, 260, "looks at each slot"),
    "queue health": (230, 260, "ready? asks for a tick"),
    "launch, terminate": (440, 260, "two queues of tasks"),
    "EC2: reality": (650, 260, "machines as they are"),
}
"""What a request passes: name -> upper left corner of its box and a note."""
FLOW_ARROWS: Final = (
    ("M190 43H227", "", 0, 0),
    ("M400 43H437", "", 0, 0),
    ("M610 43H647", "row", 628, 36),
    ("M510 66C510 100 330 90 320 137", "kick", 400, 96),
    ("M190 163H227", "", 0, 0),
    ("M400 163H437", "", 0, 0),
    ("M580 140C600 110 690 110 720 69", "leases, events", 610, 100),
    ("M610 163H647", "view", 628, 156),
    ("M525 186V257", "tasks", 545, 225),
    ("M610 283H647", "", 0, 0),
    ("M190 283H227", "", 0, 0),
    ("M315 260V189", "kick", 300, 225),
    ("M735 306V335H315V309", "state of each machine", 525, 330),
    ("M820 163H845V370H8V43H17", "leased: token, address", 425, 365),
)
"""Path of an arrow, its label, and where the middle of the label stands."""
_COLUMNS: Final = 4
"""How many steps of a tick stand in a row of its drawing."""


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
        width = min(250.0, (WIDTH - 20) / len(names) - 20)
        for column, name in enumerate(names):
            middle = WIDTH * (column + 0.5) / len(names)
            boxes[name] = _Box(name, middle - width / 2, 20 + row * 86, width)
    lines = [_draw_arrow(boxes[start], boxes[end]) for start, end in sorted(_reduce(arrows))]
    for name, each in boxes.items():
        lines += box(each.x, each.y, each.width, name, packages[name])
    return frame(lines, max(each.y for each in boxes.values()) + 66)


def draw_way() -> str:
    """Return an SVG of the stations of one reservation, from above to below."""
    lines = []
    for row, (process, place, text) in enumerate(WAY):
        y = 20 + row * 64
        if row:
            lines.append(arrow(f"M430 {y - 18}V{y - 3}"))
        lines += [f'<text class="process" x="20" y="{y + 28}">{process}</text>', *box(190, y, 560, place, text)]
    return frame(lines, 20 + len(WAY) * 64)


def draw_tick() -> str:
    """Return an SVG of the view, the steps of `plan()` four in a row, the commit and what is published."""
    lines = box(20, 20, 400, "view", "a copy of slots, reservations and accounts, which may lag")
    lines += ['<rect class="frame" x="10" y="96" width="840" height="236" rx="4"/>', arrow("M110 66V117")]
    lines.append('<text class="process" x="440" y="90">plan(view, rules, now)</text>')
    for number, (name, note) in enumerate(STEPS):
        row, column = divmod(number, _COLUMNS)
        x, y = 20 + column * 210, 120 + row * 70
        lines += box(x, y, 180, name, note)
        if number + 1 < len(STEPS):
            lines.append(arrow(f"M{x + 180} {y + 23}H{x + 207}" if column < _COLUMNS - 1 else _turn(x + 90, y + 46)))
    lines += [arrow("M530 306V357"), *box(440, 360, 400, "commit", "checks each decision on fresh rows, and writes it")]
    lines += [arrow("M530 406V437"), *box(440, 440, 400, "publish", "notices, machines to launch and to terminate")]
    return frame(lines, 506)


def _turn(x: float, y: float) -> str:
    """Return the path from the end of one row of boxes to the beginning of the next."""
    return f"M{x} {y}V{y + 12}H110V{y + 21}"


def draw_flow() -> str:
    """Return an SVG of the queues, processes and stores that a request passes on its way to a lease."""
    lines = []
    for path, label, x, y in FLOW_ARROWS:
        lines.append(arrow(path))
        if label:
            lines.append(f'<text class="label" x="{x}" y="{y}">{label}</text>')
    for name, (x, y, note) in FLOW.items():
        lines += box(x, y, 170, name, note)
    return frame(lines, 400)


def find_function(place: str) -> object:
    """Return what `module:name` stands for; raise AttributeError or ImportError if the code has no such thing."""
    module, _, path = place.partition(":")
    found: object = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


def list_drawings() -> dict[str, str]:
    """Return the drawings by the name of their file."""
    return {
        "packages.svg": draw_packages(PACKAGES),
        "rules.svg": draw_packages(ROOMS),
        "way.svg": draw_way(),
        "flow.svg": draw_flow(),
        "tick.svg": draw_tick(),
        "slots.svg": draw_moves(SLOT_STATES, SLOT_MOVES),
        "reservations.svg": draw_moves(PHASES, RESERVATION_MOVES),
        "leases.svg": draw_moves(("claimed", "held", "revoking", "ended"), LEASE_MOVES),
    }


def _reduce(arrows: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the arrows that do not follow from others: without A -> C where a longer way leads from A to C."""
    ends = {start: {end for each, end in arrows if each == start} for start, _ in arrows}

    def is_reached(start: str, end: str) -> bool:
        return end in ends.get(start, ()) or any(is_reached(each, end) for each in ends.get(start, ()))

    return {(start, end) for start, end in arrows if not any(is_reached(each, end) for each in ends[start] - {end})}


def _draw_arrow(start: _Box, end: _Box) -> str:
    x, y, to_x, to_y = start.x + start.width / 2, start.y + 46, end.x + end.width / 2, end.y - 3
    bend = (to_y - y) / 2
    return arrow(f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}")


if __name__ == "__main__":
    for name, drawing in list_drawings().items():
        (FOLDER / name).write_text(drawing, encoding="utf-8")
