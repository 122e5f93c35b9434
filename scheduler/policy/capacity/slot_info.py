"""Places: the scratch copies of slots that a tick spends from."""

from math import inf
from typing import Any, Final

import msgspec

from scheduler.model.labels import Labels
from scheduler.model.reservations import Lease
from scheduler.model.resources import Resources, subtract
from scheduler.model.rules import Pool
from scheduler.model.slots import Slot
from scheduler.model.transitions import IN_FLIGHT, INACTIVE, SlotState
from scheduler.policy.capacity.fits import find_obstacle, measure

Leases = dict[tuple[str, str], Lease]
"""Under (reservation, component)."""


Mark = tuple[object, ...]
"""Equal for places that are alike in something."""
NO_LEASES: Final[Leases] = {}
"""Of all places that carry none."""


class SlotInfo(msgspec.Struct, eq=False):
    """The scratch copy of one slot: its state as decided so far, who is on it and what is free there."""

    slot: Slot
    pool: Pool
    order: int
    """Its place in the order of all slots: pools as configured, then by number."""
    state: SlotState
    capacity: Resources | None
    """None: this slot counts leases only."""
    labels: Labels
    leases: Leases
    """Leases of the slot's present epoch; the view's own table where nothing ended, so never changed but replaced."""
    free: Resources | None
    market: str
    """Market of the offering that it was launched from; "" where the pool lists none."""
    price: float
    unconfirmed: int
    """Leases in a row that nobody confirmed, this tick's too."""
    idle_since: float
    """When its last lease ended, in this tick too, else when it became ready."""
    overlap: int = 0
    """Leases that are counted once for two: a claimed one waits for one that is revoking to let go."""
    given: int = 0
    """Instances that this tick put on it, or set against it."""
    redeemed: int = 0
    """Of its leases, those that this tick gives to who claimed the place, or preempted: no use of the machine yet."""
    lifted: int = 0
    """Of its leases, those of elastic instances that are taken off it in this scratch copy."""
    unclean: bool = False
    """A lease ended here in this tick, not by its holder's release, in a pool that recycles such slots."""
    wanted: bool = False
    """Somebody got a lease here in this tick, or is set against it: neither idle nor reserve."""
    stuck: bool = False
    """Interrupted, or past the timeout of its state: capacity for nobody."""
    opened: "CachedSlot | None" = None
    """What it was like before anything was decided; None for one that the view has no slot of."""
    slot_class: Any = None
    remaining: Any = None
    """What the rooms that it is in know of it (`policy/capacity/candidate_queue.py`); None while it is in none."""

    def find_marks(self) -> tuple[Mark, Mark]:
        """Equal for all places of one pool with the same labels; and for all that have as much left and may take as
        many leases more.
        """
        opened = self.opened
        if opened is None or self.given or self.lifted or self.labels is not opened.slot_info.labels:
            return self._make_kind_mark(), self.make_stock_mark()
        if self.leases is not opened.slot_info.leases or self.free is not opened.slot_info.free:
            return self._make_kind_mark(), self.make_stock_mark()
        if opened.marks is None:
            opened.marks = self._make_kind_mark(), self.make_stock_mark()
        return opened.marks

    def _make_kind_mark(self) -> Mark:
        return (self.slot.pool, tuple(self.labels.items()))

    def make_stock_mark(self) -> Mark:
        """The second of these alone."""
        free, pool = self.free, self.pool
        load = len(self.leases) - self.overlap - self.lifted + self.given
        uses_left = self.uses_left if pool.max_uses else inf
        return (None if free is None else tuple(free.items()), load, uses_left, pool.lease_limit)

    @property
    def load(self) -> int:
        """Leases that it carries, or is to carry."""
        return len(self.leases) - self.overlap - self.lifted + self.given

    @property
    def uses_left(self) -> float:
        """How many more leases its machine may take before it goes; one for each that is claimed is not among them."""
        most = self.pool.max_uses
        if not most:
            return inf
        claims = sum(lease.state == "claimed" for lease in self.leases.values())
        return max(0, most - self.slot.uses - self.given - self.redeemed - claims)

    @property
    def has_place(self) -> bool:
        """Whether the slot can take one more lease, apart from resources."""
        return find_obstacle({}, None, self.pool.lease_limit - self.load, self.uses_left) is None

    @property
    def is_coming(self) -> bool:
        """In flight, and likely to arrive."""
        return self.state in IN_FLIGHT and not self.stuck

    @property
    def is_active(self) -> bool:
        """Uses up one of `max_slots`: everything but `empty` and `error`, draining and terminating too."""
        return self.state not in INACTIVE

    @property
    def is_serving(self) -> bool:
        """Ready or coming, and not cordoned: only these count towards `min_slots`."""
        return (self.state == "ready" or self.is_coming) and not self.slot.cordoned

    @property
    def is_idle(self) -> bool:
        """Ready, in service, and nobody has or wants anything of it."""
        is_free = not (self.leases or self.wanted or self.slot.stranger)
        return self.state == "ready" and not self.slot.cordoned and is_free

    @property
    def idle_rank(self) -> float:
        """Since when it is idle; those on their way are all alike."""
        return 0.0 if self.is_coming else self.idle_since

    def end_lease(self, key: tuple[str, str], now: float) -> None:
        """One of its leases ends in this tick; if it was the last one, it is idle from now on."""
        self.leases = {other: lease for other, lease in self.leases.items() if other != key}
        self.idle_since = now
        self.unclean = self.pool.recycle_unclean
        self.count_free()

    def count_free(self) -> None:
        """Work out what is free: capacity less what is held, and the larger of what is leaving and what is claimed."""
        self.overlap, self.free = 0, self.capacity
        if self.leases:
            usage = measure(self.leases.values())
            self.overlap = len(self.leases) - usage.count
            self.free = None if self.capacity is None else subtract(self.capacity, usage.amounts)


class CachedSlot(msgspec.Struct, eq=False):
    """One slot before anything is decided, and what is worked out about it then."""

    slot_info: SlotInfo
    """To be copied, and given its order."""
    is_at_rest: bool
    """Whether there is nothing to look after, unless something happens to it in this tick."""
    is_sound: bool
    """Whether all leases that name it mean the machine that is there."""
    marks: tuple[Mark, Mark] | None = None
    """Those of its place as long as nothing happens to it, once somebody has asked for them."""

    def copy(self, order: int) -> SlotInfo:
        """Its place for one tick."""
        slot_info: SlotInfo = self.slot_info.__copy__()  # type: ignore[attr-defined]  # half the time of copy(); every Struct has it
        slot_info.order, slot_info.opened = order, self
        return slot_info


def make_slot_info(slot: Slot, pool: Pool, order: int, leases: Leases = NO_LEASES) -> SlotInfo:
    """The place of a slot as it is before the tick, with these leases."""
    capacity = slot.resources if slot.resources is not None else capacity_of(slot, pool)
    slot_info = SlotInfo(
        slot,
        pool,
        order,
        slot.state,
        capacity,
        slot.labels,
        leases,
        capacity,
        slot.market or "",
        slot.price or 0.0,
        slot.unconfirmed,
        slot.since if slot.idle_since is None else slot.idle_since,
    )
    if leases:
        slot_info.count_free()
    return slot_info


def capacity_of(slot: Slot, pool: Pool) -> Resources | None:
    """What a slot holds: its own record's, else its offering's, else its pool's; None = leases are counted."""
    if slot.resources is not None:
        return slot.resources
    offering = pool.offering_by_key.get(slot.offering or "")
    if offering is not None and offering.resources is not None:
        return offering.resources
    return pool.resources
