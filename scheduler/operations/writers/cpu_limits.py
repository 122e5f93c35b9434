"""Writes the limits of the cores that leases may use, after working them out again on the current rows."""

from collections.abc import Sequence
from typing import Any

import msgspec

from scheduler.model.decisions import Cores
from scheduler.model.events import Event
from scheduler.model.reservations import Lease
from scheduler.model.rules import Rules
from scheduler.operations.ports import CORES
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.placement.cpu_bursting import find_spare, is_same, list_users, own_cores


class CoresWriter:
    """Writes core limits."""

    def __init__(self, work: UnitOfWork, rules: Rules) -> None:
        self.work, self.rules = work, rules

    def write(self, decisions: Sequence[Cores]) -> list[tuple[Cores, str]]:
        """Write the limits of one reservation that are still right; return the others, each with the reason."""
        name = decisions[0].reservation
        current = self.work.reservations.get(name)
        held = {lease.component: lease for lease in current.leases} if current is not None else {}
        spares = {name: self._find_spare(name) for name in {each.slot for each in decisions}}
        objections = [self._object_to(held.get(each.component), spares[each.slot], each) for each in decisions]
        good = {each.component: each for each, why in zip(decisions, objections, strict=True) if why is None}
        if current is not None and good:
            leases = tuple(
                msgspec.structs.replace(lease, cores=good[lease.component].cpus) if lease.component in good else lease
                for lease in current.leases
            )
            self.work.put(msgspec.structs.replace(current, leases=leases))
            for each in good.values():
                self._tell(each)
        return [(each, why) for each, why in zip(decisions, objections, strict=True) if why is not None]

    def _find_spare(self, name: str) -> float | None:
        """Return the cores that each lease of this slot may use in addition to its own, on the current rows."""
        slot = self.work.slots.get(name)
        if slot is None:
            return None
        users = list_users(self.work.leases_on(slot).values())
        return find_spare(slot, [own_cores(each.resources) for each in users], self.rules)

    def _object_to(self, lease: Lease | None, spare: float | None, decision: Cores) -> str | None:
        slot = self.work.slots.get(decision.slot)
        if lease is None or slot is None or (lease.slot, lease.epoch) != (decision.slot, decision.epoch):
            return "it does not hold that any more"
        is_user = lease.state != "claimed" and lease.epoch == slot.epoch
        if not is_user or spare is None or not is_same(own_cores(lease.resources) + spare, decision.cpus):
            return f"others share {slot.id} by now"
        return None

    def _tell(self, decision: Cores) -> None:
        slot = self.work.slots[decision.slot]
        if slot.machine is not None:
            # A change of the slot's row reaches its host, which then sets the limit.
            self.work.put(slot)
        detail: dict[str, Any] = {"component": decision.component, "slot": slot.id, "cpus": decision.cpus}
        name, cause = decision.reservation, self.work.cause
        self.work.tell(Event(at=self.work.now, name=CORES, cause=cause, reservation=name, detail=detail))
