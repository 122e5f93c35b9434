"""One scheduling cycle as a pure function: the decisions that follow from the view, the rules and the time.

All steps take capacity from one `CycleState`, a scratch copy of the view, so that no capacity is assigned twice. No
step writes a row: `operations/tick/commit.py` checks each decision again on fresh rows and writes it.
"""

from functools import partial
from math import inf

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
from scheduler.policy.queueing.starvation_guard import find_next_protection
from scheduler.policy.quota.steady import SteadyPlan
from scheduler.policy.quota.step import charge
from scheduler.policy.replan.kept_cycle import keep_cycle
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
    known = cache.find_plan(view, rules, now)
    if known is None and rules.has_quota:
        known = cache.recall(SteadyPlan).find(view, rules, now, cache)
    if known is None:
        known = cache.go_on(rules, now)
    if known is not None:
        return known
    cycle = CycleState(view, rules, now, cache)
    unexpired = expire(cycle)  # reservations whose time is over end
    healed, failed_boots = heal(unexpired)  # lost, interrupted and stuck slots; restarts
    charged = charge(healed)  # quota accounts earn, and pay for the leases that ran
    queue = order(charged)  # the pending reservations in queue order
    limits = LaunchLimits(healed, failed_boots)  # the limits and back-offs that hold launches back
    unplaced = place(charged, queue, limits)  # leases on ready slots
    shortfall = launch(healed, unplaced, limits)  # slots for reservations that fit on nothing ready or in flight
    headroom = find_headroom(healed, shortfall, limits)  # launches that EC2's quota or max_slots withholds
    warm = fill_warm_pools(healed, headroom, limits)  # the minimum and the warm reserve of each pool
    tiered, to_stop = keep_tiers(warm, headroom, limits)  # stopped machines for faster starts
    scaled_in = scale_in(tiered, headroom, limits, to_stop)  # slots that were idle for too long
    replaced = replace(scaled_in, limits)  # machines that are too old, drifted or expensive
    roomy = make_headroom(replaced, headroom)  # unneeded slots end, so that withheld launches can run
    scaled = drain_over_budget(roomy)  # machines that a budget does not allow any more
    shared = share(scaled)  # the spare cores of each slot are shared among its leases
    wake_at = wake(shared, limits.next_end)  # when the next cycle is due
    outcome = cycle.finish(queue, wake_at)
    cache.offer(view, partial(keep_cycle, cycle, limits, outcome, view.revision))
    return _keep(cycle, outcome)


def _keep(cycle: CycleState, outcome: Plan) -> Plan:
    """Return the plan `outcome`. If it has no decisions, store it for the next cycle. The stored plan is valid until
    the next deadline, or until the starvation guard begins to protect a further reservation.
    """
    rules, now = cycle.rules, cycle.now
    next_protection = inf if outcome.decisions else find_next_protection(cycle.view, rules, now)
    if rules.has_quota:
        return cycle.cache.recall(SteadyPlan).keep(cycle, outcome, next_protection)
    return cycle.cache.keep(rules, now, outcome, next_protection)
