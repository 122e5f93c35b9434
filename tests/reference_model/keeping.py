"""Minimum, warm and idle slots, and headroom at quota. Sources: the autoscaler's tick, Arvados."""

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from math import inf

from scheduler.model.reservations import Component, Reservation
from scheduler.model.slots import Slot
from tests.reference_model.budgeting import ROUNDING, find_left, is_in, sum_running
from tests.reference_model.gangs import Search
from tests.reference_model.launching import (
    ROOM,
    Offer,
    choose_by_turn,
    choose_eligible,
    count_left,
    find_code,
    find_limit,
    find_refusal,
    find_turn,
    is_at_quota,
    is_limited,
    is_probing,
    list_bounds,
    list_eligible,
    list_offers,
    own_offer,
    start,
)
from tests.reference_model.picture import Picture, Site, list_essential, serving_pools
from tests.reference_model.placing import Pass, could_serve_any


def count_serving(picture: Picture, name: str) -> int:
    """Only serving slots count towards `min_slots`."""
    return sum(site.is_serving for site in picture.list_in_pool(name))


def count_reserve(picture: Picture, name: str) -> int:
    """Rule: ready, uncordoned slots without a lease, plus slots in flight that no reservation waits for."""
    sites = picture.list_in_pool(name)
    return sum(site.is_idle or (site.is_serving and site.is_coming and not site.is_in_use) for site in sites)


Started = Callable[[Picture, str, str, set[str]], bool]
"""Starts a stopped slot of a pool for a reason, if its offering is one of these keys."""


def keep_minimum(picture: Picture, name: str, started: Started, room: int) -> None:
    """Rule: "While serving < `min_slots`: launch, reason `minimum`", as far as `max_slots` and the holds allow."""
    least = picture.rules.pools[name].min_slots
    while count_serving(picture, name) < least and start_any(picture, name, "minimum", started, room):
        pass


def keep_warm(picture: Picture, name: str, started: Started, room: int) -> None:
    """Rule: "While reserve < `target_warm_slots`: launch, reason `warm`", as far as `max_slots` and the holds allow."""
    wanted = picture.rules.pools[name].target_warm_slots
    while count_reserve(picture, name) < wanted and start_any(picture, name, "warm", started, room):
        pass


def start_any(picture: Picture, name: str, reason: str, started: Started, room: int) -> bool:
    """Start a stopped slot of an eligible offering, or launch the first eligible offering that does not pause; return
    whether there was one. Only a pool that divides its slots among the markets falls back to on-demand. A launch leaves
    `room` for those of reservations.
    """
    pool = picture.rules.pools[name]
    offers = choose_eligible(list_offers(name, pool), pool)
    if pool.market.on_demand_base or pool.market.on_demand_share is not None:
        offers = choose_by_turn(picture, pool, list_offers(name, pool), find_turn(picture, name))
    if started(picture, name, reason, {offer.key for offer in offers}):
        return True
    offer = next((offer for offer in offers if not find_code(picture, offer)), None)
    if room and count_left(picture, name) <= room:
        offer = None
    if offer is not None:
        start(picture, offer, reason)
    return offer is not None


def shrink(picture: Picture, name: str, to_stop: int, kept: set[str]) -> None:
    """Rule: "A ready, uncordoned slot without leases is drained, reason `idle`, when now - `idle_since` is
    strictly greater than `idle_scale_down`. Only while serving > `min_slots` and reserve > `target_warm_slots`;
    longest idle first." Slots that are to be stopped later are kept, too, and those in `kept`.
    """
    pool = picture.rules.pools[name]
    for site in sorted(picture.list_in_pool(name), key=lambda site: site.idle_since):
        spare = min(
            count_serving(picture, name) - pool.min_slots, count_reserve(picture, name) - pool.target_warm_slots
        )
        is_over = picture.now > site.idle_since + pool.idle_scale_down
        if site.is_idle and site.id not in kept and spare > to_stop and is_over:
            picture.decide("drain", site.id, "idle")
            site.state = "draining"


