"""Quota holds: a hold notes a pool's active slots at the refusal, and ends when fewer are active. Source: Arvados.

A tick finds by counting that a hold has ended. An operation that makes more slots of the pool active writes that end
first, so the hold stays ended.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.rules import Pool, Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.launch_limits import list_choices


def list_quota_holds(name: str, pool: Pool) -> list[str]:
    """Return the ids of the quota holds that a pool may have: one for each market of its offerings."""
    return sorted({hold_id(name, "quota", choice.market) for choice in list_choices(pool)})


def list_quota_holds_of(rules: Rules, pools: Iterable[str]) -> list[str]:
    """Return the ids of the quota holds of those of these pools that the rules list."""
    names = sorted(set(pools) & rules.pools.keys())
    return [each for name in names for each in list_quota_holds(name, rules.pools[name])]


def end_quota_holds(work: UnitOfWork, holds: Mapping[str, Hold]) -> None:
    """End each of these holds if fewer slots are active now than at its refusal. Call it before more
    slots become active.
    """
    lasting = [hold for hold in holds.values() if hold.kind == "quota" and hold.active and work.now < hold.until]
    active = {name: work.transaction.count_active(name) for name in {hold.pool for hold in lasting}}
    for hold in lasting:
        if active[hold.pool] < hold.active:
            work.put(msgspec.structs.replace(hold, until=work.now))


def discount_refused(work: UnitOfWork, refused: Slot, own: str, holds: Collection[Hold]) -> None:
    """Leave a refused launch out of the counts of other holds from refusals at the same time: it does not free quota.

    `own`: the hold that this refusal caused.
    """
    alike = [
        hold for hold in holds if hold.kind == "quota" and hold.id != own and _is_of_that_time(work, hold, refused)
    ]
    active = count_others(work, refused) if alike else 0
    for hold in alike:
        if active < hold.active:
            work.put(msgspec.structs.replace(hold, active=active))


def _is_of_that_time(work: UnitOfWork, hold: Hold, refused: Slot) -> bool:
    """Return whether the hold's refusal was at the same instant, or of a launch decided by the same tick."""
    return hold.refused_at == work.now or hold.decided_at == refused.since


def count_others(work: UnitOfWork, refused: Slot) -> int:
    """Return the number of the pool's active slots without the refused one."""
    active = work.transaction.count_active(refused.pool)
    return active - (refused.state not in INACTIVE)


def is_probe(hold: Hold, slot: Slot) -> bool:
    """Return whether the hold was over when the launch was decided. Only such a launch shows that the
    quota allows more.
    """
    return hold.until <= slot.since
