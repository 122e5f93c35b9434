"""The matrix of conditions for a waiting reservation: for each condition that a lease needs, whether it is met, and a
sentence of evidence.

The conditions are in the order of the waiting codes (WAITING_CODES). The waiting code that the plan reports decides two
things: the condition of this code is not met, and each earlier condition is met or does not apply. All later conditions
are tested by the functions of the planner, on the state after the plan, with its leases and launches.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Final

import msgspec

from scheduler.explain.conditions import describe_account, describe_pool, forecast
from scheduler.explain.search import describe_amounts, describe_labels, list_components, required_labels
from scheduler.model.decisions import Assign, Grant, Launch, Placement, Plan, Revoke, Start
from scheduler.model.launch_backoff import Kind
from scheduler.model.reservations import Component, Reservation, is_on_hold
from scheduler.model.resources import SLACK, Labels, Resources, add, subtract
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.model.waiting_codes import ENTRIES, UNSERVABLE, WAITING_CODES, NoCode, WaitingCode
from scheduler.policy.capacity.fits import find_obstacle, given_to
from scheduler.policy.capacity.gang import has_room, has_room_for_some
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.cycle.work_budget import NEXT_TURN
from scheduler.policy.lifecycle.heal import heal
from scheduler.policy.lifecycle.timers import expire
from scheduler.policy.placement.place import GUARDED
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.queueing.feasibility import list_kinds
from scheduler.policy.queueing.starvation_guard import has_waited_too_long
from scheduler.policy.quota.step import charge, lacks_quota
from scheduler.policy.scaling.launch import TrialLaunch
from scheduler.policy.scaling.launch_limits import LaunchLimits
from scheduler.policy.scaling.offerings import find_own_choice, list_choices, list_resized

# The state of a scheduling cycle after a plan: its slots with the leases and launches of the plan. Conditions can be
# tested on the capacity that is left.


def replay(view: View, rules: Rules, now: float, planned: Plan) -> tuple[CycleState, LaunchLimits]:
    """Return two things: (1) the state of a cycle after its repairs and charges, with the leases that the plan
    `planned` assigns and grants, without those that it reclaims; (2) the limits on launches in this cycle, with the
    launches and starts that the plan makes for reservations.
    """
    cache = PlanCache()
    cache.follow(view)
    cycle = CycleState(view, rules, now, cache)
    expire(cycle)
    failed_boots = heal(cycle)
    charge(cycle)
    for decision in planned.decisions:
        if isinstance(decision, Assign):
            for each in decision.leases:
                _take(cycle, each)
        elif isinstance(decision, Grant):
            _take(cycle, Placement(decision.component, decision.slot, decision.epoch, decision.resources))
        elif isinstance(decision, Revoke) and decision.reason == "reclaimed" and decision.revoke_by is None:
            _give_back(cycle, decision)
    cycle.open_indexes()
    limits = LaunchLimits(cycle, failed_boots)
    for decision in planned.decisions:
        if isinstance(decision, Launch) and decision.reason == "demand":
            [choice] = [each for each in list_choices(rules.pools[decision.pool]) if each.key == decision.offering]
            limits.launch(decision.pool, choice, "demand", decision.account)
        elif isinstance(decision, Start) and decision.reason == "demand":
            slot_info = cycle.slot_infos[decision.slot]
            choices = (find_own_choice(slot_info), *list_resized(slot_info))
            choice = next(each for each in choices if each.key == decision.offering)
            limits.start(decision.pool, slot_info, choice, "demand", decision.account)
    return cycle, limits


def _take(cycle: CycleState, placement: Placement) -> None:
    slot_info = cycle.slot_infos.get(placement.slot)
    if slot_info is not None:
        slot_info.given += 1
        slot_info.free = None if slot_info.free is None else subtract(slot_info.free, placement.resources)


def _give_back(cycle: CycleState, revoke: Revoke) -> None:
    slot_info = cycle.slot_infos[revoke.slot]
    for lease in cycle.view.reservations[revoke.reservation].leases:
        if (lease.component, lease.slot) == (revoke.component, revoke.slot):
            slot_info.lifted += 1
            slot_info.free = None if slot_info.free is None else add(slot_info.free, lease.resources)


# What would have to be true for a waiting reservation to get a lease, where no change of rows or rules makes it so. The
# sentences name machines that do not exist, or events outside: they are no changes, and nothing carries them out.


def list_needs(rules: Rules, row: Reservation, code: WaitingCode, unfit: Collection[Component]) -> Iterator[str]:
    """Yield what would have to be true for a lease of a reservation that waits with this waiting code: a text for each
    component without a machine, or one text about the code. `unfit`: the components that no slot or offering could
    hold, even empty.
    """
    if (needs := ENTRIES[code].needs) is not None:
        yield needs
        return
    pools = rules.serving_pools(row.request.pool, row.request.system, needs_agent=row.run is not None)
    for component in list_components(row):
        shared = row.request.labels.keys() & component.labels.keys()
        clash = next((name for name in sorted(shared) if row.request.labels[name] != component.labels[name]), None)
        if clash is not None:
            texts = [describe_labels({clash: each[clash]}) for each in (row.request.labels, component.labels)]
            yield f"{component.name} requires only one of the labels {' and '.join(texts)}"
        elif code in UNSERVABLE and (component in unfit or code == "no_pool"):
            yield _describe_machines(rules, row, component, pools)
        elif code not in UNSERVABLE:
            yield _describe_room(rules, row, component, pools)


def _describe_machines(rules: Rules, row: Reservation, component: Component, pools: Sequence[str]) -> str:
    held = _describe_held(rules, row, component, pools)
    held = " and ".join(filter(None, [held, "an agent" if row.run is not None and not pools else ""]))
    if not pools and row.request.pool is not None:
        return f"a pool with the name {row.request.pool}" + (f", whose machines have {held}" if held else "")
    if pools and not any(rules.pools[name].is_elastic for name in pools):
        return f"a host with {held or 'room'} in pool {' or '.join(pools)}"
    serves = f"the pool {row.request.pool}" if row.request.pool is not None else f"a pool for {row.request.system}"
    return f"{serves} whose machines have {held}" if held else serves


def _describe_room(rules: Rules, row: Reservation, component: Component, pools: Sequence[str]) -> str:
    held = _describe_held(rules, row, component, pools, least="")
    size = f" with {held}" if held else ""
    count = "a free place" if component.count == 1 else f"{component.count} free places"
    ways = "leases there end, or more machines come"
    return f"{count}{size} for {component.name} in pool {' or '.join(pools)}: {ways}"


def _describe_held(
    rules: Rules, row: Reservation, component: Component, pools: Sequence[str], least: str = "at least "
) -> str:
    """Return what a machine must have for one instance of the component: "at least 4 cpus and the label disk=ssd"."""
    wanted = given_to(component, rules.pools[pools[0]]) if pools else component.resources
    amounts, labels = describe_amounts(wanted), required_labels(row, component)
    named = f"the label{'s' if len(labels) > 1 else ''} {describe_labels(labels)}" if labels else ""
    return " and ".join(filter(None, [f"{least}{amounts}" if amounts else "", named]))


MOST_NAMED: Final = 5
"""The greatest number of slots, pools or texts that the evidence of one condition names."""
CODE_OF: Final[Mapping[str, WaitingCode | None]] = {
    **{name: code for code, entry in ENTRIES.items() for name in entry.conditions},
    "not_declined": None,
}
"""Condition -> the waiting code of a reservation for which this condition is the first one that is not met.
`not_declined` has no code (None): a declined slot counts as if it did not exist.
"""
HOLDS_OF: Final[Mapping[str, tuple[Kind, ...]]] = {
    name: entry.backoffs for entry in ENTRIES.values() if entry.backoffs is not None for name in entry.conditions
}
"""Condition of a launch -> the kinds of launch back-offs because of which it may not be met."""
_RANKS: Final = {code: rank for rank, code in enumerate(WAITING_CODES)}
_MOST_FREE: Final = "the ready slot with most free"
_Finding = tuple[bool | None, str]
_Kind = tuple[str, Resources | None, Labels]
"""A kind of slots or offerings that are alike: (pool, resources, labels)."""


class Condition(msgspec.Struct, frozen=True):
    """One condition that a lease needs. `met` None: the condition does not apply, or it cannot be known whether it is
    met before an earlier condition is met.
    """

    name: str
    met: bool | None
    evidence: str
    """A text with the facts that decide whether the condition is met."""


@dataclass(frozen=True)
class Queued:
    """What the plan reports for a reservation. `code`, `detail`: its waiting code and sentence; "" if the next tick
    serves it. `position`: in the queue; None: it does not wait. `of`: the number of waiting reservations.
    """

    code: WaitingCode | NoCode = ""
    detail: str = ""
    position: int | None = None
    of: int = 0


@dataclass(frozen=True)
class Examined:
    """Why a pending reservation waits. `conditions`: the conditions for a lease, in the order of CODE_OF. `headline`:
    what does not fit, as a sentence; "" if the next tick serves the reservation. `needs`: what would have to be true
    for a lease.
    """

    conditions: tuple[Condition, ...]
    headline: str
    needs: tuple[str, ...]


def examine(view: View, rules: Rules, row: Reservation, now: float, planned: Plan, queued: Queued) -> Examined:
    """Return why the pending reservation `row` waits. `planned`: the plan of the view under these rules at `now`.
    `queued`: what this plan reports for the reservation.
    """
    state = replay(view, rules, now, planned)
    try:
        findings = Findings(*state, row, queued)
        conditions = tuple(_settle(name, findings.find(name), queued, findings) for name in CODE_OF)
        decisive = next((each for each in conditions if each.met is False), None)
        is_misfit = queued.code == "never_fits" and decisive is not None
        headline = decisive.evidence if is_misfit and decisive is not None else queued.detail
        needs = list_needs(rules, row, queued.code, findings.unfit) if queued.code else ()
        return Examined(conditions, headline, tuple(dict.fromkeys(needs)))
    finally:
        state[0].close_indexes()


def _settle(name: str, found: _Finding, queued: Queued, findings: "Findings") -> Condition:
    """Return the condition `name`. `found`, the result of the planner's functions, is compared with the waiting code
    that the plan reports. The condition that this code names is not met. An earlier condition cannot be the reason why
    the reservation waits: if `found` is "not met" for it, its result is "not known".
    """
    met, evidence = found
    if queued.code and name == _find_named(queued, findings):
        return Condition(name, met=False, evidence=evidence or queued.detail)
    if met is False and not queued.code:
        return Condition(name, None, f"not needed, since the next tick serves it: {evidence}")
    own = CODE_OF[name]
    is_passed = own is not None and queued.code != "" and _RANKS[own] <= _RANKS[queued.code]
    # The plan reports `cordoned` in place of `at_max_slots` where cordoned slots have room.
    if met is False and is_passed and (own, queued.code) != ("at_max_slots", "cordoned"):
        return Condition(name, None, f"not decisive here: {evidence}")
    return Condition(name, met, evidence)


def _find_named(queued: Queued, findings: "Findings") -> str:
    """Return the name of the condition that is not met by the waiting code and detail of `queued`."""
    if queued.code == "never_fits":
        return "labels" if findings.find("labels")[0] is False else "size"
    if queued.code == "behind_queue":
        by_detail = {NEXT_TURN: "work_budget", GUARDED: "starvation_guard"}
        return by_detail.get(queued.detail, "turn")
    return next(name for name, code in CODE_OF.items() if code == queued.code)


class Findings:
    """Finds by the functions of the planner whether each condition of one reservation is met, and the evidence."""

    def __init__(self, cycle: CycleState, limits: LaunchLimits, row: Reservation, queued: Queued) -> None:
        self._cycle, self._limits, self._row, self._queued = cycle, limits, row, queued
        self._demand: Demand = cycle.demand_of(row)
        self._needs = tuple(dict.fromkeys(self._demand.needs))
        self._finders: dict[str, Callable[[], _Finding]] = {
            "not_on_hold": self._find_hold,
            "pool": self._find_pool,
            "account_balance": self._find_balance,
            "account_limits": self._find_limits,
            "turn": self._find_turn,
            "starvation_guard": self._find_guard,
            "work_budget": self._find_budget,
        }
        self._for_pools: dict[str, Callable[[], _Finding]] = {
            "labels": self._find_labels,
            "size": self._find_size,
            "slots_started": self._find_started,
            **{name: partial(self._find_launch, name) for name in HOLDS_OF},
            "whole_gang": self._find_gang,
            "not_cordoned": self._find_cordoned,
            "free_capacity": self._find_free,
            "not_declined": self._find_declined,
        }

    def find(self, name: str) -> _Finding:
        """Return whether the condition `name` is met (None: it does not apply or is not known), and the evidence."""
        if name in self._finders:
            return self._finders[name]()
        if not self._demand.pools:
            return None, "no pool serves it"
        if name not in self._for_pools and (code := CODE_OF[name]) is not None:
            return self._decide(name, f"the waiting code would be {code}: {ENTRIES[code].sentence}")
        return self._for_pools[name]()

    def _decide(self, name: str, evidence: str) -> _Finding:
        # The plan shows that a condition is met by reporting no code, or that of a later condition.
        code, own = self._queued.code, CODE_OF[name]
        is_passed = not code or (own is not None and _RANKS[own] < _RANKS[code])
        return (True, evidence) if is_passed else (None, evidence)

    def _find_hold(self) -> _Finding:
        if self._row.suspended:
            return False, "it is suspended"
        return not is_on_hold(self._row), f"its priority is {self._row.priority:g}, and it is not suspended"

    def _find_pool(self) -> _Finding:
        pools = self._demand.pools
        return bool(pools), f"pools that may serve it: {_join(pools) or 'none'}"

    @cached_property
    def _kinds(self) -> list[_Kind]:
        """The different slots and offerings of the serving pools, each as (pool, resources, labels)."""
        found = []
        for name in self._demand.pools:
            found += [(name, *kind) for kind in list_kinds(self._cycle.pools[name])]
            pool = self._cycle.rules.pools[name]
            choices = list_choices(pool) if pool.is_elastic else []
            found += [(name, each.capacity, each.labels) for each in choices]
        return found

    @cached_property
    def unfit(self) -> list[Component]:
        """The components of which no slot or offering could hold an instance, even empty."""
        held = {need: any(need.could_hold(*kind) for kind in self._kinds) for need in self._needs}
        return [need.component for need, fits in held.items() if not fits]

    def _find_labels(self) -> _Finding:
        wanted = {
            name: text for need in self._needs for name, text in (*need.labels.items(), *need.component.labels.items())
        }
        if not wanted:
            return None, "it requires no label"
        lacks = next((need for need in self._needs if not self._list_labelled(need)), None)
        if lacks is None:
            named = _join(describe_labels({key: value}) for key, value in wanted.items())
            return True, f"required labels: {named}; slots or offerings have them"
        required = {**lacks.labels, **lacks.component.labels}
        missing = {
            name: text for name, text in required.items() if all(each[2].get(name) != text for each in self._kinds)
        }
        together = "" if missing or len(required) == 1 else " together"
        return False, f"no slot or offering has {describe_labels(missing or required)}{together}"

    def _list_labelled(self, need: InstanceRequest) -> list[_Kind]:
        return [each for each in self._kinds if need.could_hold(each[0], None, each[2])]

    def _find_size(self) -> _Finding:
        if self._find_labels()[0] is False:
            return None, "no slot or offering has its labels"
        small = next((need for need in self._needs if not any(need.could_hold(*kind) for kind in self._kinds)), None)
        need = small or max(self._needs, key=lambda each: sum(each.given[self._demand.pools[0]].values()))
        return small is None, self._compare(need, "the largest", self._list_labelled(need), met=small is None)

    def _compare(self, need: InstanceRequest, title: str, kinds: Iterable[_Kind], count: int = 1, *, met: bool) -> str:
        """Return a text with two things: what `count` instances request, and the largest amounts of the slots in
        `kinds`, which have the labels. `title`: a name for these amounts. Amounts that are large enough are left out,
        unless all are. `met`: whether an instance fits.
        """
        asked = need.given[self._demand.pools[0]]
        asks = partial(_describe_asked, need.component.name, count)
        if not asked:
            return asks({})
        held = [amounts for _, amounts, _ in kinds]
        if not held:
            return f"{asks(asked)}; no slot has its labels"
        if None in held:
            return f"{asks(asked)}; slots that count leases only may hold it"
        largest = {key: max(each.get(key, 0) for each in held if each is not None) for key in asked}
        short = {key: amount for key, amount in asked.items() if amount > largest[key] + SLACK}
        if short:
            has = ", ".join(f"{largest[key]:.12g}" + (f" {key}" if len(short) > 1 else "") for key in sorted(short))
            return f"{asks(short)}; {title} has {has}"
        if not met:
            return f"{asks(asked)}; no slot has all of it together"
        return f"{asks(asked)}; {title} amounts: {describe_amounts(largest) or 'none'}"

    def _find_balance(self) -> _Finding:
        if self._demand.settings.queue != "quota":
            return None, "its queue uses no accounts"
        account = self._cycle.view.account_of(self._row)
        if account is None:
            return None, "it has no account, so it may run at the free level only"
        evidence = describe_account(forecast(self._cycle.view, account, self._cycle.now))
        return not lacks_quota(self._cycle, self._row), evidence

    def _find_limits(self) -> _Finding:
        account = self._cycle.view.account_of(self._row) if self._demand.settings.queue == "quota" else None
        if account is None or not (account.max_fanout or account.per_label_task_limits):
            return None, "no account limits its leases"
        limits = [f"max_fanout {account.max_fanout}"] if account.max_fanout else []
        limits += [f"{label} {most}" for label, most in sorted(account.per_label_task_limits.items())]
        return self._decide("account_limits", f"limits of account {account.id}: {_join(limits)}")

    def _find_turn(self) -> _Finding:
        place = "it does not wait" if self._queued.position is None else f"{self._queued.position} of {self._queued.of}"
        backfill = "on, so it may overtake reservations that wait" if self._demand.settings.backfill else "off"
        evidence = f"place in the queue ({self._demand.settings.queue}): {place}; backfill is {backfill}"
        return (True, evidence) if self._queued.position == 1 else self._decide("turn", evidence)

    def _find_guard(self) -> _Finding:
        limit = self._demand.settings.starvation_guard
        if not limit:
            return None, "the starvation guard is off"
        if has_waited_too_long(self._row.created_at, limit, self._cycle.now):
            own, planned = f"it waits for longer than {limit:g} s, so it is protected itself", self._row.planned_start
            if planned is not None:
                seconds = planned - self._cycle.now
                own += f"; its first planned start {'is in' if seconds > 0 else 'was'} {abs(seconds):.0f} s"
                own += "" if seconds > 0 else " ago"
            return self._decide("starvation_guard", own)
        return self._decide(
            "starvation_guard", f"the guard protects reservations that wait for longer than {limit:g} s"
        )

    def _find_budget(self) -> _Finding:
        most = self._cycle.rules.limits.work_per_tick
        if not most or len(self._demand.needs) == 1:
            return None, "no limit of work concerns a single instance" if most else "work is not limited"
        return self._decide("work_budget", f"limits.work_per_tick is {most:g} for each principal")

    def _list_able(self, *, within: Callable[[SlotInfo], bool]) -> list[SlotInfo]:
        """Return the slots of the serving pools for which `within` returns True and that could hold an instance if the
        slots had no leases.
        """
        return [
            slot_info
            for name in self._demand.pools
            for slot_info in self._cycle.pools[name]
            if within(slot_info)
            and any(need.could_hold(name, slot_info.capacity, slot_info.labels) for need in self._needs)
        ]

    def _find_started(self) -> _Finding:
        ready = len(self._list_able(within=lambda each: each.takes_leases))
        coming = len(self._list_able(within=lambda each: each.is_coming))
        evidence = f"slots that could hold an instance if they were free: {ready} ready, {coming} in flight"
        return self._decide("slots_started", evidence)

    def _find_launch(self, name: str) -> _Finding:
        pools = [each for each in self._demand.pools if self._cycle.rules.pools[each].is_elastic]
        if not pools or self._row.leases:
            return None, "it waits for slots that it claims" if self._row.leases else "no pool that launches serves it"
        if not any(self._launch_codes):
            turns = filter(None, map(self._limits.offerings.describe_turn, pools))
            return None, "; ".join(["no offering of its pools could hold it", *turns])
        code = CODE_OF[name]
        is_held = code == self._held or any(code in codes and None not in codes for codes in self._launch_codes)
        return not is_held, self._describe_launch(name, pools, is_held=is_held)

    @cached_property
    def _launch_codes(self) -> list[list[WaitingCode | None]]:
        """One list for each different instance request. It has an entry for each launch that could serve the instance:
        the waiting code of the reason that prevents the launch, or None if nothing does.
        """
        return [[code for *_, code in self._limits.list_choices(self._demand, need)] for need in self._needs]

    @cached_property
    def _held(self) -> WaitingCode | NoCode:
        """The waiting code of the reason that prevents a launch which a gang needs in addition to the present slots.
        "": nothing prevents such a launch, or the reservation has one instance.
        """
        if len(self._demand.needs) == 1:
            return ""
        trial = TrialLaunch(self._cycle, self._limits, self._demand, [self._cycle.ready, self._cycle.coming])
        trial.foresee_code()
        return trial.held

    def _describe_launch(self, name: str, pools: list[str], *, is_held: bool) -> str:
        if name == "max_slots":
            bounds, slots = self._limits.bounds, self._cycle.pools
            counts = [
                f"{pool}: {sum(each.is_active for each in slots[pool])} of {bounds.find_least(pool)}" for pool in pools
            ]
            return f"active slots: {_join(counts)}"
        if name == "budget":
            account = self._row.request.account or ""
            return _join(self._limits.budgets.describe(pools, account)) or "no budget limits its launches"
        view, rules, now = self._cycle.view, self._cycle.rules, self._cycle.now
        texts = [text for pool in pools for text in describe_pool(view, rules, pool, now, HOLDS_OF[name])]
        code = CODE_OF[name]
        sentence = self._limits.describe(code, pools) if is_held and code is not None else "no back-off"
        return _join(dict.fromkeys(texts)) or sentence

    def _find_gang(self) -> _Finding:
        count = len(self._demand.needs)
        if count == 1:
            return None, "it has one instance"
        if has_room(self._demand, (self._cycle.ready,)):
            return True, f"all of its {count} instances have room"
        if has_room_for_some(self._demand, (self._cycle.ready, self._cycle.coming)):
            return False, f"some of its {count} instances have room, but not all"
        return None, f"none of its {count} instances has room"

    def _find_cordoned(self) -> _Finding:
        if self._limits.has_cordoned_room(self._demand):
            slots = self._list_able(within=lambda each: each.slot.cordoned and each.state == "ready")
            return False, f"cordoned slots with room: {_join(each.slot.id for each in slots)}"
        return True, "no cordoned slot has room for it"

    def _find_free(self) -> _Finding:
        slots = [each for each in self._list_able(within=lambda each: each.takes_leases) if each.has_place]
        slots = [each for each in slots if each.slot.id not in self._demand.declined]
        met = has_room(self._demand, (self._cycle.ready,))
        if not slots:
            return met, "no ready slot that could hold it can take another lease"
        counts = Counter(self._demand.needs)
        if met or len(self._demand.needs) == 1:
            need = max(counts, key=lambda each: sum(each.given[self._demand.pools[0]].values()))
            has_slot = met or any(self._count_room(need, each, 1) for each in slots)
            return met, self._compare(need, _MOST_FREE, self._list_free(need, slots), met=has_slot)
        found = {need: sum(self._count_room(need, each, count) for each in slots) for need, count in counts.items()}
        short = [need for need, count in counts.items() if found[need] < count]
        if not short:
            return met, "each of its components has room, but not all of them together"
        return met, _join(self._describe_room(need, counts[need], found[need], slots) for need in short)

    def _list_free(self, need: InstanceRequest, slots: Iterable[SlotInfo]) -> list[_Kind]:
        kinds = [(each.slot.pool, each.free, each.labels) for each in slots]
        return [each for each in kinds if need.could_hold(each[0], None, each[2])]

    def _describe_room(self, need: InstanceRequest, count: int, fitting: int, slots: Iterable[SlotInfo]) -> str:
        """Return how many of `count` instances have room, or why none has. `fitting`: the number that has room."""
        if not fitting:
            return self._compare(need, _MOST_FREE, self._list_free(need, slots), count, met=False)
        amounts = need.given[self._demand.pools[0]]
        return f"{_describe_asked(need.component.name, count, amounts)}; there is room for {fitting}"

    def _find_declined(self) -> _Finding:
        if not self._demand.declined:
            return None, "its holder declined no slot that is still there"
        room = [
            each for each in map(self._cycle.slot_infos.get, self._demand.declined) if each and self._has_room(each)
        ]
        return not room, f"declined slots: {_join(self._demand.declined)}; with room: {len(room)}"

    def _has_room(self, slot_info: SlotInfo) -> bool:
        return slot_info.takes_leases and any(self._count_room(need, slot_info, 1) for need in self._needs)

    def _count_room(self, need: InstanceRequest, slot_info: SlotInfo, most: int) -> int:
        """Return for how many instances a slot has room; at most `most`."""
        pool, left = slot_info.slot.pool, slot_info.pool.lease_limit - slot_info.load
        if pool not in need.given or not need.could_hold(pool, None, slot_info.labels):
            return 0
        given, free, uses = need.given[pool], slot_info.free, slot_info.uses_left
        for count in range(1, most + 1):
            if find_obstacle({name: count * amount for name, amount in given.items()}, free, left, uses, count):
                return count - 1
        return most


def _describe_asked(name: str, count: int, amounts: Resources) -> str:
    subject, verb, each = (name, "asks", "") if count == 1 else (f"{count} instances of {name}", "ask", " each")
    return (
        f"{subject} {verb} {describe_amounts(amounts)}{each}"
        if any(amounts.values())
        else f"{subject} {verb} no resources"
    )


def _join(texts: Iterable[str]) -> str:
    """Return at most MOST_NAMED of these texts, joined by commas, and how many more there are."""
    found = list(texts)
    return ", ".join(found[:MOST_NAMED]) + (f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else "")
