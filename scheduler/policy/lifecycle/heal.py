"""Step 2, heal: repair what was lost, interrupted or stuck since the last cycle, and restart failed reservations.

A reservation that loses an essential lease fails; the loss of an elastic lease ends only that lease. A reservation that
claims a lost slot is pending again. Machines that are no longer to be used are retired (drained).

Sources: the autoscaler (a project that Leasehold follows) for the tick; Orchard for failures and restarts; Zoe for
elastic leases; Arvados for changed offerings and for the restart of the scheduler. The settings `max_uses`,
`recycle_unclean` and `unhealthy_after` are Leasehold's own. Without them the placement rule `pack`, which prefers the
slot with the most leases, would place leases on a broken machine again and again.
"""

from collections.abc import Collection, Container, Iterable
from math import inf
from operator import attrgetter
from typing import Literal

from scheduler.model.decisions import Drain, Expire, Fail, Requeue, Reset, Restart, RevokeReason, Terminate
from scheduler.model.reservations import LIMIT, Lease, Reservation, is_at_limit
from scheduler.model.slots import ADOPTED, Slot, has_machine_of
from scheduler.model.transitions import IN_FLIGHT, INACTIVE, Phase
from scheduler.policy.capacity.slot_info import (
    AT_REST,
    Leases,
    SlotInfo,
    count_uses_left,
    find_leases,
    find_reason_to_retire,
    is_configured,
)
from scheduler.policy.cycle.state import CycleState, FailedBoots, make_revoke
from scheduler.policy.lifecycle.timers import (
    find_deadline,
    find_end_of_grace,
    find_restart,
    list_silent,
    may_restart_again,
)

BY_CLOUD = frozenset({"rebalance", "maintenance"})
"""Drain reasons that EC2 announced. A slot in flight with such a reason is terminated, with the same reason."""

_sequence = attrgetter("sequence")


def heal_due(cycle: CycleState) -> float:
    """Return when something first has to be repaired. Minus infinity: `heal` has to look at it in this cycle; infinity:
    nothing has to be repaired before a row changes.
    """
    view = cycle.view
    if view.by_phase["revoking"] or view.stretching or cycle.unsound or cycle.vanished or cycle.list_claimants():
        return -inf
    silent, end_of_silence = list_silent(cycle)
    unconfirmed, end_of_wait = _list_unconfirmed(cycle)
    if unconfirmed or not all(each.stuck for each in silent):
        return -inf
    failed = (each for each in view.by_phase["failed"].values() if may_restart_again(each, cycle.rules))
    restarts = (find_restart(cycle, each) for each in failed if each.id not in cycle.over)
    return min([end_of_silence, end_of_wait, *map(_find_change, cycle.list_restless()), *restarts])


def _find_change(slot_info: SlotInfo) -> float:
    """Return when a rule of this module changes a slot of which neither row nor leases change. Minus infinity: now."""
    slot = slot_info.slot
    is_drained = slot.state == "draining" and not slot_info.leases
    if slot_info.state != slot.state or slot.state in AT_REST or slot.interrupted_at is not None or is_drained:
        return -inf
    return -inf if _is_leaving(slot_info) or _find_reason_to_end(slot_info) else _find_deadline(slot_info)


def _find_deadline(slot_info: SlotInfo) -> float:
    slot, pool = slot_info.slot, slot_info.pool
    return slot.since + pool.error_cooldown if slot.state == "error" else find_deadline(slot, pool)


def _is_leaving(slot_info: SlotInfo) -> bool:
    """Return whether a slot that is in flight or stopped is terminated before its timeout: it is to drain, or its pool
    keeps no stopped machines.
    """
    slot = slot_info.slot
    if slot.state in IN_FLIGHT | {"stopped"} and slot.drain_reason:
        return True
    return slot.state == "stopped" and not (slot_info.pool.stopped_slots or slot.cordoned)


