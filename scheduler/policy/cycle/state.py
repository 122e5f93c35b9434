"""The state of one scheduling cycle: a scratch copy of the view, from which all steps take capacity, and the decisions
so far.
"""

from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from math import inf, nextafter
from typing import Any, Final, NamedTuple

import msgspec

from scheduler.model.accounts import FREE, Account, Levels, add, find_account, level_of, subtract
from scheduler.model.decisions import (
    Assign,
    Decision,
    Drain,
    Placement,
    Plan,
    Requeue,
    Reset,
    Restart,
    Revoke,
    RevokeReason,
    Stop,
    Terminate,
)
from scheduler.model.pools import Pool
from scheduler.model.reservations import Lease, Reservation, is_claimant
from scheduler.model.rules import Rules, SchedulerKeys, Terms
from scheduler.model.slots import Slot
from scheduler.model.transitions import IN_FLIGHT, SlotState
from scheduler.model.view import View
from scheduler.model.waiting_codes import WaitingCode
from scheduler.policy.capacity.requests import Demand, InstanceRequest, LastDemands
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import CachedSlot, SlotInfo, is_sound, make_cached_slot
from scheduler.policy.cycle.queue import Queue, WaitReasons
from scheduler.policy.cycle.work_budget import WorkBudget
from scheduler.policy.plan_cache import PlanCache, list_touched

# The types of the values that one step of `plan()` passes to a later one, beside the cycle's state.


ToStop = Mapping[str, int]
"""Pool -> how many of its slots in flight and of its idle slots may be stopped later for the stopped tier. A slot that
was launched for the tier is stopped as soon as it is ready, others after `idle_scale_down` seconds without a lease.
"""
FailedBoots = Mapping[str, Sequence[str]]
"""Pool -> ids of the slots whose boot timed out in this cycle. Their failures are not in the database before the
commit.
"""


@dataclass(frozen=True, slots=True)
class Protected:
    """What the starvation guard keeps for reservations that have waited for too long: slots, and launches for gangs."""

    gangs: Collection[str]
    """Ids of protected gangs. Launches that could serve such a gang are not made for reservations behind the gang."""
    kept: Mapping[str, SlotIndex]
    """Id of a reservation with a planned start, or of another protected gang -> the ready slots that are kept for it.
    The key "" -> those that are kept for all other protected reservations with a single instance.
    """


class ElasticShortage(NamedTuple):
    """Elastic instances of one reservation for which no slot has capacity. The pools of `demand` launch machines for
    elastic instances (`launch_for_elastic`).
    """

    reservation: Reservation
    demand: Demand
    """The demand of a single elastic instance; all instances of this entry are alike."""
    instances: int
    """The number of elastic instances without a slot."""


@dataclass(frozen=True, slots=True)
class Unplaced:
    """The input of the step that launches slots: the reservations and elastic instances that fit on no slot that is
    ready or in flight.
    """

    queue: Queue
    """Reservations that fit on no slot that is ready or in flight, in queue order."""
    deferred: Collection[str]
    """Ids of reservations behind a gang in a queue without backfill.

    They are placed on ready slots only after slots were launched for the gang.
    """
    protected: Protected
    elastic: Sequence[ElasticShortage]
    """Elastic instances for which no slot has capacity, in the order in which launches are tried for them."""
    uncovered: Collection[Demand] = ()
    """Demands that are known not to fit on the slots that are ready or in flight."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The demands whose launches only `max_slots` or EC2's quota withholds. `demands` has one entry for each such
    reservation, in queue order.
    """

    closed: Container[str]
    """The pools in which a launch for a pending reservation is withheld, by `max_slots`, EC2's quota or a budget. A
    machine that such a pool launched for its reserve or tier could be the next to end for the withheld launch.
    """
    demands: Sequence[Demand]
    kept: Mapping[str, SlotIndex]
    """The ready slots that the starvation guard keeps for reservations, as in `Protected.kept`."""
    awaited: Mapping[int, Sequence[InstanceRequest]]
    """Position in `demands` -> requests of gangs that the starvation guard protects (`Protected.gangs`) and that got no
    launches. These gangs are in the queue before the demand at this position, and behind the demand before it. For this
    demand and all later ones, no launch is made that could serve one of these requests.
    """


