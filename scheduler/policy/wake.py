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
from scheduler.policy.draft import Draft
from scheduler.policy.heal import is_restart_due, may_restart_again
from scheduler.policy.ttl import Terms, expiry_of_lease, expiry_of_pending

_MANY: Final = frozenset({Assign, Cores})
"""Most decisions are of these kinds: what leases make fall due is noted for all at once, a limit of cores nothing."""


def wake(draft: Draft) -> None:
    """Ask for a tick at each instant at which a decision of this one gives the next one something to do."""
    is_plain = _MANY.issuperset(map(type, draft.decisions))
    others = [] if is_plain else [each for each in draft.decisions if type(each) not in _MANY]
    for name in {each.pool for each in others if isinstance(each, Launch)}:
        _wake_after_timeout(draft, draft.rules.pools[name].launch_timeout)
    for decision in others:
        if type(decision) is not Launch:
            _wake_after(draft, decision)
    for terms in draft.terms:
        _wake_for_lease(draft, terms)
    drained = [draft.places[each.slot] for each in others if isinstance(each, Drain) and each.slot in draft.places]
    if any(place.state == "draining" and not place.leases for place in (*drained, *draft.list_restless())):
        draft.wake_by(draft.now)  # the following tick lets it go, also where its last lease ended in this one


def _wake_after(draft: Draft, decision: Decision) -> None:
    match decision:
        case Requeue(revoke_by=None) | Restart():
            request = draft.view.reservations[decision.reservation].request
            draft.wake_by(expiry_of_pending(request, draft.rules, draft.now))
        case Preempt():
            draft.wake_by(draft.now if decision.revoke_by is None else decision.revoke_by)
            for victim in decision.victims:
                draft.wake_by(expiry_of_pending(draft.view.reservations[victim].request, draft.rules, draft.now))
        case Revoke(revoke_by=float() as deadline):
            draft.wake_by(deadline)
        case Fail():
            _wake_for_restart(draft, draft.view.reservations[decision.reservation])
        case Drain() if decision.slot in draft.places and draft.places[decision.slot].leases:
            _wake_after_timeout(draft, draft.places[decision.slot].pool.drain_timeout)
        case Terminate() if decision.slot in draft.places:
            _wake_after_timeout(draft, draft.places[decision.slot].pool.terminating_timeout)
        case _:
            pass


def _wake_for_lease(draft: Draft, terms: Terms) -> None:
    """Its time ends, and its holder has to confirm it."""
    draft.wake_by(expiry_of_lease(terms, draft.rules, draft.now))
    _wake_after_timeout(draft, draft.rules.settings_of(terms.pool, terms.system).confirm_timeout)


def _wake_after_timeout(draft: Draft, timeout: float) -> None:
    """A timeout of 0 is off, or due in whatever tick comes next: it asks for none."""
    if timeout:
        draft.wake_by(draft.now + timeout)


def _wake_for_restart(draft: Draft, reservation: Reservation) -> None:
    """The following tick restarts it, if it is its first time or its delay is over."""
    if may_restart_again(reservation, draft.rules) and is_restart_due(draft, reservation):
        draft.wake_by(draft.now)