def heal(cycle: CycleState) -> FailedBoots:
    """Handle everything that was lost, interrupted or stuck. Return by pool the slots whose boot timed out in this
    cycle.

    The order is: (1) grace periods that are over; (2) interrupted slots; (3) slots whose machine is gone or whose host
    is silent; (4) slots that have been in a state for too long; (5) failed reservations that may restart; (6) leases
    that were not confirmed; (7) slots to retire. A failure of one reservation does not affect others.
    """
    if cycle.timers.rests_until(heal_due(cycle)):
        return {}
    _end_graces(cycle)
    restless, claimants = cycle.list_restless(), cycle.list_claimants()
    _heal_interrupted(cycle, restless)
    silent = _mark_silent(cycle)
    _fail_lost(cycle, silent)
    end_lost_instances(cycle, silent)
    drop_claims(cycle, claimants)
    failed_boots = _heal_stuck(cycle, restless)
    _restart(cycle)
    requeue_unconfirmed(cycle)
    retire(cycle)
    drop_claims(cycle, claimants)  # again, because slots with claims may just have been retired
    retire_vanished(cycle)
    return failed_boots


def _end_graces(cycle: CycleState) -> None:
    """Requeue each revoking reservation whose grace period is over or that has lost the machine of an essential lease;
    end it if it is at its limit. Shorten a grace period that would end after EC2 takes one of the machines back.
    """
    for reservation in _list_in_phase(cycle, "revoking"):
        revoke_by = find_end_of_grace(reservation, cycle.view.slots)
        is_shorter = revoke_by != reservation.revoke_by
        reason = "slot_interrupted" if is_shorter else reservation.revoke_reason or "preempted"
        is_over = revoke_by is None or cycle.is_due(revoke_by)
        if not is_over:
            cycle.timers.add(revoke_by)
        if is_over or not _has_all_slots(cycle, reservation):
            _take_back(cycle, reservation, reason)
        elif is_at_limit(reservation):
            if is_shorter:
                cycle.decide(Expire(reservation=reservation.id, reason=LIMIT, revoke_by=revoke_by))
        else:
            if is_shorter:
                cycle.decide(Requeue(reservation=reservation.id, reason=reason, revoke_by=revoke_by))
            cycle.returning[reservation.id] = reservation


def _take_back(cycle: CycleState, reservation: Reservation, reason: str) -> None:
    """Requeue a reservation for this reason, or end it if it is at its limit. Its leases end in this cycle."""
    if is_at_limit(reservation) or reservation.id in cycle.leaving:
        cycle.decide(Expire(reservation=reservation.id, reason=LIMIT))
        cycle.end(reservation)
    else:
        cycle.requeue(reservation, Requeue(reservation=reservation.id, reason=reason))


def _list_in_phase(cycle: CycleState, phase: Phase) -> list[Reservation]:
    """Return the reservations of one phase that this cycle has not ended, in order of submission."""
    return sorted((each for each in cycle.view.by_phase[phase].values() if each.id not in cycle.over), key=_sequence)


def _heal_interrupted(cycle: CycleState, restless: Iterable[SlotInfo]) -> None:
    """Drain interrupted slots that are ready, terminate interrupted slots in flight, and requeue the reservations with
    essential leases on interrupted slots.
    """
    for slot_info in [each for each in restless if each.slot.interrupted_at is not None]:
        if slot_info.state in INACTIVE | {"terminating"}:
            continue
        slot_info.stuck = True
        if slot_info.state in IN_FLIGHT:
            cycle.move_slot(slot_info, Terminate(slot=slot_info.slot.id, reason="interrupted"))
        elif slot_info.state == "ready":
            cycle.move_slot(slot_info, Drain(slot=slot_info.slot.id, reason="interrupted"))
        _requeue_interrupted(cycle, slot_info.leases)
    for slot in cycle.vanished:
        if slot.interrupted_at is not None:
            _requeue_interrupted(cycle, find_leases(cycle.view, slot))


