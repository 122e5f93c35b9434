"""Step 2, heal: what went wrong since the last tick, and what was put off until now.

In this order: the ends of graces, interrupted slots, slots that are gone or silent, slots that are stuck in a state,
restarts that are due, assignments that nobody confirmed, slots whose service is over. Sources: the autoscaler's tick;
Orchard for failures and restarts.
"""

from collections.abc import Collection, Container, Iterator

from scheduler.model.decisions import Drain, Fail, Requeue, Reset, Restart, Terminate
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.transitions import HOLDING, IN_FLIGHT, INACTIVE
from scheduler.policy.capacity.cached_slots import AT_REST
from scheduler.policy.capacity.slot_info import Leases, SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.lifecycle.lost_claims import drop_claims
from scheduler.policy.lifecycle.lost_instances import end_instances_on, end_lost_instances
from scheduler.policy.lifecycle.retire import retire, retire_vanished
from scheduler.policy.lifecycle.unconfirmed import requeue_unconfirmed

INTERRUPTED = "slot_interrupted"


def heal(cycle: CycleState) -> None:
    """Look after every slot and every reservation that holds one; one that fails spoils nothing else."""
    _release_those_whose_grace_is_over(cycle)
    for slot_info in [each for each in cycle.list_restless() if each.slot.interrupted_at is not None]:
        if slot_info.state not in INACTIVE | {"terminating"}:
            _heal_interrupted(cycle, slot_info)
    for slot in cycle.vanished:
        if slot.interrupted_at is not None:
            _take_back_from(cycle, cycle.leases_on(slot))
    silent = _find_silent(cycle)
    _fail_those_without_slot(cycle, silent)
    end_lost_instances(cycle, silent)
    drop_claims(cycle)
    for slot_info in [each for each in cycle.list_restless() if each.state not in AT_REST]:
        _heal_stuck(cycle, slot_info)
    _restart(cycle)
    requeue_unconfirmed(cycle)
    retire(cycle)
    drop_claims(cycle)  # on what has just been retired
    retire_vanished(cycle)


def _heal_interrupted(cycle: CycleState, slot_info: SlotInfo) -> None:
    """A ready slot drains, one in flight goes at once; who has an essential lease on it is taken back."""
    slot_info.stuck = True
    if slot_info.state in IN_FLIGHT:
        cycle.decide(Terminate(slot=slot_info.slot.id, reason="interrupted"))
        slot_info.state = "terminating"
    elif slot_info.state == "ready":
        cycle.decide(Drain(slot=slot_info.slot.id, reason="interrupted"))
        slot_info.state = "draining"
    _take_back_from(cycle, slot_info.leases)


def _take_back_from(cycle: CycleState, leases: Leases) -> None:
    for reservation in _holders_of(cycle, leases, {"leased"}):
        if reservation.id not in cycle.returning:
            _take_back(cycle, reservation)


def _holders_of(cycle: CycleState, leases: Leases, phases: Container[str]) -> list[Reservation]:
    """The reservations in one of these phases with an essential lease of these, in order of submission."""
    owners = {owner for (owner, _), lease in leases.items() if lease.kind == "essential"}
    found = [cycle.view.reservations[owner] for owner in owners]
    holders = [each for each in found if each.phase in phases and each.id not in cycle.over]
    return sorted(holders, key=lambda each: each.sequence)


def _take_back(cycle: CycleState, reservation: Reservation) -> None:
    """Requeue it whatever its restart policy, at once or with a grace that ends with the machine at the latest."""
    if reservation.request.on_interruption == "fail":
        _fail(cycle, reservation, INTERRUPTED)
        return
    revoke_by = _grace_end(cycle, reservation)
    cycle.decide(Requeue(reservation=reservation.id, reason=INTERRUPTED, revoke_by=revoke_by))
    if revoke_by is None:
        cycle.requeue(reservation)
    else:
        cycle.returning[reservation.id] = reservation


def _grace_end(cycle: CycleState, reservation: Reservation) -> float | None:
    """When the holder has to be gone, at the latest with the first of its machines; None = at once."""
    slots = [cycle.view.slots[lease.slot] for lease in reservation.leases if lease.slot in cycle.view.slots]
    ends = [slot.interrupted_by for slot in slots if slot.interrupted_by is not None]
    if (grace := cycle.settings_of(reservation).interruption_grace) is not None:
        ends.append(cycle.now + grace)
    if not ends or cycle.is_due(min(ends)):
        return None
    return min(ends)


def _release_those_whose_grace_is_over(cycle: CycleState) -> None:
    """A revoking reservation is pending again when its grace is over, or when its slots are gone already."""
    for reservation in cycle.list_in_phase("revoking"):
        over = reservation.revoke_by is None or cycle.is_due(reservation.revoke_by)
        if over or not all(_is_there(cycle, reservation)):
            cycle.decide(Requeue(reservation=reservation.id, reason=reservation.revoke_reason or "preempted"))
            cycle.requeue(reservation)
        else:
            cycle.returning[reservation.id] = reservation


def _find_silent(cycle: CycleState) -> set[str]:
    hosts = [slot_infos for name, slot_infos in cycle.pools.items() if not cycle.rules.pools[name].is_elastic]
    return {slot_info.slot.id for slot_infos in hosts for slot_info in slot_infos if _is_silent(cycle, slot_info)}


def _fail_those_without_slot(cycle: CycleState, silent: Collection[str]) -> None:
    """A leased reservation whose essential slot is gone or silent fails; decided once, all leases end."""
    for reservation in _list_suspects(cycle, silent):
        essential = [lease for lease in reservation.leases if lease.kind == "essential"]
        reason = None
        if any(lease.slot in silent for lease in essential):
            reason = "slot_offline"
        if not all(_is_there(cycle, reservation)):
            reason = "slot_gone"
        if reason:
            _fail(cycle, reservation, reason)


