"""The present state of a cluster as a play needs it: waiting and running work by class, and what slots have free."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from scheduler.foresight.room import Held, Offers, Room
from scheduler.model.reservations import Request
from scheduler.model.run_times import RunTimes


class Part(NamedTuple):
    """Equal instances of a gang: how many, and where they fit."""

    offers: Offers
    width: int


@dataclass(eq=False, slots=True)
class Lane:
    """What waiting work asks of slots. Work of one lane waits in one line, whatever its run times are."""

    number: int
    parts: tuple[Part, ...]
    """All of them start together. What fits on the fewest slots comes first."""
    queue: str = ""
    guard: float = 0.0
    """`starvation_guard` in seconds; 0: off."""
    is_strict: bool = False
    backfill: bool = True
    size: float = 0.0
    """The size at the submission; 0: the queue does not order by it."""
    decay: float = 0.0
    """By how much the size falls in a second."""

    @property
    def has_offers(self) -> bool:
        """Whether each instance fits on some slot."""
        return all(part.offers for part in self.parts)


@dataclass(eq=False, slots=True)
class Kind:
    """Work of one lane whose run times are expected to be alike."""

    lane: Lane
    request: Request
    principal: str | None
    classes: tuple[str, ...]
    most: float = inf
    """The enforced limit of the run time."""
    needs_agent: bool = False


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
    """How many slots a group may still get, and how long one takes to come (the last ones seen). `costs`: what a slot
    takes of the caps, as (number of the cap, amount).
    """

    group: int
    slots: int
    boot_seconds: Sequence[float]
    costs: tuple[tuple[int, float], ...] = ()


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
    caps: list[float] = field(default_factory=list)
    """What all launches together may take: slots, or dollars in an hour."""
    unplayed: frozenset[Lane] = frozenset()
    """Lanes whose starts follow rules that plays do not know. Their forecasts would be guesses."""
