"""After an outage of the scheduler: holders could not renew and hosts could not be heard, so neither loses anything."""

import msgspec

from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import ENDED
from scheduler.model.view import View
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.cycle.deadlines import expiry_when_renewed
from scheduler.policy.lifecycle.timeouts import is_silent
from scheduler.ports import LeaderTerm


def forgive_outage(ports: Ports, view: View, rules: Rules, leader_term: LeaderTerm, now: float) -> None:
    """Give everything that fell due while no scheduler ran one more period, once: reservations their ttl, silent hosts
    their offline timeout. Sources: the autoscaler's tick, Orchard.

    The tick is noted in the same transaction, so a plan that fails afterwards does not make this outage count twice.
    The error is DeposedError when another process leads.
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
    """Return whether a host is silent now and was not at the last tick: a host lost before the outage stays lost."""
    pool = rules.pools.get(slot.pool)
    # promise: outage-fails-no-host
    return is_silent(slot, pool, now) and not is_silent(slot, pool, leader_term.ticked_at)