def _requeue_interrupted(cycle: CycleState, leases: Leases) -> None:
    """Requeue each leased reservation with an essential lease in `leases` (of an interrupted slot), at once or after a
    grace period. Its restart policy does not matter. With `on_interruption: fail` the reservation fails instead.
    """
    for reservation in _find_holders(cycle, leases, {"leased"}):
        if not cycle.stays_leased(reservation):
            continue
        if reservation.request.on_interruption == "fail":
            _fail(cycle, reservation, "slot_interrupted")
            continue
        slots = [cycle.view.slots[lease.slot] for lease in reservation.leases if lease.slot in cycle.view.slots]
        # A grace would end in the next cycle if another machine is gone already (`_end_graces`).
        revoke_by = _find_grace_end(cycle, reservation, slots) if _has_all_slots(cycle, reservation) else None
        cycle.timers.add(revoke_by)
        decision = Requeue(reservation=reservation.id, reason="slot_interrupted", revoke_by=revoke_by)
        if revoke_by is None:
            cycle.requeue(reservation, decision)
        else:
            cycle.decide(decision)
            cycle.returning[reservation.id] = reservation


def _find_holders(cycle: CycleState, leases: Leases, phases: Container[str]) -> list[Reservation]:
    """Return the reservations in one of `phases` that hold an essential one of `leases`, in order of submission."""
    owners = {owner for (owner, _), lease in leases.items() if lease.kind == "essential"}
    found = [cycle.view.reservations[owner] for owner in owners]
    return sorted((each for each in found if each.phase in phases and each.id not in cycle.over), key=_sequence)


def _find_grace_end(cycle: CycleState, reservation: Reservation, slots: Iterable[Slot]) -> float | None:
    """Return when the holder of a reservation on interrupted machines has to stop; None: at once.

    This is the end of `interruption_grace`, or earlier, when EC2 takes the first of the machines back.
    """
    ends = [slot.interrupted_by for slot in slots if slot.interrupted_by is not None]
    if (grace := cycle.settings_of(reservation).interruption_grace) is not None:
        ends.append(cycle.now + grace)
    return None if not ends or cycle.is_due(min(ends)) else min(ends)


def _mark_silent(cycle: CycleState) -> set[str]:
    """Return the ids of the slots whose hosts are silent. Mark these slots as `stuck`, so that they take no lease.

    A launched machine with a silent agent drains: its leases end in this cycle, and it is replaced. A static host may
    come back.
    """
    silent, next_end = list_silent(cycle)
    for slot_info in silent:
        slot_info.stuck = True
        if slot_info.pool.is_elastic and slot_info.state == "ready":
            cycle.move_slot(slot_info, Drain(slot=slot_info.slot.id, reason="silent"))
    cycle.timers.add(next_end)
    return {each.slot.id for each in silent}


def _fail_lost(cycle: CycleState, silent: Collection[str]) -> None:
    """Fail each leased reservation with an essential lease on a slot that is gone or silent; all its leases end.

    Speed: only reservations on silent slots, and on slots that have a lease of an earlier machine, are examined.
    """
    leases_on, leased = cycle.view.leases_on, cycle.view.by_phase["leased"]
    owners = {owner for slot in cycle.unsound.union(silent) for owner, _ in leases_on.get(slot, ())}
    suspects = (leased[name] for name in owners if name in leased and cycle.stays_leased(leased[name]))
    for reservation in sorted(suspects, key=_sequence):
        if not _has_all_slots(cycle, reservation):
            _fail(cycle, reservation, "slot_gone")
        elif any(lease.slot in silent for lease in reservation.leases if lease.kind == "essential"):
            _fail(cycle, reservation, "slot_offline")


def _fail(cycle: CycleState, reservation: Reservation, reason: str) -> None:
    """Decide that a reservation failed: all its leases end. A later cycle may restart the reservation."""
    cycle.decide(Fail(reservation=reservation.id, reason=reason))
    cycle.end(reservation)


