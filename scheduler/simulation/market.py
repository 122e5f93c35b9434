"""The simulated market: instance types, prices that move, shortages of spot machines, and what machines cost."""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from math import inf
from random import Random
from typing import Final

from typing_extensions import override

from scheduler.model.market import InstanceType, Price
from scheduler.model.rules import Rules
from scheduler.model.slots import Market, Slot
from scheduler.operations.market import refresh_market, save_market
from scheduler.ports import MarketSource, Store
from scheduler.simulation.cloud_documents import MarketDocument, TypeDocument
from scheduler.simulation.price_walk import HOUR, PriceWalk

ANY_ZONE: Final = "simulated"
"""The zone for which the market has prices if the rules name no zone."""
_DIGITS: Final = 6
"""Decimals of a price in dollars per hour."""


class SimulatedMarket(MarketSource):
    """EC2's market on a virtual clock: the port MarketSource. All zones have the same prices.

    Prices and shortages depend only on the settings of the market and the time. So they are the same whatever the
    scheduling rules are, and runs can be compared.
    """

    def __init__(self, document: MarketDocument, rules: Rules) -> None:
        self.document = document
        self.refreshes = 0
        """How often the prices were read."""
        zones = {zone for pool in rules.pools.values() for zone in pool.zones}
        zones |= {each.zone for pool in rules.pools.values() for each in pool.offerings if each.zone}
        self._zones = tuple(sorted(zones)) or (ANY_ZONE,)
        self._types = {each.name: each for each in document.types}
        steps = sorted(document.prices, key=lambda each: each.at)
        self._steps: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for each in steps:
            self._steps.setdefault((each.type, each.market), []).append((each.at, each.price))
        self._walks = {name: self._make_walk(each) for name, each in self._types.items() if each.on_demand is not None}
        self._shortages: dict[str, _Shortages] = {}

    def _make_walk(self, kind: TypeDocument) -> PriceWalk:
        each = self.document
        return PriceWalk(each.low, each.high, each.volatility, each.step, f"{each.seed}:{kind.name}")

    def find_price(self, kind: str, market: str, now: float) -> float | None:
        """Return the price of the instance type `kind` in this market at `now`, in dollars per hour; None if it has no
        price.
        """
        steps = self._steps.get((kind, market), [])
        begun = bisect_right(steps, (now, inf))
        if begun:
            return steps[begun - 1][1]
        usual = self._types[kind].on_demand if kind in self._types else None
        if usual is None or market == "on-demand":
            return usual
        return round(usual * self._walks[kind].find_share(int(now // self.document.step)), _DIGITS)

    def sum_price(self, kind: str, market: str, begin: float, end: float) -> float | None:
        """Return what a machine of the instance type `kind` costs from `begin` to `end`, in dollars, at the price of
        each moment, as EC2 bills it. Return None if the type has no price in the market at some time.
        """
        total, at = 0.0, begin
        while at < end:
            steps, step = self._steps.get((kind, market), []), self.document.step
            begun = bisect_right(steps, (at, inf))
            first = steps[begun][0] if begun < len(steps) else inf
            price, following = (
                self.find_price(kind, market, at),
                min(end, (first if begun or market == "on-demand" else min(first, (at // step + 1) * step))),
            )
            if price is None:
                return None
            total += price * (following - at) / HOUR
            at = following
        return total

    def is_short(self, kind: str, market: str, now: float) -> bool:
        """Return whether EC2 has no machines of the instance type `kind` in this market at `now`."""
        if not self.document.shortage_rate or market == "on-demand":
            return False
        if kind not in self._shortages:
            self._shortages[kind] = _Shortages(self.document, kind)
        return self._shortages[kind].include(now)

    def refuses(self, slot: Slot, rules: Rules, now: float) -> bool:
        """Return whether the launch of this slot is refused, because there is a shortage of its instance type."""
        kind = find_type(slot, rules)
        return kind is not None and self.is_short(kind, slot.market or "spot", now)

    @override
    def read_types(self, seen_at: float) -> list[InstanceType]:
        return [
            InstanceType(
                name=each.name,
                cpus=each.cpus,
                memory_mib=each.memory_mib,
                architectures=(each.architecture,),
                accelerators=max(each.accelerators, each.gpus + each.neurons + each.fpgas),
                gpus=each.gpus,
                neurons=each.neurons,
                fpgas=each.fpgas,
                zones=self._zones,
                seen_at=seen_at,
            )
            for each in self._types.values()
        ]

    @override
    def read_spot_prices(self, types: Sequence[str], zones: Sequence[str], seen_at: float) -> list[Price]:
        return list(self._list_prices(types, "spot", zones or self._zones, seen_at))

    @override
    def read_on_demand_prices(self, types: Sequence[str], seen_at: float) -> list[Price]:
        """Return the present on-demand prices of these instance types. `seen_at`: the present virtual time. See
        MarketSource.
        """
        return list(self._list_prices(types, "on-demand", self._zones, seen_at))

    def _list_prices(self, types: Sequence[str], market: Market, zones: Sequence[str], now: float) -> Iterator[Price]:
        for kind in types:
            amount = self.find_price(kind, market, now)
            for zone in zones if amount is not None else ():
                source = "spot-history" if market == "spot" else "price-list"
                yield Price(type=kind, zone=zone, market=market, price=amount, seen_at=now, source=source)  # type: ignore[arg-type]

    def refresh(self, store: Store, rules: Rules) -> bool:
        """Read the prices of the simulated market into the database, as a periodic task does in production. Return
        whether any price changed. `rules`: the rules as written, in which requirements are not yet replaced by instance
        types.
        """
        self.refreshes += 1
        known = sorted({*self._types, *(kind for kind, _ in self._steps)})
        changed = save_market(store, prices=self.read_on_demand_prices(known, store.now()))
        return refresh_market(store, self, rules, catalogue_age=inf).changed or changed

    def list_reads(self) -> list[float]:
        """Return the times at which prices have to be read because a price of `prices` begins, in seconds from the
        start.
        """
        return sorted({each.at for each in self.document.prices})

    @property
    def moves(self) -> bool:
        """Whether spot prices move by themselves, so that they have to be read again and again."""
        return bool(self._walks and self.document.volatility)


class _Shortages:
    """The shortages of one instance type: the times at which each begins and ends, drawn at random as they are
    needed.
    """

    def __init__(self, document: MarketDocument, kind: str) -> None:
        self._document, self._random = document, Random(f"{document.seed}:shortage:{kind}")
        self._begins: list[float] = []
        self._ends: list[float] = []
        self._drawn_until = 0.0

    def include(self, now: float) -> bool:
        while self._drawn_until <= now:
            begin = self._drawn_until + self._random.expovariate(self._document.shortage_rate / HOUR)
            mean = self._document.shortage_seconds
            end = begin + (self._random.expovariate(1 / mean) if mean else 0.0)
            self._begins.append(begin)
            self._ends.append(end)
            self._drawn_until = end
        at = bisect_right(self._begins, now) - 1
        return at >= 0 and now < self._ends[at]


def find_type(slot: Slot, rules: Rules) -> str | None:
    """Return the instance type of a slot's offering; None if it is not known."""
    pool = rules.pools.get(slot.pool)
    offering = pool.offering_by_key.get(slot.offering or "") if pool is not None else None
    if offering is not None:
        return offering.instance_type
    return (slot.offering or "").partition("/")[0] or None
