"""Whether slots, as they now are, can take what a plan puts on them, and the leases that come of it."""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from scheduler.model.accounts import FREE, NOTHING, Levels
from scheduler.model.decisions import Placement
from scheduler.model.labels import has_labels
from scheduler.model.reservations import (
    Component,
    ComponentKind,
    Instance,
    Lease,
    LeaseState,
    Request,
    Reservation,
    list_instances,
)
from scheduler.model.resources import fits, subtract, total
from scheduler.model.rules import Pool, Rules
from scheduler.model.slots import Slot
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.capacity.slot_info import capacity_of
from scheduler.policy.cycle.ttl import expiry_of_lease
from scheduler.policy.lifecycle.timeouts import has_timed_out, is_silent
from scheduler.policy.quota.lease_cost import weigh

_NOW: Mapping[LeaseState, bool] = {"held": True, "revoking": True, "claimed": False}
_LATER: Mapping[LeaseState, bool] = {"held": True, "revoking": False, "claimed": True}
"""Who is on a slot at present, and who when those who have to go are gone and those who wait for that have come."""


class _Run(NamedTuple):
    """Instances of one component (None: nobody knows it any more) that come on one slot, and what each is given."""

    slot: str
    epoch: int
    component: Component | None
    given: list[dict[str, float]]


@dataclass(slots=True)
class _Load:
    """How many leases take up a slot, present or later ones, and how much of it they are given together."""

    count: int
    used: dict[str, float]

    def add(self, given: Mapping[str, float]) -> None:
        self.count += 1
        for name, amount in given.items():
            self.used[name] = self.used.get(name, 0) + amount


