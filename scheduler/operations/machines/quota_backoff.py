"""Quota holds: the active slots of a pool at a refusal, and the end of a hold because fewer are. Source: Arvados.

A tick finds out by counting that a hold has ended because fewer slots are active. What makes more slots of the pool
active afterwards writes that end down first: the hold stays ended.
"""

from collections.abc import Collection, Iterable, Mapping

import msgspec

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.rules import Pool, Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import INACTIVE
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.scaling.offerings import list_choices


def list_quota_holds(name: str, pool: Pool) -> list[str]:
    """The ids of the quota holds that a pool may have: one for each market of its offerings."""
    return sorted({hold_id(name, "quota", choice.market) for choice in list_choices(pool)})


def list_quota_holds_of(rules: Rules, pools: Iterable[str]) -> list[str]:
    """The same for several pools, as far as the rules list them."""
    names = sorted(set(pools) & rules.pools.keys())
    return [each for name in names for each in list_quota_holds(name, rules.pools[name])]


def end_quota_holds(work: UnitOfWork, holds: Mapping[str, Hold]) -> None:
    """End each of these holds that counts more active slots than its pool has, before more become active."""
    lasting = [hold for hold in holds.values() if hold.kind == "quota" and hold.active and work.now < hold.until]
    active = {name: work.transaction.count_active(name) for name in {hold.pool for hold in lasting}}
    for hold in lasting:
        if active[hold.pool] < hold.active:
            work.put(msgspec.structs.replace(hold, until=work.now))


def discount_refused(work: UnitOfWork, refused: Slot, own: str, holds: Collection[Hold]) -> None:
    """Leave a launch that was refused now, for whatever reason, out of the counts of the holds that launches refused
    at the same time have caused: it is no slot that went. `own`: the hold that it caused itself.
    """
    alike = [
        hold for hold in holds if hold.kind == "quota" and hold.id != own and _is_of_that_time(work, hold, refused)
    ]
    active = count_others(work, refused) if alike else 0
    for hold in alike:
        if active < hold.active:
            work.put(msgspec.structs.replace(hold, active=active))


def _is_of_that_time(work: UnitOfWork, hold: Hold, refused: Slot) -> bool:
    """Whether the launch was refused at the same instant, or was decided by the same tick."""
    return hold.refused_at == work.now or hold.decided_at == refused.since


def count_others(work: UnitOfWork, refused: Slot) -> int:
    """The pool's active slots without the one that was refused."""
    active = work.transaction.count_active(refused.pool)
    return active - (refused.state not in INACTIVE)


def is_probe(hold: Hold, slot: Slot) -> bool:
    """Whether the hold was over when the launch was decided. A launch that was decided together with the refused one,
    or before the refusal was known, says nothing about the quota.
    """
    return hold.until <= slot.since
