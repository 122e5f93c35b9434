"""Writes down what became of elastic instances: the revokes that an assignment needs before it, grants after it.

With a `preemption_grace` whoever gives back keeps its place until then, and nobody is given room that somebody may
still use: a newcomer claims its places meanwhile, and what else is to be granted waits for a later tick. Source: Zoe.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from scheduler.model.decisions import Assign, Claim, Decision, Grant, Revoke
from scheduler.model.resources import SLACK, Resources
from scheduler.policy.draft import Draft
from scheduler.policy.places import Place
from scheduler.policy.seats import Group, Seat

State = Literal["held", "revoking", "claimed"]


@dataclass(slots=True)
class _Sum:
    """Leases of one state on one slot, added up."""

    count: int = 0
    amounts: dict[str, float] = field(default_factory=dict)

    def add(self, amounts: Resources, times: int = 1) -> None:
        self.count += times
        for name, amount in amounts.items():
            self.amounts[name] = self.amounts.get(name, 0.0) + times * amount


class _Room:
    """What one slot carries, as decision after decision is written down."""

    def __init__(self, place: Place, given: Mapping[tuple[str, str], Resources]) -> None:
        """`given`: what this tick had assigned there before, under (reservation, component)."""
        self._place = place
        self._sums: Mapping[State, _Sum] = {"held": _Sum(), "revoking": _Sum(), "claimed": _Sum()}
        for lease in place.leases.values():
            self.add(lease.state, lease.resources)
        for amounts in (amounts for key, amounts in given.items() if key not in place.leases):
            self.add("held", amounts)

    def add(self, state: State, amounts: Resources, times: int = 1) -> None:
        self._sums[state].add(amounts, times)

    def revoke(self, seat: Seat, *, is_over: bool) -> None:
        """It ends, or its holder has a deadline."""
        amounts = seat.amounts_on(self._place)
        self.add("held", amounts, -1)
        if not is_over:
            self.add("revoking", amounts)

    def fits(self) -> bool:
        """Whether all of it fits. A claim waits for those who are revoking: only the larger of the two counts."""
        held, revoking, claimed = self._sums.values()
        if held.count + max(revoking.count, claimed.count) > self._place.pool.lease_limit:
            return False
        if self._place.capacity is None:
            return True
        names = {**held.amounts, **revoking.amounts, **claimed.amounts}
        return all(self._sum(name) <= self._place.capacity.get(name, 0) + SLACK for name in names)

    def _sum(self, name: str) -> float:
        held, revoking, claimed = (each.amounts.get(name, 0.0) for each in self._sums.values())
        return held + max(revoking, claimed)


def _list_given(decisions: Iterable[Decision]) -> dict[str, dict[tuple[str, str], Resources]]:
    """By slot, under (reservation, component), what these decisions assign."""
    found: dict[str, dict[tuple[str, str], Resources]] = {}
    for decision in decisions:
        if isinstance(decision, Assign):
            for each in decision.leases:
                found.setdefault(each.slot, {})[decision.reservation, each.component] = each.resources
    return found


class Settlement:
    """What becomes of all seats of a tick, as decisions."""

    def __init__(self, draft: Draft, start: int) -> None:
        """`start`: how many decisions there were before anybody was placed."""
        self._draft, self._start = draft, start
        self._rooms: dict[str, _Room] = {}
        """By slot: those from which something is taken back."""
        self._given = _list_given(draft.decisions[:start])
        self._revoked: dict[str, list[Seat]] = {}
        """By slot: what is taken back there, who ranks last first."""
        self._late: list[Seat] = []
        """Granted after everything else: where something was taken back before."""
        self._early: dict[str, list[Seat]] = {}
        """By holder: granted with its assignment, or before all of them."""
        self._claiming: set[str] = set()
        self._nameless: dict[Group, list[Seat]] = {}
        """By component: the instances that may be granted and are not yet, highest index first."""

    def add(self, seats: Sequence[Seat], *, takes_back: bool) -> None:
        """The seats of one queue, in rank order."""
        moved = [seat for seat in seats if seat.place is not seat.home]
        for seat in moved:
            if seat.is_granted and takes_back:
                self._late.append(seat)
            elif seat.is_granted:
                self._early.setdefault(seat.holder.id, []).append(seat)
        for seat in reversed(moved):
            if seat.is_revoked and seat.home is not None:
                slot = seat.home.slot.id
                if slot not in self._rooms:
                    self._rooms[slot] = _Room(seat.home, self._given.get(slot, {}))
                self._revoked.setdefault(slot, []).append(seat)

    def write(self) -> None:
        """Put the decisions of this step in their order."""
        decisions = self._draft.decisions
        placed = decisions[self._start :]
        decisions[self._start :] = [
            *self._grant_early(placed),
            *(written for decision in placed for written in self._write(decision)),
            *self._revoke_others(),
            *self._grant(self._late),
        ]

    def _grant_early(self, placed: Iterable[Decision]) -> Iterator[Decision]:
        assigned = {decision.reservation for decision in placed if isinstance(decision, Assign)}
        for holder, seats in self._early.items():
            if holder not in assigned:
                yield from self._grant(seats)

    def _write(self, decision: Decision) -> Iterator[Decision]:
        if not isinstance(decision, Assign):
            yield decision
            return
        yield from self._make_way(decision)
        yield from self._grant(self._early.get(decision.reservation, ()))

    def _make_way(self, assign: Assign) -> Iterator[Decision]:
        """The assignment, after the revokes that it needs; with a grace, a claim in its stead."""
        mine = [(self._rooms[each.slot], each) for each in assign.leases if each.slot in self._rooms]
        for room, each in mine:
            room.add("held", each.resources)
        if all(room.fits() for room, _ in mine):
            yield assign
            return
        is_over = not self._find_grace(assign.reservation)
        for room, each in () if is_over else mine:
            room.add("held", each.resources, -1)
            room.add("claimed", each.resources)
        for room, each in mine:
            while not room.fits() and self._revoked[each.slot]:
                seat = self._revoked[each.slot].pop(0)
                room.revoke(seat, is_over=is_over)
                yield self._revoke(seat, assign.reservation)
        yield assign if is_over else self._claim(assign)

    def _find_grace(self, reservation: str) -> float:
        return self._draft.settings_of(self._draft.view.reservations[reservation]).preemption_grace

    def _claim(self, assign: Assign) -> Claim:
        self._claiming.add(assign.reservation)
        row = self._draft.view.reservations[assign.reservation]
        self._draft.wait(row.id, "no_capacity", "elastic instances of others give its place back")
        return Claim(reservation=assign.reservation, leases=assign.leases)

    def _revoke_others(self) -> Iterator[Decision]:
        """What makes room for elastic instances of those who rank before, or fits no more."""
        for slot, seats in self._revoked.items():
            for seat in seats:
                self._rooms[slot].revoke(seat, is_over=not self._find_grace(seat.holder.id))
                yield self._revoke(seat, None)

    def _revoke(self, seat: Seat, room_for: str | None) -> Revoke:
        grace = self._find_grace(seat.holder.id)
        assert seat.lease is not None, "only what is held is taken back"  # noqa: S101
        return Revoke(
            reservation=seat.holder.id,
            component=seat.instance.name,
            slot=seat.lease.slot,
            reason="reclaimed",
            epoch=seat.lease.epoch,
            revoke_by=self._draft.now + grace if grace else None,
            room_for=room_for,
        )

    def _grant(self, seats: Iterable[Seat]) -> Iterator[Decision]:
        """Those whose room is free now: the others wait until it is."""
        for seat in seats:
            place = seat.place
            if place is None or seat.holder.id in self._claiming:
                continue
            slot, amounts, room = place.slot, seat.amounts_on(place), self._rooms.get(place.slot.id)
            if room is not None:
                room.add("held", amounts)
                if not room.fits():
                    room.add("held", amounts, -1)
                    continue
            place.wanted = True
            yield Grant(
                reservation=seat.holder.id,
                component=self._take_name(seat.group),
                slot=slot.id,
                epoch=slot.epoch,
                resources=dict(amounts),
            )

    def _take_name(self, group: Group) -> str:
        """The lowest index of the component that is not held nor granted yet: its instances are alike, and which of
        their places came to nothing in between says nothing of their names. Source: Zoe.
        """
        if group not in self._nameless:
            self._nameless[group] = [seat for seat in reversed(group.seats) if self._may_be_granted(seat)]
        return self._nameless[group].pop().instance.name

    def _may_be_granted(self, seat: Seat) -> bool:
        """Whether it holds nothing, or gives back at once what it holds."""
        if seat.lease is None:
            return True
        return seat.is_revoked and not self._find_grace(seat.holder.id)
