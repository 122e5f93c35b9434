"""`leasehold doctor` on a running stack: every check passes, and when one part is broken, its check fails."""

import json
import re
import socket
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import boto3
import msgspec
import pytest

from leasehold.texts.change_commands import format_toml
from scheduler.protocol.clock import read_offsets
from scheduler.store.migrating import migrate
from testbed.processes import wait_for
from testbed.stack import Stack
from tests.cli.conftest import Run, run
from tests.system.conftest import RULES

__all__ = ["run"]

NO_REDIS: Final = "redis://127.0.0.1:1/0"
QUEUES: Final = ("reservations", "ticks", "launch", "health", "terminate")


class Report:
    """The output of one run of the doctor."""

    def __init__(self, status: int, document: dict[str, Any]) -> None:
        self.status, self.state = status, document["state"]
        self.findings = {finding["check"]: finding for finding in document["findings"]}

    def list_checks(self, outcome: str) -> list[str]:
        return [name for name, finding in self.findings.items() if finding["outcome"] == outcome]


class Doctor:
    """The command, with the environment of the stack's processes and the current rules of the stack."""

    def __init__(self, run: Run, patch: pytest.MonkeyPatch) -> None:
        self.run, self._patch = run, patch

    def examine(self, *arguments: str, **changes: str) -> Report:
        for name, value in changes.items():
            self._patch.setenv(f"LEASEHOLD_{name}", value)
        found = self.run("doctor", "--json", *arguments)
        assert found.err == ""
        return Report(found.status, json.loads(found.out))


@pytest.fixture
def doctor(stack: Stack, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    rules = tmp_path / "leasehold.toml"
    rules.write_text(format_toml(RULES), encoding="utf-8")
    for name, value in stack.environment.items():
        if name.startswith(("LEASEHOLD_", "AWS_")):
            monkeypatch.setenv(name, value)
    monkeypatch.setenv("LEASEHOLD_CONFIG", str(rules))
    monkeypatch.setenv("LEASEHOLD_FLOWER__BASIC_AUTH", "operator:secret")
    # The check of TerminateInstances (DryRun) needs a machine.
    wait_for(lambda: [each for each in stack.slots("warm") if each.state == "ready"], "the warm slot")
    return Doctor(run, monkeypatch)


def test_on_a_running_stack_every_check_passes_and_nothing_is_launched_or_terminated(
    stack: Stack, doctor: Doctor
) -> None:
    before = stack.instances("running"), stack.launched()
    found = doctor.examine("--timeout", "15")
    assert (found.status, found.state, found.list_checks("failure"), found.list_checks("warning")) == (0, "ok", [], [])
    assert found.list_checks("skipped") == []
    assert {"redis memory", "schema", "rules", "ticks", "database clock", "aws identity"} <= set(found.findings)
    assert {"aws launch linux", "aws launch warm", "aws look", "aws terminate"} <= set(found.findings)
    assert all(f"queue {queue}" in found.findings for queue in QUEUES)
    assert (stack.instances("running"), stack.launched()) == before


def test_with_everything_down_it_reports_that_and_ends(doctor: Doctor, tmp_path: Path) -> None:
    found = doctor.examine(
        "--timeout",
        "1",
        BROKER__URL=NO_REDIS,
        DATABASE__URL=f"sqlite:///{tmp_path}/none.db",
        AWS__ENDPOINT_URL="http://127.0.0.1:1",
    )
    assert (found.status, found.list_checks("failure")) == (1, ["redis", "database", "aws identity"])


def test_without_redis_its_check_fails_and_dependent_checks_are_skipped(doctor: Doctor) -> None:
    found = doctor.examine("--no-aws", BROKER__URL=NO_REDIS)
    assert (found.status, found.list_checks("failure")) == (1, ["redis"])
    assert {f"queue {queue}" for queue in QUEUES} <= set(found.list_checks("skipped"))
    assert found.findings["ticks"]["outcome"] == "ok"


def test_a_queue_without_a_worker_fails(stack: Stack, doctor: Doctor) -> None:
    stack.processes["terminate"].kill()
    try:
        found = doctor.examine("--no-aws", "--timeout", "4")
    finally:
        stack.processes["terminate"].start()
        stack.await_canary("terminate")
    assert (found.status, found.list_checks("failure")) == (1, ["queue terminate"])
    assert found.findings["queue terminate"]["remedy"].startswith("Start a worker: python -m tasks.worker terminate")


def test_the_wrong_clock_of_a_worker_is_named_with_its_host(stack: Stack, doctor: Doctor) -> None:
    def measures_it() -> bool:
        offsets = read_offsets(cast("dict[bytes, bytes]", stack.redis.hgetall("leasehold:clocks")))
        return any(each.process == "launch" and each.seconds > 20 for each in offsets)

    stack.shifts.set("launch", 21)
    try:
        wait_for(measures_it, "the launch worker to measure its clock")
        found = doctor.examine("--no-aws", "--timeout", "15")
    finally:
        stack.shifts.set("launch", 0)
        stack.await_right_clocks()
    assert (found.status, found.list_checks("failure")) == (1, ["clocks"])
    finding, host = found.findings["clocks"], socket.gethostname()
    sentence = rf"launch on {re.escape(host)}: the wall clock is 2[01]\.\d\d s ahead of cluster time"
    assert re.fullmatch(sentence, finding["text"])
    assert f"Let {host} follow a time service" in finding["remedy"]
    wait_for(lambda: not measures_it(), "the launch worker to measure its clock again")


def test_a_database_without_tables_fails(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "new.db").touch()
    found = doctor.examine("--no-aws", "--timeout", "15", DATABASE__URL=f"sqlite:///{tmp_path}/new.db")
    assert (found.status, found.list_checks("failure")) == (1, ["schema"])
    assert found.findings["schema"]["remedy"] == "Run `leasehold migrate`."


def test_a_database_without_rules_fails(doctor: Doctor, tmp_path: Path) -> None:
    """Its cluster differs too, because Redis belongs to the database of the stack."""
    migrate(f"sqlite:///{tmp_path}/empty.db")
    found = doctor.examine("--no-aws", "--timeout", "15", DATABASE__URL=f"sqlite:///{tmp_path}/empty.db")
    assert (found.status, found.list_checks("failure")) == (1, ["cluster", "rules"])


def test_a_redis_that_evicts_fails(stack: Stack, doctor: Doctor) -> None:
    stack.redis.config_set("maxmemory-policy", "allkeys-lru")
    try:
        found = doctor.examine("--no-aws", "--timeout", "15")
    finally:
        stack.redis.config_set("maxmemory-policy", "noeviction")
    assert (found.status, found.list_checks("failure")) == (1, ["redis memory"])
    assert "noeviction" in found.findings["redis memory"]["remedy"]


@contextmanager
def fault(stack: Stack, **rule: object) -> Iterator[None]:
    """Let the emulator answer with this fault within the block."""
    for body in ([rule], []):
        address = f"{stack.emulator_url}/_leasehold/faults"
        request = urllib.request.Request(address, msgspec.json.encode(body), method="PUT")  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=10):  # noqa: S310 - as above
            pass
        if body:
            yield


