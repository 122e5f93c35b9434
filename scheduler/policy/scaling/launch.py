"""Step 6, launch: slots are launched for reservations that fit on no slot that is ready or in flight. A stopped slot
that fits is started instead.

Sources: the autoscaler's tick (capacity in flight is used first), Arvados (choice of the offering, back-offs).
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import repeat
from math import inf
from typing import NamedTuple

from scheduler.model.waiting_codes import LACKING_SLOT, NoCode, WaitingCode
from scheduler.model.waits import Reason
from scheduler.policy.capacity.gang import Shareable, fill, has_room, has_room_for_some, list_without_room
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState, ElasticShortage, Shortfall, Unplaced
from scheduler.policy.cycle.work_budget import NEXT_TURN, find_payer
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import Choice


@dataclass
class TrialLaunch:
    """The launches that one demand would need, decided as a trial. If they do not suffice, `fill` undoes them and
    returns None.
    """

    cycle: CycleState
    limits: LaunchLimits
    demand: Demand
    there: list[SlotIndex]
    """Indexes of the slots that instances of the demand may use without a launch. They include slots that the
    starvation guard keeps for the demand.
    """
    launched: list[tuple[str, Choice, SlotInfo]] = field(default_factory=list)
    """The present launches, in order."""
    first: tuple[str, Choice, SlotInfo] | None = None
    """The first launch that was made in the first way (see `capacity/gang.py`); None: there was none."""
    held: WaitingCode | NoCode = ""
    """Waiting code of the reason that prevented a launch for the demand; "" if no launch failed, or no offering could
    hold an instance. Like `first` and `lacks_one`, it is that of the first way.
    """
    lacks_one: bool = False
    """Whether the demand needed a launch that was impossible. If `fill` fails and this is False, no launch was refused:
    each instance by itself has a slot, but the instances cannot have slots at the same time.
    """
    closed: Collection[str] = ()
    """The pools in which the launch that was impossible is withheld, as in `Shortfall.closed`."""
    _lacking: str = ""
    """The component of the instance that fitted nowhere in the first way."""
    _is_first: bool = True
    """Whether the first way is being tried."""
    account: str | None = None
    """The account of the reservation, for which the machines are launched; None: no account is known."""
    is_known: bool = False
    """Whether the instances are known not to fit on the slots that exist."""
    gang: str | None = None
    """The id of the reservation if it is a gang; None: it has one instance."""

    def fill(self) -> list[SlotInfo] | None:
        """Launch the slots that the demand needs, and return a slot for each instance. Return None if that is
        impossible; nothing stays launched then.
        """
        return fill(self.demand, self._list_indexes(), self, is_known=self.is_known)

    def foresee_code(self) -> WaitingCode | NoCode:
        """Return the waiting code that the demand would get if its launches were decided now; "" if launches would
        serve it. Nothing stays launched.
        """
        is_served = has_room(self.demand, self._list_indexes(), extender=self)
        self.undo()
        return "" if is_served else self.find_code()

    def _list_indexes(self) -> list[SlotIndex]:
        return [*self.there, self.cycle.launched]

    def extend(self, need: InstanceRequest) -> SlotInfo | None:
        """Start a stopped slot for one instance, or launch a slot in the first pool that can launch one. Return the
        slot.

        If no pool can, return None. In the first way, store the waiting code of the reason in `held`.
        """
        found = self.limits.find_machine(self.demand, need)
        if isinstance(found, str):
            if self._is_first:
                self.held, self.lacks_one, self._lacking = found, True, need.component.name
                self.closed = self.limits.list_closed(self.demand, need)
            return None
        slot_info = self.limits.take(found, self.account or self.demand.payer or None, self.gang)
        self.launched.append((*found[:2], slot_info))
        if self._is_first and self.first is None:
            self.first = self.launched[0]
        self.cycle.launched.add(slot_info)
        return slot_info

    def could_extend(self, need: InstanceRequest) -> bool:
        """Return whether a slot could be started or launched for an instance, now or after other launches."""
        is_possible = not isinstance(self.limits.find_machine(self.demand, need), str)
        return is_possible or self.limits.offerings.may_change_turn(self.demand, need)

    def may_hold(self, need: InstanceRequest) -> bool:
        """Return whether a slot that could be started or launched, for whatever instance, could hold this one."""
        return self.limits.offerings.have_fitting(self.demand, need) or self.could_extend(need)

    def list_shareable(self, need: InstanceRequest) -> Iterable[Shareable]:
        """Return the offerings that could hold an instance, and that some pool of the demand may launch."""
        for name, choice, _ in self.limits.list_choices(self.demand, need):
            yield name, choice.capacity, 0

    def undo(self, keep: int = 0) -> None:
        """Undo the present launches except the first `keep` ones, the last one first."""
        self._is_first = False
        for name, _, slot_info in reversed(self.launched[keep:]):
            self.cycle.launched.remove(slot_info)
            self.limits.undo(name, slot_info)
        del self.launched[keep:]

    def probe(self) -> None:
        """Start or launch a single slot as the trial of EC2's quota, if the launches failed because of this quota and
        its back-off has ended; else do nothing. A gang that needs several slots gets the first of them in this way.
        Call it after `fill` has returned None.
        """
        if self.held == "at_quota" and self.first is not None and self.limits.refusals.may_probe(*self.first[:2]):
            name, choice, slot_info = self.first
            stopped = slot_info if slot_info.state == "stopped" else None
            trial = self.limits.take((name, choice, stopped), self.account)
            trial.wanted = True
            self.limits.trials.append(trial)

    def find_code(self) -> WaitingCode:
        """Return the waiting code of the demand. Call it after the trial launches failed and were undone."""
        if self.held:
            return self.held if self.first is not None else self.limits.choose_code(self.demand, self.held)
        if not self.lacks_one or has_room_for_some(self.demand, self._list_indexes()):
            return "gang_incomplete"
        return "cordoned" if self.limits.has_cordoned_room(self.demand) else "no_capacity"

    def find_lacking(self) -> str:
        """Return the name of the component that lacks room. Call it as `find_code`, and if its result is
        `gang_incomplete`.

        It is the first component of which one instance by itself has no room and cannot get a slot, else the one whose
        instance fitted nowhere in the first way.
        """
        without = list_without_room(self.demand, self._list_indexes())
        alone = next((need for need in without if not self.could_extend(need)), None)
        return (alone or self.demand.needs[-1]).component.name if alone or not self._lacking else self._lacking


class Refusal(NamedTuple):
    """Why nothing is launched for the reservations of one demand."""

    demand: Demand
    held: WaitingCode | NoCode
    """Waiting code of the reason that prevents ("holds") the launch, for example `at_max_slots`; "": no launch failed,
    or no offering could serve the demand.
    """
    reason: Reason
    """(waiting code to report, its sentence). The code differs from `held` where another code explains more: `cordoned`
    instead of `at_max_slots` if cordoned slots have room, and a code such as `no_capacity` if `held` is "".
    """

    @property
    def is_withheld(self) -> bool:
        """Whether a launch would serve the demand, and only `max_slots` or EC2's quota prevents it."""
        return self.held in LACKING_SLOT


