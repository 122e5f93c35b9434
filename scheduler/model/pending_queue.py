"""The pending reservations in the order of age, updated with every row, so that no tick sorts all of them."""

from collections.abc import Mapping
from itertools import compress

from scheduler.model.reservations import Reservation, Shape

Groups = tuple[list[list[Reservation]], list[int]]


class PendingQueue:
    """The pending reservations of a view, the oldest first: by creation, then in order of submission.

    A new reservation is mostly younger than all others and is appended. Reservations that left
    or belong in between are handled when the lists are read. The lists have the same length; callers do not change
    them.
    """

    def __init__(self, pending: Mapping[str, Reservation]) -> None:
        self._pending = pending
        """By id; a row that is not in it any more has left."""
        self._reservations: list[Reservation] = []
        self._ids: list[str] = []
        self._shapes: list[Shape] = []
        self._has_left = False
        self._is_sorted = True
        self._groups: Groups | None = None

    def add(self, reservation: Reservation, shape: Shape) -> None:
        """One more."""
        if self._reservations and _age(reservation) < _age(self._reservations[-1]):
            self._is_sorted = False
        self._reservations.append(reservation)
        self._ids.append(reservation.id)
        self._shapes.append(shape)
        self._groups = None

    def note_departure(self) -> None:
        """One of them has left, or has another row now."""
        self._has_left, self._groups = True, None

    def list(self) -> tuple[list[Reservation], list[str], list[Shape]]:
        """The rows, their ids and their shapes."""
        if self._has_left:
            pending = self._pending
            stays = [pending.get(row.id) is row for row in self._reservations]
            self._reservations, self._ids = list(compress(self._reservations, stays)), list(compress(self._ids, stays))
            self._shapes, self._has_left = list(compress(self._shapes, stays)), False
            if len(self._ids) > len(pending):
                self._drop_twins()
        if not self._is_sorted:
            self._sort()
        return self._reservations, self._ids, self._shapes

    def _drop_twins(self) -> None:
        """A row that left and came back as the same object stands here twice."""
        rows = {row.id: (row, shape) for row, shape in zip(self._reservations, self._shapes, strict=True)}
        self._ids = list(rows)
        self._reservations, self._shapes = [row for row, _ in rows.values()], [shape for _, shape in rows.values()]

    def group(self) -> Groups:
        """Those of one account's name and one shape together, each group in the order of age, and for each of `list`
        the number of its group. Computed again only after a reservation came or left; callers do not change it.
        """
        if self._groups is None:
            rows, _, shapes = self.list()
            known: dict[tuple[str | None, Shape], int] = {}
            numbers = [
                known.setdefault((row.request.account, shape), len(known))
                for row, shape in zip(rows, shapes, strict=True)
            ]
            found: list[list[Reservation]] = [[] for _ in known]
            for number, row in zip(numbers, rows, strict=True):
                found[number].append(row)
            self._groups = found, numbers
        return self._groups

    def _sort(self) -> None:
        """By the last tie-breaker first: equal ones stay as they are, and plain numbers sort fastest."""
        rows = self._reservations
        order = sorted(range(len(rows)), key=[row.sequence for row in rows].__getitem__)
        order.sort(key=[row.created_at for row in rows].__getitem__)
        self._reservations = [rows[at] for at in order]
        self._ids, self._shapes = [self._ids[at] for at in order], [self._shapes[at] for at in order]
        self._is_sorted = True


def _age(reservation: Reservation) -> tuple[float, int]:
    return reservation.created_at, reservation.sequence
