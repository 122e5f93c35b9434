"""The state of a scheduling cycle after a plan: its slots with the leases and launches of the plan. Conditions can be
tested on the capacity that is left.
"""

from scheduler.model.decisions import Assign, Grant, Launch, Placement, Plan
from scheduler.model.resources import subtract
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.lifecycle.heal import heal
from scheduler.policy.lifecycle.timers import expire
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.quota.step import charge
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import list_choices


def replay(view: View, rules: Rules, now: float, planned: Plan) -> tuple[CycleState, LaunchLimits]:
    """Return two things: (1) the state of a cycle after its repairs and charges, with the leases that the plan
    `planned` assigns and grants; (2) the limits on launches in this cycle, with the launches that the plan makes for
    reservations.
    """
    cache = PlanCache()
    cache.follow(view)
    cycle = CycleState(view, rules, now, cache)
    expire(cycle)
    failed_boots = heal(cycle)
    charge(cycle)
    for decision in planned.decisions:
        if isinstance(decision, Assign):
            for each in decision.leases:
                _take(cycle, each)
        elif isinstance(decision, Grant):
            _take(cycle, Placement(decision.component, decision.slot, decision.epoch, decision.resources))
    cycle.open_indexes()
    limits = LaunchLimits(cycle, failed_boots)
    for decision in planned.decisions:
        if isinstance(decision, Launch) and decision.reason == "demand":
            [choice] = [each for each in list_choices(rules.pools[decision.pool]) if each.key == decision.offering]
            limits.launch(decision.pool, choice, "demand", decision.account)
    return cycle, limits


def _take(cycle: CycleState, placement: Placement) -> None:
    slot_info = cycle.slot_infos.get(placement.slot)
    if slot_info is not None:
        slot_info.given += 1
        slot_info.free = None if slot_info.free is None else subtract(slot_info.free, placement.resources)