@dataclass(frozen=True, slots=True)
class Headroom:
    """How many launches are withheld in each pool, and which slots (`spared`) are protected. For each withheld launch
    one slot that no reservation needs ends, so that the launch can run in a later cycle. Protected slots do not end.
    """

    launches: Mapping[str, int]
    """Pool -> how many launches are withheld there, by `max_slots` or EC2's quota."""
    spared: Collection[str]
    """Ids of slots without leases that must not end. A reservation with withheld launches needs them, too: some of its
    instances would be placed on these slots, and the others on the slots that are launched later.
    """
    beyond: Mapping[str, int]
    """Pool -> how many of the launches in `launches` are withheld by `max_slots`. EC2's quota withholds the others."""
    closed: Container[str]
    """The pools that launch nothing for their warm reserve and their stopped tier, see `Shortfall.closed`."""
    by_quota: Mapping[str, Counter[str]]
    """Pool -> subject of the back-off for EC2's quota -> how many launches it withholds."""
    expected: Mapping[str, int]
    """Pool -> how many launches the pool makes as soon as `max_slots` withholds none of a reservation's launches, those
    in `beyond` included. A gang may wait for another pool, while this one still has room for its launches.
    """


# The slots as they are when a cycle begins, in slot order. They are kept from one cycle to the next, and only slots
# that changed are read again.


_copy: Any = SlotInfo.__copy__  # type: ignore[attr-defined]  # every Struct has it; half the time of copy()


