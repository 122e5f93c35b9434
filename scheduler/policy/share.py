"""Step 9: spare cores. What a slot has and no lease asked for may be used by those who are on it, in equal parts.

A limit, not a reservation: nothing is taken from what is free. Only slots that changed since the limits of their leases
were found right are looked at, so a tick that changes nothing looks at none. Source: Zoe.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from operator import attrgetter
from typing import Final

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
from scheduler.model.moves import HOLDING
from scheduler.model.reservations import Lease
from scheduler.model.resources import SLACK, Resources
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot, slot_order
from scheduler.policy.draft import Draft
from scheduler.policy.places import Place, capacity_of

CPUS: Final = "cpus"


def share(draft: Draft) -> None:
    """Each lease of a slot with `cpus` may use its own + max(0, the slot's - the sum of the leases') / their number.

    Decided where a lease has another figure; a new one starts at its own `cpus`. What this tick assigns, grants and
    ends counts; who has to give back counts until it is gone, who only claims a place does not. Told in order of
    submission, of each reservation in the order of the slots.
    """
    if not (draft.view.has_limits or _has_something_to_share(draft)):
        return
    moves = _follow(draft.decisions)
    arrivals = moves.list_arrivals(draft.places)
    touched = moves.list_left(draft).union(arrivals)
    unshared = draft.view.list_unshared(draft.rules)
    for name in unshared - touched:
        slot = draft.view.slots.get(name)
        if slot is None or _is_even(slot, list_users(draft.leases_on(slot).values()), draft.rules):
            unshared.discard(name)
    found = [
        cores
        for slot in _sort(draft, unshared | touched)
        for cores in _list_changes(draft, slot, moves, arrivals.get(slot.id, ()))
    ]
    rows = draft.view.reservations
    # Those of one reservation stand together, so that they are written together.
    found.sort(key=lambda each: (rows[each.reservation].sequence, each.reservation))
    draft.decisions += found


def _has_something_to_share(draft: Draft) -> bool:
    places = draft.places.values()
    return draft.rules.has_shared_cores and any(each.capacity and CPUS in each.capacity for each in places)


def find_spare(slot: Slot, owns: Sequence[float], rules: Rules) -> float | None:
    """The cpus that each lease of this slot may use besides its own, given what each has; None where nobody counts
    them. With `share_cores` false nothing is shared.
    """
    pool = rules.pools.get(slot.pool)
    capacity = slot.resources if pool is None else capacity_of(slot, pool)
    if capacity is None or CPUS not in capacity or slot.state not in HOLDING or not owns:
        return None
    is_shared = rules.settings_of(slot.pool, None).share_cores
    return max(0.0, capacity[CPUS] - fsum(owns)) / len(owns) if is_shared else 0.0


def own_cores(resources: Resources) -> float:
    """What a lease may use before anything is shared: what it was given."""
    return resources.get(CPUS, 0.0)


def present_spare(lease: Lease) -> float:
    """What a lease may use besides its own, by the figure that it has."""
    return 0.0 if lease.cores is None else lease.cores - own_cores(lease.resources)


def is_same(cores: float, other: float) -> bool:
    """Whether two figures are the same, but for what adding up fractions may lose."""
    return abs(cores - other) <= SLACK


def list_users(leases: Iterable[Lease]) -> list[Lease]:
    """Those who may use the slot: one that only claims its place does not yet."""
    return [lease for lease in leases if lease.state != "claimed"]


def _is_even(slot: Slot, users: Collection[Lease], rules: Rules) -> bool:
    spare = find_spare(slot, [own_cores(lease.resources) for lease in users], rules)
    return spare is None or all(is_same(present_spare(lease), spare) for lease in users)


@dataclass(slots=True)
class _Moves:
    """Who comes and who goes in this tick."""

    came: dict[str, tuple[Placement, ...]] = field(default_factory=dict)
    """By reservation."""
    gone: set[str] = field(default_factory=set)
    """Reservations that gave back all that they had."""
    parted: set[tuple[str, str]] = field(default_factory=set)
    """(reservation, component) of single instances."""

    def end(self, reservation: str) -> None:
        """All that it held before this tick, and was given in it."""
        self.gone.add(reservation)
        self.came.pop(reservation, None)

    def list_arrivals(self, places: Mapping[str, Place]) -> dict[str, list[tuple[str, Placement]]]:
        """By slot that has any resources: (reservation, placement) of those who come."""
        found: dict[str, list[tuple[str, Placement]]] = {}
        for name, placements in self.came.items():
            for each in placements:
                if places[each.slot].capacity is not None:
                    found.setdefault(each.slot, []).append((name, each))
        return found

    def list_left(self, draft: Draft) -> set[str]:
        """The slots that anybody goes from."""
        rows, left = draft.view.reservations, set[str]()
        left.update(lease.slot for name in self.gone if name in rows for lease in rows[name].leases)
        for name, component in self.parted:
            left.update(lease.slot for lease in rows[name].leases if lease.component == component)
        return left


def _follow(decisions: Iterable[Decision]) -> _Moves:
    moves = _Moves()
    for decision in decisions:
        if type(decision) is Assign:  # by far most of them: a match takes several times as long
            moves.came[decision.reservation] = decision.leases
            continue
        if type(decision) is Launch:
            continue
        match decision:
            case Grant():
                given = Placement(decision.component, decision.slot, decision.epoch, decision.resources)
                moves.came[decision.reservation] = (*moves.came.get(decision.reservation, ()), given)
            case Expire() | Fail() | Requeue(revoke_by=None):
                moves.end(decision.reservation)
            case Revoke(revoke_by=None):
                moves.parted.add((decision.reservation, decision.component))
            case Preempt(revoke_by=None):
                for victim in decision.victims:
                    moves.end(victim)
            case _:
                pass
    return moves


def _sort(draft: Draft, names: Iterable[str]) -> list[Slot]:
    """The slots in their order, those of pools that the rules no longer list last."""
    places, slots = draft.places, draft.view.slots
    known, others = [], []
    for name in names:
        if (place := places.get(name)) is not None:
            known.append(place)
        elif name in slots:
            others.append(slots[name])
    known.sort(key=attrgetter("order"))
    return [place.slot for place in known] + sorted(others, key=lambda slot: slot_order(slot.id))


def _list_changes(draft: Draft, slot: Slot, moves: _Moves, came: Sequence[tuple[str, Placement]]) -> list[Cores]:
    """What changes for those who are on it when all is done."""
    stay = [
        (owner, lease)
        for (owner, component), lease in draft.leases_on(slot).items()
        if lease.state != "claimed" and owner not in moves.gone and (owner, component) not in moves.parted
    ]
    owns = [each.resources.get(CPUS, 0.0) for _, each in stay]
    owns += [each.resources.get(CPUS, 0.0) for _, each in came]
    spare = find_spare(slot, owns, draft.rules)
    if spare is None or (spare <= SLACK and not stay):
        return []
    known = [present_spare(lease) for _, lease in stay] + [0.0] * len(came)
    everybody: list[tuple[str, Lease | Placement]] = [*stay, *came]
    return [
        Cores(reservation=owner, component=each.component, slot=slot.id, cpus=own + spare, epoch=slot.epoch)
        for (owner, each), own, present in zip(everybody, owns, known, strict=True)
        if not is_same(present, spare)
    ]
