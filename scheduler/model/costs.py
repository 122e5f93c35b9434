"""The cost ledger: what each second of each machine was used for, what it cost, and for which account it was launched.

A slot with a machine has a meter: the interval that is open, with its kind and price. A change of the slot closes the
interval and opens the next one at the same instant, in the transaction that writes the change. So the intervals of a
machine follow each other without gap or overlap.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal, get_args

import msgspec

CostKind = Literal["used", "booting", "idle", "draining", "interrupted", "stopped", "unbound"]
"""What a machine did: `used` = it had a lease; `booting` = it was not ready yet; `idle` = it was ready without a lease;
`draining` = it took no more leases, until the cloud reported its end; `interrupted` = after the notice of an
interruption, with or without leases; `stopped` = it was stopped, and only its storage costs something; `unbound` = it
had no slot.
"""
COST_KINDS: Final[tuple[CostKind, ...]] = get_args(CostKind)
HOUR: Final = 3600.0
"""Seconds of an hour. The ledger has one row for each hour and combination of pool, offering, account and kind."""


class Meter(msgspec.Struct, frozen=True, gc=False):
    """The open interval of a slot's machine. `since`: its begin, in seconds since the epoch."""

    since: float
    kind: CostKind
    offering: str = ""
    account: str = ""
    """The account whose demand caused the launch; "": no account did."""
    price: float | None = None
    """Price of the machine in dollars per hour; None or 0: the price is unknown."""


class Cost(msgspec.Struct, frozen=True, gc=False):
    """One row of the ledger: what machines cost in one hour. `hour`: its begin, in seconds since the epoch."""

    hour: float
    pool: str
    offering: str
    """Key of the offering; "": the pool has none."""
    account: str
    """The account whose demand caused the launches; "": no account did."""
    kind: CostKind
    seconds: float
    """Seconds of all machines together."""
    dollars: float
    unpriced: float = 0.0
    """Those of the seconds whose price is unknown. They are in `seconds`, and cost nothing in `dollars`."""


class BookedMachine(msgspec.Struct, frozen=True, gc=False):
    """Until when a machine is booked that has no slot. Times are seconds since the epoch."""

    machine: str
    since: float
    """Begin of the interval that was booked last."""
    until: float
    """End of this interval. The next one begins here."""


CostKey = tuple[float, str, str, str, str]
"""The key of a row of the ledger: hour, pool, offering, account, kind."""


def begin_of_hour(at: float) -> float:
    """Return the begin of the hour that contains the time `at`."""
    return at // HOUR * HOUR


def measure(pool: str, meter: Meter, until: float, since: float = 0.0) -> Iterator[Cost]:
    """Yield the costs of a machine from the begin of its meter to `until`, one for each hour that contains a part.

    `since`: omit the hours before the one that contains this time.
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


def add_costs(costs: Iterable[Cost]) -> list[Cost]:
    """Return the costs with one row for each key, sorted by key. Rows with the same key are added."""
    found: dict[CostKey, Cost] = {}
    _add_all(found, costs)
    return [found[key] for key in sorted(found)]


def book(ledger: dict[CostKey, Cost], costs: Iterable[Cost]) -> None:
    """Add the costs of one transaction to the rows of a ledger. They are added to each other first, as in SQL."""
    _add_all(ledger, add_costs(costs))


def _add_all(ledger: dict[CostKey, Cost], costs: Iterable[Cost]) -> None:
    for cost in costs:
        key = (cost.hour, cost.pool, cost.offering, cost.account, cost.kind)
        known = ledger.get(key)
        ledger[key] = cost if known is None else _add(known, cost)


def _add(known: Cost, more: Cost) -> Cost:
    return msgspec.structs.replace(
        known,
        seconds=known.seconds + more.seconds,
        dollars=known.dollars + more.dollars,
        unpriced=known.unpriced + more.unpriced,
    )
