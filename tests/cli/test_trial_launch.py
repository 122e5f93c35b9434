"""`leasehold doctor --launch-one` on the emulator: a machine boots, gets ready and ends, whatever happens meanwhile."""

import json
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.rules import Rules
from scheduler.model.slots import TRIAL, Machine
from scheduler.ports import LaunchOrder
from testbed.processes import wait_for
from tests.cli.conftest import Run
from tests.cli.test_interrupted import start, started
from tests.cli.test_market import database
from tests.ec2.conftest import IMAGE, Emulator, _no_settings_of_aws, emulator, server
from workers.ec2.fleet import Ec2Fleet

__all__ = ["_no_settings_of_aws", "database", "emulator", "server", "started"]

RULES = f"""
[pools.linux]
system = "x86_64-linux"
max_slots = 1
terminating_timeout = 5
[pools.linux.ec2]
image = "{IMAGE}"
tags = {{ team = "web" }}
[[pools.linux.offerings]]
name = "c5.large"
price = 3600.0
[pools.plain]
system = "x86_64-linux"
max_slots = 1
boot_timeout = 0.5
binding_timeout = 0
ec2 = {{ image = "{IMAGE}" }}
[pools.two]
system = "x86_64-linux"
max_slots = 1
terminating_timeout = 5
ec2 = {{ image = "{IMAGE}" }}
offerings = [
  {{ name = "c5.large", price = 1.0 }}, {{ name = "m5.large", price = 1.2 }}, {{ name = "m5.4xlarge", price = 9.0 }}
]
[pools.market]
system = "x86_64-linux"
max_slots = 1
market = {{ prices = true }}
ec2 = {{ image = "{IMAGE}" }}
offerings = [{{ name = "m5.large" }}]
[pools.hosts]
system = "x86_64-linux"
provider = "static"
"""
QUICK = {"boot_seconds": 0.1, "status_seconds": 0.1, "terminate_seconds": 0.1}
LAUNCH = ("doctor", "--launch-one", "linux")


@pytest.fixture
def cloud(database: str, emulator: Emulator, run: Run, monkeypatch: pytest.MonkeyPatch) -> Emulator:
    """Return the EC2 of a stack with applied rules, whose machines boot quickly."""
    monkeypatch.setenv("LEASEHOLD_AWS__ENDPOINT_URL", emulator.url)
    monkeypatch.setattr("leasehold.doctor.trial_launch.LOOK_SECONDS", 0.05)
    monkeypatch.setattr("leasehold.doctor.trial_launch.find_delay", lambda _attempt: 0.05)
    emulator.steer(**QUICK)
    Path("rules.toml").write_text(RULES)
    assert run("apply", "rules.toml").status == 0
    return emulator


def launched(cloud: Emulator) -> list[dict[str, Any]]:
    return cloud.history()


def running(cloud: Emulator) -> list[str]:
    return [each["id"] for each in cloud.instances() if each["state"] not in {"terminated", "shutting-down"}]


def test_a_machine_goes_through_all_phases_and_is_ended(cloud: Emulator, run: Run) -> None:
    found = run(*LAUNCH)
    assert (found.status, found.complaints) == (0, [])
    lines = found.out.splitlines()
    assert lines[0] == "launching one machine of linux: c5.large, spot, $3600.0000 an hour (rules)"
    assert [line.split()[0] for line in lines[1:6]] == ["request", "pending", "running", "ready", "ended"]
    (machine,) = launched(cloud)
    assert lines[1].endswith(f"RunInstances: {machine['id']}")
    assert "c5.large spot" in lines[2]
    assert lines[3].endswith("EC2's status checks passed")
    assert "and cost $" in lines[6]
    assert running(cloud) == []


def test_the_request_is_that_of_a_launch_task_with_the_marks_of_a_trial(cloud: Emulator, run: Run) -> None:
    found = json.loads(run(*LAUNCH, "--json").out)
    (call,) = cloud.calls("RunInstances")
    assert call["token"] == f"{found['launch_id']}.1"
    assert found["launch_id"].startswith(TRIAL)
    assert [each["name"] for each in found["phases"]] == ["request", "pending", "running", "ready", "ended"]
    assert found["seconds"] >= sum(each["seconds"] for each in found["phases"][1:]) > 0
    # The price is a dollar a second.
    assert found["cost"] == pytest.approx(found["seconds"])
    assert (found["price"], found["price_source"], found["is_ended"], found["problem"]) == (3600.0, "rules", True, None)


