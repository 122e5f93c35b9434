"""Faults over HTTP: any code in a call, in the errors of a fleet, and as the reason for the end of a machine; answers
that are not EC2's XML.
"""

from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from leasehold_emulator.error_codes import INJECTED

from tests.ec2.conftest import Emulator
from tests.ec2.test_emulator import eventually
from tests.ec2.test_emulator_boots import describe
from tests.ec2.test_emulator_limits import SPOT, a_fleet, code_of, run

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

UNKNOWN = "NobodyKnowsThisCode"


def given(answer: Any) -> int:
    return sum(len(each["InstanceIds"]) for each in answer.get("Instances", ()))


def errors(answer: Any) -> list[tuple[str | None, str, str]]:
    """Return the errors in the answer of a fleet: (instance type, code, message)."""
    return [
        (
            each.get("LaunchTemplateAndOverrides", {}).get("Overrides", {}).get("InstanceType"),
            each["ErrorCode"],
            each["ErrorMessage"],
        )
        for each in answer.get("Errors", ())
    ]


def message_of(caught: pytest.ExceptionInfo[ClientError]) -> str:
    return str(caught.value.response["Error"]["Message"])


@pytest.mark.parametrize("code", [UNKNOWN, "InvalidAMIID.NotFound", "InsufficientInstanceCapacity"])
def test_any_code_may_refuse_a_whole_call(code: str, plain: Any, emulator: Emulator) -> None:
    emulator.set_fault(code=code, where="call", message="A sentence from EC2", status=400)
    for call in (run, lambda client: a_fleet(client, 2)):
        with pytest.raises(ClientError) as caught:
            call(plain)
        assert code_of(caught) == (code, 400)
        assert message_of(caught) == "A sentence from EC2"
        assert emulator.calls()[-1]["faults"] == [f"error:{code}"]
    assert emulator.instances() == []


@pytest.mark.parametrize("code", [UNKNOWN, "InvalidAMIID.NotFound", "UnauthorizedOperation", "VcpuLimitExceeded"])
def test_any_code_may_stand_in_the_errors_of_a_fleet(code: str, plain: Any, emulator: Emulator) -> None:
    emulator.set_fault(code=code, where="fleet", type="m5.large", message="why")
    beside = a_fleet(plain, 2, "spot", "m5.large", "c5.large")
    assert (given(beside), errors(beside)) == (2, [("m5.large", code, "why")])
    alone = a_fleet(plain, 2, "spot", "m5.large")
    assert (given(alone), errors(alone)) == (0, [("m5.large", code, "why")])
    assert emulator.calls()[-1]["faults"] == [f"place:{code}"]
    with pytest.raises(ClientError) as caught:
        run(plain, kind="m5.large")
    assert code_of(caught)[0] == code
    assert run(plain, kind="c5.large") == 1


def test_an_error_in_a_fleet_may_concern_a_market_or_a_zone(plain: Any, emulator: Emulator) -> None:
    emulator.set_fault(code=UNKNOWN, where="fleet", market="spot", zone="us-east-1a")
    assert errors(a_fleet(plain, 1, "spot")) == [("c5.large", UNKNOWN, INJECTED)]
    assert errors(a_fleet(plain, 1, "on-demand")) == []
    emulator.set_fault(code=UNKNOWN, where="fleet", zone="us-east-1b")
    assert errors(a_fleet(plain, 1, "spot")) == []


def test_a_fault_may_concern_a_subnet(plain: Any, emulator: Emulator) -> None:
    first, second = (each["SubnetId"] for each in plain.describe_subnets()["Subnets"][:2])
    emulator.set_fault(code=UNKNOWN, where="fleet", subnet=first)
    with pytest.raises(ClientError, match=UNKNOWN):
        run(plain, SubnetId=first)
    assert run(plain, SubnetId=second) == run(plain) == 1
    emulator.set_fault(code="Client.InternalError", where="machine", subnet=second)
    assert run(plain, SubnetId=first) == run(plain, SubnetId=second) == 1
    assert [instance["state"] for instance in emulator.instances()] == ["running"] * 3 + ["terminated"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("Client.InternalError", "Client error on launch"),
        ("Client.VolumeLimitExceeded", "Volume limit exceeded"),
        ("Client.UserInitiatedShutdown", "User initiated shutdown"),
        (UNKNOWN, INJECTED),
    ],
)
def test_any_code_may_end_a_machine_that_boots(code: str, message: str, plain: "EC2Client", emulator: Emulator) -> None:
    emulator.steer(boot_seconds=60, terminate_seconds=60)
    emulator.set_fault(code=code, where="machine", type="c5.large")
    assert run(plain) == run(plain, kind="m5.large") == 1
    ended, booting = (life["id"] for life in emulator.history())
    found = describe(plain, ended)
    assert (found["State"]["Name"], found["StateReason"]) == (
        "terminated",
        {"Code": code, "Message": f"{code}: {message}"},
    )
    assert describe(plain, booting)["State"]["Name"] == "pending"
    assert emulator.calls("RunInstances")[0]["faults"] == [f"machine:{code}"]
    [event] = emulator.events()
    assert (event["event"], event["instances"], event["detail"]) == ("ended", [ended], f"{code}: {message}")
    assert [life["cause"] for life in emulator.history()] == ["fault", None]


