"""The documents about the simulated cloud: delays of machines, refused launches, and machines without a slot."""

from typing import Annotated, Literal

from scheduler.model.machines import read_market
from scheduler.model.pools import Share
from scheduler.model.rules import Rules
from scheduler.model.slots import Market
from scheduler.model.validation import (
    Amount,
    Before,
    Count,
    Document,
    Name,
    Positive,
    Seconds,
    Signed,
    expected,
    fault,
    read_document,
    suggest,
)


class OutageDocument(Document):
    """An outage of the simulated cloud: until the time `until`, launches in this pool (or only those of one of its
    offerings) fail.
    """

    pool: Name
    """The pool whose launches fail."""
    offering: Name | None = None
    """The offering whose launches fail; default: all offerings of the pool."""
    error: Literal["capacity", "quota", "throttled", "misconfigured"]
    """The class of the error with which EC2 refuses a launch."""
    until: Amount
    """When the outage ends."""


class PlannedOutage(OutageDocument):
    """An outage that is known from the start. `at` and `until` are seconds from the start."""

    error: Literal["capacity", "quota", "throttled", "misconfigured"] = "capacity"
    at: Seconds = 0.0
    """When the outage begins."""
    until: Seconds


class TypeDocument(Document):
    """An instance type of the simulated market. Pools with requirements choose among these types."""

    name: Name
    """Name of the type, like `m5.large`."""
    cpus: Amount = 0.0
    """Number of vCPUs."""
    memory_mib: Amount = 0.0
    """Memory in MiB."""
    architecture: Literal["x86_64", "arm64", "i386"] = "x86_64"
    """Architecture of the processor."""
    accelerators: Count = 0
    """Number of GPUs or other accelerators."""
    gpus: Count = 0
    """Number of GPUs."""
    neurons: Count = 0
    """Number of Inferentia and Trainium devices."""
    fpgas: Count = 0
    """Number of FPGAs."""
    on_demand: Amount | None = None
    """On-demand price in dollars per hour; spot prices are the shares `low` to `high` of it. Default: only
    `cloud.market.prices`.
    """


class PriceStep(Document):
    """A price of the simulated market that is known from the start.

    It holds until the next price of the same type and market. From the first of them on, a spot price does not move by
    itself any more.
    """

    at: Seconds = 0.0
    """When the price begins, in seconds from the start."""
    type: Name
    """The instance type."""
    market: Annotated[Market, Before(read_market)] = "spot"
    """The market, `spot` or `on-demand`."""
    price: Amount
    """The price in dollars per hour."""


class MarketDocument(Document):
    """The simulated market: moving prices, shortages and interruptions. Without `types` and `prices` there is none."""

    interval: Positive = 300
    """Seconds between two reads of the prices, which are also read at each `at` of `prices`."""
    low: Share = 0.3
    """Lowest spot price, as a share of the on-demand price."""
    high: Share = 0.7
    """Highest spot price, as a share of the on-demand price."""
    volatility: Amount = 0.05
    """Standard deviation of the relative change of a spot price in an hour."""
    step: Positive = 300
    """Seconds between two changes of a spot price."""
    shortage_rate: Amount = 0.0
    """Mean number of shortages of spot machines of a type that begin in an hour without one."""
    shortage_seconds: Seconds = 1800.0
    """Mean duration of a shortage, in which spot launches of the type are refused (`capacity`)."""
    interruption_rate: Amount = 0.0
    """Mean number of interruptions of a spot machine per hour, at random, in scenarios and traces."""
    seed: Signed = 0
    """The seed of the random numbers."""
    types: tuple[TypeDocument, ...] = ()
    """The instance types of the market."""
    prices: tuple[PriceStep, ...] = ()
    """Prices that are known from the start."""

    def check_fields(self) -> None:
        """Raise ExpectedError if `high` is below `low`, or if two types have the same name."""
        if self.high < self.low:
            raise expected(f"at least low ({self.low:g})", key="high", got=self.high)
        names = [each.name for each in self.types]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise expected("types with different names", key="types", got=twice)

    @property
    def is_on(self) -> bool:
        """Whether the simulation has a market: there are types or prices."""
        return bool(self.types or self.prices)


class CloudDocument(Document):
    """The simulated cloud: how long machines take (seconds), which launches are refused, and interruptions."""

    launch: Seconds = 0.0
    """Seconds until EC2 answers a launch."""
    boot: Seconds = 0.0
    """Seconds from EC2's answer until the machine runs."""
    bind: Seconds = 0.0
    """Seconds from the time when the machine runs until it serves."""
    terminate: Seconds = 0.0
    """Seconds from the request to terminate a machine until it is gone."""
    stop: Seconds = 0.0
    """Seconds from the request to stop a machine until it is stopped."""
    start: Seconds = 0.0
    """Seconds from the request to start a stopped machine until it runs."""
    quota: Count | None = None
    """The most machines that may exist at a time; default: no limit."""
    outages: tuple[PlannedOutage, ...] = ()
    """Periods in which launches of a pool, or of one of its offerings, fail."""
    interruption_rate: Amount = 0.0
    """Mean number of interruptions of a spot machine per hour, at random; in traces only."""
    seed: Signed = 0
    """The seed of the random numbers."""
    market: MarketDocument = MarketDocument()
    """The simulated market."""


class FoundDocument(Document):
    """Timeline action `found`: EC2 has a machine with the cluster's tags that the database does not know."""

    pool: Name
    slot: Name
    offering: Name | None = None


def read_simulated_cloud(document: object, rules: Rules) -> CloudDocument:
    """Return the settings of the simulated cloud. Raises InvalidInputError if `document` has a fault or names a pool
    that the rules do not have.
    """
    cloud = read_document(CloudDocument, document, "cloud")
    for number, outage in enumerate(cloud.outages):
        check_offering(outage, rules, f"cloud.outages[{number}]")
    return cloud


def check_offering(named: OutageDocument | FoundDocument, rules: Rules, path: str) -> None:
    """Raise InvalidInputError unless the rules have the pool of `named`, and its offering if `named` has one. In an
    outage, an instance type alone is accepted, and stands for all its offerings in any market and zone. `path`: the
    place of `named` in the input, for the message.
    """
    pool = rules.pools.get(named.pool)
    if pool is None:
        raise fault(f"{path}.pool", f"a pool of config{suggest(named.pool, rules.pools)}", named.pool)
    names = set(pool.offering_by_key)
    if isinstance(named, OutageDocument):
        names |= {offering.name for offering in pool.offerings}
    is_open = any(offering.require is not None for offering in pool.offerings)
    if named.offering is not None and named.offering not in names and not is_open:
        raise fault(f"{path}.offering", f"an offering of {named.pool}", named.offering)
