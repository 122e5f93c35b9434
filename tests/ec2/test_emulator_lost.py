"""Answers that are lost after their call was carried out: what the caller sees, and what the log has."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from leasehold_emulator import EmulatorServer

from scheduler.ports import CloudError, LaunchOrder
from testbed.guarding import Guarded
from tests.ec2.conftest import REGION, Emulator, Launch, an_order, launch_one, some_rules
from workers.ec2.clients import Ec2Access, make_client
from workers.ec2.fleet import Ec2Fleet, make_fleet


@pytest.fixture
def hasty(server: EmulatorServer, emulator: Emulator) -> Ec2Fleet:
    """Return a fleet that waits a third of a second for an answer."""
    client = make_client(
        Ec2Access(region=REGION, endpoint_url=server.url, access_key_id="testing", secret_access_key="testing"), 0.3
    )
    return Ec2Fleet(client, "blue")


@pytest.mark.parametrize(
    ("lost", "seen"),
    [
        ("reset", "ConnectionClosedError|ConnectionError|EndpointConnectionError"),
        ("500", "InternalError"),
        ("timeout", "ReadTimeoutError"),
    ],
)
def test_a_launch_whose_answer_is_lost_was_carried_out_and_its_token_gives_it_again(
    lost: str, seen: str, hasty: Ec2Fleet, emulator: Emulator
) -> None:
    request = hasty.freeze(an_order(), some_rules())
    emulator.set_fault(lost=lost, count=1)
    with pytest.raises(CloudError, match=seen) as caught:
        launch_one(hasty, request)
    assert caught.value.category == "transient"
    [instance] = emulator.instances()
    # boto3 repeated it twice, with the same fault.
    assert [(call["lost"], call["replayed"], call["instances"]) for call in emulator.calls()] == [
        (True, False, [instance["id"]]),
        (True, True, [instance["id"]]),
        (True, True, [instance["id"]]),
    ]
    assert {(call["status"], call["code"], *call["faults"]) for call in emulator.calls()} == {
        (200, None, f"lost:{lost}")
    }
    assert launch_one(hasty, request).id == instance["id"]
    assert emulator.calls()[-1]["lost"] is False
    assert len(emulator.instances()) == 1


@pytest.mark.parametrize("lost", ["reset", "500", "timeout"])
def test_throttling_after_a_lost_answer_is_unclear_also_if_boto3_repeated_the_call(
    lost: str, hasty: Ec2Fleet, emulator: Emulator
) -> None:
    request = hasty.freeze(an_order(), some_rules())
    emulator.steer(throttling={"launch": {"size": 1, "refill": 0.01}})
    emulator.set_fault(lost=lost, count=1)
    with pytest.raises(CloudError, match="RequestLimitExceeded") as caught:
        launch_one(hasty, request)
    assert caught.value.category == "transient"
    assert [call["code"] for call in emulator.calls()] == [None, *["RequestLimitExceeded"] * 2]
    [instance] = emulator.instances()
    emulator.steer(throttling={})
    assert launch_one(hasty, request).id == instance["id"]


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("code", ["InvalidAMIID.NotFound", "NobodyKnowsThisCode"])
def test_a_refusal_after_a_lost_answer_is_marked_and_the_tag_finds_the_machines(
    code: str, is_batch: bool, access: Ec2Access, emulator: Emulator
) -> None:
    """The answer is lost, boto3 repeats the call, and EC2 refuses the repetition."""
    client = make_client(access)

    def refuse_repetitions(request: Any, **_event: object) -> None:
        if b"attempt=2" in request.headers["amz-sdk-request"]:
            emulator.set_fault(code=code, where="call")

    events: Any = client.meta.events
    events.register("before-send.ec2", refuse_repetitions)
    fleet, rules = Ec2Fleet(client, "blue"), some_rules()
    emulator.set_fault(lost="reset", count=1)
    order = LaunchOrder(batch="b1", pool="linux", count=2, offerings=("c5.large",))
    request = fleet.freeze(order if is_batch else an_order(), rules)
    with pytest.raises(CloudError, match=code) as caught:
        fleet.launch(request)
    assert (caught.value.category, caught.value.is_after_unclear) == ("misconfigured", True)
    assert len(fleet.find_launched(request)) == (2 if is_batch else 1)
    for other in (an_order(2), LaunchOrder(batch="b2", pool="linux")):
        assert fleet.find_launched(fleet.freeze(other, rules)) == []


def test_throttling_of_every_attempt_is_a_clear_refusal(hasty: Ec2Fleet, emulator: Emulator) -> None:
    emulator.set_fault(code="RequestLimitExceeded")
    with pytest.raises(CloudError, match="RequestLimitExceeded") as caught:
        launch_one(hasty, hasty.freeze(an_order(), some_rules()))
    assert caught.value.category == "throttled"
    assert len(emulator.calls()) == 3


def test_a_termination_whose_answer_is_lost_was_carried_out(
    launch: Launch, fleet: Ec2Fleet, emulator: Emulator
) -> None:
    machine = launch()
    emulator.set_fault(lost="reset", action="TerminateInstances", count=1)
    with pytest.raises(CloudError):
        fleet.terminate([machine.id])
    assert [instance["state"] for instance in emulator.instances()] == ["terminated"]
    fleet.terminate([machine.id])


def test_only_successful_answers_are_lost(launch: Launch, emulator: Emulator) -> None:
    emulator.ask("PUT", "faults", [{"lost": "reset", "count": 1}, {"code": "VcpuLimitExceeded", "count": 1}])
    with pytest.raises(CloudError, match="VcpuLimitExceeded"):
        launch()
    # The lost answer still waits for a call.
    with pytest.raises(CloudError) as caught:
        launch()
    assert caught.value.category == "transient"


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({}, "faults[0].code: expected a value, got nothing"),
        ({"lost": "stolen"}, "faults[0].lost: expected one of reset, 500, timeout"),
        ({"lost": "reset", "code": "InternalError"}, 'faults[0].code: expected no code, unless lost is "500"'),
        ({"lost": "reset", "deliver": 1}, "faults[0].deliver: expected no deliver beside lost"),
        ({"deliver": -1}, "faults[0].deliver: expected a whole number >= 0"),
    ],
)
def test_a_wrong_rule_is_refused_by_name(rule: dict[str, object], message: str, emulator: Emulator) -> None:
    status, answer = emulator.ask("POST", "faults", rule)
    assert status == 400
    assert message in answer["error"]
    assert "\n" not in answer["error"]


def test_a_killed_emulator_has_lost_no_line(tmp_path: Path) -> None:
    log = tmp_path / "calls.jsonl"
    process = Guarded(
        [sys.executable, "-m", "leasehold_emulator", "--port", "0", "--call-log", str(log)],
        stdout=subprocess.PIPE,
        env={**os.environ, "AWS_EC2_METADATA_DISABLED": "true"},
    )
    assert process.stdout is not None
    url = process.stdout.readline().decode().rpartition(" ")[2].strip()
    access = Ec2Access(region=REGION, endpoint_url=url, access_key_id="testing", secret_access_key="testing")
    fleet = make_fleet("blue", access)
    machines = [launch_one(fleet, fleet.freeze(an_order(number), some_rules())).id for number in range(3)]
    Emulator(url).order("lose", machines[0])
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["instances"] for line in lines] == [[machines[0]], [machines[1]], [machines[2]], [machines[0]]]
    assert lines[3]["event"] == "lost"
