"""CPU bursting: the leases on a slot may use its spare cores in equal parts.

Each lease gets a limit and no reservation: the free amounts of the slot do not change. Only slots that changed since
the limits of their leases were last computed are examined. Source: Zoe.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
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
from scheduler.policy.cycle.step_values import Scaled, Shared

Key = tuple[str, str]
"""The id of a reservation and the name of the component that a lease is for."""


def share(cycle: Scaled) -> Shared:
    """Set the limit of each lease on a slot with `cpus` to its own cpus and an equal part of the slot's spare cpus.

    The part is max(0, the slot's cpus - the sum of its leases' cpus) / the number of leases. A lease whose limit
    changes gets a decision; a new lease starts at its own `cpus`. Leases that this cycle assigns, grants and ends are
    taken into account. Revoking leases count until they end, claims do not count. Decisions stand in order of
    submission, those of one reservation in slot order.
    """
    rules = cycle.rules
    if not cycle.view.has_limits:
        if cycle.have_cpus is None:  # speed: a kept cycle keeps the capacities of its slots, and the answer
            cycle.have_cpus = rules.has_shared_cores and _have_cpus(cycle.slot_infos.values())
        if not cycle.have_cpus:
            return Shared(cycle)
    moves = _follow(cycle.decisions, _list_filled(cycle))
    arrivals = moves.came
    touched = moves.list_left(cycle).union(arrivals)
    unshared = cycle.cache.list_unshared(cycle.view, rules)
    slots, slot_infos, changes_on = cycle.view.slots, cycle.slot_infos, dict[str, list[Cores]]()
    for name in unshared | touched:
        slot_info = slot_infos.get(name)
        slot = slots.get(name) if slot_info is None else slot_info.slot
        limits = None if slot is None else _list_changes(cycle, slot, slot_info, moves, arrivals.get(name, ()))
        if limits:
            changes_on[name] = limits
        elif name not in touched:
            unshared.discard(name)
    found = [cores for slot in _sort(cycle, changes_on) for cores in changes_on[slot.id]]
    rows, decide = cycle.view.reservations, cycle.decisions.append
    owners = [rows[each.reservation] for each in found]
    known, may_share = None, False
    for at in sorted(range(len(found)), key=[row.sequence for row in owners].__getitem__):
        # The changes of one reservation stand together, so that one write contains them.
        if owners[at] is not known:
            known, may_share = owners[at], cycle.turns.may_share(owners[at])
        if may_share:
            decide(found[at])
    return Shared(cycle)


def _have_cpus(slot_infos: Iterable[SlotInfo]) -> bool:
    """Return whether any slot has the resource `cpus`, also one that this cycle launches."""
    return any(each.capacity and CPUS in each.capacity for each in slot_infos)


def find_spare(slot: Slot, owns: Sequence[float], rules: Rules) -> float | None:
    """Return the cpus that each lease of a slot may use in addition to its own. `owns`: the `cpus` of each lease.

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
    """Return the cpus that each of these leases of a slot may use: its own and an equal part of the spare ones.

    Claims have no limit, because their holders do not use the slot yet. The result is empty if the slot has no `cpus`.
    """
    owns = {key: lease.resources.get(CPUS, 0.0) for key, lease in leases.items() if lease.state != "claimed"}
    spare = find_spare(slot, [*owns.values()], rules)
    return {} if spare is None else {key: own + spare for key, own in owns.items()}


def is_same(cores: float, other: float) -> bool:
    """Return whether two numbers of cpus are equal, apart from rounding."""
    return abs(cores - other) <= SLACK


def _list_filled(cycle: CycleState) -> dict[str, int]:
    """Return the slots without spare cpus that were empty before this cycle, with the number of new leases that fill
    each.

    Speed: most slots of a busy cycle are such slots, and their leases are only counted. A cycle with few decisions
    examines no slot for this, and the result is empty.
    """
    if len(cycle.decisions) < len(cycle.slot_infos):
        return {}
    return {
        name: each.given
        for name, each in cycle.slot_infos.items()
        if each.given
        and not each.leases
        and (each.capacity is None or (each.free is not None and each.free.get(CPUS, 0.0) <= SLACK))
    }


