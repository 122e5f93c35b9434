"""The pending reservations in order of age. The order is maintained with every row, so that no tick sorts all
reservations.
"""

from collections.abc import Mapping
from itertools import compress

from scheduler.model.reservations import Reservation, Shape

Groups = tuple[list[list[Reservation]], list[int]]


class PendingQueue:
    """The pending reservations of a view, oldest first: by time of creation, then in order of submission.

    A new reservation is usually the youngest and is appended. Removed reservations, and reservations that belong in
    between, are processed when the lists are read. The three lists have the same length, and callers must not change
    them.
    """

    def __init__(self, pending: Mapping[str, Reservation]) -> None:
        self._pending = pending
        """The pending reservations by id. A listed row that is missing in this table has left the queue."""
        self._reservations: list[Reservation] = []
        self._ids: list[str] = []
        self._shapes: list[Shape] = []
        self._has_left = False
        self._is_sorted = True
        self._groups: Groups | None = None

    def add(self, reservation: Reservation, shape: Shape) -> None:
        """Add a reservation, with the shape of its request."""
        if self._reservations and _age(reservation) < _age(self._reservations[-1]):
            self._is_sorted = False
        self._reservations.append(reservation)
        self._ids.append(reservation.id)
        self._shapes.append(shape)
        self._groups = None

    def note_departure(self) -> None:
        """Record that a reservation has left the queue or has a new row."""
        self._has_left, self._groups = True, None

    def list(self) -> tuple[list[Reservation], list[str], list[Shape]]:
        """Return three lists of equal length: the pending reservations, their ids and their shapes."""
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
        """Remove duplicates: a row that left and came back as the same object is listed twice."""
        rows = {row.id: (row, shape) for row, shape in zip(self._reservations, self._shapes, strict=True)}
        self._ids = list(rows)
        self._reservations, self._shapes = [row for row, _ in rows.values()], [shape for _, shape in rows.values()]

    def group(self) -> Groups:
        """Return the pending reservations grouped by account name and shape, and the group number of each reservation.

        Each group is in order of age. The numbers are in the order of `list`. The result is computed again only after a
        change of the queue; callers must not change it.
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
        """Sort the reservations by creation time, then by sequence number.

        Two stable sorts by one number each, the last criterion first, are faster than one sort by tuples.
        """
        rows = self._reservations
        order = sorted(range(len(rows)), key=[row.sequence for row in rows].__getitem__)
        order.sort(key=[row.created_at for row in rows].__getitem__)
        self._reservations = [rows[at] for at in order]
        self._ids, self._shapes = [self._ids[at] for at in order], [self._shapes[at] for at in order]
        self._is_sorted = True


def _age(reservation: Reservation) -> tuple[float, int]:
    return reservation.created_at, reservation.sequence