class LeaseWriter:
    """Tests placements on current rows, and writes leases."""

    def __init__(self, work: UnitOfWork, rules: Rules) -> None:
        self.work, self.rules, self.now = work, rules, work.now
        self._instances: dict[tuple[str, ComponentKind], dict[str, Instance]] = {}

    def _find_instances(self, current: Reservation, kind: ComponentKind) -> dict[str, Instance]:
        """By name; a request never changes, so they are listed once for all that a chunk grants of it."""
        key = current.id, kind
        if key not in self._instances:
            self._instances[key] = {each.name: each for each in list_instances(current.request, kind)}
        return self._instances[key]

    def object_to(
        self,
        current: Reservation,
        placements: Iterable[Placement],
        *,
        leaving: Collection[str] = (),
        parting: Collection[tuple[str, str]] = (),
        is_claim: bool = False,
    ) -> str | None:
        """Why it cannot be put there as things are; None if it can. What it has claimed there is its own.

        `leaving`: reservations that end for it; `parting`: (reservation, component) of single leases that do. A claim
        needs no room at present, but when those who have to go are gone.
        """
        if (reason := self._object_to_waiter(current)) is not None:
            return reason
        sides = (_LATER,) if is_claim else (_NOW, _LATER)
        besides = {current.id, *leaving}
        loads: dict[str, list[_Load]] = {}
        taken: Counter[str] = Counter()
        for run in self._list_runs(current, placements):
            slot = self.work.slots.get(run.slot)
            if slot is None:
                return "its slot is gone"
            if run.component is None or (reason := self._object_to_slot(slot, run.epoch)) is not None:
                return "the rules have changed" if run.component is None else reason
            if slot.id not in loads:
                loads[slot.id] = _weigh_up(self._list_others(slot, besides, parting), sides)
            taken[slot.id] += len(run.given)
            reason = self._object_to_run(slot, loads[slot.id], run.component, run.given)
            reason = reason or self._object_to_kind(slot, taken[slot.id], current.request, run.component)
            if reason is not None:
                return reason
        return None

    def _list_runs(self, current: Reservation, placements: Iterable[Placement]) -> Iterator[_Run]:
        """What is placed, as far as it is alike together: a gang is tested slot by slot, not instance by instance."""
        instances = self._find_instances(current, "essential")

        def tell_apart(each: Placement) -> tuple[str, int, Component | None]:
            instance = instances.get(each.component)
            return each.slot, each.epoch, None if instance is None else instance.component

        for (slot, epoch, component), run in groupby(placements, tell_apart):
            yield _Run(slot, epoch, component, [each.resources for each in run])

    def _object_to_waiter(self, current: Reservation) -> str | None:
        """Why it gets nothing, wherever."""
        if current.phase != "pending":
            return f"it is {current.phase}"
        if current.suspended or current.priority == 0:
            return "it is on hold"
        if current.expires_at is not None and self.now >= current.expires_at:
            return "its time is over"
        return None

    def object_to_instances(self, current: Reservation, placements: Sequence[Placement]) -> list[str | None]:
        """For each of these elastic instances of a leased reservation why it cannot be put there as things are; None if
        it can, and then those after it find its room taken.

        What one costs does not grow with the instances that the reservation, or the slot, has already.
        """
        if current.phase != "leased":
            return [f"it is {current.phase}"] * len(placements)
        held, loads = {lease.component for lease in current.leases}, dict[str, list[_Load]]()
        taken: Counter[str] = Counter()
        objections: list[str | None] = []
        for each in placements:
            objection = "it holds that already" if each.component in held else None
            objection = objection or self._object_to_instance(current, each, loads, taken[each.slot] + 1)
            if objection is None:
                held.add(each.component)
                taken[each.slot] += 1
                for load in loads[each.slot]:
                    load.add(each.resources)
            objections.append(objection)
        return objections

    def _object_to_instance(
        self, current: Reservation, placement: Placement, loads: dict[str, list[_Load]], taken: int
    ) -> str | None:
        """`loads`: by slot, found when it is looked at first; `taken`: of how many on its slot this is the last."""
        slot = self.work.slots.get(placement.slot)
        instance = self._find_instances(current, "elastic").get(placement.component)
        if slot is None:
            return "its slot is gone"
        if instance is None or (reason := self._object_to_slot(slot, placement.epoch)) is not None:
            return "the rules have changed" if instance is None else reason
        if slot.id not in loads:
            loads[slot.id] = _weigh_up(self._list_others(slot, ()), (_NOW, _LATER))
        if any(self._object_to_load(slot, load, instance.component) for load in loads[slot.id]):
            return f"{slot.id} has no room"
        return self._object_to_kind(slot, taken, current.request, instance.component)

    def _list_others(
        self, slot: Slot, besides: Collection[str], parting: Collection[tuple[str, str]] = ()
    ) -> list[Lease]:
        there = self.work.leases_on(slot).items()
        return [lease for key, lease in there if key[0] not in besides and key not in parting]

    def _object_to_slot(self, slot: Slot, epoch: int) -> str | None:
        """Why this slot takes nothing, however much room it has."""
        pool = self.rules.pools.get(slot.pool)
        if pool is None:
            return "the rules have changed"
        if slot.state != "ready" or slot.epoch != epoch:  # promise: slot-rechecked
            return f"{slot.id} is {slot.state}" if slot.state != "ready" else f"{slot.id} has another machine"
        is_leaving = slot.drain_reason is not None or slot.interrupted_at is not None
        if slot.cordoned or is_leaving or slot.stranger is not None or is_silent(slot, pool, self.now):
            return f"{slot.id} takes no leases"
        return None

    def _object_to_run(
        self, slot: Slot, loads: Iterable[_Load], component: Component, given: Sequence[Mapping[str, float]]
    ) -> str | None:
        """Why there is no room for so many of them beside these; the last one finds the least. They are added."""
        for load in loads:
            for each in given[:-1]:
                load.add(each)
            if (reason := self._object_to_load(slot, load, component)) is not None:
                return reason
            load.add(given[-1])
        return None

    def has_room(self, slot: Slot, there: Sequence[Lease], component: Component) -> bool:
        """Whether there is room for it beside those who are there, now and when who has to go is gone."""
        loads = _weigh_up(there, (_NOW, _LATER))
        return not any(self._object_to_load(slot, load, component) for load in loads)

    def _object_to_load(self, slot: Slot, load: _Load, component: Component) -> str | None:
        """Why there is no room for it beside these."""
        pool = self.rules.pools[slot.pool]
        if load.count + 1 > pool.lease_limit:
            return f"{slot.id} is taken"
        capacity = capacity_of(slot, pool)
        wanted = {**pool.default_resources, **component.resources}
        if capacity is not None and not fits(wanted, subtract(capacity, load.used)):
            return f"{slot.id} has no room"
        return None

    def _object_to_kind(self, slot: Slot, taken: int, asked: Request, component: Component) -> str | None:
        """Why the `taken`-th instance of a reservation on this slot is nothing for it, whoever else is there."""
        pool = self.rules.pools[slot.pool]
        if pool.max_uses and slot.uses + taken > pool.max_uses:
            return f"{slot.id} is used up"
        if not has_labels(slot.labels, asked.labels) or not has_labels(slot.labels, component.labels):
            return f"{slot.id} has other labels"
        return f"{slot.id} was registered anew" if slot.id in self.work.altered else None

    def is_lost(self, lease: Lease, reason: str) -> bool:
        """Whether what the plan saw of its slot is still so."""
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
        told: Mapping[str, Any] | None = None,
    ) -> None:
        """It gets these leases, with a new token. Those that it had claimed there keep level, cost and since when they
        are charged for; the first of new ones starts with `cost`. `told`: what the event says besides.
        """
        token = self.work.transaction.next_tokens(1)[0]  # promise: new-token
        claimed = {(lease.component, lease.slot, lease.epoch): lease for lease in current.leases}
        leases = tuple(
            msgspec.structs.replace(claim, state="held", token=token, assigned_at=self.now)
            if (claim := claimed.get((each.component, each.slot, each.epoch))) is not None
            else self._make_lease(current, each, level, cost if index == 0 else NOTHING, token)
            for index, each in enumerate(placements)
        )
        self.work.move_reservation(
            current,
            "leased",
            told={**(told or {}), **({} if level is None else {"level": level})},
            leases=leases,
            token=token,
            leased_at=self.now,
            confirmed_at=None,
            declined=(),
            expires_at=expiry_of_lease(current.request, self.rules, self.now),
        )
        self._use_slots(leases)

    def grant(self, current: Reservation, placements: Sequence[Placement]) -> list[Lease]:
        """It gets these leases too, of elastic instances, each under a token of its own. They run at the level of the
        others.
        """
        paying = next((lease for lease in current.leases if lease.charged_at is not None), None)
        level = None if paying is None else paying.level
        tokens = self.work.transaction.next_tokens(len(placements))
        leases = [
            msgspec.structs.replace(self._make_lease(current, each, level, NOTHING, token), kind="elastic")
            for each, token in zip(placements, tokens, strict=True)
        ]
        self.work.put(msgspec.structs.replace(current, leases=(*current.leases, *leases)))
        self._use_slots(leases)
        return leases

    def _use_slots(self, leases: Iterable[Lease]) -> None:
        """Note on their slots that they came."""
        for slot_id, count in Counter(lease.slot for lease in leases).items():
            slot = self.work.slots[slot_id]
            self.work.put(msgspec.structs.replace(slot, idle_since=None, uses=slot.uses + count))

    def claim(
        self, current: Reservation, placements: Sequence[Placement], level: int | None, cost: Levels = NOTHING
    ) -> Reservation:
        """It keeps these places until those who hold them have let go; it stays pending, and pays from now on."""
        leases = tuple(
            msgspec.structs.replace(
                self._make_lease(current, each, level, cost if index == 0 else NOTHING, 0), state="claimed"
            )
            for index, each in enumerate(placements)
        )
        claiming = msgspec.structs.replace(current, leases=leases)
        self.work.put(claiming)
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

    def weigh(self, current: Reservation, given: Mapping[str, float], slot: Slot) -> float:
        """What a second of a lease of so much of this slot costs; 1 where its pool is not configured any more."""
        pool: Pool | None = self.rules.pools.get(slot.pool)
        settings = self.rules.settings_of(current.request.pool, current.request.system)
        return 1.0 if pool is None else weigh(given, slot, pool, settings)


def _weigh_up(there: Sequence[Lease], sides: Iterable[Mapping[LeaseState, bool]]) -> list[_Load]:
    """What takes up a slot with these leases on it, for each of these sides, or once where they are alike."""
    if all(lease.state == "held" for lease in there):
        return [_Load(len(there), total(lease.resources for lease in there))]
    counted = ([lease.resources for lease in there if side[lease.state]] for side in sides)
    return [_Load(len(given), total(given)) for given in counted]