class OpenedSlots:
    """The cached facts of all slots of the configured pools.

    Three fields list the slots that a cycle has to examine before it copies any slot. `restless`: a rule, such as a
    timeout, may change the slot. `unsound`: a lease names an earlier machine of the slot. `vanished`: the rules no
    longer list the slot's pool.
    """

    def __init__(self) -> None:
        self._view: View | None = None
        self._pools: Mapping[str, Pool] = {}
        self._revision = 0
        self._slots: dict[str, list[CachedSlot]] = {}
        """Pool name -> its slots, in slot order."""
        self._places: dict[str, tuple[str, int]] = {}
        """Slot id -> (its pool, its index in the list of this pool in `_slots`), in slot order."""
        self.restless: dict[int, str] = {}
        """Position in slot order -> slot id. It contains the slots that a rule of the lifecycle, such as a timeout, may
        change although no row or lease changes (`CachedSlot.is_at_rest` is False).
        """
        self.unsound: set[str] = set()
        """Ids of slots whose leases do not all belong to their present machine. Such a slot may not exist any more."""
        self.vanished: list[Slot] = []
        """Slots with EC2 machines whose pool the rules no longer list, in slot order."""

    def follow(self, view: View, rules: Rules, cached: dict[str, CachedSlot]) -> None:
        """Read the slots that changed since the last call. Read all slots if a slot was added or deleted, or if a pool
        has changed.

        `cached`: slot id -> cached facts (`PlanCache.slots`). Facts that are missing there are added.
        """
        is_known = (
            view is self._view
            and list(rules.pools) == list(self._pools)
            and all(pool is self._pools[name] for name, pool in rules.pools.items())
        )
        if not is_known or not self._reread(view, cached):
            self._read_all(view, rules.pools, cached)
        self._revision = view.revision

    def _reread(self, view: View, cached: dict[str, CachedSlot]) -> bool:
        """Read the slots that changed, and return True. Return False if all slots have to be read, because a changed
        slot is new, was deleted or has another pool.
        """
        slots, places = view.slots, self._places
        for name in list_touched(view, self._revision):
            slot, place = slots.get(name), places.get(name)
            if slot is None or place is None or slot.pool != place[0]:
                return False
            there = self._slots[place[0]]
            old = there[place[1]]
            new = cached.get(name)
            if new is None:
                new = cached[name] = make_cached_slot(view, slot, self._pools[place[0]])
            new.slot_info.order = old.slot_info.order
            there[place[1]] = new
            if not (old.is_at_rest and new.is_at_rest and old.is_sound and new.is_sound):
                self._note(new)
        return True

    def _find(self, view: View, slot: Slot, order: int, cached: dict[str, CachedSlot]) -> CachedSlot:
        known = cached.get(slot.id)
        if known is None or known.slot_info.pool is not self._pools[slot.pool]:
            known = cached[slot.id] = make_cached_slot(view, slot, self._pools[slot.pool])
        known.slot_info.order = order
        return known

    def _note(self, opened: CachedSlot) -> None:
        """Add one slot to the tables, or remove it: `restless` contains the slot if a rule of the lifecycle may change
        it; `unsound` contains the slot if one of its leases does not belong to its present machine.
        """
        name, order = opened.slot_info.slot.id, opened.slot_info.order
        if opened.is_at_rest:
            self.restless.pop(order, None)
        else:
            self.restless[order] = name
        if opened.is_sound:
            self.unsound.discard(name)
        else:
            self.unsound.add(name)

    def _read_all(self, view: View, pools: Mapping[str, Pool], cached: dict[str, CachedSlot]) -> None:
        self._view, self._pools = view, dict(pools)
        self._slots, self._places, self.restless, self.unsound, self.vanished = {}, {}, {}, set(), []
        for name in pools:
            slots, first = view.pools[name].list() if name in view.pools else [], len(self._places)
            self._slots[name] = [self._find(view, slot, order, cached) for order, slot in enumerate(slots, first)]
            self._places.update((slot.id, (name, place)) for place, slot in enumerate(slots))
        for opened in chain.from_iterable(self._slots.values()):
            if not (opened.is_at_rest and opened.is_sound):
                self._note(opened)
        for name in sorted(set(view.pools).difference(pools)):
            slots = view.pools[name].list()
            self.vanished += [slot for slot in slots if not slot.is_host and slot.state != "empty"]
            self.unsound.update(slot.id for slot in slots if not is_sound(view, slot))
        self.unsound.update(view.leases_on.keys() - view.slots.keys())

    def copy(self) -> tuple[dict[str, list[SlotInfo]], dict[str, SlotInfo]]:
        """Return scratch copies of all slots, which one cycle may change. They are returned in two tables: (1) pool ->
        its slots in slot order, pools in configured order; (2) slot id -> slot.

        Speed: the copies are made in one pass over a list.
        """
        pools: dict[str, list[SlotInfo]] = {}
        for name, slots in self._slots.items():
            pools[name] = copies = list(map(_copy, [opened.slot_info for opened in slots]))
            for copy, opened in zip(copies, slots, strict=True):
                copy.opened = opened
        return pools, dict(zip(self._places, chain.from_iterable(pools.values()), strict=True))


# The balances of the quota accounts within one cycle.


class Balances:
    """The quota accounts of one cycle, with two facts about each: its level after the charge, and its balance after the
    charge and the preemptions so far. Source: qscheduler.
    """

    def __init__(self, accounts: Mapping[str, Account]) -> None:
        self.accounts = accounts
        self._levels = {name: level_of(account.balance) for name, account in accounts.items()}
        self.left = {name: account.balance for name, account in accounts.items()}
        """Account id -> what the account has left now at each paid level. The balance of a level may be negative."""

    def account_of(self, reservation: Reservation) -> Account | None:
        """Return the account that pays for a reservation; None if the reservation names no account, or one that does
        not exist.
        """
        return find_account(self.accounts, reservation.request.account, reservation.sequence)

    def level_of(self, reservation: Reservation) -> int:
        """Return the best level at which a reservation's account had a balance after the charge. Return the free level
        if there is no such level or no account.

        Preemptions in this cycle change balances and do not change this level.
        """
        account = self.account_of(reservation)
        return FREE if account is None else self._levels[account.id]

    @property
    def are_by_name(self) -> bool:
        """Whether reservations that name the same account are always paid by the same account.

        This is false after an account was deleted: a new account with the same name pays only for reservations that
        were submitted later.
        """
        return not any(account.forgotten_upto for account in self.accounts.values())

    def move(self, cost: Levels, payer: Account, payee: Account | None) -> None:
        """Charge `cost` to the account `payer`. Refund it to `payee`, the account that paid it before (None: no
        refund).
        """
        self.left[payer.id] = subtract(self.left[payer.id], cost)
        if payee is not None:
            self.left[payee.id] = add(self.left[payee.id], cost)


