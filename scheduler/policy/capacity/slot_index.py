"""Rooms: the places that may take instances, so kept that finding one does not look at all of them.

Places stand in lines, where the best one is first; a line is shared by all needs that ask for as much of the same pools
and labels. Giving a lease gives one place another stock, of which the lines are told that it still has enough for. So
the cost of a tick grows with the number of different places and needs, and with the leases that are given, not with
slots × reservations.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from operator import attrgetter
from typing import TypeVar

from scheduler.policy.capacity.candidate_queue import (
    LEASE,
    CandidateQueue,
    RemainingCapacities,
    RemainingCapacity,
    SlotClass,
    find_best_but,
)
from scheduler.policy.capacity.requests import Amounts, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo

Key = tuple[object, ...]
Given = TypeVar("Given")
_RANK = attrgetter("rank")

PLACES_A_STEP = 100
"""So many places are added up in the time that taking one takes."""
CHANGES_A_STEP = 3
"""So many changes are read in the same time."""
MOST_LINES = 8
"""So many lines are looked at for one need; more kinds that are as good share one."""


class SlotIndex:
    """The places that may take instances in this tick; `find` chooses one, `take` spends its room."""

    def __init__(self, slot_infos: Iterable[SlotInfo] = ()) -> None:
        self._places: dict[int, SlotInfo] = {}
        """By order."""
        self._kinds: dict[Key, SlotClass] = {}
        self._kinds_of_pool: dict[str, list[SlotClass]] = {}
        self._stocks = RemainingCapacities()
        self._lines: dict[Key, CandidateQueue] = {}
        self._tiers: dict[InstanceRequest, list[list[CandidateQueue]]] = {}
        """Where each need looks: lines of kinds with its labels, those with most preferred and then fewest surplus
        labels first, equally good ones together.
        """
        self.changes = 0
        """How many changes of stocks lines have to read before they are searched."""
        self.steps = 0
        """Work that searches for several instances at once have taken (`policy/cycle/work_budget.py`)."""
        for slot_info in slot_infos:
            self._stand(slot_info)

    def add(self, slot_info: SlotInfo, need: InstanceRequest | None = None) -> None:
        """Let searches find this place, where there is a need: what it leaves of it, as if it was taken at once."""
        self._stand(slot_info)
        if need is not None:
            after = slot_info.remaining.after[need.steps[slot_info.slot_class.pool]]
            assert after is not None, "what is added for a need has room for it"  # noqa: S101
            slot_info.given += 1
            slot_info.free, slot_info.remaining = after.free, after
        self._note(slot_info.slot_class, slot_info)

    def _note(self, slot_class: SlotClass, slot_info: SlotInfo) -> None:
        """Lines read of this change before their next search."""
        slot_class.changed.append(slot_info)
        self.changes += 1
        self.steps += 1

    def _stand(self, slot_info: SlotInfo) -> None:
        """It is there, before any line is told of it."""
        self._places[slot_info.order] = slot_info
        kind_mark, stock_mark = slot_info.find_marks()
        slot_class = slot_info.slot_class = self._kinds.get(kind_mark) or self._open_kind(kind_mark, slot_info)
        slot_class.slot_infos.append(slot_info)
        remaining = slot_info.remaining = self._stocks.find(stock_mark, slot_info.free)
        slot_info.free = remaining.free

    def remove(self, slot_info: SlotInfo) -> None:
        """Let no search find this place any more."""
        del self._places[slot_info.order]
        slot_class, slot_info.slot_class, slot_info.remaining = slot_info.slot_class, None, None
        slot_class.some_left = True
        self._note(slot_class, slot_info)

    def __len__(self) -> int:
        return len(self._places)

    def has(self, slot_info: SlotInfo) -> bool:
        """Whether searches may find this place."""
        return slot_info.order in self._places

    def regroup(self, slot_info: SlotInfo) -> None:
        """What is free there changed otherwise than by `take`: let searches find it as it now is. The next search of
        each line hears of it, so that a place may change often among many different needs.
        """
        remaining = self._stocks.find(slot_info.make_stock_mark(), slot_info.free)
        if remaining is slot_info.remaining:
            return
        self._put(slot_info, remaining)

    def list_places(self) -> Iterator[SlotInfo]:
        """Every place, in no particular order."""
        return iter(self._places.values())

    def find(self, need: InstanceRequest, declined: Collection[str] = ()) -> SlotInfo | None:
        """The place for one instance; None when nothing has room."""
        tiers = self._tiers.get(need)
        if tiers is None:
            tiers = self._rank(need)
        if declined:
            return next(
                (
                    found
                    for candidate_queues in tiers
                    if (found := find_best_but(candidate_queues, declined)) is not None
                ),
                None,
            )
        for candidate_queues in tiers:
            if (best := self._find_best(candidate_queues).first) is not None:
                return best
        return None

    def _find_best(self, candidate_queues: list[CandidateQueue]) -> CandidateQueue:
        """The one of these, which rank alike, with the best first place; one without any where none has."""
        if self.changes:
            self._catch_up(candidate_queues)
        return candidate_queues[0] if len(candidate_queues) == 1 else min(candidate_queues, key=_RANK)

    def _catch_up(self, candidate_queues: list[CandidateQueue]) -> None:
        for candidates in candidate_queues:
            if candidates.read_at != self.changes:
                self.steps += candidates.catch_up() // CHANGES_A_STEP
                candidates.read_at = self.changes

    def take(self, slot_info: SlotInfo, need: InstanceRequest) -> None:
        """Spend the room of one instance there."""
        after = slot_info.remaining.after[need.steps[slot_info.slot_class.pool]]
        assert after is not None, "only what a search has found is taken"  # noqa: S101
        self._spend(slot_info, after)

    def take_often(self, slot_info: SlotInfo, need: InstanceRequest, most: int) -> int:
        """Spend the room of up to so many instances there, at least one; how many it took."""
        if most == 1:
            self.take(slot_info, need)
            return 1
        before: RemainingCapacity = slot_info.remaining
        count, remaining = before.take_often(need.steps[slot_info.slot_class.pool], most)
        slot_info.given += count
        self._put(slot_info, remaining)
        return count

    def take_each(self, need: InstanceRequest, give: Callable[[SlotInfo], Given]) -> Iterator[Given]:
        """What each lease gets of the places that one `find` and `take` after the other would find, as long as there is
        room; only where in between others take room and nobody gives any back: what has none is not looked at again.
        """
        known, given = None, None
        for candidate_queues in self._tiers.get(need) or self._rank(need):
            [best, *others] = candidate_queues
            while True:
                if self.changes:
                    self._catch_up(candidate_queues)
                candidates = best  # what `_find_best` does, spelt out: a call of it for each lease costs a tenth
                for other in others:
                    if other.rank < candidates.rank:
                        candidates = other
                slot_info = candidates.first
                if slot_info is None:
                    break
                self._spend(slot_info, slot_info.remaining.after[candidates.step])
                if slot_info is not known:
                    known, given = slot_info, give(slot_info)
                yield given  # type: ignore[misc]  # it was given at the first place

    def _spend(self, slot_info: SlotInfo, after: RemainingCapacity) -> None:
        """One more instance is there, which leaves this."""
        slot_info.given += 1
        slot_info.free, slot_info.remaining, left = after.free, after, after.after
        for candidates in slot_info.slot_class.candidate_queues:
            if candidates.first is slot_info:
                if left[candidates.step] is None:
                    candidates.pass_over_first()
                elif candidates.spreads:
                    candidates.tell(slot_info)
                else:
                    candidates.rank -= LEASE
            elif left[candidates.step] is not None:
                candidates.enter(slot_info)

    def take_run(self, need: InstanceRequest, most: int) -> list[tuple[SlotInfo, int]]:
        """What so many times `find` and `take` would find, for a need that does not spread: how often each place.

        Who has taken a place finds it again until it is full: none has more leases. Fewer where room ends.
        """
        runs: list[tuple[SlotInfo, int]] = []
        while most > 0 and (slot_info := self.find(need)) is not None:
            given = self.take_often(slot_info, need, most)
            runs.append((slot_info, given))
            most -= given
            slot_info.wanted = True
        return runs

    def count_room(self, need: InstanceRequest, most: int) -> int:
        """How many instances of this need all places have room for, each place by itself; up to `most`."""
        left = most
        known: dict[RemainingCapacity, int] = {}
        for pool, step in need.steps.items():
            for slot_class in self._kinds_of_pool.get(pool, ()):
                if need.rank_labels(slot_class.labels) is None:
                    continue
                self.steps += 1 + len(slot_class.slot_infos) // PLACES_A_STEP
                for slot_info in slot_class.slot_infos:
                    if slot_info.slot_class is slot_class:
                        remaining: RemainingCapacity = slot_info.remaining
                        if remaining not in known:
                            known[remaining], _ = remaining.take_often(step, most)
                        left -= known[remaining]
                        if left <= 0:
                            return most
        return most - left

    def put_back(self, slot_info: SlotInfo, remaining: RemainingCapacity, count: int) -> None:
        """Undo what was taken there last, so often."""
        slot_info.given -= count
        self._put(slot_info, remaining)

    def close(self) -> None:
        """Nothing is looked for any more: what knows each other forgets it, and leaves no work to the collector."""
        self._stocks.close()
        for slot_class in self._kinds.values():
            slot_class.slot_infos.clear()
            slot_class.changed.clear()
            slot_class.candidate_queues.clear()

    def _put(self, slot_info: SlotInfo, remaining: RemainingCapacity) -> None:
        """From now on that place has this stock: the lines that it stands in read of it before their next search."""
        slot_info.free, slot_info.remaining = remaining.free, remaining
        self._note(slot_info.slot_class, slot_info)

    def _open_kind(self, mark: Key, slot_info: SlotInfo) -> SlotClass:
        slot_class = self._kinds[mark] = SlotClass(len(self._kinds), slot_info.slot.pool, slot_info.labels)
        self._kinds_of_pool.setdefault(slot_class.pool, []).append(slot_class)
        self._tiers.clear()
        return slot_class

    def _rank(self, need: InstanceRequest) -> list[list[CandidateQueue]]:
        """Where that need looks, from now on until there is one more kind."""
        slot_classes = [slot_class for pool in need.steps for slot_class in self._kinds_of_pool.get(pool, ())]
        tiers = self._tiers[need] = []
        for alike in _rank_kinds(need, slot_classes):
            shared = _group_by_step(need, alike) if len(alike) > MOST_LINES else [[slot_class] for slot_class in alike]
            tiers.append([self._open_line(need, each) for each in shared])
        return tiers

    def _open_line(self, need: InstanceRequest, slot_classes: list[SlotClass]) -> CandidateQueue:
        """One for all that ask for as much of these kinds."""
        step = need.steps[slot_classes[0].pool]
        key = (need.spreads, step, *[slot_class.number for slot_class in slot_classes])
        candidates = self._lines.get(key)
        if candidates is None:
            candidates = self._lines[key] = CandidateQueue(step, need.spreads, frozenset(slot_classes), self._places)
            for slot_class in slot_classes:
                slot_class.candidate_queues.append(candidates)
            candidates.open()
            candidates.read_at = self.changes
        return candidates


def _group_by_step(need: InstanceRequest, slot_classes: Iterable[SlotClass]) -> Iterable[list[SlotClass]]:
    found: dict[Amounts, list[SlotClass]] = {}
    for slot_class in slot_classes:
        found.setdefault(need.steps[slot_class.pool], []).append(slot_class)
    return found.values()


def _rank_kinds(need: InstanceRequest, slot_classes: Iterable[SlotClass]) -> Iterable[list[SlotClass]]:
    """The kinds that have its labels, equally good ones together: most preferred first, then fewest surplus ones."""
    found: dict[tuple[int, int], list[SlotClass]] = {}
    for slot_class in slot_classes:
        rank = need.rank_labels(slot_class.labels)
        if rank is not None:
            found.setdefault(rank, []).append(slot_class)
    return [found[rank] for rank in sorted(found)]
