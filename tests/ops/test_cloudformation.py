"""compose/cloudformation.yaml: cfn-lint accepts it, its statements are those of docs/iam/, and the emulator creates its
stack, with whose outputs a pool launches a machine.
"""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from scheduler.model.rules import Rules, read_rules
from tests.ec2.conftest import (
    IMAGE,
    REGION,
    Emulator,
    _no_settings_of_aws,
    access,
    an_order,
    emulator,
    launch_one,
    server,
)
from tests.ops.test_iam import CHAPTER, IAM, POLICIES, as_list, read_policy, roles_of_the_chapter
from workers.ec2.clients import Ec2Access, open_client
from workers.ec2.fleet import make_fleet
from workers.ec2.interruptions import HEALTH, INTERRUPTION, REBALANCE, STATE_CHANGE, make_feed
from workers.ec2.requests import ROOT_DEVICE

if TYPE_CHECKING:
    from mypy_boto3_cloudformation import CloudFormationClient

__all__ = ["_no_settings_of_aws", "access", "emulator", "server"]

# moto does not know policies of queues, and creates none.
pytestmark = pytest.mark.filterwarnings("ignore:Tried to parse AWS..SQS..QueuePolicy")
ROOT: Final = Path(__file__).parents[2]
FILE: Final = ROOT / "compose" / "cloudformation.yaml"
ACCOUNT: Final = "123456789012"
VALUES: Final = {"Cluster": "leasehold", "AWS::Partition": "aws", "AWS::Region": "us-east-1", "AWS::AccountId": ACCOUNT}
ROLES: Final = ("machine", "host", "launch", "look", "terminate")


@cache
def template() -> dict[str, Any]:
    import cfnlint.decode  # Here: its import takes a second, which all processes of a run would spend

    found, faults = cfnlint.decode.decode(str(FILE))
    assert found is not None, faults
    plain: dict[str, Any] = json.loads(json.dumps(found))
    return plain


def resource(name: str) -> dict[str, Any]:
    found: dict[str, Any] = template()["Resources"][name]["Properties"]
    return found


def arn(name: str) -> str:
    """Return the ARN of a resource of the template."""
    properties = {
        key: resolve(value) for key, value in resource(name).items() if key in {"RoleName", "QueueName", "Name"}
    }
    match template()["Resources"][name]["Type"]:
        case "AWS::IAM::Role":
            return f"arn:aws:iam::{ACCOUNT}:role/{properties['RoleName']}"
        case "AWS::SQS::Queue":
            return f"arn:aws:sqs:us-east-1:{ACCOUNT}:{properties['QueueName']}"
        case "AWS::Events::Rule":
            return f"arn:aws:events:us-east-1:{ACCOUNT}:rule/{properties['Name']}"
        case kind:
            raise AssertionError(f"no ARN of {kind}")


def resolve(value: Any) -> Any:
    """Return a value of the template with its functions replaced, for the account and region of docs/iam/."""
    match value:
        case {"Ref": str(name)} if len(value) == 1:
            return VALUES[name]
        case {"Fn::Sub": str(text)}:
            return re.sub(r"\$\{([^}]+)\}", lambda found: VALUES[found[1]], text)
        case {"Fn::GetAtt": [str(name), "Arn"]}:
            return arn(name)
        case dict():
            return {key: resolve(each) for key, each in value.items()}
        case list():
            return [resolve(each) for each in value]
    return value


