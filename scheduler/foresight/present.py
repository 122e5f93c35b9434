"""The present state of a cluster as a play needs it: waiting and running work by class, and what slots have free."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor, inf
from typing import Final, NamedTuple

from scheduler.model.reservations import Request
from scheduler.model.run_times import RunTimes

# What slots have free, as counts: how many slots of a group have the same amounts free.
#
# A group is the slots of one pool with the same capacity and labels. A play knows no single slot. When an instance
# ends, its amounts return to a slot that has as much free as its slot had when it began, or to another one that has
# room for them. Counts stay true; which work shares a slot is approximated.


Vector = tuple[float, ...]
SLACK: Final = 1e-9
MOST_ON_A_SLOT: Final = 1000
"""How many instances a slot holds that nothing limits."""


class Held(NamedTuple):
    """Instances of one piece of work: on each of `slots` slots of a group `amounts` are taken together. `left`: what
    the slot had free when they began.
    """

    group: int
    amounts: Vector
    left: Vector
    slots: int


Offers = tuple[tuple[int, Vector], ...]
"""The groups that can serve an instance, best first, with the amounts that it gets there."""


class Room:
    """The free amounts of all groups. `capacities`: what an empty slot of each group has."""

    def __init__(self, capacities: Sequence[Vector], free: Sequence[dict[Vector, int]]) -> None:
        self._capacities = capacities
        self._free = [dict(each) for each in free]
        self._fits: dict[tuple[Vector, Vector], int] = {}
        self.changes = 0
        """The number of changes so far."""

    def copy(self) -> "Room":
        """Return a room with the same free amounts that changes alone."""
        found = Room(self._capacities, self._free)
        found._fits = self._fits
        return found

    def count(self, offers: Offers) -> int:
        """Return how many instances fit."""
        total = 0
        for group, amounts in offers:
            for left, slots in self._free[group].items():
                total += slots * self._count_on(left, amounts)
        return total

    def count_empty(self, group: int, amounts: Vector) -> int:
        """Return how many instances an empty slot of a group holds."""
        return self._count_on(self._capacities[group], amounts)

    def _count_on(self, left: Vector, amounts: Vector) -> int:
        key = (left, amounts)
        found = self._fits.get(key)
        if found is None:
            fits = (floor((has + SLACK) / asks) for has, asks in zip(left, amounts, strict=True) if asks and has < inf)
            found = self._fits[key] = max(0, min(fits, default=MOST_ON_A_SLOT))
        return found

    def take(self, offers: Offers, count: int) -> list[Held]:
        """Take the amounts of `count` instances, which fit. Slots with the least room come first."""
        self.changes += 1
        held = []
        for group, amounts in offers:
            free = self._free[group]
            for left in sorted(free) if len(free) > 1 else list(free):
                fits = self._count_on(left, amounts)
                if not fits:
                    continue
                while count and free.get(left, 0):
                    each = min(fits, count)
                    slots = min(count // each, free[left])
                    given = tuple(each * amount for amount in amounts)
                    after = tuple(has - asks for has, asks in zip(left, given, strict=True))
                    self._move(group, left, after, slots)
                    held.append(Held(group, given, after, slots))
                    count -= each * slots
                if not count:
                    return held
        return held

    def give_back(self, held: Iterable[Held]) -> None:
        """Return the amounts of instances that have ended."""
        self.changes += 1
        for group, amounts, left, slots in held:
            free, remaining = self._free[group], slots
            there = min(remaining, free.get(left, 0))
            if there:
                self._move(group, left, _add(left, amounts), there)
                remaining -= there
            capacity = self._capacities[group]
            while remaining:
                other = next(
                    (
                        each
                        for each in free
                        if all(a + b <= c + SLACK for a, b, c in zip(each, amounts, capacity, strict=True))
                    ),
                    None,
                )
                if other is None:
                    # What shares a slot is approximated, so the amounts may fit on no slot as a whole.
                    other = min(free)
                after = tuple(min(a, b) for a, b in zip(_add(other, amounts), capacity, strict=True))
                there = min(remaining, free[other])
                self._move(group, other, after, there)
                remaining -= there

    def add_slots(self, group: int, slots: int) -> None:
        """Add empty slots to a group."""
        self.changes += 1
        free, capacity = self._free[group], self._capacities[group]
        free[capacity] = free.get(capacity, 0) + slots

    def _move(self, group: int, before: Vector, after: Vector, slots: int) -> None:
        free = self._free[group]
        if free[before] == slots:
            del free[before]
        else:
            free[before] -= slots
        free[after] = free.get(after, 0) + slots


def _add(left: Vector, right: Vector) -> Vector:
    return tuple(a + b for a, b in zip(left, right, strict=True))


def find_use(amounts: Vector, of: Vector) -> float:
    """Return how many instances that ask `of` lose their room, in the resource of which these amounts take most."""
    return max((has / asks for has, asks in zip(amounts, of, strict=True) if asks), default=0.0)


def find_gain(amounts: Vector, of: Vector) -> float:
    """Return for how many instances that ask `of` these amounts are room, in the resource of which they have least."""
    return min((has / asks for has, asks in zip(amounts, of, strict=True) if asks), default=0.0)


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