def release(picture: Picture, name: str, withheld: "Imagined", spared: set[str]) -> None:
    """Rule: "For each launch withheld from a waiting reservation in this tick one unneeded slot of this pool goes,
    reason `at_quota`: without leases and with nothing set against it, not cordoned; in flight before ready, then
    longest idle, then slot order. … Slots already draining or terminating count as room being made." Stopped slots go
    first, but only for launches beyond `max_slots`: they use nothing of EC2's quota. For a launch at quota, only slots
    of its bucket go, and those without an offering.
    """
    for site in choose_ending(picture, name, withheld, spared):
        picture.decide("drain" if site.state == "ready" else "terminate", site.id, "at_quota")
        site.state = "draining" if site.state == "ready" else "terminating"


def choose_ending(picture: Picture, name: str, withheld: "Imagined", spared: set[str]) -> list[Site]:
    """See `release`."""
    beyond = withheld.count_beyond(name)
    lacking = [bucket for (pool, bucket), count in withheld.by_quota.items() if pool == name for _ in range(count)]

    def helps(site: Site) -> bool:
        nonlocal beyond
        for bucket in lacking:
            if site.state != "stopped" and (not bucket or site.bucket in ("", bucket)):
                lacking.remove(bucket)
                return True
        beyond -= 1
        return beyond >= 0

    for site in picture.list_in_pool(name):
        if site.state in ("draining", "terminating"):
            helps(site)
    return [site for site in list_unneeded(picture, name) if site.id not in spared and helps(site)]


def list_unneeded(picture: Picture, name: str) -> list[Site]:
    """In the order in which they drain; slots that this tick launches are not among them. Stopped ones are first."""
    sites = [
        site
        for site in picture.list_in_pool(name)
        if site.is_idle
        or (site.state == site.row.state == "stopped" and not site.row.cordoned)
        or (site.is_coming and not site.is_new and not site.row.cordoned and not site.is_in_use)
    ]
    order = {"stopped": 0, "ready": 2}
    return sorted(sites, key=lambda site: (order.get(site.state, 1), 0 if site.is_coming else site.idle_since))


def _list_unchanging(picture: Picture) -> dict[int, object]:
    """Rules and rows, which a copy of the picture shares."""
    kept = [
        picture.history,
        picture.rules,
        *picture.rules.pools.values(),
        *picture.reservations,
        *(site.row for site in picture.sites),
    ]
    return {id(each): each for each in kept}


