"""Terminate: carry out the end of one slot's machine, in the epoch that was meant and no other."""

import msgspec

from scheduler.model.slots import Slot
from scheduler.operations.machines.launch import MOST_ATTEMPTS, MOST_DELAY, is_put_off
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import Category, CloudError


def terminate(ports: Ports, slot_id: str, epoch: int) -> str:
    """Ask the cloud to end the machine; the slot is empty only once the cloud says that it is gone.

    A slot without an instance id may have a launch under way: it is looked for by its launch id, and if none is
    found (it may be too young to be listed) the frozen request is sent again, and only that answer decides. Where
    the cloud refuses, `recover` sends this again, later and later, without end: a machine that is given up would
    cost money for ever.
    """
    slot = next(iter(ports.store.find_slots(ids=[slot_id])), None)
    if slot is None or slot.state != "terminating" or slot.epoch != epoch:  # promise: epoch-of-termination
        return "not_wanted"
    if is_put_off(slot, ports.store.now()):
        return "not_due"
    try:
        machines = [slot.instance_id] if slot.instance_id else _find_launched(ports, slot)
        ports.fleet.terminate(machines)
    except CloudError as error:
        _put_off(ports, slot)
        return error.category
    if not machines:
        return _settle_empty(ports, slot)
    _note_machine(ports, slot, machines[0])
    ports.dispatcher.send_checks([slot_id])
    return "asked"


def _put_off(ports: Ports, slot: Slot) -> None:
    """Again later: 1, 2, 4, … 60 s from now; `recover` sends it."""
    with ports.store.transaction() as transaction:
        current = transaction.load_slots([slot.id]).get(slot.id)
        if current is not None and _is_meant(current, slot):
            delay = min(MOST_DELAY, 2.0 ** min(current.attempts, 10))
            due = transaction.now() + delay
            transaction.mark(
                [msgspec.structs.replace(current, not_before=due, sent_at=0.0, attempts=current.attempts + 1)]
            )


NOTHING_MADE: frozenset[Category] = frozenset({"capacity", "quota", "misconfigured", "not_found"})
"""Answers to a launch that was sent again which say that the first one made nothing either. One that is throttled or
lacks permission was not looked at, so it tells nothing about the first.
"""


def _find_launched(ports: Ports, slot: Slot) -> list[str]:
    """The machines that came of this slot's launch. Raises CloudError while nobody knows; an answer that is not
    understood (a token that another request has used) is asked for at most `MOST_ATTEMPTS` times, then what the
    tags show decides, and what shows up later is the orphan sweep's.
    """
    if slot.launch_id is None or slot.launch_request is None:
        return []
    found = [machine.id for machine in ports.fleet.find_launch(slot.launch_id)]
    if found:
        return found
    try:
        return [ports.fleet.launch(slot.launch_request).id]
    except CloudError as error:
        is_odd = error.category == "unknown" and slot.attempts >= MOST_ATTEMPTS
        if error.category not in NOTHING_MADE and not is_odd:
            raise
        return []


def _is_meant(current: Slot | None, slot: Slot) -> bool:
    return current is not None and (current.state, current.epoch) == ("terminating", slot.epoch)


def _settle_empty(ports: Ports, slot: Slot) -> str:
    """Nothing was ever launched for it: the slot is empty."""
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        current = transaction.load_slots([slot.id]).get(slot.id)
        if current is not None and _is_meant(current, slot):
            work.move_slot(current, "empty", reason="never_launched")
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)
    return "empty"


def _note_machine(ports: Ports, slot: Slot, machine: str) -> None:
    if slot.instance_id == machine:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        current = transaction.load_slots([slot.id]).get(slot.id)
        if current is not None and _is_meant(current, slot):
            work.put(msgspec.structs.replace(current, instance_id=machine, last_seen=work.now))
        change_set = work.flush()
    announce(ports, change_set, kick=False)
