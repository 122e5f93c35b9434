"""The last step, wake: when the decisions of this tick make something fall due.

What was there before the tick is noted by the steps that looked at it and found it not yet due.
"""

from typing import Final

from scheduler.model.decisions import (
    Assign,
    Cores,
    Decision,
    Drain,
    Fail,
    Launch,
    Preempt,
    Requeue,
    Restart,
    Revoke,
    Terminate,
)
from scheduler.model.reservations import Reservation
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.ttl import Terms, expiry_of_lease, expiry_of_pending
from scheduler.policy.lifecycle.heal import is_restart_due, may_restart_again

_MANY: Final = frozenset({Assign, Cores})
"""Most decisions are of these kinds: what leases make fall due is noted for all at once, a limit of cores nothing."""


def wake(cycle: CycleState) -> None:
    """Ask for a tick at each instant at which a decision of this one gives the next one something to do."""
    is_plain = _MANY.issuperset(map(type, cycle.decisions))
    others = [] if is_plain else [each for each in cycle.decisions if type(each) not in _MANY]
    for name in {each.pool for each in others if isinstance(each, Launch)}:
        _wake_after_timeout(cycle, cycle.rules.pools[name].launch_timeout)
    for decision in others:
        if type(decision) is not Launch:
            _wake_after(cycle, decision)
    for terms in cycle.terms:
        _wake_for_lease(cycle, terms)
    drained = [
        cycle.slot_infos[each.slot] for each in others if isinstance(each, Drain) and each.slot in cycle.slot_infos
    ]
    if any(slot_info.state == "draining" and not slot_info.leases for slot_info in (*drained, *cycle.list_restless())):
        cycle.wake_by(cycle.now)  # the following tick lets it go, also where its last lease ended in this one


def _wake_after(cycle: CycleState, decision: Decision) -> None:
    match decision:
        case Requeue(revoke_by=None) | Restart():
            request = cycle.view.reservations[decision.reservation].request
            cycle.wake_by(expiry_of_pending(request, cycle.rules, cycle.now))
        case Preempt():
            cycle.wake_by(cycle.now if decision.revoke_by is None else decision.revoke_by)
            for victim in decision.victims:
                cycle.wake_by(expiry_of_pending(cycle.view.reservations[victim].request, cycle.rules, cycle.now))
        case Revoke(revoke_by=float() as deadline):
            cycle.wake_by(deadline)
        case Fail():
            _wake_for_restart(cycle, cycle.view.reservations[decision.reservation])
        case Drain() if decision.slot in cycle.slot_infos and cycle.slot_infos[decision.slot].leases:
            _wake_after_timeout(cycle, cycle.slot_infos[decision.slot].pool.drain_timeout)
        case Terminate() if decision.slot in cycle.slot_infos:
            _wake_after_timeout(cycle, cycle.slot_infos[decision.slot].pool.terminating_timeout)
        case _:
            pass


def _wake_for_lease(cycle: CycleState, terms: Terms) -> None:
    """Its time ends, and its holder has to confirm it."""
    cycle.wake_by(expiry_of_lease(terms, cycle.rules, cycle.now))
    _wake_after_timeout(cycle, cycle.rules.settings_of(terms.pool, terms.system).confirm_timeout)


def _wake_after_timeout(cycle: CycleState, timeout: float) -> None:
    """A timeout of 0 is off, or due in whatever tick comes next: it asks for none."""
    if timeout:
        cycle.wake_by(cycle.now + timeout)


def _wake_for_restart(cycle: CycleState, reservation: Reservation) -> None:
    """The following tick restarts it, if it is its first time or its delay is over."""
    if may_restart_again(reservation, cycle.rules) and is_restart_due(cycle, reservation):
        cycle.wake_by(cycle.now)
