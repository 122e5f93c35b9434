"""The view: an in-memory copy of slots, reservations, launch back-offs, accounts and run times, from which a tick
plans.

The view may lag behind the database. Rows may arrive in any order, late and more than once; the newer copy of a row
counts. Derived tables, such as the leases on each slot, are updated with every row, so that a tick never scans the
whole view.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from math import inf
from operator import attrgetter
from typing import Final

import msgspec

from scheduler.model.accounts import Account, find_account
from scheduler.model.launch_backoff import Hold
from scheduler.model.pending_queue import PendingQueue
from scheduler.model.reservations import (
    Lease,
    Reservation,
    Shape,
    find_limit,
    is_over,
    is_special,
    make_shape,
    shape_key,
)
from scheduler.model.run_times import RunTimes
from scheduler.model.slots import Slot, slot_order, without_user_data
from scheduler.model.transitions import ENDED, PHASES, Phase

# Two collections of a view's rows, slots and expiring reservations, which keep their order while rows are added and
# removed, so that no tick sorts them.


MOST_STALE: Final = 1000
"""If an `ExpiryQueue` has more stale entries than this number, and more stale entries than valid ones, all stale
entries are dropped.
"""


class OrderedSlots:
    """The slots of one pool by id, sorted by number (`linux-2` before `linux-10`).

    The order is kept up to date when a row changes, so that no tick sorts all slots. A new slot usually has the highest
    number and is appended without sorting.
    """

    def __init__(self) -> None:
        self._slots: dict[str, Slot] = {}
        self._last: tuple[str, int, str] | None = None
        """The highest sort key of any slot that was added. Its slot may have been removed since."""
        self._is_sorted = True

    def __bool__(self) -> bool:
        return bool(self._slots)

    def put(self, slot: Slot) -> None:
        """Add a slot, or replace the row of a slot with the same id."""
        if slot.id not in self._slots:
            order = slot_order(slot.id)
            if self._last is None or self._last < order:
                self._last = order
            else:
                self._is_sorted = False
        self._slots[slot.id] = slot

    def remove(self, slot: Slot) -> None:
        """Remove a slot. Raises KeyError if the pool does not have it."""
        del self._slots[slot.id]

    def list(self) -> list[Slot]:
        """Return all slots of the pool, sorted by number."""
        if not self._is_sorted:
            self._slots = dict(sorted(self._slots.items(), key=lambda each: slot_order(each[0])))
            self._is_sorted = True
        return list(self._slots.values())


class ExpiryQueue:
    """Reservations by a time at which they end, in a heap, so that no tick examines those whose time has not come.

    A renewed reservation leaves a stale entry behind, which is dropped when it reaches the top of the heap.
    """

    def __init__(
        self,
        most_stale: int = MOST_STALE,
        find_end: Callable[[Reservation], float | None] = attrgetter("expires_at"),
    ) -> None:
        """`find_end`: returns the time; None: the reservation is not added (default: its `expires_at`)."""
        self._most_stale, self._find_end = most_stale, find_end
        self._rows: dict[str, Reservation] = {}
        self._heap: list[tuple[float, str]] = []

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, reservation: Reservation) -> None:
        end = self._find_end(reservation)
        if end is not None:
            self._rows[reservation.id] = reservation
            heappush(self._heap, (end, reservation.id))

    def remove(self, reservation: Reservation) -> None:
        """Remove a reservation: it has left the view or has a new row."""
        self._rows.pop(reservation.id, None)
        if len(self._heap) > 2 * len(self._rows) + self._most_stale:
            ends = [(self._find_end(row), name) for name, row in self._rows.items()]
            self._heap = [(end, name) for end, name in ends if end is not None]
            heapify(self._heap)

    def find_due(self, now: float) -> tuple[list[Reservation], float | None]:
        """Return two things: (1) the reservations whose time is `now` or earlier; (2) the first time after `now` (None:
        there is none).

        The reservations found stay in the queue.
        """
        due: dict[str, Reservation] = {}
        while self._heap and (self._heap[0][0] <= now or self._is_stale(self._heap[0])):
            entry = heappop(self._heap)
            if not self._is_stale(entry):
                due[entry[1]] = self._rows[entry[1]]
        following = self._heap[0][0] if self._heap else None
        for row in due.values():
            self.add(row)
        return list(due.values()), following

    def _is_stale(self, entry: tuple[float, str]) -> bool:
        row = self._rows.get(entry[1])
        return row is None or self._find_end(row) != entry[0]


# Remembers which rows written lately a view has applied. Rows with the same time of writing (`marked_at`) are one
# group.
#
# The scheduler uses the groups to find changes that never reached the view. It asks the database for the rows written
# lately, grouped by `marked_at` too. One comparison shows whether the view has applied all rows of a group. Only the
# rows of the remaining groups are read one by one.


KEPT_SECONDS: Final = 60.0
"""Rows that were written up to this number of seconds before the newest write are kept; rows of twice this age are not.
While ticks are on time, a search for lost changes does not go back further. If it does, the rows of earlier writes are
read one by one.
"""

Key = int | str
"""The key of a row among the rows of its kind: the `sequence` of a reservation, the id of any other row."""


class RecentWrites:
    """The rows that a view has applied lately: kind of row -> time of writing -> key -> version. Ended reservations,
    which the view drops, are included.
    """

    def __init__(self) -> None:
        self._groups: dict[str, dict[float, dict[Key, int]]] = {}
        self._oldest = self._newest = float("-inf")

    def note(self, kind: str, key: Key, version: int, mark: float) -> None:
        """Record that the view has applied this version of a row of this kind. `mark`: the row's time of writing,
        `marked_at`.
        """
        try:
            self._groups[kind][mark][key] = version
        except KeyError:
            if mark >= self._oldest:
                self._groups.setdefault(kind, {})[mark] = {key: version}
                self._forget_old(mark)

    def note_all(self, kind: str, keys: Sequence[Key], versions: Sequence[int], marks: Sequence[float]) -> None:
        """Record many applied rows of one kind, as `note` records one. The sequences are parallel: the key, the version
        and the time mark of each row.
        """
        self._forget_old(max(marks))
        groups, oldest = self._groups.setdefault(kind, {}), self._oldest
        for mark, key, version in zip(marks, keys, versions, strict=True):
            if mark >= oldest:
                group = groups.get(mark)
                if group is None:
                    groups[mark] = {key: version}
                else:
                    group[key] = version

    def forget(self, kind: str, key: Key, mark: float) -> None:
        """Forget a row that was deleted from the view. `mark`: the row's time of writing, `marked_at`."""
        self._groups.get(kind, {}).get(mark, {}).pop(key, None)

    def has_all(self, kind: str, mark: float, keys: Iterable[Key], versions: int) -> bool:
        """Return whether the view has applied the rows with these keys, written at `mark`, whose versions have the sum
        `versions`.

        Because no version in the view is newer than the version in the database, equal sums mean that all versions are
        equal.
        """
        group = self._groups.get(kind, {}).get(mark)
        if group is None:
            return False
        try:
            return sum(map(group.__getitem__, keys)) == versions
        except KeyError:
            return False

    def _forget_old(self, mark: float) -> None:
        self._newest = max(self._newest, mark)
        if self._newest - self._oldest > 2 * KEPT_SECONDS:
            self._oldest = self._newest - KEPT_SECONDS
            for kind, groups in self._groups.items():
                self._groups[kind] = {at: group for at, group in groups.items() if at >= self._oldest}


