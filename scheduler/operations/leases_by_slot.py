"""The leases that a transaction has read or staged, by slot, with what they use of the slot."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot
from scheduler.policy.capacity.fits import Occupancy

Key = tuple[str, str]
"""The id of a reservation and the name of the component that the lease is for."""
_NONE: Final[Mapping[Key, Lease]] = MappingProxyType({})


class LeasesBySlot:
    """The leases on each slot, in any of its epochs (launches), by reservation and component.

    Speed: the sums of a slot's leases are kept with every lease, so that one more lease is tested without adding up all
    the others.
    """

    def __init__(self) -> None:
        self._leases: dict[str, dict[Key, Lease]] = {}
        self._sums: dict[tuple[str, int], Occupancy] = {}
        """By slot and epoch: the sums of the leases there, once they were asked for."""

    def put(self, owner: str, lease: Lease) -> None:
        """Add a lease of the reservation `owner`, or replace its lease for the same component on the same slot."""
        there, key = self._leases.setdefault(lease.slot, {}), (owner, lease.component)
        if self._sums:
            self._count(there.get(key), -1)
            self._count(lease, 1)
        there[key] = lease

    def remove(self, owner: str, lease: Lease) -> None:
        """Remove the lease that the reservation `owner` has for the component of `lease` on its slot, if any."""
        self._count(self._leases.get(lease.slot, {}).pop((owner, lease.component), None), -1)

    def list_all(self, slot: str) -> Mapping[Key, Lease]:
        """Return the leases that name this slot, in whatever epoch, by reservation and component."""
        return self._leases.get(slot, _NONE)

    def sum_on(self, slot: Slot) -> Occupancy:
        """Return the sums of the leases on a slot's present machine, by state. Callers must not change them."""
        there = self._sums.get((slot.id, slot.epoch))
        if there is None:
            leases = [lease for lease in self.list_all(slot.id).values() if lease.epoch == slot.epoch]
            there = self._sums[slot.id, slot.epoch] = Occupancy(leases)
        return there

    def _count(self, lease: Lease | None, times: int) -> None:
        there = None if lease is None else self._sums.get((lease.slot, lease.epoch))
        if there is not None and lease is not None:
            there.add(lease.state, lease.resources, times)
