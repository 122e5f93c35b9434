"""Step 2, heal: what went wrong since the last tick, and what was put off until now.

In this order: the ends of graces, interrupted slots, slots that are gone or silent, slots that are stuck in a state,
restarts that are due, assignments that nobody confirmed, slots whose service is over. Sources: the autoscaler's tick;
Orchard for failures and restarts.
"""

from collections.abc import Collection, Container, Iterator

from scheduler.model.decisions import Drain, Fail, Requeue, Reset, Restart, Terminate
from scheduler.model.moves import HOLDING, IN_FLIGHT, INACTIVE
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.policy.claims import drop_claims
from scheduler.policy.confirming import requeue_unconfirmed
from scheduler.policy.draft import Draft
from scheduler.policy.losses import end_instances_on, end_lost_instances
from scheduler.policy.opening import AT_REST
from scheduler.policy.places import Leases, Place
from scheduler.policy.retire import retire, retire_vanished

INTERRUPTED = "slot_interrupted"


def heal(draft: Draft) -> None:
    """Look after every slot and every reservation that holds one; one that fails spoils nothing else."""
    _release_those_whose_grace_is_over(draft)
    for place in [each for each in draft.list_restless() if each.slot.interrupted_at is not None]:
        if place.state not in INACTIVE | {"terminating"}:
            _heal_interrupted(draft, place)
    for slot in draft.vanished:
        if slot.interrupted_at is not None:
            _take_back_from(draft, draft.leases_on(slot))
    silent = _find_silent(draft)
    _fail_those_without_slot(draft, silent)
    end_lost_instances(draft, silent)
    drop_claims(draft)
    for place in [each for each in draft.list_restless() if each.state not in AT_REST]:
        _heal_stuck(draft, place)
    _restart(draft)
    requeue_unconfirmed(draft)
    retire(draft)
    drop_claims(draft)  # on what has just been retired
    retire_vanished(draft)


def _heal_interrupted(draft: Draft, place: Place) -> None:
    """A ready slot drains, one in flight goes at once; who has an essential lease on it is taken back."""
    place.stuck = True
    if place.state in IN_FLIGHT:
        draft.decide(Terminate(slot=place.slot.id, reason="interrupted"))
        place.state = "terminating"
    elif place.state == "ready":
        draft.decide(Drain(slot=place.slot.id, reason="interrupted"))
        place.state = "draining"
    _take_back_from(draft, place.leases)


def _take_back_from(draft: Draft, leases: Leases) -> None:
    for reservation in _holders_of(draft, leases, {"leased"}):
        if reservation.id not in draft.returning:
            _take_back(draft, reservation)


def _holders_of(draft: Draft, leases: Leases, phases: Container[str]) -> list[Reservation]:
    """The reservations in one of these phases with an essential lease of these, in order of submission."""
    owners = {owner for (owner, _), lease in leases.items() if lease.kind == "essential"}
    found = [draft.view.reservations[owner] for owner in owners]
    holders = [each for each in found if each.phase in phases and each.id not in draft.over]
    return sorted(holders, key=lambda each: each.sequence)


def _take_back(draft: Draft, reservation: Reservation) -> None:
    """Requeue it whatever its restart policy, at once or with a grace that ends with the machine at the latest."""
    if reservation.request.on_interruption == "fail":
        _fail(draft, reservation, INTERRUPTED)
        return
    revoke_by = _grace_end(draft, reservation)
    draft.decide(Requeue(reservation=reservation.id, reason=INTERRUPTED, revoke_by=revoke_by))
    if revoke_by is None:
        draft.requeue(reservation)
    else:
        draft.returning[reservation.id] = reservation


def _grace_end(draft: Draft, reservation: Reservation) -> float | None:
    """When the holder has to be gone, at the latest with the first of its machines; None = at once."""
    slots = [draft.view.slots[lease.slot] for lease in reservation.leases if lease.slot in draft.view.slots]
    ends = [slot.interrupted_by for slot in slots if slot.interrupted_by is not None]
    if (grace := draft.settings_of(reservation).interruption_grace) is not None:
        ends.append(draft.now + grace)
    if not ends or draft.is_due(min(ends)):
        return None
    return min(ends)


def _release_those_whose_grace_is_over(draft: Draft) -> None:
    """A revoking reservation is pending again when its grace is over, or when its slots are gone already."""
    for reservation in draft.list_in_phase("revoking"):
        over = reservation.revoke_by is None or draft.is_due(reservation.revoke_by)
        if over or not all(_is_there(draft, reservation)):
            draft.decide(Requeue(reservation=reservation.id, reason=reservation.revoke_reason or "preempted"))
            draft.requeue(reservation)
        else:
            draft.returning[reservation.id] = reservation


def _find_silent(draft: Draft) -> set[str]:
    hosts = [places for name, places in draft.pools.items() if not draft.rules.pools[name].is_elastic]
    return {place.slot.id for places in hosts for place in places if _is_silent(draft, place)}


def _fail_those_without_slot(draft: Draft, silent: Collection[str]) -> None:
    """A leased reservation whose essential slot is gone or silent fails; decided once, all leases end."""
    for reservation in _list_suspects(draft, silent):
        essential = [lease for lease in reservation.leases if lease.kind == "essential"]
        reason = None
        if any(lease.slot in silent for lease in essential):
            reason = "slot_offline"
        if not all(_is_there(draft, reservation)):
            reason = "slot_gone"
        if reason:
            _fail(draft, reservation, reason)


