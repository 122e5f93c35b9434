"""Limits: what keeps launches back in a tick. Sources: the autoscaler's tick (counting), Arvados (holds)."""

from collections.abc import Iterable, Iterator

from scheduler.model.decisions import Launch
from scheduler.model.holds import Hold, hold_id
from scheduler.model.reservations import Component
from scheduler.policy.draft import Draft
from scheduler.policy.offerings import Choice, list_eligible, list_fitting
from scheduler.policy.places import Place
from scheduler.policy.rooms import Demand, could_hold

ORDER_OF_CODES = ("at_max_slots", "at_quota", "capacity", "throttled", "misconfigured")
"""Which code is told where several hold."""


class Limits:
    """`max_slots` of each pool and over all, the empty slots that are left, and the holds."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self.launches = 0
        """How many this tick has decided so far."""
        self._active = {name: sum(p.is_active for p in places) for name, places in draft.pools.items()}
        self._active_at_first = dict(self._active)
        self._empty = {
            name: [p for p in reversed(places) if p.state == "empty" and not p.slot.cordoned]
            for name, places in draft.pools.items()
        }

    def find_code(self, name: str, choice: Choice) -> str | None:
        """Why this choice cannot be launched in that pool now; None if it can."""
        if self._is_full(name):
            return "at_max_slots"
        if self._is_quota_held(name, choice.market):
            return "at_quota"
        if self._is_held(hold_id(name, "capacity", choice.key or "")):
            return "capacity"
        if self._is_held(hold_id(name, "throttled")):
            return "throttled"
        wrong = self._is_held(hold_id(name, "misconfigured", choice.key or ""))
        return "misconfigured" if wrong or self._is_held(hold_id("*", "auth")) else None

    def list_choices(self, demand: Demand, component: Component) -> Iterator[tuple[str, Choice, str | None]]:
        """What could be launched for one instance, best first: (pool, choice, what holds it back or None)."""
        for name in demand.pools:
            pool = self._draft.rules.pools[name]
            fitting = list_fitting(pool, demand, component) if pool.is_elastic else []
            for choice in list_eligible(fitting, pool):
                yield name, choice, self.find_code(name, choice)

    def launch(self, name: str, choice: Choice, reason: str) -> Place:
        """Decide a launch of this choice on the first empty slot of that pool; the place, now in flight."""
        place = self._empty[name].pop()
        self._active[name] += 1
        self.launches += 1
        self._draft.decide(Launch(slot=place.slot.id, pool=name, offering=choice.key, reason=reason))  # type: ignore[arg-type]
        place.state = "launching"
        place.capacity, place.labels = choice.capacity, dict(choice.labels)
        place.market, place.price = choice.market, choice.price
        place.count_free()
        return place

    def undo(self, name: str, place: Place) -> None:
        """Take the last launch back."""
        self._draft.decisions.pop()
        self._active[name] -= 1
        self.launches -= 1
        self._empty[name].append(place)
        place.state = "empty"

    def _is_full(self, name: str) -> bool:
        rules = self._draft.rules
        most, most_of_all = rules.pools[name].max_slots or 0, rules.scheduler.max_slots
        full = self._active[name] >= most or not self._empty[name]
        return full or (most_of_all > 0 and sum(self._active.values()) >= most_of_all)

    def _is_held(self, name: str) -> bool:
        hold = self._draft.view.holds.get(name)
        return hold is not None and not self._draft.is_due(hold.until)

    def _is_quota_held(self, name: str, market: str) -> bool:
        """While the hold lasts; and after it, while the one launch that probes the quota is unanswered."""
        hold = self._draft.view.holds.get(hold_id(name, "quota", market))
        if hold is None:
            return False
        return not self._is_quota_over(name, hold) or self._is_probed(name, market)

    def _is_quota_over(self, name: str, hold: Hold) -> bool:
        fewer = hold.active > 0 and self._active_at_first[name] < hold.active
        return fewer or self._draft.is_due(hold.until)

    def _is_probed(self, name: str, market: str) -> bool:
        places = self._draft.pools[name]
        return any(place.state == "launching" and place.market == market for place in places)


def first_code(codes: Iterable[str | None]) -> str:
    """Which of several codes is told; "" when there is none, or when one of them is None: a launch is possible."""
    found = set(codes)
    return "" if None in found else next((code for code in ORDER_OF_CODES if code in found), "")


def has_cordoned_room(draft: Draft, demand: Demand, component: Component) -> bool:
    """Whether a cordoned slot would have room for one instance."""
    return any(
        place.slot.cordoned
        and place.state == "ready"
        and place.load < place.pool.lease_limit
        and could_hold(demand, component, place.pool, place.free, place.labels)
        for name in demand.pools
        for place in draft.pools[name]
    )