def _has_all_slots(cycle: CycleState, reservation: Reservation) -> bool:
    """Return whether each essential lease of a reservation is still on the machine for which it was granted."""
    return all(_find_machine(cycle, lease) for lease in reservation.leases if lease.kind == "essential")


def _find_machine(cycle: CycleState, lease: Lease) -> Slot | None:
    """Return the slot of a lease; None if the slot no longer has the machine (epoch) that the lease was granted on."""
    slot = cycle.view.slots.get(lease.slot)
    return slot if slot is not None and has_machine_of(slot, lease.epoch) else None


def _heal_stuck(cycle: CycleState, restless: Iterable[SlotInfo]) -> FailedBoots:
    """Terminate each slot that has been in its state (for example `launching`) for the timeout that its pool sets for
    the state. A slot in the state `error` is reset instead. Return, by pool, the slots whose boot timed out.

    Before the timeout a slot that is in flight or stopped is terminated if it has a drain reason, and a stopped slot
    also if its pool keeps none. `restless`: the slots to examine; slots that are ready or empty are ignored.
    """
    failed_boots: dict[str, list[str]] = {}
    for slot_info in [each for each in restless if each.state not in AT_REST]:
        slot = slot_info.slot
        if slot_info.state != slot.state:
            continue  # an earlier step of this cycle decided about it
        if slot.state == "draining":
            _heal_draining(cycle, slot_info)
            continue
        if cycle.timers.rests_until(_find_deadline(slot_info)):
            if _is_leaving(slot_info):
                reason = slot.drain_reason if slot.drain_reason in BY_CLOUD else "requested"
                _terminate(cycle, slot_info, reason if slot.drain_reason else "surplus")
        elif slot.state == "error":
            cycle.move_slot(slot_info, Reset(slot=slot.id, reason="cooled_down"))
        else:
            if slot.state in {"booting", "binding"} and not slot.drain_reason:
                # A machine that was to drain anyway shows nothing about the health of its pool.
                failed_boots.setdefault(slot.pool, []).append(slot.id)
            _terminate(cycle, slot_info, "timeout")
    return failed_boots


def _terminate(cycle: CycleState, slot_info: SlotInfo, reason: str) -> None:
    cycle.move_slot(slot_info, Terminate(slot=slot_info.slot.id, reason=reason))  # type: ignore[arg-type]
    slot_info.stuck = True


def _heal_draining(cycle: CycleState, slot_info: SlotInfo) -> None:
    """End a draining slot: at once if it has no leases, else at its `drain_timeout` (0: never), at which its leases
    end.

    The machine of an EC2 pool is terminated. The slot of a static host becomes empty until the host registers again.
    """
    reason = "timeout" if slot_info.leases else "drained"
    if slot_info.leases:
        if slot_info.slot.interrupted_at is not None or cycle.timers.rests_until(_find_deadline(slot_info)):
            return
        for reservation in _find_holders(cycle, slot_info.leases, {"leased", "revoking"}):
            _take_back(cycle, reservation, "slot_draining")
        for (owner, _), lease in sorted(slot_info.leases.items()):
            holder = cycle.view.stretching.get(owner)
            if lease.kind == "elastic" and holder is not None and cycle.stays_leased(holder):
                _revoke(cycle, holder, lease, "slot_draining", None)
    if slot_info.pool.is_elastic or slot_info.slot.launch_id is not None:
        _terminate(cycle, slot_info, reason)
    else:
        cycle.move_slot(slot_info, Reset(slot=slot_info.slot.id, reason=reason))  # type: ignore[arg-type]


def _restart(cycle: CycleState) -> None:
    """Requeue failed reservations that may restart: at once the first time, later after `restart_delay` seconds."""
    for reservation in _list_in_phase(cycle, "failed"):
        if not may_restart_again(reservation, cycle.rules):
            continue
        if not cycle.timers.rests_until(find_restart(cycle, reservation)):
            cycle.requeue(reservation, Restart(reservation=reservation.id))


