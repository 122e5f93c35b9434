"""The replacement of machines that are too old, differ from what their pool launches now (drift), or cost too much.

At most `disruption_budget` slots of a pool are replaced at a time. This step only ends machines. A new machine is
launched by a later cycle if a reservation, `min_slots` or `target_warm_slots` needs it. Source: Karpenter (expiration,
drift, consolidation and budgets).
"""

from collections.abc import Iterator, Mapping
from math import inf

from scheduler.model.decisions import Drain, SlotReason, Terminate
from scheduler.model.pools import Pool
from scheduler.model.slots import Market
from scheduler.policy.capacity.fits import fits
from scheduler.policy.capacity.slot_info import SlotInfo, find_life
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import Choice, count_mix, find_turn, list_choices, list_eligible
from scheduler.policy.scaling.pool_size import PoolSlots, count_slots

Due = tuple[SlotInfo, SlotReason]
"""(a slot whose machine is to be replaced, the reason)."""


def replace_due(cycle: CycleState, pools: Mapping[str, PoolSlots], limits: LaunchLimits) -> float:
    """Return when the first machine may be replaced. Minus infinity: one is replaced now; infinity: none is before a
    slot or lease changes.
    """
    first_end = _find_first_end(pools)
    if cycle.now < first_end:
        return first_end
    return -inf if list_replaceable(cycle, limits) else inf


def _find_first_end(pools: Mapping[str, PoolSlots]) -> float:
    """Return when a machine is first too old. Minus infinity: a machine has drifted, or a cheaper offering may replace
    one, which depends on leases.
    """
    with_rules = [each for each in pools.values() if each.pool.replacement.is_on]
    return min((-inf if each.pool.replacement.min_saving else each.first_end for each in with_rules), default=inf)


def replace(cycle: CycleState, limits: LaunchLimits) -> None:
    """Drain the ready slots that `list_replaceable` returns, and terminate the stopped ones.

    If there is such a slot, the next cycle is due at once, because it launches what the minimum or the warm reserve
    then lacks.
    """
    if cycle.timers.rests_until(_find_first_end(count_slots(cycle))):
        return
    for slot_info, reason in list_replaceable(cycle, limits):
        decide = Terminate if slot_info.state == "stopped" else Drain
        cycle.move_slot(slot_info, decide(slot=slot_info.slot.id, reason=reason))
        cycle.timers.add(cycle.now)


def list_replaceable(cycle: CycleState, limits: LaunchLimits) -> list[Due]:
    """Return the slots that are to be replaced now, within the disruption budget of each pool. Schedule a cycle for the
    time when the next machine is too old.

    Stopped slots that are too old or have drifted come first, whatever the budget: they have no leases and are no ready
    capacity. The budget limits the other slots: first ready slots that are too old or have drifted, then those that a
    cheaper offering can replace. Among the slots that are too old or have drifted, idle slots come before others, then
    the oldest machine, then slot order decides.
    """
    found: list[Due] = []
    for name, pool in cycle.rules.pools.items():
        if not (pool.is_elastic and pool.replacement.is_on):
            continue
        slot_infos = cycle.pools[name]
        due = sorted(_list_due(cycle, slot_infos, pool), key=_rank)
        stopped = [each for each in due if each[0].state == "stopped"]
        due = [each for each in due if each[0].state != "stopped"]
        under_way = _count_under_way(pool, slot_infos, len(stopped))
        free = pool.replacement.count_allowed(sum(each.is_active for each in slot_infos)) - under_way
        if free > len(due) and pool.replacement.min_saving:
            chosen = {slot_info.slot.id for slot_info, _ in due}
            due += _list_expensive(limits, [each for each in slot_infos if each.slot.id not in chosen], pool)
        found += [*stopped, *due[: max(0, free)]]
    return found


def _rank(due: Due) -> tuple[bool, float, int]:
    slot_info, _ = due
    launched_at = slot_info.slot.launched_at
    return (not slot_info.is_idle, slot_info.slot.since if launched_at is None else launched_at, slot_info.order)


