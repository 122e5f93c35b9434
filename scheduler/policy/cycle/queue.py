"""The queue of one cycle: pending reservations in order, and what each one requests."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from math import inf
from typing import Any

from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.requests import Demand


@dataclass(slots=True)
class Queue:
    """Who waits, and what each needs; in lists as long as each other, because there may be a million."""

    _rows: list[Reservation] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    oldest: float = inf
    """When the one that waits longest was created."""
    _stays: Sequence[object] | None = None
    """Which of the rows are meant, where that was not looked at yet: who is left over is mostly asked for its id."""
    _different: set[Demand] | None = None

    @property
    def reservations(self) -> list[Reservation]:
        """Their rows; not to be changed by who asks."""
        if self._stays is not None:
            self._rows, self._stays = list(compress(self._rows, self._stays)), None
        return self._rows

    @property
    def different(self) -> set[Demand]:
        """What all of them need, each demand once; not to be changed by who asks."""
        if self._different is None:
            self._different = set(self.demands)
        return self._different

    def __iter__(self) -> Iterator[tuple[Reservation, Demand]]:
        return zip(self.reservations, self.demands, strict=True)

    def sort(self, rank: Callable[[Reservation], Any]) -> "Queue":
        """Another one, sorted by this, less first; equal ones stay as they are."""
        ranks = list(map(rank, self.reservations))
        return self._arrange(sorted(range(len(ranks)), key=ranks.__getitem__))

    def sort_groups(self, numbers: Sequence[int], ranks: Sequence[float]) -> "Queue":
        """The same by the rank of the group that each is in, of which there are few different ones."""
        found: dict[float, list[int]] = {rank: [] for rank in sorted(ranks)}
        if len(found) <= 1:
            return self
        notes = [found[rank].append for rank in ranks]
        for at, number in enumerate(numbers):
            notes[number](at)
        return self._arrange(list(chain.from_iterable(found.values())))

    def _arrange(self, order: list[int]) -> "Queue":
        return Queue(
            list(map(self.reservations.__getitem__, order)),
            list(map(self.ids.__getitem__, order)),
            list(map(self.demands.__getitem__, order)),
            self.oldest,
        )

    def filter(self, stays: Sequence[object]) -> "Queue":
        """Another one, of those for whom this is true."""
        ids, demands = list(compress(self.ids, stays)), list(compress(self.demands, stays))
        return Queue(self.reservations, ids, demands, self.oldest, stays)
