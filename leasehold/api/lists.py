"""Pages of reservations and slots from the copy of the view in this process, so that making a page reads nothing from
Redis.

For one page at most MOST_EXAMINED reservations are examined. So a page may have fewer items than its limit, even none,
although another page follows.
"""

import threading
from bisect import bisect_right, insort
from collections.abc import Mapping
from heapq import nsmallest
from typing import Any, Final

import msgspec

from leasehold.api.service import Query, make_cursor, make_page
from leasehold.client import models
from leasehold.client.marks import mark_row
from leasehold.client.models import list_phases
from leasehold.client.ports import Joined
from leasehold.client.redis.reader import join_machines
from leasehold.web.feed import Changed, ReservationMatch
from scheduler.model.accounts import Account
from scheduler.model.reservations import Reservation
from scheduler.model.run_times import RunTimes, is_class_of
from scheduler.model.slots import Slot
from scheduler.model.transitions import PHASES, SLOT_STATES
from scheduler.model.view import View

_MACHINE = ("instance_id", "address", "type", "zone")
_OF_ANSWERS = ("waiting", "notes")
"""Fields of the class Reservation that are set only in the answer to a submission. They are removed from rows of the
view.
"""


def write_joined(found: Joined) -> dict[str, Any]:
    """Return a reservation as JSON values. A lease whose machine is unknown lacks the fields of the machine. The value
    `mark` differs after each change of the reservation; a client sends it as the parameter `after` to wait for the next
    change.
    """
    row: dict[str, Any] = msgspec.to_builtins(found.row)
    for name in _OF_ANSWERS:
        row.pop(name, None)
    for lease in row["leases"]:
        if lease["slot"] in found.missing:
            for name in _MACHINE:
                del lease[name]
    return {**row, "mark": mark_row(found)}


def join_row(row: Reservation, view: View) -> Joined:
    """Return a stored reservation with the machines of its leases, as far as this view has them, without fields that
    clients do not read.
    """
    public = msgspec.convert(row, models.Reservation, from_attributes=True)
    found = {lease.slot: view.slots.get(lease.slot) for lease in public.leases}
    return join_machines(public, found)


def write_slot(row: Slot | models.Slot) -> dict[str, Any]:
    """Return a slot as JSON values, without fields that clients do not read."""
    public = row if isinstance(row, models.Slot) else msgspec.convert(row, models.Slot, from_attributes=True)
    found: dict[str, Any] = msgspec.to_builtins(public)
    return found


def write_account(row: Account | models.Account) -> dict[str, Any]:
    """Return a quota account as JSON values."""
    public = row if isinstance(row, models.Account) else msgspec.convert(row, models.Account, from_attributes=True)
    found: dict[str, Any] = msgspec.to_builtins(public)
    return {**found, "level": public.level}


def write_run_times(row: RunTimes) -> dict[str, Any]:
    """Return the run times of a class as JSON values, with the parts of the class and quantiles."""
    public = msgspec.convert(row, models.RunTimes, from_attributes=True)
    return {**msgspec.to_builtins(public), **public.cells(), "instances": public.instances, "cpus": public.cpus}


class RunTimesFilter:
    """The conditions of one list of run times, from the query of its address."""

    def __init__(self, query: Query) -> None:
        self.account, self.job = query.take("account"), query.take("job")
        self.limit = query.take_limit()
        self.after: str = (query.take_cursor(str) or [""])[0]
        query.end()


def list_run_times(view: View, wanted: RunTimesFilter) -> Mapping[str, Any]:
    """Return one page of the run times that match `wanted`, in the order of their ids. The view must not change
    meanwhile.
    """
    names = (name for name in view.run_times if name > wanted.after)
    found = nsmallest(wanted.limit + 1, (name for name in names if is_class_of(name, wanted.account, wanted.job)))
    page = found[: wanted.limit]
    following = make_cursor(page[-1]) if len(found) > len(page) else None
    return make_page([write_run_times(view.run_times[name]) for name in page], following)


MOST_EXAMINED: Final = 20_000


