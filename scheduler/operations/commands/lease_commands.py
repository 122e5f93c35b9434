"""Words: what producers, holders, operators and the cloud say, each carried out on the ledger of a transaction.

A command that cannot be carried out raises `CommandRefused`, which names the field, what was expected and what is; it
has changed nothing then.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from scheduler.model.command_schemas import (
    HolderDocument,
    PriorityDocument,
    ReasonDocument,
    SlotDocument,
)
from scheduler.model.decisions import SlotReason
from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation, list_instances
from scheduler.model.rights import is_key_of
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED, HOLDING, IN_FLIGHT, Cause
from scheduler.model.validation import Fault, show
from scheduler.operations.ending_leases import (
    count_restarts,
    drop_claims,
    end_failed,
    end_instance,
    end_reservation,
    held_of,
    note_confirmed,
    return_to_queue,
)
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.cycle.deadlines import expiry_when_renewed
from scheduler.policy.lifecycle.heal import may_restart_again

INTERRUPTED = "slot_interrupted"
"""The event of a machine that the cloud announced to take: no change of state."""


class CommandRefused(Exception):  # noqa: N818 (a request is refused: the field's word for what is no error of ours)
    """A command that is not carried out, with the fault that its sender gets."""

    def __init__(self, path: str, wanted: str, got: object) -> None:
        self.fault = Fault(path, wanted, show(got))
        super().__init__(str(self.fault))

    @classmethod
    def of(cls, fault: Fault) -> "CommandRefused":
        """The refusal for a fault that was found elsewhere."""
        refusal = cls(fault.path, fault.expected, None)
        refusal.fault, refusal.args = fault, (str(fault),)
        return refusal


def raise_first(faults: Iterable[Fault | None]) -> None:
    """Raise Refusal for the first fault, if there is one."""
    found = next((each for each in faults if each is not None), None)
    if found is not None:
        raise CommandRefused.of(found)


def _find(work: UnitOfWork, word: HolderDocument) -> Reservation:
    current = work.reservations.get(word.reservation)
    if current is None:
        raise CommandRefused("reservation", "a known reservation", word.reservation)
    return current


def find_alive(work: UnitOfWork, word: HolderDocument) -> Reservation:
    """The reservation, not ended, and spoken of by its present holder if it has one."""
    current = _find(work, word)
    if current.phase in ENDED:
        raise CommandRefused("reservation", "one that has not ended", f"{current.id} is {current.phase}")
    _check_key(work, current, word)  # promise: key-of-submitter
    _check_token(work, current, word)
    return current


def _find_with_part(work: UnitOfWork, word: ReasonDocument) -> tuple[Reservation, Lease | None]:
    """The reservation, not ended, with its elastic lease if the word names one. About that its own token is as good as
    the reservation's.
    """
    current = _find(work, word)
    named = [each for each in current.leases if each.component == word.component and each.kind == "elastic"]
    if not named or current.phase in ENDED or word.token != named[0].token:
        current = find_alive(work, word)
    _check_key(work, current, word)  # promise: key-of-submitter
    return current, next(iter(named), None)


def _check_key(work: UnitOfWork, current: Reservation, word: HolderDocument) -> None:
    """Require, beside the token, a proof that the sender has the key of which the submitter sent the hash. An operator
    needs no key. The key is checked before the token, so that guesses without the key do not find the token.
    """
    if work.cause == "operator" or current.key_hash is None or is_key_of(current.key_hash, word.key):
        return
    raise CommandRefused.of(Fault("key", f"the key of {current.id}", "nothing" if word.key is None else "another key"))


def _check_token(work: UnitOfWork, current: Reservation, word: HolderDocument) -> None:
    """A holder's word about a lease has to carry the current token; about a pending one it needs none, but an
    earlier holder's is stale there too. Operators need none, but a stale one is refused as of any other holder.
    """
    if word.token is None and (work.cause != "holder" or current.phase == "pending"):
        return
    if word.token is None:
        raise CommandRefused("token", f"the current token of {current.id}", None)
    if word.token != current.token:  # promise: current-token
        raise CommandRefused("token", f"the current token of {current.id} (this one is stale)", word.token)


def release(work: UnitOfWork, rules: Rules, word: HolderDocument) -> Reservation:
    """The holder is done: it ends in any phase that is not ended; a second release changes nothing."""
    current = _find(work, word)
    if current.phase == "released":
        return current
    current = find_alive(work, word)
    note_confirmed(work, current)
    return end_reservation(work, rules, current, "released", None)


def cancel(work: UnitOfWork, rules: Rules, word: ReasonDocument) -> Reservation:
    """End a reservation, and do not restart it; needs no token, since it is the producer's command. A second one
    changes nothing.
    """
    current = _find(work, word)
    if current.phase == "cancelled":
        return current
    waits_for_restart = current.phase == "failed" and may_restart_again(current, rules)
    if current.phase in ENDED and not waits_for_restart:
        raise CommandRefused("reservation", "one that has not ended", f"{current.id} is {current.phase}")
    return end_reservation(work, rules, current, "cancelled", word.reason)


def renew(work: UnitOfWork, rules: Rules, word: HolderDocument) -> Reservation:
    """Its expiry moves to now + ttl; a holder's first renewal confirms its lease."""
    current = find_alive(work, word)
    confirmed = current.confirmed_at
    if current.phase == "leased" and confirmed is None:
        confirmed = work.now
    renewed = msgspec.structs.replace(
        current, expires_at=expiry_when_renewed(current, rules, work.now), confirmed_at=confirmed
    )
    work.mark(renewed)
    note_confirmed(work, renewed)
    return renewed


