"""Starts and stops the machines of slots that leave or enter the stopped tier of their pool.

The wanted change is stored on the slot (`power`) before the cloud is called. It is deleted when a check finds that the
machine is stopped, or that a machine to be started is starting or running. So a task that runs twice or dies at any
point changes nothing twice, and a lost message is sent again. A machine keeps its slot and its epoch. The calls name
the machine by its instance id, and so may be repeated.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Final

import msgspec

from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.operations.machines.launch import (
    MOST_ATTEMPTS,
    MOST_DELAY,
    forget_holds,
    is_put_off,
    note_refusal,
    read_refusal,
)
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import UNHEARD, Category, CloudError

Refused = dict[str, CloudError]
"""The errors with which the cloud refused machines: slot id -> error."""
_OF_MACHINE: Final[frozenset[Category]] = frozenset({"misconfigured", "state"})
"""Categories of errors whose reason is the machine itself."""
_OF_ONE: Final[frozenset[Category]] = frozenset({"capacity", "quota", *_OF_MACHINE})
"""Categories of errors of a call that may concern only some of its machines, so that smaller calls are tried."""
_SHARED: Final[frozenset[Category]] = frozenset({"capacity", "quota"})
"""Categories of errors that hold for all machines of one offering and zone, so that no smaller calls are tried."""


def start_all(ports: Ports, wanted: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Start the machines of these slots, given as (slot, epoch), by one call for each offering and zone. Return for
    each slot the outcome as one word, for logs and metrics.

    If the type of a machine differs from the type of the slot's offering, the machine gets this type before the start.
    After a refusal for capacity, quota, throttling or permissions three things happen: the slot is stopped again;
    launches and starts of the offering, market or pool are paused as after a refused launch; a tick plans the demand
    again. A machine that cannot be started for another reason is terminated. After an unclear error the call is
    repeated; `boot_timeout` limits the time.
    """
    rules = ports.rules()
    slots, outcomes = _list_due(ports, wanted, "start")
    for _, group in groupby(sorted(slots, key=_find_place), key=_find_place):
        alike = list(group)
        try:
            done, refused = _start(ports, rules, alike)
        except CloudError as error:
            # After an unclear attempt such an error does not show that the machines are still stopped.
            if error.category not in UNHEARD or any(slot.attempts for slot in alike):
                _put_off(ports, alike)
                outcomes |= {slot.id: error.category for slot in alike}
                continue
            done, refused = [], {slot.id: error for slot in alike}
        _note_called(ports, done)
        _return(ports, rules, alike, {name: error for name, error in refused.items() if _is_pause(error)})
        _give_up(ports, alike, {name: error for name, error in refused.items() if not _is_pause(error)}, "started")
        outcomes |= {slot.id: "asked" for slot in done} | {name: error.category for name, error in refused.items()}
        _count(ports, alike, outcomes)
    return outcomes