class Submissions:
    """The reservations of a view in order of submission. The order is kept between two pages; `follow` adds new
    reservations.

    `Feed.watch` calls `note` with the changed rows, so that `follow` need not compare all rows to find the new
    reservations.
    """

    def __init__(self) -> None:
        self._order: list[tuple[int, str]] = []
        self._known: dict[str, int] = {}
        self._guard = threading.Lock()
        self._noted: set[str] | None = None
        """Ids of the reservations that have changed since the last call of `follow`; None: all."""

    def note(self, changed: Changed) -> None:
        """Record which reservations have changed. The thread of the feed calls it."""
        with self._guard:
            if changed.is_reset:
                self._noted = None
            elif self._noted is not None:
                self._noted |= changed.of("reservations")

    def follow(self, rows: Mapping[str, Reservation], ended: Mapping[str, Reservation]) -> None:
        """Add the new reservations among `rows` and `ended`. If many of the kept reservations are in neither of them,
        forget these reservations.
        """
        with self._guard:
            noted, self._noted = self._noted, set()
        names = [*rows, *ended] if noted is None else noted
        found = [row for name in names if (row := rows.get(name) or ended.get(name)) is not None]
        new = [(row.sequence, row.id) for row in found if self._known.get(row.id) != row.sequence]
        self._known.update((name, sequence) for sequence, name in new)
        if len(new) > len(self._order) // 8:
            self._order = sorted({*self._order, *new})
        else:
            for each in new:
                insort(self._order, each)
        if len(self._order) > 2 * (len(rows) + len(ended)) + 1000:
            self._order = [each for each in self._order if each[1] in rows or each[1] in ended]
            self._known = {name: sequence for sequence, name in self._order}

    def after(self, sequence: int) -> list[tuple[int, str]]:
        """Return (sequence, id) of the reservations after the number `sequence` in order of submission, at most
        MOST_EXAMINED.
        """
        start = bisect_right(self._order, (sequence, "\U0010ffff"))
        return self._order[start : start + MOST_EXAMINED]


class ReservationFilter:
    """The conditions of one list of reservations, from the query of its address. A reservation must match all."""

    def __init__(self, query: Query) -> None:
        self.phases = list_phases(query.take_choices("phase", {*PHASES, "ended"}))
        fields = {name: value for name in ("account", "pool", "system") if (value := query.take(name)) is not None}
        self.pool, self.system = fields.get("pool"), fields.get("system")
        self.slot = query.take("slot")
        self._match = ReservationMatch(
            fields=fields,
            slot=self.slot,
            tags=query.take_labels("tag"),
            labels=query.take_labels("label"),
        )
        self.limit = query.take_limit()
        self.after: int = (query.take_cursor(int) or [-1])[0]
        query.end()

    def matches(self, row: Reservation) -> bool:
        return (self.phases is None or row.phase in self.phases) and self._match.matches(row)


def list_reservations(
    view: View, ended: Mapping[str, Reservation], order: Submissions, wanted: ReservationFilter
) -> Mapping[str, Any]:
    """Return one page of the reservations that match `wanted`. `ended`: the reservations that ended lately, which the
    view no longer has. `order`: the reservations of the view and of `ended` in order of submission. The view must not
    change meanwhile.
    """
    order.follow(view.reservations, ended)
    items, last = [], wanted.after
    examined = order.after(wanted.after)
    for sequence, name in examined:
        last = sequence
        row = view.reservations.get(name) or ended.get(name)
        if row is not None and row.sequence == sequence and wanted.matches(row):
            items.append(write_joined(join_row(row, view)))
            if len(items) == wanted.limit:
                break
    is_last = not examined or (last == examined[-1][0] and len(examined) < MOST_EXAMINED)
    return make_page(items, None if is_last else make_cursor(last))


Position = tuple[str, int, str]


class SlotFilter:
    """The conditions of one list of slots, from the query of its address. A slot must match all."""

    def __init__(self, query: Query) -> None:
        self.pool = query.take("pool")
        self._states = query.take_choices("state", SLOT_STATES)
        self._cordoned = query.take_choice("cordoned", ("true", "false"), "")
        self._labels = query.take_labels("label")
        self.limit = query.take_limit()
        cursor = query.take_cursor(str, str)
        self.after: Position | None = None if cursor is None else (cursor[0], len(cursor[1]), cursor[1])
        query.end()

    def matches(self, row: Slot) -> bool:
        return (
            self.pool in {None, row.pool}
            and (self._states is None or row.state in self._states)
            and self._cordoned in {"", "true" if row.cordoned else "false"}
            and self._labels.items() <= row.labels.items()
        )


def find_position(row: Slot) -> Position:
    """Return the position of a slot in lists: by pool, then by the length of the id, then by the id."""
    return row.pool, len(row.id), row.id


def list_slots(view: View, wanted: SlotFilter) -> Mapping[str, Any]:
    """Return one page of the slots that match `wanted`. The view must not change meanwhile."""
    found = [row for row in view.slots.values() if wanted.matches(row)]
    if wanted.after is not None:
        found = [row for row in found if find_position(row) > wanted.after]
    found.sort(key=find_position)
    page = found[: wanted.limit]
    following = make_cursor(page[-1].pool, page[-1].id) if len(found) > len(page) else None
    return make_page([write_slot(row) for row in page], following)
