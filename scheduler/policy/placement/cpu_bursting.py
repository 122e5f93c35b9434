"""CPU bursting: the leases on a slot may use its spare cores in equal parts.

Each lease gets an upper limit of cores. The spare cores are not reserved for it, so the free amounts of the slot do not
change. Only slots that changed since the limits of their leases were last computed are examined. Source: Zoe.
"""

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from operator import attrgetter

from scheduler.model.decisions import (
    Assign,
    Cores,
    Decision,
    Expire,
    Fail,
    Grant,
    Launch,
    Placement,
    Preempt,
    Requeue,
    Revoke,
)
from scheduler.model.reservations import Lease
from scheduler.model.resources import CPUS, SLACK, Resources
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot, slot_order
from scheduler.model.transitions import HOLDING
from scheduler.policy.capacity.fits import capacity_of
from scheduler.policy.capacity.slot_info import SlotInfo, find_leases
from scheduler.policy.cycle.state import CycleState

Key = tuple[str, str]
"""The key of a lease: (reservation id, name of the component)."""


def share(cycle: CycleState) -> None:
    """Set the limit of each lease on a slot with `cpus` to its own cpus and an equal part of the slot's spare cpus.

    The part is max(0, the slot's cpus - the sum of its leases' cpus) / the number of leases. A lease whose limit
    changes gets a decision; a new lease starts at its own `cpus`. Leases that this cycle assigns, grants and ends are
    taken into account. Revoking leases count until they end, claims do not count. The decisions are in order of
    submission of their reservations, those of one reservation in slot order.
    """
    rules = cycle.rules
    if not cycle.view.has_limits:
        if cycle.have_cpus is None:  # speed: a kept cycle keeps the capacities of its slots, and the answer
            cycle.have_cpus = rules.has_shared_cores and _have_cpus(cycle.slot_infos.values())
        if not cycle.have_cpus:
            return
    unshared = cycle.cache.list_unshared(cycle.view, rules)
    moves = _follow(cycle.decisions, _list_filled(cycle, unshared))
    owns_on = moves.list_owns()
    touched = moves.list_left(cycle).union(owns_on)
    slots, slot_infos, found, spare_on = cycle.view.slots, cycle.slot_infos, list[Cores](), dict[str, float]()
    # Speed: in the order in which leases begin, slots that lie together in memory follow each other.
    for name in dict.fromkeys([*owns_on, *_list_unfilled(cycle, unshared, moves.omitted), *touched]):
        slot_info = slot_infos.get(name)
        slot = slots.get(name) if slot_info is None else slot_info.slot
        spare, changes = 0.0, None
        if slot is not None:
            leases = _list_staying(cycle, slot, slot_info, moves)
            spare, changes = _find_changes(slot, leases, owns_on.get(name, ()), rules)
        if spare > SLACK:
            spare_on[name] = spare
        if changes:
            found += changes
        elif name not in touched:
            unshared.pop(name, None)
    found += [
        Cores(
            reservation=owner,
            component=placement.component,
            slot=placement.slot,
            cpus=placement.resources.get(CPUS, 0.0) + spare_on[placement.slot],
            epoch=placement.epoch,
        )
        for owner, placement in moves.came
        if placement.slot in spare_on  # new leases start without spare cpus
    ]
    _decide_all(cycle, found)


def _decide_all(cycle: CycleState, found: Sequence[Cores]) -> None:
    """Add the changes of CPU limits in `found` to the decisions, as far as the work budgets permit them. The changes
    are sorted by the submission of their reservations, so that one write contains all changes of a reservation.
    """
    rows, decide = cycle.view.reservations, cycle.decisions.append
    owners = [rows[each.reservation] for each in found]
    numbers = [row.sequence for row in owners]
    places = range(len(found))
    if len(set(numbers)) < len(numbers):  # speed: most reservations have one change, and need no slot order
        order = {slot.id: at for at, slot in enumerate(_sort(cycle, {each.slot for each in found}))}
        places = sorted(places, key=[order[each.slot] for each in found].__getitem__)  # type: ignore[assignment]
    known, may_share = None, False
    for at in sorted(places, key=numbers.__getitem__):
        if owners[at] is not known:
            known = owners[at]
            may_share = len(known.leases) <= 1 or cycle.turns.may_share(known)
        if may_share:
            decide(found[at])


def _have_cpus(slot_infos: Iterable[SlotInfo]) -> bool:
    """Return whether one of these slots has the resource `cpus`. Slots that this cycle launches count too."""
    return any(each.capacity and CPUS in each.capacity for each in slot_infos)


def find_spare(slot: Slot, owns: Sequence[float], rules: Rules) -> float | None:
    """Return the cpus that each lease of a slot may use in addition to its own: an equal part of the spare cpus.
    `owns`: the `cpus` of each lease.

    None if the slot has no `cpus` or no leases; 0 if `share_cores` is false.
    """
    capacity: Resources | None = slot.resources
    if capacity is None and (pool := rules.pools.get(slot.pool)) is not None:
        capacity = capacity_of(slot, pool)
    if capacity is None or CPUS not in capacity or slot.state not in HOLDING or not owns:
        return None
    left = capacity[CPUS] - fsum(owns)
    return left / len(owns) if left > 0 and rules.settings_of(slot.pool, None).share_cores else 0.0


