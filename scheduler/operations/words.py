"""Words: what producers, holders, operators and the cloud say, each carried out on the ledger of a transaction.

A word that cannot be heeded raises `Refusal`, which names the field, what was expected and what is; it has
changed nothing then.
"""

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from scheduler.model.decisions import SlotReason
from scheduler.model.events import Event
from scheduler.model.moves import ENDED, HOLDING, IN_FLIGHT, Cause
from scheduler.model.reservations import Lease, Reservation, list_instances
from scheduler.model.rights import is_key_of
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.validation import Fault, show
from scheduler.model.wishes import (
    HolderDocument,
    PriorityDocument,
    ReasonDocument,
    SlotDocument,
)
from scheduler.operations.endings import (
    count_restarts,
    drop_claims,
    end_failed,
    end_instance,
    end_reservation,
    held_of,
    note_confirmed,
    return_to_queue,
)
from scheduler.operations.ledger import Ledger
from scheduler.policy.heal import may_restart_again
from scheduler.policy.ttl import expiry_when_renewed

INTERRUPTED = "slot_interrupted"
"""The event of a machine of which the cloud said that it takes it: no change of state."""


class Refusal(Exception):  # noqa: N818 (a request is refused: the field's word for what is no error of ours)
    """A word that is not heeded, with the fault that its sender is told."""

    def __init__(self, path: str, wanted: str, got: object) -> None:
        self.fault = Fault(path, wanted, show(got))
        super().__init__(str(self.fault))

    @classmethod
    def of(cls, fault: Fault) -> "Refusal":
        """The refusal for a fault that was found elsewhere."""
        refusal = cls(fault.path, fault.expected, None)
        refusal.fault, refusal.args = fault, (str(fault),)
        return refusal


def raise_first(faults: Iterable[Fault | None]) -> None:
    """Raise Refusal for the first fault, if there is one."""
    found = next((each for each in faults if each is not None), None)
    if found is not None:
        raise Refusal.of(found)


def _find(ledger: Ledger, word: HolderDocument) -> Reservation:
    current = ledger.reservations.get(word.reservation)
    if current is None:
        raise Refusal("reservation", "a known reservation", word.reservation)
    return current


def find_alive(ledger: Ledger, word: HolderDocument) -> Reservation:
    """The reservation, not ended, and spoken of by its present holder if it has one."""
    current = _find(ledger, word)
    if current.phase in ENDED:
        raise Refusal("reservation", "one that has not ended", f"{current.id} is {current.phase}")
    _check_key(ledger, current, word)  # promise: key-of-submitter
    _check_token(ledger, current, word)
    return current


def _find_with_part(ledger: Ledger, word: ReasonDocument) -> tuple[Reservation, Lease | None]:
    """The reservation, not ended, with its elastic lease if the word names one. About that its own token is as good as
    the reservation's.
    """
    current = _find(ledger, word)
    named = [each for each in current.leases if each.component == word.component and each.kind == "elastic"]
    if not named or current.phase in ENDED or word.token != named[0].token:
        current = find_alive(ledger, word)
    _check_key(ledger, current, word)  # promise: key-of-submitter
    return current, next(iter(named), None)


def _check_key(ledger: Ledger, current: Reservation, word: HolderDocument) -> None:
    """Besides the token, the sender has to prove that it has the key of which the submitter sent the hash; an operator
    need not. It is checked before the token, so that without the key guesses do not find the token.
    """
    if ledger.cause == "operator" or current.key_hash is None or is_key_of(current.key_hash, word.key):
        return
    raise Refusal.of(Fault("key", f"the key of {current.id}", "nothing" if word.key is None else "another key"))


def _check_token(ledger: Ledger, current: Reservation, word: HolderDocument) -> None:
    """A holder's word about a lease has to carry the current token; about a pending one it needs none, but an
    earlier holder's is stale there too. Operators need none, but a stale one is refused as of any other holder.
    """
    if word.token is None and (ledger.cause != "holder" or current.phase == "pending"):
        return
    if word.token is None:
        raise Refusal("token", f"the current token of {current.id}", None)
    if word.token != current.token:  # promise: current-token
        raise Refusal("token", f"the current token of {current.id} (this one is stale)", word.token)


def release(ledger: Ledger, rules: Rules, word: HolderDocument) -> Reservation:
    """The holder is done: it ends in any phase that is not ended; a second release changes nothing."""
    current = _find(ledger, word)
    if current.phase == "released":
        return current
    current = find_alive(ledger, word)
    note_confirmed(ledger, current)
    return end_reservation(ledger, rules, current, "released", None)


