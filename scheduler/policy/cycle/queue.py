"""The queue of one cycle: pending reservations in order, the demand of each, and the reasons why reservations wait."""

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, KeysView, Sequence
from dataclasses import dataclass, field
from itertools import chain, compress
from math import inf
from typing import Any

from scheduler.model.reservations import Reservation
from scheduler.model.waiting_codes import WAITING_CODES, WaitingCode
from scheduler.model.waits import Reason, Waits
from scheduler.policy.capacity.requests import Demand

_RANK_OF_CODE = {code: rank for rank, code in enumerate(WAITING_CODES)}


@dataclass(slots=True)
class Queue:
    """Pending reservations in order, with the demand of each.

    They are stored in parallel lists, because there may be a million reservations.
    """

    _rows: list[Reservation] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    demands: list[Demand] = field(default_factory=list)
    oldest: float = inf
    """When the oldest reservation in the queue was created (`created_at`); infinity for an empty queue."""
    _stays: Sequence[object] | None = None
    """Which rows of `_rows` belong to the queue: one entry for each row, true for the rows that do. None: all rows
    belong to the queue.

    Speed: `ids` and `demands` are filtered at once, `_rows` only when `reservations` is first read. Most steps need
    only the ids.
    """
    _different: KeysView[Demand] | None = None

    @property
    def reservations(self) -> list[Reservation]:
        """The rows of the queue's reservations, in order. Callers must not change the list."""
        if self._stays is not None:
            self._rows, self._stays = list(compress(self._rows, self._stays)), None
        return self._rows

    @property
    def different(self) -> KeysView[Demand]:
        """The different demands of the queue, in the order of their first reservations."""
        if self._different is None:
            self._different = dict.fromkeys(self.demands).keys()
        return self._different

    def __iter__(self) -> Iterator[tuple[Reservation, Demand]]:
        return zip(self.reservations, self.demands, strict=True)

    def sort(self, rank: Callable[[Reservation], Any]) -> "Queue":
        """Return a queue sorted by `rank`, smallest rank first. Reservations of equal rank keep their order."""
        ranks = list(map(rank, self.reservations))
        return self._arrange(sorted(range(len(ranks)), key=ranks.__getitem__))

    def sort_groups(self, numbers: Sequence[int], ranks: Sequence[float]) -> "Queue":
        """Return the queue sorted by the rank of each reservation's group, smallest first. Reservations of equal rank
        keep their order.

        `numbers`: for each reservation, the index of its group in `ranks`. This is faster than `sort`, because there
        are few different ranks.
        """
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

    def merge(self, added: "Queue", key: Callable[[Reservation], Any]) -> "Queue":
        """Return this queue with the reservations of the queue `added`. Both queues are sorted by `key`.

        Of two reservations with equal keys, the one of this queue comes first.
        """
        rows, at = self.reservations, 0
        merged = Queue(oldest=min(self.oldest, added.oldest))
        for number, row in enumerate(added.reservations):
            begin, at = at, _find_place(rows, key(row), at, key)
            merged._extend(self, begin, at)
            merged._extend(added, number, number + 1)
        merged._extend(self, at, len(rows))
        return merged

    def _extend(self, other: "Queue", begin: int, end: int) -> None:
        if begin < end:
            self._rows += other.reservations[begin:end]
            self.ids += other.ids[begin:end]
            self.demands += other.demands[begin:end]

    def filter(self, stays: Sequence[object]) -> "Queue":
        """Return a queue of the reservations whose entry in `stays` is true, in the same order. `stays` has one entry
        for each reservation of this queue, in queue order.
        """
        ids, demands = list(compress(self.ids, stays)), list(compress(self.demands, stays))
        return Queue(self.reservations, ids, demands, self.oldest, stays)


def _find_place(rows: Sequence[Reservation], value: Any, begin: int, key: Callable[[Reservation], Any]) -> int:
    """Return the first position, from `begin` on, of a row whose key is greater than `value`; the number of rows if
    there is none. `key`: returns the sort key of a row; the rows are sorted by it.

    The search looks at the rows near `begin` first, with growing steps: to find a near position, few keys are computed.
    """
    end, step = begin, 1
    while end < len(rows) and key(rows[end]) <= value:
        begin, end, step = end + 1, end + step, 2 * step
    return bisect_right(rows, value, begin, min(end, len(rows)), key=key)


class WaitReasons:
    """Collects why each reservation waits. If several waiting codes are added for a reservation, the first one in
    WAITING_CODES is reported.
    """

    def __init__(self) -> None:
        self._known: dict[str, Reason] = {}
        self._ordered: tuple[Sequence[str], Iterable[Reason]] = ((), ())
        """(ids, their reasons) as `add_in_order` received them, if no other reason has been added. When another reason
        is added or looked up, both move to `_known`.

        Speed: most cycles with many waiting reservations add no other reasons. `list` then returns these two lists as
        they are, and looks up no reason by id.
        """

    def _open(self) -> dict[str, Reason]:
        ids, reasons = self._ordered
        if ids:
            self._known = dict(zip(ids, reasons, strict=True))
            self._ordered = ((), ())
        return self._known

    def find(self, name: str) -> Reason | None:
        """Return why the reservation `name` waits; None if no reason was added."""
        return self._open().get(name)

    def add(self, name: str, code: WaitingCode, detail: str) -> None:
        """Add a reason why the reservation `name` waits: a waiting code, and a sentence with the details."""
        reasons = self._open()
        known = reasons.get(name)
        if known is None or _RANK_OF_CODE[code] <= _RANK_OF_CODE[known[0]]:
            reasons[name] = (code, detail)

    def add_all(self, ids: Sequence[str], reasons: Iterable[Reason]) -> None:
        """Add one reason for each reservation in `ids`. `reasons`: the reasons in the order of `ids`. It may be longer
        than `ids`, even endless; the reasons after the last id are ignored.
        """
        if not ids:
            return
        known = self._open()
        if not known or known.keys().isdisjoint(ids):
            known.update(zip(ids, reasons, strict=False))
        else:
            for name, reason in zip(ids, reasons, strict=False):
                self.add(name, *reason)

    def add_in_order(self, ids: Sequence[str], reasons: Sequence[Reason]) -> None:
        """Add one reason for each of these reservations, like `add_all`. `ids` must be in queue order. If no other
        reason is added, the method `list` can return both lists as they are, and looks up no reason by id.
        """
        if not self._open():
            self._ordered = (ids, reasons)
        else:
            self.add_all(ids, reasons)

    def list(self, ids: Sequence[str], *, are_all_in: bool) -> Waits:
        """Return the reservations among `ids` for which a reason was added, in the order of `ids`, each with its
        reason.

        `are_all_in`: whether `ids` contains all ids that `add_in_order` received before, in the same order.
        """
        if are_all_in and self._ordered[0]:
            return Waits(*self._ordered)
        known = self._open()
        reasons = list(map(known.get, ids)) if known else []
        return Waits(compress(ids, reasons), filter(None, reasons))
