"""Records what a simulation did over its virtual time: slots by state, the queue, loads, costs, and the longest waits.
The time of an update does not grow with the length of the simulation, and the memory has an upper limit.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from heapq import heappush, heappushpop
from itertools import pairwise
from math import inf
from typing import Final

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Reservation, may_restart
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, WITH_MACHINE
from scheduler.operations.ending_leases import held_of
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.lanes import ABSENT, LaneRecorder, Lanes
from scheduler.simulation.metrics import HOUR, Curve, CurveRecorder, Spread, spread

MOST_LONG_WAITS: Final = 20
"""The number of reservations with the longest waits that are kept."""
USES: Final = ("busy", "idle", "launching", "booting", "binding", "draining", "terminating", "error", "stopped")
"""The uses of a slot. A use is the slot's state, except that `ready` is `busy` with a lease and `idle` without one."""
CURVES: Final = (*USES, "waiting", "load", "machines", "launches", "price")
BOUNDS: Final = (1.0, 10.0, 60.0, 600.0, HOUR, 6 * HOUR, 24 * HOUR, inf)
"""Upper bounds, in seconds, of the classes into which waits are counted."""
_POINTS: Final = 400
"""The most points with which a distribution of waits is stored."""
_BINS: Final = 512
_WIDTH: Final = 0.25
"""Seconds of a bin of each curve at the start of a simulation."""


class LongWait(msgspec.Struct, frozen=True, order=True):
    """How long a reservation waited for its first lease, in seconds. `submitted`, `leased`: when it was submitted and
    leased; `leased` is None if it still waits. `code`: the waiting code of the last tick that left it pending; "" if it
    is not known.
    """

    wait: float
    id: str
    submitted: float
    leased: float | None
    account: str
    instances: int
    code: str


class Waits(msgspec.Struct, frozen=True):
    """How long `count` reservations waited for their first lease, in seconds. `classes`: for each of BOUNDS, the number
    of waits up to this bound and above the bound before it. `points`: at most _POINTS pairs of a wait and the share of
    waits that are not longer.
    """

    count: int
    spread: Spread
    classes: tuple[int, ...]
    points: tuple[tuple[float, float], ...]


class Timeline(msgspec.Struct, frozen=True):
    """What a simulation did over its virtual time. Times are seconds on the virtual clock.

    `curves` has by name: the number of slots by use (USES), `waiting` reservations, `load` (sum of the used shares of
    all machines), `machines`, `launches` so far, and the `price` per hour of all machines. `waits`: the waits of the
    reservations that got a lease. `longest`: the longest waits, also of reservations that still wait. `machine_seconds`
    and `cost`: of launched machines. `events`: event name -> number of events. `phases`: phase -> number of
    reservations whose last phase it is.
    """

    end: float
    curves: dict[str, Curve]
    lanes: Lanes
    waits: Waits
    longest: tuple[LongWait, ...]
    still_waiting: int
    utilisation: float
    machine_seconds: float
    cost: float
    events: dict[str, int]
    phases: dict[str, int]


class _Known:
    """The last known state of one slot: its row, and the leases on it as (reservation, component) -> resources."""

    __slots__ = ("leases", "load", "price", "row", "use")

    def __init__(self) -> None:
        self.row: Slot | None = None
        self.leases: dict[tuple[str, str], dict[str, float]] = {}
        self.load, self.price = 0.0, 0.0
        """The used share of the slot's machine, and its price per hour; 0 without a machine."""
        self.use: str | None = None


