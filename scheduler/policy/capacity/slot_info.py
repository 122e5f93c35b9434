"""Slots as a scheduling cycle sees them: scratch copies, and the cached facts from which a cycle makes its copies.

Facts that follow from a slot's row and its leases are cached until the row or a lease changes, so that a cycle after
few changes examines few slots.
"""

from math import inf
from typing import Any, Final

import msgspec

from scheduler.model.decisions import SlotReason
from scheduler.model.lives import find_drift, find_end_of_life
from scheduler.model.machines import Offering
from scheduler.model.pools import Pool
from scheduler.model.reservations import Lease
from scheduler.model.resources import Labels, Resources, subtract, subtract_all
from scheduler.model.slots import Slot
from scheduler.model.transitions import HOLDING, IN_FLIGHT, INACTIVE, SlotState
from scheduler.model.view import View
from scheduler.policy.capacity.fits import capacity_of, find_obstacle, measure

Mark = tuple[object, ...]
"""A key that is equal for slots that are alike in some facts, for example in their remaining capacity."""
Leases = dict[tuple[str, str], Lease]
"""The leases of a slot: (reservation id, component) -> lease."""


NO_LEASES: Final[Leases] = {}
"""The empty table that all slots without leases share."""


class SlotInfo(msgspec.Struct, eq=False):
    """The scratch copy of one slot in a cycle: the decisions so far have changed its state, leases and free amounts."""

    slot: Slot
    pool: Pool
    order: int
    """The position of the slot in slot order: pools in configured order, then the slots of a pool by number."""
    state: SlotState
    capacity: Resources | None
    """The resources of the slot; None: the slot counts leases only."""
    labels: Labels
    leases: Leases
    """The leases of the slot's present epoch. The view may own the table, so the table is replaced and never changed.
    """
    free: Resources | None
    market: str
    """The market of the offering from which the slot was launched; "" if it was launched without an offering."""
    price: float
    unconfirmed: int
    """How many of the slot's last leases in a row were not confirmed, with those that this cycle ends."""
    idle_since: float
    """When the slot's last lease ended (also one that this cycle ends), else when the slot became ready."""
    overlap: int = 0
    """The number of pairs of a revoking lease and a claim on the same capacity. A pair counts as one lease."""
    given: int = 0
    """The number of instances that this cycle placed on the slot, or for which it keeps capacity there."""
    redeemed: int = 0
    """How many leases this cycle assigned on the slot in place of claims or by preemption. The slot's row does not
    count them as uses of the machine (`max_uses`) yet.
    """
    lifted: int = 0
    """The number of elastic leases that this cycle has taken off the slot in the scratch copy."""
    unclean: bool = False
    """Whether this cycle ended a lease on the slot without its holder's release, in a pool that replaces such slots
    (`recycle_unclean`).
    """
    wanted: bool = False
    """Whether this cycle assigned a lease here or keeps capacity here. The slot is then neither idle nor warm."""
    stuck: bool = False
    """Whether the slot was interrupted or has exceeded the timeout of its state, and so serves no reservation."""
    is_plain: bool = True
    """Whether no lease of the slot was a claim or had a limit of cores when the free amounts were last computed."""
    opened: "CachedSlot | None" = None
    """The slot as it was at the beginning of the cycle, with cached facts; None if the view has no such slot."""
    slot_class: Any = None
    remaining: Any = None
    """`slot_class`, `remaining`: the slot's `SlotClass` and `RemainingCapacity` in the slot index that contains it.
    Both are None while no index contains it.
    """

    @property
    def load(self) -> int:
        """The number of leases on the slot in the scratch copy, including those that this cycle has placed."""
        return len(self.leases) - self.overlap - self.lifted + self.given

    @property
    def uses_left(self) -> float:
        """How many more leases the slot's machine may take (`max_uses`). Claims count as taken."""
        if not self.pool.max_uses:
            return inf  # most pools have no such limit: the claims are not counted
        claims = sum(lease.state == "claimed" for lease in self.leases.values())
        return count_uses_left(self.slot, self.pool, self.given + self.redeemed + claims)

    @property
    def has_place(self) -> bool:
        """Whether the limit of leases and `max_uses` allow one more lease on the slot. Resources are not tested."""
        return find_obstacle({}, None, self.pool.lease_limit - self.load, self.uses_left) is None

    @property
    def takes_leases(self) -> bool:
        """Whether the slot is ready, not cordoned, not offline, and runs no unknown reservation (`Slot.stranger`).

        The commit tests the same on rows (`stays_in_service`). Here drains and interruptions are in `state` or `stuck`.
        """
        return self.state == "ready" and not (self.slot.cordoned or self.stuck or self.slot.stranger)

    @property
    def is_coming(self) -> bool:
        """Whether the slot is in flight and not past its timeout."""
        return self.state in IN_FLIGHT and not self.stuck

    @property
    def is_active(self) -> bool:
        """Whether the slot counts towards `max_slots`. A slot in any state except `empty` and `error` does."""
        return self.state not in INACTIVE

    @property
    def is_serving(self) -> bool:
        """Whether the slot counts towards `min_slots`. A slot that is ready or in flight, and not cordoned, does."""
        return (self.state == "ready" or self.is_coming) and not self.slot.cordoned

    @property
    def is_idle(self) -> bool:
        """Whether the slot is ready and not cordoned, has no leases, and no reservation has capacity kept there."""
        is_free = not (self.leases or self.wanted or self.slot.stranger)
        return self.state == "ready" and not self.slot.cordoned and is_free

    def end_lease(self, key: tuple[str, str], now: float) -> None:
        """End one lease of the slot in this cycle. `key`: (reservation id, component).

        If the lease was not only a claim, its holder may have left files or processes on the machine. So in a pool with
        `recycle_unclean` the slot is unclean then.
        """
        ended = self.leases.get(key)
        self.leases = {other: lease for other, lease in self.leases.items() if other != key}
        self.idle_since = now
        if ended is None or ended.state != "claimed":
            self.unclean = self.pool.recycle_unclean
        self.count_free()

    def count_free(self) -> None:
        """Compute what follows from the leases of the slot, after these have changed: the free amounts (`free`), the
        number of pairs of a revoking lease and a claim (`overlap`), and `is_plain`.
        """
        leases, capacity = self.leases, self.capacity
        has_claims = has_limits = False
        uses: list[Resources] = []
        for lease in leases.values():  # speed: each lease is read once
            uses.append(lease.resources)
            if lease.state == "claimed":
                has_claims = True
            if lease.cores is not None:
                has_limits = True
        free, overlap, is_plain = capacity, 0, not (has_claims or has_limits)
        if has_claims and len(uses) > 1:
            usage = measure(leases.values())
            overlap = len(leases) - usage.count
            free = None if capacity is None else subtract(capacity, usage.amounts)
        elif uses and capacity is not None:  # speed: without claims there are no pairs
            free = subtract_all(capacity, uses)
        self.free = free
        # Speed: to set a field of a struct takes five times as long as to read it, and most fields keep their value.
        if self.overlap != overlap:
            self.overlap = overlap
        if self.is_plain is not is_plain:
            self.is_plain = is_plain


