"""The steps of a plan, in order, each with the function that finds the time until which it decides nothing.

`plan()` calls the steps. A kept cycle (`policy/replan`) calls the functions: before the earliest of these times a step
would decide nothing, so it is left out. `wake`, which collects these times, is not in the table.
"""

from collections.abc import Callable, Collection, Mapping
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from scheduler.policy.cycle.state import CycleState
from scheduler.policy.lifecycle.heal import heal, heal_due
from scheduler.policy.lifecycle.timers import expire, expire_due
from scheduler.policy.placement.cpu_bursting import share
from scheduler.policy.placement.place import place
from scheduler.policy.queueing.order import order
from scheduler.policy.quota.step import charge
from scheduler.policy.scaling.budgets import drain_over_budget, drain_over_budget_due
from scheduler.policy.scaling.headroom import find_headroom, make_headroom, make_headroom_due
from scheduler.policy.scaling.launch import Refusal, launch, launch_due
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.pool_size import (
    PoolSlots,
    fill_warm_pools,
    fill_warm_pools_due,
    keep_tiers,
    keep_tiers_due,
    scale_in,
    scale_in_due,
)
from scheduler.policy.scaling.replacement import replace, replace_due


class Kept(Protocol):
    """What a kept cycle knows when a step is asked until when it decides nothing."""

    cycle: CycleState
    limits: LaunchLimits
    pools: Mapping[str, PoolSlots]
    """Elastic pool -> its slots."""

    refusals: Collection[Refusal | None]
    """For each demand that waits: why nothing is launched for it; None: it gets a machine."""


class Step(NamedTuple):
    """One step of a plan. `due`: returns the time (seconds since the epoch) until which the step decides nothing, minus
    infinity if it may decide now. None: a kept cycle carries out the step itself in each tick.
    """

    run: Callable[..., Any]
    due: Callable[[Kept], float] | None


STEPS: Final = (
    Step(expire, lambda kept: expire_due(kept.cycle)),
    Step(heal, lambda kept: heal_due(kept.cycle)),
    Step(charge, None),
    Step(order, None),
    Step(place, None),
    Step(launch, lambda kept: launch_due(kept.refusals)),
    Step(find_headroom, lambda _: inf),  # it only counts
    Step(fill_warm_pools, lambda kept: fill_warm_pools_due(kept.pools, kept.limits)),
    Step(keep_tiers, lambda kept: keep_tiers_due(kept.pools)),
    Step(scale_in, lambda kept: scale_in_due(kept.pools)),
    Step(replace, lambda kept: replace_due(kept.cycle, kept.pools, kept.limits)),
    Step(make_headroom, lambda kept: make_headroom_due(kept.pools, list_withheld(kept))),
    Step(drain_over_budget, lambda kept: drain_over_budget_due(kept.cycle.rules)),
    Step(share, None),
)


def list_withheld(kept: Kept) -> set[str]:
    """Return the pools with launches that only `max_slots` or EC2's quota withholds."""
    withheld = (each for each in kept.refusals if each is not None and each.is_withheld)
    return {name for each in withheld for name in each.demand.pools}