def fail(work: UnitOfWork, rules: Rules, word: ReasonDocument) -> Reservation:
    """An essential component died, or the whole: it fails at once, and its policy decides about a restart. An elastic
    one that died ends alone: the next tick grants it again.
    """
    current, elastic = _find_with_part(work, word)
    _check_component(current, word)
    if elastic is not None:
        current = count_restarts(current, [elastic.component]) if elastic.state == "held" else current
        return end_instance(work, rules, current, elastic, word.reason or "component_died", clean=False)
    died = [lease.component for lease in held_of(current) if word.component in {None, lease.component}]
    return end_failed(work, rules, current, word.reason or "component_died", died)


def _check_component(current: Reservation, word: ReasonDocument) -> None:
    """A component that is named is one of those that are leased; of a pending one, of those that were asked for."""
    held = {lease.component for lease in current.leases}
    known = held or {each.name for each in list_instances(current.request, "essential")}
    if word.component is not None and word.component not in known:
        raise CommandRefused("component", f"a component of {current.id} that is leased", word.component)


def surrender(work: UnitOfWork, rules: Rules, word: ReasonDocument) -> Reservation:
    """The holder gives back what is being revoked before its time: pending again, or still leased where it is elastic
    instances. A named instance is given back even if it is not being revoked: the reservation shrinks by itself, and is
    granted no more of that component.
    """
    current, elastic = _find_with_part(work, word)
    _check_component(current, word)
    if elastic is not None:
        return _give_back(work, rules, current, elastic)
    if current.phase == "revoking":
        return return_to_queue(work, rules, current, current.revoke_reason or "surrendered")
    parts = [each for each in current.leases if each.kind == "elastic" and each.state == "revoking"]
    if not parts or word.component is not None:
        raise CommandRefused("reservation", "one that is being revoked", f"{current.id} is {current.phase}")
    for part in parts:
        current = _give_back(work, rules, current, part)
    return current


def _give_back(work: UnitOfWork, rules: Rules, current: Reservation, lease: Lease) -> Reservation:
    unwanted = () if lease.state == "revoking" else (lease.component,)
    declined = (*current.declined, *unwanted)
    return end_instance(work, rules, current, lease, "surrendered", clean=True, declined=declined)


def decline(work: UnitOfWork, rules: Rules, word: HolderDocument) -> Reservation:
    """The holder cannot use what it got: pending again with its place in the queue, and those slots are left out
    at its next assignment.
    """
    current = find_alive(work, word)
    if current.phase != "leased":
        raise CommandRefused("reservation", "one that is leased", f"{current.id} is {current.phase}")
    slots = tuple(dict.fromkeys(lease.slot for lease in current.leases))
    return return_to_queue(work, rules, current, "declined", declined=slots)


def suspend(work: UnitOfWork, rules: Rules, word: HolderDocument) -> Reservation:
    """It gives its leases back and waits on hold, with its place in the queue, until it is resumed."""
    current = find_alive(work, word)
    if current.phase == "pending":
        return _set_suspended(work, current, suspended=True)
    return return_to_queue(work, rules, current, "suspended", suspended=True)


def resume(work: UnitOfWork, _rules: Rules, word: HolderDocument) -> Reservation:
    """Undo a suspension: it may be placed again."""
    return _set_suspended(work, find_alive(work, word), suspended=False)


def _set_suspended(work: UnitOfWork, current: Reservation, *, suspended: bool) -> Reservation:
    if suspended and current.leases:
        current = drop_claims(work, current)
    changed = msgspec.structs.replace(current, suspended=suspended)
    if changed != current:
        work.put(changed)
    return changed


