"""Recover and sweep: periodic tasks that repeat work whose message was lost, so a lost message is only a delay."""

from collections.abc import Sequence
from itertools import islice

import msgspec

from scheduler.model.slots import Slot
from scheduler.operations.machines.check import BATCH, PROBED_BATCH
from scheduler.operations.machines.launch import is_put_off
from scheduler.operations.ports import Ports, send_callbacks

RESEND_SECONDS = 10.0
"""Slow work that was sent less than this many seconds ago is not sent again."""


def recover(ports: Ports, resend_seconds: float = RESEND_SECONDS) -> int:
    """Send due work again that was not sent for a while: launches, terminations, callbacks. Return the number.

    A `sent_at` in the future was written before the clock was set back, so that work is due as well.
    """
    now = ports.store.now()
    due = [
        slot
        for slot in ports.store.find_slots(states=["launching", "terminating"])
        if not is_put_off(slot, now) and not 0 <= now - slot.sent_at < resend_seconds  # promise: lost-work-sent-again
    ]
    claimed = _claim(ports, due, now)
    ports.dispatcher.send_launches([slot for slot in claimed if slot.state == "launching"])
    ports.dispatcher.send_terminations([slot for slot in claimed if slot.state == "terminating"])
    outgoing = ports.store.find_outgoing(sent_before=now - resend_seconds)
    send_callbacks(ports, outgoing)  # promise: callbacks-sent
    return len(claimed) + len(outgoing)


def _claim(ports: Ports, due: Sequence[Slot], now: float) -> list[Slot]:
    """Set `sent_at` of the slots that are still due, so that copies of this task do not pile up messages."""
    if not due:
        return []
    with ports.store.transaction() as transaction:
        current = transaction.load_slots([slot.id for slot in due])
        claimed = [
            msgspec.structs.replace(found, sent_at=now)
            for slot in due
            if (found := current.get(slot.id)) is not None
            and (found.version, found.sent_at) == (slot.version, slot.sent_at)
        ]
        transaction.mark(claimed)
    return claimed


def sweep(ports: Ports, *, all_machines: bool = False) -> int:
    """Send checks of slots in batches.

    Slots that boot, bind or terminate are checked, and interrupted ones. `all_machines`: every slot that has a
    machine.
    """
    probed = ports.store.find_slots(states=["booting", "binding", *(["ready"] if all_machines else [])])
    going = ports.store.find_slots(states=["terminating", "draining"])
    if not all_machines:
        going = [slot for slot in going if slot.state == "terminating" or slot.interrupted_at is not None]
    return _send_checks(ports, probed, PROBED_BATCH) + _send_checks(ports, going, BATCH)


def _send_checks(ports: Ports, slots: Sequence[Slot], size: int) -> int:
    """Send messages with `size` slots each, for the slots that have a machine. Return the number of slots."""
    names = iter(sorted(slot.id for slot in slots if slot.instance_id))
    sent = 0
    while batch := list(islice(names, size)):
        ports.dispatcher.send_checks(batch)
        sent += len(batch)
    return sent