_ENCODE = msgspec.msgpack.Encoder().encode
UNUSED_SHAPES = 10_000
"""If a view has more encoded requests than twice the number of its reservations plus this number, it forgets the shapes
that are no longer in use.
"""
Row = Slot | Reservation | Hold | Account | RunTimes
Kind = str

KINDS: dict[type, Kind] = {
    Slot: "slots",
    Reservation: "reservations",
    Hold: "holds",
    Account: "accounts",
    RunTimes: "run_times",
}
ROW_TYPES: dict[Kind, type[Row]] = {
    "slots": Slot,
    "reservations": Reservation,
    "holds": Hold,
    "accounts": Account,
    "run_times": RunTimes,
}


class Gone(msgspec.Struct, frozen=True):
    """A deleted row. `version` is one more than the last version of the row."""

    kind: Kind
    id: str
    version: int


Change = Row | Gone
"""A published change: the whole new row, or a `Gone` if the row was deleted."""


def as_published(change: Change) -> Change:
    """Return a change as the view has it, without what its readers must not read: user data of pools, and the hosts of
    senders.
    """
    if isinstance(change, Slot):
        return without_user_data(change)
    if isinstance(change, Reservation) and change.sender is not None:
        return msgspec.structs.replace(change, sender=None)
    return change


def is_newer(row: Row, known: Row | None) -> bool:
    """Return whether `row` is newer than the known copy: it has a greater version, or an equal version and a later
    `marked_at`. None: there is no copy, so `row` is newer.

    If version and `marked_at` are both equal but the content differs, the row that arrives later counts as newer.
    """
    if known is None or row.version > known.version:
        return True
    newer, older = (row.version, row.marked_at), (known.version, known.marked_at)
    return newer > older or (newer == older and row != known)


