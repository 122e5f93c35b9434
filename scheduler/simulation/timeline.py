"""Records what a simulation did over its virtual time: slots by state, the queue, loads, costs, and the longest waits.
The time of an update does not grow with the length of the simulation, and the memory has an upper limit.

The lanes are the histories of single slots. The memory for all lanes is limited by the constants below.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappush, heappushpop
from itertools import pairwise
from math import inf
from typing import Final

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Reservation, may_restart
from scheduler.model.slots import Slot, slot_order
from scheduler.model.transitions import ENDED, SLOT_STATES, WITH_MACHINE
from scheduler.operations.ending_leases import held_of
from scheduler.simulation.cluster import SimulatedCluster
from scheduler.simulation.metrics import Curve, CurveRecorder, Spread, spread
from scheduler.simulation.price_walk import HOUR

MOST_LANES: Final = 96
"""The most slots whose histories are recorded. The slots that are used first are chosen."""
MOST_STEPS: Final = 4000
"""The most steps (see Step) that the lanes of all slots together may have. If there are more, the lanes have no steps;
then they have only cells (see MOST_CELLS).
"""
MOST_CELLS: Final = 512
"""The most cells of one slot. A cell is a period of the virtual clock; all periods of all slots have the same
length.
"""
MOST_HOLDERS: Final = 8
"""The most ids of reservations in `Step.holders`."""
FULL: Final = 9
"""The digit that a cell has if the whole slot was used."""
ABSENT: Final = "empty"
"""The state of a slot before it is created and after it is deleted."""


class Step(msgspec.Struct, frozen=True):
    """A period in which nothing changed on a slot. `begin` and `end`: seconds. `load`: the used share of the slot, from
    0 to 1. `holders`: ids of reservations with leases on the slot, at most MOST_HOLDERS.
    """

    begin: float
    end: float
    state: str
    load: float
    holders: tuple[str, ...] = ()


class Lane(msgspec.Struct, frozen=True):
    """The history of one slot. `steps` has a step for each period without a change; it is empty if there were more than
    MOST_STEPS changes.

    `states` and `loads` describe the whole history in cells (periods of equal length) by one digit each. A digit of
    `states` is the index in SLOT_STATES of the state that lasted longest in the cell. A digit of `loads` is the mean
    load in this state, from 0 (nothing is used) to 9 (all).
    """

    slot: str
    pool: str
    steps: tuple[Step, ...]
    states: str
    loads: str


class Lanes(msgspec.Struct, frozen=True):
    """The histories of slots. `width`: how many seconds a cell of `Lane.states` and `Lane.loads` covers. `used`: the
    number of slots that were ever used; if it is more than the number of lanes, the slots that were used later were not
    recorded. `is_exact`: whether `Lane.steps` has each step of the slots; False: there were too many, and it is empty.
    """

    lanes: tuple[Lane, ...]
    width: float
    used: int
    is_exact: bool


class _Life:
    """The history of one slot so far. The slot's present state began at the time `since`. The seconds since then are
    not yet counted in the cells (periods of equal length), which are the entries of `seconds` and `loads`.
    """

    __slots__ = ("holders", "load", "loads", "pool", "seconds", "since", "state", "steps")

    def __init__(self, pool: str, now: float) -> None:
        self.pool, self.since = pool, now
        self.state, self.load = ABSENT, 0.0
        self.holders: tuple[str, ...] = ()
        self.steps: list[Step] = []
        self.seconds: dict[str, array[float]] = {state: array("d") for state in SLOT_STATES}
        """State -> for each cell, how many seconds the slot was in this state within the cell."""
        self.loads: dict[str, array[float]] = {state: array("d") for state in SLOT_STATES}
        """State -> for each cell, the integral of the load over the seconds in this state."""

    def fill(self, end: float, width: float) -> None:
        """Count the present state and load, from `since` until `end`, in the cells: add to each cell the seconds of
        this period that are within the cell. `width`: seconds of a cell.
        """
        first, last = int(self.since / width), int(end / width)
        seconds, loads = self.seconds[self.state], self.loads[self.state]
        if last >= len(seconds):
            missing = [0.0] * (last + 1 - len(seconds))
            seconds.extend(missing)
            loads.extend(missing)
        for index in range(first, last + 1):
            inside = min(end, (index + 1) * width) - max(self.since, index * width)
            seconds[index] += inside
            loads[index] += inside * self.load

    def merge(self) -> None:
        """Merge the cells in pairs, so that a cell covers twice the time."""
        for table in (self.seconds, self.loads):
            for state, values in table.items():
                if len(values) % 2:
                    values.append(0.0)
                pairs = range(0, len(values), 2)
                table[state] = array("d", (values[index] + values[index + 1] for index in pairs))

    def write_cells(self) -> tuple[str, str]:
        """Return the states and the loads of the cells up to now, each as a text of digits, as in Lane."""
        cells = [self._choose(index) for index in range(max(map(len, self.seconds.values())))]
        return "".join(str(state) for state, _ in cells), "".join(str(load) for _, load in cells)

    def _choose(self, index: int) -> tuple[int, int]:
        spent = {state: values[index] for state, values in self.seconds.items() if index < len(values)}
        state = max(spent, key=lambda name: spent[name])
        load = self.loads[state][index] / spent[state] if spent[state] > 0 else 0.0
        return SLOT_STATES.index(state), max(1, round(load * FULL)) if load > 0 else 0


class LaneRecorder:
    """Records the histories of the slots that are used first. Times are seconds on the virtual clock and never
    decrease.
    """

    def __init__(self, most_lanes: int = MOST_LANES, most_steps: int = MOST_STEPS, width: float = 0.25) -> None:
        self._most_lanes, self._left, self._width = most_lanes, most_steps, width
        self._lives: dict[str, _Life] = {}
        self._used: set[str] = set()

    def note(self, slot: str, pool: str, state: str, load: float, holders: Iterable[str], now: float) -> None:
        """Record that the slot is in this state with this load from now on. `load`: the used share of the slot, from 0
        to 1. `holders`: ids of the reservations with leases on the slot.
        """
        if state != ABSENT:
            self._used.add(slot)
        life = self._lives.get(slot)
        if life is None:
            if state == ABSENT or len(self._lives) >= self._most_lanes:
                return
            life = self._lives[slot] = _Life(pool, now)
        named = tuple(holders)[:MOST_HOLDERS]
        if (life.state, life.load, life.holders) != (state, load, named):
            self._close(life, now)
            life.state, life.load, life.holders, life.since = state, load, named, now

    def _close(self, life: _Life, now: float) -> None:
        if now <= life.since:
            return
        while now >= self._width * MOST_CELLS:
            self._width *= 2
            for each in self._lives.values():
                each.merge()
        life.fill(now, self._width)
        if self._left > 0 and life.state != ABSENT:
            self._left -= 1
            life.steps.append(Step(life.since, now, life.state, life.load, life.holders))

    def finish(self, now: float, pools: Sequence[str] = ()) -> Lanes:
        """Return the recorded histories up to now, sorted by pool (in the order of `pools`) and number of the slot."""
        for life in self._lives.values():
            self._close(life, now)
            life.since = now
        is_exact = self._left > 0
        order = {pool: number for number, pool in enumerate(pools)}
        names = sorted(
            self._lives,
            key=lambda name: (order.get(self._lives[name].pool, len(order)), self._lives[name].pool, slot_order(name)),
        )
        lanes = (
            Lane(name, life.pool, tuple(life.steps) if is_exact else (), *life.write_cells())
            for name in names
            for life in (self._lives[name],)
        )
        return Lanes(tuple(lanes), self._width, len(self._used), is_exact)


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
        ordered = sorted(self._waits)
        count, ends = len(ordered), [0, *(bisect_right(ordered, bound) for bound in BOUNDS)]
        chosen = (
            sorted({0, *(round(number * (count - 1) / (_POINTS - 1)) for number in range(_POINTS))}) if count else []
        )
        points = tuple((ordered[index], (index + 1) / count) for index in chosen)
        return Timeline(
            end=self._now,
            curves={name: each.finish() for name, each in self._recorders.items()},
            lanes=self._lanes.finish(self._now, list(self._cluster.ports.rules().pools)),
            waits=Waits(count, spread(ordered), tuple(end - begin for begin, end in pairwise(ends)), points),
            longest=tuple(sorted(longest, reverse=True)),
            still_waiting=len(self._waiting),
            utilisation=self._load_seconds / self._machine_seconds if self._machine_seconds else 0.0,
            machine_seconds=self._launched_seconds,
            cost=self._cost,
            events=dict(self._events),
            phases=dict(self._ended + Counter(self._phases.values())),
        )


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
