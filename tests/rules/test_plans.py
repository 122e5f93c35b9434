"""Properties that must hold for every plan, whatever the fleet."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.decisions import (
    Assign,
    Claim,
    Cores,
    Decision,
    Drain,
    Expire,
    Grant,
    Launch,
    Reset,
    Revoke,
    Terminate,
)
from scheduler.model.reservations import Reservation, list_instances
from scheduler.model.resources import SLACK, total
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, HOLDING, IN_FLIGHT, INACTIVE
from scheduler.model.view import View
from scheduler.policy.capacity.fits import capacity_of
from tests.rules.fleets import QUICKLY, fleets
from tests.rules.playing import Document
from tests.rules.watching import Seen, watch

# Tracing triples their time, and the lines that they run are those of the scenarios.
pytestmark = pytest.mark.no_cover


def no_slot_is_overfull(seen: Seen) -> None:
    """A slot has at most the allowed number of leases and at most its resources, now and after all revoked leases have
    ended and all claims are assigned.
    """
    view = seen.view_after
    for slot in view.slots.values():
        pool = seen.rules.pools[slot.pool]
        leases = [lease for _, lease in view.leases_of(slot.id) if lease.epoch == slot.epoch]
        capacity = capacity_of(slot, pool)
        for state in ("claimed", "revoking"):
            others = [lease for lease in leases if lease.state != state]
            assert len(others) <= pool.lease_limit
            for name, amount in total(lease.resources for lease in others).items():
                assert capacity is None or amount <= capacity.get(name, 0) + SLACK


def launches_stay_within_the_maximum(seen: Seen) -> None:
    """After a tick with launches, at most `max_slots` are active, of its pool and over all."""
    slots = seen.view_after.slots.values()
    launched = {each.pool for each in seen.plan.decisions if isinstance(each, Launch)}
    active = {name: sum(s.pool == name and s.state not in INACTIVE for s in slots) for name in seen.rules.pools}
    for name in launched:
        assert active[name] <= (seen.rules.pools[name].max_slots or 0)
    if launched and seen.rules.scheduler.max_slots:
        assert sum(active.values()) <= seen.rules.scheduler.max_slots


def no_reservation_is_lost(seen: Seen) -> None:
    """Each reservation is pending, leased, revoking or ended, and holds leases exactly if leased or revoking."""
    before = {row.id for row in seen.before if isinstance(row, Reservation)}
    after = {row.id: row for row in seen.after if isinstance(row, Reservation)}
    assert before == set(after)
    for row in after.values():
        names = {lease.component for lease in row.leases}
        wanted = {each.name for each in list_instances(row.request, "essential")}
        elastic = {each.name for each in list_instances(row.request, "elastic")}
        if row.phase in {"leased", "revoking"}:
            assert wanted <= names <= wanted | elastic
        else:
            assert all(lease.state == "claimed" for lease in row.leases)


def each_waiting_reservation_has_a_reason(seen: Seen) -> None:
    pending = {row.id for row in seen.after if isinstance(row, Reservation) and row.phase == "pending"}
    assert {each.reservation for each in seen.plan.waiting} == pending


def what_expires_is_not_assigned(seen: Seen) -> None:
    over = [each for each in seen.plan.decisions if isinstance(each, Expire)]
    expired = {each.reservation for each in over if each.reason == "ttl"}
    at_limit = {each.reservation for each in over if each.reason == "limit"}
    assigned = {each.reservation for each in seen.plan.decisions if isinstance(each, Assign)}
    assert not (expired | at_limit) & assigned
    view = View(seen.before)
    for row in seen.before:
        if not isinstance(row, Reservation) or row.phase in ENDED:
            continue
        if row.expires_at is not None:
            assert (seen.now >= row.expires_at) == (row.id in expired)
        most = view.find_max_runtime(row)
        if row.phase == "leased" and row.id not in expired:
            has_reached = most is not None and row.leased_at is not None and seen.now >= row.leased_at + most
            assert has_reached == (row.id in at_limit)


def what_was_at_its_limit_does_not_run_again(seen: Seen) -> None:
    """Its holder may end it otherwise during the grace; it is never pending or leased again."""
    before = {row.id for row in seen.before if isinstance(row, Reservation) and row.revoke_reason == "limit"}
    before |= {row.id for row in seen.before if isinstance(row, Reservation) and row.reason == "limit"}
    after = {row.id: row.phase for row in seen.after if isinstance(row, Reservation)}
    assert {after[name] for name in before if name in after} <= {"revoking", *ENDED}


def idleness_drains_nothing_that_is_kept(seen: Seen) -> None:
    """The tick drains never below the minimum or the possible reserve, and never a leased or cordoned slot."""
    view = seen.view_after
    for decision in seen.plan.decisions:
        if isinstance(decision, Drain) and decision.reason == "idle":
            slot = view.slots[decision.slot]
            pool = seen.rules.pools[slot.pool]
            serving = [each for each in view.slots.values() if each.pool == slot.pool and _is_serving(each, view)]
            reserve = [each for each in serving if not view.leases_of(each.id)]
            assert len(serving) >= pool.min_slots
            assert len(reserve) >= pool.target_warm_slots
            assert not view.leases_of(slot.id)
            assert not slot.cordoned


def _is_serving(slot: Slot, view: View) -> bool:
    return slot.state in {"ready", *IN_FLIGHT} and not slot.cordoned and slot.interrupted_at is None


def every_decision_is_accepted(seen: Seen) -> None:
    """Nothing happened between plan and commit, so no decision is skipped."""
    assert seen.skipped == []


def nothing_is_decided_twice(seen: Seen) -> None:
    """One slot has one decision (except a reset and its launch), one reservation gets its slots once."""
    slots = [each.slot for each in seen.plan.decisions if isinstance(each, Launch | Drain | Terminate)]
    assigned = [each.reservation for each in seen.plan.decisions if isinstance(each, Assign)]
    resets = [each.slot for each in seen.plan.decisions if isinstance(each, Reset)]
    for names in (slots, assigned, resets):
        assert len(set(names)) == len(names)


def the_plan_is_pure(seen: Seen) -> None:
    """The same input gives the same plan, whatever the order of the rows."""
    shuffled = random.Random(repr(seen.now)).sample(seen.before, len(seen.before))
    assert seen.replan(seen.before, seen.now) == seen.plan
    assert seen.replan(seen.before[::-1], seen.now) == seen.plan
    assert seen.replan(shuffled, seen.now) == seen.plan


def nothing_is_due_before_it_wakes(seen: Seen) -> None:
    """`wake_at` is the earliest instant at which there is work, if nothing else happens.

    There are four exceptions, because nothing is locked for a reservation while it waits (Arvados). (1) After a launch,
    the next tick may set pending reservations against other machines. A reservation without a launch may take a machine
    that was launched for a later one, which then needs another. A gang that kept an idle slot may take two new ones
    instead, which frees that slot, or ends a machine in flight at the maximum (`at_quota`). The same may follow after a
    revoke with a grace: what it frees counts for machines only in its own tick. (2) The next tick serves the elastic
    instances of new holders before a reservation that waits, see `_follows_late_grants`. (3) It may also find a claim
    worth its room that was not before, see `_follows_late_use`. (4) It may grant elsewhere what was to wait for a
    grace, see `_follows_grace`.
    """
    end, decisions = seen.plan.wake_at, seen.plan.decisions
    launched = any(isinstance(each, Launch) or (isinstance(each, Revoke) and each.revoke_by) for each in decisions)
    assert end is None or end >= seen.now
    times = [seen.now, seen.now + 1e-6, seen.now + 1, seen.now + 7, seen.now + 500]
    if end is not None:
        times += [(seen.now + end) / 2, end - 1e-6]
    for at in times:
        if seen.now <= at and (end is None or at < end):
            found = seen.replan(seen.after, at).decisions
            due = [each for each in found if not (launched and _may_follow(each))]
            if due and (_follows_late_grants(seen, due) or _follows_late_use(seen, due) or _follows_grace(seen, due)):
                due = []
            assert (at, due) == (at, [])


def _list_stretching(seen: Seen) -> set[str]:
    """Return the ids of the reservations with elastic components that are leased in this tick."""
    requests = {row.id: row.request for row in seen.before if isinstance(row, Reservation)}
    assigned = (each.reservation for each in seen.plan.decisions if isinstance(each, Assign))
    return {name for name in assigned if list_instances(requests[name], "elastic")}


def _follows_late_grants(seen: Seen, due: list[Decision]) -> bool:
    """Return whether these decisions follow if new holders get what reservations that wait keep in this tick.

    Rule (elastic.md): "Leased reservations are served first". One that is leased in this tick is served at its rank,
    behind the room that others keep for machines in flight (`booting`) or beside their claims. So the next tick begins
    with grants to new holders alone. If reservations lose the room that they keep, others may be leased in what is
    left, and machines be launched. No lease is revoked.
    """
    claims = {row.id for row in seen.after if isinstance(row, Reservation) and row.phase == "pending" and row.leases}
    if not any(each.code == "booting" or each.reservation in claims for each in seen.plan.waiting):
        return False
    new = _list_stretching(seen)
    late = {each.reservation for each in due if isinstance(each, Grant) and each.reservation in new}
    served = late | {each.reservation for each in due if isinstance(each, Assign)}
    others = (each for each in due if not (isinstance(each, Grant) and each.reservation in served))
    return bool(late) and all(isinstance(each, Assign | Cores) or _may_follow(each) for each in others)


def _follows_late_use(seen: Seen, due: list[Decision]) -> bool:
    """Return whether these decisions lease reservations that waited in this tick, or claim slots for them, under
    `flexible`.

    Rule (elastic.md): "it is leased if they fit in this way and the use of the pools grows by it". A reservation is
    tried once in a tick. One that is leased after it may raise the use by its elastic instances. And instances that are
    granted in a tick give the uses of their machine (`max_uses`) back to a trial in the same tick, but not later.
    """
    counts_uses = any(pool.max_uses for pool in seen.rules.pools.values())
    granted = counts_uses and any(isinstance(each, Grant) for each in seen.plan.decisions)
    if seen.rules.scheduler.elastic != "flexible" or not (granted or _list_stretching(seen)):
        return False
    served = {each.reservation for each in due if isinstance(each, Assign | Claim)}
    waited = {each.reservation for each in seen.plan.waiting}
    made = {each.room_for for each in due if isinstance(each, Revoke) and each.room_for}
    moves = (Assign, Claim, Revoke, Grant, Cores)
    return bool(made) and made <= served <= waited and all(isinstance(each, moves) or _may_follow(each) for each in due)


def _follows_grace(seen: Seen, due: list[Decision]) -> bool:
    """Return whether these decisions only grant, after leases were revoked with a grace.

    Rule (elastic.md): an instance is granted "on the slot that the rules of placement choose". If that slot has to be
    given back first, the grant waits, and the next tick may choose another slot.
    """
    revoked = any(isinstance(each, Revoke) and each.revoke_by for each in seen.plan.decisions)
    return revoked and all(isinstance(each, Grant | Cores) for each in due)


def _may_follow(decision: Decision) -> bool:
    """Return whether the tick after a launch may decide this, because reservations are set against other machines."""
    return isinstance(decision, Launch | Drain) or (isinstance(decision, Terminate) and decision.reason == "at_quota")


def spare_cores_are_shared(seen: Seen) -> None:
    """No lease may use less than its own cpus, and all leases together at most those of the slot, if their own fit."""
    view = seen.view_after
    for slot in view.slots.values():
        leases = [lease for _, lease in view.leases_of(slot.id) if lease.epoch == slot.epoch]
        if slot.resources is None or slot.state not in HOLDING or not leases:
            continue
        owns = [lease.resources.get("cpus", 0) for lease in leases]
        found = [own if lease.cores is None else lease.cores for own, lease in zip(owns, leases, strict=True)]
        users = [at for at, lease in enumerate(leases) if lease.state != "claimed"]
        assert all(found[at] >= owns[at] - SLACK for at in users)
        most = max(slot.resources["cpus"], sum(owns[at] for at in users))
        assert sum(found[at] for at in users) == pytest.approx(most if users else 0)


@QUICKLY
@given(fleets())
def test_every_plan_keeps_to_the_rules(fleet: Document) -> None:
    watch(
        fleet,
        no_slot_is_overfull,
        launches_stay_within_the_maximum,
        no_reservation_is_lost,
        each_waiting_reservation_has_a_reason,
        what_expires_is_not_assigned,
        what_was_at_its_limit_does_not_run_again,
        idleness_drains_nothing_that_is_kept,
        every_decision_is_accepted,
        nothing_is_decided_twice,
        spare_cores_are_shared,
    )


@QUICKLY
@given(fleets())
def test_every_plan_is_a_pure_function_of_its_view(fleet: Document) -> None:
    watch(fleet, the_plan_is_pure)


@QUICKLY
@given(fleets(), st.booleans())
def test_a_tick_wakes_when_the_next_work_falls_due_and_not_later(fleet: Document, wakes: bool) -> None:
    watch({**fleet, "wakes": wakes, "kicks": wakes}, nothing_is_due_before_it_wakes)
