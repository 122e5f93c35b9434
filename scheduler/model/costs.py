"""The cost ledger: what each second of each machine was used for, what it cost, and for which account it was launched.

A slot with a machine has a meter: the interval that is open, with the kind of its use and the price of the machine. A
change of the slot closes the interval and opens the next one at the same instant, in the transaction that writes the
change. So the intervals of a machine follow each other without gap or overlap.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final, get_args

import msgspec

from scheduler.model.slots import CostKind, Meter, Slot
from scheduler.model.transitions import HOLDING, INACTIVE, WITH_MACHINE

COST_KINDS: Final[tuple[CostKind, ...]] = get_args(CostKind)
HOUR: Final = 3600.0
"""Seconds of an hour. The ledger has one row for each hour and combination of pool, offering, account and kind."""
LEAST_SECONDS: Final = 60.0
"""The fewest seconds that EC2 bills for each start of a machine."""


class Cost(msgspec.Struct, frozen=True, gc=False):
    """One row of the ledger: what the machines with one pool, offering, account and kind of use cost in one hour.
    `hour`: the begin of the hour, in seconds since the epoch.
    """

    hour: float
    pool: str
    offering: str
    """Key of the offering; "": the pool lists no offerings."""
    account: str
    """The account whose demand caused the launches; "": no account did."""
    kind: CostKind
    seconds: float
    """Seconds of all machines together."""
    dollars: float
    unpriced: float = 0.0
    """The part of `seconds` for which no price was known. It adds nothing to `dollars`."""

    @property
    def spent(self) -> float:
        """The dollars that count for budgets: the price of all time from the launch on, without later adjustments."""
        return 0.0 if self.kind == "adjusted" else self.dollars


class BookedMachine(msgspec.Struct, frozen=True, gc=False):
    """A machine without a slot, and the time until which the ledger has its costs. Times: seconds since the epoch."""

    machine: str
    since: float
    """Begin of the interval that was booked last."""
    until: float
    """End of the interval that was booked last. The next interval begins here."""


METERED: Final = WITH_MACHINE | {"terminating", "stopped"}
"""States in which a slot's machine costs money: from the cloud's answer to the launch until the cloud reported the end
of the machine. A stopped machine costs its storage.
"""
NO_PRICES: Final[Mapping[str, float]] = MappingProxyType({})
NONE_NOTED: Final[Mapping[str, Mapping[str, float]]] = MappingProxyType({})
CostKey = tuple[float, str, str, str, str]
"""The key of a row of the ledger: hour, pool, offering, account, kind."""


def begin_of_hour(at: float) -> float:
    """Return the begin of the hour that contains the time `at`."""
    return at // HOUR * HOUR


def measure(pool: str, meter: Meter, until: float, since: float = 0.0) -> Iterator[Cost]:
    """Yield the costs of a machine of `pool` from `meter.since` to `until`. `meter`: the open interval of the machine,
    with its use and price. Each row has the costs within one hour of the clock, e.g. 14:00 to 15:00.

    `since`: leave out all hours that end at or before this time.
    """
    start = max(meter.since, begin_of_hour(since))
    while start < until:
        hour = begin_of_hour(start)
        end = min(until, hour + HOUR)
        seconds, price = end - start, meter.price or 0.0
        yield Cost(
            hour=hour,
            pool=pool,
            offering=meter.offering,
            account=meter.account,
            kind=meter.kind,
            seconds=seconds,
            dollars=seconds / HOUR * price,
            unpriced=0.0 if price else seconds,
        )
        start = end


def measure_bill(pool: str, meter: Meter, until: float, since: float = 0.0) -> Iterator[Cost]:
    """Yield the costs of an interval as `measure` does, and what EC2 bills more or less for them: nothing for the
    machine while it is pending or shuts down, and else the present spot price in place of that of the launch. The
    volume and the public address are added. Source: EC2 user guide, "Instance lifecycle".
    """
    extra = meter.volume + (meter.address if meter.phase == "running" else 0.0)
    for cost in measure(pool, meter, until, since):
        yield cost
        more = extra * cost.seconds / HOUR
        if cost.dollars:
            more += cost.seconds / HOUR * find_billed_price(meter) - cost.dollars
        if more:
            yield msgspec.structs.replace(cost, kind="adjusted", seconds=0.0, dollars=more, unpriced=0.0)


def find_billed_price(meter: Meter) -> float:
    """Return the price in dollars per hour that EC2 bills for an interval. 0: it is free, or the price is unknown."""
    if meter.phase != "running":
        return 0.0
    return (meter.price if meter.spot is None else meter.spot) or 0.0


def _close(pool: str, meter: Meter, until: float, *, is_last: bool, is_taken_back: bool) -> tuple[Meter, list[Cost]]:
    """Return two things: (1) the interval with `ran` and `paid` as they are at its end; (2) its costs.

    `is_last`: the machine is gone or stopped. Then EC2 bills at least LEAST_SECONDS since it was started, but nothing
    if it took the machine back (`is_taken_back`) in its first hour. Source: EC2 user guide, "Billing for interrupted
    Spot Instances".
    """
    costs = list(measure_bill(pool, meter, until))
    if meter.kind == "stopped":
        return meter, costs
    ran, paid = meter.ran, meter.paid
    if meter.phase == "running":
        # EC2 gives back the price of the machine, not that of its volume and address.
        price = find_billed_price(meter) if meter.price else 0.0
        ran, paid = ran + until - meter.since, paid + price * (until - meter.since) / HOUR
    more = 0.0
    if is_last and is_taken_back and ran < HOUR:
        more = -paid
    elif is_last and 0 < ran < LEAST_SECONDS:
        more = (LEAST_SECONDS - ran) / HOUR * ((meter.price if meter.spot is None else meter.spot) or 0.0)
    if more:
        costs.append(Cost(begin_of_hour(until), pool, meter.offering, meter.account, "adjusted", 0.0, more))
    return msgspec.structs.replace(meter, ran=ran, paid=paid), costs


def add_costs(costs: Iterable[Cost]) -> list[Cost]:
    """Return the costs with one row for each key (hour, pool, offering, account, kind), sorted by key. Costs with the
    same key are added to one row.
    """
    found: dict[CostKey, Cost] = {}
    _add_all(found, costs)
    return [found[key] for key in sorted(found)]


def book(ledger: dict[CostKey, Cost], costs: Iterable[Cost]) -> None:
    """Add the costs of one transaction to the rows of a ledger in memory. Costs with the same key (CostKey) are added
    to each other first, and their sum is added to the row. The SQL store adds in the same order, so that rounding gives
    equal sums in memory and in SQL.
    """
    _add_all(ledger, add_costs(costs))


def _add_all(ledger: dict[CostKey, Cost], costs: Iterable[Cost]) -> None:
    for cost in costs:
        key = (cost.hour, cost.pool, cost.offering, cost.account, cost.kind)
        known = ledger.get(key)
        ledger[key] = (
            cost
            if known is None
            else msgspec.structs.replace(
                known,
                seconds=known.seconds + cost.seconds,
                dollars=known.dollars + cost.dollars,
                unpriced=known.unpriced + cost.unpriced,
            )
        )


def find_kind(slot: Slot) -> CostKind | None:
    """Return the kind of use of a slot's machine at present; None: the slot has no machine, or no known one.

    A slot that terminates before the cloud answered its launch has no known machine until one is found.
    """
    if slot.state not in METERED or (slot.instance_id is None and slot.machine is None):
        return None
    if slot.interrupted_at is not None and slot.state != "stopped":  # a stopped machine costs only its storage
        return "interrupted"
    if slot.state in HOLDING and slot.idle_since is None:
        return "used"
    match slot.state:
        case "ready":
            return "idle"
        case "draining" | "terminating":
            return "draining"
        case "stopped":
            return "stopped" if slot.power is None else "draining"
        case _:
            return "booting"


def find_present_price(slot: Slot) -> float:
    """Return the price of a slot's machine in its present state in dollars per hour: the price of its storage if the
    machine is stopped. 0: the price is unknown, or the slot has no machine.
    """
    if slot.state in INACTIVE:
        return 0.0
    return (slot.storage_price if slot.state == "stopped" else slot.price) or 0.0


def meter_slots(
    changed: Iterable[Slot],
    deleted: Iterable[Slot],
    now: float,
    *,
    ending: Collection[str] = (),
    taken_back: Collection[str] = (),
    noted: Mapping[str, Mapping[str, float]] = NONE_NOTED,
) -> tuple[list[Slot], list[Cost]]:
    """Close the intervals of the ledger that end because slots were changed or deleted, and open the next intervals.
    The field `meter` of a slot is its open interval: since when its machine has its present use and price.

    `ending`: the slots whose machines EC2 shuts down. `taken_back`: the slots whose machines EC2 has taken back.
    `noted`: slot -> new prices of its meter, by field (`spot`, `volume`, `address`). Return two lists: (1) the slots
    among `changed` that get another `meter`, with this `meter`; (2) the costs of the closed intervals.
    """
    metered, closed = [], []
    for slot in changed:
        following, costs = meter_slot(
            slot,
            now,
            is_ending=slot.id in ending,
            is_taken_back=slot.id in taken_back,
            noted=noted.get(slot.id, NO_PRICES),
        )
        if following is not slot:
            metered.append(following)
        closed += costs
    for slot in deleted:
        closed += meter_slot(msgspec.structs.replace(slot, state="empty"), now)[1]
    return metered, closed


def meter_slot(
    slot: Slot,
    now: float,
    *,
    is_ending: bool = False,
    is_taken_back: bool = False,
    noted: Mapping[str, float] = NO_PRICES,
) -> tuple[Slot, list[Cost]]:
    """Return two things: (1) the slot with the `meter` (open interval of the ledger) that fits its present fields; (2)
    the costs of the interval that was open before and is closed at `now`; [] if none is closed.

    The open interval stays if its kind, offering, account, price and phase still fit the slot. Else it is closed, and
    the next interval begins at the same instant. If `now` is before the begin of the open interval, that interval is
    closed with the length 0, because transactions may have times that are not in order.
    """
    kind, known = find_kind(slot), slot.meter
    at = now if known is None else max(now, known.since)
    meter = None
    if kind is not None:
        price = slot.storage_price if kind == "stopped" else slot.price
        meter = Meter(at, kind, slot.offering or "", slot.launched_for or "", price)
        if kind != "stopped" and known is not None and known.kind != "stopped":
            is_ending = is_ending or known.phase == "ending"
            meter = msgspec.structs.replace(
                meter, ran=known.ran, paid=known.paid, spot=known.spot, volume=known.volume, address=known.address
            )
            if noted:
                meter = msgspec.structs.replace(meter, **noted)
        if kind != "stopped" and (is_ending or (slot.state == "booting" and slot.instance_id is not None)):
            meter = msgspec.structs.replace(meter, phase="ending" if is_ending else "pending")
        if known is not None and msgspec.structs.replace(meter, since=known.since) == known:
            return slot, []
    elif known is None:
        return slot, []
    if known is None:
        return msgspec.structs.replace(slot, meter=meter), []
    is_last = meter is None or meter.kind == "stopped"
    done, closed = _close(slot.pool, known, at, is_last=is_last, is_taken_back=is_taken_back)
    if meter is not None and not is_last and known.kind != "stopped":
        meter = msgspec.structs.replace(meter, ran=done.ran, paid=done.paid)
    return msgspec.structs.replace(slot, meter=meter), closed
