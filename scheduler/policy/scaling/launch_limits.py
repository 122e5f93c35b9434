"""Limits: what keeps launches back in a tick. Sources: the autoscaler's tick (counting), Arvados (holds)."""

from collections.abc import Iterable, Iterator, Sequence

from scheduler.model.decisions import Launch
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.rules import Pool
from scheduler.model.transitions import INACTIVE
from scheduler.policy.capacity.gang import has_room
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.capacity.slot_index import SlotIndex
from scheduler.policy.capacity.slot_info import SlotInfo
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.offerings import Choice, list_choices, list_eligible

DETAILS = {
    "behind_queue": "one before it has waited for so long that it is not overtaken",
    "at_max_slots": "a launch would serve it, but no slot is left within max_slots",
    "at_quota": "a launch would serve it, but EC2's quota is reached",
    "capacity": "every offering that could serve it is short of capacity",
    "throttled": "EC2 asked us to slow down; launches of this pool are held",
    "misconfigured": "the last launch was refused as misconfigured, or for lack of permission",
    "gang_incomplete": "some of its instances have room, not all of them; it holds none",
    "cordoned": "only cordoned slots have room for it",
    "no_capacity": "no slot has room for it, and none can be launched",
}
"""Why one waits that no launch serves, in a sentence."""
ORDER_OF_CODES = ("behind_queue", "at_max_slots", "at_quota", "capacity", "throttled", "misconfigured")
"""Which code is told where several hold."""


