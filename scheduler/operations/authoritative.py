"""Authoritative words: what somebody who sees the machines says of them (`confirm`, `absent`, `idle`). They settle what
is believed, whatever that is; one that is older than what is known counts for nothing. Source: qscheduler's notices.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec

from scheduler.model.accounts import FREE, level_of
from scheduler.model.decisions import Placement
from scheduler.model.events import Event
from scheduler.model.moves import ENDED, HOLDING
from scheduler.model.reservations import Component, Lease, Reservation, list_instances
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.wishes import AbsentDocument, ConfirmDocument, IdleDocument
from scheduler.operations.endings import drop_claims, end_reservation, note_confirmed, return_to_queue
from scheduler.operations.ledger import Ledger
from scheduler.operations.words import Refusal, find_alive, find_slot
from scheduler.operations.write_leases import LeaseWriter

MOVED = "reservation_moved"
"""The event of one that was confirmed to run on another slot than it was put on: no change of phase."""
CONTRADICTED = "contradicted"


class Nobody(msgspec.Struct, frozen=True):
    """A reservation that was spoken of and that nobody knows."""

    id: str


def confirm(ledger: Ledger, rules: Rules, word: ConfirmDocument) -> Reservation | Nobody:
    """It runs there: `confirm_timeout` no longer applies, and a static host that it runs on counts as heard (Orchard:
    whoever says that something runs there has heard of the host).

    One that is pending, or leased elsewhere, is leased there from now on, and whom the slot was believed to hold
    instead waits again. One that nobody knows is never created; its slot is offered to nobody until it is `idle`.
    """
    if word.slot is not None and word.reservation not in ledger.reservations:
        return _confirm_stranger(ledger, rules, word.reservation, find_slot(ledger, word.slot), _instant(ledger, word))
    current = find_alive(ledger, word)
    slots = {lease.slot for lease in current.leases if lease.state != "claimed"}
    if word.slot is None and current.phase == "pending":
        raise Refusal("slot", f"a slot that {current.id} is leased on", word.slot)
    if word.slot is None or word.slot in slots:
        return _confirm_there(ledger, rules, current, slots if word.slot is None else {word.slot}, word)
    return _confirm_elsewhere(ledger, rules, current, find_slot(ledger, word.slot), _instant(ledger, word))


def _instant(ledger: Ledger, word: ConfirmDocument | AbsentDocument | IdleDocument) -> float:
    """What the notice is about; nobody knows the future."""
    return ledger.now if word.as_of is None else min(word.as_of, ledger.now)


def _confirm_there(
    ledger: Ledger, rules: Rules, current: Reservation, slots: Iterable[str], word: ConfirmDocument
) -> Reservation:
    at = _instant(ledger, word)
    if at < _known_since(current):
        return current
    confirmed = msgspec.structs.replace(current, confirmed_at=at, unconfirmed=0)
    ledger.mark(confirmed)
    note_confirmed(ledger, confirmed)
    _hear_hosts(ledger, rules, slots, at)
    return confirmed


def _known_since(current: Reservation) -> float:
    """The time of the last change of its phase, or of the newest confirmation."""
    return current.changed_at if current.confirmed_at is None else max(current.changed_at, current.confirmed_at)


def _occupied_since(ledger: Ledger, slot: Slot) -> float:
    """When it was last known who is on it: by a notice, a lease that came or went, or as a new machine."""
    known = [slot.noted_at, slot.idle_since, slot.since if slot.state == "ready" else None]
    for (owner, _), lease in ledger.leases_on(slot).items():
        known += [lease.assigned_at, ledger.reservations[owner].confirmed_at]
    return max((each for each in known if each is not None), default=slot.since)


def _hear_hosts(ledger: Ledger, rules: Rules, names: Iterable[str], at: float) -> None:
    """Those of these slots that are static hosts' were heard of then."""
    for name in sorted(names):
        slot = ledger.slots.get(name)
        pool = rules.pools.get(slot.pool) if slot is not None else None
        if slot is not None and pool is not None and not pool.is_elastic:
            heard = at if slot.last_seen is None else max(at, slot.last_seen)
            ledger.mark(msgspec.structs.replace(slot, last_seen=heard))


def _confirm_elsewhere(ledger: Ledger, rules: Rules, current: Reservation, slot: Slot, at: float) -> Reservation:
    """It waits, or is believed to run on another slot; which of several instances runs here nobody could tell."""
    instances = list_instances(current.request, "essential")
    pool = rules.pools.get(slot.pool)
    if slot.state not in HOLDING or pool is None:
        raise Refusal("slot", "a slot that serves", f"{slot.id} is {slot.state}")
    if len(instances) != 1:
        raise Refusal("slot", f"one of the slots that {current.id} is leased on", slot.id)
    if at < max(_known_since(current), _occupied_since(ledger, slot)):
        return current
    given = {**pool.default_resources, **instances[0].component.resources}
    placement = Placement(instances[0].name, slot.id, slot.epoch, given)
    _make_room(ledger, rules, current, slot, instances[0].component)
    if current.phase == "pending":
        _lease(ledger, rules, current, placement)
    else:
        _move(ledger, current, ledger.slots[slot.id])
    confirmed = msgspec.structs.replace(ledger.reservations[current.id], confirmed_at=at, unconfirmed=0)
    ledger.put(confirmed)
    note_confirmed(ledger, confirmed)
    _hear_hosts(ledger, rules, [slot.id], at)
    return confirmed


