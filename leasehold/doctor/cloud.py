"""Check which AWS identity this host has, and whether AWS permits the calls that the workers make. No machine is
launched or terminated.
"""

import secrets
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from functools import partial
from typing import Final, Literal

from leasehold.doctor.findings import Finding, failure, ok, skipped, warning
from leasehold.doctor.rules import judge_permission
from scheduler.model.pools import Pool
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import SlotState
from scheduler.model.validation import InvalidInputError
from scheduler.operations.market.resolve import load_resolved, uses_market
from scheduler.ports import CloudError, LaunchOrder, Place, StoreUnavailableError
from scheduler.store.opening import open_store
from workers.configuration import Configuration
from workers.ec2.permissions import Permissions
from workers.ec2.places import read_written
from workers.ec2.requests import freeze_request
from workers.services import read_access
from workers.settings import Settings

Ability = Literal["launch", "look", "terminate"]
ABILITIES: Final[tuple[Ability, ...]] = ("launch", "look", "terminate")
MOST_SHOWN: Final = 300
"""Most characters of EC2's message that a finding shows. EC2's refusals contain a long encoded text."""
LATE: Final = "an interrupted machine is noticed when it is gone, a boot or an end by the next sweep"


def look_at_cloud(configuration: Configuration, abilities: Collection[Ability], seconds: float) -> Iterator[Finding]:
    """Yield a finding on the identity at AWS, then at least one finding on each of `abilities`. `seconds`: time limit
    of each call to AWS. If no pool launches machines, yield only one skipped finding.
    """
    settings = configuration.settings
    rules, is_bought_by_market = _read_rules(configuration)
    pools = {name: pool for name, pool in rules.pools.items() if pool.is_elastic}
    if not pools:
        yield skipped("aws", "no pool launches machines")
        return
    permissions = Permissions(read_access(settings), seconds)
    try:
        identity = permissions.identify()
    except CloudError as error:
        remedy = "Give this host a role, or name a profile of boto3's configuration (aws.profile)."
        yield failure("aws identity", show_error(error), remedy)
        yield from (skipped(f"aws {ability}", "AWS does not accept the credentials") for ability in abilities)
        return
    yield ok("aws identity", f"{identity.arn} in account {identity.account}")
    if "look" in abilities:
        yield judge_permission("aws look", _try(lambda: permissions.look(settings.aws.cluster)), "look")
        if is_bought_by_market:
            yield judge_permission("aws market", _try(permissions.look_at_market), "look")
        if is_bought_by_market and settings.market.on_demand_interval:
            yield judge_permission("aws prices", _try(permissions.look_at_prices), "prices")
        yield _look_at_interruptions(settings, permissions)
    if "launch" in abilities:
        yield from _look_at_launches(pools, rules, settings, permissions)
        yield from _look_at_starts(pools, settings, permissions)
    if "terminate" in abilities:
        yield _look_at_terminate(settings, permissions)
        yield from _look_at_stops(pools, settings, permissions)


def _read_rules(configuration: Configuration) -> tuple[Rules, bool]:
    """Return the rules in force, completed with the instance types and prices of the database, and whether the rules
    need such types and prices. If no rules were applied, or the database cannot be read, return the rules of this
    host's configuration file.
    """
    try:
        with closing(open_store(configuration.settings.database_url)) as store:
            stored = store.load_rules()
            rules = load_resolved(store, stored.rules)
    except (StoreUnavailableError, InvalidInputError):
        return configuration.rules, uses_market(configuration.rules)
    if not stored.version:
        return configuration.rules, uses_market(configuration.rules)
    return rules, uses_market(stored.rules)


def _look_at_launches(
    pools: dict[str, Pool], rules: Rules, settings: Settings, permissions: Permissions
) -> Iterator[Finding]:
    """Yield for each pool the finding on whether EC2 permits to launch the pool's first offering that is for sale.

    The request is complete, like a request of the launch worker, because a policy may depend on tags. DryRun prevents
    the launch. If no offering of a pool is for sale, the check is skipped. If a pool names subnets, the first finding
    is on whether EC2 permits to read their zones.
    """
    known: dict[str, Place] = {}
    if subnets := [each.subnet or "" for pool in pools.values() for each in read_written(pool.ec2.subnets)]:
        finding, known = _look_at_subnets(subnets, permissions)
        yield finding
    for name, pool in pools.items():
        sold = [key for key, offering in pool.offering_by_key.items() if offering.is_for_sale]
        if pool.offerings and not sold:
            yield skipped(f"aws launch {name}", "no offering has a known price within the limits: `leasehold offers`")
            continue
        order = LaunchOrder(
            slot=f"{name}-1",
            pool=name,
            launch_id=f"doctor-{secrets.token_hex(8)}",
            generation=1,
            offering=sold[0] if sold else None,
            places=tuple(known.get(each.subnet or "", each) for each in read_written(pool.ec2.subnets)),
        )
        error = _try(partial(_launch, order, rules, settings, permissions))
        yield judge_permission(f"aws launch {name}", error, "launch")