@pytest.mark.parametrize(
    ("action", "failing"),
    [
        ("RunInstances", ["aws launch linux", "aws launch warm"]),
        ("TerminateInstances", ["aws terminate"]),
        ("DescribeInstanceStatus", ["aws look"]),
    ],
)
def test_a_call_that_aws_does_not_permit_fails(action: str, failing: list[str], stack: Stack, doctor: Doctor) -> None:
    with fault(stack, code="UnauthorizedOperation", action=action, message="not you"):
        found = doctor.examine("--timeout", "15")
    assert (found.status, found.list_checks("failure")) == (1, failing)
    assert "(auth: UnauthorizedOperation): not you" in found.findings[failing[0]]["text"]


def test_only_the_named_permissions_are_checked(stack: Stack, doctor: Doctor) -> None:
    """Each worker may have its own role; the role of the health worker must not launch."""
    with fault(stack, code="UnauthorizedOperation", action="RunInstances"):
        found = doctor.examine("--may", "look", "--timeout", "15")
    assert found.status == 0
    tried = [check for check in found.findings if check.startswith("aws")]
    assert tried == ["aws identity", "aws look", "aws interruptions"]


def test_a_missing_queue_of_interruptions_fails(stack: Stack, doctor: Doctor) -> None:
    sqs = boto3.client(
        "sqs",
        region_name="us-east-1",
        endpoint_url=stack.emulator_url,
        aws_access_key_id="testing",
        aws_secret_access_key="testing",
    )
    queue = sqs.create_queue(QueueName="doctor")["QueueUrl"]
    found = doctor.examine("--may", "look", "--timeout", "15", AWS__INTERRUPTION_QUEUE=queue)
    assert (found.status, found.list_checks("skipped")) == (0, [])
    gone = doctor.examine("--may", "look", "--timeout", "15", AWS__INTERRUPTION_QUEUE=f"{queue}-gone")
    assert (gone.status, gone.list_checks("failure")) == (1, ["aws interruptions"])


def test_a_file_that_differs_from_the_current_rules_is_a_warning(doctor: Doctor, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[pools.other]\nsystem = "x"\nmax_slots = 1\nec2.image = "ami-1"\n', encoding="utf-8")
    found = doctor.examine("--no-aws", "--timeout", "15", CONFIG=str(other))
    assert (found.status, found.list_checks("warning")) == (0, ["rules"])
    assert "differs from" in found.findings["rules"]["text"]


def test_the_output_has_no_colours_without_a_terminal(doctor: Doctor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", NO_REDIS)
    found = doctor.run("doctor", "--no-aws", "--timeout", "0.5")
    assert found.status == 1
    assert "\x1b" not in found.out
    assert found.out.splitlines()[0].startswith("FAILURE  redis ")
    assert "→ Start Redis" in found.out.splitlines()[1]


def test_the_arguments_are_checked(doctor: Doctor) -> None:
    found = doctor.run("doctor", "--may", "fly")
    assert (found.status, found.out) == (2, "")
    assert "expected one of launch, look, terminate, got 'fly'" in found.complaints[0]