def _count_under_way(pool: Pool, slot_infos: list[SlotInfo], stopped: int) -> int:
    """Return how many replacements of a pool are not over. This is the greatest of three numbers: the slots that are
    ending, the slots in flight that no reservation waits for, and the ready slots that the pool lacks to reach
    `min_slots`.

    `stopped`: how many stopped slots are to end in this cycle. The greatest number is taken so that a slot that ends
    and the slot that is launched in its place count once.
    """
    leaving = stopped + sum(each.state in {"draining", "terminating"} for each in slot_infos)
    coming = sum(each.is_coming and not each.wanted for each in slot_infos)
    ready = sum(each.state == "ready" and not each.slot.cordoned for each in slot_infos)
    return max(leaving, coming, pool.min_slots - ready)


def _list_due(cycle: CycleState, slot_infos: list[SlotInfo], pool: Pool) -> Iterator[Due]:
    """Yield the slots whose machine is too old or has drifted, and may be replaced now, each with the reason. Schedule
    a cycle for the earliest time at which another machine of these slots becomes too old.
    """
    next_end = inf
    for slot_info in slot_infos:
        is_stopped = slot_info.state == slot_info.slot.state == "stopped"
        if slot_info.state != "ready" and not is_stopped:
            continue
        has_drifted, end = find_life(slot_info, pool)
        if not has_drifted and not cycle.is_due(end):
            next_end = min(next_end, end)
        elif (is_stopped and not slot_info.slot.cordoned) or _may_leave(slot_info):
            yield slot_info, "drifted" if has_drifted else "aged"
    cycle.timers.add(next_end)


def _may_leave(slot_info: SlotInfo) -> bool:
    """Return whether a ready slot may be replaced in this cycle. There are three conditions: the slot is not cordoned;
    no unknown reservation runs on it; none of its leases begins in this cycle or is a claim.
    """
    may_leave = slot_info.takes_leases and not slot_info.wanted
    return may_leave and not any(lease.state == "claimed" for lease in slot_info.leases.values())


def _list_expensive(limits: LaunchLimits, slot_infos: list[SlotInfo], pool: Pool) -> Iterator[Due]:
    """Yield the idle slots that a cheaper offering can replace, in slot order, with the reason. `slot_infos`: the
    pool's slots that are not replaced for another reason.

    The offering must be one that the pool would launch if the slot was gone. It must have at least the slot's resources
    and the same labels, and save at least `min_saving` of the price. A slot or an offering without a price is not
    compared.
    """
    turns: tuple[Market | None, ...] = (None, "on-demand", "spot")
    choices, turn = list_choices(pool), turns[0]
    priced = {each: [choice for choice in list_eligible(choices, pool, each) if choice.price] for each in turns}
    mix = count_mix((each.state, each.market) for each in slot_infos) if pool.market.has_mix else None
    for slot_info in slot_infos:
        if not (slot_info.is_idle and slot_info.takes_leases and slot_info.price):
            continue
        most = slot_info.price * (1 - pool.replacement.min_saving)
        if mix is not None:
            mix.add(slot_info.market, -1)
            turn = find_turn(pool.market, mix)
        if any(choice.price <= most and _could_replace(limits, choice, slot_info) for choice in priced[turn]):
            yield slot_info, "consolidated"
        elif mix is not None:
            mix.add(slot_info.market)


def _could_replace(limits: LaunchLimits, choice: Choice, slot_info: SlotInfo) -> bool:
    name, held, offered = slot_info.slot.pool, slot_info.capacity, choice.capacity
    is_as_large = held is None if offered is None else held is not None and fits(held, offered)
    return (
        is_as_large
        and choice.labels == slot_info.labels
        and not limits.refusals.is_at_quota(name, choice.key, choice.market)
        and limits.lacks_only_slot(name, choice)
    )