def cancel(ledger: Ledger, rules: Rules, word: ReasonDocument) -> Reservation:
    """Nobody wants it any more, nor its restart; needs no token, for it is the producer's word. A second one
    changes nothing.
    """
    current = _find(ledger, word)
    if current.phase == "cancelled":
        return current
    waits_for_restart = current.phase == "failed" and may_restart_again(current, rules)
    if current.phase in ENDED and not waits_for_restart:
        raise Refusal("reservation", "one that has not ended", f"{current.id} is {current.phase}")
    return end_reservation(ledger, rules, current, "cancelled", word.reason)


def renew(ledger: Ledger, rules: Rules, word: HolderDocument) -> Reservation:
    """Its expiry moves to now + ttl; a holder's first renewal confirms its lease."""
    current = find_alive(ledger, word)
    confirmed = current.confirmed_at
    if current.phase == "leased" and confirmed is None:
        confirmed = ledger.now
    renewed = msgspec.structs.replace(
        current, expires_at=expiry_when_renewed(current, rules, ledger.now), confirmed_at=confirmed
    )
    ledger.mark(renewed)
    note_confirmed(ledger, renewed)
    return renewed


def fail(ledger: Ledger, rules: Rules, word: ReasonDocument) -> Reservation:
    """An essential component died, or the whole: it fails at once, and its policy decides about a restart. An elastic
    one that died ends alone: the next tick grants it anew.
    """
    current, elastic = _find_with_part(ledger, word)
    _check_component(current, word)
    if elastic is not None:
        current = count_restarts(current, [elastic.component]) if elastic.state == "held" else current
        return end_instance(ledger, rules, current, elastic, word.reason or "component_died", clean=False)
    died = [lease.component for lease in held_of(current) if word.component in {None, lease.component}]
    return end_failed(ledger, rules, current, word.reason or "component_died", died)


def _check_component(current: Reservation, word: ReasonDocument) -> None:
    """A component that is named is one of those that are leased; of a pending one, of those that were asked for."""
    held = {lease.component for lease in current.leases}
    known = held or {each.name for each in list_instances(current.request, "essential")}
    if word.component is not None and word.component not in known:
        raise Refusal("component", f"a component of {current.id} that is leased", word.component)


def surrender(ledger: Ledger, rules: Rules, word: ReasonDocument) -> Reservation:
    """The holder gives back what is being revoked before its time: pending again, or still leased where it is elastic
    instances. One that is named goes back though nobody wants it: it shrinks by itself, and is granted no more of that
    component.
    """
    current, elastic = _find_with_part(ledger, word)
    _check_component(current, word)
    if elastic is not None:
        return _give_back(ledger, rules, current, elastic)
    if current.phase == "revoking":
        return return_to_queue(ledger, rules, current, current.revoke_reason or "surrendered")
    parts = [each for each in current.leases if each.kind == "elastic" and each.state == "revoking"]
    if not parts or word.component is not None:
        raise Refusal("reservation", "one that is being revoked", f"{current.id} is {current.phase}")
    for part in parts:
        current = _give_back(ledger, rules, current, part)
    return current


def _give_back(ledger: Ledger, rules: Rules, current: Reservation, lease: Lease) -> Reservation:
    unwanted = () if lease.state == "revoking" else (lease.component,)
    declined = (*current.declined, *unwanted)
    return end_instance(ledger, rules, current, lease, "surrendered", clean=True, declined=declined)


def decline(ledger: Ledger, rules: Rules, word: HolderDocument) -> Reservation:
    """The holder cannot use what it got: pending again with its place in the queue, and those slots are left out
    at its next assignment.
    """
    current = find_alive(ledger, word)
    if current.phase != "leased":
        raise Refusal("reservation", "one that is leased", f"{current.id} is {current.phase}")
    slots = tuple(dict.fromkeys(lease.slot for lease in current.leases))
    return return_to_queue(ledger, rules, current, "declined", declined=slots)


def suspend(ledger: Ledger, rules: Rules, word: HolderDocument) -> Reservation:
    """It gives its leases back and waits on hold, with its place in the queue, until it is resumed."""
    current = find_alive(ledger, word)
    if current.phase == "pending":
        return _set_suspended(ledger, current, suspended=True)
    return return_to_queue(ledger, rules, current, "suspended", suspended=True)


def resume(ledger: Ledger, _rules: Rules, word: HolderDocument) -> Reservation:
    """Undo a suspension: it may be placed again."""
    return _set_suspended(ledger, find_alive(ledger, word), suspended=False)


