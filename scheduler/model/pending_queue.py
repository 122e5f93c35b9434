"""The pending reservations of a view in two forms: all in order of age, and in groups of equal requests.

Both forms are updated with every row, so that no tick sorts or groups all reservations.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from operator import attrgetter, le
from typing import Any, Final

from scheduler.model.reservations import Reservation, Shape

Groups = tuple[list[list[Reservation]], list[int]]
GroupKey = tuple[str | None, Shape]
"""The key of a group of pending reservations: the name of their account, and their shape."""
QueueChange = tuple[Reservation, Shape, bool]
"""One change of the queue: a reservation, its shape, and whether it entered (True) or left (False) the queue. A new row
of a pending reservation makes two changes: the old row leaves, and the new row enters.
"""
MOST_SINGLE_CHANGES: Final = 64
"""Up to this number of changes, rows are inserted and deleted one by one. For more changes, the list of rows is
filtered and sorted once, which takes less time then.
"""
LARGEST_SHARE: Final = 8
"""If removed rows are more than 1 / LARGEST_SHARE of the rows in the columns, they are deleted from the columns. Fewer
removed rows stay until the columns are read.
"""
LEAST_LOG: Final = 10_000
"""The log of a PendingQueue keeps at least this number of changes, and at least one for each pending reservation."""

_age = attrgetter("created_at", "sequence")


class AgedRows:
    """Reservations in order of age (by time of creation, then in order of submission), stored as columns of equal
    length. The first column contains the rows of the reservations; each further column contains a value for each row.

    A row that is younger than all others is appended at once. Other changes are collected, and made when the columns
    are read.
    """

    __slots__ = ("_came", "_gone", "_has_unread", "columns")

    def __init__(self, *columns: list[Any]) -> None:
        """Begin with these columns, whose rows must be in order of age. The lists belong to this object from now on."""
        self.columns = columns
        self._came: tuple[list[Any], ...] = tuple([] for _ in columns)
        """Added rows, as columns, that are not sorted into `columns` yet."""
        self._gone: list[Reservation] = []
        """Rows that have left and are still in the columns, once for each time that they left."""

    def __len__(self) -> int:
        return len(self.columns[0]) + len(self._came[0]) - len(self._gone)

    @property
    def rows(self) -> Sequence[Reservation]:
        """The rows, oldest first. Callers must not change the list."""
        rows: Sequence[Reservation] = self.read()[0]
        return rows

    def add(self, *values: Any) -> None:
        rows = self.columns[0]
        columns = self._came if rows and _is_older(values[0], rows[-1]) else self.columns
        for column, value in zip(columns, values, strict=True):
            column.append(value)

    def add_all(self, *columns: Sequence[Any]) -> None:
        """Add many rows in any order. `columns`: a sequence of rows, and for each further column a sequence of the
        rows' values.

        Rows that are in order and younger than all others are appended at once. So a view whose rows come in order is
        not sorted when the first tick reads it.
        """
        rows, added = self.columns[0], columns[0]
        # Speed: no step of Python for each row, and an end at the first row that is not in order.
        ages, numbers = [row.created_at for row in added], [row.sequence for row in added]
        is_in_order = all(map(le, ages, ages[1:])) and all(map(le, numbers, numbers[1:]))
        is_last = is_in_order and not (rows and added and _is_older(added[0], rows[-1]))
        for column, values in zip(self.columns if is_last else self._came, columns, strict=True):
            column.extend(values)

    def remove(self, row: Reservation) -> None:
        """Remove a row that was added."""
        self._gone.append(row)
        if len(self._gone) > MOST_SINGLE_CHANGES and len(self._gone) * LARGEST_SHARE > len(self.columns[0]):
            self.read()

    def find_oldest(self, accept: Callable[[Reservation], bool]) -> Reservation | None:
        """Return the oldest row that `accept` accepts; None: it accepts none. `accept` is also called with removed rows
        that are still in the columns.
        """
        came = filter(accept, self._came[0])
        found = (next(filter(accept, self.columns[0]), None), min(came, key=_age, default=None))
        return min((each for each in found if each is not None), key=_age, default=None)

    def read(self) -> tuple[list[Any], ...]:
        """Make the collected changes, and return the columns. Callers must not change them."""
        if self._came[0] or self._gone:
            if len(self._came[0]) + len(self._gone) <= MOST_SINGLE_CHANGES:
                self._change_each()
            else:
                for column, came in zip(self.columns, self._came, strict=True):
                    column.extend(came)
                if self._gone:
                    self._filter()
                if self._came[0]:
                    self._sort()
            self._came, self._gone = tuple([] for _ in self.columns), []
        return self.columns

    def _change_each(self) -> None:
        rows = self.columns[0]
        for values in zip(*self._came, strict=True):
            at = bisect_right(rows, _age(values[0]), key=_age)
            for column, value in zip(self.columns, values, strict=True):
                column.insert(at, value)
        for row in self._gone:
            at = bisect_left(rows, _age(row), key=_age)
            while rows[at] is not row:
                at += 1
            for column in self.columns:
                del column[at]

    def _filter(self) -> None:
        left: dict[int, int] = {}
        for row in self._gone:
            left[id(row)] = left.get(id(row), 0) + 1
        stays = [id(row) not in left for row in self.columns[0]]
        if len(stays) - sum(stays) > len(self._gone):  # a row left and came back as the same object
            for at, row in enumerate(self.columns[0]):
                if not stays[at]:
                    left[id(row)] -= 1
                    stays[at] = left[id(row)] < 0
        for column in self.columns:
            column[:] = compress(column, stays)

    def _sort(self) -> None:
        """Sort the columns. Two stable sorts by one number each, the last criterion first, are faster than one sort by
        tuples.
        """
        rows = self.columns[0]
        order = sorted(range(len(rows)), key=[row.sequence for row in rows].__getitem__)
        order.sort(key=[row.created_at for row in rows].__getitem__)
        for column in self.columns:
            column[:] = [column[at] for at in order]


class PendingQueue:
    """The pending reservations of a view, oldest first, and a log of the reservations that entered
    and left the queue.
    """

    def __init__(self) -> None:
        self._rows = AgedRows([], [], [])
        self._groups: dict[GroupKey, AgedRows] | None = None
        """Key of a group -> its reservations; None until groups are read for the first time."""
        self._changed: dict[GroupKey, AgedRows] = {}
        """The groups that changed since empty groups were last removed."""
        self._numbered: Groups | None = None
        self._is_followed = False
        """Whether a reader follows the queue, so that changes are logged."""
        self._log: list[QueueChange] = []
        self._log_start = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, reservation: Reservation, shape: Shape) -> None:
        self._rows.add(reservation, reservation.id, shape)
        self._count += 1
        self._note(reservation, shape, has_come=True)
        if self._groups is not None:
            self._find_group(reservation, shape).add(reservation)

    def add_all(self, reservations: Sequence[Reservation], ids: Sequence[str], shapes: Sequence[Shape]) -> None:
        if self._is_followed or self._groups is not None:
            for reservation, shape in zip(reservations, shapes, strict=True):
                self.add(reservation, shape)
            return
        self._rows.add_all(reservations, ids, shapes)
        self._count += len(reservations)
        self._numbered = None

    def remove(self, reservation: Reservation, shape: Shape) -> None:
        """Remove a reservation: it has left the queue or has a new row. `reservation` is the row that was added."""
        self._rows.remove(reservation)
        self._count -= 1
        self._note(reservation, shape, has_come=False)
        if self._groups is not None:
            self._find_group(reservation, shape).remove(reservation)

    def list(self) -> tuple[list[Reservation], list[str], list[Shape]]:
        """Return three lists of equal length: the pending reservations, their ids and their shapes. Callers must not
        change them.
        """
        rows, ids, shapes = self._rows.read()
        return rows, ids, shapes

    def find_oldest(self, accept: Callable[[Reservation], bool]) -> Reservation | None:
        """Return the oldest reservation that `accept` accepts; None: it accepts none. `accept` is also called with rows
        that have left the queue lately.
        """
        return self._rows.find_oldest(accept)

    def follow(self) -> int:
        """Return the present end of the log of changes, a position which `changes_since` accepts later. Changes are
        logged from the first call on.
        """
        self._is_followed = True
        return self._log_start + len(self._log)

    def changes_since(self, position: int) -> Sequence[QueueChange] | None:
        """Return the changes of the queue after a position in the log, oldest first; None if the log does not reach
        back so far.
        """
        return self._log[position - self._log_start :] if position >= self._log_start else None

    def groups(self) -> Mapping[GroupKey, AgedRows]:
        """Return the groups that have reservations. The result changes with the queue; callers must not change it. The
        cost of a call grows with the number of groups that changed since the last call. The rows of a group are put in
        order when they are read.
        """
        if self._groups is None:
            self._groups = self._make_groups(self._list_keys())
        for key, group in self._changed.items():
            if not group:
                del self._groups[key]
        self._changed.clear()
        return self._groups

    def group(self) -> Groups:
        """Return two lists: (1) the groups of pending reservations with the same account name and shape, each in order
        of age; (2) for each reservation, in the order of `list`, the index of its group in the first list. Groups are
        in the order of their oldest reservations. The result is made again only after a change of the queue; callers
        must not change it.
        """
        if self._numbered is None:
            keys = self._list_keys()
            if self._groups is None:
                self._groups = self._make_groups(keys)
            found = self.groups()
            # The queue is in order of age, so the first reservation of each group that comes up is its oldest one.
            number_of = {key: number for number, key in enumerate(dict.fromkeys(keys))}
            self._numbered = [list(found[key].rows) for key in number_of], list(map(number_of.__getitem__, keys))
        return self._numbered

    def _list_keys(self) -> Sequence[GroupKey]:
        rows, _, shapes = self.list()
        return tuple(zip([row.request.account for row in rows], shapes, strict=True))

    def _make_groups(self, keys: Sequence[GroupKey]) -> dict[GroupKey, AgedRows]:
        found = defaultdict[GroupKey, Any](list)
        for row, key in zip(self.list()[0], keys, strict=True):
            found[key].append(row)
        return {key: AgedRows(members) for key, members in found.items()}

    def _find_group(self, reservation: Reservation, shape: Shape) -> AgedRows:
        assert self._groups is not None, "groups exist once they were read"  # noqa: S101
        key = (reservation.request.account, shape)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = AgedRows([])
        self._changed[key] = group
        return group

    def _note(self, reservation: Reservation, shape: Shape, *, has_come: bool) -> None:
        self._numbered = None
        if not self._is_followed:
            return
        self._log.append((reservation, shape, has_come))
        if len(self._log) > 2 * max(LEAST_LOG, self._count):
            dropped = len(self._log) // 2
            del self._log[:dropped]
            self._log_start += dropped


def _is_older(row: Reservation, other: Reservation) -> bool:
    return row.created_at < other.created_at or (row.created_at == other.created_at and row.sequence < other.sequence)
