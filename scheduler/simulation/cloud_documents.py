"""The simulated cloud as files describe it: how long it takes, what it refuses, and what is found in it."""

from typing import Literal

from scheduler.model.rules import Rules
from scheduler.model.validation import Amount, Count, Document, Name, Seconds, Signed, fault, read_document, suggest


class OutageDocument(Document):
    """Launches of this pool (or only of one offering) fail until then."""

    pool: Name
    offering: Name | None = None
    error: Literal["capacity", "quota", "throttled", "misconfigured"]
    until: Amount


class PlannedOutage(OutageDocument):
    """An outage that is known from the start; `at` and `until` count from there."""

    pool: Name
    """The pool."""
    offering: Name | None = None
    """The offering; left out = all of the pool's."""
    error: Literal["capacity", "quota", "throttled", "misconfigured"] = "capacity"
    """What EC2 answers."""
    at: Seconds = 0.0
    """When it begins."""
    until: Seconds
    """When it ends."""


class CloudDocument(Document):
    """The simulated cloud: seconds that a slot spends in each state, what EC2 refuses, and what it takes back."""

    launch: Seconds = 0.0
    """Until EC2 answers a launch."""
    boot: Seconds = 0.0
    """Until a machine runs."""
    bind: Seconds = 0.0
    """Until it serves."""
    terminate: Seconds = 0.0
    """Until a machine that is terminated is gone."""
    quota: Count | None = None
    """EC2 refuses what would make more machines than this."""
    outages: tuple[PlannedOutage, ...] = ()
    """When launches of a pool, or of one of its offerings, fail."""
    interruption_rate: Amount = 0.0
    """Spot notices per slot and hour, at random; in traces only."""
    seed: Signed = 0
    """What the random choices start from: the same seed, the same notices."""


class FoundDocument(Document):
    """A machine under our tags that SQL does not know."""

    pool: Name
    slot: Name
    offering: Name | None = None


def read_simulated_cloud(document: object, rules: Rules) -> CloudDocument:
    """The simulated cloud of these rules' pools; raises InvalidInputError."""
    cloud = read_document(CloudDocument, document, "cloud")
    for number, outage in enumerate(cloud.outages):
        check_offering(outage, rules, f"cloud.outages[{number}]")
    return cloud


def check_offering(named: OutageDocument | FoundDocument, rules: Rules, path: str) -> None:
    """The pool is configured, and so is its offering, if one is named. An outage may mean all of one name."""
    pool = rules.pools.get(named.pool)
    if pool is None:
        raise fault(f"{path}.pool", f"a pool of config{suggest(named.pool, rules.pools)}", named.pool)
    names = set(pool.offering_by_key)
    if isinstance(named, OutageDocument):
        names |= {offering.name for offering in pool.offerings}
    if named.offering is not None and named.offering not in names:
        raise fault(f"{path}.offering", f"an offering of {named.pool}", named.offering)