NO_BALANCES: Final = Balances({})
"""The balances of a cycle without quota accounts. Nothing is charged there, so all such cycles share this object."""


UNUSED_DEMANDS: Final = 1000
"""The limit of the table of demands is 2 × the number of pending reservations + this number. If the table has more
shapes, the next cycle starts a new table, because many of the demands may be in use no longer.
"""
_STATE_AFTER: dict[type, SlotState] = {Drain: "draining", Terminate: "terminating", Reset: "empty", Stop: "stopped"}


class Timers:
    """Collects the times at which a later cycle may have something to decide, for example when a timeout ends. The
    earliest one (`first`) is the time of the next cycle.

    Only the steps of a plan add times, and functions whose docstrings state it.
    """

    def __init__(self, now: float) -> None:
        self._now = now
        self.first = inf
        """The earliest time that was added (seconds since the epoch); infinity if none was."""
        self.lease_terms: set[Terms] = set()
        """The different terms of the leases that this cycle assigns, which determine how long a lease lasts. Many
        have equal ones, so the time of their end is computed once.
        """

    def add(self, *instants: float | None) -> None:
        """Schedule a cycle for each of these times (seconds since the epoch). A time that has passed makes the next
        cycle due at once; None is ignored.
        """
        for instant in instants:
            if instant is not None:
                self.first = min(self.first, max(instant, self._now))

    def rests_until(self, instant: float) -> bool:
        """Return whether the time of the cycle is before `instant`, the first time at which there may be something to
        decide. If it is, schedule a cycle for `instant`.
        """
        if self._now >= instant:
            return False
        self.first = min(self.first, instant)
        return True


def find_moment_after(start: float, seconds: float) -> float:
    """Return the first moment that is more than `seconds` after `start`."""
    return nextafter(start + seconds, inf)  # 64.4 - 4.4 is more than 60, and 4.4 + 60 is 64.4