def count_rows(view: "View") -> dict[Kind, int]:
    return {kind: len(view.rows(kind)) for kind in ROW_TYPES}


class View:
    """The slots, reservations that have not ended, launch back-offs, accounts and run times of a cluster, with tables
    derived from them.

    The derived tables, by slot or reservation id:

    - leases_on: slot id -> (reservation, component) -> lease.
    - by_phase: phase -> id -> reservation.
    - shapes: the shape of each reservation; equal requests share one object.
    - special: reservations that are not placed by their shape alone, because they are on hold, declined slots, were
      interrupted or have a claim.
    - mortal: reservations that expire.
    - limited: account name -> leased reservations with a `max_runtime`.
    - unconfirmed: leased reservations whose holders have not confirmed them.
    - timed: reservations with a ttl of their own or a `max_runtime`.
    - waiters: the pending reservations.
    - stretching: leased reservations with elastic components.
    - has_limits: whether any lease ever had a limit of cores.
    """

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.slots: dict[str, Slot] = {}
        self.reservations: dict[str, Reservation] = {}
        self.holds: dict[str, Hold] = {}
        self.accounts: dict[str, Account] = {}
        self.run_times: dict[str, RunTimes] = {}
        self.leases_on: dict[str, dict[tuple[str, str], Lease]] = {}
        self.by_phase: dict[str, dict[str, Reservation]] = {phase: {} for phase in PHASES}
        self.shapes: dict[str, Shape] = {}
        self.special: dict[str, Reservation] = {}
        self.mortal = ExpiryQueue()
        self.limited: dict[str, ExpiryQueue] = {}
        self.unconfirmed: dict[str, Reservation] = {}
        self.timed: dict[str, Reservation] = {}
        self.stretching: dict[str, Reservation] = {}
        self.has_limits = False
        self.revision = 0
        """Number of changes that this view has applied."""
        self.touched: dict[str, int] = {}
        """Slot id -> revision of the last change of the slot's row or of a lease on it, in order of revision."""
        self._interned: dict[Hashable, Shape] = {}
        self._encoded: dict[bytes, Shape] = {}
        """Encoded request -> its shape. Two requests with the same shape may be encoded differently."""
        self.pools: dict[str, OrderedSlots] = {}
        """Pool name -> slots of the pool in slot order; a pool without slots is missing."""
        self.waiters = PendingQueue()
        self.recent_writes = RecentWrites()
        self.apply_all(list(rows))

    def apply_all(self, changes: Sequence[Change]) -> None:
        """Apply many changes, with the result of calling `apply` for one after the other. Speed: reservations that the
        view does not have are added table by table, which takes about half of the time.
        """
        rows = {each.id: each for each in changes if isinstance(each, Reservation)}
        others = [] if len(rows) == len(changes) else [each for each in changes if not isinstance(each, Reservation)]
        # Each row is the only one of its reservation, and the view has none of these reservations.
        are_new = len(rows) + len(others) == len(changes) and self.reservations.keys().isdisjoint(rows)
        if rows and are_new and not any(isinstance(each, Gone) for each in others):
            found = rows.values()
            self.revision += len(rows)
            self.recent_writes.note_all(
                "reservations",
                [row.sequence for row in found],
                [row.version for row in found],
                [row.marked_at for row in found],
            )
            for phase in dict.fromkeys([row.phase for row in found]):
                self._take_phase(phase, {name: row for name, row in rows.items() if row.phase == phase})
            changes = others
        for change in changes:
            self.apply(change)

    def apply(self, change: Change) -> None:
        """Apply a change, unless the view already has a row that is at least as new. Remove rows that were deleted or
        have ended.
        """
        match change:
            case Reservation():
                known = self.reservations.get(change.id)
                if known is None or is_newer(change, known):
                    self._take(change, known)
            case Slot():
                stood = self.slots.get(change.id)
                if is_newer(change, stood):
                    self._place(change, stood)
            case Hold() | Account() | RunTimes():
                self._put(change)
            case Gone():
                self._drop(change)

    def account_of(self, reservation: Reservation) -> Account | None:
        """Return the account that pays for a reservation; None if no existing account does."""
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def find_max_runtime(self, reservation: Reservation) -> float | None:
        """Return the `max_runtime` of a reservation if its account enforces it; else None."""
        most = reservation.request.max_runtime
        if most is None:
            return None
        account = self.account_of(reservation)
        return most if account is not None and account.enforce_max_runtime else None

    def find_at_limit(self, now: float) -> tuple[list[Reservation], float]:
        """Return two things: (1) the leased reservations that have reached the `max_runtime` that their account
        enforces; (2) when the next one reaches it (infinity: none does).
        """
        reached, following = list[Reservation](), inf
        for name, queue in self.limited.items():
            account = self.accounts.get(name)
            if account is not None and account.enforce_max_runtime:
                due, later = queue.find_due(now)
                reached += [each for each in due if self.account_of(each) is not None]
                following = following if later is None else min(following, later)
        return reached, following

    def find(self, row: Row) -> Row | None:
        """Return this view's copy of the row with the kind and id of `row`; None if the view has none."""
        return self.rows(KINDS[type(row)]).get(row.id)

    def rows(self, kind: Kind) -> Mapping[str, Row]:
        """Return all rows of one kind (a key of `ROW_TYPES`) by id."""
        found: Mapping[str, Row] = getattr(self, kind)
        return found

    def leases_of(self, slot_id: str) -> list[tuple[str, Lease]]:
        """Return pairs (reservation id, lease) for all leases on this slot, including leases of earlier epochs of the
        slot.
        """
        return [(owner, lease) for (owner, _), lease in self.leases_on.get(slot_id, {}).items()]

    def _put(self, row: Hold | Account | RunTimes) -> None:
        kind = KINDS[type(row)]
        rows: dict[str, Row] = getattr(self, kind)
        if is_newer(row, rows.get(row.id)):
            rows[row.id] = row
            self.revision += 1
            self.recent_writes.note(kind, row.id, row.version, row.marked_at)

    def _place(self, slot: Slot, known: Slot | None) -> None:
        name = slot.id
        self.slots[name] = slot
        self.revision += 1
        self.recent_writes.note("slots", name, slot.version, slot.marked_at)
        self.touched.pop(name, None)
        self.touched[name] = self.revision
        if known is None or known.pool != slot.pool:
            self._displace(known)
        if slot.pool not in self.pools:
            self.pools[slot.pool] = OrderedSlots()
        self.pools[slot.pool].put(slot)

    def _displace(self, slot: Slot | None) -> None:
        if slot is None:
            return
        slots = self.pools[slot.pool]
        slots.remove(slot)
        if not slots:
            del self.pools[slot.pool]

    def _take(self, reservation: Reservation, known: Reservation | None) -> None:
        self.revision += 1
        self.recent_writes.note("reservations", reservation.sequence, reservation.version, reservation.marked_at)
        if known is not None:
            self._forget(known)
        if is_over(reservation):
            return
        self.reservations[reservation.id] = reservation
        self.by_phase[reservation.phase][reservation.id] = reservation
        self._drop_unused_shapes()
        shape = self.shapes[reservation.id] = self._find_shape(reservation)
        if reservation.phase == "pending":
            self.waiters.add(reservation, shape)
        elif reservation.phase == "leased":
            self._list_leased([reservation], [shape])
        self._list_exceptions([reservation])
        self._list_leases([reservation])

    def _take_phase(self, phase: Phase, rows: dict[str, Reservation]) -> None:
        if phase in ENDED:
            rows = {name: row for name, row in rows.items() if not is_over(row)}
        found = list(rows.values())
        self.reservations.update(rows)
        self.by_phase[phase].update(rows)
        self._drop_unused_shapes()
        # Speed: reservations that were read together share the objects of equal requests.
        different = {(id(row.request), row.run is None): row for row in found}
        shape_of = {key: self._find_shape(row) for key, row in different.items()}
        shapes = [shape_of[id(row.request), row.run is None] for row in found]
        self.shapes.update(zip(rows, shapes, strict=True))
        if phase == "pending":
            self.waiters.add_all(found, list(rows), shapes)
        elif phase == "leased":
            self._list_leased(found, shapes)
        # Speed: most reservations are plain ones that wait, and need this one test.
        unusual = [
            row
            for row in found
            if row.leases
            or row.suspended
            or row.priority == 0
            or row.declined
            or row.interruptions
            or row.expires_at is not None
            or row.request.ttl is not None
            or row.request.max_runtime is not None
        ]
        self._list_exceptions(unusual)
        self._list_leases(unusual)

    def _list_leases(self, rows: Iterable[Reservation]) -> None:
        leases_on, touched, revision = self.leases_on, self.touched, self.revision
        for row in rows:
            owner = row.id
            for lease in row.leases:
                name = lease.slot
                held = leases_on.get(name)
                if held is None:
                    leases_on[name] = {(owner, lease.component): lease}
                else:
                    held[owner, lease.component] = lease
                touched.pop(name, None)
                touched[name] = revision
                if lease.cores is not None:
                    self.has_limits = True

    def _list_leased(self, rows: Iterable[Reservation], shapes: Iterable[Shape]) -> None:
        for row, shape in zip(rows, shapes, strict=True):
            if shape.elastic:
                self.stretching[row.id] = row
            if row.confirmed_at is None:
                self.unconfirmed[row.id] = row
            if row.request.max_runtime is not None and (account := row.request.account) is not None:
                if account not in self.limited:
                    self.limited[account] = ExpiryQueue(find_end=find_limit)
                self.limited[account].add(row)

    def _list_exceptions(self, rows: Iterable[Reservation]) -> None:
        for row in rows:
            if is_special(row):
                self.special[row.id] = row
            if row.expires_at is not None and row.phase not in ENDED:
                self.mortal.add(row)
            if row.request.ttl is not None or row.request.max_runtime is not None:
                self.timed[row.id] = row

    def _find_shape(self, row: Reservation) -> Shape:
        request, needs_agent = row.request, row.run is not None
        # To encode a request takes a sixth of the time of its shape key.
        encoded = _ENCODE(
            (request.system, request.pool, request.components, request.labels, request.prefers, needs_agent)
        )
        shape = self._encoded.get(encoded)
        if shape is None:
            key = shape_key(request, needs_agent=needs_agent)
            shape = self._interned.get(key)
            if shape is None:
                shape = self._interned[key] = make_shape(request, needs_agent=needs_agent)
            self._encoded[encoded] = shape
        return shape

    def _drop_unused_shapes(self) -> None:
        """Forget the shapes that are no longer in use, if there are many. Otherwise a process that leads for months
        would need more and more memory.
        """
        if len(self._encoded) >= 2 * len(self.reservations) + UNUSED_SHAPES:
            self._encoded.clear()
            rows = self.reservations
            self._interned = {
                shape_key(rows[name].request, needs_agent=each.needs_agent): each for name, each in self.shapes.items()
            }

    def _forget(self, reservation: Reservation) -> None:
        shape = self.shapes.pop(reservation.id)
        del self.reservations[reservation.id], self.by_phase[reservation.phase][reservation.id]
        if reservation.phase == "pending":
            self.waiters.remove(reservation, shape)
        self.special.pop(reservation.id, None)
        self.mortal.remove(reservation)
        self.unconfirmed.pop(reservation.id, None)
        self.timed.pop(reservation.id, None)
        self.stretching.pop(reservation.id, None)
        if reservation.request.max_runtime is not None and (account := reservation.request.account) in self.limited:
            self.limited[account].remove(reservation)
            if not self.limited[account]:
                del self.limited[account]
        leases_on, touched, revision = self.leases_on, self.touched, self.revision
        for lease in reservation.leases:
            name = lease.slot
            held = leases_on.get(name)
            if held is not None:
                held.pop((reservation.id, lease.component), None)
                if not held:
                    del leases_on[name]
            touched.pop(name, None)
            touched[name] = revision

    def _drop(self, gone: Gone) -> None:
        rows: dict[str, Row] = getattr(self, gone.kind)
        known = rows.get(gone.id)
        if known is None or known.version >= gone.version:
            return
        self.revision += 1
        key = known.sequence if isinstance(known, Reservation) else known.id
        self.recent_writes.forget(gone.kind, key, known.marked_at)
        if isinstance(known, Reservation):
            self._forget(known)
            return
        del rows[gone.id]
        if isinstance(known, Slot):
            self.touched.pop(known.id, None)
            self.touched[known.id] = self.revision
            self._displace(known)
