"""Boot health: the outcome of each boot, for the pool's launch back-off and the metrics."""

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
"""Reasons of an empty slot whose machine had disappeared."""


def note_failed_boot(work: UnitOfWork, pool: Pool | None, slot: Slot, what_happened: str) -> None:
    """Count a failed boot of this pool. From `unhealthy_after` in a row on, pause its launches for `error_cooldown`.

    A boot that was interrupted or drained does not count. `what_happened` follows the slot's name in the hold.
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
    """A machine of this pool became ready: set the count of failed boots in a row to 0."""
    known = _find_hold(work, slot.pool)
    if known is not None and known.streak:
        work.put(msgspec.structs.replace(known, streak=0, until=work.now))


def _find_hold(work: UnitOfWork, pool: str) -> Hold | None:
    """Return the pool's hold as this transaction has it, with its own changes."""
    name = hold_id(pool, "unhealthy")
    return work.holds.get(name) or work.transaction.load_holds([name]).get(name)


def count_boots(meter: Meter, change_set: ChangeSet) -> None:
    """Count the outcomes of boots, and machines that disappeared. Source: Arvados."""
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
    """Return the outcome of the boot that this event ended; None if it ended none."""
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
