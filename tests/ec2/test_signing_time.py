"""Requests are signed with the time of AWS: a process with a wrong wall clock is served like any other."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from scheduler.ports import CloudError
from testbed.clocks.shift import Shifts
from tests.ec2.conftest import REGION, Emulator
from workers.ec2.clients import Ec2Access, make_client
from workers.ec2.errors import cloud_errors
from workers.ec2.signing_time import AwsClock, read_date

ROOT: Final = Path(__file__).parents[2]
SERVED: Final = {"ec2": "ok", "sqs": "ok", "sts": "ok"}
Ask = Callable[[str], dict[str, str]]


@pytest.fixture
def shifts(tmp_path: Path) -> Shifts:
    return Shifts(tmp_path / "clocks")


@pytest.fixture
def ask(emulator: Emulator, shifts: Shifts) -> Iterator[Ask]:
    """Yield a function by which a process with a shifted clock makes calls; the process ends with the tests."""
    environment = shifts.environment("caller", {**os.environ, "PYTHONPATH": str(ROOT)})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clocks.aws_caller", emulator.url],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

    def ask(kind: str) -> dict[str, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{kind}\n")
        process.stdin.flush()
        answer: dict[str, str] = json.loads(process.stdout.readline())
        return answer

    yield ask
    process.communicate(timeout=30)


@pytest.mark.parametrize("seconds", [600.0, -600.0])
def test_a_process_whose_clock_is_minutes_off_is_served_from_its_first_call_and_after_a_jump(
    ask: Ask, shifts: Shifts, seconds: float
) -> None:
    for shift in (seconds, -seconds, 0.0, seconds):
        shifts.set("caller", shift)
        assert ask("ours") == {**SERVED, "dry run": "ok"}, shift


def test_the_emulator_refuses_signatures_of_another_time_as_aws_does(ask: Ask, shifts: Shifts) -> None:
    shifts.set("caller", -600.0)
    assert ask("plain") == {"ec2": "RequestExpired", "sqs": "InvalidSignatureException", "sts": "SignatureDoesNotMatch"}
    shifts.set("caller", 600.0)
    assert ask("plain") == {"ec2": "AuthFailure", "sqs": "InvalidSignatureException", "sts": "SignatureDoesNotMatch"}
    for seconds in (240.0, -240.0):
        shifts.set("caller", seconds)
        assert ask("plain") == SERVED


def test_only_the_first_call_of_a_client_is_repeated_for_its_signing_time(
    ask: Ask, shifts: Shifts, emulator: Emulator
) -> None:
    shifts.set("caller", -600.0)
    for _ in range(2):
        ask("ours")
    asked = [(call["status"], call["faults"]) for call in emulator.calls("DescribeInstanceStatus")]
    assert asked == [(200, []), (200, [])]
    refused = [call for call in emulator.calls() if call["status"] != 200]
    # One for each of the two EC2 clients of that process.
    assert [call["faults"] for call in refused] == [["error:RequestExpired"]] * 2


def test_a_refusal_that_is_not_about_the_time_is_not_repeated(emulator: Emulator) -> None:
    client = make_client(
        Ec2Access(region=REGION, endpoint_url=emulator.url, access_key_id="testing", secret_access_key="testing")
    )
    emulator.set_fault(action="DescribeInstances", code="AuthFailure", status=401)
    with pytest.raises(CloudError), cloud_errors():
        client.describe_instances()
    assert len(emulator.calls("DescribeInstances")) == 1


def test_the_time_of_aws_is_carried_by_the_monotonic_clock_between_answers() -> None:
    wall, monotonic = [1000.0], [5.0]
    clock = AwsClock(lambda: wall[0], lambda: monotonic[0])
    assert clock.now() == 1000.0
    clock.note(2000.0)
    wall[0], monotonic[0] = -77.0, 15.0
    assert clock.now() == 2010.0


@pytest.mark.parametrize("date", ["", "yesterday", "Thu, 99 Jan 2026 00:00:00 GMT"])
def test_a_date_that_cannot_be_read_changes_nothing(date: str) -> None:
    assert read_date({"Date": date}) is None
    assert read_date({}) is None
    assert read_date({"Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(86400))}) == 86400
