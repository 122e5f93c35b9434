"""The doctor tries each call that launches machines, with the parameters of the pool, and launches nothing."""

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold.doctor.cloud import look_at_cloud
from leasehold.doctor.rules import Finding
from leasehold.texts.change_commands import format_toml
from scheduler.model.rules import Rules
from scheduler.ports import CloudError, LaunchOrder
from tests.ec2.conftest import IMAGE, REGION, Emulator, an_order, some_rules
from workers.configuration import read_configuration
from workers.ec2.clients import Ec2Access
from workers.ec2.permissions import Permissions, make_single
from workers.ec2.requests import freeze_request

TWO_TYPES = [{"name": "c5.large", "market": "on-demand"}, {"name": "m5.large", "market": "on-demand"}]


@pytest.fixture
def permissions(access: Ec2Access) -> Permissions:
    return Permissions(access, 10.0)


def a_batch(rules: Rules) -> dict[str, Any]:
    keys = tuple(rules.pools["linux"].offering_by_key)
    return freeze_request(LaunchOrder(batch="b", pool="linux", count=2, offerings=keys), rules, "blue", REGION)


def test_a_batch_of_a_pool_with_an_image_tries_three_calls_and_makes_nothing(
    emulator: Emulator, permissions: Permissions
) -> None:
    found = permissions.try_launch(a_batch(some_rules(offerings=TWO_TYPES)))
    assert found == {"CreateLaunchTemplate": None, "CreateFleet": None, "RunInstances": None}
    assert emulator.history() == []


def test_a_single_launch_tries_its_own_call(emulator: Emulator, permissions: Permissions) -> None:
    assert permissions.try_launch(freeze_request(an_order(), some_rules(), "blue", REGION)) == {"RunInstances": None}
    assert emulator.history() == []


@pytest.mark.parametrize("action", ["CreateLaunchTemplate", "CreateFleet", "RunInstances"])
def test_each_call_is_tried_although_another_is_refused(
    action: str, emulator: Emulator, permissions: Permissions
) -> None:
    emulator.set_fault(code="UnauthorizedOperation", action=action)
    found = permissions.try_launch(a_batch(some_rules(offerings=TWO_TYPES)))
    assert {call: error and error.code for call, error in found.items()} == {
        "CreateLaunchTemplate": None,
        "CreateFleet": None,
        "RunInstances": None,
        action: "UnauthorizedOperation",
    }


def test_one_machine_of_a_fleet_has_the_parameters_of_its_template_and_its_first_place() -> None:
    rules = some_rules(
        {
            "image": IMAGE,
            "key_name": "ci",
            "instance_profile": "machine",
            "user_data": "#!/bin/sh\n",
            "tags": {"team": "ci"},
            "subnets": ["eu-1a:subnet-a", "eu-1b:subnet-b"],
        },
        offerings=[{"name": "c5.large"}, {"name": "m5.large"}],
    )
    single = make_single(a_batch(rules))
    assert {key: single[key] for key in ("ImageId", "InstanceType", "KeyName", "SubnetId", "UserData", "MaxCount")} == {
        "ImageId": IMAGE,
        "InstanceType": "c5.large",
        "KeyName": "ci",
        "SubnetId": "subnet-a",
        "UserData": "#!/bin/sh\n",
        "MaxCount": 1,
    }
    assert single["InstanceMarketOptions"] == {"MarketType": "spot"}
    assert {each["ResourceType"] for each in single["TagSpecifications"]} == {"instance", "volume"}
    assert "LaunchTemplate" not in single


def test_one_machine_of_a_fleet_takes_the_launch_template_of_the_pool() -> None:
    rules = some_rules(
        {"launch_template": "ci", "launch_template_version": 3}, offerings=[{"name": "m5.large", "zone": "eu-1a"}]
    )
    single = make_single(a_batch(rules))
    assert single["LaunchTemplate"] == {"LaunchTemplateName": "ci", "Version": "3"}
    assert single["Placement"] == {"AvailabilityZone": "eu-1a"}


class Sts:
    """STS, which decodes one text."""

    def decode_authorization_message(self, EncodedMessage: str) -> dict[str, str]:  # noqa: N803 - boto3's name
        document = json.loads(base64.b64decode(EncodedMessage))
        return {"DecodedMessage": json.dumps(document)}