class CachedSlot(msgspec.Struct, eq=False):
    """A slot as it is at the beginning of a cycle, with the facts that follow from its row and its leases."""

    slot_info: SlotInfo
    """The slot as it is at the beginning of a cycle. Each cycle copies this object, and changes only the copy."""
    is_at_rest: bool
    """Whether no rule of the lifecycle, such as a timeout, can change the slot before its row or a lease changes."""
    is_sound: bool
    """Whether all leases that name the slot belong to its present machine (epoch)."""
    marks: tuple[Mark, Mark] | None = None
    """The two keys that `find_marks` returns for the unchanged slot; None until they are needed."""
    life: tuple[bool, float] | None = None
    """The result of `find_life` (whether the machine has drifted, and when it is too old); None until it is needed."""
    may_exceed: bool | None = None
    """Whether the leases may use more than the slot's capacity (`elastic/cascade.py`); None until it is needed."""


def make_slot_info(slot: Slot, pool: Pool, order: int, leases: Leases = NO_LEASES) -> SlotInfo:
    """Return the scratch copy of a slot with these leases, as it is before any decision of a cycle."""
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
        slot.free_since,
    )
    if leases:
        slot_info.count_free()
    return slot_info


def find_reason_to_retire(slot_info: SlotInfo) -> SlotReason | None:
    """Return the reason why a ready slot must be drained; None if it stays in service."""
    slot, pool = slot_info.slot, slot_info.pool
    if slot.offering is not None and not is_configured(slot, pool):
        return "unconfigured"
    if (slot_info.unconfirmed or slot.failed_probes) and is_unhealthy(pool, slot_info.unconfirmed, slot.failed_probes):
        return "unhealthy"
    if slot_info.unclean:
        return "unclean"
    if not count_uses_left(slot, pool) and not slot_info.leases and slot.stranger is None:
        return "used_up"
    # A slot that boots cannot drain yet, so its row keeps the reason until the slot is ready.
    return slot.drain_reason  # type: ignore[return-value]


