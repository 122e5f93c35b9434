"""After an outage of ours: nobody could renew or be heard, so nobody loses anything by it."""

import msgspec

from scheduler.model.moves import ENDED
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.view import View
from scheduler.operations.engine import Engine, announce
from scheduler.operations.ledger import Ledger
from scheduler.policy.timeouts import is_silent
from scheduler.policy.ttl import expiry_when_renewed
from scheduler.ports import Tenure


def forgive_outage(engine: Engine, view: View, rules: Rules, tenure: Tenure, now: float) -> None:
    """What fell due while no scheduler ran gets one more period, once: expiries their ttl, silent hosts their
    offline timeout. Sources: the autoscaler's tick, Orchard.

    That it was done is noted as a tick in the same transaction: a plan that fails afterwards makes no second
    outage of this one. Raises DeposedError when another leads.
    """
    overdue = [each.id for each in view.reservations.values() if _is_overdue(each, now)]
    silent = [each.id for each in view.slots.values() if _fell_silent(each, rules, tenure, now)]
    with engine.store.transaction() as transaction:
        transaction.note_tick(tenure, now)
        ledger = Ledger(transaction, "tick")
        ledger.load(reservations=overdue, slots=silent)
        for name in overdue:
            current = ledger.reservations.get(name)
            if current is not None and _is_overdue(current, now):
                expiry = expiry_when_renewed(current, rules, now)
                ledger.mark(msgspec.structs.replace(current, expires_at=expiry))
        for name in silent:
            slot = ledger.slots.get(name)
            if slot is not None and _fell_silent(slot, rules, tenure, now):
                ledger.mark(msgspec.structs.replace(slot, last_seen=now))
        outcome = ledger.flush()
    announce(engine, outcome, kick=False)
    for row in outcome.rows:
        view.apply(row)


def _is_overdue(reservation: Reservation, now: float) -> bool:
    due = reservation.expires_at
    return due is not None and now >= due and reservation.phase not in ENDED


def _fell_silent(slot: Slot, rules: Rules, tenure: Tenure, now: float) -> bool:
    """Whether it is silent now and was not yet when a tick last looked: an outage brings no dead host back."""
    pool = rules.pools.get(slot.pool)
    return is_silent(slot, pool, now) and not is_silent(slot, pool, tenure.ticked_at)  # promise: outage-fails-no-host