def refuse_one(demand: Demand, limits: LaunchLimits) -> Refusal | None:
    """Return why nothing is launched for a reservation with a single instance that fits on no slot. None: it gets a
    machine.
    """
    found = limits.find_machine(demand, demand.needs[0])
    return _refuse(demand, found, _choose_code(demand, found, limits), limits) if isinstance(found, str) else None


def launch_due(refusals: Iterable[Refusal | None]) -> float:
    """Return minus infinity if one of these waiting demands gets a machine, else infinity. `refusals`: what
    `refuse_one` returned for each demand.
    """
    return -inf if None in refusals else inf


def launch(cycle: CycleState, unplaced: Unplaced, limits: LaunchLimits) -> Shortfall:
    """Launch the slots that each reservation needs, in queue order. Return the demands whose launches were withheld.

    A reservation uses capacity on slots launched earlier in this cycle before it causes a launch. For example, 10 equal
    reservations need 10 places: if slots in flight have 2 free places and a new slot has 4, they cause 2 launches.

    If any launch that a reservation needs is impossible, nothing is launched for the reservation, and it waits with the
    code of the reason. If such a reservation is a gang that the starvation guard protects, later reservations launch
    nothing that could serve the gang. Elastic instances come last, after all essential ones.
    """
    if not unplaced.queue.ids and not unplaced.elastic:
        return Shortfall((), (), unplaced.protected.kept, {})
    cycle.turns.begin_launches(cycle.count_steps())
    withheld, awaited = _launch_for_all(cycle, unplaced, limits)
    _launch_for_elastic(cycle, unplaced.elastic, limits)
    return Shortfall(limits.closed, withheld, unplaced.protected.kept, awaited)


