"""Step 9: spare cores. What a slot has and no lease asked for may be used by those who are on it, in equal parts.

A limit, not a reservation: nothing is taken from what is free. Only slots that changed since the limits of their leases
were found right are looked at, so a tick that changes nothing looks at none. Source: Zoe.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import fsum, inf
from typing import Final, NamedTuple

from scheduler.model.decisions import Assign, Cores, Decision, Expire, Fail, Grant, Placement, Preempt, Requeue, Revoke
from scheduler.model.moves import HOLDING
from scheduler.model.reservations import Lease
from scheduler.model.resources import SLACK, Resources
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot, slot_order
from scheduler.policy.draft import Draft
from scheduler.policy.places import capacity_of

CPUS: Final = "cpus"


def share(draft: Draft) -> None:
    """Each lease of a slot with `cpus` may use its own + max(0, the slot's - the sum of the leases') / their number.

    Decided where a lease has another figure; a new one starts at its own `cpus`. What this tick assigns, grants and
    ends counts; who has to give back counts until it is gone, who only claims a place does not.
    """
    moves = _follow(draft.decisions)
    touched = moves.list_slots(draft)
    unshared = draft.view.list_unshared(draft.rules)
    for name in unshared - touched:
        slot = draft.view.slots.get(name)
        if slot is None or _is_even(slot, list_users(draft.leases_on(slot).values()), draft.rules):
            unshared.discard(name)
    for slot in _sort(draft, unshared | touched):
        for cores in _list_changes(slot, _list_users_after(draft, slot, moves), draft.rules):
            draft.decide(cores)


def find_cores(slot: Slot, owns: Sequence[float], rules: Rules) -> list[float] | None:
    """The cpus that each lease of this slot may use, given those that each asked for; None where nobody counts them.

    With `share_cores` false nothing is shared: each may use its own.
    """
    pool = rules.pools.get(slot.pool)
    capacity = slot.resources if pool is None else capacity_of(slot, pool)
    if capacity is None or CPUS not in capacity or slot.state not in HOLDING or not owns:
        return None
    is_shared = rules.settings_of(slot.pool, None).share_cores
    spare = max(0.0, capacity[CPUS] - fsum(owns)) / len(owns) if is_shared else 0.0
    return [own + spare for own in owns]


def own_cores(resources: Resources) -> float:
    """What a lease may use before anything is shared: what it was given."""
    return resources.get(CPUS, 0.0)


def present_cores(lease: Lease) -> float:
    """The figure that a lease has."""
    return own_cores(lease.resources) if lease.cores is None else lease.cores


def is_same(cores: float, other: float) -> bool:
    """Whether two figures are the same, but for what adding up fractions may lose."""
    return abs(cores - other) <= SLACK


def list_users(leases: Iterable[Lease]) -> list[Lease]:
    """Those who may use the slot: one that only claims its place does not yet."""
    return [lease for lease in leases if lease.state != "claimed"]


def _is_even(slot: Slot, users: Collection[Lease], rules: Rules) -> bool:
    found = find_cores(slot, [own_cores(lease.resources) for lease in users], rules)
    return found is None or all(map(is_same, map(present_cores, users), found))


class _User(NamedTuple):
    """Somebody on a slot: what it asked for, and the figure that it has."""

    reservation: str
    component: str
    own: float
    cores: float
    epoch: int


@dataclass(slots=True)
class _Moves:
    """Who comes and who goes in this tick."""

    came: dict[str, list[Placement]] = field(default_factory=dict)
    """By reservation."""
    gone: set[str] = field(default_factory=set)
    """Reservations that gave back all that they had."""
    parted: set[tuple[str, str]] = field(default_factory=set)
    """(reservation, component) of single instances."""
    arrivals: dict[str, list[_User]] = field(default_factory=dict)
    """By slot: those who come."""

    def end(self, reservation: str) -> None:
        """All that it held before this tick, and was given in it."""
        self.gone.add(reservation)
        self.came.pop(reservation, None)

    def arrive(self) -> None:
        """All is decided: sort those who come by their slots."""
        for name, placements in self.came.items():
            for each in placements:
                own = own_cores(each.resources)
                self.arrivals.setdefault(each.slot, []).append(_User(name, each.component, own, own, each.epoch))

    def list_slots(self, draft: Draft) -> set[str]:
        """Where anybody comes or goes."""
        rows, left = draft.view.reservations, {*self.arrivals}
        left.update(lease.slot for name in self.gone if name in rows for lease in rows[name].leases)
        for name, component in self.parted:
            left.update(lease.slot for lease in rows[name].leases if lease.component == component)
        return left


def _follow(decisions: Iterable[Decision]) -> _Moves:
    moves = _Moves()
    for decision in decisions:
        match decision:
            case Assign():
                moves.came[decision.reservation] = [*decision.leases]
            case Grant():
                given = Placement(decision.component, decision.slot, decision.epoch, decision.resources)
                moves.came.setdefault(decision.reservation, []).append(given)
            case Expire() | Fail() | Requeue(revoke_by=None):
                moves.end(decision.reservation)
            case Revoke(revoke_by=None):
                moves.parted.add((decision.reservation, decision.component))
            case Preempt(revoke_by=None):
                for victim in decision.victims:
                    moves.end(victim)
            case _:
                pass
    moves.arrive()
    return moves


def _sort(draft: Draft, names: Iterable[str]) -> list[Slot]:
    """The slots in their order, those of pools that the rules no longer list last."""
    slots = [slot for name in names if (slot := draft.view.slots.get(name)) is not None]
    return sorted(slots, key=lambda slot: (_rank(draft, slot), slot_order(slot.id)))


def _rank(draft: Draft, slot: Slot) -> float:
    place = draft.places.get(slot.id)
    return inf if place is None else place.order


def _list_users_after(draft: Draft, slot: Slot, moves: _Moves) -> list[_User]:
    """Those who are on it when all is done, in order of submission."""
    stay = [
        _User(owner, lease.component, own_cores(lease.resources), present_cores(lease), lease.epoch)
        for (owner, _), lease in draft.leases_on(slot).items()
        if lease.state != "claimed" and owner not in moves.gone and (owner, lease.component) not in moves.parted
    ]
    rows = draft.view.reservations
    return sorted(
        [*stay, *moves.arrivals.get(slot.id, ())], key=lambda user: (rows[user.reservation].sequence, user.reservation)
    )


def _list_changes(slot: Slot, users: Sequence[_User], rules: Rules) -> Iterator[Cores]:
    found = find_cores(slot, [user.own for user in users], rules)
    for user, cores in zip(users, found or (), strict=False):
        if not is_same(user.cores, cores):
            yield Cores(
                reservation=user.reservation, component=user.component, slot=slot.id, cpus=cores, epoch=user.epoch
            )