def count_uses_left(slot: Slot, pool: Pool, taken: int = 0) -> float:
    """Return how many more leases a slot's machine may take before it is replaced (`max_uses`); infinity: no limit.

    `taken`: leases and claims that the count of uses in the slot's row does not contain yet.
    """
    return max(0, pool.max_uses - slot.uses - taken) if pool.max_uses else inf


def is_unhealthy(pool: Pool, unconfirmed: int, failed_probes: int) -> bool:
    """Return whether `unhealthy_after` (0: off) leases in a row were not confirmed, or as many probes in a row
    failed.
    """
    return 0 < pool.unhealthy_after <= max(unconfirmed, failed_probes)


def find_life(slot_info: SlotInfo, pool: Pool) -> tuple[bool, float]:
    """Return two facts about the slot's machine, by the rules of its pool: (1) whether it has drifted; (2) the time at
    which it is too old (seconds since the epoch; infinity: never).
    """
    cached = slot_info.opened
    if cached is not None and cached.life is not None:
        return cached.life
    rules = pool.replacement
    has_drifted = rules.drift == "replace" and bool(find_drift(slot_info.slot, pool.launch_digest))
    life = has_drifted, find_end_of_life(slot_info.slot, rules) if rules.max_age else inf
    if cached is not None:
        cached.life = life
    return life


def is_configured(slot: Slot, pool: Pool) -> bool:
    """Return whether the pool still has the offering from which the slot was launched. Return True if the slot was
    launched without an offering.

    The key of an offering changes when another offering of the same name is added in another market or zone. So the
    name and the market are compared too.
    """
    if slot.offering is None or not pool.is_elastic:
        return True
    known = pool.offering_by_key.get(slot.offering)
    if known is not None and slot.market in {None, known.market}:
        return True
    return any(slot.offering in _keys_of(each) and slot.market in {None, each.market} for each in pool.offerings)


def _keys_of(offering: Offering) -> tuple[str, str, str]:
    """Return all keys that an offering can have. The key in use depends on the other offerings of the same name."""
    key = f"{offering.name}/{offering.market}"
    return (offering.name, key, f"{key}/{offering.zone or 'any'}")


AT_REST: Final = frozenset({"ready", "empty"})
"""Slot states without a timeout, in which a slot may stay for any time."""


def make_cached_slot(view: View, slot: Slot, pool: Pool) -> CachedSlot:
    """Return a slot of this pool as it is at the beginning of a cycle, with the facts that stay valid until its row or
    a lease changes.
    """
    found, is_sound = _find_held(view, slot)
    slot_info = make_slot_info(slot, pool, 0, found)
    return CachedSlot(slot_info, _is_at_rest(slot_info), is_sound)


