"""The planned start of a protected reservation: when the slots that it needs are expected to be free.

The time of this start is the shadow time of EASY backfill: later work may use the planned slots if it is expected to
end before, or if it leaves room for the reservation. The expected end of a lease is a quantile of the run times of its
class, given how long it has run (`model/run_times.py`). Source: EASY (Lifka 1995; Mu'alem and Feitelson 2001).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

from scheduler.model.reservations import Lease, Reservation
from scheduler.model.resources import Resources, add, subtract_all, total
from scheduler.model.run_times import Estimates
from scheduler.model.view import View
from scheduler.policy.capacity.fits import find_obstacle
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo

QUANTILE: Final = 0.95
"""The share of the cases in which work is expected to end by its expected end."""
LEAST_DELAY: Final = 600.0
MOST_DELAY: Final = 0.25
"""A start is late when its first planned time is over by more than LEAST_DELAY seconds, and by more than this share of
the reservation's wait.
"""


def is_late(reservation: Reservation, now: float) -> bool:
    """Return whether the reservation should have started long ago, by the first start that was planned for it."""
    planned = reservation.planned_start
    return planned is not None and now - planned > max(LEAST_DELAY, MOST_DELAY * (now - reservation.created_at))


class ExpectedEnds:
    """When the leases of a view are expected to end, and how long pending reservations are expected to run."""

    def __init__(self, view: View, now: float) -> None:
        self._view, self._now = view, now
        self._estimates = Estimates(view.run_times)
        self._ends: dict[str, float] = {}

    @property
    def are_known(self) -> bool:
        """Whether there are run times at all."""
        return bool(self._view.run_times)

    def find_end(self, name: str, lease: Lease) -> float:
        """Return when a lease of the reservation `name` is expected to end; infinity: it is not known."""
        if lease.state == "claimed":
            return inf
        if lease.revoke_by is not None:
            return lease.revoke_by
        if name not in self._ends:
            self._ends[name] = self._find_end(self._view.reservations.get(name))
        return self._ends[name]

    def _find_end(self, row: Reservation | None) -> float:
        if row is None or row.leased_at is None:
            return inf
        if row.revoke_by is not None:
            return row.revoke_by
        elapsed, end = self._now - row.leased_at, -inf
        while end <= self._now:  # the sum may be rounded down
            found = self._find_run_time(row, elapsed)
            if found is None:
                return inf
            elapsed, end = found, row.leased_at + found
        return end

    def find_end_of_new(self, reservation: Reservation) -> float:
        """Return when a pending reservation is expected to end if it starts now; infinity: it is not known."""
        seconds = self._find_run_time(reservation, 0.0)
        return inf if seconds is None else self._now + seconds

    def _find_run_time(self, row: Reservation, elapsed: float) -> float | None:
        found = self._estimates.find_run_time(row.request, row.principal, elapsed, QUANTILE)
        most = self._view.find_max_runtime(row)
        return most if most is not None and elapsed < most < (inf if found is None else found) else found


@dataclass
class PlannedStart:
    """When a reservation is expected to start, and on which slots."""

    time: float
    slots: "list[PlannedSlot]"


@dataclass
class PlannedSlot:
    """A slot on which instances of a reservation are planned."""

    slot_info: SlotInfo
    spare: Resources | None
    """What the instances leave free at the planned time; None: the slot counts leases only."""
    load: int
    """The number of leases that are there at the planned time, with the instances."""
    count: int
    """The number of planned instances."""


@dataclass(order=True, frozen=True)
class _Opening:
    """One instance fits on a slot from `time` on, beside those that fit earlier."""

    time: float
    order: int


def plan_start(demand: Demand, slot_infos: Sequence[SlotInfo], ends: ExpectedEnds, now: float) -> PlannedStart | None:
    """Return the earliest start of a demand on these slots; None: it is not known.

    The instances are planned in the order of writing, each on the slot that is expected to be free for it first. If all
    are alike, they are then moved to those slots that are free last, but not later than the start: so slots that are
    free before stay with other work.
    """
    by_order = {each.order: each for each in slot_infos}
    planned: dict[int, list[Resources]] = {}
    time = now
    for need, count in demand.runs:
        openings = sorted(_list_all(need, count, slot_infos, ends, now, planned))
        if len(openings) < count:
            return None
        time = max(time, openings[count - 1].time)
        if len(demand.runs) == 1:
            openings = [each for each in reversed(openings) if each.time <= time]
        for each in openings[:count]:
            planned.setdefault(each.order, []).append(need.given[by_order[each.order].slot.pool])
    return PlannedStart(time, [_plan_slot(by_order[order], given, ends, time) for order, given in planned.items()])


def _list_all(
    need: InstanceRequest,
    most: int,
    slot_infos: Iterable[SlotInfo],
    ends: ExpectedEnds,
    now: float,
    planned: dict[int, list[Resources]],
) -> Iterator[_Opening]:
    for slot_info in slot_infos:
        amounts = need.given.get(slot_info.slot.pool)
        if amounts is not None and need.could_hold(slot_info.slot.pool, slot_info.capacity, slot_info.labels):
            for time in _list_openings(slot_info, amounts, most, ends, now, planned.get(slot_info.order, [])):
                yield _Opening(time, slot_info.order)


def _list_openings(
    slot_info: SlotInfo, amounts: Resources, most: int, ends: ExpectedEnds, now: float, planned: Sequence[Resources]
) -> Iterator[float]:
    """Yield the times from which on one, two, ... instances with these amounts fit on a slot, at most `most`.
    `planned`: the amounts of other instances that are planned there.
    """
    free, places, uses = _find_free(slot_info), slot_info.pool.lease_limit - slot_info.load, slot_info.uses_left
    leases = sorted(
        ((ends.find_end(name, lease), lease.resources) for (name, _), lease in slot_info.leases.items()),
        key=lambda each: each[0],
    )
    asked, count = add(total(planned), amounts), 1
    for time, given_back in ((now, None), *leases):
        if time == inf:
            return
        if given_back is not None:
            places += 1
            free = None if free is None else add(free, given_back)
        while find_obstacle(asked, free, places, uses, len(planned) + count) is None:
            yield max(time, now)
            if count == most:
                return
            count += 1
            asked = add(asked, amounts)


def _find_free(slot_info: SlotInfo) -> Resources | None:
    """Return what is free on a slot. An amount is below 0 if the leases use more than the slot has."""
    free, capacity = slot_info.free, slot_info.capacity
    if free is None or capacity is None:
        return None
    used = total(lease.resources for lease in slot_info.leases.values())
    return {name: amount + min(0.0, capacity.get(name, 0) - used.get(name, 0)) for name, amount in free.items()}


def _plan_slot(slot_info: SlotInfo, given: Sequence[Resources], ends: ExpectedEnds, time: float) -> PlannedSlot:
    ended = [lease for (name, _), lease in slot_info.leases.items() if ends.find_end(name, lease) <= time]
    free = _find_free(slot_info)
    for lease in ended:
        free = None if free is None else add(free, lease.resources)
    spare = None if free is None else subtract_all(free, given)
    return PlannedSlot(slot_info, spare, slot_info.load - len(ended) + len(given), len(given))