def find_limits(slot: Slot, leases: Mapping[Key, Lease], rules: Rules) -> dict[Key, float]:
    """Return the cpus that each of these leases of a slot may use: its own and an equal part of the spare cpus.

    Claims have no limit, because their holders do not use the slot yet. The result is empty if the slot has no `cpus`.
    """
    owns = {key: lease.resources.get(CPUS, 0.0) for key, lease in leases.items() if lease.state != "claimed"}
    spare = find_spare(slot, [*owns.values()], rules)
    return {} if spare is None else {key: own + spare for key, own in owns.items()}


def is_same(cores: float, other: float) -> bool:
    """Return whether two numbers of cpus are equal, apart from rounding errors."""
    return abs(cores - other) <= SLACK


def _list_filled(cycle: CycleState, unshared: Iterable[str]) -> dict[str, int]:
    """Return the slots on which no limit of cpus has to change (`_is_filled`), as a table (slot id -> number of leases
    that this cycle assigns there). Such a slot has no spare cpus, and none of its earlier leases has a limit.

    Only slots with new leases and slots in `unshared` are examined. `unshared`: ids of the slots with leases whose
    limits have to be computed again (`PlanCache.list_unshared`).

    Speed: most slots of a busy cycle are such slots. Their leases are only counted and not read.
    """
    known = cycle.slot_infos
    if len(cycle.decisions) < len(known):
        names = dict.fromkeys(unshared)
        for decision in cycle.decisions:
            if type(decision) is Assign:
                for placement in decision.leases:
                    names[placement.slot] = None
        return {name: each.given for name in names if (each := known.get(name)) is not None and _is_filled(each)}
    return {name: each.given for name, each in known.items() if each.given and _is_filled(each)}


def _is_filled(slot_info: SlotInfo) -> bool:
    """Return whether the limits of a slot's leases need no change: it has no spare cpus, and each lease from before the
    cycle stays there and has no limit of cores.
    """
    if slot_info.lifted:
        return False  # a grant may have taken what an elastic lease gave back
    opened = slot_info.opened
    # Without new leases, what the cycle took is kept for a reservation that waits, and is shared until then.
    free = slot_info.free if opened is None or slot_info.given else opened.slot_info.free
    if slot_info.capacity is not None and (free is None or free.get(CPUS, 0.0) > SLACK):
        return False
    if not slot_info.leases:
        return True
    return opened is not None and slot_info.is_plain and slot_info.leases is opened.slot_info.leases


def _list_unfilled(cycle: CycleState, unshared: dict[str, None], filled: Container[str]) -> list[str]:
    """Return the ids of the slots in `unshared` that are not in `filled`. Remove each slot in `filled` without new
    leases from `unshared`, because its limits are right.

    `unshared`: ids of the slots whose limits have to be computed again. `filled`: the result of `_list_filled`. A
    filled slot with new leases stays in `unshared`: the commit may skip a new lease, and its cpus are spare then.
    """
    found = []
    for name in list(unshared):
        if name not in filled:
            found.append(name)
        elif not cycle.slot_infos[name].given:
            del unshared[name]
    return found


@dataclass(slots=True)
class _Moves:
    """The leases that begin and end by the decisions of one cycle."""

    omitted: dict[str, int]
    """Slot id -> a number, for slots on which no limit has to change. Leases that begin on these slots are not added to
    `came`. The number is the leases that begin there, minus those that `follow` has found in the decisions so far.
    """
    came: list[tuple[str, Placement]] = field(default_factory=list)
    """The leases that begin on slots which are not in `omitted`, in order of the decisions: (reservation id,
    placement).
    """
    gone: set[str] = field(default_factory=set)
    """Ids of reservations that lose all their leases."""
    parted: set[tuple[str, str]] = field(default_factory=set)
    """Leases that end alone, while their reservation keeps its other leases, as (reservation id, component)."""

    def follow(self, decisions: Sequence[Decision]) -> None:
        """Collect the leases that begin and end by these decisions. The decisions are read from the last one to the
        first, because a lease does not count if its reservation loses all leases after the assignment.
        """
        came, gone, omitted = self.came, self.gone, self.omitted
        for decision in reversed(decisions):
            if type(decision) is Assign:  # speed: most decisions are; `match` takes several times as long
                if not (gone and decision.reservation in gone):
                    for placement in reversed(decision.leases):
                        if placement.slot in omitted:
                            omitted[placement.slot] -= 1
                        else:
                            came.append((decision.reservation, placement))
            elif type(decision) is not Launch:
                self._follow_other(decision)
        came.reverse()

    def list_owns(self) -> dict[str, list[float]]:
        """Return a table (slot id -> the own `cpus`, without spare cpus, of each lease in `came` on the slot)."""
        found = defaultdict[str, list[float]](list)
        for _, placement in self.came:
            found[placement.slot].append(placement.resources.get(CPUS, 0.0))
        return found

    def _follow_other(self, decision: Decision) -> None:
        match decision:
            case Grant(reservation=name) if name not in self.gone:
                if decision.slot in self.omitted:
                    self.omitted[decision.slot] -= 1
                    return
                given = Placement(decision.component, decision.slot, decision.epoch, decision.resources)
                self.came.append((name, given))
            case Fail() | Expire(revoke_by=None) | Requeue(revoke_by=None):
                self.gone.add(decision.reservation)
            case Revoke(revoke_by=None):
                self.parted.add((decision.reservation, decision.component))
            case Preempt(revoke_by=None):
                self.gone.update(name for name in decision.victims if name not in decision.partial)
            case _:
                pass

    def list_left(self, cycle: CycleState) -> set[str]:
        """Return the ids of the slots on which leases end in this cycle."""
        rows, left = cycle.view.reservations, set[str]()
        left.update(lease.slot for name in self.gone if name in rows for lease in rows[name].leases)
        for name, component in self.parted:
            left.update(lease.slot for lease in rows[name].leases if lease.component == component)
        return left