def renew_slot(slot_info: SlotInfo, view: View, slot: Slot) -> CachedSlot | None:
    """Update the scratch copy of a slot, and the cached facts from which it was copied, to the present row and leases
    of the slot. The result is the same as if both were made again. Return the cached facts. Return None, and change
    nothing, if a new row has other amounts, other labels or another market.

    Call this function only if the cycle did nothing to the slot except assign leases.
    """
    opened, pool = slot_info.opened, slot_info.pool
    assert opened is not None, "the view has had the slot"  # noqa: S101
    is_new_row = slot is not slot_info.slot
    if is_new_row:
        fresh = make_slot_info(slot, pool, opened.slot_info.order)
        if (fresh.capacity, fresh.labels, fresh.market) != (slot_info.capacity, slot_info.labels, slot_info.market):
            return None
        opened.slot_info, opened.life = fresh, None
        slot_info.slot, slot_info.state, slot_info.capacity = slot, fresh.state, fresh.capacity
        slot_info.labels, slot_info.price = fresh.labels, fresh.price
        slot_info.unconfirmed, slot_info.idle_since = fresh.unconfirmed, fresh.idle_since
    begun = opened.slot_info
    leases, is_sound = _find_held(view, slot)
    if slot_info.leases is not leases or begun.leases is not leases:
        slot_info.leases = begun.leases = leases
    slot_info.count_free()
    begun.free = slot_info.free
    # Speed: to set a field of a struct takes five times as long as to read it, and most fields keep their value.
    if begun.overlap != slot_info.overlap or begun.is_plain is not slot_info.is_plain:
        begun.overlap, begun.is_plain = slot_info.overlap, slot_info.is_plain
    if opened.is_sound is not is_sound:
        opened.is_sound = is_sound
    if opened.marks is not None or opened.may_exceed is not None:
        opened.marks = opened.may_exceed = None
    if is_new_row or pool.max_uses:  # otherwise the leases do not matter for it
        opened.is_at_rest = _is_at_rest(begun)
    if slot_info.given or slot_info.wanted or slot_info.lifted or slot_info.redeemed:
        slot_info.given = slot_info.redeemed = slot_info.lifted = 0
        slot_info.wanted = False
    if slot_info.unclean or slot_info.stuck:
        slot_info.unclean = slot_info.stuck = False
    return opened


def _find_held(view: View, slot: Slot) -> tuple[Leases, bool]:
    """Return two things: (1) the leases of a slot's present epoch; (2) whether no other lease names the slot."""
    named = view.leases_on.get(slot.id, NO_LEASES)
    found = _list_present(named, slot.epoch) if named and slot.state in HOLDING else NO_LEASES
    return found, found is named or len(found) == len(named)


def _is_at_rest(slot_info: SlotInfo) -> bool:
    slot, state = slot_info.slot, slot_info.slot.state
    if state == "stopped":
        return is_settled_stop(slot, slot_info.pool)
    if state not in AT_REST or slot.interrupted_at is not None:
        return False
    return state != "ready" or find_reason_to_retire(slot_info) is None


def is_settled_stop(slot: Slot, pool: Pool) -> bool:
    """Return whether a stopped slot stays as it is until it is started or replaced: the cloud has confirmed the stop,
    the pool has a stopped tier and the slot's offering, the machine may take leases, and no drain was requested.
    """
    is_wanted = pool.stopped_slots > 0 and is_configured(slot, pool) and count_uses_left(slot, pool) > 0
    return slot.power is None and slot.drain_reason is None and is_wanted


def is_sound(view: View, slot: Slot) -> bool:
    """Return whether all leases that name a slot belong to its present epoch, and its state permits leases."""
    named = view.leases_on.get(slot.id)
    return not named or (slot.state in HOLDING and len(find_leases(view, slot)) == len(named))


def find_leases(view: View, slot: Slot) -> Leases:
    """Return the leases of a slot's present epoch, by (reservation id, component)."""
    return _list_present(view.leases_on.get(slot.id, NO_LEASES), slot.epoch)


def _list_present(leases: Leases, epoch: int) -> Leases:
    """Return the leases in `leases` that belong to this epoch. If all do, return the table `leases` itself."""
    for lease in leases.values():
        if lease.epoch != epoch:
            return {key: each for key, each in leases.items() if each.epoch == epoch}
    return leases