def _set_suspended(ledger: Ledger, current: Reservation, *, suspended: bool) -> Reservation:
    if suspended and current.leases:
        current = drop_claims(ledger, current)
    changed = msgspec.structs.replace(current, suspended=suspended)
    if changed != current:
        ledger.put(changed)
    return changed


def set_priority(ledger: Ledger, _rules: Rules, word: PriorityDocument) -> Reservation:
    """It counts from the next tick on; 0 puts a waiting one on hold and leaves a leased one alone."""
    current = _find(ledger, word)
    if current.phase in ENDED:
        raise Refusal("reservation", "one that has not ended", f"{current.id} is {current.phase}")
    if current.phase == "pending" and current.leases and word.priority == 0:
        current = drop_claims(ledger, current)
    changed = msgspec.structs.replace(current, priority=word.priority)
    if changed != current:
        ledger.put(changed)
    return changed


def find_slot(ledger: Ledger, name: str) -> Slot:
    """The slot of this id. Raises Refusal."""
    slot = ledger.slots.get(name)
    if slot is None:
        raise Refusal("slot", "a known slot", name)
    return slot


def cordon(ledger: Ledger, _rules: Rules, word: SlotDocument) -> Slot:
    """It takes no new leases; what it holds runs on."""
    return _set_cordon(ledger, word.slot, cordoned=True)


def uncordon(ledger: Ledger, _rules: Rules, word: SlotDocument) -> Slot:
    """Undo a cordon."""
    return _set_cordon(ledger, word.slot, cordoned=False)


def _set_cordon(ledger: Ledger, name: str, *, cordoned: bool) -> Slot:
    slot = find_slot(ledger, name)
    changed = msgspec.structs.replace(slot, cordoned=cordoned)
    if changed != slot:
        ledger.put(changed)
    return changed


def drain(ledger: Ledger, _rules: Rules, word: SlotDocument) -> Slot:
    """A ready slot drains at once; one in flight goes in the next tick; one that goes already, or holds no
    machine, is left as it is.
    """
    return start_draining(ledger, find_slot(ledger, word.slot), "requested", "operator")


def start_draining(ledger: Ledger, slot: Slot, reason: SlotReason, by: Cause) -> Slot:
    """See `drain`; whoever asks for it."""
    if slot.state == "ready":
        cause, ledger.cause = ledger.cause, by
        slot = ledger.move_slot(slot, "draining", reason=reason, drain_reason=reason)
        ledger.cause = cause
    elif slot.state in IN_FLIGHT and slot.drain_reason is None:
        slot = msgspec.structs.replace(slot, drain_reason=reason)
        ledger.put(slot)
    return slot


def interrupt(ledger: Ledger, name: str, gone_at: float) -> Slot:
    """A spot notice: the machine will be gone at that time. A second notice changes nothing."""
    slot = find_slot(ledger, name)
    if slot.interrupted_at is None and slot.state in IN_FLIGHT | HOLDING:
        slot = msgspec.structs.replace(slot, interrupted_at=ledger.now, interrupted_by=gone_at)
        ledger.put(slot)
        detail: dict[str, Any] = {"epoch": slot.epoch, "gone_at": gone_at}
        ledger.tell(Event(at=ledger.now, name=INTERRUPTED, cause="cloud", slot=name, detail=detail))
    return slot


def rebalance(ledger: Ledger, rules: Rules, name: str) -> Slot:
    """EC2 recommends to replace the machine: where the pool's `rebalance` is `drain`, it drains as by an operator's
    `drain` (takes nothing new, its leases run on; one in flight goes in the next tick). A second hint changes nothing.
    """
    slot = find_slot(ledger, name)
    pool = rules.pools.get(slot.pool)
    if pool is None or pool.rebalance == "ignore":
        return slot
    return start_draining(ledger, slot, "rebalance", "cloud")


def lose(ledger: Ledger, name: str) -> Slot:
    """Its machine is gone: the slot is empty at once; what it held fails in the next tick."""
    slot = find_slot(ledger, name)
    if slot.state in {"booting", "binding", "ready", "draining", "terminating"}:
        cause, ledger.cause = ledger.cause, "cloud"
        slot = ledger.move_slot(slot, "empty", reason="lost")
        ledger.cause = cause
    return slot


def hear(ledger: Ledger, name: str) -> Slot:
    """A heartbeat: heard at our own clock's now; nothing else changes."""
    slot = msgspec.structs.replace(find_slot(ledger, name), last_seen=ledger.now)
    ledger.mark(slot)
    return slot


WORDS: dict[str, Callable[[Ledger, Rules, Any], Reservation | Slot]] = {
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
"""What is done for each verb of a producer, a holder or an operator; see also `vocabulary.py`."""