def _follow(decisions: Sequence[Decision], filled: dict[str, int]) -> _Moves:
    """Collect the leases that begin and end in this cycle from its decisions. Leases that begin on slots in `filled`
    are left out, because no limit has to change there.

    `filled`: slot id -> number of new leases for which the cycle has taken capacity on the slot. If the decisions begin
    fewer leases there, the slot has spare cpus: the rest of the capacity is kept for a reservation that waits. The
    leases on such a slot are collected too.
    """
    leases = [each.leases for each in decisions if type(each) is Assign] if filled else []
    if filled and len(leases) == len(decisions):  # speed: then no lease is counted for its slot
        came = [
            (decision.reservation, placement)  # type: ignore[union-attr]
            for decision, placements in zip(decisions, leases, strict=True)
            for placement in placements
            if placement.slot not in filled
        ]
        # On no slot of `filled` more leases begin than its number, so equal sums mean equal numbers.
        if sum(map(len, leases)) - len(came) == sum(filled.values()):
            return _Moves(filled, came)
    moves = _Moves(dict(filled))
    moves.follow(decisions)
    if any(moves.omitted.values()):
        moves = _Moves({name: count for name, count in filled.items() if not moves.omitted[name]})
        moves.follow(decisions)
    return moves


def _sort(cycle: CycleState, names: Iterable[str]) -> list[Slot]:
    """Return the slots with these ids in slot order. Slots of pools that the rules no longer list come last."""
    slot_infos, slots = cycle.slot_infos, cycle.view.slots
    known, others = [], []
    for name in names:
        if (slot_info := slot_infos.get(name)) is not None:
            known.append(slot_info)
        elif name in slots:
            others.append(slots[name])
    known.sort(key=attrgetter("order"))
    return [slot_info.slot for slot_info in known] + sorted(others, key=lambda slot: slot_order(slot.id))


def _list_staying(cycle: CycleState, slot: Slot, slot_info: SlotInfo | None, moves: _Moves) -> Mapping[Key, Lease]:
    """Return the leases that were on a slot before this cycle and stay there. `slot_info`: the scratch copy of the
    slot; None: the rules do not list its pool.
    """
    known = None if slot_info is None else slot_info.opened
    leases = find_leases(cycle.view, slot) if known is None else known.slot_info.leases
    if moves.gone or moves.parted:  # speed: without them no key is read, and most keys are not in the processor's cache
        return {key: lease for key, lease in leases.items() if key[0] not in moves.gone and key not in moves.parted}
    return leases


def _find_changes(
    slot: Slot, leases: Mapping[Key, Lease], came: Sequence[float], rules: Rules
) -> tuple[float, list[Cores] | None]:
    """Return two things: (1) the cpus that each lease of a slot may use in addition to its own; (2) the changed limits
    of `leases`, as decisions, or None if no limit can change.

    `leases`: the leases that stay on the slot; `came`: the `cpus` of the leases that begin there.
    """
    owns: list[float] = []  # speed: a list made by a call of `list[float]` takes ten times as long
    presents: list[float] = []
    for lease in leases.values():
        if lease.state != "claimed":
            own, cores = lease.resources.get(CPUS, 0.0), lease.cores
            owns.append(own)
            presents.append(0.0 if cores is None else cores - own)
    spare = find_spare(slot, [*owns, *came], rules)
    if spare is None or not (spare or any(presents)):
        return 0.0, None  # speed: most slots are full
    users = [key for key, lease in leases.items() if lease.state != "claimed"]
    name, epoch, is_new = slot.id, slot.epoch, not is_same(0.0, spare)
    return spare, [
        Cores(reservation=owner, component=component, slot=name, cpus=own + spare, epoch=epoch)
        for (owner, component), own, present in zip(users, owns, presents, strict=True)
        if (abs(present - spare) > SLACK if present else is_new)
    ]