def test_a_machine_that_does_not_get_ready_is_ended(cloud: Emulator, run: Run) -> None:
    cloud.steer(boot_seconds=60)
    found = run("doctor", "--launch-one", "plain", "--json")
    problem = "did not run in 0.5 s (boot_timeout + binding_timeout)"
    result = json.loads(found.out)
    assert (found.status, found.complaints) == (1, [f"leasehold: {result['instance_id']} {problem}"])
    assert [each["name"] for each in result["phases"]] == ["request", "ended"]
    assert (result["ready_after"], result["cost"], result["is_ended"]) == (None, None, True)
    assert running(cloud) == []


def test_a_lost_answer_costs_no_second_machine(cloud: Emulator, run: Run) -> None:
    cloud.set_fault(lost="reset", action="RunInstances", count=1)
    assert run(*LAUNCH).status == 0
    assert len(launched(cloud)) == 1
    assert running(cloud) == []


def test_a_refused_launch_is_one_line(cloud: Emulator, run: Run) -> None:
    cloud.set_fault(code="InsufficientInstanceCapacity", message="none left")
    found = run(*LAUNCH)
    assert (found.status, len(found.complaints)) == (1, 1)
    assert "capacity: InsufficientInstanceCapacity" in found.complaints[0]
    assert found.complaints[0].endswith(
        "→ Nothing is wrong here: try again later, or add offerings, zones or types to the pool."
    )
    assert launched(cloud) == []


@pytest.mark.parametrize("code", ["InsufficientInstanceCapacity", "VcpuLimitExceeded"])
def test_without_capacity_or_quota_the_next_offering_is_tried_with_a_warning(
    code: str, cloud: Emulator, run: Run
) -> None:
    cloud.set_fault(code=code, type="c5.large", message="none left")
    found = run("doctor", "--launch-one", "two", "--json")
    result = json.loads(found.out)
    assert (found.status, result["offering"], result["problem"]) == (0, "m5.large", None)
    assert result["refused"] == [f"c5.large: {code}: none left"]
    assert found.complaints == [
        f"leasehold: warning: EC2 launches no c5.large: {code}: none left; the next offering is tried"
    ]
    assert running(cloud) == []


def test_the_trial_does_not_take_a_much_dearer_offering(cloud: Emulator, run: Run) -> None:
    cloud.set_fault(code="InsufficientInstanceCapacity")
    found = run("doctor", "--launch-one", "two", "--json")
    assert (found.status, json.loads(found.out)["offering"]) == (1, "m5.large")
    assert len(found.complaints) == 2


def test_a_machine_that_ends_while_it_boots_shows_ec2s_reason(cloud: Emulator, run: Run) -> None:
    cloud.steer(boot_seconds=5)
    cloud.set_fault(code="Client.InternalError", where="machine", message="Client error on launch")
    found = run(*LAUNCH)
    assert found.status == 1
    assert found.complaints[0].endswith("EC2's reason is Client.InternalError: Client error on launch")
    assert len(found.complaints) == 1


def test_a_refusal_that_no_table_knows_is_no_machine_that_may_still_run(cloud: Emulator, run: Run) -> None:
    cloud.set_fault(code="NobodyKnowsThisCode", where="call", message="A sentence.")
    found = run(*LAUNCH)
    assert (found.status, len(found.complaints)) == (1, 1)
    assert "NobodyKnowsThisCode): A sentence. → Correct pools.linux.ec2" in found.complaints[0]


def test_a_machine_that_ec2_does_not_list_yet_is_ended_all_the_same(cloud: Emulator, run: Run) -> None:
    cloud.steer(describe_lag_seconds=0.5)
    assert run(*LAUNCH).status == 0
    assert running(cloud) == []


def test_an_end_that_ec2_ignores_is_requested_again(cloud: Emulator, run: Run) -> None:
    """EC2 may not know the id of a young machine yet."""
    cloud.set_fault(code="InvalidInstanceID.NotFound", action="TerminateInstances", count=1)
    assert run(*LAUNCH).status == 0
    assert running(cloud) == []


