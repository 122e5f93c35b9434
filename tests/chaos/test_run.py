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
from tests.chaos.commands.hosts import POOLS
from tests.chaos.commands.nemesis import CommandNemesis
from tests.chaos.commands.seed_run import FLAGS, make_commands
from tests.chaos.commands.switches import AGENT_SWITCHES, FAULTS_FOR, WORKER_SWITCHES
from tests.chaos.faults import CLOUD_FAULTS, REFUSALS, WEIGHTS
from tests.chaos.nemesis import Nemesis
from tests.chaos.run import main
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


def test_the_page_names_each_fault_and_each_guard_of_commands() -> None:
    page = (ROOT / "docs/explanation/chaos.md").read_text().partition("## Commands on leases")[2]
    assert [name for name in (*CommandNemesis.weights, *AGENT_SWITCHES) if f"`{name}`" not in page] == []
    assert {fault for faults in FAULTS_FOR.values() for fault in faults} <= CommandNemesis.weights.keys()
    assert FAULTS_FOR.keys() == AGENT_SWITCHES.keys() >= WORKER_SWITCHES.keys()


def test_the_commands_of_a_seed_are_of_each_kind() -> None:
    requests = make_commands(1, 200, 30.0, Path("/lines"), is_full=True)
    assert {each["document"]["system"] for each in requests} == set(POOLS)
    words = [each["document"]["run"]["argv"] for each in requests]
    assert {each[5] for each in words} == set(FLAGS)
    assert {each[7] for each in words} == {"0", "3"}
    seconds = [float(each[6]) for each in words]
    assert min(seconds) < 0.02
    assert max(seconds) > 20
    assert {len(each["document"].get("components", [])) for each in requests} == {0, 1}
    assert all(0 <= each["after"] <= 30 for each in requests)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--off", "keeper"], "--off: expected one of term"),
        (["--commands", "--off", "term"], "--off: expected one of deadline"),
        (["--only", "wipe"], "--only: expected names among kill"),
        (["--commands", "--only", "cloud"], "--only: expected names among command"),
    ],
)
def test_faults_and_guards_belong_to_their_kind_of_run(
    words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert error in capsys.readouterr().err


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