def _look_at_subnets(subnets: Sequence[str], permissions: Permissions) -> tuple[Finding, dict[str, Place]]:
    """Return the finding on the permission to describe subnets, and subnet -> its place for those that EC2 knows."""
    try:
        found = permissions.find_subnets(subnets)
    except CloudError as error:
        remedy = "Permit ec2:DescribeSubnets (docs/iam/launch.json), or write each subnet as ZONE:subnet-…"
        return warning("aws subnets", show_error(error), remedy), {}
    zones = sorted({place.zone for place in found.values() if place.zone})
    return ok("aws subnets", f"{len(found)} subnets in {', '.join(zones)}"), found


def _launch(order: LaunchOrder, rules: Rules, settings: Settings, permissions: Permissions) -> None:
    permissions.try_launch(freeze_request(order, rules, settings.aws.cluster, permissions.find_region()))


def _look_at_interruptions(settings: Settings, permissions: Permissions) -> Finding:
    check, queue = "aws interruptions", settings.aws.interruption_queue
    if queue is None:
        return skipped(check, f"aws.interruption_queue is not set: {LATE}")
    return judge_permission(check, _try(lambda: permissions.look_at_queue(queue)), "interruptions")


def _find_machine(settings: Settings, states: Sequence[SlotState], pools: Collection[str] | None = None) -> Slot | None:
    """Return a slot with a machine of this cluster, in one of `states` and `pools` (None: any pool), to try a call on;
    None if there is none. The machine must be real, because a permission may depend on its tags.
    """
    try:
        with closing(open_store(settings.database_url)) as store:
            slots = store.find_slots(states=states)
    except (StoreUnavailableError, InvalidInputError):
        slots = []
    return next((slot for slot in slots if slot.instance_id and (pools is None or slot.pool in pools)), None)


def _look_at_starts(pools: dict[str, Pool], settings: Settings, permissions: Permissions) -> Iterator[Finding]:
    """If a pool has a stopped tier (machines that are stopped and not terminated), yield the finding on whether EC2
    permits to start a stopped machine; else yield nothing. The call is made with DryRun, so that no machine starts.
    Without a machine to try, the check is skipped.
    """
    with_tier = {name for name, pool in pools.items() if pool.stopped_slots}
    if not with_tier:
        return
    slot = _find_machine(settings, ["stopped"], with_tier)
    if slot is None or slot.instance_id is None:
        yield skipped("aws start", "there is no stopped machine of this cluster to try it on")
        return
    resized = slot.instance_type if pools[slot.pool].resize_stopped else None
    error = _try(partial(permissions.try_start, slot.instance_id, resized))
    yield judge_permission("aws start", error, "start")


def _look_at_stops(pools: dict[str, Pool], settings: Settings, permissions: Permissions) -> Iterator[Finding]:
    """If a pool has a stopped tier (machines that are stopped and not terminated), yield the finding on whether EC2
    permits to stop a machine; else yield nothing. The call is made with DryRun, so that no machine stops. Without a
    machine to try, the check is skipped.
    """
    with_tier = {name for name, pool in pools.items() if pool.stopped_slots}
    if not with_tier:
        return
    slot = _find_machine(settings, ["ready", "stopped"], with_tier)
    if slot is None or slot.instance_id is None:
        yield skipped("aws stop", "there is no machine of a pool with a stopped tier to try it on")
        return
    yield judge_permission("aws stop", _try(partial(permissions.try_stop, slot.instance_id)), "stop")


def _look_at_terminate(settings: Settings, permissions: Permissions) -> Finding:
    """Return the finding on whether EC2 permits to terminate one machine of this cluster. The call is made with DryRun,
    so that no machine ends. Without a machine to try, the check is skipped.
    """
    slot = _find_machine(settings, ["booting", "binding", "ready", "draining"])
    instance = None if slot is None else slot.instance_id
    if instance is None:
        return skipped("aws terminate", "there is no machine of this cluster to try it on")
    return judge_permission("aws terminate", _try(lambda: permissions.try_terminate(instance)), "terminate")


def _try(call: Callable[[], object]) -> str | None:
    try:
        call()
    except CloudError as error:
        return show_error(error)
    return None


def show_error(error: CloudError) -> str:
    """Return the message of an error in one line, cut after MOST_SHOWN characters."""
    text = " ".join(str(error).split())
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"
