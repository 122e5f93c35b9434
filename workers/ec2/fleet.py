"""The machines of a cluster on EC2 (the port `Fleet`): boto3 calls in batches, with each error as a CloudError.

`workers/ec2/requests.py` describes the two calls that launch machines. EC2 does not combine ids and paging: new
machines are described by their ids, at most 100 in a call, and the search for all machines uses tags with paging.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Market
from scheduler.ports import CloudError, LaunchOrder
from workers.ec2.budget import CallBudget
from workers.ec2.clients import LAUNCH_READ_SECONDS, Ec2Access, make_client
from workers.ec2.errors import cloud_errors, describe_shortfall
from workers.ec2.requests import (
    TAG_CLUSTER,
    TAG_CLUSTER_ID,
    TAG_HIGHEST,
    TAG_LAUNCH,
    TAG_OFFERING,
    TAG_POOL,
    TAG_SLOT,
    freeze_request,
)

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import InstanceStatusTypeDef, InstanceTypeDef

MOST_IDS: Final = 100
PAGE_SIZE: Final = 500
ALIVE: Final = ("pending", "running", "shutting-down", "stopping", "stopped")
STATES: Final[Mapping[str, Literal["pending", "running", "stopping", "terminated"]]] = {
    "pending": "pending",
    "running": "running",
    "stopping": "stopping",
    "stopped": "stopping",
    "shutting-down": "stopping",
    "terminated": "terminated",
}
"""State of an instance in EC2 → state of a Machine. A stopped instance cannot serve, so it counts as stopping."""


MOST_DIGITS: Final = 16
"""Most digits of a number in a tag of a machine: as many as 2**53 has, because the numbers are smaller."""
INTERRUPTIONS: Final = frozenset({"Server.SpotInstanceTermination", "Server.SpotInstanceShutdown"})
"""EC2's state reasons for an instance whose spot capacity EC2 has taken back."""

Answer = TypeVar("Answer")


class Ec2Fleet:
    """The machines of one cluster in one region of EC2. `scheduler.ports.Fleet` describes what each method promises.

    `launcher` is the client for launches, whose read timeout is longer (60 s instead of 15 s); default: `client`.
    """

    def __init__(
        self,
        client: "EC2Client",
        cluster: str,
        *,
        launcher: "EC2Client | None" = None,
        page_size: int = PAGE_SIZE,
    ) -> None:
        self._client, self._launcher = client, launcher or client
        self._cluster, self._page_size = cluster, page_size

    def freeze(self, order: LaunchOrder, rules: Rules) -> dict[str, Any]:
        """Return the complete EC2 request that launches one machine, as JSON values that can be stored and sent again
        unchanged.
        """
        return freeze_request(order, rules, self._cluster, self._client.meta.region_name)

    def launch(self, request: Mapping[str, Any]) -> Machine:
        """Send a launch request that `freeze` made, and return the machine. If the same request is sent again, its
        client token makes EC2 return the same machine.
        """
        parameters = request["parameters"]
        match request["api"]:
            case "RunInstances":
                return self._run_instances(parameters)
            case "CreateFleet":
                return self._create_fleet(parameters)
            case unknown:
                raise CloudError(
                    "misconfigured", "UnknownRequest", f"launch request with an unknown EC2 call: {unknown}"
                )

    def describe(self, machines: Sequence[str]) -> dict[str, Machine]:
        """Return the machines with these ids, by id. Running machines have the result of their status checks. An id
        that EC2 does not know is missing.
        """
        client = self._client
        described = self._each_batch(
            machines, lambda ids: list(read_machines(client.describe_instances(InstanceIds=ids)["Reservations"]))
        )
        found = {machine.id: machine for machine in described}
        running = [machine.id for machine in found.values() if machine.state == "running"]
        for status in self._each_batch(
            running, lambda ids: client.describe_instance_status(InstanceIds=ids)["InstanceStatuses"]
        ):
            machine = status["InstanceId"]
            found[machine] = msgspec.structs.replace(found[machine], healthy=read_health(status))
        return found

    def find_launch(self, launch_id: str) -> list[Machine]:
        """Return the machines of this cluster whose tag has this launch id, except terminated ones."""
        return list(self._find({f"tag:{TAG_LAUNCH}": [launch_id]}))

    def sweep(self) -> Iterator[Machine]:
        """Yield all machines of this cluster except terminated ones, as EC2 returns them page by page. They have no
        status checks (`healthy` is None).
        """
        return self._find({})

    def claim(self, machines: Sequence[str], cluster_id: str) -> None:
        """Tag the machines with these ids as machines of the cluster `cluster_id`. If EC2 does not know one of the ids,
        the machines are tagged one by one.
        """

        def tag(ids: list[str]) -> list[str]:
            self._client.create_tags(Resources=ids, Tags=[{"Key": TAG_CLUSTER_ID, "Value": cluster_id}])
            return ids

        for _ in self._each_batch(machines, tag):
            pass

    def terminate(self, machines: Sequence[str]) -> None:
        """Terminate the machines with these ids, 100 in one call. If EC2 does not know one of the ids, the machines are
        terminated one by one.
        """
        for _ in self._each_batch(machines, lambda ids: [self._client.terminate_instances(InstanceIds=ids)]):
            pass

    def _run_instances(self, parameters: Mapping[str, Any]) -> Machine:
        with cloud_errors():
            answer = self._launcher.run_instances(**parameters)
        machine = next(read_machines([answer]), None)
        if machine is None:
            raise describe_shortfall([])
        return machine

    def _create_fleet(self, parameters: Mapping[str, Any]) -> Machine:
        with cloud_errors():
            answer = self._launcher.create_fleet(**parameters)
        instances = [found for found in answer.get("Instances", ()) if found.get("InstanceIds")]
        if not instances:
            raise describe_shortfall(answer.get("Errors", ()))
        tags = {tag["Key"]: tag["Value"] for tag in parameters["TagSpecifications"][0]["Tags"]}
        return read_fleet(instances[0], tags)

    def _find(self, filters: Mapping[str, list[str]]) -> Iterator[Machine]:
        wanted = {f"tag:{TAG_CLUSTER}": [self._cluster], "instance-state-name": list(ALIVE), **filters}
        pages = self._client.get_paginator("describe_instances").paginate(
            Filters=[{"Name": name, "Values": values} for name, values in wanted.items()],
            PaginationConfig={"PageSize": self._page_size},
        )
        unread = iter(pages)
        while True:
            with cloud_errors():
                page = next(unread, None)
            if page is None:
                return
            yield from read_machines(page["Reservations"])

    def _each_batch(
        self, ids: Sequence[str], call: Callable[[list[str]], list[Answer]], size: int = MOST_IDS
    ) -> Iterator[Answer]:
        """Call `call` with batches of `size` ids, and yield its answers.

        If EC2 does not know one id, it refuses the whole batch. The ids of the batch are then sent one by one, and the
        unknown id has no answer.
        """
        unread = iter(dict.fromkeys(ids))
        while batch := list(islice(unread, size)):
            try:
                with cloud_errors():
                    answers = call(batch)
                yield from answers
            except CloudError as error:
                if error.category != "not_found":
                    raise
                if len(batch) > 1:
                    yield from self._each_batch(batch, call, size=1)