class TimelineRecorder:
    """Records what a simulation does on a cluster from now on. A reservation that is leased at the
    start has no wait.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._now = self._begin = cluster.event_queue.now
        self._slots: dict[str, _Known] = {}
        self._held: dict[str, tuple[tuple[str, str], ...]] = {}
        """Reservation -> (slot, component) of each of its leases."""
        self._waiting: dict[str, Reservation] = {}
        self._codes: Mapping[str, str] = {}
        self._phases: dict[str, str] = {}
        """Reservation -> its phase, for reservations that have not ended."""
        self._ended: Counter[str] = Counter()
        self._served: set[str] = set()
        """The reservations that had a lease and have not ended."""
        self._waits = array("d")
        self._longest: list[LongWait] = []
        self._lanes = LaneRecorder(width=_WIDTH)
        self._recorders = {name: CurveRecorder(_WIDTH, _BINS) for name in CURVES}
        self._uses: Counter[str] = Counter()
        self._machines = self._launched = 0
        self._load = self._price = 0.0
        self._machine_seconds = self._launched_seconds = self._load_seconds = self._cost = 0.0
        self._events: Counter[str] = Counter()
        for slot in cluster.store.find_slots():
            self.note_slot(slot, slot.id)
        for row in cluster.store.find_reservations(limit=2**31):
            if row.phase != "pending":
                self._served.add(row.id)
            self.note_reservation(row)

    def advance(self, now: float) -> None:
        """Add the time since the last call, in which nothing changed, to all sums and curves. `now`: virtual time."""
        begin, seconds = self._now, now - self._now
        if seconds <= 0:
            return
        self._now = now
        load, price = round(self._load, 9), round(self._price, 9)
        self._machine_seconds += self._machines * seconds
        self._launched_seconds += self._launched * seconds
        self._load_seconds += load * seconds
        self._cost += price * seconds / HOUR
        values = {
            **self._uses,
            "waiting": len(self._waiting),
            "load": load,
            "machines": self._machines,
            "launches": self._events["slot_launching"],
            "price": price,
        }
        for name, recorder in self._recorders.items():
            recorder.add(values.get(name, 0), begin - self._begin, now - self._begin)

    def note_event(self, event: Event) -> None:
        """Count an event that the operations recorded."""
        self._events[event.name] += 1

    def note_codes(self, codes: Mapping[str, str]) -> None:
        """Keep the waiting code of each reservation that the last tick left pending. `codes`: reservation id -> waiting
        code.
        """
        self._codes = codes

    def note_slot(self, slot: Slot | None, name: str) -> None:
        """Update the record after the slot with the id `name` changed; `slot` is None if the slot was deleted."""
        known = self._slots.setdefault(name, _Known())
        before = known.row
        known.row = slot
        has, had = _has_machine(slot), _has_machine(before)
        self._machines += has - had
        self._launched += (has and _is_launched(slot)) - (had and _is_launched(before))
        self._update(name, known)
        if slot is None and not known.leases:
            del self._slots[name]

    def note_reservation(self, row: Reservation) -> None:
        """Update the record after a reservation changed."""
        self._note_leases(row)
        if row.phase == "pending":
            if row.id not in self._served:
                self._waiting[row.id] = row
        elif self._waiting.pop(row.id, None) is not None:
            self._note_first_lease(row)
        if row.phase in ENDED and not may_restart(row):
            self._ended[row.phase] += 1
            self._phases.pop(row.id, None)
            self._served.discard(row.id)
        else:
            self._phases[row.id] = row.phase

    def _note_first_lease(self, row: Reservation) -> None:
        if row.phase in ENDED:
            return
        self._served.add(row.id)
        leased = row.leased_at if row.leased_at is not None else self._now
        self._waits.append(leased - row.created_at)
        _keep(self._longest, self._describe_wait(row, leased))

    def _describe_wait(self, row: Reservation, leased: float | None) -> LongWait:
        end = self._now if leased is None else leased
        instances, code = row.request.instances, self._codes.get(row.id, "")
        return LongWait(
            end - row.created_at, row.id, row.created_at, leased, row.request.account or "", instances, code
        )

    def _note_leases(self, row: Reservation) -> None:
        leases = held_of(row)
        places = tuple((lease.slot, lease.component) for lease in leases)
        before = self._held.get(row.id, ())
        if places == before:
            return
        if places:
            self._held[row.id] = places
        else:
            self._held.pop(row.id, None)
        changed = dict.fromkeys(slot for slot, _ in before + places)
        for slot, component in before:
            self._slots[slot].leases.pop((row.id, component), None)
        for lease in leases:
            self._slots.setdefault(lease.slot, _Known()).leases[row.id, lease.component] = lease.resources
        for slot in changed:
            self._update(slot, self._slots[slot])

    def _update(self, name: str, known: _Known) -> None:
        """Compute the use, the load and the price of a slot again."""
        slot = known.row
        has_machine = _has_machine(slot)
        load = self._measure(slot, known) if slot is not None and has_machine else 0.0
        price = (slot.price or 0.0) if slot is not None and has_machine and _is_launched(slot) else 0.0
        self._load += load - known.load
        self._price += price - known.price
        known.load, known.price = load, price
        use: str | None = None if slot is None or slot.state == ABSENT else slot.state
        if use == "ready":
            use = "busy" if known.leases else "idle"
        if use != known.use:
            self._uses.subtract(filter(None, [known.use]))
            self._uses.update(filter(None, [use]))
            known.use = use
        state, pool = (slot.state, slot.pool) if slot is not None else (ABSENT, "")
        self._lanes.note(name, pool, state, load, dict.fromkeys(owner for owner, _ in known.leases), self._now)

    def _measure(self, slot: Slot, known: _Known) -> float:
        """Return the used share of the slot, from 0 to 1: the largest of the used shares of its resources and of its
        permitted number of leases.
        """
        pool = self._cluster.ports.rules().pools.get(slot.pool)
        limit = pool.lease_limit if pool is not None else inf
        shares = [len(known.leases) / limit if limit else 0.0]
        for resource, total in (slot.resources or {}).items():
            used = sum(each.get(resource, 0.0) for each in known.leases.values())
            shares.append(used / total if total else 0.0)
        return min(max(shares), 1.0)

    def finish(self) -> Timeline:
        """Return what was recorded up to the present virtual time."""
        self.advance(self._cluster.event_queue.now)
        longest = list(self._longest)
        for row in self._waiting.values():
            _keep(longest, self._describe_wait(row, None))
        return Timeline(
            end=self._now,
            curves={name: each.finish() for name, each in self._recorders.items()},
            lanes=self._lanes.finish(self._now, list(self._cluster.ports.rules().pools)),
            waits=_sum_up(sorted(self._waits)),
            longest=tuple(sorted(longest, reverse=True)),
            still_waiting=len(self._waiting),
            utilisation=self._load_seconds / self._machine_seconds if self._machine_seconds else 0.0,
            machine_seconds=self._launched_seconds,
            cost=self._cost,
            events=dict(self._events),
            phases=dict(self._ended + Counter(self._phases.values())),
        )


def _sum_up(ordered: list[float]) -> Waits:
    """Return the distribution of these sorted waits."""
    count, ends = len(ordered), [0, *(bisect_right(ordered, bound) for bound in BOUNDS)]
    chosen = sorted({0, *(round(number * (count - 1) / (_POINTS - 1)) for number in range(_POINTS))}) if count else []
    points = tuple((ordered[index], (index + 1) / count) for index in chosen)
    return Waits(count, spread(ordered), tuple(end - begin for begin, end in pairwise(ends)), points)


def _has_machine(slot: Slot | None) -> bool:
    return slot is not None and slot.state in WITH_MACHINE


def _is_launched(slot: Slot | None) -> bool:
    return slot is not None and slot.launch_id is not None


def _keep(longest: list[LongWait], found: LongWait) -> None:
    """Add `found` to `longest`, the heap of the longest waits. If there are more than MOST_LONG_WAITS, drop the
    shortest.
    """
    if len(longest) < MOST_LONG_WAITS:
        heappush(longest, found)
    else:
        heappushpop(longest, found)