def test_cfn_lint_accepts_it() -> None:
    found = subprocess.run(
        [Path(sys.executable).parent / "cfn-lint", FILE], capture_output=True, text=True, check=False
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@pytest.mark.parametrize("name", [*POLICIES, "host"])
def test_each_policy_is_that_of_the_manual_steps(name: str) -> None:
    assert resolve(resource(f"{name.title()}Policy")["PolicyDocument"]) == read_policy(name)


@pytest.mark.parametrize("name", ROLES)
def test_each_role_trusts_the_one_of_the_manual_steps(name: str) -> None:
    trust = "trust-ec2" if name in {"machine", "host"} else "trust-host"
    assert resolve(resource(f"{name.title()}Role")["AssumeRolePolicyDocument"]) == read_policy(trust)


def list_policies(role: str) -> set[str]:
    return {
        name.removesuffix("Policy").lower()
        for name, each in template()["Resources"].items()
        if each["Type"] == "AWS::IAM::ManagedPolicy" and {"Ref": f"{role.title()}Role"} in each["Properties"]["Roles"]
    }


def test_each_role_has_the_policies_of_the_chapter() -> None:
    roles = {"launch": "launch", "health": "look", "terminate": "terminate"}
    assert {worker: list_policies(role) for worker, role in roles.items()} == roles_of_the_chapter()
    assert list_policies("machine") | list_policies("host") == set()


def patterns() -> list[dict[str, Any]]:
    rules = (each for each in template()["Resources"].values() if each["Type"] == "AWS::Events::Rule")
    return [each["Properties"]["EventPattern"] for each in rules]


def test_the_queue_accepts_events_of_the_rules_and_nothing_else() -> None:
    (ours,) = resolve(resource("InterruptionQueuePolicy")["PolicyDocument"])["Statement"]
    (documented,) = read_policy("interruption-queue")["Statement"]
    sources = {
        name: each.pop("Condition")["ArnEquals"]["aws:SourceArn"]
        for name, each in {"ours": ours, "documented": documented}.items()
    }
    assert ours == documented
    rules = [name for name, each in template()["Resources"].items() if each["Type"] == "AWS::Events::Rule"]
    assert set(sources["ours"]) == {*map(arn, rules)} >= {*as_list(sources["documented"])}


def test_the_rules_send_the_events_that_the_workers_read() -> None:
    sent = {(source, kind) for each in patterns() for source in each["source"] for kind in each["detail-type"]}
    assert {("aws.ec2", kind) for kind in (INTERRUPTION, REBALANCE, STATE_CHANGE)} <= sent
    files = list(IAM.glob("*-rule.json"))
    assert len(files) == 3
    for file in files:
        documented = json.loads(file.read_text(encoding="utf-8"))
        assert {(source, kind) for source in documented["source"] for kind in documented["detail-type"]} <= sent
    assert ("aws.health", HEALTH) in sent


def open_aws(access: Ec2Access, service: str) -> Any:
    return open_client(service, access, 20.0)


@pytest.fixture
def outputs(access: Ec2Access, emulator: Emulator) -> dict[str, str]:
    client: CloudFormationClient = open_aws(access, "cloudformation")
    vpc = open_aws(access, "ec2").describe_vpcs()["Vpcs"][0]["VpcId"]
    given = {"Vpc": vpc, "Image": IMAGE, "VolumeGib": "30", "ProbePort": "22", "ReadPriceList": "true"}
    client.create_stack(
        StackName="leasehold",
        TemplateBody=FILE.read_text(encoding="utf-8"),
        Parameters=[{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()],
        Capabilities=["CAPABILITY_NAMED_IAM"],
    )
    (stack,) = client.describe_stacks(StackName="leasehold")["Stacks"]
    assert stack["StackStatus"] == "CREATE_COMPLETE"
    return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}


def test_the_emulator_creates_its_resources(outputs: dict[str, str], access: Ec2Access) -> None:
    iam, ec2 = open_aws(access, "iam"), open_aws(access, "ec2")
    for worker in ("launch", "look", "terminate"):
        role = iam.get_role(RoleName=f"leasehold-{worker}")["Role"]
        assert role["Arn"] == outputs[f"{worker.title()}RoleArn"]
        attached = iam.list_attached_role_policies(RoleName=role["RoleName"])["AttachedPolicies"]
        assert {each["PolicyName"].split("-")[1] for each in attached} == list_policies(worker)
    for name in ("machine", "host"):
        profile = iam.get_instance_profile(InstanceProfileName=outputs[f"{name.title()}ProfileName"])
        assert [each["RoleName"] for each in profile["InstanceProfile"]["Roles"]] == [f"leasehold-{name}"]
    groups = {name: outputs[f"{name}GroupId"] for name in ("Hosts", "Data", "Machines")}
    found = {
        each["GroupId"]: each for each in ec2.describe_security_groups(GroupIds=[*groups.values()])["SecurityGroups"]
    }
    opened = {
        name: [(rule["FromPort"], rule["UserIdGroupPairs"][0]["GroupId"]) for rule in found[group]["IpPermissions"]]
        for name, group in groups.items()
    }
    assert opened == {
        "Hosts": [],
        "Data": [(5432, groups["Hosts"]), (6379, groups["Hosts"])],
        "Machines": [(22, groups["Hosts"])],
    }


def test_the_queue_gets_the_notices_that_the_workers_read(outputs: dict[str, str], access: Ec2Access) -> None:
    events, machine = open_aws(access, "events"), "i-0123456789abcdef0"
    details: dict[str, dict[str, str]] = {INTERRUPTION: {}, REBALANCE: {}, STATE_CHANGE: {"state": "terminated"}}
    for kind, more in details.items():
        detail = json.dumps({"instance-id": machine, **more})
        entry = {"Source": "aws.ec2", "DetailType": kind, "Detail": detail}
        assert events.put_events(Entries=[entry])["FailedEntryCount"] == 0
    events.put_events(Entries=[{"Source": "aws.ec2", "DetailType": "EC2 Command", "Detail": "{}"}])
    received = make_feed(outputs["InterruptionQueueUrl"], access).receive()
    notices = [notice for each in received for notice in each.notices]
    assert {each.machine for each in notices} == {machine}
    assert {each.kind for each in notices} == {"interruption", "rebalance", "state"}
    assert len(received) == len(details)


def read_example(outputs: dict[str, str]) -> Rules:
    """Return the pool of docs/how-to/aws.md, "From the outputs to a pool", with these outputs as its values."""
    (text,) = re.findall(r"```toml\n(# The outputs.*?)```", CHAPTER, re.DOTALL)
    document = tomllib.loads(text)
    ec2 = document["pools"]["linux"]["ec2"]
    ec2["launch_template"] = outputs["LaunchTemplateId"]
    ec2["launch_template_version"] = int(outputs["LaunchTemplateVersion"])
    ec2["subnets"] = []
    ec2.pop("image", None)
    ec2["instance_profile"] = outputs["MachineProfileName"]
    document["pools"]["linux"]["offerings"] = [{"name": "c5.large"}]
    return read_rules({"pools": document["pools"]})


def test_a_pool_with_the_outputs_launches_a_machine(outputs: dict[str, str], access: Ec2Access) -> None:
    fleet = make_fleet(outputs["ClusterName"], access)
    machine = launch_one(fleet, fleet.freeze(an_order(), read_example(outputs)))
    ec2 = open_aws(access, "ec2")
    (found,) = ec2.describe_instances(InstanceIds=[machine.id])["Reservations"][0]["Instances"]
    assert (found["ImageId"], found["InstanceType"]) == (IMAGE, "c5.large")


def test_the_launch_template_has_what_the_machines_need(outputs: dict[str, str], access: Ec2Access) -> None:
    versions = open_aws(access, "ec2").describe_launch_template_versions(LaunchTemplateId=outputs["LaunchTemplateId"])
    (version,) = versions["LaunchTemplateVersions"]
    data = version["LaunchTemplateData"]
    assert str(version["VersionNumber"]) == outputs["LaunchTemplateVersion"]
    assert (data["ImageId"], data["SecurityGroupIds"]) == (IMAGE, [outputs["MachinesGroupId"]])
    assert data["IamInstanceProfile"]["Arn"].endswith(f":instance-profile/{outputs['MachineProfileName']}")
    assert data["InstanceInitiatedShutdownBehavior"] == "terminate"
    options = {"HttpTokens": "required", "HttpPutResponseHopLimit": 1, "HttpEndpoint": "enabled"}
    assert data["MetadataOptions"].items() >= options.items()
    (volume,) = data["BlockDeviceMappings"]
    assert (volume["DeviceName"], volume["Ebs"]["VolumeSize"]) == (ROOT_DEVICE, 30)


def test_the_chapter_names_each_output_and_parameter() -> None:
    for name in (*template()["Outputs"], *template()["Parameters"]):
        assert f"`{name}`" in CHAPTER or f"{name}=" in CHAPTER, name
    assert REGION == "us-east-1"