def end_lost_instances(cycle: CycleState, silent: Collection[str]) -> None:
    """Revoke each elastic lease whose slot is gone, silent or interrupted. End each one whose grace period is over.

    On an interrupted slot the instance keeps its lease until EC2 takes the machine back, or for `interruption_grace`.
    The reservation stays leased, keeps its rank and counts no restart; the missing instance is granted again like any
    other. Source: Zoe. (The loop in Zoe skips every second dead component; this function handles each of them.)
    """
    for reservation in sorted(filter(cycle.stays_leased, cycle.view.stretching.values()), key=_sequence):
        for lease in reservation.leases:
            if lease.kind == "elastic" and (found := _find_loss(cycle, reservation, lease, silent)) is not None:
                _revoke(cycle, reservation, lease, *found)


def _find_loss(
    cycle: CycleState, reservation: Reservation, lease: Lease, silent: Collection[str]
) -> tuple[RevokeReason, float | None] | None:
    """Return why an elastic lease has to end, and its deadline (None: now). Return None if the lease goes on."""
    slot = _find_machine(cycle, lease)
    if slot is None:
        return "slot_gone", None
    if lease.slot in silent:
        return "slot_offline", None
    if lease.state == "revoking":
        ends = [end for end in (lease.revoke_by, slot.interrupted_by) if end is not None]
        if lease.revoke_by is not None and not cycle.is_due(min(ends)):
            cycle.timers.add(min(ends))
            return None if min(ends) == lease.revoke_by else ("slot_interrupted", min(ends))
        if slot.interrupted_at is not None:
            return "slot_interrupted", None
        return "preempted" if lease.revoke_reason == "preempted" else "reclaimed", None
    return None if slot.interrupted_at is None else ("slot_interrupted", _find_grace_end(cycle, reservation, [slot]))


def _revoke(
    cycle: CycleState, reservation: Reservation, lease: Lease, reason: RevokeReason, revoke_by: float | None
) -> None:
    cycle.decide(make_revoke(reservation.id, lease, reason, revoke_by))
    if revoke_by is None:
        cycle.end_instance(reservation, lease.component, lease.slot)


def drop_claims(cycle: CycleState, claimants: Iterable[Reservation]) -> None:
    """Requeue each of these reservations if a slot that it claims is gone, drains, is offline, is interrupted or has
    another machine. What its account paid for the claim is not refunded.
    """
    for reservation in claimants:
        if reservation.id in cycle.over:
            continue
        reasons = [reason for lease in reservation.leases if (reason := _find_loss_of_claim(cycle, lease)) is not None]
        if reasons:
            cycle.requeue(reservation, Requeue(reservation=reservation.id, reason=reasons[0]))


def _find_loss_of_claim(cycle: CycleState, lease: Lease) -> str | None:
    """Return why a claimed slot cannot be given to its claimant any more; None if it can."""
    slot_info = cycle.slot_infos.get(lease.slot)
    if slot_info is None or slot_info.slot.epoch != lease.epoch or slot_info.state not in {"ready", "draining"}:
        return "slot_gone"
    if slot_info.slot.interrupted_at is not None:
        return "slot_interrupted"
    if slot_info.state == "draining":
        return "slot_draining"
    return "slot_offline" if slot_info.stuck else None


