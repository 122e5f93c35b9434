"""The machines of a cluster on EC2 (the port `Fleet`): boto3 calls in batches, with each error as a CloudError.

`workers/ec2/requests.py` describes the two calls that launch machines. EC2 refuses a call that has both ids and paging.
So new machines are described by their ids, at most 100 in a call, and the search for all machines uses tags with
paging.
"""

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from typing_extensions import override

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Market
from scheduler.ports import UNCLEAR, CloudError, Fleet, LaunchAnswer, LaunchOrder, Place, Refusal
from workers.ec2.batches import MOST_IDS, change_batches, each_batch, read_pages
from workers.ec2.budget import CallBudget
from workers.ec2.clients import LAUNCH_READ_SECONDS, Ec2Access, make_client
from workers.ec2.errors import (
    ABOUT_ZONES,
    RANKS,
    choose_error,
    classify_reason,
    cloud_errors,
    read_error,
    read_message,
    was_unclear,
)
from workers.ec2.places import Places
from workers.ec2.requests import (
    TAG_ALIVE,
    TAG_BATCH,
    TAG_CLUSTER,
    TAG_CLUSTER_ID,
    TAG_HIGHEST,
    TAG_LAUNCH,
    TAG_OFFERING,
    TAG_POOL,
    TAG_SLOT,
    fill_join_token,
    freeze_request,
)
from workers.ec2.templates import EXISTS, NOT_FOUND

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceStatusTypeDef, InstanceTypeDef, TagTypeDef

MOST_CHANGED: Final = 250
"""The most instances in one call that terminates, stops, starts or tags them. EC2 takes up to 1,000."""
MOST_STATUSES: Final = 1000
"""The most status checks on one page of EC2's list of all status checks."""
PAGE_SIZE: Final = 500
TEMPLATE_PAUSES: Final = (1.0, 2.0, 4.0)
"""Pauses in seconds after which a launch whose new launch template EC2 does not find is sent again."""
ALIVE: Final = ("pending", "running", "shutting-down", "stopping", "stopped")
STATES: Final[Mapping[str, Literal["pending", "running", "stopping", "stopped", "terminated"]]] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopping",
    "stopped": "stopped",
    "shutting-down": "stopping",
    "terminated": "terminated",
}
"""State of an instance in EC2 → state of a Machine. An instance that is shutting down has not ended yet, so the state
of its Machine is `stopping`.
"""


ADDRESSES: Final = {
    "private": "PrivateIpAddress",
    "public": "PublicIpAddress",
    "ipv6": "Ipv6Address",
    "dns": "PrivateDnsName",
}
"""Kind of an address, as in `Ec2Rules.address` -> its field in EC2's answer about an instance."""
MOST_DIGITS: Final = 16
"""Most digits of a number in a tag of a machine: as many as 2**53 has, because the numbers are smaller."""
ENDING: Final = frozenset({"stopping", "stopped", "terminated"})
"""The states of a Machine in which EC2's state reason is why the machine ends. In others it may be `pending`."""
INTERRUPTIONS: Final = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
"""Codes in EC2's state reason of an instance whose spot capacity EC2 has taken back."""

SHORT: Final = Refusal(
    offering=None,
    category="capacity",
    code="UnfulfillableCapacity",
    message="EC2 launched fewer machines than requested, and named no error",
)
"""The reason for missing machines if EC2 names no error."""


