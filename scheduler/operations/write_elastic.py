"""Whether it happened, for elastic instances: grants, revokes, and newcomers that need the room of what is revoked.

Each is tested on the rows as they are; a newcomer and the revokes that it needs are written together or not at all.
"""

from collections.abc import Collection, Sequence
from typing import Final

from scheduler.model.decisions import Assign, Claim, Grant, Placement, Revoke
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.operations.endings import count_restarts, end_instance, revoke_instance, tell_instance
from scheduler.operations.ledger import Ledger
from scheduler.operations.write_leases import LeaseWriter
from scheduler.policy.charging import stop

GRANTED = "reservation_granted"
"""The event of an elastic instance that is leased: no change of phase."""
DEATHS: Final = frozenset({"slot_gone", "slot_offline"})
"""For these reasons an instance that nobody had asked back is gone without notice."""


class ElasticWriter:
    """One method a decision: None when it was written, else why it no longer holds."""

    def __init__(self, ledger: Ledger, rules: Rules) -> None:
        self.ledger, self.rules, self.now = ledger, rules, ledger.now
        self._leases = LeaseWriter(ledger, rules)

    def write(self, decision: Revoke | Claim) -> str | None:
        """One decision by itself."""
        match decision:
            case Revoke():
                return self._revoke_one(decision)
            case Claim():
                return "nobody gives its place back"

    def grant(self, decisions: Sequence[Grant]) -> list[tuple[Grant, str]]:
        """Each of these instances of one reservation is leased, under a token of its own; the reservation's stays.
        Gives back those that are not, each with why.
        """
        current = self.ledger.reservations.get(decisions[0].reservation)
        if current is None:
            return [(each, "the reservation is gone") for each in decisions]
        placements = [Placement(each.component, each.slot, each.epoch, each.resources) for each in decisions]
        objections = self._leases.object_to_instances(current, placements)
        judged = list(zip(decisions, placements, objections, strict=True))
        granted = [(decision, placement) for decision, placement, objection in judged if objection is None]
        leases = self._leases.grant(current, [placement for _, placement in granted]) if granted else []
        for (decision, _), lease in zip(granted, leases, strict=True):
            tell_instance(self.ledger, GRANTED, current.id, lease, decision.reason)
        return [(decision, objection) for decision, _, objection in judged if objection is not None]

    def _revoke_one(self, decision: Revoke) -> str | None:
        """It ends, or its holder has until `revoke_by`."""
        current = self.ledger.reservations.get(decision.reservation)
        lease = _find(current, decision)
        if current is None or lease is None:
            return "it does not hold that any more"
        if (objection := self._object_to_revoke(current, lease, decision)) is not None:
            return objection
        self._revoke(current, lease, decision)
        return None

    def make_way(self, revokes: Sequence[Revoke], newcomer: Assign | Claim) -> str | None:
        """All of them, or none: whoever gives back, gives back for this one."""
        current = self.ledger.reservations.get(newcomer.reservation)
        if current is None:
            return "the reservation is gone"
        for decision in revokes:
            holder = self.ledger.reservations.get(decision.reservation)
            lease = _find(holder, decision)
            if holder is None or lease is None:
                return f"{decision.reservation} does not hold {decision.component} on {decision.slot} any more"
            if (objection := self._object_to_revoke(holder, lease, decision)) is not None:
                return objection
        parting = {(each.reservation, each.component) for each in revokes}
        if (objection := self._object_to_newcomer(current, newcomer, parting)) is not None:
            return objection
        for decision in revokes:
            holder = self.ledger.reservations[decision.reservation]
            if (lease := _find(holder, decision)) is not None:
                # Under quota the newcomer pays for the place from its claim on.
                self._revoke(holder, stop(lease, self.now) if isinstance(newcomer, Claim) else lease, decision)
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
        """Why it is not to be taken back, as things are."""
        if current.phase != "leased":
            return f"it is {current.phase}"
        if decision.reason == "reclaimed":
            has_time = lease.revoke_by is not None and self.now < lease.revoke_by
            return "its holder has time to let go" if lease.state == "revoking" and has_time else None
        return None if self._leases.is_lost(lease, decision.reason) else "its slot is there"

    def _revoke(self, current: Reservation, lease: Lease, decision: Revoke) -> None:
        if decision.revoke_by is None:
            if decision.reason in DEATHS and lease.state == "held":
                current = count_restarts(current, [lease.component])
            end_instance(self.ledger, self.rules, current, lease, decision.reason, clean=False)
        else:
            revoke_instance(self.ledger, current, lease, decision.reason, decision.revoke_by)


def _find(current: Reservation | None, decision: Revoke) -> Lease | None:
    """The lease that the plan saw, if it is still there."""
    for lease in current.leases if current is not None else ():
        if (lease.component, lease.slot, lease.epoch) == (decision.component, decision.slot, decision.epoch):
            return lease if lease.kind == "elastic" else None
    return None