def requeue_unconfirmed(cycle: CycleState) -> None:
    """Requeue each leased reservation that its holder has not confirmed within `confirm_timeout` seconds (0: off). Fail
    it instead if this has happened `max_unconfirmed` times in a row (0: no limit). Add one to the count of unconfirmed
    leases of each slot with one of its essential leases.

    No reservation is requeued while one of two kinds of machines exists: (1) a machine that the scheduler found by its
    tags and adopted as a slot, and that has not finished its boot; (2) a running machine that belongs to no slot. A
    holder on such a machine may be about to confirm. This pause ends `adoption_timeout` seconds after the last of these
    machines was seen. Source: Arvados (restart of the scheduler).
    """
    due, next_end = _list_unconfirmed(cycle)
    cycle.timers.add(next_end)
    for reservation in sorted(due, key=_sequence):
        for lease in reservation.leases:
            slot_info = cycle.slot_infos.get(lease.slot)
            if slot_info is not None and lease.kind == "essential":
                slot_info.unconfirmed += 1
                cycle.note_restless(slot_info)
        most = cycle.settings_of(reservation).max_unconfirmed
        if most and reservation.unconfirmed >= most:
            _fail(cycle, reservation, "unconfirmed")
        else:
            cycle.requeue(reservation, Requeue(reservation=reservation.id, reason="unconfirmed"))


def _list_unconfirmed(cycle: CycleState) -> tuple[list[Reservation], float]:
    """Return two things: (1) the reservations that were to be confirmed until now; (2) the first time until which
    another one is to be confirmed, or the end of the pause of all; infinity: there is none.
    """
    every = (cycle.rules.scheduler, *cycle.rules.scheduler.system.values())
    if not any(settings.confirm_timeout for settings in every):
        return [], inf
    # Machines that were found running: adopted ones that still boot, and machines that belong to no slot.
    adopted = [slot_info.slot for slot_info in cycle.list_restless() if slot_info.state in IN_FLIGHT]
    seen = [slot.last_seen for slot in adopted if slot.launch_reason == ADOPTED and slot.last_seen is not None]
    seen += [hold.refused_at for hold in cycle.view.holds.values() if hold.kind == "strangers"]
    if seen and not cycle.is_due(adopted_by := max(seen) + cycle.rules.scheduler.adoption_timeout):
        return [], adopted_by
    due, next_end = list[Reservation](), inf
    for reservation in cycle.view.unconfirmed.values():
        timeout = cycle.settings_of(reservation).confirm_timeout
        if timeout and cycle.stays_leased(reservation):
            deadline = (cycle.now if reservation.leased_at is None else reservation.leased_at) + timeout
            if cycle.is_due(deadline):
                due.append(reservation)
            else:
                next_end = min(next_end, deadline)
    return due, next_end


def retire(cycle: CycleState) -> None:
    """Drain each ready slot for which `find_reason_to_retire` has a reason. Terminate each slot that is in flight or
    stopped if its offering is not configured any more, and each stopped one that may take no more leases, because the
    rules have got a lower `max_uses`. A draining slot takes no new lease; its leases go on.
    """
    for slot_info in cycle.list_restless():
        is_ready = slot_info.state == "ready"
        reason = find_reason_to_retire(slot_info) if is_ready else _find_reason_to_end(slot_info)
        if reason is not None:
            decide = Drain if is_ready else Terminate
            cycle.move_slot(slot_info, decide(slot=slot_info.slot.id, reason=reason))


def _find_reason_to_end(slot_info: SlotInfo) -> Literal["unconfigured", "used_up"] | None:
    if not slot_info.is_coming and slot_info.state != "stopped":
        return None
    if not is_configured(slot_info.slot, slot_info.pool):
        return "unconfigured"
    is_used_up = slot_info.state == "stopped" and not count_uses_left(slot_info.slot, slot_info.pool)
    return "used_up" if is_used_up else None


def retire_vanished(cycle: CycleState) -> None:
    """End the machines of pools that the rules no longer list. Otherwise they would run and cost money forever."""
    for slot in cycle.vanished:  # promise: vanished-pool-ended
        match slot.state:
            case "ready":
                cycle.decide(Drain(slot=slot.id, reason="unconfigured"))
            case "launching" | "booting" | "binding" | "stopped":
                cycle.decide(Terminate(slot=slot.id, reason="unconfigured"))
            case "draining" if not find_leases(cycle.view, slot):
                cycle.decide(Terminate(slot=slot.id, reason="drained"))
            case "error":
                cycle.decide(Reset(slot=slot.id, reason="cooled_down"))
            case _:
                pass
