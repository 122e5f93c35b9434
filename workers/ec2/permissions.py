"""Find out which AWS calls the credentials of this process permit. Launches, terminations, starts and stops are tried
with DryRun; calls that only read are made once.

EC2 answers a call with DryRun by the error DryRunOperation if the call is permitted.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec

from scheduler.ports import CloudError, Place
from workers.ec2.clients import Ec2Access, open_client
from workers.ec2.errors import cloud_errors
from workers.ec2.places import describe_subnets
from workers.ec2.price_list import SERVICE, open_price_list
from workers.ec2.requests import TAG_CLUSTER
from workers.ec2.templates import NOT_FOUND

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

PERMITTED: Final = "DryRunOperation"
_OF_FLEETS: Final = frozenset({"WeightedCapacity", "Priority", "MaxPrice"})
"""Keys of an override that RunInstances does not have."""
LEAST_RESULTS: Final = 5
"""The smallest value of MaxResults that DescribeInstances accepts."""


class Identity(msgspec.Struct, frozen=True):
    """The AWS identity to which credentials belong: its account and its ARN."""

    account: str
    arn: str


class Permissions:
    """Tries the AWS calls that the workers need. Each method raises CloudError if AWS refuses the call or cannot be
    reached.

    A call has one attempt, with `seconds` to connect and `seconds` for the answer.
    """

    def __init__(self, access: Ec2Access, seconds: float) -> None:
        self._access, self._seconds = access, seconds

    def identify(self) -> Identity:
        """Return the AWS identity of the credentials. This call needs no permission."""
        with cloud_errors():
            answer = self._open("sts").get_caller_identity()
        return Identity(answer["Account"], answer["Arn"])

    def find_region(self) -> str:
        return str(self._ec2.meta.region_name)

    def find_subnets(self, subnets: Sequence[str]) -> dict[str, Place]:
        """Return subnet -> its place, for those of these subnets that EC2 knows. One call, by which launches find the
        zones of subnets.
        """
        return describe_subnets(self._ec2, subnets)

    def try_launch(self, request: Mapping[str, Any]) -> dict[str, CloudError | None]:
        """Try with DryRun all calls by which this launch request launches machines, with its tags, profile and
        template. Return call -> EC2's refusal; None: EC2 permits it.

        A fleet launches its machines in the name of its caller, but EC2 tests only afterwards whether the caller may do
        that. So `RunInstances` is tried with the parameters of each fleet, too. EC2 may not find a launch template that
        Leasehold has not made yet, which is no refusal.
        """
        found: dict[str, CloudError | None] = {}
        template = request.get("template")
        if template is not None:
            found["CreateLaunchTemplate"] = _try(lambda: self._ec2.create_launch_template(**template, DryRun=True))
        if request["api"] == "CreateFleet":
            error = _try(lambda: self._ec2.create_fleet(**request["parameters"], DryRun=True))
            is_new = error is not None and template is not None and error.code == NOT_FOUND
            found["CreateFleet"] = None if is_new else error
        single = make_single(request)
        found["RunInstances"] = _try(lambda: self._ec2.run_instances(**single, DryRun=True))
        return found

    def decode(self, error: CloudError) -> str:
        """Return what AWS's encoded text in a refusal contains: the action, the resource, and whether a statement
        denies it. Return "" if the refusal has no such text, or if AWS does not permit to decode it.
        """
        answer = getattr(error.__cause__, "response", {})
        found = re.search(r"Encoded authorization failure message:\s*(\S+)", answer.get("Error", {}).get("Message", ""))
        if found is None:
            return ""
        try:
            with cloud_errors():
                decoded = self._open("sts").decode_authorization_message(EncodedMessage=found[1])
            document = json.loads(decoded["DecodedMessage"])
            context = document["context"]
            reason = "a statement denies it" if document.get("explicitDeny") else "no statement permits it"
            return f"{context['action']} on {context['resource']}: {reason}"
        except (CloudError, ValueError, KeyError, TypeError):
            return ""

    def try_terminate(self, instance: str) -> None:
        """Try with DryRun to terminate this instance. Raises CloudError if EC2 refuses it.

        The instance must exist, because the permission may depend on its tags.
        """
        _expect_refusal(lambda: self._ec2.terminate_instances(InstanceIds=[instance], DryRun=True))

    def try_start(self, instance: str, instance_type: str | None = None) -> None:
        """Try with DryRun to start this instance. If `instance_type` is not None, also try to change the type of the
        instance. Raises CloudError if EC2 refuses one of the calls.
        """
        if instance_type is not None:
            kind: Any = {"Value": instance_type}
            _expect_refusal(
                lambda: self._ec2.modify_instance_attribute(InstanceId=instance, InstanceType=kind, DryRun=True)
            )
        _expect_refusal(lambda: self._ec2.start_instances(InstanceIds=[instance], DryRun=True))

    def try_stop(self, instance: str) -> None:
        """Try with DryRun to stop this instance. Raises CloudError if EC2 refuses it."""
        _expect_refusal(lambda: self._ec2.stop_instances(InstanceIds=[instance], DryRun=True))

    def look(self, cluster: str) -> int:
        """Try the two calls that read machines: read at most five instances with the cluster's tag, and a few status
        checks of any instances. Return the number of the instances with the tag.
        """
        with cloud_errors():
            client = self._ec2
            pages = client.describe_instances(
                Filters=[{"Name": f"tag:{TAG_CLUSTER}", "Values": [cluster]}], MaxResults=LEAST_RESULTS
            )
            client.describe_instance_status(MaxResults=LEAST_RESULTS)
        return sum(len(each.get("Instances", ())) for each in pages["Reservations"])

    def look_at_market(self) -> None:
        """Try the three calls that read instance types and spot prices, with a few results each."""
        with cloud_errors():
            self._ec2.describe_instance_types(MaxResults=LEAST_RESULTS)
            self._ec2.describe_instance_type_offerings(MaxResults=LEAST_RESULTS)
            self._ec2.describe_spot_price_history(MaxResults=LEAST_RESULTS)

    def look_at_prices(self) -> None:
        """Try the call that reads on-demand prices from AWS's price list, with one result."""
        with cloud_errors():
            open_price_list(self._access, self._seconds, attempts=1).get_products(ServiceCode=SERVICE, MaxResults=1)

    def look_at_queue(self, url: str) -> int:
        """Return approximately how many messages wait in the SQS queue with this URL."""
        with cloud_errors():
            name = "ApproximateNumberOfMessages"
            answer = self._open("sqs").get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        return int(answer["Attributes"][name])

    @cached_property
    def _ec2(self) -> "EC2Client":
        # Cached, because making a client takes long.
        client: EC2Client = self._open("ec2")
        return client

    def _open(self, service: str) -> Any:
        return open_client(service, self._access, self._seconds, connect_seconds=self._seconds, attempts=1)


