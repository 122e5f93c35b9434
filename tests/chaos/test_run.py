"""Status and output of the command `python -m tests.chaos.run`."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from leasehold_emulator.settings import read_settings

from testbed.guarding import Guarded
from testbed.processes import wait_for
from testbed.stack import ROOT
from tests.chaos.faults import CLOUD_FAULTS, REFUSALS, WEIGHTS
from tests.chaos.nemesis import Nemesis
from tests.chaos.seed_run import find_kinds, make_requests
from tests.chaos.test_checker import a_call
from workers.embedded_redis import NO_SERVER, find_redis_server


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_reports_that_in_a_line_and_sums_up(number: signal.Signals, tmp_path: Path) -> None:
    if find_redis_server() is None:
        pytest.skip(NO_SERVER)
    command = [sys.executable, "-m", "tests.chaos.run", "--database=sqlite", "--first=7"]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    with Guarded(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        wait_for(lambda: list(tmp_path.glob("chaos-7-*/redis/*/redis.log")), "the stack to start")
        process.send_signal(number)
        out, err = process.communicate()
    assert process.returncode == 130
    assert err.decode().splitlines() == ["interrupted in seed 7"]
    assert out.decode().startswith("0 seeds, 0 reservations")
    assert list(tmp_path.iterdir()) == []


_DROPS: Final = """
import os, signal
from testbed.guarding import note_interrupts
from testbed.processes import wait_for

class Careless:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        [each for each in range(9)]

note_interrupts()
Careless()
try:
    wait_for(lambda: True, "nothing")
except KeyboardInterrupt:
    wait_for(lambda: True, "nothing")
    print("interrupted once")
"""


def test_an_interrupt_that_python_drops_in_a_finalizer_is_raised_again() -> None:
    run = subprocess.run([sys.executable, "-c", _DROPS], capture_output=True, text=True, cwd=ROOT, check=True)
    assert run.stdout == "interrupted once\n"
    assert "KeyboardInterrupt" in run.stderr


def test_the_requests_of_a_wave_are_sent_together_by_one_holder() -> None:
    waves: Counter[tuple[int, float, str, int]] = Counter()
    for holder, requests in enumerate(make_requests(1, 120, 10.0)):
        for request in requests:
            document = request["document"]
            size = sum(each["count"] for each in document.get("components", [{"count": 1}]))
            if document["system"] in {"fleet", "gang", "tier"}:
                waves[holder, request["after"], document["system"], size] += 1
    assert sum(waves.values()) == 120 // 3
    kinds = {(system, size, count) for (_, _, system, size), count in waves.items()}
    # The last wave may be cut off.
    assert {("fleet", 1, 4), ("fleet", 1, 3), ("tier", 1, 3), ("tier", 1, 2), ("gang", 3, 1), ("gang", 3, 2)} <= kinds
    assert len(kinds) <= 7
    assert all(0 <= after <= 10 for _, after, _, _ in waves)


def test_the_nemesis_has_a_fault_for_each_name_that_may_be_chosen() -> None:
    hosts: Any = SimpleNamespace(emulator_url="http://127.0.0.1:9")
    assert Nemesis(hosts, 1, 1.0, tuple(WEIGHTS)).names == set(WEIGHTS)
    assert Nemesis(hosts, 1, 1.0, ("refuse", "protect", "notices", "template")).names == {
        "refuse",
        "protect",
        "notices",
        "template",
    }


def test_the_emulator_takes_each_fault_of_ec2() -> None:
    assert len(read_settings({"faults": [*CLOUD_FAULTS, *REFUSALS]}).faults) == len(CLOUD_FAULTS) + len(REFUSALS)


def test_refusals_concern_calls_places_and_machines() -> None:
    assert {each["where"] for each in REFUSALS} == {"call", "fleet", "machine"}


@pytest.mark.parametrize(
    ("call", "kinds"),
    [
        (a_call(1, "TerminateInstances", code="OperationNotPermitted"), ["refused terminations"]),
        (a_call(1, "TerminateInstances", instances=["i-1", "i-2"]), ["terminated lists"]),
        (
            a_call(1, "CreateFleet", "t1", instances=["i-1"], faults=["place:VcpuLimitExceeded"]),
            ["launches", "launches with place:VcpuLimitExceeded"],
        ),
        (
            a_call(1, "RunInstances", "t1", instances=[], code="VcpuLimitExceeded", faults=["error:VcpuLimitExceeded"]),
            ["launches with error:VcpuLimitExceeded"],
        ),
        (a_call(1, "DescribeInstances", code="Unavailable", faults=["error:Unavailable"]), []),
    ],
)
def test_the_verdict_counts_what_the_faults_of_ec2_met(call: dict[str, Any], kinds: list[str]) -> None:
    assert list(find_kinds(call)) == kinds
