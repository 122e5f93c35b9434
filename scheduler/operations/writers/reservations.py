"""Writes decisions about reservations, after testing each on the current rows."""

import msgspec

from scheduler.model.decisions import Assign, Expire, Fail, Requeue, Restart
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules, SchedulerKeys
from scheduler.model.transitions import ENDED
from scheduler.operations.ending_leases import (
    drop_claims,
    end_failed,
    end_reservation,
    note_unconfirmed,
    return_to_queue,
)
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.leases import LeaseWriter
from scheduler.policy.lifecycle.timeouts import is_silent


class ReservationWriter:
    """One method for each kind of decision: it returns None if the decision was written, else why it was skipped."""

    def __init__(self, work: UnitOfWork, rules: Rules) -> None:
        self.work, self.rules, self.now = work, rules, work.now
        self._leases = LeaseWriter(work, rules)

    def write(self, decision: Expire | Fail | Requeue | Restart | Assign) -> str | None:
        """Test one decision on the current rows and write it; return why it was skipped, or None."""
        current = self.work.reservations.get(decision.reservation)
        if current is None:
            return "the reservation is gone"
        match decision:
            case Expire():
                return self._expire(current, decision)
            case Fail():
                return self._fail(current, decision)
            case Requeue():
                return self._requeue(current, decision)
            case Restart():
                return self._restart(current, decision)
            case Assign():
                return self._assign(current, decision)

    def _expire(self, current: Reservation, decision: Expire) -> str | None:
        if current.phase in ENDED:
            return f"it is {current.phase} already"
        if current.expires_at is None or self.now < current.expires_at:
            return "it was renewed"
        end_reservation(self.work, self.rules, current, "expired", decision.reason)
        return None

    def _fail(self, current: Reservation, decision: Fail) -> str | None:
        if current.phase != "leased":
            return f"it is {current.phase}"
        if not self._has_lost(current, decision.reason):
            return "its slots are there"
        if decision.reason == "unconfirmed":
            note_unconfirmed(self.work, current)
        died = [lease.component for lease in current.leases if self._leases.is_lost(lease, decision.reason)]
        end_failed(self.work, self.rules, current, decision.reason, died)
        return None

    def _has_lost(self, current: Reservation, reason: str) -> bool:
        """Return whether an essential slot is still lost for this reason."""
        if reason == "unconfirmed":
            return current.confirmed_at is None
        return any(lease.kind == "essential" and self._leases.is_lost(lease, reason) for lease in current.leases)

    def _requeue(self, current: Reservation, decision: Requeue) -> str | None:
        if current.phase == "pending" and current.leases:
            return self._drop_claims(current)
        if current.phase not in {"leased", "revoking"}:
            return f"it is {current.phase}"
        object_to = self._object_to_return if current.phase == "revoking" else self._object_to_taking
        if (objection := object_to(current, decision)) is not None:
            return objection
        if decision.reason == "slot_interrupted" and current.phase == "leased":
            current = msgspec.structs.replace(current, interruptions=current.interruptions + 1)
        if decision.revoke_by is not None:
            self._revoke(current, decision.reason, decision.revoke_by)
        else:
            count = {}
            if decision.reason == "unconfirmed":
                count = {"unconfirmed": current.unconfirmed + 1}
                note_unconfirmed(self.work, current)
            return_to_queue(self.work, self.rules, current, decision.reason, **count)
        return None

    def _drop_claims(self, current: Reservation) -> str | None:
        """Drop the claims of a reservation if one of their slots is lost or takes no leases; it stays in the queue."""
        if all(self._may_come_free(lease) for lease in current.leases):
            return "the slot that it claims is there"
        drop_claims(self.work, current)
        return None

    def _may_come_free(self, lease: Lease) -> bool:
        slot = self.work.slots.get(lease.slot)
        if slot is None or not self.work.is_there(lease):
            return False
        is_leaving = slot.state != "ready" or slot.drain_reason is not None or slot.interrupted_at is not None
        return not is_leaving and not is_silent(slot, self.rules.pools.get(slot.pool), self.now)

    def _object_to_taking(self, current: Reservation, decision: Requeue) -> str | None:
        """Return why a leased reservation is not requeued."""
        if decision.reason != "unconfirmed":
            return None if self._has_lost(current, decision.reason) else "its slots are there"
        if current.confirmed_at is not None:
            return "it was confirmed"
        leased_at = self.now if current.leased_at is None else current.leased_at
        due = leased_at + self._settings_of(current).confirm_timeout
        return "it has time to be confirmed" if self.now < due else None

    def _object_to_return(self, current: Reservation, decision: Requeue) -> str | None:
        """Return why a revoking reservation does not return to the queue yet."""
        if decision.revoke_by is not None:
            return "it is revoking"
        over = current.revoke_by is None or self.now >= current.revoke_by or self._has_lost(current, "slot_gone")
        return None if over or self._has_lost(current, decision.reason) else "its holder has time to let go"

    def _settings_of(self, current: Reservation) -> SchedulerKeys:
        return self.rules.settings_of(current.request.pool, current.request.system)

    def _revoke(self, current: Reservation, reason: str, revoke_by: float) -> None:
        leases = tuple(
            msgspec.structs.replace(lease, state="revoking", revoke_by=revoke_by) for lease in current.leases
        )
        self.work.move_reservation(
            current, "revoking", reason=reason, revoke_reason=reason, revoke_by=revoke_by, leases=leases
        )

    def _restart(self, current: Reservation, decision: Restart) -> str | None:
        if current.phase != "failed":
            return f"it is {current.phase}"
        last, delay = current.restarted_at, self._settings_of(current).restart_delay
        if last is not None and self.now - last <= delay:
            return "it was restarted a moment ago"
        return_to_queue(
            self.work,
            self.rules,
            current,
            decision.reason,
            restarts=current.restarts + 1,
            restarted_at=self.now,
            finished_at=None,
        )
        return None

    def _assign(self, current: Reservation, decision: Assign) -> str | None:
        if (reason := self._leases.object_to(current, decision.leases)) is not None:
            return reason
        self._leases.lease(current, decision.leases, decision.level)
        return None