class CycleState:
    """What the steps of one cycle share: slots, demands, the decisions so far, waiting reasons and timers.

    `cache`: facts that cycles keep for later cycles, to save time (default: an empty cache).
    """

    def __init__(self, view: View, rules: Rules, now: float, cache: PlanCache | None = None) -> None:
        self.view, self.rules = view, rules
        self.cache = PlanCache() if cache is None else cache
        self._opened = self.cache.recall(OpenedSlots)
        self._opened.follow(view, rules, self.cache.slots)
        self.unsound = set(self._opened.unsound)
        """Ids of slots whose leases do not all belong to their present machine. Such a slot may not exist any more."""
        self.vanished = self._opened.vanished
        """Slots with EC2 machines whose pool the rules no longer list, in slot order."""
        restless = self._opened.restless
        self._restless: dict[int, SlotInfo] = {order: self.slot_infos[name] for order, name in restless.items()}
        self._indexes: list[SlotIndex] = []
        self.ready: SlotIndex
        """The index of the ready slots that take instances. `open_indexes` makes this index and the one of slots in
        flight.
        """
        self.coming: SlotIndex
        """The index of the slots in flight."""
        self._launched: SlotIndex | None = None
        self.have_cpus: bool | None = None
        """Whether any slot has the resource `cpus`, so that the step `share` has work; None until that step has
        examined the slots.
        """
        self.demands = self.cache.recall(LastDemands).find(rules, 2 * len(view.waiters) + UNUSED_DEMANDS)
        """A table (shape -> demand), for reservations whose shape alone decides what they request. See `demand_of`."""
        self.begin(now)

    def begin(self, now: float) -> None:
        """Start the cycle at `now` without decisions. A kept cycle (`policy/replan`) calls it again for a later
        tick.
        """
        self.now = now
        self.decisions: list[Decision] = []
        self.waits = WaitReasons()
        self.requeued: dict[str, Reservation] = {}
        """Reservation id -> a reservation whose leases this cycle ended and that is pending again."""
        self.returning: dict[str, Reservation] = {}
        """Reservation id -> a revoked reservation that keeps its leases for a grace period. It may cause launches, and
        gets no new lease before the grace period ends.
        """
        self.leaving: dict[str, Reservation] = {}
        """Reservation id -> a reservation that this cycle revokes at its limit. It ends after a grace period."""
        self.balances = NO_BALANCES
        """What the quota accounts have left after the step `charge`, minus preemptions; without accounts if no queue is
        `quota`.
        """
        self.charged: tuple[str, ...] = ()
        """Ids of the quota accounts that this cycle charges."""
        self.preempted: list[Reservation] = []
        """Reservations that this cycle preempted without a grace period. They are pending again, and are served after
        all other reservations.
        """
        self.over: set[str] = set()
        """Ids of the reservations whose leases this cycle has ended: they have ended or are pending again."""
        self.timers = Timers(now)
        self.vacated: set[tuple[str, str]] = set()
        """(reservation id, component) of elastic leases that this cycle ended while their reservation stays leased."""
        self.preempted_instances: dict[str, list[str]] = {}
        """Reservation id -> its elastic instances that this cycle preempted while it stays leased."""
        self.turns = WorkBudget(self.cache.turns, self.rules.limits.work_per_tick)
        """The work budgets of this cycle: how much work the gangs and elastic components of each principal or account
        may take.
        """

    @cached_property
    def _copies(self) -> tuple[dict[str, list[SlotInfo]], dict[str, SlotInfo]]:
        """The scratch copies of the slots, by pool and by id. Speed: they are made when a step first reads one."""
        return self._opened.copy()

    @cached_property
    def pools(self) -> dict[str, list[SlotInfo]]:
        """Configured pool -> the scratch copies of its slots, in slot order. Pools are in configured order."""
        return self._copies[0]

    @cached_property
    def slot_infos(self) -> dict[str, SlotInfo]:
        """Slot id -> scratch copy, for all slots of the configured pools, in slot order."""
        return self._copies[1]

    def note_restless(self, slot_info: SlotInfo) -> None:
        """Record that this cycle has changed a slot, so that `list_restless` returns it."""
        self._restless[slot_info.order] = slot_info

    def list_restless(self) -> list[SlotInfo]:
        """Return two kinds of slots, in slot order: (1) slots that this cycle has changed; (2) slots that a rule of the
        lifecycle may change, for example a booting slot at its timeout.

        The steps that repair, retire and find the next cycle's time examine only these slots: most slots of a fleet are
        in a lasting state.
        """
        return [self._restless[order] for order in sorted(self._restless)]

    def decide(self, decision: Decision) -> None:
        """Append a decision to the plan of this cycle."""
        self.decisions.append(decision)

    def move_slot(self, slot_info: SlotInfo, decision: Drain | Terminate | Reset | Stop) -> None:
        """Decide that a slot drains, terminates, becomes empty or is stopped. The scratch copy has the new state for
        the rest of the cycle.
        """
        self.decide(decision)
        slot_info.state = _STATE_AFTER[type(decision)]

    def assign(self, reservation: Reservation, leases: Iterable[Lease], level: int | None = None) -> None:
        """Decide that a reservation gets these leases. `level`: the quota level at which its account pays for them;
        None: the queue is not `quota`.
        """
        self.place(reservation, name_placements(leases), level)

    def place(self, reservation: Reservation, placements: tuple[Placement, ...], level: int | None) -> None:
        """Decide that a reservation gets leases, as `assign` does. The leases are given as placements, the form that a
        decision contains.
        """
        request = reservation.request
        limit = self.view.find_max_runtime(reservation)
        self.timers.lease_terms.add(Terms(request.ttl, request.pool, request.system, limit))
        self.decide(Assign(reservation=reservation.id, leases=placements, level=level))

    def end(self, reservation: Reservation) -> None:
        """End all leases of a reservation in the scratch copies. The rest of the cycle ignores the reservation, and
        does not treat it as pending.
        """
        self.over.add(reservation.id)
        self.requeued.pop(reservation.id, None)
        self.returning.pop(reservation.id, None)
        for lease in reservation.leases:
            slot_info = self.slot_infos.get(lease.slot)
            if slot_info is not None and (reservation.id, lease.component) in slot_info.leases:
                slot_info.end_lease((reservation.id, lease.component), self.now)
                self.note_restless(slot_info)

    def end_instance(self, reservation: Reservation, component: str, slot: str) -> None:
        """End one elastic lease of a reservation in the scratch copies. The reservation stays leased."""
        self.vacated.add((reservation.id, component))
        slot_info = self.slot_infos.get(slot)
        if slot_info is not None and (reservation.id, component) in slot_info.leases:
            slot_info.end_lease((reservation.id, component), self.now)
            self.note_restless(slot_info)

    def requeue(self, reservation: Reservation, decision: Requeue | Restart) -> None:
        """Decide that a reservation is pending again, and end its leases. Its position in the queue is that of
        its age.
        """
        self.decide(decision)
        self.end(reservation)
        self.requeued[reservation.id] = msgspec.structs.replace(reservation, phase="pending", leases=())

    def stays_leased(self, reservation: Reservation) -> bool:
        """Return whether this cycle has neither ended nor revoked the leases of a reservation so far. The reservation
        was leased when the cycle began.
        """
        name = reservation.id
        return name not in self.over and name not in self.returning and name not in self.leaving

    def list_claimants(self) -> list[Reservation]:
        """Return the reservations that claim slots, in order of submission."""
        found = [each for each in self.view.special.values() if is_claimant(each) and each.id not in self.over]
        return sorted(found, key=lambda each: each.sequence)

    def demand_of(self, reservation: Reservation) -> Demand:
        """Return the demand of a reservation: what its instances request, and the pools that may serve it.

        Reservations with equal requests share one demand, unless the reservation declined a slot or was interrupted too
        often.
        """
        demand = self.demands.find(self.view.shapes[reservation.id], reservation.request.account)
        if not reservation.declined and not reservation.interruptions:
            return demand
        limits = {name: self.rules.pools[name].on_demand_after for name in demand.pools}
        impatient = tuple(name for name, most in limits.items() if most and reservation.interruptions >= most)
        declined = tuple(name for name in reservation.declined if self._is_still_there(reservation, name))
        return replace(demand, declined=declined, impatient=impatient) if declined or impatient else demand

    def _is_still_there(self, reservation: Reservation, name: str) -> bool:
        """Return whether the slot `name` still has the machine that the holder of a reservation declined. Two facts
        show this: the slot has been ready since the reservation's row last changed, and its machine has had a lease.

        A decline holds for one machine only. If it held for later machines of the slot too, machines would be launched
        for this reservation again and again, and the reservation could use none of them. A launched machine without
        any lease so far cannot be the declined one.
        """
        slot = self.view.slots.get(name)
        if slot is None or slot.state != "ready" or (slot.epoch and not slot.uses):
            return False
        return slot.since <= reservation.changed_at

    def settings_of(self, reservation: Reservation) -> SchedulerKeys:
        """Return the scheduler settings of a reservation's queue."""
        return self.rules.settings_of(reservation.request.pool, reservation.request.system)

    def find_revoke_by(self, settings: SchedulerKeys) -> float | None:
        """Return the time at which the grace period of a lease ends that is preempted now; None if the queue's
        `settings` give no grace period.
        """
        return self.now + settings.preemption_grace if settings.preemption_grace else None

    def wait(self, name: str, code: WaitingCode, detail: str) -> None:
        """Record why the reservation `name` waits: `code`, a waiting code, and `detail`, its sentence. If several codes
        are recorded for it, the first one in WAITING_CODES is reported.
        """
        self.waits.add(name, code, detail)

    def wait_for(self, name: str, slot_infos: Sequence[SlotInfo]) -> None:
        """Record that the reservation `name` waits for these slots, on which capacity is kept for it.

        If one of the slots is not ready yet, the waiting code is `booting`. If all slots are ready, the code is
        `no_capacity`, and the next cycle places the reservation. The detail then names one of two reasons: the capacity
        became available in this cycle, or this cycle preempted the reservation.
        """
        awaited = [f"{each.slot.id} ({each.state})" for each in slot_infos if each.state != "ready"]
        if awaited:
            self.wait(name, "booting", f"waits for {', '.join(dict.fromkeys(awaited))}")
        elif any(each.id == name for each in self.preempted):
            self.wait(name, "no_capacity", "was preempted in this tick; the next one places it")
        else:
            self.wait(name, "no_capacity", "capacity became available during this tick; the next one places it")

    def is_due(self, instant: float) -> bool:
        """Return whether the time `instant` has been reached: it is the time of the cycle or earlier."""
        return self.now >= instant

    def open_indexes(self) -> None:
        """Make the index of ready slots (`ready`) and the index of slots in flight (`coming`). Steps call it before
        they place reservations.
        """
        slot_infos = [
            slot_info for slot_info in self.slot_infos.values() if not slot_info.slot.cordoned and not slot_info.stuck
        ]
        ready = [
            slot_info for slot_info in slot_infos if slot_info.state == "ready" and slot_info.slot.stranger is None
        ]
        if self.rules.has_quota:
            ready = [slot_info for slot_info in ready if not self._is_done_with(slot_info)]
        self.ready = self.make_index(ready)
        self.coming = self.make_index([slot_info for slot_info in slot_infos if slot_info.state in IN_FLIGHT])
        self._launched = None

    @property
    def launched(self) -> SlotIndex:
        """The index of the slots that this cycle launches. It is made when it is first read."""
        if self._launched is None:
            self._launched = self.make_index()
        return self._launched

    def make_index(self, slot_infos: Iterable[SlotInfo] = ()) -> SlotIndex:
        """Return an index of these slots. The work of its searches is counted (`count_steps`), and `finish` closes the
        index.
        """
        self._indexes.append(index := SlotIndex(slot_infos))
        return index

    def _is_done_with(self, slot_info: SlotInfo) -> bool:
        """Return whether nothing more can be placed on a slot in this cycle, so that the index of ready slots can leave
        out the slot. The conditions: the slot's queue is `quota`, the slot is full, and none of its elastic instances
        can be reclaimed. (A `quota` queue has no starvation guard that could keep the slot.)
        """
        if self.view.stretching and any(lease.kind == "elastic" for lease in slot_info.leases.values()):
            return False
        return not slot_info.has_place and self.rules.settings_of(slot_info.slot.pool, None).queue == "quota"

    def count_steps(self) -> int:
        """Return the steps of work that searches for several instances have taken so far in this cycle, in all
        indexes.
        """
        return sum(index.steps for index in self._indexes)

    def finish(self, queue: Queue, wake_at: float | None) -> Plan:
        """Return the plan of this cycle, with the waiting reservations in the order of `queue`, and close the indexes.
        `wake_at`: when the next cycle is due; None: at no time.
        """
        ids = [*queue.ids, *(each.id for each in self.preempted)] if self.preempted else queue.ids
        if self.returning:
            # A claimant that got its lease and was preempted in the same cycle keeps the slot until its grace ends.
            ids = [each for each in ids if each not in self.returning]
        waiting = self.waits.list(ids, are_all_in=not (self.preempted or self.returning))
        self.close_indexes()
        return Plan(tuple(self.decisions), waiting, wake_at, self.charged)

    def close_indexes(self) -> None:
        """Close the indexes of the cycle, so that they are freed without the garbage collector."""
        for index in self._indexes:
            index.close()
        self._indexes.clear()


def make_revoke(
    holder: str, lease: Lease, reason: RevokeReason, revoke_by: float | None, room_for: str | None = None
) -> Revoke:
    """Return the decision to end an elastic lease of the reservation `holder`. `revoke_by`: the time at which the lease
    ends; None: it ends at once. `room_for`: id of the reservation whose essential instances need the capacity; None:
    there is none.
    """
    return Revoke(
        reservation=holder,
        component=lease.component,
        slot=lease.slot,
        reason=reason,
        epoch=lease.epoch,
        revoke_by=revoke_by,
        room_for=room_for,
    )


def name_placements(leases: Iterable[Lease]) -> tuple[Placement, ...]:
    """Return these leases as placements, the form in which decisions contain leases."""
    return tuple(Placement(each.component, each.slot, each.epoch, each.resources) for each in leases)