def test_a_machine_may_end_later(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.set_fault(code="Client.UserInitiatedShutdown", where="machine", after=0.3, message="by an operator")
    run(plain)
    [life] = emulator.history()
    eventually(lambda: describe(plain, life["id"])["State"]["Name"] == "terminated")
    assert emulator.history()[0]["terminated_at"] >= life["launched_at"] + 0.3 - 0.01
    assert describe(plain, life["id"])["StateReason"]["Message"] == "Client.UserInitiatedShutdown: by an operator"


def test_the_count_of_a_fault_of_machines_counts_machines(plain: "EC2Client", emulator: Emulator) -> None:
    emulator.set_fault(code="Client.InternalError", where="machine", count=2, market="spot")
    assert run(plain, 2, 2) == 2
    assert run(plain, 3, 3, **SPOT) == 3
    states = [instance["state"] for instance in emulator.instances()]
    assert sorted(states) == ["running"] * 3 + ["terminated"] * 2


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("UnauthorizedOperation", 403, "You are not authorized to perform this operation."),
        ("AuthFailure", 401, "AWS was not able to validate the provided access credentials"),
        ("InvalidGroup.NotFound", 400, "The security group does not exist"),
        (UNKNOWN, 400, INJECTED),
    ],
)
def test_a_code_comes_with_the_status_and_the_message_of_aws(
    code: str, status: int, message: str, plain: "EC2Client", emulator: Emulator
) -> None:
    emulator.set_fault(code=code)
    with pytest.raises(ClientError) as caught:
        run(plain)
    assert code_of(caught) == (code, status)
    assert message_of(caught) == message


def test_a_message_may_be_long(plain: Any, emulator: Emulator) -> None:
    message = "why <not> & " * 10_000
    emulator.set_fault(code=UNKNOWN, message=message)
    with pytest.raises(ClientError) as caught:
        run(plain)
    assert message_of(caught) == message
    emulator.set_fault(code=UNKNOWN, message=message, where="fleet")
    assert errors(a_fleet(plain, 1)) == [("c5.large", UNKNOWN, message)]


@pytest.mark.parametrize(
    ("rule", "status", "kind", "text"),
    [
        ({"code": UNKNOWN, "body": "html", "status": 403}, 403, "text/html", f"<title>{UNKNOWN}</title>"),
        ({"code": "Unavailable", "body": "html"}, 503, "text/html", "<title>Unavailable</title>"),
        ({"code": UNKNOWN, "body": "empty", "status": 200}, 200, "text/xml", ""),
        ({"lost": "500", "code": "Unavailable", "body": "html"}, 503, "text/html", "<title>Unavailable</title>"),
        ({"lost": "500", "body": "empty"}, 500, "text/xml", ""),
    ],
)
def test_an_answer_may_have_something_else_than_xml(
    rule: dict[str, Any], status: int, kind: str, text: str, plain: "EC2Client", emulator: Emulator
) -> None:
    seen: list[Any] = []
    plain.meta.events.register_first(
        "before-parse.ec2.RunInstances", lambda response_dict, **_: seen.append(response_dict), "see"
    )
    emulator.set_fault(**rule)
    try:
        with pytest.raises((ClientError, ResponseParserError)):
            run(plain)
    finally:
        plain.meta.events.unregister("before-parse.ec2.RunInstances", unique_id="see")
    assert (seen[0]["status_code"], seen[0]["headers"]["content-type"].partition(";")[0]) == (status, kind)
    assert text in seen[0]["body"].decode()
    assert len(emulator.instances()) == ("lost" in rule)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"code": "X", "where": "sky"}, "faults[0].where: expected one of call, fleet, machine"),
        ({"where": "machine"}, "faults[0].code: expected a value, got nothing"),
        ({"lost": "reset", "where": "call"}, "faults[0].where: expected no where beside lost or deliver"),
        ({"deliver": 1, "where": "fleet"}, "faults[0].where: expected no where beside lost or deliver"),
        ({"code": "X", "after": 1}, 'faults[0].after: expected nothing, unless where is "machine"'),
        ({"code": "X", "where": "fleet", "body": "html"}, "faults[0].body: expected nothing, unless the whole call"),
        ({"lost": "reset", "body": "html"}, "faults[0].body: expected nothing, unless the whole call"),
    ],
)
def test_a_wrong_place_of_a_fault_is_refused_by_name(rule: dict[str, object], message: str, emulator: Emulator) -> None:
    status, answer = emulator.ask("POST", "faults", rule)
    assert status == 400
    assert message in answer["error"]