def a_refusal(document: object) -> CloudError:
    encoded = base64.b64encode(json.dumps(document).encode()).decode()
    error = CloudError("auth", "UnauthorizedOperation", "cut")
    cause: Any = Exception()
    cause.response = {"Error": {"Message": f"You may not. Encoded authorization failure message: {encoded}"}}
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (
            {"explicitDeny": False, "context": {"action": "ec2:RunInstances", "resource": "arn:i"}},
            "ec2:RunInstances on arn:i: no statement permits it",
        ),
        (
            {"explicitDeny": True, "context": {"action": "iam:PassRole", "resource": "arn:r"}},
            "iam:PassRole on arn:r: a statement denies it",
        ),
        # an answer of another form
        ({"context": {}}, ""),
        ([], ""),
    ],
)
def test_the_encoded_text_of_a_refusal_is_decoded(
    document: object, words: str, permissions: Permissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(permissions, "_open", lambda _service: Sts())
    assert permissions.decode(a_refusal(document)) == words


def test_without_the_right_to_decode_the_refusal_stays_as_it_is(emulator: Emulator, permissions: Permissions) -> None:
    emulator.set_fault(code="AccessDenied", action="DecodeAuthorizationMessage")
    assert permissions.decode(a_refusal({})) == ""
    assert permissions.decode(CloudError("auth", "UnauthorizedOperation", "")) == ""


Examine = Callable[[dict[str, Any]], dict[str, Finding]]


@pytest.fixture
def examine(access: Ec2Access, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Examine:
    """Return a function that runs the doctor's checks on launches with these pools."""
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", f"sqlite:///{tmp_path}/none.db")
    keys = {"access_key_id": "testing", "secret_access_key": "testing"}

    def act(pools: dict[str, Any]) -> dict[str, Finding]:
        document = {"aws": {"endpoint_url": access.endpoint_url, "region": access.region, **keys}, "pools": pools}
        path = tmp_path / "leasehold.toml"
        path.write_text(format_toml(document), encoding="utf-8")
        return {each.check: each for each in look_at_cloud(read_configuration(path), ["launch"], 10.0)}

    return act


POOL = {"system": "x86_64-linux", "max_slots": 3, "ec2": {"image": IMAGE}}
MIXED = {**POOL, "offerings": [{"name": "c5.large"}, {"name": "m5.large", "market": "on-demand"}]}


def test_a_pool_is_tried_in_each_of_its_markets(emulator: Emulator, examine: Examine) -> None:
    found = examine({"linux": MIXED, "plain": POOL})
    assert found["aws launch linux"].text == "permitted: CreateFleet, CreateLaunchTemplate, RunInstances"
    assert found["aws launch plain"].text == "permitted: RunInstances"
    emulator.set_fault(code="UnauthorizedOperation", market="spot", message="no spot")
    refused = examine({"linux": MIXED})["aws launch linux"]
    assert refused.outcome == "failure"
    assert "(spot)" in refused.text
    assert "(on-demand)" not in refused.text


def test_equal_refusals_are_one_text_with_their_calls_and_one_remedy(emulator: Emulator, examine: Examine) -> None:
    emulator.set_fault(code="InvalidKeyPair.NotFound", message="The key pair 'ci' does not exist")
    found = examine({"linux": {**MIXED, "ec2": {"image": IMAGE, "key_name": "ci"}}})["aws launch linux"]
    assert found.text.count("The key pair 'ci' does not exist") == 1
    assert "RunInstances (spot), " in found.text
    assert found.remedy == "Correct pools.linux.ec2.key_name: it needs a key pair of this region."


def test_throttled_calls_are_a_warning(emulator: Emulator, examine: Examine) -> None:
    emulator.set_fault(code="RequestLimitExceeded")
    assert examine({"linux": MIXED})["aws launch linux"].outcome == "warning"


def test_an_image_that_was_not_looked_up_yet_is_no_failure(emulator: Emulator, examine: Examine) -> None:
    source = {**POOL, "ec2": {"image": "ssm:/ci/image"}}
    found = examine({"linux": source})["aws launch linux"]
    assert found.outcome == "skipped"


def test_an_endpoint_that_is_not_reached_is_named_with_the_region(
    examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_AWS__ENDPOINT_URL", "http://127.0.0.1:1")
    found = examine({"linux": POOL})
    assert found["aws identity"].outcome == "failure"
    assert found["aws identity"].remedy.startswith(f"Correct aws.region ({REGION}) or aws.endpoint_url")
    assert found["aws launch"].outcome == "skipped"
