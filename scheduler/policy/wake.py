"""The last step, wake: when the decisions of this tick make something fall due.

What was there before the tick is noted by the steps that looked at it and found it not yet due.
"""

from collections.abc import Iterable

from scheduler.model.decisions import Assign, Decision, Fail, Launch, Preempt, Requeue, Restart, Terminate
from scheduler.model.reservations import Reservation
from scheduler.policy.draft import Draft
from scheduler.policy.heal import is_restart_due, may_restart_again
from scheduler.policy.ttl import expiry_of_lease, expiry_of_pending


def wake(draft: Draft) -> None:
    """Ask for a tick at each instant at which a decision of this one gives the next one something to do."""
    for decision in draft.decisions:
        if not isinstance(decision, Assign):
            _wake_after(draft, decision)
    for reservation in _list_leased(draft):
        _wake_for_lease(draft, reservation)
    if any(place.state == "draining" and not place.leases for place in draft.all_places()):
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
        case Fail():
            _wake_for_restart(draft, draft.view.reservations[decision.reservation])
        case Launch():
            _wake_after_timeout(draft, draft.places[decision.slot].pool.launch_timeout)
        case Terminate() if decision.slot in draft.places:
            _wake_after_timeout(draft, draft.places[decision.slot].pool.terminating_timeout)
        case _:
            pass


def _list_leased(draft: Draft) -> Iterable[Reservation]:
    """Those that this tick gives leases to, one for all whose time to live and settings are the same."""
    rows = draft.view.reservations
    leased = [rows[each.reservation] for each in draft.decisions if isinstance(each, Assign)]
    return {(each.request.ttl, each.request.pool, each.request.system): each for each in leased}.values()


def _wake_for_lease(draft: Draft, reservation: Reservation) -> None:
    """Its time ends, and its holder has to confirm it."""
    draft.wake_by(expiry_of_lease(reservation.request, draft.rules, draft.now))
    _wake_after_timeout(draft, draft.settings_of(reservation).confirm_timeout)


def _wake_after_timeout(draft: Draft, timeout: float) -> None:
    """A timeout of 0 is off, or due in whatever tick comes next: it asks for none."""
    if timeout:
        draft.wake_by(draft.now + timeout)


def _wake_for_restart(draft: Draft, reservation: Reservation) -> None:
    """The following tick restarts it, if it is its first time or its delay is over."""
    if may_restart_again(reservation, draft.rules) and is_restart_due(draft, reservation):
        draft.wake_by(draft.now)