class Ec2Fleet(Fleet):
    """The machines of one cluster in one region of EC2. `scheduler.ports.Fleet` describes what each method promises.

    `launcher` is the client for launches, whose read timeout is longer (60 s instead of 15 s); default: `client`.
    `pause` sleeps for a number of seconds. `join_url`: the address at which machines with agents join.
    """

    def __init__(
        self,
        client: "EC2Client",
        cluster: str,
        *,
        launcher: "EC2Client | None" = None,
        page_size: int = PAGE_SIZE,
        pause: Callable[[float], None] = time.sleep,
        join_url: str | None = None,
    ) -> None:
        self._join_url = join_url
        self._client, self._launcher = client, launcher or client
        self._cluster, self._page_size, self._pause = cluster, page_size, pause
        self._places = Places(client)

    @override
    def find_places(self, pool: str, rules: Rules) -> tuple[Place, ...]:
        found = rules.pools.get(pool)
        return self._places.find(found.ec2.subnets) if found else ()

    @override
    def freeze(self, order: LaunchOrder, rules: Rules) -> dict[str, Any]:
        return freeze_request(order, rules, self._cluster, self._client.meta.region_name, self._join_url)

    @override
    def launch(self, request: Mapping[str, Any]) -> LaunchAnswer:
        request = fill_join_token(request)
        match request["api"]:
            case "RunInstances":
                with launch_errors(request):
                    answer = self._launcher.run_instances(**request["parameters"])
                machines = tuple(read_machines([answer]))
                return LaunchAnswer(
                    machines=machines,
                    refusals=_list_short(request) if len(machines) < request["parameters"]["MaxCount"] else (),
                    is_after_unclear=was_unclear(answer),
                )
            case "CreateFleet":
                return read_answer(self._send_fleet(request), request)
            case unknown:
                raise CloudError(
                    "misconfigured",
                    "UnknownRequest",
                    f"the launch request asks for the EC2 call {unknown}, expected RunInstances or CreateFleet",
                )

    @override
    def describe(self, machines: Sequence[str], *, checked: Collection[str] | None = None) -> dict[str, Machine]:
        client = self._client
        described = each_batch(
            machines, lambda ids: list(read_machines(client.describe_instances(InstanceIds=ids)["Reservations"]))
        )
        found = {machine.id: machine for machine in described}
        wanted = found.keys() if checked is None else set(checked)
        running = [machine.id for machine in found.values() if machine.state == "running" and machine.id in wanted]
        for status in self._list_statuses(running):
            machine = status["InstanceId"]
            found[machine] = msgspec.structs.replace(found[machine], healthy=read_health(status))
        return found

    def _list_statuses(self, machines: Sequence[str]) -> Iterator["InstanceStatusTypeDef"]:
        """Yield the status checks of these machines. If one call can name all ids, call by ids. Otherwise read the
        first page of EC2's list of all running machines, because such a page has ten times as many machines, and call
        by ids for those that it lacks. In a large fleet all pages would be more calls than those by ids.
        """
        client, missing = self._client, set(machines)
        if len(machines) > MOST_IDS:
            with cloud_errors():
                page = client.describe_instance_status(MaxResults=MOST_STATUSES)
            found = [status for status in page["InstanceStatuses"] if status["InstanceId"] in missing]
            yield from found
            # A machine that the last page lacks has no status.
            missing = missing - {status["InstanceId"] for status in found} if page.get("NextToken") else set()
        yield from each_batch(
            sorted(missing), lambda ids: client.describe_instance_status(InstanceIds=ids)["InstanceStatuses"]
        )

    @override
    def find_launched(self, request: Mapping[str, Any]) -> list[Machine]:
        tags = _read_request_tags(request)
        key = TAG_BATCH if TAG_BATCH in tags else TAG_LAUNCH
        return list(self._find({f"tag:{key}": [tags[key]]}))

    @override
    def sweep(self) -> Iterator[Machine]:
        return self._find({})

    @override
    def claim(self, machines: Sequence[str], cluster_id: str) -> dict[str, CloudError]:
        return self._tag(machines, TAG_CLUSTER_ID, cluster_id)

    @override
    def show_life(self, machines: Sequence[str], sign: str) -> dict[str, CloudError]:
        return self._tag(machines, TAG_ALIVE, sign)

    def _tag(self, machines: Sequence[str], key: str, value: str) -> dict[str, CloudError]:
        tags: list[TagTypeDef] = [{"Key": key, "Value": value}]
        return change_batches(machines, lambda ids: self._client.create_tags(Resources=ids, Tags=tags), MOST_CHANGED)

    @override
    def terminate(self, machines: Sequence[str]) -> dict[str, CloudError]:
        return change_batches(machines, lambda ids: self._client.terminate_instances(InstanceIds=ids), MOST_CHANGED)

    @override
    def stop(self, machines: Sequence[str]) -> dict[str, CloudError]:
        return change_batches(machines, lambda ids: self._client.stop_instances(InstanceIds=ids), MOST_CHANGED)

    @override
    def start(self, machines: Sequence[str]) -> dict[str, CloudError]:
        return change_batches(machines, lambda ids: self._client.start_instances(InstanceIds=ids), MOST_CHANGED)

    @override
    def resize(self, machine: str, instance_type: str) -> None:
        with cloud_errors():
            self._client.modify_instance_attribute(InstanceId=machine, InstanceType={"Value": instance_type})

    def _send_fleet(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Send a CreateFleet and return EC2's answer, completed by `name_zones`.

        If EC2 refuses the request because a launch template is missing that Leasehold makes (`request["template"]`),
        make the template and send the request again. EC2 may not find a new template for some seconds, so the request
        is sent again after each of TEMPLATE_PAUSES. A refused request has launched nothing.
        """
        template, steps = request.get("template"), list[Callable[[], None]]()
        if template is not None:
            steps = [partial(make_template, self._launcher, template)]
            steps += [partial(self._pause, seconds) for seconds in TEMPLATE_PAUSES]
        for step in steps:
            try:
                return self._call_fleet(request)
            except CloudError as error:
                if error.code != NOT_FOUND:
                    raise
            step()
        return self._call_fleet(request)

    def _call_fleet(self, request: Mapping[str, Any]) -> dict[str, Any]:
        with launch_errors(request):
            answer: Any = self._launcher.create_fleet(**request["parameters"])
        return name_zones(answer, request["parameters"])

    def _find(self, filters: Mapping[str, list[str]]) -> Iterator[Machine]:
        wanted = {f"tag:{TAG_CLUSTER}": [self._cluster], "instance-state-name": list(ALIVE), **filters}
        pages = self._client.get_paginator("describe_instances").paginate(
            Filters=[{"Name": name, "Values": values} for name, values in wanted.items()],
            PaginationConfig={"PageSize": self._page_size},
        )
        seen: set[str] = set()
        for page in read_pages(pages):
            for machine in read_machines(page["Reservations"]):
                # EC2 may list a machine on two pages. The caller would end the second one as a copy.
                if machine.id not in seen:
                    seen.add(machine.id)
                    yield machine


def make_fleet(
    cluster: str, access: Ec2Access, budget: CallBudget | None = None, join_url: str | None = None
) -> Ec2Fleet:
    """Return the Ec2Fleet of a cluster, with one EC2 client for launches and one for all other calls.

    The calls of both clients take their tokens from `budget`; None: the calls have no limit. `join_url`: as
    for Ec2Fleet.
    """
    client, launcher = make_client(access), make_client(access, LAUNCH_READ_SECONDS)
    if budget is not None:
        budget.guard(client)
        budget.guard(launcher)
    return Ec2Fleet(client, cluster, launcher=launcher, join_url=join_url)


def read_machine(instance: "InstanceTypeDef") -> Machine:
    """Return the Machine for one instance in an answer of DescribeInstances or RunInstances. It has no result of status
    checks (`healthy` is None).
    """
    tags = {tag.get("Key"): tag.get("Value") for tag in instance.get("Tags", ())}
    launched = instance.get("LaunchTime")
    # EC2 returns the empty text for a name that the machine does not have.
    addresses = {kind: address for kind, key in ADDRESSES.items() if (address := str(instance.get(key) or ""))}
    state = STATES[instance["State"]["Name"]]
    reason = instance.get("StateReason", {}) if state in ENDING else {}
    code, message = read_message(reason.get("Code", "")), read_message(reason.get("Message", ""))
    meaning = classify_reason(code, message)
    return Machine(
        id=instance["InstanceId"],
        state=state,
        address=addresses.get("private") or addresses.get("public") or addresses.get("ipv6"),
        addresses=addresses,
        type=instance.get("InstanceType"),
        zone=instance.get("Placement", {}).get("AvailabilityZone"),
        subnet=instance.get("SubnetId"),
        market=_market(instance.get("InstanceLifecycle")),
        launched_at=launched.timestamp() if launched else None,
        interrupted=code in INTERRUPTIONS,
        # EC2's message mostly begins with the code.
        reason=f"{code}: {message.removeprefix(f'{code}: ')}" if code else "",
        category=meaning.category if meaning else None,
        scope=meaning.scope if meaning else None,
        **_read_tags(tags),
    )


def read_machines(reservations: Iterable[Mapping[str, Any]]) -> Iterator[Machine]:
    """Yield a Machine for each instance in EC2's "reservations", which are batches of instances."""
    for reservation in reservations:
        for instance in reservation.get("Instances", ()):
            yield read_machine(instance)


def read_fleet(instance: Mapping[str, Any], tags: Mapping[str, str]) -> Machine:
    """Return the Machine for one entry of `Instances` in an answer of CreateFleet. The entry has only id, type, market
    and override (the type and place that EC2 chose), so the tags are taken from the request (`tags`).
    """
    override = instance.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return Machine(
        id=instance["InstanceIds"][0],
        state="pending",
        type=instance.get("InstanceType"),
        zone=override.get("AvailabilityZone"),
        subnet=override.get("SubnetId"),
        market=_market(instance.get("Lifecycle")),
        **_read_tags(tags),
    )


def name_zones(answer: dict[str, Any], parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer to a CreateFleet with the zone in each override that names only a subnet, if the request names
    the zone of that subnet. `parameters`: those of the request.
    """
    overrides = parameters["LaunchTemplateConfigs"][0]["Overrides"]
    zones = {each.get("SubnetId"): each["AvailabilityZone"] for each in overrides if "AvailabilityZone" in each}
    for entry in (*answer.get("Instances", ()), *answer.get("Errors", ())):
        override = entry.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
        if zone := zones.get(override.get("SubnetId", "")):
            override.setdefault("AvailabilityZone", zone)
    return answer


@contextmanager
def launch_errors(request: Mapping[str, Any]) -> Iterator[None]:
    """Within this context, turn each exception of boto3 into a CloudError about this launch request. An error that
    concerns a place has the only place of the request, or the one that its message names. If there is none, the error
    concerns the offering.
    """
    try:
        with cloud_errors(is_of_one=len(request.get("offerings", ())) <= 1):
            yield
    except CloudError as error:
        if error.scope == "place":
            places = [place for each in _find_offerings(request).values() for place in each]
            names = {name for place in places if (name := _name(place, error.code))}
            named = [name for name in names if name in error.message] or list(names)
            error.place = named[0] if len(named) == 1 else ""
            error.scope = "place" if error.place else "offering"
        raise


def _find_offerings(request: Mapping[str, Any]) -> Mapping[str, Sequence[Mapping[str, str]]]:
    """Return the offerings of a launch request with their places. Older versions stored requests without them."""
    return request.get("offerings") or {"": [{}]}


def _name(place: Mapping[str, str], code: str) -> str:
    """Return what an error with this code concerns of a place: its zone, or its subnet, as far as it has them."""
    zone, subnet = place.get("AvailabilityZone", ""), place.get("SubnetId", "")
    return (zone or subnet) if code in ABOUT_ZONES else (subnet or zone)


def read_answer(answer: Mapping[str, Any], request: Mapping[str, Any]) -> LaunchAnswer:
    """Return the machines and the refused offerings in the answer to a CreateFleet. `request`: as `freeze` made it.

    Without any machine and any error, all offerings lack capacity. Source: EC2's CreateFleet, which may launch fewer
    machines without an error. Raises CloudError if there is no machine and no error of the answer is a clear refusal.
    """
    parameters, offerings, tags = request["parameters"], _find_offerings(request), _read_request_tags(request)
    machines = [
        msgspec.structs.replace(read_fleet({**entry, "InstanceIds": [name]}, tags), offering=key)
        for entry in answer.get("Instances", ())
        for name in entry.get("InstanceIds", ())
        for key in [_find_offering(offerings, entry) or tags.get(TAG_OFFERING)]
    ]
    is_short = len(machines) < parameters["TargetCapacitySpecification"]["TotalTargetCapacity"]
    refusals = read_refusals(answer.get("Errors", ()), offerings, is_short=is_short)
    if not machines and not refusals:
        refusals = list(_list_short(request))
    if not machines and all(each.category in UNCLEAR for each in refusals):
        raise refusals[-1].to_error(is_after_unclear=was_unclear(answer))
    return LaunchAnswer(machines=tuple(machines), refusals=tuple(refusals), is_after_unclear=was_unclear(answer))


def _list_short(request: Mapping[str, Any]) -> tuple[Refusal, ...]:
    return tuple(msgspec.structs.replace(SHORT, offering=key or None) for key in _find_offerings(request))


def _read_request_tags(request: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in request["parameters"]["TagSpecifications"][0]["Tags"]}


def read_refusals(
    errors: Sequence[Mapping[str, Any]], offerings: Mapping[str, Sequence[Mapping[str, str]]], *, is_short: bool
) -> list[Refusal]:
    """Return the refused offerings in the errors of a fleet, the one to show last. `offerings`: offering -> the places
    where EC2 might launch it. `is_short`: EC2 launched fewer machines than requested.

    An offering is refused in two cases: (1) EC2 names an error for each place of the offering; (2) EC2 names an error
    for one of its places, and machines are missing. If only some of its places were refused, or the errors concern
    places, there is a refusal for each of these places.
    """
    refusals: list[Refusal] = []
    for key, places in offerings.items():
        by_place = [(place, [read_error(each) for each in errors if _is_at(each, place)]) for place in places]
        found = [(place, choose_error(named)) for place, named in by_place if named]
        is_everywhere = len(found) == len(places)
        if not found or not (is_short or is_everywhere):
            continue
        if is_everywhere and all(error.scope != "place" for _, error in found):
            refusals.append(choose_error(error for _, error in found).refuse(key or None))
            continue
        for place, error in found:
            error.place = _name(place, error.code)
            if error.scope == "place" and not error.place:
                error.scope = "offering"
            refusals.append(error.refuse(key or None))
    return sorted(refusals, key=lambda each: RANKS.get(each.category, 0))


def _find_offering(offerings: Mapping[str, Sequence[Mapping[str, str]]], entry: Mapping[str, Any]) -> str | None:
    """Return the key of the offering to which an instance in an answer of CreateFleet belongs; None if the pool has no
    offerings.
    """
    found = (key for key, places in offerings.items() if any(_is_at(entry, place) for place in places))
    return next(found, next(iter(offerings), "")) or None


def _is_at(entry: Mapping[str, Any], place: Mapping[str, str]) -> bool:
    """Return whether an instance or an error in an answer of CreateFleet (`entry`) concerns this place, which is an
    instance type with a subnet or a zone. An error that names no override concerns every place.
    """
    override = entry.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    kind = {"InstanceType": entry["InstanceType"]} if "InstanceType" in entry else {}
    named = {**kind, **override}
    return all(named.get(key, value) == value for key, value in place.items())


def read_health(status: "InstanceStatusTypeDef") -> bool | None:
    """Return the result of EC2's two status checks of an instance: True if both are ok, False if one is impaired, None
    in any other case, for example while a check is not complete.
    """
    checks = {
        status.get("InstanceStatus", {}).get("Status"),
        status.get("SystemStatus", {}).get("Status"),
    }
    if "impaired" in checks:
        return False
    return True if checks == {"ok"} else None


def _read_tags(tags: Mapping[Any, str | None]) -> dict[str, Any]:
    term, _, token = (tags.get(TAG_HIGHEST) or "").partition(".")
    return {
        "slot": tags.get(TAG_SLOT),
        "pool": tags.get(TAG_POOL),
        "launch_id": tags.get(TAG_LAUNCH),
        "offering": tags.get(TAG_OFFERING),
        "cluster_id": tags.get(TAG_CLUSTER_ID),
        "batch": tags.get(TAG_BATCH),
        "alive": tags.get(TAG_ALIVE) or "",
        "highest_term": _read_number(term),
        "highest_token": _read_number(token),
    }


def _read_number(text: str) -> int:
    """Return the whole number in the text of a tag; 0 if the text is not a number of at most MOST_DIGITS digits. Every
    user of the AWS account may write tags, so a text may be wrong.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 0


def _market(lifecycle: str | None) -> Market:
    return "spot" if lifecycle == "spot" else "on-demand"


def make_template(client: "EC2Client", template: dict[str, Any]) -> None:
    """Create a launch template that `describe_template` returned. If the template exists already, because another
    process has created it, do nothing. Raises CloudError if EC2 refuses the call.
    """
    try:
        with cloud_errors():
            client.create_launch_template(**template)
    except CloudError as error:
        if error.code != EXISTS:
            raise
