"""Whether it happened, for the cores that a lease may use: the limit is worked out anew on the rows as they are."""

from typing import Any

import msgspec

from scheduler.model.decisions import Cores
from scheduler.model.events import Event
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.operations.engine import CORES
from scheduler.operations.ledger import Ledger
from scheduler.policy.share import find_spare, is_same, list_users, own_cores


class CoresWriter:
    """Writes limits."""

    def __init__(self, ledger: Ledger, rules: Rules) -> None:
        self.ledger, self.rules = ledger, rules

    def write(self, decision: Cores) -> str | None:
        """None when it was written, else why it no longer holds: the lease is gone, or others share its slot by now."""
        current, slot = self.ledger.reservations.get(decision.reservation), self.ledger.slots.get(decision.slot)
        lease = _find(current, decision)
        if current is None or slot is None or lease is None:
            return "it does not hold that any more"
        if not self._is_its_share(slot, current.id, decision):
            return f"others share {slot.id} by now"
        changed = msgspec.structs.replace(lease, cores=decision.cpus)
        leases = tuple(changed if each is lease else each for each in current.leases)
        self.ledger.put(msgspec.structs.replace(current, leases=leases))
        if slot.machine is not None:
            # Its host is to hear of it, as of every lease that comes or goes.
            self.ledger.put(slot)
        detail: dict[str, Any] = {"component": lease.component, "slot": slot.id, "cpus": decision.cpus}
        self.ledger.tell(
            Event(at=self.ledger.now, name=CORES, cause=self.ledger.cause, reservation=current.id, detail=detail)
        )
        return None

    def _is_its_share(self, slot: Slot, owner: str, decision: Cores) -> bool:
        there = self.ledger.leases_on(slot)
        mine, users = there.get((owner, decision.component)), list_users(there.values())
        if mine is None or mine not in users:
            return False
        spare = find_spare(slot, [own_cores(lease.resources) for lease in users], self.rules)
        return spare is not None and is_same(own_cores(mine.resources) + spare, decision.cpus)


def _find(current: Reservation | None, decision: Cores) -> Lease | None:
    for lease in current.leases if current is not None else ():
        if (lease.component, lease.slot, lease.epoch) == (decision.component, decision.slot, decision.epoch):
            return lease
    return None
