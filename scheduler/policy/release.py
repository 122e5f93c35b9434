"""Steps 6 and 8: at quota or full, unneeded slots make room for launches that are withheld.

Source: Arvados' "at quota". There the pass stops at the first one over quota and idle machines are shut down; here
only unneeded slots go, and only as many as launches are withheld.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Final

from scheduler.model.decisions import Drain, Terminate
from scheduler.model.moves import INACTIVE
from scheduler.model.slots import Slot
from scheduler.policy.draft import Draft
from scheduler.policy.filling import fill
from scheduler.policy.limits import Limits
from scheduler.policy.needs import Demand, Need
from scheduler.policy.offerings import Choice
from scheduler.policy.places import Place, open_place
from scheduler.policy.rooms import Rooms

_MOST: Final = 1 << 32
"""More slots than any pool has."""
_ROOM_ALONE: Final = frozenset({None, "behind_queue", "at_max_slots", "at_quota"})
"""With one of these codes a launch would be made if there were room enough, for those before it too."""


def release(draft: Draft) -> None:
    """For each launch that this tick withholds from one who waits, one unneeded slot of that pool goes.

    Unneeded: no lease, nothing set against it in this tick, not cordoned. Those in flight go first, then the one
    that is idle longest, then slot order; `idle_scale_down`, `min_slots` and `target_warm_slots` protect none.
    Slots that drain or terminate already count as room being made.
    """
    for name, places in draft.pools.items():
        if not (count := draft.withheld_launches.get(name, 0)):
            continue
        in_the_making = sum(place.state in {"draining", "terminating"} for place in places)
        for place in _list_unneeded(draft, places)[: max(0, count - in_the_making)]:
            _let_go(draft, place)


def _list_unneeded(draft: Draft, places: list[Place]) -> list[Place]:
    """In the order in which they go; what was launched in this very tick is none of them."""
    unneeded = (place for place in places if _is_unneeded(place) and place.slot.id not in draft.spared)
    return sorted(unneeded, key=lambda place: (not place.is_coming, place.idle_rank, place.order))


def _is_unneeded(place: Place) -> bool:
    if place.wanted:
        return False
    is_coming = place.is_coming and place.slot.state not in INACTIVE and not place.slot.cordoned
    return place.pool.is_elastic and (place.is_idle or is_coming)


def _let_go(draft: Draft, place: Place) -> None:
    if place.is_coming:
        draft.decide(Terminate(slot=place.slot.id, reason="at_quota"))
        place.state = "terminating"
    else:
        draft.decide(Drain(slot=place.slot.id, reason="at_quota"))
        place.state = "draining"


def count_withheld(draft: Draft, limits: Limits) -> None:
    """Work out, by pool, the launches that would be made if there were room, several small ones sharing one slot;
    and which slots a gang would use besides. Where launches are withheld, none is made to keep a minimum or reserve.
    """
    if not draft.withheld or not any(_could_matter(places, limits) for places in draft.pools.values()):
        return
    wanted = {place.slot.id for place in draft.all_places() if place.wanted}
    draft.withheld_launches = _imagine_launches(draft, limits)
    for place in draft.all_places():
        if place.wanted and place.slot.id not in wanted:
            place.wanted = False
            draft.spared.add(place.slot.id)


def _could_matter(places: list[Place], limits: Limits) -> bool:
    """Whether the pool has a slot to let go, or may launch one that would be the next to go."""
    if not places or not places[0].pool.is_elastic:
        return False
    pool = places[0].pool
    keeps = pool.min_slots > 0 or pool.target_warm_slots > 0
    return any(map(_is_unneeded, places)) or (keeps and limits.count_left(places[0].slot.pool) > 0)


def _imagine_launches(draft: Draft, limits: Limits) -> dict[str, int]:
    most_room = {name: _count_room(places, limits) for name, places in draft.pools.items() if places}
    wish = _WhatIf(limits, {name: index * _MOST for index, name in enumerate(draft.pools, 1)}, most_room)
    rooms = [draft.ready, *draft.kept.values(), draft.coming, draft.launched, wish.rooms]
    most = {name: len(places) * _could_matter(places, limits) for name, places in draft.pools.items()}
    done: set[Demand] = set()
    for demand in draft.withheld:
        if demand in done:
            continue
        if all(wish.by_quota[name] + wish.by_limit[name] >= most[name] for name in demand.pools):
            done.add(demand)
            continue
        wish.begin(demand)
        if fill(demand, rooms, wish.launch) is None:
            wish.undo()
            done.add(demand)
    return wish.count()


def _count_room(places: list[Place], limits: Limits) -> int:
    """Launches that the pool could hold if all that may go went: more than that no slot that goes would help."""
    goes = sum(_is_unneeded(place) or place.state in {"draining", "terminating"} for place in places)
    name = places[0].slot.pool
    return min(limits.find_bound(name), limits.count_left(name) + goes)


@dataclass
class _WhatIf:
    """Launches as they would be made, were it not for `max_slots` and quota."""

    limits: Limits
    orders: dict[str, int]
    """Where the order of each pool's begins: pools as configured, behind all slots."""
    most_room: dict[str, int]
    """By pool: launches that there could be room for."""
    rooms: Rooms = field(default_factory=lambda: Rooms([]))
    by_quota: Counter[str] = field(default_factory=Counter)
    by_limit: Counter[str] = field(default_factory=Counter)
    demand: Demand | None = None
    made: list[tuple[Place, Counter[str]]] = field(default_factory=list)
    made_in: Counter[str] = field(default_factory=Counter)
    """By pool: how many of them."""
    numbers: Iterator[int] = field(default_factory=count)
    """Of the places, those that were undone too: no two stand in the same order."""

    def begin(self, demand: Demand) -> None:
        """The launches from now on are for this one."""
        self.demand, self.made, self.made_in = demand, [], Counter()

    def launch(self, need: Need) -> Place | None:
        """The slot that would be launched for one instance, in the first pool where room is all that it lacks."""
        assert self.demand is not None, "begin() goes before"  # noqa: S101
        for name, choice, code in self.limits.list_choices(self.demand, need):
            if code not in _ROOM_ALONE or not self.limits.lacks_only_room(name, choice):
                continue
            if self.made_in[name] >= self.most_room.get(name, 0):
                continue
            counter = self.by_quota if self.limits.is_at_quota(name, choice.market) else self.by_limit
            place = self._imagine(name, choice)
            counter[name] += 1
            self.made.append((place, counter))
            self.made_in[name] += 1
            self.rooms.add(place)
            return place
        return None

    def _imagine(self, name: str, choice: Choice) -> Place:
        number = next(self.numbers)
        slot = Slot(id=f"{name}+{number}", pool=name, state="launching")
        place = open_place(slot, self.limits.pool(name), self.orders[name] + number)
        place.capacity = place.free = choice.capacity
        place.labels, place.idle_since = choice.labels, inf
        return place

    def undo(self) -> None:
        """The present one cannot be served whole, so nothing would be launched for it."""
        for place, counter in self.made:
            counter[place.slot.pool] -= 1
            self.rooms.remove(place)

    def count(self) -> dict[str, int]:
        """By pool: what a quota withholds, and what goes beyond the slots that are left within `max_slots`."""
        return {
            name: self.by_quota[name] + max(0, self.by_limit[name] - self.limits.count_left(name))
            for name in {**self.by_quota, **self.by_limit}
        }
