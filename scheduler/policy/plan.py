"""One scheduling cycle as a pure function: the decisions that follow from the view, the rules and the time.

All steps take capacity from one `CycleState`, a scratch copy of the view, so that no capacity is assigned twice. No
step writes a row: `operations/tick/commit.py` checks each decision again on fresh rows and writes it.
"""

from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.lifecycle.heal import heal
from scheduler.policy.lifecycle.timers import expire, wake
from scheduler.policy.placement.cpu_bursting import share
from scheduler.policy.placement.place import place
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.queueing.order import order
from scheduler.policy.quota.step import charge
from scheduler.policy.replan.kept_cycle import keep, plan_again
from scheduler.policy.scaling.budgets import drain_over_budget
from scheduler.policy.scaling.headroom import find_headroom, make_headroom
from scheduler.policy.scaling.launch import launch
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.pool_size import fill_warm_pools, keep_tiers, scale_in
from scheduler.policy.scaling.replacement import replace


def plan(view: View, rules: Rules, now: float, cache: PlanCache | None = None) -> Plan:
    """Return the plan of one cycle: the decisions in the order in which they were made, and why the other pending
    reservations wait.

    The same view, rules and `now` (seconds since the epoch) give the same plan, whatever the order of the view's rows.
    `cache`: facts that earlier plans of this view found and that are still valid (default: none). Source: the
    autoscaler's tick, with its order of steps.
    """
    cache = PlanCache() if cache is None else cache
    known = plan_again(view, rules, now, cache)
    if known is not None:
        return known
    cycle = CycleState(view, rules, now, cache)
    expire(cycle)  # reservations whose time is over end
    failed_boots = heal(cycle)  # lost, interrupted and stuck slots; restarts
    charge(cycle)  # quota accounts earn, and pay for the leases that ran
    queue = order(cycle)  # the pending reservations in queue order
    limits = LaunchLimits(cycle, failed_boots)  # the limits and back-offs that hold launches back
    unplaced = place(cycle, queue, limits)  # leases on ready slots
    shortfall = launch(cycle, unplaced, limits)  # slots for reservations that fit on nothing ready or in flight
    headroom = find_headroom(cycle, shortfall, limits)  # launches that EC2's quota or max_slots withholds
    fill_warm_pools(cycle, headroom, limits)  # the minimum and the warm reserve of each pool
    to_stop = keep_tiers(cycle, headroom, limits)  # stopped machines for faster starts
    scale_in(cycle, headroom, limits, to_stop)  # slots that were idle for too long
    replace(cycle, limits)  # machines that are too old, drifted or expensive
    make_headroom(cycle, headroom)  # unneeded slots end, so that withheld launches can run
    drain_over_budget(cycle)  # machines that a budget does not allow any more
    share(cycle)  # the spare cores of each slot are shared among its leases
    wake_at = wake(cycle, limits.next_end)  # when the next cycle is due
    return keep(cycle, limits, queue, wake_at)
