"""Start: start the machines of slots that leave the stopped tier of their pool."""

from collections import Counter
from collections.abc import Sequence
from itertools import groupby

from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.operations.machines.launch import UNHEARD, note_refusal
from scheduler.operations.machines.power import (
    Refused,
    call_cloud,
    give_up,
    is_meant,
    list_due,
    note_called,
    put_off,
)
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError


def start_all(ports: Ports, wanted: Sequence[tuple[str, int]]) -> dict[str, str]:
    """Start the machines of these slots, given as (slot, epoch), by one call for each offering and zone. Return the
    outcome for each slot as one word.

    A machine whose type differs from that of the slot's offering is changed to it before. After a refusal for capacity,
    quota, throttling or permissions the slot is stopped again, launches and starts of the offering, market or pool are
    paused as after a refused launch, and a tick plans the demand again. A machine that cannot be started for another
    reason is terminated. After an unclear error the call is repeated; `boot_timeout` limits the time.
    """
    rules = ports.rules()
    slots, outcomes = list_due(ports, wanted, "start")
    for _, group in groupby(sorted(slots, key=_find_place), key=_find_place):
        alike = list(group)
        try:
            done, refused = _start(ports, rules, alike)
        except CloudError as error:
            # After an unclear attempt such an error does not show that the machines are still stopped.
            if error.category not in UNHEARD or any(slot.attempts for slot in alike):
                put_off(ports, alike)
                outcomes |= {slot.id: error.category for slot in alike}
                continue
            done, refused = [], {slot.id: error for slot in alike}
        note_called(ports, done)
        _return(ports, rules, alike, {name: error for name, error in refused.items() if _is_pause(error)})
        give_up(ports, alike, {name: error for name, error in refused.items() if not _is_pause(error)}, "started")
        outcomes |= {slot.id: "asked" for slot in done} | {name: error.category for name, error in refused.items()}
        _count(ports, alike, outcomes)
    return outcomes


def _find_place(slot: Slot) -> tuple[str, str, str]:
    return slot.pool, slot.offering or "", slot.zone or ""


def _is_pause(error: CloudError) -> bool:
    return error.category != "misconfigured"


def _start(ports: Ports, rules: Rules, slots: Sequence[Slot]) -> tuple[list[Slot], Refused]:
    """Start the machines of these slots, which have one offering. Return the started ones and the refusals."""
    pool = rules.pools.get(slots[0].pool)
    offering = pool.offering_by_key.get(slots[0].offering or "") if pool is not None else None
    refused: Refused = {}
    for slot in slots:
        known = slot.instance_type
        if offering is not None and slot.instance_id and known is not None and known != offering.instance_type:
            try:
                ports.fleet.resize(slot.instance_id, offering.instance_type)
            except CloudError as error:
                if error.category != "misconfigured":
                    raise
                refused[slot.id] = error
    done, more = call_cloud(ports.fleet.start, [slot for slot in slots if slot.id not in refused])
    return done, refused | more


@repeated_if_overtaken
def _return(ports: Ports, rules: Rules, slots: Sequence[Slot], refused: Refused) -> None:
    """Let slots whose machines the cloud did not start be stopped again, and pause launches and starts like theirs."""
    if not refused:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        meant = {slot.id: slot for slot in slots if slot.id in refused}
        work.slots = transaction.load_slots(meant)
        for name, current in list(work.slots.items()):
            if not is_meant(current, meant[name]):
                continue
            error, pool = refused[name], rules.pools.get(current.pool)
            reason = f"{error.category}: {error.code}"
            work.move_slot(current, "stopped", reason=reason, power=None, launched_for=None, attempts=0)
            if pool is not None:
                note_refusal(work, pool, current, error.category, refused=0)
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.turned_slots)


def _count(ports: Ports, slots: Sequence[Slot], outcomes: dict[str, str]) -> None:
    results = Counter("success" if outcomes[slot.id] == "asked" else outcomes[slot.id] for slot in slots)
    for result, count in results.items():
        labels = {"pool": slots[0].pool, "offering": slots[0].offering or "", "result": result}
        ports.meter.count("leasehold_starts_total", labels, count)
