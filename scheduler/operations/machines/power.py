"""What starts and stops of machines have in common.

What is wanted is stored on the slot (`power`) before the cloud is called, and is deleted when a check finds that the
machine is stopped or starts. So a task that runs twice or dies at any point changes nothing twice, and a lost message
is sent again. A machine keeps its slot and its epoch: its instance id makes the calls repeatable.
"""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from scheduler.model.slots import Slot
from scheduler.operations.machines.launch import MOST_ATTEMPTS, MOST_DELAY, forget_holds, is_put_off
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import Category, CloudError

Refused = dict[str, CloudError]
"""The refusal of the cloud, by slot."""
_OF_ONE: Final[frozenset[Category]] = frozenset({"capacity", "quota", "misconfigured"})
"""Categories of errors that may concern only some of the machines of a call."""
_SHARED: Final[frozenset[Category]] = frozenset({"capacity", "quota"})
"""Categories of errors that machines of one offering and zone have together."""


def list_due(ports: Ports, wanted: Sequence[tuple[str, int]], power: str) -> tuple[list[Slot], dict[str, str]]:
    """Return the slots that still want this power change and for which a call is due, and the outcome of the others."""
    found = {slot.id: slot for slot in ports.store.find_slots(ids=[name for name, _ in wanted])}
    now, due, outcomes = ports.store.now(), list[Slot](), dict[str, str]()
    for name, epoch in wanted:
        slot = found.get(name)
        if slot is None or slot.power != power or slot.epoch != epoch or slot.instance_id is None:
            outcomes[name] = "not_wanted"  # promise: power-still-wanted
        elif is_put_off(slot, now):
            outcomes[name] = "not_due"
        else:
            due.append(slot)
    return due, outcomes


def call_cloud(call: Callable[[Sequence[str]], None], slots: Sequence[Slot]) -> tuple[list[Slot], Refused]:
    """Call the cloud for the machines of these slots. If it refuses, call it for each half, and so on. Return the slots
    of the machines for which it was called with success, and the refusals.

    If a half is refused as a whole for capacity or quota, the other half is not tried: it would be refused too.
    """
    if not slots:
        return [], {}
    try:
        call([slot.instance_id for slot in slots if slot.instance_id])
    except CloudError as error:
        if error.category not in _OF_ONE:
            raise
        if len(slots) == 1:
            return [], {slots[0].id: error}
    else:
        return list(slots), {}
    middle = (len(slots) + 1) // 2
    done, refused = call_cloud(call, slots[:middle])
    last = next(reversed(refused.values()), None)
    if not done and last is not None and last.category in _SHARED:
        return [], {slot.id: last for slot in slots}
    more, others = call_cloud(call, slots[middle:])
    return done + more, refused | others


def is_meant(current: Slot | None, slot: Slot) -> bool:
    """Return whether the current row of a slot still wants the power change that the earlier row wanted."""
    return current is not None and (current.epoch, current.power) == (slot.epoch, slot.power)


@repeated_if_overtaken
def note_called(ports: Ports, slots: Sequence[Slot]) -> None:
    """Note that the cloud accepted the calls for these slots: they are repeated only after a minute. The success of a
    start ends pauses of launches, as that of a launch does.
    """
    if not slots:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        meant = {slot.id: slot for slot in slots}
        for name, current in transaction.load_slots(meant).items():
            if is_meant(current, meant[name]):
                attempts = current.attempts + 1
                work.mark(msgspec.structs.replace(current, not_before=work.now + MOST_DELAY, attempts=attempts))
                if current.power == "start":
                    forget_holds(work, current)
        change_set = work.flush()
    announce(ports, change_set, kick=False)
    ports.dispatcher.send_checks([slot.id for slot in slots])


@repeated_if_overtaken
def give_up(ports: Ports, slots: Sequence[Slot], refused: Refused, what: str) -> None:
    """Terminate the machines that the cloud refused to stop or to start."""
    if not refused:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        meant = {slot.id: slot for slot in slots if slot.id in refused}
        for name, current in transaction.load_slots(meant).items():
            if is_meant(current, meant[name]):
                ready = msgspec.structs.replace(current, attempts=0, not_before=work.now, sent_at=work.now)
                reason = f"cannot be {what}: {refused[name].code}"
                work.move_slot(ready, "terminating", reason=reason, drain_reason="unhealthy", power=None)
        change_set = work.flush()
    announce(ports, change_set, kick=True)


def put_off(ports: Ports, slots: Sequence[Slot]) -> None:
    """Delay the next call for these slots by 1, 2, 4, … at most 60 s. The periodic task `recover` then sends it."""
    meant = {slot.id: slot for slot in slots}
    with ports.store.transaction() as transaction:
        transaction.mark(
            [
                msgspec.structs.replace(
                    current,
                    not_before=transaction.now() + min(MOST_DELAY, 2.0 ** min(current.attempts, MOST_ATTEMPTS + 1)),
                    sent_at=0.0,
                    attempts=current.attempts + 1,
                )
                for name, current in transaction.load_slots(meant).items()
                if is_meant(current, meant[name])
            ]
        )