def _launch_for_all(
    cycle: CycleState, unplaced: Unplaced, limits: LaunchLimits
) -> tuple[list[Demand], dict[int, list[InstanceRequest]]]:
    """Launch slots for the unplaced reservations, in queue order. Return two things: (1) the demands whose launches are
    withheld, in queue order; (2) position in this list -> the requests of the gangs that come directly before this
    demand in the queue, got no launches, and are protected by the starvation guard.

    A refusal is the same for all reservations with the same demand. So each demand is tried only once until something
    is launched: the queue may have a million rows.
    """
    queue, kept, gangs = unplaced.queue, unplaced.protected.kept, unplaced.protected.gangs
    ids, demands, different = queue.ids, queue.demands, queue.different
    refusals, withheld, tried = _refuse_demands(cycle, unplaced, limits)
    refused = dict[Demand | str, _Refused](refusals.items())
    open_demands, awaited = different - refusals.keys(), dict[int, list[InstanceRequest]]()
    while tried < len(ids) and (open_demands or kept or gangs):
        name, demand = ids[tried], demands[tried]
        tried += 1
        kind = name if kept and name in kept else demand
        refusal = refused.get(kind)
        if (
            refusal is None
            or (refusal.launches != limits.launches and not refusal.still_holds(limits))
            or (refusal.reserved != limits.reserved and len(demand.needs) > 1)
        ):
            launches = limits.launches
            if len(demand.needs) > 1 and cycle.turns.must_wait(queue.reservations[tried - 1], cycle.count_steps()):
                cycle.wait(name, "behind_queue", NEXT_TURN)
                continue
            held, code, lacking = _launch_for(cycle, name, demand, unplaced, limits)
            if limits.launches != launches:
                open_demands |= different  # the new slot may have capacity for any of the refused demands
            if not code:
                continue
            if refusal is not None:
                cycle.waits.add_all(refusal.ids, repeat(refusal.why.reason))
            refusal = refused[kind] = _note(_refuse(demand, held, code, limits, lacking), limits)
        open_demands.discard(demand)
        refusal.ids.append(name)
        if refusal.why.is_withheld:
            withheld.append(demand)
        if name in gangs:
            limits.reserve(demand)
            awaited.setdefault(len(withheld), []).extend(dict.fromkeys(demand.needs))
    for refusal in refused.values():
        cycle.waits.add_all(refusal.ids, repeat(refusal.why.reason))
    # Nothing more is launched: the result of one reservation is that of all with the same demand.
    left = demands[tried:]
    reasons = {demand: refusal.why.reason for demand, refusal in refused.items()}
    cycle.waits.add_all(ids[tried:], map(reasons.__getitem__, left))
    for_room = {demand for demand, refusal in refused.items() if refusal.why.is_withheld}
    withheld += filter(for_room.__contains__, left)
    return withheld, awaited


def _refuse_demands(
    cycle: CycleState, unplaced: Unplaced, limits: LaunchLimits
) -> tuple[dict[Demand, "_Refused"], list[Demand], int]:
    """Try a launch for the first reservation of each demand, in queue order. Stop at the first reservation that gets a
    launch or is a gang. The reservations before it are done: their demands are refused, and the reasons why they wait
    are recorded. A reservation that gets a launch is done, too; a gang is not.

    Return three things: (1) demand -> refusal, for the refused demands; (2) the demand of each done reservation whose
    launch is withheld, in queue order; (3) the number of done reservations. If the starvation guard protects a
    reservation, or placement deferred one, do nothing and return empty results.

    Speed: the further reservations of a refused demand are refused together, without a trial of each.
    """
    if unplaced.protected.kept or unplaced.protected.gangs or unplaced.deferred:
        return {}, [], 0
    ids, demands = unplaced.queue.ids, unplaced.queue.demands
    refusals: dict[Demand, _Refused] = {}
    at, count, is_launched = 0, len(demands), False
    for demand in unplaced.queue.different:
        at = demands.index(demand, at)  # its first reservation comes after that of the demand before
        held, code = _launch_for_one(cycle, ids[at], demand, limits) if len(demand.needs) == 1 else ("", "")
        if not code:
            count, is_launched = at, len(demand.needs) == 1
            break
        refusals[demand] = _note(_refuse(demand, held, code, limits), limits)
    done = demands[:count]
    reasons = {demand: refusal.why.reason for demand, refusal in refusals.items()}
    cycle.waits.add_in_order(ids[:count], list(map(reasons.__getitem__, done)))
    for_room = {demand for demand, refusal in refusals.items() if refusal.why.is_withheld}
    withheld = list(filter(for_room.__contains__, done)) if for_room else []
    return refusals, withheld, count + is_launched


def _launch_for_elastic(cycle: CycleState, shortages: Iterable[ElasticShortage], limits: LaunchLimits) -> None:
    """Launch slots for elastic instances without capacity, in rank order, in pools with `launch_for_elastic`.

    The elastic instances of a pending reservation count only if its essential instances wait for slots in flight and
    for nothing else. Elastic instances use capacity in flight before they cause a launch. Source: Zoe.
    """
    hopeless: set[tuple[InstanceRequest, bool]] = set()
    for reservation, demand, count in shortages:
        waits, [need] = cycle.waits.find(reservation.id), demand.needs
        if (need, waits is None) in hopeless or (waits is not None and waits[0] != "booting"):
            continue
        there = [cycle.coming] if waits is None else [cycle.ready, cycle.coming]
        payer = find_payer(reservation)
        for _ in range(count):
            if cycle.turns.is_spent(payer):
                break
            cycle.turns.spend(payer, 1)
            if TrialLaunch(cycle, limits, demand, there, account=reservation.request.account).fill() is None:
                hopeless.add((need, waits is None))
                break


