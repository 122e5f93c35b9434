"""Starts and stops the machines of slots that leave or enter the stopped tier of their pool.

The wanted change is stored on the slot (`power`) before the cloud is called. It is deleted when a check finds that the
machine is stopped, or that a machine to be started is starting or running. So a task that runs twice or dies at any
point changes nothing twice, and a lost message is sent again. A machine keeps its slot and its epoch. The calls name
the machine by its instance id, and so may be repeated.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.operations.machines.holds import MOST_DELAY, forget_holds, note_refusal, read_refusal
from scheduler.operations.machines.launch import is_put_off
from scheduler.operations.machines.work import STOP_REFUSED, Refused, check_soon, lock_meant, put_off
from scheduler.operations.ports import Ports, announce, cloud_work
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.ports import UNHEARD, Category, CloudError

_GIVEN_UP: Final[frozenset[Category]] = frozenset({"misconfigured", "state"})
"""Categories of refusals after which a machine is terminated: it can be neither started nor stopped."""
_PAUSES: Final[frozenset[Category]] = frozenset({"capacity", "quota", "throttled", "auth"})
"""Categories of refusals of a start after which the machine stays stopped, and launches pause."""


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
        errors = _start(ports, rules, alike)
        # After an unclear attempt such an error does not show that the machine is still stopped.
        definite = {
            slot.id: errors[slot.id]
            for slot in alike
            if slot.id in errors and not (errors[slot.id].category in UNHEARD and slot.attempts)
        }
        returned = {name: error for name, error in definite.items() if error.category in _PAUSES}
        lost = {name: error for name, error in definite.items() if error.category in _GIVEN_UP}
        done = [slot for slot in alike if slot.id not in errors]
        _note_called(ports, done)
        _return(ports, rules, alike, returned)
        _give_up(ports, alike, lost, "started")
        _put_off(ports, [slot for slot in alike if slot.id in errors.keys() - returned.keys() - lost.keys()])
        outcomes |= {slot.id: "asked" for slot in done} | {name: error.category for name, error in errors.items()}
        _count(ports, alike, outcomes)
    return outcomes


def stop_all(ports: Ports, wanted: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Stop the machines of these slots, given as (slot, epoch), by few calls of the cloud. Return for each slot the
    outcome as one word, for logs and metrics.

    A machine that cannot be stopped because of its state or kind is terminated. After any other refusal the slot keeps
    its state, with the cloud's answer, and the call is repeated with growing delays, as after an unclear error;
    `terminating_timeout` limits the time.
    """
    slots, outcomes = _list_due(ports, wanted, "stop")
    errors = _call_cloud(ports.fleet.stop, slots)
    lost = {name: error for name, error in errors.items() if error.category in _GIVEN_UP}
    refused = {name: error for name, error in errors.items() if error.may_concern_one}
    done = [slot for slot in slots if slot.id not in errors]
    _note_called(ports, done)
    _give_up(ports, slots, lost, "stopped")
    _put_off(ports, [slot for slot in slots if slot.id in errors and slot.id not in lost], refused)
    return outcomes | {slot.id: "asked" for slot in done} | {name: error.category for name, error in errors.items()}


def _find_place(slot: Slot) -> tuple[str, str, str]:
    return slot.pool, slot.offering or "", slot.zone or ""


def _start(ports: Ports, rules: Rules, slots: Sequence[Slot]) -> dict[str, CloudError]:
    """Start the machines of these slots, which have the same offering. Return slot id -> error for each slot whose
    machine the cloud did not start.
    """
    pool = rules.pools.get(slots[0].pool)
    offering = pool.offering_by_key.get(slots[0].offering or "") if pool is not None else None
    errors: dict[str, CloudError] = {}
    for slot in slots:
        known = slot.instance_type
        if offering is not None and slot.instance_id and known is not None and known != offering.instance_type:
            try:
                ports.fleet.resize(slot.instance_id, offering.instance_type)
            except CloudError as error:
                if error.category not in _GIVEN_UP:
                    return {each.id: error for each in slots}
                errors[slot.id] = error
    return errors | _call_cloud(ports.fleet.start, [slot for slot in slots if slot.id not in errors])


@repeated_if_overtaken
def _return(ports: Ports, rules: Rules, slots: Sequence[Slot], refused: Refused) -> None:
    """Move the slots whose machines the cloud refused to start (`refused`) back to the state `stopped`, and store the
    launch back-offs that these refusals cause.

    Slots that no longer want the start do not change.
    """
    if not refused:
        return
    with cloud_work(ports) as work:
        for current in lock_meant(work, [slot for slot in slots if slot.id in refused], _is_meant):
            error, pool = refused[current.id], rules.pools.get(current.pool)
            reason = f"{error.category}: {error.code}"
            changes: dict[str, Any] = {"power": None, "launched_for": None, "attempts": 0}
            work.move_slot(current, "stopped", reason=reason, refusal=error.answer, **changes)
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


def _call_cloud(call: Callable[[list[str]], dict[str, CloudError]], slots: Sequence[Slot]) -> dict[str, CloudError]:
    """Call the cloud for the machines of these slots. Return slot id -> error for each that it did not accept."""
    machines = {slot.id: slot.instance_id for slot in slots if slot.instance_id}
    if not machines:
        return {}
    try:
        refused = call(list(machines.values()))
    except CloudError as error:
        return dict.fromkeys(machines, error)
    return {name: refused[machine] for name, machine in machines.items() if machine in refused}


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
    with cloud_work(ports) as work:
        for current in lock_meant(work, slots, _is_meant):
            attempts = current.attempts + 1
            called = msgspec.structs.replace(current, not_before=work.now + MOST_DELAY, attempts=attempts)
            if current.refusal is None:
                work.mark(called)
            else:
                work.put(msgspec.structs.replace(called, refusal=None))
            if current.power == "start":
                forget_holds(work, ports.rules(), [current])
        change_set = work.flush()
    announce(ports, change_set, kick=False)
    check_soon(ports, [slot.id for slot in slots])


@repeated_if_overtaken
def _give_up(ports: Ports, slots: Sequence[Slot], refused: Refused, what: str) -> None:
    """Terminate the machines that the cloud refused to stop or to start. `what`: `stopped` or `started`, for the reason
    in the event.
    """
    if not refused:
        return
    with cloud_work(ports) as work:
        for current in lock_meant(work, [slot for slot in slots if slot.id in refused], _is_meant):
            ready = msgspec.structs.replace(current, attempts=0, not_before=work.now, sent_at=work.now)
            reason = f"cannot be {what}: {refused[current.id].code}"
            changes: dict[str, Any] = {"drain_reason": "unhealthy", "power": None, "refusal": None}
            work.move_slot(ready, "terminating", reason=reason, **changes)
        change_set = work.flush()
    announce(ports, change_set, kick=True)


def _put_off(ports: Ports, slots: Sequence[Slot], refused: Refused | None = None) -> None:
    put_off(ports, slots, _is_meant, refused or {}, STOP_REFUSED)
