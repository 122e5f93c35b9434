"""Terminate: end the EC2 machines of slots. A termination is for one epoch of a slot, and is ignored if the slot has a
later epoch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from scheduler.model.costs import HOUR
from scheduler.model.launch_backoff import hold_id
from scheduler.model.slots import Slot
from scheduler.operations.machines.holds import MOST_DELAY
from scheduler.operations.machines.joining import add_join_token
from scheduler.operations.machines.launch import MOST_ATTEMPTS, end_batch, is_put_off
from scheduler.operations.machines.unbound import end_unbound, find_accounts
from scheduler.operations.machines.work import END_REFUSED, Refused, check_soon, put_off
from scheduler.operations.ports import Ports, announce, cloud_work
from scheduler.ports import INTERRUPTION_SECONDS, UNCLEAR, UNHEARD, CloudError, ViewUnavailableError

SPARED_SECONDS: Final = 60.0
"""Seconds after the deadline of an interruption until which the end of the machine is left to EC2."""


def terminate(ports: Ports, slot_id: str, epoch: int, *, spares: bool = True) -> str:
    """Terminate the machine of a slot. Return the outcome as one word, for logs and metrics. The slot becomes empty
    later, when EC2 reports that the machine is gone.

    If the slot has no instance id, its launch may be under way, and the machine is searched by its launch id. If none
    is found (it may be too young to be listed), the stored launch request is sent again, and its answer decides. If the
    slot was launched in a batch, by one request for several slots, the answer to this request is recorded first. If EC2
    refuses the termination, the slot stays `terminating` with EC2's answer, and `recover` repeats the call with growing
    delays and without a limit, because a running machine costs money.
    """
    return next(iter(terminate_all(ports, [(slot_id, epoch)], spares=spares).values()))


def terminate_all(ports: Ports, wanted: Sequence[tuple[str, int]], *, spares: bool = True) -> dict[str, str]:
    """Terminate the machines of these slots, given as (slot, epoch), by few calls of the cloud. Return for each slot
    the outcome as one word, for logs and metrics. Each slot is treated as by `terminate`.

    `spares`: leave the end of an interrupted machine to EC2 while that is free, see `list_spared`.

    Machines whose instance ids are known are terminated by one call; those that the cloud refused before, by a second
    one.
    """
    found = {slot.id: slot for slot in ports.store.find_slots(ids=[name for name, _ in wanted])}
    now = ports.store.now()
    spared = list_spared(ports, found.values(), now) if spares else set()
    outcomes: dict[str, str] = {}
    due: list[Slot] = []
    for name, epoch in wanted:
        slot = found.get(name)
        if slot is None or slot.state != "terminating" or slot.epoch != epoch:  # promise: epoch-of-termination
            outcomes[name] = "not_wanted"
        elif is_put_off(slot, now) or name in spared:
            outcomes[name] = "not_due"
        else:
            due.append(slot)
    machines: dict[str, str] = {}
    # Batch → the error of the call that was to settle it. The other slots of the batch make no call of their own.
    unclear: dict[str, CloudError] = {}
    for slot in due:
        try:
            if slot.batch in unclear and slot.instance_id is None:
                raise unclear[slot.batch]
            if machine := slot.instance_id or _find_launched(ports, slot):
                machines[slot.id] = machine
            else:
                _write(ports, slot, instance_id=None)
                outcomes[slot.id] = "empty"
        except CloudError as error:
            if slot.batch is not None:
                unclear[slot.batch] = error
            _put_off(ports, [slot])
            outcomes[slot.id] = error.category
    return outcomes | _end(ports, [slot for slot in due if slot.id in machines], machines)


def list_spared(ports: Ports, slots: Iterable[Slot], now: float) -> set[str]:
    """Return the ids of the terminating slots whose machines EC2 ends soon without charging for them. Their calls wait
    until SPARED_SECONDS after the deadline of the interruption, unless a reservation waits for the place of the slot
    (`at_max_slots`). Then the call is made at once.
    """
    ends = [slot for slot in slots if slot.state == "terminating" and _ends_free(slot, now)]
    if not ends:
        return set()
    try:
        waits = bool(ports.view_cache.read_report().get("codes", {}).get("at_max_slots"))
    except ViewUnavailableError:
        waits = True
    if not waits:
        return {slot.id for slot in ends}
    rules = ports.rules_at(now).rules
    if any(each.max_slots for each in (rules.scheduler, *rules.scheduler.system.values())):
        return set()  # a limit of several pools: any of their slots may make room
    names = {slot.pool for slot in ends}
    with ports.store.transaction() as transaction:
        strangers = transaction.load_holds([hold_id(name, "strangers") for name in sorted(names)])
        active = Counter({name: transaction.count_active(name) for name in names})
        active.update({hold.pool: hold.active for hold in strangers.values()})
    limits = {name: pool.max_slots for name in names if (pool := rules.pools.get(name)) is not None}
    return {slot.id for slot in ends if (most := limits.get(slot.pool)) is None or active[slot.pool] < most}


def _ends_free(slot: Slot, now: float) -> bool:
    """Return whether EC2 will end this machine within its first hour because of an interruption, which is free, while
    an end by a call is charged.

    The time since the notice counts, too: if the clock was set back, the call does not wait for longer. Source: EC2
    user guide, "Billing for interrupted Spot Instances".
    """
    if slot.market != "spot" or slot.instance_id is None or slot.launched_at is None:
        return False
    if slot.interrupted_at is None or slot.interrupted_by is None or slot.interrupted_by >= slot.launched_at + HOUR:
        return False
    deadline = min(slot.interrupted_by, slot.interrupted_at + INTERRUPTION_SECONDS)
    return slot.interrupted_at <= now < deadline + SPARED_SECONDS


def _end(ports: Ports, slots: Sequence[Slot], machines: Mapping[str, str]) -> dict[str, str]:
    """Terminate the machines of these slots, and store the instance ids that the slots lacked. `machines`: slot id ->
    instance id. Return the outcome by slot id.

    Machines that the cloud refused before have a call of their own, because it may refuse others with them.
    """
    outcomes: dict[str, str] = {}
    for is_repeated in (False, True):
        if group := [slot for slot in slots if (slot.refusal is not None) == is_repeated]:
            outcomes |= _call_cloud(ports, group, machines)
    return outcomes


def _call_cloud(ports: Ports, slots: Sequence[Slot], machines: Mapping[str, str]) -> dict[str, str]:
    try:
        answer = ports.fleet.terminate([machines[slot.id] for slot in slots])
    except CloudError as error:
        _put_off(ports, slots)
        return {slot.id: error.category for slot in slots}
    errors = {slot.id: answer[machines[slot.id]] for slot in slots if machines[slot.id] in answer}
    # The rest of a call that broke off was not refused.
    refused = {name: error for name, error in errors.items() if error.may_concern_one}
    _put_off(ports, [slot for slot in slots if slot.id in errors], refused)
    accepted = [slot for slot in slots if slot.id not in errors]
    for slot in accepted:
        if slot.instance_id != machines[slot.id] or slot.refusal is not None:
            _write(ports, slot, instance_id=machines[slot.id])
    if accepted:
        meant = {slot.id: slot for slot in accepted}
        with ports.store.transaction() as transaction:
            transaction.mark(
                [
                    msgspec.structs.replace(current, not_before=transaction.now() + MOST_DELAY)
                    for name, current in transaction.load_slots(meant).items()
                    if _is_meant(current, meant[name])
                ]
            )
        check_soon(ports, [slot.id for slot in accepted])
    return {slot.id: errors[slot.id].category if slot.id in errors else "asked" for slot in slots}


def _put_off(ports: Ports, slots: Sequence[Slot], refused: Refused | None = None) -> None:
    put_off(ports, slots, _is_meant, refused or {}, END_REFUSED)


def _find_launched(ports: Ports, slot: Slot) -> str | None:
    """Return the instance id of the machine that the launch of a slot made. Return None if it made none, or if no
    machine of its batch was given to this slot. Raises CloudError while this is unknown.

    The machine is searched by its tag. If none is found, it may be too young to be listed: the launch request is sent
    again, and after a refusal the machine is searched once more. After `MOST_ATTEMPTS` tries only the search counts,
    and later the request is not sent again. If a machine appears later, the sweep for machines without a slot
    terminates it.
    """
    if slot.batch is not None:
        end_batch(ports, slot.batch, tries=slot.attempts)
        return None
    if slot.launch_id is None or slot.launch_request is None:
        return None
    found = ports.fleet.find_launched(slot.launch_request)
    if not found and slot.attempts <= MOST_ATTEMPTS:
        try:
            found = list(ports.fleet.launch(add_join_token(ports.store, slot.launch_request)).machines)
        except CloudError as error:
            if error.category in UNCLEAR | UNHEARD and slot.attempts < MOST_ATTEMPTS:
                raise
        found = found or ports.fleet.find_launched(slot.launch_request)
    end_unbound(ports, ports.rules(), found[1:], find_accounts([slot]))
    return found[0].id if found else None


def _is_meant(current: Slot | None, slot: Slot) -> bool:
    return current is not None and (current.state, current.epoch) == ("terminating", slot.epoch)


def _write(ports: Ports, slot: Slot, *, instance_id: str | None) -> None:
    """Store on a terminating slot the machine that its launch has made, and that the cloud ends it now. `instance_id`
    None: the launch made no machine, so the slot becomes empty.
    """
    with cloud_work(ports) as work:
        current = work.transaction.load_slots([slot.id]).get(slot.id)
        if current is not None and _is_meant(current, slot) and instance_id is None:
            work.move_slot(current, "empty", reason="never_launched")
        elif current is not None and _is_meant(current, slot):
            seen = work.now if current.instance_id is None else current.last_seen
            work.put(msgspec.structs.replace(current, instance_id=instance_id, last_seen=seen, refusal=None))
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)
