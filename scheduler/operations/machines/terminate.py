"""Terminate: end the EC2 machine of one slot, if the slot still has the epoch for which this was requested."""

import msgspec

from scheduler.model.slots import Slot
from scheduler.operations.machines.launch import MOST_ATTEMPTS, MOST_DELAY, is_put_off
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import Category, CloudError


def terminate(ports: Ports, slot_id: str, epoch: int) -> str:
    """Terminate the machine of a slot. Return the outcome as one word. The slot becomes empty later, when EC2 reports
    that the machine is gone.

    If the slot has no instance id, its launch may be under way, and the machine is searched by its launch id. If none
    is found (it may be too young to be listed), the stored launch request is sent again, and its answer decides. If EC2
    refuses the termination, `recover` repeats it with growing delays and without a limit, because a running machine
    costs money.
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
        _write(ports, slot, instance_id=None)
        return "empty"
    if slot.instance_id != machines[0]:
        _write(ports, slot, instance_id=machines[0])
    ports.dispatcher.send_checks([slot_id])
    return "asked"


def _put_off(ports: Ports, slot: Slot) -> None:
    """Delay the next attempt to terminate a slot's machine by 1, 2, 4, … at most 60 s. The periodic task `recover` then
    sends it.
    """
    with ports.store.transaction() as transaction:
        current = transaction.load_slots([slot.id]).get(slot.id)
        if current is not None and _is_meant(current, slot):
            delay = min(MOST_DELAY, 2.0 ** min(current.attempts, 10))
            due = transaction.now() + delay
            transaction.mark(
                [msgspec.structs.replace(current, not_before=due, sent_at=0.0, attempts=current.attempts + 1)]
            )


NOTHING_MADE: frozenset[Category] = frozenset({"capacity", "quota", "misconfigured", "not_found"})
"""The categories of errors which show, as the answer to a repeated launch request, that the first request launched no
machine. Errors of other categories do not show this: EC2 returns `throttled` and `auth` before it looks at the request.
"""


def _find_launched(ports: Ports, slot: Slot) -> list[str]:
    """Return the instance ids of the machines that the launch of a slot made. Raises CloudError while this is unknown.

    EC2 may answer a repeated request with an unknown error, because its client token was used for another request. Then
    the request is sent at most `MOST_ATTEMPTS` times. After that [] is returned. The sweep for machines without a slot
    terminates a machine that appears later.
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


def _write(ports: Ports, slot: Slot, *, instance_id: str | None) -> None:
    """Store on a terminating slot the machine that its launch was found to have made. `instance_id` None: the launch
    made no machine, so the slot becomes empty.
    """
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        current = transaction.load_slots([slot.id]).get(slot.id)
        if current is not None and _is_meant(current, slot) and instance_id is None:
            work.move_slot(current, "empty", reason="never_launched")
        elif current is not None and _is_meant(current, slot):
            work.put(msgspec.structs.replace(current, instance_id=instance_id, last_seen=work.now))
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)
