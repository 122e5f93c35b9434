"""Check which AWS identity this host has, and whether AWS permits the calls that the workers make. No machine is
launched or terminated.
"""

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Final, Literal

import msgspec

from leasehold.doctor.remedies import Tried, find_remedy, judge_call, show_error
from leasehold.doctor.rules import Finding, failure, ok, skipped, warning
from scheduler.model.machines import is_source
from scheduler.model.pools import Pool
from scheduler.model.quota_classes import quota_subject
from scheduler.model.rules import Rules
from scheduler.model.slots import TRIAL, Slot
from scheduler.model.transitions import SlotState
from scheduler.model.validation import InvalidInputError
from scheduler.operations.market import load_resolved, uses_market
from scheduler.policy.scaling.offerings import Choice, list_choices
from scheduler.ports import CloudError, LaunchOrder, Place, StoreUnavailableError
from scheduler.store.opening import open_store
from workers.configuration import Configuration
from workers.ec2.permissions import Permissions
from workers.ec2.requests import freeze_request, read_written
from workers.services import read_access
from workers.settings import Settings

Ability = Literal["launch", "look", "terminate"]
ABILITIES: Final[tuple[Ability, ...]] = ("launch", "look", "terminate")
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
        identity, region = permissions.identify(), permissions.find_region()
    except CloudError as error:
        yield failure("aws identity", show_error(error), find_remedy(error, Tried(region=settings.aws.region or "")))
        yield from (
            skipped(f"aws {ability}", "AWS does not accept the credentials or the region") for ability in abilities
        )
        return
    yield ok("aws identity", f"{identity.arn} in account {identity.account}")
    judge = _Judge(permissions, region)
    if "look" in abilities:
        yield judge.try_call(
            "aws look", "ec2:DescribeInstances", "look", lambda: permissions.look(settings.aws.cluster)
        )
        if is_bought_by_market:
            yield judge.try_call(
                "aws market",
                "ec2:DescribeInstanceTypes, DescribeInstanceTypeOfferings and DescribeSpotPriceHistory",
                "look",
                permissions.look_at_market,
            )
        if is_bought_by_market and settings.market.on_demand_interval:
            yield judge.try_call("aws prices", "pricing:GetProducts", "prices", permissions.look_at_prices)
        yield _look_at_interruptions(settings, permissions, judge)
    if "launch" in abilities:
        yield from _look_at_launches(pools, rules, settings, permissions, judge)
        yield from _look_at_starts(pools, settings, permissions, judge)
    if "terminate" in abilities:
        yield _look_at_terminate(settings, permissions, judge)
        yield from _look_at_stops(pools, settings, permissions, judge)


class _Judge:
    """Makes findings on calls to AWS. If AWS permits it, the encoded text of a refusal is decoded."""

    def __init__(self, permissions: Permissions, region: str) -> None:
        self._permissions, self._region = permissions, region

    def try_call(self, check: str, action: str, policy: str, call: Callable[[], object]) -> Finding:
        """Make a call and return the finding on it. `action`, `policy`: see Tried."""
        try:
            call()
        except CloudError as error:
            return self.judge(check, error, Tried(action=action, policy=policy))
        return judge_call(check, None, Tried())

    def judge(self, check: str, error: CloudError, tried: Tried) -> Finding:
        finding = judge_call(check, error, msgspec.structs.replace(tried, region=self._region))
        decoded = self._permissions.decode(error)
        return msgspec.structs.replace(finding, text=f"{finding.text} ({decoded})") if decoded else finding


def _read_rules(configuration: Configuration) -> tuple[Rules, bool]:
    """Return the rules in force, completed with the instance types and prices of the database, and whether the rules
    need such types and prices. If no rules were applied, or the database cannot be read, return the rules of this
    host's configuration file.
    """
    url = configuration.settings.database_url
    with suppress(StoreUnavailableError, InvalidInputError), closing(open_store(url)) as store:
        stored = store.load_rules()
        if stored.version:
            return load_resolved(store, stored.rules), uses_market(stored.rules)
    return configuration.rules, uses_market(configuration.rules)


def _look_at_launches(
    pools: dict[str, Pool], rules: Rules, settings: Settings, permissions: Permissions, judge: _Judge
) -> Iterator[Finding]:
    """Yield for each pool the finding on whether EC2 permits all calls that launch its machines: in each market that
    the pool uses, those of one machine and those of a batch.

    The requests are complete, like those of the launch worker, because a policy may depend on tags. DryRun prevents the
    launch. If no offering of a pool is for sale, or its image was not looked up yet, the check is skipped. If the pool
    names subnets, their zones are looked up first, as launches do.
    """
    known: dict[str, Place] = {}
    if subnets := [each.subnet or "" for pool in pools.values() for each in read_written(pool.ec2.subnets)]:
        finding, known = _look_at_subnets(subnets, permissions)
        yield finding
    for name, pool in pools.items():
        check = f"aws launch {name}"
        if not list_choices(pool):
            yield skipped(check, "no offering has a known price within the limits: `leasehold offers`")
        elif is_source(pool.ec2.image):
            yield skipped(check, f"the image {pool.ec2.image} was not looked up yet; the health worker does it")
        else:
            places = tuple(known.get(each.subnet or "", each) for each in read_written(pool.ec2.subnets))
            yield _try_pool(check, name, rules, places, settings, permissions, judge)


class _Refused(msgspec.Struct):
    """One refusal of calls that launch machines of a pool. `calls`: the calls, each with its market."""

    error: CloudError
    tried: Tried
    calls: list[str] = []