def _list_suspects(draft: Draft, silent: Collection[str]) -> list[Reservation]:
    """The leased ones on slots where any lease does not stand, in order of submission: of all that hold, few."""
    leases_on, leased = draft.view.leases_on, draft.view.by_phase["leased"]
    owners = {owner for slot in draft.unsound.union(silent) for owner, _ in leases_on.get(slot, ())}
    left = [leased[name] for name in owners if name in leased and name not in draft.over]
    return sorted((each for each in left if each.id not in draft.returning), key=lambda each: each.sequence)


def _fail(draft: Draft, reservation: Reservation, reason: str) -> None:
    """All its leases end; a restart is the following tick's."""
    draft.decide(Fail(reservation=reservation.id, reason=reason))
    draft.end(reservation)


def _is_there(draft: Draft, reservation: Reservation) -> Iterator[bool]:
    """For each essential lease, whether its slot still is the one, in the epoch, that it was given on."""
    for lease in reservation.leases:
        if lease.kind == "essential":
            slot = draft.view.slots.get(lease.slot)
            yield slot is not None and slot.epoch == lease.epoch and slot.state in HOLDING


def _is_silent(draft: Draft, place: Place) -> bool:
    """Whether a static host was not heard of for longer than its timeout; it takes nothing then."""
    slot = place.slot
    if slot.last_seen is None or place.state not in HOLDING:
        return False
    is_silent = draft.is_past(slot.last_seen, place.pool.offline_timeout)
    place.stuck = place.stuck or is_silent
    return is_silent


def _heal_stuck(draft: Draft, place: Place) -> None:
    """Whatever has been in its state for its timeout (age >= timeout) does not stay there."""
    pool, since = place.pool, place.slot.since
    match place.state:
        case "launching" if draft.is_due(since + pool.launch_timeout):
            _terminate(draft, place, "timeout")
        case "booting" if draft.is_due(since + pool.boot_timeout):
            _fail_boot(draft, place)
        case "binding" if draft.is_due(since + pool.binding_timeout):
            _fail_boot(draft, place)
        case "launching" | "booting" | "binding" if place.slot.drain_reason:
            _terminate(draft, place, "rebalance" if place.slot.drain_reason == "rebalance" else "requested")
        case "terminating" if place.slot.state == "terminating":
            if draft.is_due(since + pool.terminating_timeout):
                _terminate(draft, place, "timeout")
        case "draining" if place.slot.state == "draining":
            _heal_draining(draft, place)
        case "error" if draft.is_due(since + pool.error_cooldown):
            draft.decide(Reset(slot=place.slot.id, reason="cooled_down"))
            place.state = "empty"


def _terminate(draft: Draft, place: Place, reason: str) -> None:
    draft.decide(Terminate(slot=place.slot.id, reason=reason))  # type: ignore[arg-type]
    place.state, place.stuck = "terminating", True


def _fail_boot(draft: Draft, place: Place) -> None:
    """It goes, and counts towards what holds its pool, unless it was to go anyway."""
    if not place.slot.drain_reason:
        draft.failed_boots.setdefault(place.slot.pool, []).append(place.slot.id)
    _terminate(draft, place, "timeout")


def _heal_draining(draft: Draft, place: Place) -> None:
    """Without leases it goes; with leases at its drain timeout (0 = it waits for them)."""
    if not place.leases:
        _let_go(draft, place, "drained")
        return
    timeout = place.pool.drain_timeout
    if timeout and place.slot.interrupted_at is None and draft.is_due(place.slot.since + timeout):
        for reservation in _holders_of(draft, place.leases, {"leased", "revoking"}):
            draft.decide(Requeue(reservation=reservation.id, reason="slot_draining"))
            draft.requeue(reservation)
        end_instances_on(draft, place.leases)
        _let_go(draft, place, "timeout")


def _let_go(draft: Draft, place: Place, reason: str) -> None:
    """A machine of ours is terminated; a static host just is not there until it registers again."""
    if place.pool.is_elastic:
        _terminate(draft, place, reason)
    else:
        draft.decide(Reset(slot=place.slot.id, reason=reason))  # type: ignore[arg-type]
        place.state = "empty"


def _restart(draft: Draft) -> None:
    """What failed is pending again: at once the first time, then only after the delay since the last restart."""
    for reservation in draft.list_in_phase("failed"):
        if may_restart_again(reservation, draft.rules) and is_restart_due(draft, reservation):
            draft.decide(Restart(reservation=reservation.id))
            draft.requeue(reservation)


def may_restart_again(reservation: Reservation, rules: Rules) -> bool:
    """Whether its policy asks for restarts and one is left."""
    most = rules.settings_of(reservation.request.pool, reservation.request.system).max_restarts
    return reservation.request.restart_policy == "on_failure" and (not most or reservation.restarts < most)


def is_restart_due(draft: Draft, reservation: Reservation) -> bool:
    """Whether it was never restarted, or its last restart is longer ago than the delay."""
    last = reservation.restarted_at
    return last is None or draft.is_past(last, draft.settings_of(reservation).restart_delay)
