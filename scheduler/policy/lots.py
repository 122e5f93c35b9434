"""Lots: the pending reservations of one account that ask for the same, in order; and lines, where the first of many
lots is found. Everybody in a lot finds the same, so that a slot looks at the first one only.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from typing import Generic, TypeVar

from scheduler.model.accounts import Account
from scheduler.model.reservations import Reservation
from scheduler.policy.asks import Ask
from scheduler.policy.needs import Demand

Rank = tuple[int, float, int]
"""Less is served first: most required labels, then the oldest, then the order of submission."""
Found = TypeVar("Found")


@dataclass(slots=True, eq=False)
class Lot:
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
    required: Ask
    """What the place of the first instance must have."""
    preferred: Ask | None
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


class Lines(Generic[Found]):
    """Lots under what they ask of a place; who meets the same asks looks at one heap."""

    def __init__(self, lots: Iterable[tuple[Ask, Lot]], is_out: Callable[[Lot], bool]) -> None:
        self._lots: dict[Ask, list[Lot]] = {}
        self._heaps: dict[tuple[Ask, ...], list[tuple[Rank, int, Lot]]] = {}
        """By the asks that lots of these lines have, and by whatever asks a place meets besides."""
        self._is_out = is_out
        """Whether nobody of a lot is to be placed here any more."""
        for ask, lot in lots:
            self._lots.setdefault(ask, []).append(lot)

    def find(self, met: tuple[Ask, ...], accept: Callable[[Lot], Found | None]) -> tuple[Lot, Found] | None:
        """The first one in order, of those whose ask is met, that is accepted; with what `accept` found for it."""
        heap = self._heaps.get(met)
        if heap is None:
            own = tuple(ask for ask in met if ask in self._lots)
            if own not in self._heaps:
                self._heaps[own] = self._open(own)
            heap = self._heaps[met] = self._heaps[own]
        aside, answer = [], None
        while heap and answer is None:
            rank, number, lot = heap[0]
            if lot.is_served or self._is_out(lot):
                heappop(heap)
            elif rank != lot.rank:
                heapreplace(heap, (lot.rank, number, lot))
            elif (found := accept(lot)) is not None:
                answer = (lot, found)
            else:
                aside.append(heappop(heap))
        for entry in aside:
            heappush(heap, entry)
        return answer

    def _open(self, met: tuple[Ask, ...]) -> list[tuple[Rank, int, Lot]]:
        lots = (lot for ask in met for lot in self._lots[ask])
        heap = [(lot.rank, lot.number, lot) for lot in lots if not lot.is_served]
        heapify(heap)
        return heap