class LaunchLimits:
    """`max_slots` of each pool and over all, the empty slots that are left, and the holds."""

    def __init__(self, cycle: CycleState) -> None:
        self._cycle = cycle
        self.launches = 0
        """How many this tick has decided so far."""
        self._launches_in = dict.fromkeys(cycle.pools, 0)
        self._active = {
            name: sum(p.state not in INACTIVE for p in slot_infos) for name, slot_infos in cycle.pools.items()
        }
        self._active_at_first = dict(self._active)
        self._choices = {name: list_choices(cycle.rules.pools[name]) for name in cycle.pools}
        self._eligible: dict[tuple[InstanceRequest, tuple[str, ...]], list[tuple[str, Choice]]] = {}
        self._reserved: list[InstanceRequest] = []
        """What could hold one of these is launched no more for those who wait."""
        self._cordoned_room: dict[InstanceRequest, bool] = {}
        self._knows_refusals = bool(cycle.view.holds or cycle.failed_boots)
        """Whether anything but `max_slots` may keep a launch back."""
        self._strangers = {hold.pool: hold for hold in cycle.view.holds.values() if hold.kind == "strangers"}
        self._bounds = {name: tuple(self._list_bounds(name)) for name in cycle.pools}
        self._cordoned = {
            name: [p for p in slot_infos if p.slot.cordoned and p.state == "ready" and not p.stuck]
            for name, slot_infos in cycle.pools.items()
        }
        self._empty = {
            name: [p for p in reversed(slot_infos) if p.state == "empty" and not p.slot.cordoned]
            for name, slot_infos in cycle.pools.items()
        }

    def _list_bounds(self, name: str) -> Iterator[tuple[int, Sequence[str]]]:
        """Every `max_slots` that holds for this pool, each with the pools whose slots it counts."""
        rules = self._cycle.rules
        pool, own = rules.pools[name], rules.scheduler.system.get(rules.pools[name].system)
        yield pool.max_slots or 0, (name,)
        if rules.scheduler.max_slots:
            yield rules.scheduler.max_slots, tuple({**self._active, **self._strangers})
        if own is not None and own.max_slots:
            yield own.max_slots, rules.pools_of_system[pool.system]

    def find_code(self, name: str, choice: Choice) -> str | None:
        """Why this choice cannot be launched in that pool now; None if it can."""
        if self._is_full(name):
            return "at_max_slots"
        if not self._knows_refusals:
            return None
        if self.is_at_quota(name, choice.market) or self.is_probing(name, choice.market):
            return "at_quota"
        return self._find_refusal(name, choice)

    def lacks_only_room(self, name: str, choice: Choice) -> bool:
        """Whether, if there were room within `max_slots` and quota, this choice could be launched in that pool."""
        return not self.is_probing(name, choice.market) and self._find_refusal(name, choice) is None

    def _find_refusal(self, name: str, choice: Choice) -> str | None:
        if self._is_held(hold_id(name, "capacity", choice.key or "")):
            return "capacity"
        if self._is_held(hold_id(name, "throttled")):
            return "throttled"
        wrong = self._is_held(hold_id(name, "misconfigured", choice.key or ""))
        wrong = wrong or self._is_held(hold_id("*", "auth")) or self._is_unhealthy(name)
        return "misconfigured" if wrong else None

    def describe(self, code: str, pools: Sequence[str]) -> str:
        """The code in a sentence, with what is special about these pools."""
        if code == "misconfigured":
            for name in pools:
                if self._is_unhealthy(name):
                    return self._describe_boots(name)
        if code == "at_max_slots" and (count := sum(map(self._count_strangers, self._strangers))):
            return f"{DETAILS[code]}; machines of ours that no slot knows: {count}"
        return DETAILS[code]

    def list_choices(self, demand: Demand, need: InstanceRequest) -> Iterator[tuple[str, Choice, str | None]]:
        """What could be launched for one instance, best first: (pool, choice, what holds it back or None)."""
        for name, choice in self._find_eligible(demand, need):
            yield name, choice, self._find_code_behind(name, choice)

    def find_launch(self, demand: Demand, need: InstanceRequest) -> tuple[str, Choice] | str:
        """The first of these that nothing holds back; else the code that is told, "" where there is no choice."""
        codes: list[str] = []
        for each in self._find_eligible(demand, need):
            code = self._find_code_behind(*each)
            if code is None:
                return each
            codes.append(code)
        return first_code(codes)

    def reserve(self, demand: Demand) -> None:
        """From now on nobody who waits gets a launch that could serve one of its instances: the starvation guard would
        keep it for this one.
        """
        self._reserved += [need for need in dict.fromkeys(demand.needs) if need not in self._reserved]

    def _find_code_behind(self, name: str, choice: Choice) -> str | None:
        code = self.find_code(name, choice)
        if code is None and any(
            name in need.given and need.could_hold(name, choice.capacity, choice.labels) for need in self._reserved
        ):
            return "behind_queue"
        return code

    def _find_eligible(self, demand: Demand, need: InstanceRequest) -> list[tuple[str, Choice]]:
        wanted = (need, demand.impatient)
        if wanted not in self._eligible:
            self._eligible[wanted] = list(self._list_eligible(demand, need))
        return self._eligible[wanted]

    def list_fitting(self, name: str, need: InstanceRequest) -> list[Choice]:
        """What a new slot of that pool could be and hold one instance, the cheapest first."""
        return [each for each in self._choices[name] if need.could_hold(name, each.capacity, each.labels)]

    def _list_eligible(self, demand: Demand, need: InstanceRequest) -> Iterator[tuple[str, Choice]]:
        for name in demand.pools:
            pool = self.pool(name)
            fitting = self.list_fitting(name, need) if pool.is_elastic else []
            eligible = list_eligible(fitting, pool)
            yield from ((name, choice) for choice in eligible)
            yield from ((name, choice) for choice in self._list_fallback(name, demand, fitting, eligible))

    def _list_fallback(self, name: str, demand: Demand, fitting: list[Choice], eligible: list[Choice]) -> list[Choice]:
        """On-demand offerings beyond `price_factor`: after `on_demand_after` interruptions of the reservation, or as
        many capacity errors in a row on all its eligible spot offerings.
        """
        most = self.pool(name).on_demand_after
        spot = [choice for choice in eligible if choice.market == "spot"]
        if not most or not spot:
            return []
        if name not in demand.impatient and any(self._count_refusals(name, each) < most for each in spot):
            return []
        return [choice for choice in fitting if choice.market == "on-demand" and choice not in eligible]

    def _count_refusals(self, name: str, choice: Choice) -> int:
        """Capacity errors in a row on that offering."""
        hold = self._cycle.view.holds.get(hold_id(name, "capacity", choice.key or ""))
        return hold.streak if hold else 0

    def launch(self, name: str, choice: Choice, reason: str) -> SlotInfo:
        """Decide a launch of this choice on the first empty slot of that pool; the place, now in flight."""
        slot_info = self._empty[name].pop()
        self._active[name] += 1
        self.launches += 1
        self._launches_in[name] += 1
        self._cycle.decide(Launch(slot=slot_info.slot.id, pool=name, offering=choice.key, reason=reason))  # type: ignore[arg-type]
        slot_info.state = "launching"
        slot_info.capacity = slot_info.free = choice.capacity
        slot_info.labels, slot_info.market, slot_info.price = choice.labels, choice.market, choice.price
        return slot_info

    def count_launches(self, pools: Iterable[str]) -> int:
        """How many this tick has decided so far in these pools."""
        return sum(self._launches_in[name] for name in pools)

    def undo(self, name: str, slot_info: SlotInfo) -> None:
        """Take the last launch back."""
        self._cycle.decisions.pop()
        self._active[name] -= 1
        self.launches -= 1
        self._launches_in[name] -= 1
        self._empty[name].append(slot_info)
        slot_info.state = "empty"

    def choose_code(self, demand: Demand, code: str) -> str:
        """The code to report for a reservation that no launch serves: `cordoned` instead of `at_max_slots` if cordoned
        slots have room for all its instances. Source: Arvados.
        """
        return "cordoned" if code == "at_max_slots" and self._could_stand_on_cordoned(demand) else code

    def _could_stand_on_cordoned(self, demand: Demand) -> bool:
        if not all(map(self.has_cordoned_room, dict.fromkeys(demand.needs))):
            return False
        if len(demand.needs) == 1:
            return True
        slot_index = SlotIndex([slot_info for name in demand.pools for slot_info in self._cordoned[name]])
        found = has_room(demand, (slot_index,))
        slot_index.close()
        return found

    def has_cordoned_room(self, need: InstanceRequest) -> bool:
        """Whether a cordoned slot would have room for one instance."""
        if need not in self._cordoned_room:
            self._cordoned_room[need] = any(
                slot_info.has_place and need.could_hold(name, slot_info.free, slot_info.labels)
                for name in need.given
                for slot_info in self._cordoned[name]
            )
        return self._cordoned_room[need]

    def pool(self, name: str) -> Pool:
        """The pool of that name."""
        return self._cycle.rules.pools[name]

    def find_bound(self, name: str) -> int:
        """How many slots that pool may have at most."""
        return min(most for most, _ in self._bounds[name])

    def count_left(self, name: str) -> int:
        """How many more slots of that pool could be launched within `max_slots`, quota and holds aside."""
        left = min(most - self._count(pools) for most, pools in self._bounds[name])
        return max(0, min(left, len(self._empty[name])))

    def _is_full(self, name: str) -> bool:
        if not self._empty[name]:
            return True
        for most, pools in self._bounds[name]:  # noqa: SIM110  it is asked for every launch: a generator takes twice as long
            if self._count(pools) >= most:
                return True
        return False

    def _count(self, pools: Sequence[str]) -> int:
        """Active slots of these pools, and machines that no slot knows."""
        if len(pools) == 1 and not self._strangers:
            return self._active[pools[0]]
        return sum(self._active.get(name, 0) + self._count_strangers(name) for name in pools)

    def _count_strangers(self, name: str) -> int:
        """Machines that run under this pool's tags and that no slot knows, as the last sweep saw them."""
        hold = self._strangers.get(name)
        return 0 if hold is None or self._cycle.is_due(hold.until) else hold.active

    def _is_unhealthy(self, name: str) -> bool:
        """Whether too many boots in a row failed: nothing is launched for `error_cooldown`, and then one machine
        alone, until a boot succeeds.
        """
        pool, hold = self._cycle.rules.pools[name], self._cycle.view.holds.get(hold_id(name, "unhealthy"))
        failed_now = self._cycle.failed_boots.get(name, ())
        streak = (hold.streak if hold else 0) + len(failed_now)
        if not pool.unhealthy_after or streak < pool.unhealthy_after:
            return False
        until = self._cycle.now + pool.error_cooldown if failed_now or hold is None else hold.until
        return not self._cycle.is_due(until) or any(slot_info.is_coming for slot_info in self._cycle.pools[name])

    def _describe_boots(self, name: str) -> str:
        hold, failed_now = self._cycle.view.holds.get(hold_id(name, "unhealthy")), self._cycle.failed_boots.get(name)
        count = (hold.streak if hold else 0) + len(failed_now or ())
        last = f"{failed_now[-1]} timed out" if failed_now else hold.subject if hold else ""
        return f"{count} boots in a row failed (the last one: {last}); launches of {name} rest, then one is tried alone"

    def _is_held(self, name: str) -> bool:
        hold = self._cycle.view.holds.get(name)
        return hold is not None and not self._cycle.is_due(hold.until)

    def is_at_quota(self, name: str, market: str) -> bool:
        """Whether the quota of this market holds back launches of that pool."""
        hold = self._cycle.view.holds.get(hold_id(name, "quota", market))
        return hold is not None and not self._is_quota_over(name, hold)

    def is_probing(self, name: str, market: str) -> bool:
        """After a quota hold: whether the one launch that probes the quota is unanswered."""
        return self.may_probe(name, market) and self._is_probed(name, market)

    def may_probe(self, name: str, market: str) -> bool:
        """Whether a quota hold is over and nothing was launched since: the next launch goes alone."""
        hold = self._cycle.view.holds.get(hold_id(name, "quota", market))
        return hold is not None and self._is_quota_over(name, hold)

    def _is_quota_over(self, name: str, hold: Hold) -> bool:
        fewer = hold.active > 0 and self._active_at_first[name] < hold.active
        return fewer or self._cycle.is_due(hold.until)

    def _is_probed(self, name: str, market: str) -> bool:
        slot_infos = self._cycle.pools[name]
        return any(slot_info.state == "launching" and slot_info.market == market for slot_info in slot_infos)


def first_code(codes: Iterable[str | None]) -> str:
    """Which of several codes is told; "" when there is none, or when one of them is None: a launch is possible."""
    found = set(codes)
    return "" if None in found else next((code for code in ORDER_OF_CODES if code in found), "")
