"""One tick, as a page of prose: what is, what is due, who goes where, and what machines that takes.

Every step sees what the steps before it decided, because all of them spend from one draft: a scratch copy of
the view. Nothing is given out twice within a tick, and nothing is written: carrying the plan out is
`operations/tick/commit.py`'s, and each decision is looked at again there, on fresh rows.
"""

from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.lifecycle.expire import expire
from scheduler.policy.lifecycle.heal import heal
from scheduler.policy.lifecycle.timers import wake
from scheduler.policy.placement.cpu_bursting import share
from scheduler.policy.placement.place import place
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.queueing.order import order
from scheduler.policy.quota.charge import charge
from scheduler.policy.scaling.launch import launch, launch_for_elastic
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.make_headroom import count_withheld, release
from scheduler.policy.scaling.scale_in import shrink
from scheduler.policy.scaling.warm_pool import keep


def plan(view: View, rules: Rules, now: float, cache: PlanCache | None = None) -> Plan:
    """The decisions of one tick, in the order in which they were made, and why the others wait.

    The same view, rules and now (seconds) give the same plan, in whatever order the view's rows came.
    Source: the autoscaler's tick; its order is kept.
    """
    cache = PlanCache() if cache is None else cache
    cache.follow(view)
    known = cache.find_plan(rules, now)
    if known is not None:
        return known
    cycle = CycleState(view, rules, now, cache)
    expire(cycle)  # reservations whose time is over give back what they hold
    heal(cycle)  # interrupted, lost and stuck slots; restarts that are due
    charge(cycle)  # quota accounts earn, and pay for what ran
    queue = order(cycle)  # who waits, the first one first
    limits = LaunchLimits(cycle)  # what keeps launches back: max_slots and holds
    unplaced = place(cycle, queue, limits)  # leases on what is ready
    launch(cycle, unplaced, limits)  # machines for those who found no room, less what is on its way
    launch_for_elastic(cycle, limits)  # the same for those who could use more, where their pool says so
    count_withheld(cycle, limits)  # whom quota or max_slots keep from a launch
    keep(cycle, limits)  # the minimum and the warm reserve of each pool
    shrink(cycle)  # what has been idle for too long
    release(cycle)  # what is unneeded, where quota or max_slots keeps back a launch
    share(cycle)  # the spare cores of each slot among those who are on it by now
    wake(cycle)  # what all this makes fall due, and when
    return cache.keep(view, rules, now, cycle.finish(queue))
