"""Boot health: failed boots in a row, which pause the launches of their pool."""

from typing import Final

import msgspec

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.rules import Pool
from scheduler.model.slots import Slot
from scheduler.operations.unit_of_work import UnitOfWork

BOOTING: Final = frozenset({"booting", "binding"})


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
