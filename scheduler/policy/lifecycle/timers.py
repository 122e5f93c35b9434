"""The first and the last step: end the reservations whose time is over, and find when the next cycle is due.

Source: the autoscaler's tick.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

from scheduler.model.decisions import (
    Assign,
    Cores,
    Decision,
    Drain,
    Expire,
    Fail,
    Launch,
    Preempt,
    Requeue,
    Restart,
    Revoke,
    Start,
    Stop,
    Terminate,
)
from scheduler.model.rules import Terms, expiry_of_pending
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.step_values import Shared, Unexpired
from scheduler.policy.lifecycle.heal import may_restart_again, wake_for_restart


def expire(cycle: CycleState) -> Unexpired:
    """End each pending or leased reservation with now >= `expires_at`.

    Its leases end in this cycle, so that `place` can give the slots to others. A reservation that expires is never
    assigned in the same cycle.
    """
    due, following = cycle.view.mortal.find_due(cycle.now)
    cycle.timers.add(following)
    for reservation in sorted(due, key=lambda each: each.sequence):
        cycle.decide(Expire(reservation=reservation.id))
        cycle.end(reservation)
    return Unexpired(cycle)


_MANY: Final = frozenset({Assign, Cores})
"""Frequent kinds of decisions, which `wake` does not examine: `Timers.lease_terms` covers assignments, and a limit of
cores has no deadline.
"""


_TOGETHER: Final = frozenset({Launch, Preempt})
"""Kinds of decisions that are examined together, because a cycle may have many of them."""


def wake(cycle: Shared, back_offs_end: float) -> float | None:
    """Return when the next cycle is due; None: at no time.

    This is the first of: the times that earlier steps added, the times at which a decision of this cycle makes a later
    one necessary, and the time at which postponed work may go on. `back_offs_end`: when the first launch back-off ends
    that prevented a launch in this cycle; infinity if none did.
    """
    cycle.timers.add(back_offs_end, cycle.turns.finish(cycle.now, decided=bool(cycle.decisions)))
    is_plain = _MANY.issuperset(map(type, cycle.decisions))
    others = [] if is_plain else [each for each in cycle.decisions if type(each) not in _MANY]
    for name in {each.pool for each in others if isinstance(each, Launch)}:
        _wake_after_timeout(cycle, cycle.rules.pools[name].launch_timeout)
    for decision in others:
        if type(decision) not in _TOGETHER:
            _wake_after(cycle, decision)
    _wake_after_preemptions(cycle, [each for each in others if isinstance(each, Preempt)])
    cycle.timers.add_ends_of_leases(cycle.rules)
    drained = [
        cycle.slot_infos[each.slot] for each in others if isinstance(each, Drain) and each.slot in cycle.slot_infos
    ]
    if any(slot_info.state == "draining" and not slot_info.leases for slot_info in (*drained, *cycle.list_restless())):
        cycle.timers.add(cycle.now)  # the next cycle ends the drain, also if the last lease ended in this one
    return None if cycle.timers.first == inf else cycle.timers.first


def _wake_after(cycle: CycleState, decision: Decision) -> None:
    match decision:
        case Requeue(revoke_by=None) | Restart():
            request = cycle.view.reservations[decision.reservation].request
            cycle.timers.add(expiry_of_pending(request, cycle.rules, cycle.now))
        case Revoke(revoke_by=float() as deadline):
            cycle.timers.add(deadline)
        case Fail():
            reservation = cycle.view.reservations[decision.reservation]
            if may_restart_again(reservation, cycle.rules):
                wake_for_restart(cycle, reservation)
        case Drain() if decision.slot in cycle.slot_infos and cycle.slot_infos[decision.slot].leases:
            _wake_after_timeout(cycle, cycle.slot_infos[decision.slot].pool.drain_timeout)
        case Start():
            _wake_after_timeout(cycle, cycle.rules.pools[decision.pool].boot_timeout)
        case Terminate() | Stop() if decision.slot in cycle.slot_infos:
            _wake_after_timeout(cycle, cycle.slot_infos[decision.slot].pool.terminating_timeout)
        case _:
            pass


def _wake_after_preemptions(cycle: CycleState, decisions: Sequence[Preempt]) -> None:
    for deadline in {each.revoke_by for each in decisions}:
        cycle.timers.add(cycle.now if deadline is None else deadline)
    requests = (cycle.view.reservations[victim].request for each in decisions for victim in each.victims)
    for terms in {Terms(each.ttl, each.pool, each.system) for each in requests}:
        cycle.timers.add(expiry_of_pending(terms, cycle.rules, cycle.now))


def _wake_after_timeout(cycle: CycleState, timeout: float) -> None:
    """Schedule a cycle for the end of a timeout that begins now. Nothing is scheduled for 0: the timeout is off, or the
    next cycle handles it in any case.
    """
    if timeout:
        cycle.timers.add(cycle.now + timeout)
