"""The present state of a cluster as a play needs it: waiting and running work by class, and what slots have free."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from scheduler.foresight.room import Held, Offers, Room
from scheduler.model.reservations import Request
from scheduler.model.run_times import RunTimes


@dataclass(eq=False, slots=True)
class Lane:
    """What waiting work asks of slots. Work of one lane waits in one line, whatever its run times are."""

    number: int
    width: int
    """The number of instances that start together."""
    offers: Offers
    guard: float = 0.0
    """`starvation_guard` in seconds; 0: off."""
    is_strict: bool = False


@dataclass(eq=False, slots=True)
class Kind:
    """Work of one lane whose run times are expected to be alike."""

    lane: Lane
    request: Request
    principal: str | None
    classes: tuple[str, ...]
    most: float = inf
    """The enforced limit of the run time."""


@dataclass(slots=True)
class Waiting:
    """A reservation that waits."""

    name: str
    rank: float
    created_at: float
    kind: Kind
    planned_start: float | None = None


@dataclass(slots=True)
class Running:
    """A leased reservation."""

    kind: Kind
    leased_at: float
    held: Sequence[Held]
    ends_by: float = inf


@dataclass(slots=True)
class Coming:
    """Slots of a group that are on the way, and when they are expected."""

    at: float
    group: int
    slots: int


@dataclass(slots=True)
class Launchable:
    """How many slots a group may still get, and how long one takes to come (the last ones seen)."""

    group: int
    slots: int
    boot_seconds: Sequence[float]


@dataclass
class Present:
    """The state from which plays begin. `waiting` is in queue order."""

    now: float
    room: Room
    lanes: list[Lane]
    waiting: list[Waiting]
    running: list[Running]
    run_times: Mapping[str, RunTimes]
    coming: Iterable[Coming] = ()
    launchable: list[Launchable] = field(default_factory=list)