def test_a_machine_whose_end_is_not_certain_is_named(cloud: Emulator, run: Run) -> None:
    cloud.set_fault(code="UnauthorizedOperation", action="TerminateInstances")
    found = run(*LAUNCH, "--json")
    result = json.loads(found.out)
    assert (found.status, result["is_ended"]) == (1, False)
    assert "UnauthorizedOperation" in found.complaints[0]
    line = "may still run: end it in EC2, or let a running stack terminate it, as it has no slot"
    assert found.complaints[1] == f"leasehold: {result['instance_id']} {line}"
    assert running(cloud) == [result["instance_id"]]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_machine(
    number: signal.Signals, cloud: Emulator, started: list[subprocess.Popen[str]], tmp_path: Path
) -> None:
    cloud.steer(boot_seconds=600)
    process = start(started, tmp_path, *LAUNCH)
    machine = wait_for(lambda: next(iter(running(cloud)), None), "the machine")
    process.send_signal(number)
    _, err = process.communicate(timeout=40)
    assert (process.returncode, err) == (130, f"leasehold: interrupted by Ctrl-C: {machine} is ended\n")
    assert running(cloud) == []


def signal_calls(monkeypatch: pytest.MonkeyPatch, *drops: bool) -> None:
    """Let SIGTERM arrive within the first calls that describe the machine: within a library that drops every exception,
    as a destructor does (True), or that raises it again (False).
    """
    left, describe = [*drops], Ec2Fleet.describe

    def describe_meanwhile(fleet: Ec2Fleet, machines: Sequence[str]) -> dict[str, Machine]:
        if left:
            with suppress(*([KeyboardInterrupt] if left.pop(0) else [])):
                signal.raise_signal(signal.SIGTERM)
        return describe(fleet, machines)

    monkeypatch.setattr(Ec2Fleet, "describe", describe_meanwhile)


def test_a_signal_within_a_library_that_drops_exceptions_ends_the_machine(
    cloud: Emulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.steer(boot_seconds=600)  # a slow process would else find it ready at its first look
    signal_calls(monkeypatch, True)
    found = run(*LAUNCH)
    (machine,) = launched(cloud)
    assert (found.status, found.complaints) == (130, [f"leasehold: interrupted by Ctrl-C: {machine['id']} is ended"])
    assert [line.split()[0] for line in found.out.splitlines()[1:-1]] == ["request", "ended"]
    assert running(cloud) == []


def test_a_second_signal_leaves_the_machine_that_may_still_run(
    cloud: Emulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.steer(terminate_seconds=600)
    signal_calls(monkeypatch, True, False)
    found = run(*LAUNCH)
    (machine,) = launched(cloud)
    line = "may still run: end it in EC2, or let a running stack terminate it, as it has no slot"
    complaints = ["leasehold: interrupted by Ctrl-C", f"leasehold: {machine['id']} {line}"]
    assert (found.status, found.complaints) == (130, complaints)


def test_a_signal_before_the_launch_request_launches_no_machine(
    cloud: Emulator, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze = Ec2Fleet.freeze

    def freeze_meanwhile(fleet: Ec2Fleet, order: LaunchOrder, rules: Rules) -> dict[str, object]:
        signal.raise_signal(signal.SIGTERM)
        return freeze(fleet, order, rules)

    monkeypatch.setattr(Ec2Fleet, "freeze", freeze_meanwhile)
    found = run(*LAUNCH)
    assert (found.status, found.complaints) == (130, ["leasehold: interrupted by Ctrl-C: no machine was launched"])
    assert launched(cloud) == []


@pytest.mark.parametrize(
    ("pool", "status", "line"),
    [
        ("linus", 2, "--launch-one: expected one of"),
        ("hosts", 1, "hosts is a pool of static hosts: expected a pool that launches machines"),
        ("market", 1, "no offering of market can be bought now: `leasehold offers --pool market` lists the reasons"),
    ],
)
def test_what_is_missing_is_one_line(pool: str, status: int, line: str, cloud: Emulator, run: Run) -> None:
    found = run("doctor", "--launch-one", pool)
    assert (found.status, len(found.complaints)) == (status, 1)
    assert line in found.complaints[0]
    assert launched(cloud) == []


def test_without_credentials_or_rules(database: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(*LAUNCH).complaints == ["leasehold: no rules were applied yet: `leasehold apply FILE`"]
    Path("rules.toml").write_text(RULES)
    assert run("apply", "rules.toml").status == 0
    monkeypatch.delenv("LEASEHOLD_AWS__ACCESS_KEY_ID")
    monkeypatch.delenv("LEASEHOLD_AWS__SECRET_ACCESS_KEY")
    found = run(*LAUNCH)
    assert (found.status, len(found.complaints)) == (1, 1)
    assert "Unable to locate credentials" in found.complaints[0]


def test_it_is_alone_on_its_line(database: str, run: Run) -> None:
    found = run(*LAUNCH, "--no-aws")
    assert (found.status, len(found.complaints)) == (2, 1)