@dataclass(slots=True)
class _Refused:
    """A refusal in a cycle that goes on to launch for others. A launch may make it invalid (`still_holds`)."""

    why: Refusal
    launches: int
    own_launches: int
    """The numbers of launches in this cycle at the time of the refusal. `launches`: in all pools; `own_launches`: in
    the pools of the demand.
    """
    reserved: int
    """The number of requests that were reserved for protected gangs at the time of the refusal. Behind a further one a
    gang waits with `behind_queue` if one of its launches is prevented by it. A single instance has no such launch.
    """
    ids: list[str] = field(default_factory=list)
    """Ids of the reservations to which the refusal applies."""

    def still_holds(self, limits: LaunchLimits) -> bool:
        """Return whether the refusal is valid in spite of the launches since then: the pools of the demand are at
        `max_slots`, and only other pools had launches.
        """
        if self.why.held != "at_max_slots" or self.own_launches != limits.count_launches(self.why.demand.pools):
            return False
        self.launches = limits.launches
        return True


def _refuse(
    demand: Demand, held: WaitingCode | NoCode, code: WaitingCode, limits: LaunchLimits, lacking: str = ""
) -> Refusal:
    sentence = limits.describe(code, demand.pools, demand.payer)
    return Refusal(demand, held, (code, f"{sentence}: component {lacking} lacks room" if lacking else sentence))


def _note(why: Refusal, limits: LaunchLimits) -> _Refused:
    return _Refused(why, limits.launches, limits.count_launches(why.demand.pools), limits.reserved)


def _launch_for(
    cycle: CycleState, name: str, demand: Demand, unplaced: Unplaced, limits: LaunchLimits
) -> tuple[WaitingCode | NoCode, WaitingCode | NoCode, str]:
    """Give the reservation `name` capacity on slots that this cycle launches. Return empty texts if that succeeds.

    If nothing is launched for it, return two waiting codes, as in `Refusal`: (1) that of the reason which prevents the
    launch, "" if there is none; (2) the code to report. For example, both are `at_quota`; or the first is
    `at_max_slots` and the second is `cordoned`, because cordoned slots have room for the reservation. Then return the
    name of the component that lacks room, if the second code is `gang_incomplete`; else "".
    """
    if len(demand.needs) == 1 and name not in unplaced.deferred:
        return *_launch_for_one(cycle, name, demand, limits), ""
    kept = unplaced.protected.kept
    there = [cycle.ready, *([kept[name]] if name in kept else []), cycle.coming]
    gang = name if len(demand.needs) > 1 else None
    account = cycle.view.reservations[name].request.account
    is_known = demand in unplaced.uncovered and name not in kept and not len(cycle.launched)
    attempt = TrialLaunch(cycle, limits, demand, there, account=account, is_known=is_known, gang=gang)
    slot_infos = attempt.fill()
    if slot_infos is None:
        limits.closed.update(attempt.closed)
        attempt.probe()
        code = attempt.find_code()
        return attempt.held, code, attempt.find_lacking() if code == "gang_incomplete" else ""
    cycle.wait_for(name, slot_infos)
    return "", "", ""


def _launch_for_one(
    cycle: CycleState, name: str, demand: Demand, limits: LaunchLimits
) -> tuple[WaitingCode | NoCode, WaitingCode | NoCode]:
    """Give the reservation `name`, which has a single instance, capacity on a slot that this cycle launches. Return two
    texts as `_launch_for` does: empty ones if that succeeds, else two waiting codes.

    No trial is needed: no slot that is ready or in flight can serve the reservation, and no launch would have to be
    undone. Almost all reservations have a single instance.
    """
    need, launched = demand.needs[0], cycle.launched
    slot_info = launched.find(need, demand.declined)
    if slot_info is not None:
        launched.take(slot_info, need)
    else:
        found = limits.find_machine(demand, need)
        if isinstance(found, str):
            limits.closed.update(limits.list_closed(demand, need))
            return found, _choose_code(demand, found, limits)
        slot_info = limits.take(found, cycle.view.reservations[name].request.account)
        launched.add(slot_info, need)
    slot_info.wanted = True
    cycle.wait(name, "booting", f"waits for {slot_info.slot.id} ({slot_info.state})")
    return "", ""


def _choose_code(demand: Demand, held: WaitingCode | NoCode, limits: LaunchLimits) -> WaitingCode:
    """Return the waiting code to report for a reservation with a single instance. `held`: the code of the reason that
    prevents its launch; "": no offering could serve it.
    """
    if held == "":
        return "cordoned" if limits.has_cordoned_room(demand) else "no_capacity"
    return limits.choose_code(demand, held)
