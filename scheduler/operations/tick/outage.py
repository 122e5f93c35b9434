"""After an outage of ours: nobody could renew or be heard, so nobody loses anything by it."""

import msgspec

from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED
from scheduler.model.view import View
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.cycle.ttl import expiry_when_renewed
from scheduler.policy.lifecycle.timeouts import is_silent
from scheduler.ports import LeaderTerm


def forgive_outage(ports: Ports, view: View, rules: Rules, leader_term: LeaderTerm, now: float) -> None:
    """What fell due while no scheduler ran gets one more period, once: expiries their ttl, silent hosts their
    offline timeout. Sources: the autoscaler's tick, Orchard.

    That it was done is noted as a tick in the same transaction: a plan that fails afterwards makes no second
    outage of this one. Raises DeposedError when another leads.
    """
    overdue = [each.id for each in view.reservations.values() if _is_overdue(each, now)]
    silent = [each.id for each in view.slots.values() if _fell_silent(each, rules, leader_term, now)]
    with ports.store.transaction() as transaction:
        transaction.note_tick(leader_term, now)
        work = UnitOfWork(transaction, "tick")
        work.load(reservations=overdue, slots=silent)
        for name in overdue:
            current = work.reservations.get(name)
            if current is not None and _is_overdue(current, now):
                expiry = expiry_when_renewed(current, rules, now)
                work.mark(msgspec.structs.replace(current, expires_at=expiry))
        for name in silent:
            slot = work.slots.get(name)
            if slot is not None and _fell_silent(slot, rules, leader_term, now):
                work.mark(msgspec.structs.replace(slot, last_seen=now))
        change_set = work.flush()
    announce(ports, change_set, kick=False)
    for row in change_set.rows:
        view.apply(row)


def _is_overdue(reservation: Reservation, now: float) -> bool:
    due = reservation.expires_at
    return due is not None and now >= due and reservation.phase not in ENDED


def _fell_silent(slot: Slot, rules: Rules, leader_term: LeaderTerm, now: float) -> bool:
    """Whether it is silent now and was not yet when a tick last looked: an outage brings no dead host back."""
    pool = rules.pools.get(slot.pool)
    return is_silent(slot, pool, now) and not is_silent(
        slot, pool, leader_term.ticked_at
    )  # promise: outage-fails-no-host
