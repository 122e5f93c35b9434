"""Boots: what became of each machine between its launch and its first service, for the pool's health and metrics."""

from typing import Final

import msgspec

from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.rules import Pool
from scheduler.model.slots import Slot
from scheduler.operations.unit_of_work import ChangeSet, UnitOfWork
from scheduler.ports import Meter

BOOTING: Final = frozenset({"booting", "binding"})
LOST: Final = frozenset({"gone", "lost"})
"""Reasons of a slot that is empty because its machine was not there any more."""


def note_failed_boot(work: UnitOfWork, pool: Pool | None, slot: Slot, what_happened: str) -> None:
    """One more boot of this pool failed; from `unhealthy_after` in a row on, launches rest for `error_cooldown`.

    A boot that was not meant to succeed (interrupted, drained) is none. `what_happened` follows the slot's name.
    """
    if pool is None or not pool.unhealthy_after or slot.interrupted_at is not None or slot.drain_reason:
        return
    known = _find_hold(work, slot.pool)
    streak = known.streak + 1 if known else 1
    is_enough = streak >= pool.unhealthy_after
    work.put(
        Hold(
            version=known.version if known else 0,
            id=hold_id(slot.pool, "unhealthy"),
            pool=slot.pool,
            kind="unhealthy",
            subject=f"{slot.id} {what_happened}",
            refused_at=work.now,
            until=work.now + pool.error_cooldown if is_enough else work.now,
            streak=streak,
        )
    )


def note_good_boot(work: UnitOfWork, slot: Slot) -> None:
    """A machine of this pool turned ready: boots that failed before it are no longer in a row."""
    known = _find_hold(work, slot.pool)
    if known is not None and known.streak:
        work.put(msgspec.structs.replace(known, streak=0, until=work.now))


def _find_hold(work: UnitOfWork, pool: str) -> Hold | None:
    """The row as this transaction has it, also when it was changed a moment ago."""
    name = hold_id(pool, "unhealthy")
    return work.holds.get(name) or work.transaction.load_holds([name]).get(name)


def count_boots(meter: Meter, change_set: ChangeSet) -> None:
    """Add what became of boots, and machines that disappeared, to the metrics. Source: Arvados."""
    for event in change_set.events:
        slot = change_set.slots.get(event.slot or "")
        state = str(event.detail.get("from", ""))
        if slot is None:
            continue
        if (ended := _outcome_of(event, state)) is not None:
            meter.count("leasehold_boot_outcomes_total", {"pool": slot.pool, "outcome": ended})
        if event.name == "slot_empty" and state != "terminating" and event.detail.get("reason") in LOST:
            meter.count("leasehold_slot_disappeared_total", {"state": state})


def _outcome_of(event: Event, state: str) -> str | None:
    """How a boot ended by this event; None when none did."""
    if state not in BOOTING:
        return None
    match event.name:
        case "slot_ready":
            return "success"
        case "slot_terminating":
            return "failure" if event.detail.get("reason") == "timeout" else "aborted"
        case "slot_empty":
            return "disappeared"
        case _:
            return None
