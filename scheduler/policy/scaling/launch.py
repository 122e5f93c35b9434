"""Step 6, launch: machines for those for whom nothing is ready or on its way.

Sources: the autoscaler's tick (what is in flight counts first), Arvados (choice of the offering, holds).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import repeat

from scheduler.model.reservations import Reservation
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.cycle.queue import Queue
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.waits import wait_for
from scheduler.policy.cycle.work_budget import NEXT_TURN, find_payer
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.trial_launch import TrialLaunch

WITHHELD = {"at_max_slots", "at_quota"}
"""With one of these codes it is only room that a launch lacks."""


def launch(cycle: CycleState, unplaced: Queue, limits: LaunchLimits) -> None:
    """In queue order: room on slots launched before it in this tick, else launches for all that it lacks.

    n reservations for which p places are on their way ask for ceil((n - p) / places of a slot) launches.
    What cannot be launched whole launches nothing and waits with the code of what holds it back. Behind a gang of which
    this is true and which the starvation guard protects nothing is launched that could serve it.
    """
    refused: dict[Demand | str, _Refusal] = {}
    cycle.turns.begin_launches(cycle.count_steps())
    ids, demands, kept = unplaced.ids, unplaced.demands, cycle.kept
    different = unplaced.different
    open_demands, tried = set(different), 0
    while tried < len(ids) and (open_demands or kept):
        name, demand = ids[tried], demands[tried]
        tried += 1
        kind = name if kept and name in kept else demand
        refusal = refused.get(kind)
        if refusal is None or (refusal.launches != limits.launches and not refusal.still_stands(limits)):
            launches = limits.launches
            if len(demand.needs) > 1 and _is_postponed(cycle, unplaced.reservations[tried - 1]):
                continue
            held, code = _launch_for(cycle, name, demand, limits)
            if limits.launches != launches:
                open_demands |= different  # that may change it for all
            if not code:
                continue
            if refusal is not None:
                refusal.tell(cycle)
            refusal = refused[kind] = _Refusal(demand, held, code, limits.describe(code, demand.pools))
            refusal.note(limits)
        if name in cycle.protected:
            limits.reserve(demand)
        open_demands.discard(demand)
        refusal.ids.append(name)
        if refusal.is_for_room:
            cycle.withheld.append(demand)
    for refusal in refused.values():
        refusal.tell(cycle)
    _refuse_all(cycle, refused, ids[tried:], demands[tried:])


def _is_postponed(cycle: CycleState, reservation: Reservation) -> bool:
    """Whether nothing is launched for it in this tick, since the budget of its principal is spent."""
    if not cycle.turns.must_wait(reservation, cycle.count_steps()):
        return False
    cycle.wait(reservation.id, "behind_queue", NEXT_TURN)
    return True


def _refuse_all(
    cycle: CycleState, refused: Mapping[Demand | str, "_Refusal"], ids: list[str], demands: list[Demand]
) -> None:
    """Once nothing is launched any more for any of them, what holds for one holds for all that are alike."""
    reasons = {demand: (refusal.code, refusal.detail) for demand, refusal in refused.items()}
    cycle.wait_all(ids, map(reasons.__getitem__, demands))
    for_room = {demand for demand, refusal in refused.items() if refusal.is_for_room}
    cycle.withheld += filter(for_room.__contains__, demands)


def launch_for_elastic(cycle: CycleState, limits: LaunchLimits) -> None:
    """After the essential instances of all who wait: elastic ones that have no place, in rank order, in pools whose
    `launch_for_elastic` says so; of those who wait only where their essential instances wait for nothing but machines
    that are on their way. Room that is on its way is set against them first. Source: Zoe.
    """
    hopeless: set[tuple[InstanceRequest, bool]] = set()
    for reservation, demand, count in cycle.stretching:
        waits, [need] = cycle.waiting.get(reservation.id), demand.needs
        if (need, waits is None) in hopeless or (waits is not None and waits[0] != "booting"):
            continue
        there = [cycle.coming] if waits is None else [cycle.ready, cycle.coming]
        payer = find_payer(reservation)
        for _ in range(count):
            if cycle.turns.is_spent(payer):
                break
            cycle.turns.spend(payer, 1)
            if TrialLaunch(cycle, limits, demand, there).fill() is None:
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

    def note(self, limits: LaunchLimits) -> None:
        """It was found now."""
        self.launches, self.own_launches = limits.launches, limits.count_launches(self.demand.pools)

    def still_stands(self, limits: LaunchLimits) -> bool:
        """Whether what was launched meanwhile changes nothing: full pools stay full, and it was launched in others."""
        if self.held != "at_max_slots" or self.own_launches != limits.count_launches(self.demand.pools):
            return False
        self.launches = limits.launches
        return True

    def tell(self, cycle: CycleState) -> None:
        """Say it to all of them."""
        cycle.wait_all(self.ids, repeat((self.code, self.detail)))


def _launch_for(cycle: CycleState, name: str, demand: Demand, limits: LaunchLimits) -> tuple[str, str]:
    """Give it room on what this tick launches; if nothing is launched for it, return the code of what holds a launch
    back and the code that is reported.
    """
    if len(demand.needs) == 1 and name not in cycle.deferred:
        return _launch_for_one(cycle, name, demand, limits)
    there = [cycle.ready, cycle.coming]
    if name in cycle.kept:
        there.insert(1, cycle.kept[name])
    attempt = TrialLaunch(cycle, limits, demand, there)
    slot_infos = attempt.fill()
    if slot_infos is None:
        attempt.undo()
        attempt.probe()
        return attempt.held, attempt.find_code()
    wait_for(cycle, name, slot_infos)
    return "", ""


def _launch_for_one(cycle: CycleState, name: str, demand: Demand, limits: LaunchLimits) -> tuple[str, str]:
    """The same for a single instance, as almost all are: nothing is ready or on its way for it, and nothing to undo."""
    need, launched = demand.needs[0], cycle.launched
    slot_info = launched.find(need, demand.declined)
    if slot_info is not None:
        launched.take(slot_info, need)
    else:
        found = limits.find_launch(demand, need)
        if found == "":
            return "", "cordoned" if limits.has_cordoned_room(need) else "no_capacity"
        if isinstance(found, str):
            return found, limits.choose_code(demand, found)
        slot_info = limits.launch(*found, "demand")
        launched.add(slot_info, need)
    slot_info.wanted = True
    cycle.wait(name, "booting", f"waits for {slot_info.slot.id} ({slot_info.state})")
    return "", ""
