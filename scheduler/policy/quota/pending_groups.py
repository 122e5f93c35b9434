"""Lots: the pending reservations of one account that ask for the same, in order; and lines, where the first of many
lots is found. Everybody in a lot finds the same, so that a slot looks at the first one only.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

from scheduler.model.accounts import Account
from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.requests import Demand
from scheduler.policy.quota.requirements import Requirements

Rank = tuple[int, float, int]
"""Less is served first: most required labels, then the oldest, then the order of submission."""
Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class PendingGroup:
    """Who is alike in all that decides where and when it is placed."""

    number: int
    account: Account | None
    demand: Demand
    level: int
    """By the balance of its account; it may be placed at the free one instead."""
    likeness: object
    """Equal for lots that share a `max_fanout`."""
    labels: int
    """How many labels each requires."""
    required: Requirements
    """What the place of the first instance must have."""
    preferred: Requirements | None
    """The same with all that it prefers; None where no place can have both."""
    reservations: list[Reservation]
    """In order."""
    served: int = 0
    """So many of them, from the first on, have their place."""

    @property
    def is_served(self) -> bool:
        """Whether nobody of it is left."""
        return self.served >= len(self.reservations)

    @property
    def first(self) -> Reservation:
        """Whose turn it is."""
        return self.reservations[self.served]

    @property
    def rest(self) -> list[Reservation]:
        """Those without a place."""
        return self.reservations[self.served :]

    @property
    def rank(self) -> Rank:
        """The place of the first one in the order of all lots."""
        first = self.reservations[self.served]
        return (-self.labels, first.created_at, first.sequence)


class PendingIndex(Generic[Found]):
    """Lots under what they ask of a place; who meets the same asks looks at one heap."""

    def __init__(
        self, groups: Iterable[tuple[Requirements, PendingGroup]], is_out: Callable[[PendingGroup], bool]
    ) -> None:
        self._lots: dict[Requirements, list[PendingGroup]] = {}
        self._heaps: dict[tuple[Requirements, ...], list[tuple[Rank, int, PendingGroup]]] = {}
        """By the asks that lots of these lines have, and by whatever asks a place meets besides."""
        self._is_out = is_out
        """Whether nobody of a lot is to be placed here any more."""
        for requirements, group in groups:
            self._lots.setdefault(requirements, []).append(group)

    def find(
        self, met: tuple[Requirements, ...], accept: Callable[[PendingGroup], Found | None]
    ) -> tuple[PendingGroup, Found] | None:
        """The first one in order, of those whose ask is met, that is accepted; with what `accept` found for it."""
        heap = self._heaps.get(met)
        if heap is None:
            own = tuple(requirements for requirements in met if requirements in self._lots)
            if own not in self._heaps:
                self._heaps[own] = self._open(own)
            heap = self._heaps[met] = self._heaps[own]
        aside, answer = [], None
        while heap and answer is None:
            rank, number, group = heap[0]
            if group.is_served or self._is_out(group):
                heappop(heap)
            elif rank != group.rank:
                heapreplace(heap, (group.rank, number, group))
            elif (found := accept(group)) is not None:
                answer = (group, found)
            else:
                aside.append(heappop(heap))
        for entry in aside:
            heappush(heap, entry)
        return answer

    def _open(self, met: tuple[Requirements, ...]) -> list[tuple[Rank, int, PendingGroup]]:
        groups = (group for requirements in met for group in self._lots[requirements])
        heap = [(group.rank, group.number, group) for group in groups if not group.is_served]
        heapify(heap)
        return heap
