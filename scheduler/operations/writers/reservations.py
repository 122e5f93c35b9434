"""Writes decisions about reservations and their leases, after testing each against the current rows.

Each grant or revoke of an elastic instance is written independently. The assignment of a reservation, and the revokes
that make capacity for it, are written together or not at all. CPU limits are computed again from the current rows.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final

import msgspec

from scheduler.model.decisions import (
    Assign,
    Claim,
    Cores,
    Decision,
    Expire,
    Fail,
    Grant,
    Placement,
    PlanStart,
    Requeue,
    Restart,
    Revoke,
)
from scheduler.model.reservations import LIMIT, Lease, Reservation, find_limit, is_at_limit
from scheduler.model.rules import SchedulerKeys
from scheduler.model.transitions import ENDED
from scheduler.operations.ending_leases import (
    REVOKED,
    add_instance_event,
    count_restarts,
    drop_claims,
    end_failed,
    end_reservation,
    note_unclean,
    note_unconfirmed,
    return_to_queue,
    revoke,
    shorten_grace,
)
from scheduler.operations.writers.leases import LeaseWriter
from scheduler.policy.lifecycle.timers import find_end_of_grace, stays_in_service
from scheduler.policy.placement.cpu_bursting import find_limits, is_same
from scheduler.policy.quota.accounting import stop

GRANTED = "reservation_granted"
"""Name of the event that an elastic instance got a lease. The phase of its reservation does not change."""
DEATHS: Final = frozenset({"slot_gone", "slot_offline"})
"""The reasons of revokes that come without a warning to the holder. An elastic instance that ends for such a reason
counts as died, unless its lease was already being revoked.
"""

CORES = "reservation_cores"
"""Name of the event that the limit of CPUs of a lease has changed. The phase of its reservation does not change."""


class ReservationWriter:
    """Writes a plan's decisions about reservations in a transaction. If a decision is skipped, its method returns the
    reason as text.
    """

    def __init__(self, leases: LeaseWriter) -> None:
        self.work, self.rules, self.now, self._leases = leases.work, leases.rules, leases.now, leases

    def write(self, decision: Expire | Fail | Requeue | Restart) -> str | None:
        """Test one decision about a reservation against the current rows and write it. If it is skipped, return the
        reason as text, else None.
        """
        current = self.work.reservations.get(decision.reservation)
        if current is None:
            return "the reservation does not exist any more"
        match decision:
            case Expire():
                return self._expire(current, decision)
            case Fail():
                return self._fail(current, decision)
            case Requeue():
                return self._requeue(current, decision)
            case Restart():
                return self._restart(current, decision)

    def _expire(self, current: Reservation, decision: Expire) -> str | None:
        if current.phase in ENDED:
            return f"the reservation is {current.phase} already"
        if decision.reason == LIMIT:
            return self._end_at_limit(current, decision)
        if current.expires_at is None or self.now < current.expires_at:
            return "the reservation was renewed"
        end_reservation(self.work, self.rules, current, "expired", decision.reason)
        return None

    def _end_at_limit(self, current: Reservation, decision: Expire) -> str | None:
        """Write that a reservation is at its limit, or that its grace period is shorter or over."""
        if is_at_limit(current):
            if (objection := self._object_to_return(current, decision)) is not None:
                return objection
            if decision.revoke_by is not None:
                shorten_grace(self.work, current, "slot_interrupted", decision.revoke_by)
                return None
        else:
            account, limit = self.work.account_of(current), find_limit(current)
            if account is None or not account.enforce_max_runtime:
                return "its account does not enforce max_runtime any more"
            if limit is None or self.now < limit:
                return "the leases of the reservation have not lasted for its max_runtime"
            if decision.revoke_by is not None:
                revoke(self.work, current, LIMIT, decision.revoke_by, current.leases)
                return None
        end_reservation(self.work, self.rules, current, "expired", LIMIT)
        return None

    def _fail(self, current: Reservation, decision: Fail) -> str | None:
        if current.phase != "leased":
            return f"the reservation is {current.phase}"
        if not self._has_lost(current, decision.reason):
            return "the slots of the reservation are not lost"
        if decision.reason == "unconfirmed":
            note_unconfirmed(self.work, current)
        died = [lease.component for lease in current.leases if self._leases.is_lost(lease, decision.reason)]
        end_failed(self.work, self.rules, current, decision.reason, died)
        return None

    def _has_lost(self, current: Reservation, reason: str) -> bool:
        """Return whether one of the reservation's essential leases has lost its slot for `reason`, by the current rows.
        For the reason `unconfirmed`: return whether the holder has not confirmed the leases.
        """
        if reason == "unconfirmed":
            return current.confirmed_at is None
        return any(lease.kind == "essential" and self._leases.is_lost(lease, reason) for lease in current.leases)

    def _requeue(self, current: Reservation, decision: Requeue) -> str | None:
        if current.phase == "pending" and current.leases:
            if all(self._may_come_free(lease) for lease in current.leases):
                return "the claimed slot is not lost"
            # A claimed slot is lost or will take no leases. The reservation stays in the queue without its claims.
            drop_claims(self.work, current)
            return None
        if current.phase not in {"leased", "revoking"}:
            return f"the reservation is {current.phase}"
        object_to = self._object_to_return if current.phase == "revoking" else self._object_to_taking
        if (objection := object_to(current, decision)) is not None:
            return objection
        if current.phase == "revoking" and decision.revoke_by is not None:
            shorten_grace(self.work, current, decision.reason, decision.revoke_by)
            return None
        if decision.reason == "slot_interrupted" and current.phase == "leased":
            current = msgspec.structs.replace(current, interruptions=current.interruptions + 1)
        if decision.revoke_by is not None:
            revoke(self.work, current, decision.reason, decision.revoke_by, current.leases)
        elif decision.reason == "unconfirmed":
            note_unconfirmed(self.work, current)
            return_to_queue(self.work, self.rules, current, decision.reason, unconfirmed=current.unconfirmed + 1)
        else:
            return_to_queue(self.work, self.rules, current, decision.reason)
        return None

    def _may_come_free(self, lease: Lease) -> bool:
        """Return whether the slot of `lease`, a claim, is still in service, so that the claim can become a lease. A
        cordon does not end a claim, although it prevents a new lease.
        """
        slot = self.work.slots.get(lease.slot)
        if slot is None or slot.pool not in self.rules.pools or not self.work.is_there(lease):
            return False
        return stays_in_service(slot, self.rules.pools[slot.pool], self.now)

    def _object_to_taking(self, current: Reservation, decision: Requeue) -> str | None:
        """Return as text why `decision` must not requeue a leased reservation: its reason does not hold by the current
        rows. Return None if it must be requeued.
        """
        if decision.reason != "unconfirmed":
            return None if self._has_lost(current, decision.reason) else "the slots of the reservation are not lost"
        if current.confirmed_at is not None:
            return "the reservation was confirmed"
        leased_at = self.now if current.leased_at is None else current.leased_at
        due = leased_at + self._settings_of(current).confirm_timeout
        return "the confirm_timeout is not over" if self.now < due else None

    def _object_to_return(self, current: Reservation, decision: Requeue | Expire) -> str | None:
        """Return as text why a reservation whose leases are being revoked does not give them back yet or, if the
        decision has an earlier deadline, why its grace is not shortened. Return None if the decision holds.
        """
        end = find_end_of_grace(current, self.work.slots)
        if decision.revoke_by is not None:
            latest = current.revoke_by
            is_shorter = end is not None and latest is not None and end <= decision.revoke_by < latest
            return None if is_shorter else "the leases are being revoked already"
        # A reservation at its limit ends for this reason also if its slot has drained for too long.
        lost = "slot_draining" if isinstance(decision, Expire) else decision.reason
        over = end is None or self.now >= end or self._has_lost(current, "slot_gone")
        return None if over or self._has_lost(current, lost) else "the grace period of the holder is not over"

    def _settings_of(self, current: Reservation) -> SchedulerKeys:
        return self.rules.settings_of(current.request.pool, current.request.system)

    def _restart(self, current: Reservation, decision: Restart) -> str | None:
        if current.phase != "failed":
            return f"the reservation is {current.phase}"
        last, delay = current.restarted_at, self._settings_of(current).restart_delay
        if last is not None and self.now <= last + delay:
            return "the restart_delay since the last restart is not over"
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

    def grant(self, decisions: Sequence[Grant]) -> list[tuple[Grant, str]]:
        """Lease elastic instances of one reservation, each with a fencing token of its own. Return the decisions that
        were skipped, each with the reason as text.
        """
        current = self.work.reservations.get(decisions[0].reservation)
        if current is None:
            return [(each, "the reservation does not exist any more") for each in decisions]
        placements = [Placement(each.component, each.slot, each.epoch, each.resources) for each in decisions]
        judged = list(zip(decisions, placements, self._leases.object_to_instances(current, placements), strict=True))
        granted = [(decision, placement) for decision, placement, objection in judged if objection is None]
        leases = self._leases.grant(current, [placement for _, placement in granted]) if granted else []
        for (decision, _), lease in zip(granted, leases, strict=True):
            add_instance_event(self.work, GRANTED, current.id, lease, decision.reason)
        return [(decision, objection) for decision, _, objection in judged if objection is not None]

    def revoke(self, decisions: Sequence[Revoke]) -> list[tuple[Decision, str]]:
        """Revoke elastic leases of one reservation. Return the decisions that were skipped, each with the reason as
        text.
        """
        current = self.work.reservations.get(decisions[0].reservation)
        held = _Held(current)
        lost: list[tuple[Decision, str]] = []
        partings: list[tuple[Lease, Revoke]] = []
        for decision in decisions:
            lease = held.pop(decision)
            if current is None or lease is None:
                lost.append((decision, "the reservation does not have this lease any more"))
            elif (objection := self._object_to_revoke(current, lease, decision)) is not None:
                lost.append((decision, objection))
            else:
                partings.append((lease, decision))
        if current is not None and partings:
            self._take_back(current, partings)
        return lost

    def make_way(self, revokes: Sequence[Revoke], newcomer: Decision) -> str | None:
        """Write `newcomer`, a decision that assigns or claims slots for a reservation, together with the revokes that
        make capacity for it. If one of these cannot be written, or if `newcomer` is another kind of decision, write
        nothing and return the reason as text; else return None.
        """
        if not isinstance(newcomer, Assign | Claim):
            return "no assignment or claim follows the revokes"
        current = self.work.reservations.get(newcomer.reservation)
        if current is None:
            return "the reservation does not exist any more"
        by_holder = {name: _Held(self.work.reservations.get(name)) for name in {each.reservation for each in revokes}}
        partings: list[tuple[Lease, Revoke]] = []
        for decision in revokes:
            holder = self.work.reservations.get(decision.reservation)
            lease = by_holder[decision.reservation].pop(decision)
            if holder is None or lease is None:
                return f"{decision.reservation} has no lease of {decision.component} on {decision.slot} any more"
            objection = self._object_to_revoke(holder, lease, decision)
            if objection is not None:
                return objection
            # If accounts pay, the newcomer's account pays for the slot from the claim on; the old lease stops paying.
            partings.append((stop(lease, self.now) if isinstance(newcomer, Claim) else lease, decision))
        parting = {(each.reservation, each.component) for each in revokes}
        is_claim = isinstance(newcomer, Claim)
        if is_claim and current.leases:
            return "the reservation has a claim already"
        objection = self._leases.object_to(current, newcomer.leases, parting=parting, is_claim=is_claim)
        if objection is not None:
            return objection
        for name, group in groupby(partings, key=lambda each: each[1].reservation):
            self._take_back(self.work.reservations[name], list(group))
        if isinstance(newcomer, Claim):
            self._leases.claim(current, newcomer.leases, newcomer.level)
        else:
            self._leases.lease(current, newcomer.leases, newcomer.level)
        return None

    def _object_to_revoke(self, current: Reservation, lease: Lease, decision: Revoke) -> str | None:
        """Return as text why an elastic lease may not be revoked as `decision` wants, by the current rows; None if it
        may.
        """
        if current.phase != "leased":
            return f"the reservation is {current.phase}"
        if decision.reason == "preempted" and lease.state != "revoking":
            return "no preemption of the lease comes with the revoke"
        if decision.reason in {"reclaimed", "preempted"}:
            has_time = lease.revoke_by is not None and self.now < lease.revoke_by
            return "the grace period of the holder is not over" if lease.state == "revoking" and has_time else None
        return None if self._leases.is_lost(lease, decision.reason) else "the slot of the lease is not lost"

    def _take_back(self, current: Reservation, partings: Sequence[tuple[Lease, Revoke]]) -> None:
        """End elastic leases of one reservation at once, or mark them as being revoked until the deadline of the
        decision. `partings`: the leases, each with its decision. Restarts of instances that died are counted.

        The row of the reservation is changed once for all of these leases. Copying 10,000 leases for each of them would
        take minutes.
        """
        by_component = {lease.component: (lease, decision.revoke_by, decision.reason) for lease, decision in partings}
        left = []
        for each in current.leases:
            lease, revoke_by, reason = by_component.get(each.component, (None, None, None))
            if lease is None:
                left.append(each)
            elif revoke_by is not None:
                left.append(msgspec.structs.replace(lease, state="revoking", revoke_by=revoke_by, revoke_reason=reason))
        died = [
            lease.component
            for lease, decision in partings
            if decision.revoke_by is None and decision.reason in DEATHS and lease.state == "held"
        ]
        current = count_restarts(current, died) if died else current
        self.work.put(msgspec.structs.replace(current, leases=tuple(left)))
        for lease, decision in partings:
            if decision.revoke_by is None:
                self.work.free_slot(lease)
                note_unclean(self.work, self.rules, lease)
            else:
                self.work.put(self.work.slots[lease.slot])
            parted = msgspec.structs.replace(lease, revoke_by=decision.revoke_by)
            add_instance_event(self.work, REVOKED, current.id, parted, decision.reason)

    def plan_start(self, decision: PlanStart) -> str | None:
        """Store the first planned start of a reservation that still waits; if it does not, return that as text."""
        current = self.work.reservations.get(decision.reservation)
        if current is None or current.phase != "pending" or current.planned_start is not None:
            return "the reservation does not wait for its first planned start any more"
        self.work.put(msgspec.structs.replace(current, planned_start=decision.at))
        return None

    def write_cores(self, decisions: Sequence[Cores]) -> list[tuple[Cores, str]]:
        """Write the new CPU limits of leases of one reservation that are still right by the current rows. Return the
        decisions that were skipped, each with the reason as text.
        """
        name = decisions[0].reservation
        current = self.work.reservations.get(name)
        held = {lease.component: lease for lease in current.leases} if current is not None else {}
        limits = {
            slot.id: find_limits(slot, self.work.leases.list_on(slot), self.rules)
            for slot_id in {each.slot for each in decisions}
            if (slot := self.work.slots.get(slot_id)) is not None
        }
        objections = [_object_to_cores(held.get(each.component), limits.get(each.slot), each) for each in decisions]
        good = {each.component: each for each, why in zip(decisions, objections, strict=True) if why is None}
        if current is not None and good:
            leases = tuple(
                msgspec.structs.replace(lease, cores=good[lease.component].cpus) if lease.component in good else lease
                for lease in current.leases
            )
            self.work.put(msgspec.structs.replace(current, leases=leases))
            for decision in good.values():
                slot = self.work.slots[decision.slot]
                if slot.machine is not None:
                    # The version of the slot's row increases, so the host asks for its leases and sets the new limit.
                    self.work.put(slot)
                self.work.note(
                    CORES,
                    {"component": decision.component, "slot": slot.id, "cpus": decision.cpus},
                    reservation=name,
                )
        return [(each, why) for each, why in zip(decisions, objections, strict=True) if why is not None]


def _object_to_cores(
    lease: Lease | None, limits: Mapping[tuple[str, str], float] | None, decision: Cores
) -> str | None:
    """Return as text why the CPU limit of `decision` is not written to a lease; None if it is. `lease` None: the lease
    does not exist any more. `limits`: the limit of each lease on the slot by the current rows; None: the slot does not
    exist any more.
    """
    if lease is None or limits is None or (lease.slot, lease.epoch) != (decision.slot, decision.epoch):
        return "the reservation does not have this lease any more"
    limit = limits.get((decision.reservation, decision.component))
    if limit is None or not is_same(limit, decision.cpus):
        return f"the spare CPUs of {decision.slot} have changed"
    return None


class _Held:
    """The elastic leases that one reservation has at present, by component, slot and epoch. Each can be taken out once,
    so that two decisions never revoke the same lease.
    """

    def __init__(self, current: Reservation | None) -> None:
        leases = () if current is None else current.leases
        self._leases = {(each.component, each.slot, each.epoch): each for each in leases if each.kind == "elastic"}

    def pop(self, decision: Revoke) -> Lease | None:
        """Take out and return the elastic lease that `decision` names. Return None if the reservation does not have it,
        or if it was taken out before.
        """
        return self._leases.pop((decision.component, decision.slot, decision.epoch), None)