def _expect_refusal(call: Callable[[], object]) -> None:
    """Make a call with DryRun, which EC2 always refuses. The code DryRunOperation of the refusal means that the call is
    permitted: return. For any other code raise the CloudError.
    """
    try:
        with cloud_errors():
            call()
    except CloudError as error:
        if error.code != PERMITTED:
            raise


def _try(call: Callable[[], object]) -> CloudError | None:
    try:
        _expect_refusal(call)
    except CloudError as error:
        return error
    return None


def make_single(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of RunInstances for one machine of a launch request: those of the request itself, or those
    with which its fleet launches a machine at the first of its places.
    """
    parameters = request["parameters"]
    if request["api"] == "RunInstances":
        return {**parameters, "MinCount": 1, "MaxCount": 1}
    (config,) = parameters["LaunchTemplateConfigs"]
    named = dict(config["LaunchTemplateSpecification"])
    user_data = named.pop("LaunchTemplateSpecificationUserData", None)
    override = dict(next(iter(config["Overrides"]), {}))
    zone = override.pop("AvailabilityZone", None)
    single: dict[str, Any] = {
        **({"LaunchTemplate": named} if request["template"] is None else request["template"]["LaunchTemplateData"]),
        **{key: value for key, value in override.items() if key not in _OF_FLEETS},
        "MinCount": 1,
        "MaxCount": 1,
        "TagSpecifications": [each for each in parameters["TagSpecifications"] if each["ResourceType"] != "fleet"],
    }
    if zone and "SubnetId" not in override:
        single["Placement"] = {"AvailabilityZone": zone}
    if parameters["TargetCapacitySpecification"]["DefaultTargetCapacityType"] == "spot":
        single["InstanceMarketOptions"] = {"MarketType": "spot"}
    if user_data is not None:
        # The text is decoded here, because botocore encodes this parameter of this call.
        single["UserData"] = base64.b64decode(user_data).decode()
    return single
