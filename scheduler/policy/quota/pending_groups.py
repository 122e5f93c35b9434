"""Pending reservations of one account with equal requests, in order, and an index that finds the first of many groups.

The answers for all reservations of a group are equal, so a slot examines only the first one.
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
    """Pending reservations that are alike in everything that decides where and when they are placed."""

    number: int
    account: Account | None
    demand: Demand
    level: int
    """The level that its account can pay; it may be placed at the free level instead."""
    likeness: object
    """Equal for groups that share a `max_fanout`."""
    labels: int
    """The number of labels that each reservation requires."""
    required: Requirements
    """The requirements of the first instance."""
    preferred: Requirements | None
    """The same with all preferred labels; None if no slot can have both."""
    reservations: list[Reservation]
    """In order."""
    served: int = 0
    """The number of reservations, from the first on, that are placed."""

    @property
    def is_served(self) -> bool:
        """Whether all reservations are placed."""
        return self.served >= len(self.reservations)

    @property
    def first(self) -> Reservation:
        """The next reservation to place."""
        return self.reservations[self.served]

    @property
    def rest(self) -> list[Reservation]:
        """The reservations that are not placed."""
        return self.reservations[self.served :]

    @property
    def rank(self) -> Rank:
        """The rank of the next reservation among all groups."""
        first = self.reservations[self.served]
        return (-self.labels, first.created_at, first.sequence)


class PendingIndex(Generic[Found]):
    """Groups by their requirements; slots that meet the same requirements share one heap."""

    def __init__(
        self, groups: Iterable[tuple[Requirements, PendingGroup]], is_out: Callable[[PendingGroup], bool]
    ) -> None:
        self._groups: dict[Requirements, list[PendingGroup]] = {}
        self._heaps: dict[tuple[Requirements, ...], list[tuple[Rank, int, PendingGroup]]] = {}
        """By the requirements that a slot meets."""
        self._is_out = is_out
        """Whether a group is not to be placed here any more."""
        for requirements, group in groups:
            self._groups.setdefault(requirements, []).append(group)

    def find(
        self, met: tuple[Requirements, ...], accept: Callable[[PendingGroup], Found | None]
    ) -> tuple[PendingGroup, Found] | None:
        """Return the first group in order that meets its requirements and is accepted, with the result of `accept`."""
        heap = self._heaps.get(met)
        if heap is None:
            own = tuple(requirements for requirements in met if requirements in self._groups)
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
        groups = (group for requirements in met for group in self._groups[requirements])
        heap = [(group.rank, group.number, group) for group in groups if not group.is_served]
        heapify(heap)
        return heap
