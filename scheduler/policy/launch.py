"""Step 6, launch: machines for those for whom nothing is ready or on its way.

Sources: the autoscaler's tick (what is in flight counts first), Arvados (choice of the offering, holds).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat

from scheduler.model.reservations import Reservation
from scheduler.policy.attempt import Attempt
from scheduler.policy.draft import Draft, Queue
from scheduler.policy.limits import Limits
from scheduler.policy.needs import Demand, Need
from scheduler.policy.place import wait_for
from scheduler.policy.turns import NEXT_TURN, find_payer

WITHHELD = {"at_max_slots", "at_quota"}
"""With one of these codes it is only room that a launch lacks."""


def launch(draft: Draft, unplaced: Queue, limits: Limits) -> None:
    """In queue order: room on slots launched before it in this tick, else launches for all that it lacks.

    n reservations for which p places are on their way ask for ceil((n - p) / places of a slot) launches.
    What cannot be launched whole launches nothing and waits with the code of what holds it back. Behind a gang of which
    this is true and which the starvation guard protects nothing is launched that could serve it.
    """
    refused: dict[Demand | str, _Refusal] = {}
    draft.turns.begin_launches(draft.count_steps())
    ids, demands, kept = unplaced.ids, unplaced.demands, draft.kept
    different = unplaced.different
    open_demands, tried = set(different), 0
    while tried < len(ids) and (open_demands or kept):
        name, demand = ids[tried], demands[tried]
        tried += 1
        kind = name if kept and name in kept else demand
        refusal = refused.get(kind)
        if refusal is None or (refusal.launches != limits.launches and not refusal.still_stands(limits)):
            launches = limits.launches
            if len(demand.needs) > 1 and _is_postponed(draft, unplaced.reservations[tried - 1]):
                continue
            held, code = _launch_for(draft, name, demand, limits)
            if limits.launches != launches:
                open_demands |= different  # that may change it for all
            if not code:
                continue
            if refusal is not None:
                refusal.tell(draft)
            refusal = refused[kind] = _Refusal(demand, held, code, limits.describe(code, demand.pools))
            refusal.note(limits)
        if name in draft.protected:
            limits.reserve(demand)
        open_demands.discard(demand)
        refusal.ids.append(name)
        if refusal.is_for_room:
            draft.withheld.append(demand)
    for refusal in refused.values():
        refusal.tell(draft)
    _refuse_all(draft, refused, ids[tried:], demands[tried:])


def _is_postponed(draft: Draft, reservation: Reservation) -> bool:
    """Whether nothing is launched for it in this tick, since the budget of its principal is spent."""
    if not draft.turns.must_wait(reservation, draft.count_steps()):
        return False
    draft.wait(reservation.id, "behind_queue", NEXT_TURN)
    return True


def _refuse_all(
    draft: Draft, refused: Mapping[Demand | str, "_Refusal"], ids: list[str], demands: list[Demand]
) -> None:
    """Once nothing is launched any more for any of them, what holds for one holds for all that are alike."""
    reasons = {demand: (refusal.code, refusal.detail) for demand, refusal in refused.items()}
    draft.wait_all(ids, map(reasons.__getitem__, demands))
    for_room = {demand for demand, refusal in refused.items() if refusal.is_for_room}
    draft.withheld += filter(for_room.__contains__, demands)


def launch_for_elastic(draft: Draft, limits: Limits) -> None:
    """After the essential instances of all who wait: elastic ones that have no place, in rank order, in pools whose
    `launch_for_elastic` says so; of those who wait only where their essential instances wait for nothing but machines
    that are on their way. Room that is on its way is set against them first. Source: Zoe.
    """
    hopeless: set[tuple[Need, bool]] = set()
    for reservation, demand, count in draft.stretching:
        waits, [need] = draft.waiting.get(reservation.id), demand.needs
        if (need, waits is None) in hopeless or (waits is not None and waits[0] != "booting"):
            continue
        there = [draft.coming] if waits is None else [draft.ready, draft.coming]
        payer = find_payer(reservation)
        for _ in range(count):
            if draft.turns.is_spent(payer):
                break
            draft.turns.spend(payer, 1)
            if Attempt(draft, limits, demand, there).fill() is None:
                hopeless.add((need, waits is None))
                break


@dataclass(slots=True)
class _Refusal:
    """What keeps back the launch for one demand, and for whom; it stands until something is launched."""

    demand: Demand
    held: str
    """The code of what holds a launch back; "" if no launch would serve it."""
    code: str
    """The code that is reported."""
    detail: str
    launches: int = 0
    own_launches: int = 0
    """When it was found: in all, and in its pools."""
    ids: list[str] = field(default_factory=list)
    is_for_room: bool = field(init=False)

    def __post_init__(self) -> None:
        self.is_for_room = self.held in WITHHELD

    def note(self, limits: Limits) -> None:
        """It was found now."""
        self.launches, self.own_launches = limits.launches, limits.count_launches(self.demand.pools)

    def still_stands(self, limits: Limits) -> bool:
        """Whether what was launched meanwhile changes nothing: full pools stay full, and it was launched in others."""
        if self.held != "at_max_slots" or self.own_launches != limits.count_launches(self.demand.pools):
            return False
        self.launches = limits.launches
        return True

    def tell(self, draft: Draft) -> None:
        """Say it to all of them."""
        draft.wait_all(self.ids, repeat((self.code, self.detail)))


def _launch_for(draft: Draft, name: str, demand: Demand, limits: Limits) -> tuple[str, str]:
    """Give it room on what this tick launches; if nothing is launched for it, return the code of what holds a launch
    back and the code that is reported.
    """
    if len(demand.needs) == 1 and name not in draft.deferred:
        return _launch_for_one(draft, name, demand, limits)
    there = [draft.ready, draft.coming]
    if name in draft.kept:
        there.insert(1, draft.kept[name])
    attempt = Attempt(draft, limits, demand, there)
    places = attempt.fill()
    if places is None:
        attempt.undo()
        attempt.probe()
        return attempt.held, attempt.find_code()
    wait_for(draft, name, places)
    return "", ""


def _launch_for_one(draft: Draft, name: str, demand: Demand, limits: Limits) -> tuple[str, str]:
    """The same for a single instance, as almost all are: nothing is ready or on its way for it, and nothing to undo."""
    need, launched = demand.needs[0], draft.launched
    place = launched.find(need, demand.declined)
    if place is not None:
        launched.take(place, need)
    else:
        found = limits.find_launch(demand, need)
        if found == "":
            return "", "cordoned" if limits.has_cordoned_room(need) else "no_capacity"
        if isinstance(found, str):
            return found, limits.choose_code(demand, found)
        place = limits.launch(*found, "demand")
        launched.add(place, need)
    place.wanted = True
    draft.wait(name, "booting", f"waits for {place.slot.id} ({place.state})")
    return "", ""