@dataclass(slots=True)
class _Moves:
    """The leases that the decisions of one cycle begin and end, by slot or by reservation."""

    omitted: dict[str, int]
    """Slots whose leases are not collected, with the number of leases that are expected to begin there in addition to
    those that were found.
    """
    came: dict[str, list[tuple[str, Placement]]] = field(default_factory=lambda: defaultdict(list))
    """The leases that begin on other slots, by slot: (reservation, placement), last one first."""
    gone: set[str] = field(default_factory=set)
    """Ids of reservations that lose all their leases."""
    parted: set[tuple[str, str]] = field(default_factory=set)
    """Single leases that end, as (reservation, component)."""

    def follow(self, decisions: Sequence[Decision]) -> None:
        """Collect the leases that begin and end by these decisions, last one first. A lease does not count if its
        reservation lost all leases after the assignment.
        """
        came, gone, omitted = self.came, self.gone, self.omitted
        for decision in reversed(decisions):
            if type(decision) is Assign:  # speed: most decisions are; `match` takes several times as long
                if not (gone and decision.reservation in gone):
                    for placement in reversed(decision.leases):
                        if placement.slot in omitted:
                            omitted[placement.slot] -= 1
                        else:
                            came[placement.slot].append((decision.reservation, placement))
            elif type(decision) is not Launch:
                self._follow_other(decision)

    def _follow_other(self, decision: Decision) -> None:
        match decision:
            case Grant(reservation=name) if name not in self.gone:
                if decision.slot in self.omitted:
                    self.omitted[decision.slot] -= 1
                    return
                given = Placement(decision.component, decision.slot, decision.epoch, decision.resources)
                self.came[decision.slot].append((name, given))
            case Expire() | Fail() | Requeue(revoke_by=None):
                self.gone.add(decision.reservation)
            case Revoke(revoke_by=None):
                self.parted.add((decision.reservation, decision.component))
            case Preempt(revoke_by=None):
                self.gone.update(decision.victims)
            case _:
                pass

    def list_left(self, cycle: CycleState) -> set[str]:
        """Return the slots on which leases end in this cycle."""
        rows, left = cycle.view.reservations, set[str]()
        left.update(lease.slot for name in self.gone if name in rows for lease in rows[name].leases)
        for name, component in self.parted:
            left.update(lease.slot for lease in rows[name].leases if lease.component == component)
        return left


def _follow(decisions: Sequence[Decision], filled: Mapping[str, int]) -> _Moves:
    """Collect the leases that begin and end in this cycle from its decisions, except those that begin on slots in
    `filled`.

    A slot of `filled` on which fewer leases begin than its number is included: it has spare cpus, because capacity is
    kept there for a reservation that waits.
    """
    moves = _Moves(dict(filled))
    moves.follow(decisions)
    if any(moves.omitted.values()):
        moves = _Moves({name: count for name, count in filled.items() if not moves.omitted[name]})
        moves.follow(decisions)
    return moves


def _sort(cycle: CycleState, names: Iterable[str]) -> list[Slot]:
    """Return the slots in slot order; slots of pools that the rules no longer list come last."""
    slot_infos, slots = cycle.slot_infos, cycle.view.slots
    known, others = [], []
    for name in names:
        if (slot_info := slot_infos.get(name)) is not None:
            known.append(slot_info)
        elif name in slots:
            others.append(slots[name])
    known.sort(key=attrgetter("order"))
    return [slot_info.slot for slot_info in known] + sorted(others, key=lambda slot: slot_order(slot.id))


def _list_changes(
    cycle: CycleState, slot: Slot, slot_info: SlotInfo | None, moves: _Moves, came: Sequence[tuple[str, Placement]]
) -> list[Cores]:
    """Return the changed core limits of the leases that are on a slot after this cycle. `slot_info`: its scratch copy,
    if the rules have its pool.
    """
    known = None if slot_info is None else slot_info.opened
    leases = find_leases(cycle.view, slot) if known is None else known.slot_info.leases
    if moves.gone or moves.parted:  # speed: without them no key is read, and most keys are not in the processor's cache
        leases = {key: lease for key, lease in leases.items() if key[0] not in moves.gone and key not in moves.parted}
    owns: list[float] = []  # speed: a list made by a call of `list[float]` takes ten times as long
    presents: list[float] = []
    for lease in leases.values():
        if lease.state != "claimed":
            own, cores = lease.resources.get(CPUS, 0.0), lease.cores
            owns.append(own)
            presents.append(0.0 if cores is None else cores - own)
    for _, placement in reversed(came):
        owns.append(placement.resources.get(CPUS, 0.0))
        presents.append(0.0)  # new leases start without spare cpus
    spare = find_spare(slot, owns, cycle.rules)
    if spare is None or not (spare or any(presents)):
        return []  # speed: most slots are full
    users = [key for key, lease in leases.items() if lease.state != "claimed"]
    users += [(owner, placement.component) for owner, placement in reversed(came)]
    name, epoch, is_new = slot.id, slot.epoch, not is_same(0.0, spare)
    return [
        Cores(reservation=owner, component=component, slot=name, cpus=own + spare, epoch=epoch)
        for (owner, component), own, present in zip(users, owns, presents, strict=True)
        if (abs(present - spare) > SLACK if present else is_new)
    ]
