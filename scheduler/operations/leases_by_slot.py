"""The leases on each slot, as one transaction reads and changes them."""

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot
from scheduler.policy.capacity.fits import Occupancy

Key = tuple[str, str]
"""The id of a reservation and the name of the component that the lease is for."""
_NONE: Final[Mapping[Key, Lease]] = MappingProxyType({})
Read = Callable[[Collection[str], Container[str]], Mapping[str, Sequence[tuple[str, Lease]]]]
"""A function that reads the leases on some slots from the database. Its arguments are the ids of the slots and of
reservations to omit. It returns pairs (reservation id, lease) by slot.
"""


class LeasesBySlot:
    """The leases on each slot, in any of its epochs (launches), by reservation and component. The leases on a slot are
    read from the database when they are first needed.

    Speed: the sums of a slot's leases are updated with every lease, so that the test of one more lease does not add up
    all the others.
    """

    def __init__(self, load: Read, loaded: Container[str]) -> None:
        """Begin without leases. `load`: the function that reads leases. `loaded`: the reservations whose rows the
        transaction has loaded. Their leases are not read, because the caller adds them, with all changes, by `replace`.
        """
        self._load, self._loaded = load, loaded
        self._read: set[str] = set()
        """Ids of the slots whose leases were all read from the database."""
        self._leases: dict[str, dict[Key, Lease]] = {}
        self._sums: dict[tuple[str, int], Occupancy] = {}
        """(slot, epoch) -> the sums of the leases there. A pair that no caller has asked for is missing."""

    def read(self, slots: Collection[str]) -> None:
        """Read all leases on these slots from the database, without locks."""
        for leases in self._load(slots, self._loaded).values():
            for owner, lease in leases:
                self._put(owner, lease)
        self._read.update(slots)

    def replace(self, owner: str, gone: Iterable[Lease], come: Iterable[Lease]) -> None:
        """Remove the leases `gone` of the reservation `owner`, and then add its leases `come`."""
        for lease in gone:
            ended = self._leases.get(lease.slot, {}).pop((owner, lease.component), None)
            if self._sums and ended is not None:
                self._count(ended, -1)
        for lease in come:
            self._put(owner, lease)

    def _put(self, owner: str, lease: Lease) -> None:
        there, key = self._leases.setdefault(lease.slot, {}), (owner, lease.component)
        if self._sums:
            if (former := there.get(key)) is not None:
                self._count(former, -1)
            self._count(lease, 1)
        there[key] = lease

    def list_all(self, slot: str) -> Mapping[Key, Lease]:
        """Return the leases on this slot, in any epoch, by (reservation id, component)."""
        if slot not in self._read:
            self.read([slot])
        return self._leases.get(slot, _NONE)

    def list_on(self, slot: Slot) -> dict[Key, Lease]:
        """Return the leases on the present machine (epoch) of a slot, by (reservation id, component)."""
        return {key: lease for key, lease in self.list_all(slot.id).items() if lease.epoch == slot.epoch}

    def last_epoch(self, slot: str) -> int:
        """Return the highest epoch in which a lease on this slot was given; 0 if there is no such lease."""
        return max((lease.epoch for lease in self.list_all(slot).values()), default=0)

    def sum_on(self, slot: Slot) -> Occupancy:
        """Return the sums of the resources of the leases on a slot's present machine, by state of the lease. Callers
        must not change the result.
        """
        there = self._sums.get((slot.id, slot.epoch))
        if there is None:
            there = self._sums[slot.id, slot.epoch] = Occupancy(self.list_on(slot).values())
        return there

    def _count(self, lease: Lease, times: int) -> None:
        there = self._sums.get((lease.slot, lease.epoch))
        if there is not None:
            there.add(lease.state, lease.resources, times)
