"""What slots have free, as counts: how many slots of a group have the same amounts free.

A group is the slots of one pool with the same capacity and labels. A play knows no single slot. When an instance ends,
its amounts return to a slot that has as much free as its slot had when it began, or to another one that has room for
them. Counts stay true; which work shares a slot is approximated.
"""

from collections.abc import Iterable, Sequence
from math import floor, inf
from typing import Final, NamedTuple

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