def stop_all(ports: Ports, wanted: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Stop the machines of these slots, given as (slot, epoch), by few calls of the cloud. Return for each slot the
    outcome as one word, for logs and metrics.

    A machine that the cloud refuses to stop is terminated. After an unclear error the call is repeated with growing
    delays; `terminating_timeout` limits the time.
    """
    slots, outcomes = _list_due(ports, wanted, "stop")
    try:
        done, refused = _call_cloud(ports.fleet.stop, slots)
    except CloudError as error:
        _put_off(ports, slots)
        return outcomes | {slot.id: error.category for slot in slots}
    _note_called(ports, done)
    _give_up(ports, slots, refused, "stopped")
    return outcomes | {slot.id: "asked" for slot in done} | {name: error.category for name, error in refused.items()}


def _find_place(slot: Slot) -> tuple[str, str, str]:
    return slot.pool, slot.offering or "", slot.zone or ""


def _is_pause(error: CloudError) -> bool:
    return error.category not in _OF_MACHINE


def _start(ports: Ports, rules: Rules, slots: Sequence[Slot]) -> tuple[list[Slot], Refused]:
    """Start the machines of these slots, which have the same offering. Return two things: the slots whose machines were
    started, and the refusals by slot id.
    """
    pool = rules.pools.get(slots[0].pool)
    offering = pool.offering_by_key.get(slots[0].offering or "") if pool is not None else None
    refused: Refused = {}
    for slot in slots:
        known = slot.instance_type
        if offering is not None and slot.instance_id and known is not None and known != offering.instance_type:
            try:
                ports.fleet.resize(slot.instance_id, offering.instance_type)
            except CloudError as error:
                if error.category not in _OF_MACHINE:
                    raise
                refused[slot.id] = error
    done, more = _call_cloud(ports.fleet.start, [slot for slot in slots if slot.id not in refused])
    return done, refused | more


@repeated_if_overtaken
def _return(ports: Ports, rules: Rules, slots: Sequence[Slot], refused: Refused) -> None:
    """Move the slots whose machines the cloud refused to start (`refused`) back to the state `stopped`, and store the
    launch back-offs that these refusals cause.

    Slots that no longer want the start do not change.
    """
    if not refused:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        meant = {slot.id: slot for slot in slots if slot.id in refused}
        work.slots = transaction.load_slots(meant)
        for name, current in list(work.slots.items()):
            if not _is_meant(current, meant[name]):
                continue
            error, pool = refused[name], rules.pools.get(current.pool)
            reason = f"{error.category}: {error.code}"
            work.move_slot(current, "stopped", reason=reason, power=None, launched_for=None, attempts=0)
            if pool is not None:
                note_refusal(work, pool, current, read_refusal(current, error), refused=0)
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)


def _count(ports: Ports, slots: Sequence[Slot], outcomes: dict[str, str]) -> None:
    results = Counter("success" if outcomes[slot.id] == "asked" else outcomes[slot.id] for slot in slots)
    for result, count in results.items():
        labels = {"pool": slots[0].pool, "offering": slots[0].offering or "", "result": result}
        ports.meter.count("leasehold_starts_total", labels, count)


def _list_due(ports: Ports, wanted: Sequence[tuple[str, int]], power: str) -> tuple[list[Slot], dict[str, str]]:
    """Return two things: (1) the slots that still want this power change and whose call is due; (2) for every other
    slot, slot id -> `not_wanted` or `not_due`.

    `wanted`: pairs of slot id and epoch. `power`: `start` or `stop`, as in the row of a slot.
    """
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


def _call_cloud(call: Callable[[Sequence[str]], None], slots: Sequence[Slot]) -> tuple[list[Slot], Refused]:
    """Call the cloud for the machines of these slots. If it refuses, call it for each half of them, and so on. Return
    two things: the slots whose call succeeded, and the refusals by slot id.

    If the first half is refused as a whole for capacity or quota, the other half is not tried: it would be refused too.
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
    done, refused = _call_cloud(call, slots[:middle])
    last = next(reversed(refused.values()), None)
    if not done and last is not None and last.category in _SHARED:
        return [], {slot.id: last for slot in slots}
    more, others = _call_cloud(call, slots[middle:])
    return done + more, refused | others


def _is_meant(current: Slot | None, slot: Slot) -> bool:
    """Return whether `current`, the present row of a slot, still wants the power change that `slot`, an earlier row of
    the slot, wanted. Return False if the slot was deleted (None).
    """
    return current is not None and (current.epoch, current.power) == (slot.epoch, slot.power)


@repeated_if_overtaken
def _note_called(ports: Ports, slots: Sequence[Slot]) -> None:
    """Note that the cloud accepted the calls for these slots, so that a call is repeated only after a minute. The
    success of a start ends pauses of launches, as the success of a launch does.
    """
    if not slots:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        meant = {slot.id: slot for slot in slots}
        for name, current in transaction.load_slots(meant).items():
            if _is_meant(current, meant[name]):
                attempts = current.attempts + 1
                work.mark(msgspec.structs.replace(current, not_before=work.now + MOST_DELAY, attempts=attempts))
                if current.power == "start":
                    forget_holds(work, ports.rules(), [current])
        change_set = work.flush()
    announce(ports, change_set, kick=False)
    ports.dispatcher.send_checks([slot.id for slot in slots])


@repeated_if_overtaken
def _give_up(ports: Ports, slots: Sequence[Slot], refused: Refused, what: str) -> None:
    """Terminate the machines that the cloud refused to stop or to start. `what`: `stopped` or `started`, for the reason
    in the event.
    """
    if not refused:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        meant = {slot.id: slot for slot in slots if slot.id in refused}
        for name, current in transaction.load_slots(meant).items():
            if _is_meant(current, meant[name]):
                ready = msgspec.structs.replace(current, attempts=0, not_before=work.now, sent_at=work.now)
                reason = f"cannot be {what}: {refused[name].code}"
                work.move_slot(ready, "terminating", reason=reason, drain_reason="unhealthy", power=None)
        change_set = work.flush()
    announce(ports, change_set, kick=True)


def _put_off(ports: Ports, slots: Sequence[Slot]) -> None:
    """Delay the next call for these slots by 1, 2, 4, … at most 60 s. The periodic task `recover` then sends the
    call.
    """
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
                if _is_meant(current, meant[name])
            ]
        )