def _try_pool(
    check: str,
    name: str,
    rules: Rules,
    places: tuple[Place, ...],
    settings: Settings,
    permissions: Permissions,
    judge: _Judge,
) -> Finding:
    """Return one finding on all calls that launch machines of a pool. Equal refusals are shown once."""
    pool, tried, refused = rules.pools[name], set[str](), dict[str, _Refused]()
    cluster, region = settings.aws.cluster, permissions.find_region()
    try:
        for request, choice in _list_requests(name, pool, rules, places, cluster, region):
            for call, error in permissions.try_launch(request).items():
                tried.add(call)
                if error is not None:
                    new = _Refused(
                        error,
                        Tried(
                            action=f"ec2:{call}",
                            policy="launch",
                            pool=name,
                            quota=quota_subject(pool, choice.key, choice.market),
                            has_template=pool.ec2.launch_template is not None,
                        ),
                    )
                    refused.setdefault(show_error(error), new).calls.append(f"{call} ({choice.market or 'any market'})")
    except CloudError as error:
        return judge.judge(check, error, Tried(policy="launch", pool=name))
    if not refused:
        return ok(check, f"permitted: {', '.join(sorted(tried))}")
    findings = [(each, judge.judge(check, each.error, each.tried)) for each in refused.values()]
    text = "; ".join(f"{', '.join(dict.fromkeys(each.calls))}: {found.text}" for each, found in findings)
    make = failure if any(found.outcome == "failure" for _, found in findings) else warning
    return make(check, text, " ".join(dict.fromkeys(found.remedy for _, found in findings)))


def _list_requests(
    name: str, pool: Pool, rules: Rules, places: tuple[Place, ...], cluster: str, region: str
) -> Iterator[tuple[Mapping[str, Any], Choice]]:
    """Yield the launch requests that a pool sends, each with its first offering: for each market one for a machine and,
    unless its user data differs from machine to machine, one for a batch with all offerings of the market.
    """
    first: dict[str, list[Choice]] = {}
    for choice in list_choices(pool):
        first.setdefault(choice.market, []).append(choice)
    for choices in first.values():
        mark, keys = f"{TRIAL}{secrets.token_hex(8)}", [each.key for each in choices if each.key is not None]
        only = tuple(keys[:1])
        order = LaunchOrder(slot=f"{name}-1", pool=name, launch_id=mark, generation=1, offerings=only, places=places)
        yield freeze_request(order, rules, cluster, region), choices[0]
        if not pool.ec2.names_slot:
            batch = LaunchOrder(batch=mark, pool=name, count=2, offerings=tuple(keys), places=places)
            yield freeze_request(batch, rules, cluster, region), choices[0]


def _look_at_subnets(subnets: Sequence[str], permissions: Permissions) -> tuple[Finding, dict[str, Place]]:
    """Return the finding on the permission to describe subnets, and subnet -> its place for those that EC2 knows."""
    try:
        found = permissions.find_subnets(subnets)
    except CloudError as error:
        return warning(
            "aws subnets",
            show_error(error),
            "Permit ec2:DescribeSubnets (docs/iam/launch.json), or write each subnet as ZONE:subnet-…",
        ), {}
    zones = sorted({place.zone for place in found.values() if place.zone})
    return ok("aws subnets", f"{len(found)} subnets in {', '.join(zones)}"), found


def _look_at_interruptions(settings: Settings, permissions: Permissions, judge: _Judge) -> Finding:
    check, queue = "aws interruptions", settings.aws.interruption_queue
    if queue is None:
        return skipped(check, f"aws.interruption_queue is not set: {LATE}")
    return judge.try_call(check, "sqs:GetQueueAttributes", "interruptions", lambda: permissions.look_at_queue(queue))


def _find_machine(settings: Settings, states: Sequence[SlotState], pools: Collection[str] | None = None) -> Slot | None:
    """Return a slot with a machine of this cluster, in one of `states` and `pools` (None: any pool), to try a call on;
    None if there is none. The machine must be real, because a permission may depend on its tags.
    """
    with suppress(StoreUnavailableError, InvalidInputError), closing(open_store(settings.database_url)) as store:
        slots = store.find_slots(states=states)
        return next((slot for slot in slots if slot.instance_id and (pools is None or slot.pool in pools)), None)
    return None


def _look_at_starts(
    pools: dict[str, Pool], settings: Settings, permissions: Permissions, judge: _Judge
) -> Iterator[Finding]:
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
    call = partial(permissions.try_start, slot.instance_id, resized)
    yield judge.try_call("aws start", "ec2:StartInstances", "start", call)


def _look_at_stops(
    pools: dict[str, Pool], settings: Settings, permissions: Permissions, judge: _Judge
) -> Iterator[Finding]:
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
    yield judge.try_call("aws stop", "ec2:StopInstances", "stop", partial(permissions.try_stop, slot.instance_id))


def _look_at_terminate(settings: Settings, permissions: Permissions, judge: _Judge) -> Finding:
    """Return the finding on whether EC2 permits to terminate one machine of this cluster. The call is made with DryRun,
    so that no machine ends. Without a machine to try, the check is skipped.
    """
    slot = _find_machine(settings, ["booting", "binding", "ready", "draining"])
    if slot is None or slot.instance_id is None:
        return skipped("aws terminate", "there is no machine of this cluster to try it on")
    call = partial(permissions.try_terminate, slot.instance_id)
    return judge.try_call("aws terminate", "ec2:TerminateInstances", "terminate", call)