def _lease(ledger: Ledger, rules: Rules, current: Reservation, placement: Placement) -> None:
    """As the tick would, at the level that a pending one would get; what it had claimed is dropped."""
    if current.leases:
        current = drop_claims(ledger, current)
    level = None
    if rules.settings_of(current.request.pool, current.request.system).queue == "quota":
        account = ledger.account_of(current)
        level = FREE if account is None else level_of(account.balance)
    LeaseWriter(ledger, rules).lease(current, [placement], level)


def _move(ledger: Ledger, current: Reservation, slot: Slot) -> None:
    """It keeps level and cost, and gets a new token: whoever holds the old one is not where it runs."""
    token = ledger.transaction.next_tokens(1)[0]
    leases = tuple(
        msgspec.structs.replace(lease, slot=slot.id, epoch=slot.epoch, token=token, cores=None)
        if lease.kind == "essential"
        else lease
        for lease in current.leases
    )
    left = [lease.slot for lease in current.leases if lease.kind == "essential"]
    ledger.put(msgspec.structs.replace(current, leases=leases, token=token))
    ledger.free_slots(current)
    ledger.put(msgspec.structs.replace(slot, idle_since=None, uses=slot.uses + 1))
    detail: dict[str, Any] = {"from": left[0], "slots": [slot.id]}
    ledger.tell(Event(at=ledger.now, name=MOVED, cause=ledger.cause, reservation=current.id, detail=detail))


def _make_room(ledger: Ledger, rules: Rules, current: Reservation, slot: Slot, component: Component) -> None:
    """Whom the slot is believed to hold instead waits again: on a slot with room for both nobody; else first those who
    never confirmed, and of these who came last.
    """
    writer = LeaseWriter(ledger, rules)
    while others := {key: lease for key, lease in ledger.leases_on(slot).items() if key[0] != current.id}:
        if writer.has_room(slot, list(others.values()), component):
            return
        owner, _ = max(others, key=lambda key: _doubt(ledger, key[0], others[key]))
        _contradict(ledger, rules, ledger.reservations[owner])


def _doubt(ledger: Ledger, owner: str, lease: Lease) -> tuple[bool, float, int]:
    row = ledger.reservations[owner]
    return row.confirmed_at is None, lease.assigned_at, row.sequence


def _contradict(ledger: Ledger, rules: Rules, other: Reservation) -> None:
    """It is not where it was believed to be: pending again, with its place in the queue."""
    if other.phase == "pending":
        drop_claims(ledger, other)
    else:
        return_to_queue(ledger, rules, other, CONTRADICTED)


def _confirm_stranger(ledger: Ledger, rules: Rules, name: str, slot: Slot, at: float) -> Nobody:
    if slot.state not in HOLDING:
        raise Refusal("slot", "a slot that serves", f"{slot.id} is {slot.state}")
    if at >= _occupied_since(ledger, slot):
        for owner in dict.fromkeys(owner for owner, _ in ledger.leases_on(slot)):
            _contradict(ledger, rules, ledger.reservations[owner])
        current = ledger.slots[slot.id]
        if current.stranger == name:
            ledger.mark(msgspec.structs.replace(current, noted_at=at))
        else:
            ledger.put(msgspec.structs.replace(current, stranger=name, noted_at=at))
        _hear_hosts(ledger, rules, [slot.id], at)
    return Nobody(name)


def absent(ledger: Ledger, rules: Rules, word: AbsentDocument) -> Reservation | Nobody:
    """It neither runs nor waits: it has ended, and a lease of it with it. Of one that nobody knows there is nothing to
    end.
    """
    current = ledger.reservations.get(word.reservation)
    if current is None:
        return Nobody(word.reservation)
    if current.phase in ENDED or _instant(ledger, word) < _known_since(current):
        return current
    return end_reservation(ledger, rules, current, "released", "absent", clean=False)


def idle(ledger: Ledger, rules: Rules, word: IdleDocument) -> Slot:
    """Nothing runs there: what was confirmed there has ended, the slot has these labels, and it is offered.

    A lease that was not confirmed yet is held: its holder may be on its way.
    """
    slot = find_slot(ledger, word.slot)
    at = _instant(ledger, word)
    if slot.state not in HOLDING or at < _occupied_since(ledger, slot):
        return slot
    for current in list(_list_holders(ledger, slot)):
        if current.confirmed_at is not None:
            end_reservation(ledger, rules, current, "released", "idle", clean=False)
    seen = ledger.slots[slot.id]
    is_free = not any(_list_holders(ledger, slot))
    labels = word.labels if is_free and word.labels is not None else seen.labels
    changed = msgspec.structs.replace(seen, labels=labels, stranger=None, noted_at=at)
    if (changed.labels, changed.stranger) == (seen.labels, seen.stranger):
        ledger.mark(changed)
    else:
        ledger.put(changed)
    _hear_hosts(ledger, rules, [slot.id], at)
    return ledger.slots[slot.id]


def _list_holders(ledger: Ledger, slot: Slot) -> Iterator[Reservation]:
    """Who has a lease there, and not only a claim."""
    owners = dict.fromkeys(owner for (owner, _), lease in ledger.leases_on(slot).items() if lease.state != "claimed")
    return (ledger.reservations[owner] for owner in owners)


NOTICE_WORDS: dict[str, Callable[[Ledger, Rules, Any], Reservation | Slot | Nobody]] = {
    "confirm": confirm,
    "absent": absent,
    "idle": idle,
}
"""What is done for each of these verbs; the leases on the slots that they name are loaded with who holds them."""