def _list_suspects(cycle: CycleState, silent: Collection[str]) -> list[Reservation]:
    """The leased ones on slots where any lease does not stand, in order of submission: of all that hold, few."""
    leases_on, leased = cycle.view.leases_on, cycle.view.by_phase["leased"]
    owners = {owner for slot in cycle.unsound.union(silent) for owner, _ in leases_on.get(slot, ())}
    left = [leased[name] for name in owners if name in leased and name not in cycle.over]
    return sorted((each for each in left if each.id not in cycle.returning), key=lambda each: each.sequence)


def _fail(cycle: CycleState, reservation: Reservation, reason: str) -> None:
    """All its leases end; a restart is the following tick's."""
    cycle.decide(Fail(reservation=reservation.id, reason=reason))
    cycle.end(reservation)


def _is_there(cycle: CycleState, reservation: Reservation) -> Iterator[bool]:
    """For each essential lease, whether its slot still is the one, in the epoch, that it was given on."""
    for lease in reservation.leases:
        if lease.kind == "essential":
            slot = cycle.view.slots.get(lease.slot)
            yield slot is not None and slot.epoch == lease.epoch and slot.state in HOLDING


def _is_silent(cycle: CycleState, slot_info: SlotInfo) -> bool:
    """Whether a static host was not heard of for longer than its timeout; it takes nothing then."""
    slot = slot_info.slot
    if slot.last_seen is None or slot_info.state not in HOLDING:
        return False
    is_silent = cycle.is_past(slot.last_seen, slot_info.pool.offline_timeout)
    slot_info.stuck = slot_info.stuck or is_silent
    return is_silent


def _heal_stuck(cycle: CycleState, slot_info: SlotInfo) -> None:
    """Whatever has been in its state for its timeout (age >= timeout) does not stay there."""
    pool, since = slot_info.pool, slot_info.slot.since
    match slot_info.state:
        case "launching" if cycle.is_due(since + pool.launch_timeout):
            _terminate(cycle, slot_info, "timeout")
        case "booting" if cycle.is_due(since + pool.boot_timeout):
            _fail_boot(cycle, slot_info)
        case "binding" if cycle.is_due(since + pool.binding_timeout):
            _fail_boot(cycle, slot_info)
        case "launching" | "booting" | "binding" if slot_info.slot.drain_reason:
            _terminate(cycle, slot_info, "rebalance" if slot_info.slot.drain_reason == "rebalance" else "requested")
        case "terminating" if slot_info.slot.state == "terminating":
            if cycle.is_due(since + pool.terminating_timeout):
                _terminate(cycle, slot_info, "timeout")
        case "draining" if slot_info.slot.state == "draining":
            _heal_draining(cycle, slot_info)
        case "error" if cycle.is_due(since + pool.error_cooldown):
            cycle.decide(Reset(slot=slot_info.slot.id, reason="cooled_down"))
            slot_info.state = "empty"


def _terminate(cycle: CycleState, slot_info: SlotInfo, reason: str) -> None:
    cycle.decide(Terminate(slot=slot_info.slot.id, reason=reason))  # type: ignore[arg-type]
    slot_info.state, slot_info.stuck = "terminating", True


def _fail_boot(cycle: CycleState, slot_info: SlotInfo) -> None:
    """It goes, and counts towards what holds its pool, unless it was to go anyway."""
    if not slot_info.slot.drain_reason:
        cycle.failed_boots.setdefault(slot_info.slot.pool, []).append(slot_info.slot.id)
    _terminate(cycle, slot_info, "timeout")


def _heal_draining(cycle: CycleState, slot_info: SlotInfo) -> None:
    """Without leases it goes; with leases at its drain timeout (0 = it waits for them)."""
    if not slot_info.leases:
        _let_go(cycle, slot_info, "drained")
        return
    timeout = slot_info.pool.drain_timeout
    if timeout and slot_info.slot.interrupted_at is None and cycle.is_due(slot_info.slot.since + timeout):
        for reservation in _holders_of(cycle, slot_info.leases, {"leased", "revoking"}):
            cycle.decide(Requeue(reservation=reservation.id, reason="slot_draining"))
            cycle.requeue(reservation)
        end_instances_on(cycle, slot_info.leases)
        _let_go(cycle, slot_info, "timeout")


def _let_go(cycle: CycleState, slot_info: SlotInfo, reason: str) -> None:
    """A machine of ours is terminated; a static host just is not there until it registers again."""
    if slot_info.pool.is_elastic:
        _terminate(cycle, slot_info, reason)
    else:
        cycle.decide(Reset(slot=slot_info.slot.id, reason=reason))  # type: ignore[arg-type]
        slot_info.state = "empty"


def _restart(cycle: CycleState) -> None:
    """What failed is pending again: at once the first time, then only after the delay since the last restart."""
    for reservation in cycle.list_in_phase("failed"):
        if may_restart_again(reservation, cycle.rules) and is_restart_due(cycle, reservation):
            cycle.decide(Restart(reservation=reservation.id))
            cycle.requeue(reservation)


def may_restart_again(reservation: Reservation, rules: Rules) -> bool:
    """Whether its policy asks for restarts and one is left."""
    most = rules.settings_of(reservation.request.pool, reservation.request.system).max_restarts
    return reservation.request.restart_policy == "on_failure" and (not most or reservation.restarts < most)


def is_restart_due(cycle: CycleState, reservation: Reservation) -> bool:
    """Whether it was never restarted, or its last restart is longer ago than the delay."""
    last = reservation.restarted_at
    return last is None or cycle.is_past(last, cycle.settings_of(reservation).restart_delay)
