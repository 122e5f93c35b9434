"""Writes grants and revokes of elastic instances, after testing each on the current rows.

A newcomer and the revokes that make room for it are written together or not at all.
"""

from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Final

from scheduler.model.decisions import Assign, Claim, Decision, Grant, Placement, Revoke
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.operations.ending_leases import Parting, take_back_instances, tell_instance
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.leases import LeaseWriter
from scheduler.policy.quota.accounting import stop

GRANTED = "reservation_granted"
"""The event of a grant; the phase of the reservation does not change."""
DEATHS: Final = frozenset({"slot_gone", "slot_offline"})
"""For these reasons an instance is lost without notice, unless it was revoked before."""


class ElasticWriter:
    """Writes changes of elastic leases; each method returns the skipped decisions, each with the reason."""

    def __init__(self, work: UnitOfWork, rules: Rules) -> None:
        self.work, self.rules, self.now = work, rules, work.now
        self._leases = LeaseWriter(work, rules)

    def grant(self, decisions: Sequence[Grant]) -> list[tuple[Grant, str]]:
        """Lease these instances of one reservation, each under a token of its own; the reservation's token stays."""
        current = self.work.reservations.get(decisions[0].reservation)
        if current is None:
            return [(each, "the reservation is gone") for each in decisions]
        placements = [Placement(each.component, each.slot, each.epoch, each.resources) for each in decisions]
        objections = self._leases.object_to_instances(current, placements)
        judged = list(zip(decisions, placements, objections, strict=True))
        granted = [(decision, placement) for decision, placement, objection in judged if objection is None]
        leases = self._leases.grant(current, [placement for _, placement in granted]) if granted else []
        for (decision, _), lease in zip(granted, leases, strict=True):
            tell_instance(self.work, GRANTED, current.id, lease, decision.reason)
        return [(decision, objection) for decision, _, objection in judged if objection is not None]

    def revoke(self, decisions: Sequence[Revoke]) -> list[tuple[Decision, str]]:
        """Revoke these leases of one reservation."""
        current = self.work.reservations.get(decisions[0].reservation)
        held = _Held(current)
        lost: list[tuple[Decision, str]] = []
        partings: list[tuple[Lease, Revoke]] = []
        for decision in decisions:
            lease = held.pop(decision)
            if current is None or lease is None:
                lost.append((decision, "it does not hold that any more"))
            elif (objection := self._object_to_revoke(current, lease, decision)) is not None:
                lost.append((decision, objection))
            else:
                partings.append((lease, decision))
        if current is not None and partings:
            self._take_back(current, partings)
        return lost

    def make_way(self, revokes: Sequence[Revoke], newcomer: Assign | Claim) -> str | None:
        """Write a newcomer and the revokes that make room for it, or nothing; return why not."""
        current = self.work.reservations.get(newcomer.reservation)
        if current is None:
            return "the reservation is gone"
        by_holder = {name: _Held(self.work.reservations.get(name)) for name in {each.reservation for each in revokes}}
        partings: list[tuple[Lease, Revoke]] = []
        for decision in revokes:
            holder = self.work.reservations.get(decision.reservation)
            lease = by_holder[decision.reservation].pop(decision)
            if holder is None or lease is None:
                return f"{decision.reservation} does not hold {decision.component} on {decision.slot} any more"
            if (objection := self._object_to_revoke(holder, lease, decision)) is not None:
                return objection
            # Under quota the newcomer pays for the slot from its claim on.
            partings.append((stop(lease, self.now) if isinstance(newcomer, Claim) else lease, decision))
        parting = {(each.reservation, each.component) for each in revokes}
        if (objection := self._object_to_newcomer(current, newcomer, parting)) is not None:
            return objection
        for name, group in groupby(partings, key=lambda each: each[1].reservation):
            self._take_back(self.work.reservations[name], list(group))
        if isinstance(newcomer, Claim):
            self._leases.claim(current, newcomer.leases, newcomer.level)
        else:
            self._leases.lease(current, newcomer.leases, newcomer.level)
        return None

    def _object_to_newcomer(
        self, current: Reservation, newcomer: Assign | Claim, parting: Collection[tuple[str, str]]
    ) -> str | None:
        is_claim = isinstance(newcomer, Claim)
        if is_claim and current.leases:
            return "it has claimed its place already"
        return self._leases.object_to(current, newcomer.leases, parting=parting, is_claim=is_claim)

    def _object_to_revoke(self, current: Reservation, lease: Lease, decision: Revoke) -> str | None:
        """Return why a lease may not be revoked, on the current rows."""
        if current.phase != "leased":
            return f"it is {current.phase}"
        if decision.reason == "reclaimed":
            has_time = lease.revoke_by is not None and self.now < lease.revoke_by
            return "its holder has time to let go" if lease.state == "revoking" and has_time else None
        return None if self._leases.is_lost(lease, decision.reason) else "its slot is there"

    def _take_back(self, current: Reservation, partings: Sequence[tuple[Lease, Revoke]]) -> None:
        died = [
            lease.component
            for lease, decision in partings
            if decision.revoke_by is None and decision.reason in DEATHS and lease.state == "held"
        ]
        found = [Parting(lease, decision.reason, decision.revoke_by) for lease, decision in partings]
        take_back_instances(self.work, self.rules, current, found, died)


class _Held:
    """The elastic leases of a reservation, by component, slot and epoch; each may be revoked once."""

    def __init__(self, current: Reservation | None) -> None:
        leases = () if current is None else current.leases
        self._leases = {(each.component, each.slot, each.epoch): each for each in leases if each.kind == "elastic"}

    def pop(self, decision: Revoke) -> Lease | None:
        """Return the lease that the plan saw, if it is still held."""
        return self._leases.pop((decision.component, decision.slot, decision.epoch), None)