class Imagined:
    """The launches for pending reservations if there were enough slots, played on a copy of the picture."""

    def __init__(self, placing: Pass) -> None:
        self.real = placing.picture
        self.copy = deepcopy(placing, _list_unchanging(placing.picture)) if placing.withheld else placing
        self.sites: list[Site] = []
        self.by_quota: Counter[tuple[str, str]] = Counter()
        """By pool and bucket."""
        self.by_limit: Counter[tuple[str, str]] = Counter()
        self.is_beside_trial = False
        """Whether launches that the trial of a quota delays are imagined, too."""
        for each, awaited in self.copy.withheld:
            is_settled = all(self._is_settled(name) for name in serving_pools(self.real.rules, each))
            if not is_settled and not self._launch_for(each, awaited) and self._meets_trial(each):
                self._keep_beside_trial(each, awaited)

    def count_beyond(self, name: str) -> int:
        """The launches that `max_slots` withholds in that pool."""
        return max(0, self._total(self.by_limit, name) - count_left(self.real, name))

    def count_expected(self, name: str) -> int:
        """Those that the pool makes as soon as `max_slots` withholds none, also in the other pools of a gang."""
        return self._total(self.by_limit, name)

    def _total(self, counter: "Counter[tuple[str, str]]", name: str) -> int:
        return sum(count for (pool, _), count in counter.items() if pool == name)

    def list_kept(self, name: str, spared: set[str]) -> set[str]:
        """Rule: "During a back-off of an EC2 quota and the trial after it, an idle slot that uses this quota neither
        drains nor stops as idle if a reservation needs it together with withheld launches".
        """
        return {
            site.id
            for site in self.real.list_in_pool(name)
            if site.id in spared and is_limited(self.real, own_offer(site))
        }

    def list_spared(self) -> set[str]:
        """Slots that pending reservations would also use."""
        before = {site.id for site in self.real.sites if site.is_in_use}
        after = {site.id for site in self.copy.picture.sites if site.is_in_use and site not in self.sites}
        return after - before

    def _is_settled(self, name: str) -> bool:
        """Whether one more changes nothing there: the number of withheld launches has reached the number of slots that
        the pool may have, or no slot could drain or be launched for the minimum. The first reservations of the queue do
        not lose a slot to later ones.
        """
        pool = self.real.rules.pools[name]
        may_keep = (pool.min_slots or pool.target_warm_slots or pool.stopped_slots) and count_left(self.real, name)
        is_moot = not list_unneeded(self.real, name) and not may_keep
        is_enough = self._total(self.by_quota, name) + self._total(self.by_limit, name) >= len(
            self.real.list_in_pool(name)
        )
        return pool.provider == "static" or is_moot or is_enough

    def _meets_trial(self, each: Reservation) -> bool:
        """Whether it is a gang, and the trial of a quota holds back what could be launched for it."""
        parts = list_essential(each)
        offers = [offer for _, part in parts for offer in list_eligible(self.copy.picture, each, part)]
        return len(parts) > 1 and any(is_probing(self.copy.picture, offer) for offer in offers)

    def _keep_beside_trial(self, each: Reservation, awaited: list[Reservation]) -> None:
        """Rule: "While the trial of a quota is under way, no slot goes for the launches that wait for it": none of the
        launches that are imagined beside it stays. The gang only keeps the slots that it would use.
        """
        sites, by_quota, by_limit = [*self.sites], Counter(self.by_quota), Counter(self.by_limit)
        self.is_beside_trial = True
        self._launch_for(each, awaited)
        self.is_beside_trial = False
        self.by_quota, self.by_limit = by_quota, by_limit
        for site in [site for site in self.sites if site not in sites]:
            self.sites.remove(site)
            self.copy.picture.sites.remove(site)

    def _launch_for(self, each: Reservation, awaited: list[Reservation]) -> bool:
        """Rule: the guard would prevent the launch of a slot that could serve an awaited gang."""
        made: list[tuple[Site, Counter[tuple[str, str]]]] = []
        copy = self.copy
        could_end = [site for name in copy.picture.rules.pools for site in list_unneeded(copy.picture, name)]
        trials = [site for site in copy.picture.sites if self.is_beside_trial and site.is_new and site.is_wanted]
        stages = [copy.ready, copy.all_kept, copy.coming, copy.launched, trials, self.sites]

        def extend(component: Component) -> Site | None:
            for offer in list_eligible(copy.picture, each, component):
                if could_serve_any(copy.picture, offer, awaited):
                    continue
                if self._lacks_room_alone(offer, made, each.request.account or ""):
                    made.append((self._open(offer), self._counter(offer)))
                    made[-1][1][offer.pool, made[-1][0].bucket] += 1
                    made[-1][0].account = each.request.account or ""
                    if len(list_essential(each)) > 1 or self._is_within_budgets([]):
                        return made[-1][0]
                    self._close(*made.pop())
            return None

        def retract(keep: int) -> None:
            for site, counter in reversed(made[keep:]):
                self._close(site, counter)
            del made[keep:]

        def accept(sites: list[Site]) -> bool:
            used = [site for site in could_end if site in sites]
            return self._could_be_made(made, used) and self._is_within_budgets(used)

        return Search(copy.picture, each, stages, extend, retract, accept).run() is not None

    def _close(self, site: Site, counter: "Counter[tuple[str, str]]") -> None:
        counter[site.name, site.bucket] -= 1
        self.sites.remove(site)
        self.copy.picture.sites.remove(site)

    def _is_within_budgets(self, used: list[Site]) -> bool:
        """Rule: "No machine ends at the maximum or at a quota for a launch that a budget would then withhold": after
        the ends, all that is imagined runs within each budget that it concerns.
        """
        there = self.copy.picture
        names = {name for name, _ in (*self.by_quota, *self.by_limit)}
        ending = [site for name in names for site in choose_ending(there, name, self, {site.id for site in used})]
        gone = [site for site in there.sites if site in ending or site.state in ("draining", "terminating")]
        gone = [site for site in gone if site.name in names]
        for name, budget in there.rules.budgets.items():
            imagined = sum(site.price for site in self.sites if is_in(budget, site.name, site.account))
            if budget.action == "warn" or imagined <= ROUNDING:
                continue
            paid = sum_running(there, budget, with_leaving=True)
            with_gone = [site.state for site in gone]
            for site in gone:
                site.state = "empty"
            left = sum_running(there, budget, with_leaving=True)
            for site, state in zip(gone, with_gone, strict=True):
                site.state = state
            most = find_left(there, name) + ROUNDING
            if paid > most and left > most:
                return False
        return True

    def _could_be_made(self, made: list[tuple[Site, Counter[tuple[str, str]]]], used: list[Site]) -> bool:
        """Rule: "No slot goes for a reservation that would lack capacity even if all unneeded slots went. A slot that
        the reservation would use itself is not among them."
        """
        launched, staying = Counter(site.name for site, _ in made), Counter(site.name for site in used)
        return all(count + staying[name] <= self._count_room(name) for name, count in launched.items())

    def _lacks_room_alone(self, offer: Offer, made: list[tuple[Site, Counter[tuple[str, str]]]], account: str) -> bool:
        """Rule: "Never more are released than launches are withheld": no slot drains for a launch that this would not
        help.
        """
        # In the real picture: `_is_within_budgets` adds up what is imagined, after the ends.
        if find_code(self.real, offer, account) not in ("", *ROOM):
            return False
        is_delayed = is_probing(self.real, offer) and not self.is_beside_trial
        if is_delayed or find_refusal(self.real, offer, account):
            return False
        return sum(site.name == offer.pool for site, _ in made) < self._count_room(offer.pool)

    def _count_room(self, name: str) -> int:
        """The number of slots that could be added to that pool if all unneeded ones ended."""
        most = min(bound for bound, _ in list_bounds(self.real, name))
        going = sum(site.state in {"draining", "terminating"} for site in self.real.list_in_pool(name))
        return min(most, count_left(self.real, name) + len(list_unneeded(self.real, name)) + going)

    def _counter(self, offer: Offer) -> "Counter[tuple[str, str]]":
        return self.by_quota if is_at_quota(self.real, offer) else self.by_limit

    def _open(self, offer: Offer) -> Site:
        pool = self.real.rules.pools[offer.pool]
        site = Site(
            row=Slot(id=f"{offer.pool}+{len(self.sites)}", pool=offer.pool),
            name=offer.pool,
            pool=pool,
            state="imagined",
            capacity=offer.capacity,
            labels=dict(offer.labels),
            idle_since=inf,
            market=offer.market,
            bucket=offer.bucket if (limit := find_limit(self.real, offer)) is None else limit,
            is_new=True,
            price=offer.price,
        )
        self.copy.picture.sites.append(site)
        self.sites.append(site)
        names = list(self.real.rules.pools)
        self.copy.picture.sites[-len(self.sites) :] = sorted(self.sites, key=lambda each: names.index(each.name))
        return site
