"""The `Fleet` port on EC2: boto3 calls in batches, with each error as a CloudError.

`workers/ec2/requests.py` describes the two calls that launch. EC2 does not combine ids and paging: new machines are
described by id (at most 100 in a call), the sweep uses tags with paging.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine
from scheduler.ports import CloudError, LaunchOrder
from workers.ec2.budget import CallBudget
from workers.ec2.clients import LAUNCH_READ_SECONDS, make_client
from workers.ec2.errors import cloud_errors, describe_shortfall
from workers.ec2.machines import read_fleet, read_health, read_machines, with_health
from workers.ec2.requests import TAG_CLUSTER, TAG_CLUSTER_ID, TAG_LAUNCH, freeze_request

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import FilterTypeDef

MOST_IDS: Final = 100
PAGE_SIZE: Final = 500
ALIVE: Final = ("pending", "running", "shutting-down", "stopping", "stopped")

Answer = TypeVar("Answer")


class Ec2Fleet:
    """The machines of one cluster in one region of EC2; see `scheduler.ports.Fleet` for the contract.

    `launcher` is the client for launches, with a longer read timeout than `client` (60 s, 15 s).
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
        """See `workers.ec2.requests.freeze_request`."""
        return freeze_request(order, rules, self._cluster, self._client.meta.region_name)

    def launch(self, request: Mapping[str, Any]) -> Machine:
        """Carry out a frozen request. Because of its client token, EC2 answers a repeat with the same machine."""
        parameters = request["parameters"]
        match request["api"]:
            case "RunInstances":
                return self._run_instances(parameters)
            case "CreateFleet":
                return self._create_fleet(parameters)
            case unknown:
                raise CloudError("misconfigured", "UnknownRequest", f"no such call: {unknown}")

    def describe(self, machines: Sequence[str]) -> dict[str, Machine]:
        """Return machines by id, running ones with their status checks. Unknown ids are missing in the result."""
        found = {machine.id: machine for machine in self._each_batch(machines, self._describe_batch)}
        running = [machine.id for machine in found.values() if machine.state == "running"]
        for machine, health in self._each_batch(running, self._check_batch):
            found[machine] = with_health(found[machine], health)
        return found

    def find_launch(self, launch_id: str) -> list[Machine]:
        """Return this cluster's machines with the launch id, except terminated ones."""
        return list(self._find({f"tag:{TAG_LAUNCH}": [launch_id]}))

    def sweep(self) -> Iterator[Machine]:
        """Yield this cluster's machines page by page, without status checks (`healthy` is None)."""
        return self._find({})

    def claim(self, machines: Sequence[str], cluster_id: str) -> None:
        """Tag these machines with the cluster's identity. If EC2 does not know one of them, tag them one by one."""

        def tag(ids: list[str]) -> list[str]:
            with cloud_errors():
                self._client.create_tags(Resources=ids, Tags=[{"Key": TAG_CLUSTER_ID, "Value": cluster_id}])
            return ids

        for _ in self._each_batch(machines, tag):
            pass

    def terminate(self, machines: Sequence[str]) -> None:
        """Terminate these machines, 100 in a call. If EC2 does not know one of them, terminate them one by one."""
        for _ in self._each_batch(machines, self._terminate_batch):
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

    def _describe_batch(self, ids: list[str]) -> list[Machine]:
        with cloud_errors():
            return list(read_machines(self._client.describe_instances(InstanceIds=ids)["Reservations"]))

    def _check_batch(self, ids: list[str]) -> list[tuple[str, bool | None]]:
        with cloud_errors():
            statuses = self._client.describe_instance_status(InstanceIds=ids)["InstanceStatuses"]
        return [(status["InstanceId"], read_health(status)) for status in statuses]

    def _terminate_batch(self, ids: list[str]) -> list[str]:
        with cloud_errors():
            self._client.terminate_instances(InstanceIds=ids)
        return ids

    def _find(self, filters: Mapping[str, list[str]]) -> Iterator[Machine]:
        wanted = {f"tag:{TAG_CLUSTER}": [self._cluster], "instance-state-name": list(ALIVE), **filters}
        pages = self._client.get_paginator("describe_instances").paginate(
            Filters=[_filter(name, values) for name, values in wanted.items()],
            PaginationConfig={"PageSize": self._page_size},
        )
        unread = iter(pages)
        while True:
            with cloud_errors():
                page = next(unread, None)
            if page is None:
                return
            yield from read_machines(page["Reservations"])

    def _each_batch(self, ids: Sequence[str], call: Callable[[list[str]], list[Answer]]) -> Iterator[Answer]:
        """Yield the answers for all ids. One unknown id fails its whole batch, whose ids are then sent one by one."""
        unread = iter(dict.fromkeys(ids))
        while batch := list(islice(unread, MOST_IDS)):
            try:
                yield from call(batch)
            except CloudError as error:
                if error.category != "not_found":
                    raise
                yield from self._one_by_one(batch, call)

    def _one_by_one(self, batch: list[str], call: Callable[[list[str]], list[Answer]]) -> Iterator[Answer]:
        if len(batch) == 1:
            return
        for machine in batch:
            try:
                yield from call([machine])
            except CloudError as error:
                if error.category != "not_found":
                    raise


class Ec2Access(msgspec.Struct, frozen=True, kw_only=True):
    """Region, URL and credentials of EC2. Without keys boto3's own chain finds the credentials."""

    region: str | None = None
    """None: boto3's own chain finds it."""
    endpoint_url: str | None = None
    access_key_id: str | None = None
    secret_access_key: str | None = None
    session_token: str | None = None
    profile: str | None = None
    """Profile of boto3's configuration; None: boto3's choice."""

    def __repr__(self) -> str:
        """Return a text without the keys, because it may get into a log."""
        return f"Ec2Access(region={self.region!r}, endpoint_url={self.endpoint_url!r})"


def make_fleet(cluster: str, access: Ec2Access, budget: CallBudget | None = None) -> Ec2Fleet:
    """Return the fleet of a cluster. It has a client for launches and one for other calls, both within `budget`."""
    options = msgspec.structs.asdict(access)
    client, launcher = make_client(**options), make_client(**options, read_seconds=LAUNCH_READ_SECONDS)
    if budget is not None:
        budget.guard(client)
        budget.guard(launcher)
    return Ec2Fleet(client, cluster, launcher=launcher)


def _filter(name: str, values: list[str]) -> "FilterTypeDef":
    return {"Name": name, "Values": values}
