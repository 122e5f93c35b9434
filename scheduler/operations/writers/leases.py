"""Tests the placements that a plan has chosen against the current rows of a transaction, and writes them as leases."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import msgspec

from scheduler.model.accounts import FREE, NOTHING, Levels
from scheduler.model.decisions import Assign, Placement
from scheduler.model.reservations import (
    NO_DETAILS,
    Component,
    ComponentKind,
    Lease,
    Request,
    Reservation,
    name_components,
)
from scheduler.model.resources import has_labels
from scheduler.model.rules import Rules, expiry_of_lease
from scheduler.model.slots import Slot
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.capacity.fits import Moment, Obstacle, Usage, find_obstacle_on, measure
from scheduler.policy.capacity.slot_info import count_uses_left
from scheduler.policy.elastic.wanted import list_unwanted
from scheduler.policy.lifecycle.timers import has_timed_out, is_silent, stays_in_service
from scheduler.policy.quota.accounting import weigh

_OBSTACLES: Mapping[Obstacle, str] = {
    "leases": "has its maximum number of leases",
    "uses": "has had its maximum number of leases (max_uses)",
    "resources": "has too few resources left",
}


class _Run(NamedTuple):
    """Placements of equal instances on one slot that follow each other in a plan. `component`: the component of these
    instances; None if the request has no instance of this name. `given`: the resources of each instance.
    """

    slot: str
    epoch: int
    component: Component | None
    given: list[dict[str, float]]


@dataclass(slots=True)
class _SlotUsage:
    """What the leases on a slot use of its capacity, and how many more leases its machine may get (`uses`)."""

    usage: Usage
    uses: float

    def add(self, given: Mapping[str, float]) -> None:
        self.usage.add(given)
        self.uses -= 1


class LeaseWriter:
    """Tests the placements of a plan against the current rows of a transaction, and writes them as leases or claims.

    `likely`: how many reservations will probably get leases in this transaction.
    """

    def __init__(self, work: UnitOfWork, rules: Rules, likely: int = 1) -> None:
        self.work, self.rules, self.now = work, rules, work.now
        self._likely = likely
        self._components: dict[tuple[int, ComponentKind], tuple[Request, dict[str, Component]]] = {}
        """(identity of a request object, kind of component) -> (the request object, a table: instance name -> its
        component). The request is kept, because Python may give the identity of a deleted object to a new one.
        """

    def _find_components(self, request: Request, kind: ComponentKind) -> dict[str, Component]:
        """Return a table (instance name -> its component) of all instances of components of this kind. The table is
        made once for each request object, because requests never change, and equal requests are often the same object.
        """
        known = self._components.get((id(request), kind))
        if known is None:
            known = self._components[id(request), kind] = request, name_components(request, kind)
        return known[1]

    def assign(self, decision: Assign) -> str | None:
        """Lease the placements of `decision` to its reservation. If this is not possible, write nothing and return the
        reason as text, else None.
        """
        current = self.work.reservations.get(decision.reservation)
        if current is None:
            return "the reservation does not exist any more"
        if (reason := self.object_to(current, decision.leases)) is None:
            self.lease(current, decision.leases, decision.level)
        return reason

    def object_to(
        self,
        current: Reservation,
        placements: Sequence[Placement],
        *,
        leaving: Collection[str] = (),
        parting: Collection[tuple[str, str]] = (),
        is_claim: bool = False,
    ) -> str | None:
        """Return as text why a pending reservation cannot get these placements by the current rows; None if it can.

        Claims of the reservation itself do not prevent the placements. `leaving`: ids of reservations whose leases end
        to make capacity. `parting`: single leases that end for the same purpose, as (reservation id, component).
        `is_claim`: the placements become a claim. It begins after the leases that are being revoked, so they do not
        count.
        """
        if (reason := self._object_to_waiter(current)) is not None:
            return reason
        if len(placements) == 1 and not (current.leases or leaving or parting or is_claim):
            # Speed: most assignments are one lease for a reservation without claims.
            return self._object_to_one(current, placements[0], "essential", {})
        absent = {current.id, *leaving} if current.leases or leaving else frozenset[str]()
        claimed = {(each.slot, each.epoch) for each in current.leases}
        occupied: dict[str, _SlotUsage] = {}
        added: dict[str, Mapping[str, float]] = {}
        """Slot -> the resources of the last instance that was tested on the slot. Speed: they are added to `occupied`
        only if a later group of instances (`_Run`) is on the same slot, which is rare.
        """
        for run in self._list_runs(current, placements):
            slot = self.work.slots.get(run.slot)
            if slot is None:
                return "the slot does not exist any more"
            if run.component is None or (reason := self._object_to_slot(slot, run.epoch)) is not None:
                return "the rules have changed since the plan" if run.component is None else reason
            if slot.id not in occupied:
                is_redeemed = (slot.id, slot.epoch) in claimed
                # A claim begins `later`, when the leases that are being revoked have ended. A claim that becomes a
                # lease `now` was tested beside other claims when it was made, so only the present leases count.
                moment: Moment = "later" if is_claim else "now" if is_redeemed else "always"
                occupied[slot.id] = self._measure(slot, moment, absent, parting)
            else:
                occupied[slot.id].add(added[slot.id])
            # All instances of a run need the same resources: if the last one fits, all fit.
            for amounts in run.given[:-1]:
                occupied[slot.id].add(amounts)
            reason = self._object_to_instance(slot, occupied[slot.id], current.request, run.component)
            if reason is not None:
                return reason
            added[slot.id] = run.given[-1]
        return None

    def _list_runs(self, current: Reservation, placements: Sequence[Placement]) -> Iterator[_Run]:
        """Yield the placements in groups of equal instances on one slot that follow each other, so that a gang is
        tested slot by slot and not instance by instance.
        """
        components = self._find_components(current.request, "essential")
        run: _Run | None = None
        for each in placements:
            component = components.get(each.component)
            if run is not None and (run.slot, run.epoch, run.component) == (each.slot, each.epoch, component):
                run.given.append(each.resources)
                continue
            if run is not None:
                yield run
            run = _Run(each.slot, each.epoch, component, [each.resources])
        if run is not None:
            yield run

    def _object_to_waiter(self, current: Reservation) -> str | None:
        """Return as text why a reservation may not get any lease now: it is not pending, is on hold or has expired.
        Return None if it may.
        """
        if current.phase != "pending":
            return f"the reservation is {current.phase}"
        if current.suspended or current.priority == 0:
            return "the reservation is on hold"
        if current.expires_at is not None and self.now >= current.expires_at:
            return "the reservation has expired"
        return None

    def object_to_instances(self, current: Reservation, placements: Sequence[Placement]) -> list[str | None]:
        """For each of these placements of elastic instances, return as text why the leased reservation cannot get it,
        or None if it can. In the test of a placement, the possible ones before it count as leases.

        Speed: the cost of a test does not depend on how many leases the reservation or the slot has.
        """
        if current.phase != "leased":
            return [f"the reservation is {current.phase}"] * len(placements)
        held, occupied = {lease.component for lease in current.leases}, dict[str, _SlotUsage]()
        unwanted = list_unwanted(current, [each.component for each in placements])
        objections: list[str | None] = []
        for each in placements:
            objection = "the instance has a lease already" if each.component in held else None
            if each.component in unwanted:
                objection = "the holder does not want the instance any more"
            objection = objection or self._object_to_one(current, each, "elastic", occupied)
            if objection is None:
                held.add(each.component)
                occupied[each.slot].add(each.resources)
            objections.append(objection)
        return objections

    def _object_to_one(
        self, current: Reservation, placement: Placement, kind: ComponentKind, occupied: dict[str, _SlotUsage]
    ) -> str | None:
        """Return as text why one instance of this kind cannot be placed as the plan chose; None if it can. `occupied`:
        slot id -> what is used of the slot. A slot is added to this table when its first placement is tested.
        """
        slot = self.work.slots.get(placement.slot)
        component = self._find_components(current.request, kind).get(placement.component)
        if slot is None:
            return "the slot does not exist any more"
        if component is None or (reason := self._object_to_slot(slot, placement.epoch)) is not None:
            return "the rules have changed since the plan" if component is None else reason
        if slot.id not in occupied:
            occupied[slot.id] = self._measure(slot)
        return self._object_to_instance(slot, occupied[slot.id], current.request, component)

    def _object_to_slot(self, slot: Slot, epoch: int) -> str | None:
        """Return as text why this epoch of a slot takes no leases, whatever its capacity; None if it takes leases."""
        pool = self.rules.pools.get(slot.pool)
        if pool is None:
            return "the rules have changed since the plan"
        if slot.state != "ready" or slot.epoch != epoch:  # promise: slot-rechecked
            return (
                f"{slot.id} is {slot.state}" if slot.state != "ready" else f"{slot.id} has another machine than planned"
            )
        if slot.cordoned or slot.stranger is not None or not stays_in_service(slot, pool, self.now):
            return f"{slot.id} takes no leases"
        return None

    def has_room(self, slot: Slot, there: Collection[Lease], component: Component) -> bool:
        """Return whether one more instance of `component` fits on a slot beside the leases `there`, both now and when
        the claims among them have become leases.
        """
        return find_obstacle_on(slot, self.rules.pools[slot.pool], component, measure(there)) is None

    def _measure(
        self,
        slot: Slot,
        moment: Moment = "always",
        absent: Collection[str] = (),
        parting: Collection[tuple[str, str]] = (),
    ) -> _SlotUsage:
        """Return the capacity of a slot that its leases use, and how many more leases its machine may get (`max_uses`).
        `moment`: whether leases count that are revoking or claimed (see `fits.Moment`). Not counted: all leases of the
        reservations in `absent`, and the single leases in `parting`, as (reservation id, component).
        """
        pool = self.rules.pools[slot.pool]
        # Each claim is one use of the machine, which is counted here until the claim becomes a lease. At the time `now`
        # a claim becomes a lease: the limit of uses was tested when the claim was made, so it is not tested again.
        has_limit = bool(pool.max_uses) and moment != "now"  # speed: most pools have none, and no claims are counted
        if not self.work.leases.list_all(slot.id):
            usage, claims = Usage(), 0  # speed: without leases there is nothing to sum up
        elif moment == "always" and not absent and not parting:
            there = self.work.leases.sum_on(slot)
            usage, claims = there.sum(), there.claims if has_limit else 0
        else:
            found = self.work.leases.list_on(slot).items()
            others = [lease for key, lease in found if key[0] not in absent and key not in parting]
            usage, claims = measure(others, moment), sum(lease.state == "claimed" for lease in others)
        return _SlotUsage(usage, count_uses_left(slot, pool, claims) if has_limit else inf)

    def _object_to_instance(self, slot: Slot, there: _SlotUsage, asked: Request, component: Component) -> str | None:
        """Return as text why one more instance of a component cannot be leased on a slot beside the use `there`: too
        little capacity, or other labels than `asked` requires. Return None if it can.
        """
        obstacle = find_obstacle_on(slot, self.rules.pools[slot.pool], component, there.usage, there.uses)
        if obstacle is not None:
            return f"{slot.id} {_OBSTACLES[obstacle]}"
        if (asked.labels or component.labels) and not has_labels(slot.labels, asked.labels, component.labels):
            return f"{slot.id} does not have the required labels"
        return (
            f"{slot.id} was registered again with other resources or labels" if slot.id in self.work.altered else None
        )

    def is_lost(self, lease: Lease, reason: str) -> bool:
        """Return whether, by the current rows, the slot of a lease is lost for `reason`: gone, interrupted, offline or
        drained for too long.
        """
        slot = self.work.slots.get(lease.slot)
        if slot is None or not self.work.is_there(lease):
            return reason == "slot_gone"
        pool = self.rules.pools.get(slot.pool)
        match reason:
            case "slot_interrupted":
                return slot.interrupted_at is not None
            case "slot_offline":
                return is_silent(slot, pool, self.now)
            case "slot_draining":
                return slot.state == "draining" and has_timed_out(slot, pool, self.now)
            case _:
                return False

    def lease(
        self,
        current: Reservation,
        placements: Sequence[Placement],
        level: int | None = None,
        cost: Levels = NOTHING,
        details: Mapping[str, Any] = NO_DETAILS,
    ) -> None:
        """Lease these placements to a reservation, with a new fencing token.

        If the reservation has a claim for a placement, the lease keeps the claim's level, cost and `charged_at`. Other
        leases start at `level` (None: no account pays). `cost`: what a preemption charges to the reservation. Only the
        first lease starts with `cost`, if it has no claim: a charge counts once. `details`: additional details of the
        event.
        """
        token = self.work.transaction.next_tokens(1, self._likely)[0]  # promise: new-token
        self._likely -= 1
        claimed = {(each.component, each.slot, each.epoch): each for each in current.leases}
        leases = tuple(
            [
                msgspec.structs.replace(claim, state="held", token=token, assigned_at=self.now)
                if claimed and (claim := claimed.get((each.component, each.slot, each.epoch))) is not None
                else self._make_lease(current, each, level, cost if index == 0 else NOTHING, token)
                for index, each in enumerate(placements)
            ]
        )
        self.work.move_reservation(
            current,
            "leased",
            details=details if level is None else {**details, "level": level},
            leases=leases,
            token=token,
            leased_at=self.now,
            confirmed_at=None,
            declined=(),
            expires_at=expiry_of_lease(current.request, self.rules, self.now),
        )
        self._use_slots(leases)

    def grant(self, current: Reservation, placements: Sequence[Placement]) -> list[Lease]:
        """Add leases of elastic instances to a leased reservation, and return them. Each has a fencing token of its
        own. The account pays for them at the level of the present leases.
        """
        paying = next((lease for lease in current.leases if lease.charged_at is not None), None)
        level = None if paying is None else paying.level
        leases = [
            msgspec.structs.replace(self._make_lease(current, each, level, NOTHING, token), kind="elastic")
            for each, token in zip(placements, self.work.transaction.next_tokens(len(placements)), strict=True)
        ]
        self.work.put(msgspec.structs.replace(current, leases=(*current.leases, *leases)))
        self._use_slots(leases)
        return leases

    def _use_slots(self, leases: Iterable[Lease]) -> None:
        """Add 1 to the number of uses (`uses`) of a slot for each new lease on it. The slots are no longer idle."""
        names = [lease.slot for lease in leases]
        # Speed: most reservations have one lease, and a Counter takes as long as a tenth of its write.
        counts = Counter(names).items() if len(names) != 1 else [(names[0], 1)]
        slots, replace = self.work.slots, msgspec.structs.replace
        self.work.put_slots(
            [replace(slot := slots[name], idle_since=None, uses=slot.uses + count) for name, count in counts]
        )

    def claim(
        self, current: Reservation, placements: Sequence[Placement], level: int | None, cost: Levels = NOTHING
    ) -> Reservation:
        """Promise these placements to a pending reservation until the present leases on their slots have ended. Return
        the reservation's new row. From now on, its account pays at `level`. `cost`: the cost with which the first of
        these claims starts.
        """
        leases = tuple(
            msgspec.structs.replace(
                self._make_lease(current, each, level, cost if index == 0 else NOTHING, 0), state="claimed"
            )
            for index, each in enumerate(placements)
        )
        claiming = self.work.put(msgspec.structs.replace(current, leases=leases))
        for slot_id in dict.fromkeys(each.slot for each in placements):
            self.work.put(self.work.slots[slot_id])
        return claiming

    def _make_lease(
        self, current: Reservation, placement: Placement, level: int | None, cost: Levels, token: int
    ) -> Lease:
        slot = self.work.slots[placement.slot]
        return Lease(
            component=placement.component,
            slot=slot.id,
            epoch=placement.epoch,
            token=token,
            resources=placement.resources,
            level=FREE if level is None else level,
            cost=cost,
            charged_at=None if level is None else self.now,
            weight=1.0 if level is None else self.weigh(current, placement.resources, slot),
            assigned_at=self.now,
        )

    def meter(self, current: Reservation, lease: Lease) -> Lease:
        """Return `lease`, changed so that its account pays from now on. If it is being revoked, return it unchanged."""
        if lease.state == "revoking":
            return lease
        weight = self.weigh(current, lease.resources, self.work.slots.get(lease.slot))
        return msgspec.structs.replace(lease, charged_at=self.now, weight=weight)

    def weigh(self, current: Reservation, given: Mapping[str, float], slot: Slot | None) -> float:
        """Return what a lease with the resources `given` on `slot` costs the account of the reservation `current` per
        second. Return 1 if the slot no longer exists (None), or if the rules no longer have its pool.
        """
        pool = None if slot is None else self.rules.pools.get(slot.pool)
        settings = self.rules.settings_of(current.request.pool, current.request.system)
        return 1.0 if slot is None or pool is None else weigh(given, slot, pool, settings)
