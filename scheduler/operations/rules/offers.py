"""Lists what a pool would launch next: its offerings in the order of choice, each with its price and what prevents its
launch.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from scheduler.explain.conditions import show_span
from scheduler.model.budgets import Budget, Spent, find_allowed
from scheduler.model.faults import fault, one_of
from scheduler.model.launch_backoff import Hold, Kind, hold_id
from scheduler.model.machines import Offering, UnsoldOffering
from scheduler.model.market import Price, StoredMarket
from scheduler.model.pools import Pool, has_price, offering_key
from scheduler.model.quota_classes import quota_subject
from scheduler.model.resources import Resources
from scheduler.model.rules import Rules
from scheduler.model.slots import Market, Slot
from scheduler.model.transitions import INACTIVE
from scheduler.operations.costs import add_spending, describe_budgets
from scheduler.operations.market import find_price, list_types, make_offering, resolve_rules
from scheduler.policy.capacity.fits import fits
from scheduler.policy.scaling.budgets import TINY
from scheduler.policy.scaling.offerings import (
    Choice,
    count_mix,
    describe_turn,
    find_end,
    find_rest,
    find_turn,
    list_choices,
    list_configured,
    list_eligible,
    list_fallback,
)
from scheduler.ports import Store


class AccountStop(msgspec.Struct, frozen=True, kw_only=True):
    """A budget that stops launches of an offering for the demand of some accounts, and for no other demand."""

    budget: str
    accounts: tuple[str, ...]
    reason: str


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """One offering of a pool, with its price. `reasons`: why it would not be launched now; () if it could be."""

    pool: str
    key: str
    type: str | None
    market: Market
    zone: str | None = None
    """The zone for which the price is shown; if the price was set by hand, the zone of the offering."""
    price: float | None = None
    """Dollars per hour; None: no price is known."""
    source: str | None = None
    """The origin of the price (`model.market.Source`); `rules`: it was set by hand."""
    seen_at: float | None = None
    """When the price was last read into the table; None for a price that was set by hand."""
    is_stale: bool = False
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}
    holds: tuple[Hold, ...] = ()
    """The launch back-offs (holds) on this offering that have not ended."""
    reasons: tuple[str, ...] = ()
    stopped_for: tuple[AccountStop, ...] = ()
    is_next: bool = False
    """Whether the next launch of the pool would take this offering. The launch is for an instance that requires the
    resources `wanted` (see `list_offers`). If `wanted` is empty, the launch is for no reservation, e.g. for a warm
    slot.
    """
    turn: str | None = None
    """Which market the next launch of the pool is to have, and why; None if the price decides."""


class Ages(msgspec.Struct, frozen=True):
    """The ages in seconds from which prices count as stale, for spot and on-demand prices."""

    spot: float
    on_demand: float

    def is_stale(self, price: Price, now: float) -> bool:
        """Return whether a price of the table was read longer ago than the limit for its market."""
        return now - price.seen_at > (self.spot if price.market == "spot" else self.on_demand)


def list_offers(store: Store, ages: Ages, *, pools: Sequence[str] = (), wanted: Resources | None = None) -> list[Offer]:
    """Return the offers of these pools, in the order in which launches would choose them, pool by pool. If `pools` is
    empty: of all pools that launch machines. In each pool, the offers that may be chosen come first, then the offers
    that cost too much or are too small, then the offers without a price.

    Raises InvalidInputError for a pool that does not exist. `ages`: the ages from which prices are stale. `wanted`: the
    resources that one component requires, without the pool's defaults.
    """
    now, market, written = store.now(), store.load_market(), store.load_rules().rules
    for name in pools:
        if name not in written.pools:
            raise fault("pool", one_of(name, written.pools), name)
    rules = resolve_rules(written, market)
    holds = {hold.id: hold for hold in store.find_holds()}
    slots: dict[str, list[Slot]] = {name: [] for name in rules.pools}
    for slot in store.find_slots():
        slots.setdefault(slot.pool, []).append(slot)
    statuses = describe_budgets(add_spending(store, rules, now), [slot for rows in slots.values() for slot in rows])
    limits = ((each, rules.budgets[each.budget]) for each in statuses)
    budgets = [
        _Room(each.budget, budget, find_allowed(budget, Spent(each.day, each.month)), each.running)
        for each, budget in limits
        if budget.is_limit
    ]
    listing = _Listing(written, market, holds, ages, now, budgets)
    return [
        offer
        for name, pool in rules.pools.items()
        if pool.is_elastic and (not pools or name in pools)
        for offer in listing.list_pool(name, pool, wanted or {}, slots[name])
    ]


class _Room(NamedTuple):
    """What a budget that stops launches leaves, in dollars per hour. `allowed`: the highest sum of the prices of its
    machines; `running`: the present sum.
    """

    name: str
    budget: Budget
    allowed: float
    running: float


class _Listing:
    """The rows and rules from which all offers of one listing are made."""

    def __init__(
        self,
        written: Rules,
        market: StoredMarket,
        holds: Mapping[str, Hold],
        ages: Ages,
        now: float,
        budgets: Sequence[_Room],
    ) -> None:
        self._written, self._market, self._holds, self._ages, self._now = written, market, holds, ages, now
        self._budgets = budgets

    def list_pool(self, name: str, pool: Pool, wanted: Resources, slots: Sequence[Slot]) -> Iterator[Offer]:
        """Yield the offers of one pool in the order of choice. `slots`: the slots of the pool."""
        mix = count_mix((slot.state, slot.market or "") for slot in slots)
        turn = find_turn(pool.market, mix) if pool.market.has_mix else None
        text = describe_turn(pool.market, mix) if turn else None
        is_next = True
        for offer in self._list_offers(name, pool, wanted, slots, turn, text):
            is_first = is_next and not offer.reasons
            is_next = is_next and not is_first
            yield msgspec.structs.replace(offer, is_next=is_first, turn=text)

    def _list_offers(
        self,
        name: str,
        pool: Pool,
        wanted: Resources,
        slots: Sequence[Slot],
        turn: Market | None,
        text: str | None,
    ) -> Iterator[Offer]:
        choices = list_choices(pool)
        fitting = [each for each in choices if each.capacity is None or fits(wanted, each.capacity)]
        small = [each for each in choices if each not in fitting]
        could_be_spot = any(
            each.market == "spot" and (each.capacity is None or fits(wanted, each.capacity))
            for each in list_configured(pool)
        )
        turn = turn if turn != "spot" or could_be_spot else None
        eligible = list_eligible(fitting, pool, turn)
        fallback = list_fallback(name, pool, fitting, eligible, self._holds, turn)
        active = sum(slot.state not in INACTIVE for slot in slots)
        full = [] if active < (pool.max_slots or 0) else [f"max_slots ({pool.max_slots}) is reached"]
        for choice in (*eligible, *fallback):
            yield self._describe(name, pool, choice, full)
        for choice in (each for each in fitting if each not in eligible and each not in fallback):
            dear = f"costs more than {pool.price_factor:g} times the cheapest one that fits"
            yield self._describe(name, pool, choice, [*full, dear if turn in {None, choice.market} else str(text)])
        for choice in small:
            yield self._describe(name, pool, choice, [*full, "is too small"])
        unsold = [each for each in pool.offerings if not each.is_for_sale]
        for offering in sorted(unsold, key=lambda each: (not has_price(each), each.price, each.name)):
            yield self._describe_unsold(name, pool, offering)

    def _describe(self, name: str, pool: Pool, choice: Choice, reasons: Iterable[str]) -> Offer:
        offering = pool.offering_by_key.get(choice.key or "")
        found = None if offering is None else self._find_price(name, pool, offering)
        holds = tuple(self._list_holds(name, pool, choice))
        is_priced = offering is not None and has_price(offering)
        stops = [*self._find_stops(name, choice.price)] if is_priced else []
        return Offer(
            pool=name,
            key=choice.key or "",
            type=None if offering is None else offering.instance_type,
            market="on-demand" if choice.market == "on-demand" else "spot",
            zone=found.zone if found else offering.zone if offering else None,
            price=choice.price if is_priced else None,
            source=found.source if found else "rules" if is_priced else None,
            seen_at=found.seen_at if found else None,
            is_stale=found is not None and self._ages.is_stale(found, self._now),
            resources=dict(choice.capacity or {}),
            labels=dict(choice.labels),
            holds=holds,
            reasons=(
                *reasons,
                *(text for each, text in stops if not each.budget.accounts),
                *(self._describe_hold(pool, hold) for hold in holds),
            ),
            stopped_for=tuple(
                AccountStop(budget=each.name, accounts=each.budget.accounts, reason=text)
                for each, text in stops
                if each.budget.accounts
            ),
        )

    def _find_stops(self, name: str, price: float) -> Iterator[tuple[_Room, str]]:
        """Yield each budget that does not allow a launch at this price in this pool, with a text."""
        for each in self._budgets:
            if each.budget.may_cover(name) and price > 0 and each.running + price > each.allowed + TINY:
                amounts = f"{each.allowed:.2f} dollars an hour at present, {each.running:.2f} run"
                yield each, f"budget {each.name} stops it: it allows {amounts}"

    def _describe_unsold(self, name: str, pool: Pool, offering: Offering) -> Offer:
        if not isinstance(offering, UnsoldOffering):
            reasons = ("no type meets the requirements",)
            return Offer(pool=name, key=offering.name, type=None, market=offering.market, reasons=reasons)
        found = self._find_price(name, pool, offering)
        is_priced = found is not None or has_price(offering)
        return Offer(
            pool=name,
            key=offering_key(pool, offering),
            type=offering.instance_type,
            market=offering.market,
            zone=found.zone if found else offering.zone,
            price=offering.price if is_priced else None,
            source=found.source if found else "rules" if is_priced else None,
            seen_at=found.seen_at if found else None,
            is_stale=found is not None and self._ages.is_stale(found, self._now),
            resources=dict(offering.resources or pool.resources or {}),
            labels={**pool.labels, **(offering.labels or {})},
            reasons=(offering.reason,),
        )

    def _find_price(self, name: str, pool: Pool, offering: Offering) -> Price | None:
        """Return the row of the table of prices that an offering's price comes from; None if the price was set by
        hand.
        """
        return None if offering.name in self._names_by_hand(name) else find_price(pool, offering, self._market)

    def _names_by_hand(self, name: str) -> set[str]:
        """Return the names of those offerings of the pool whose price is set by hand in the rules."""
        pool = self._written.pools[name]
        found = set()
        for entry in pool.offerings:
            if entry.require is None and (has_price(entry) or not pool.takes_prices):
                found.add(entry.name)
            elif entry.require is not None and has_price(entry):
                types = list_types(pool, entry, self._market)
                found |= {make_offering(pool, entry, kind, self._market).name for kind in types}
        return found

    def _list_holds(self, name: str, pool: Pool, choice: Choice) -> Iterator[Hold]:
        def lasts(hold: Hold) -> bool:
            return find_end(pool, choice.market, hold) > self._now

        own = choice.key or ""
        rests: tuple[Kind, ...] = ("capacity", "misconfigured")
        rest = find_rest(name, pool, choice, self._holds, rests, lasts)
        quotas = (quota_subject(pool, choice.key, choice.market), choice.market, "")
        ids = [hold_id(name, kind, own) for kind in rests] + ([] if rest is None else [rest.id])
        ids += [*(hold_id(name, "quota", each) for each in quotas), hold_id(name, "throttled")]
        ids += [hold_id(name, "auth", own), hold_id(name, "auth")]
        ids = list(dict.fromkeys([*ids, hold_id("*", "auth", choice.market), hold_id("*", "auth")]))
        for hold in (self._holds[each] for each in ids if each in self._holds):
            until = find_end(pool, choice.market, hold)
            if until > self._now:
                yield msgspec.structs.replace(hold, until=until)
        unhealthy = self._holds.get(hold_id(name, "unhealthy"))
        if unhealthy is not None and 0 < pool.unhealthy_after <= unhealthy.streak:
            yield unhealthy

    def _describe_hold(self, pool: Pool, hold: Hold) -> str:
        again = pool.market.spot_again_after
        if hold.kind == "capacity" and again and hold.until == hold.refused_at + again:
            left = show_span(hold.until - self._now)
            return f"spot again in {left}: spot_again_after, after {hold.streak} refusals in a row"
        return f"launches pause: {hold.kind}" + (f"; EC2's answer: {hold.words}" if hold.words else "")