def set_priority(work: UnitOfWork, _rules: Rules, word: PriorityDocument) -> Reservation:
    """It counts from the next tick on; 0 puts a waiting one on hold and leaves a leased one alone."""
    current = _find(work, word)
    if current.phase in ENDED:
        raise CommandRefused("reservation", "one that has not ended", f"{current.id} is {current.phase}")
    if current.phase == "pending" and current.leases and word.priority == 0:
        current = drop_claims(work, current)
    changed = msgspec.structs.replace(current, priority=word.priority)
    if changed != current:
        work.put(changed)
    return changed


def find_slot(work: UnitOfWork, name: str) -> Slot:
    """The slot of this id. Raises Refusal."""
    slot = work.slots.get(name)
    if slot is None:
        raise CommandRefused("slot", "a known slot", name)
    return slot


def cordon(work: UnitOfWork, _rules: Rules, word: SlotDocument) -> Slot:
    """It takes no new leases; what it holds runs on."""
    return _set_cordon(work, word.slot, cordoned=True)


def uncordon(work: UnitOfWork, _rules: Rules, word: SlotDocument) -> Slot:
    """Undo a cordon."""
    return _set_cordon(work, word.slot, cordoned=False)


def _set_cordon(work: UnitOfWork, name: str, *, cordoned: bool) -> Slot:
    slot = find_slot(work, name)
    changed = msgspec.structs.replace(slot, cordoned=cordoned)
    if changed != slot:
        work.put(changed)
    return changed


def drain(work: UnitOfWork, _rules: Rules, word: SlotDocument) -> Slot:
    """A ready slot drains at once; one in flight goes in the next tick; one that goes already, or holds no
    machine, is left as it is.
    """
    return start_draining(work, find_slot(work, word.slot), "requested", "operator")


def start_draining(work: UnitOfWork, slot: Slot, reason: SlotReason, by: Cause) -> Slot:
    """See `drain`; whoever asks for it."""
    if slot.state == "ready":
        slot = work.move_slot(slot, "draining", cause=by, reason=reason, drain_reason=reason)
    elif slot.state in IN_FLIGHT and slot.drain_reason is None:
        slot = msgspec.structs.replace(slot, drain_reason=reason)
        work.put(slot)
    return slot


def interrupt(work: UnitOfWork, name: str, gone_at: float) -> Slot:
    """A spot notice: the machine will be gone at that time. A second notice changes nothing."""
    slot = find_slot(work, name)
    if slot.interrupted_at is None and slot.state in IN_FLIGHT | HOLDING:
        slot = msgspec.structs.replace(slot, interrupted_at=work.now, interrupted_by=gone_at)
        work.put(slot)
        detail: dict[str, Any] = {"epoch": slot.epoch, "gone_at": gone_at}
        work.tell(Event(at=work.now, name=INTERRUPTED, cause="cloud", slot=name, detail=detail))
    return slot


def rebalance(work: UnitOfWork, rules: Rules, name: str) -> Slot:
    """EC2 recommends to replace the machine: where the pool's `rebalance` is `drain`, it drains as by an operator's
    `drain` (takes nothing new, its leases run on; one in flight goes in the next tick). A second hint changes nothing.
    """
    slot = find_slot(work, name)
    pool = rules.pools.get(slot.pool)
    if pool is None or pool.rebalance == "ignore":
        return slot
    return start_draining(work, slot, "rebalance", "cloud")


def lose(work: UnitOfWork, name: str) -> Slot:
    """Its machine is gone: the slot is empty at once; what it held fails in the next tick."""
    slot = find_slot(work, name)
    if slot.state in {"booting", "binding", "ready", "draining", "terminating"}:
        slot = work.move_slot(slot, "empty", cause="cloud", reason="lost")
    return slot


def hear(work: UnitOfWork, name: str) -> Slot:
    """A heartbeat: heard at our own clock's now; nothing else changes."""
    slot = msgspec.structs.replace(find_slot(work, name), last_seen=work.now)
    work.mark(slot)
    return slot


LEASE_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Reservation | Slot]] = {
    "release": release,
    "cancel": cancel,
    "renew": renew,
    "fail": fail,
    "surrender": surrender,
    "decline": decline,
    "suspend": suspend,
    "resume": resume,
    "priority": set_priority,
    "cordon": cordon,
    "uncordon": uncordon,
    "drain": drain,
}
"""By verb of a producer, a holder or an operator: the function that carries it out; see also `intake.COMMANDS`."""
