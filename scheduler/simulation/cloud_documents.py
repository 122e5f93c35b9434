"""The documents about the simulated cloud: delays of machines, refused launches, and machines without a slot."""

from typing import Literal

from scheduler.model.rules import Rules
from scheduler.model.validation import Amount, Count, Document, Name, Seconds, Signed, fault, read_document, suggest


class OutageDocument(Document):
    """An outage of the simulated cloud: until a time, launches in this pool (or of one of its offerings) fail."""

    pool: Name
    """The pool."""
    offering: Name | None = None
    """The offering; default: all of the pool's."""
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


class CloudDocument(Document):
    """The simulated cloud: how long machines take (seconds), which launches are refused, and interruptions."""

    launch: Seconds = 0.0
    """Seconds until EC2 answers a launch."""
    boot: Seconds = 0.0
    """Seconds from EC2's answer until the machine runs."""
    bind: Seconds = 0.0
    """Seconds from the time when the machine runs until it serves."""
    terminate: Seconds = 0.0
    """Seconds until a machine that is terminated is gone."""
    stop: Seconds = 0.0
    """Seconds until a machine that is to stop is stopped."""
    start: Seconds = 0.0
    """Seconds from the start of a stopped machine until it runs."""
    quota: Count | None = None
    """The most machines that may exist at a time: EC2 refuses a launch beyond it."""
    outages: tuple[PlannedOutage, ...] = ()
    """Periods in which launches of a pool, or of one of its offerings, fail."""
    interruption_rate: Amount = 0.0
    """How often, on average, a spot machine is interrupted in an hour, at random times; in traces only."""
    seed: Signed = 0
    """The seed of the random numbers: the same seed gives the same interruptions."""


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
    """Raise InvalidInputError unless the rules have the named pool, and the offering if one is named.

    An outage may name all offerings of one name at once, whatever their market and zone.
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