def make_fleet(cluster: str, access: Ec2Access, budget: CallBudget | None = None) -> Ec2Fleet:
    """Return the Ec2Fleet of a cluster, with one EC2 client for launches and one for all other calls.

    The calls of both clients take their tokens from `budget`; None: the calls have no limit.
    """
    client, launcher = make_client(access), make_client(access, LAUNCH_READ_SECONDS)
    if budget is not None:
        budget.guard(client)
        budget.guard(launcher)
    return Ec2Fleet(client, cluster, launcher=launcher)


def read_machine(instance: "InstanceTypeDef") -> Machine:
    """Return the Machine for one instance in an answer of DescribeInstances or RunInstances; `healthy` is None."""
    tags = {tag.get("Key"): tag.get("Value") for tag in instance.get("Tags", ())}
    launched = instance.get("LaunchTime")
    return Machine(
        id=instance["InstanceId"],
        state=STATES[instance["State"]["Name"]],
        address=instance.get("PrivateIpAddress") or instance.get("PublicIpAddress"),
        type=instance.get("InstanceType"),
        zone=instance.get("Placement", {}).get("AvailabilityZone"),
        market=_market(instance.get("InstanceLifecycle")),
        launched_at=launched.timestamp() if launched else None,
        interrupted=instance.get("StateReason", {}).get("Code") in INTERRUPTIONS,
        **_read_tags(tags),
    )


def read_machines(reservations: Iterable[Mapping[str, Any]]) -> Iterator[Machine]:
    """Yield a Machine for each instance in EC2's "reservations", which are batches of instances."""
    for reservation in reservations:
        for instance in reservation.get("Instances", ()):
            yield read_machine(instance)


def read_fleet(instance: Mapping[str, Any], tags: Mapping[str, str]) -> Machine:
    """Return the Machine for one entry of `Instances` in an answer of CreateFleet. The entry has only id, type, market
    and override; `tags` are those of the request.
    """
    override = instance.get("LaunchTemplateAndOverrides", {}).get("Overrides", {})
    return Machine(
        id=instance["InstanceIds"][0],
        state="pending",
        type=instance.get("InstanceType"),
        zone=override.get("AvailabilityZone"),
        market=_market(instance.get("Lifecycle")),
        **_read_tags(tags),
    )


def read_health(status: "InstanceStatusTypeDef") -> bool | None:
    """Return the result of EC2's two status checks of an instance: True if both are ok, False if one is impaired, None
    if neither is the case.
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
        "highest_term": _read_number(term),
        "highest_token": _read_number(token),
    }


def _read_number(text: str) -> int:
    """Return the number in the text of a tag; 0 if the text is not such a number. Every user of the AWS account may
    write tags, so a text may be wrong.
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS else 0


def _market(lifecycle: str | None) -> Market:
    return "spot" if lifecycle == "spot" else "on-demand"
