"""Commands on the leases of static hosts: real agents, workers, Redis and SQLite, with signed messages."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.client.client import Client
from leasehold.client.models import Command
from scheduler.operations.principals import add_principal
from scheduler.protocol.signing import format_key_line
from testbed.processes import Process, wait_for
from testbed.stack import Stack, a_pool
from tests.system.conftest import RULES
from tests.work.guarded_host import is_running
from tests.work.runner_host import end_guard, list_left, read_guard

pytestmark = pytest.mark.timeout(240)
LAB: dict[str, Any] = a_pool(system="lab-linux", provider="static", offline_timeout=6.0, max_leases_per_slot=4)
for _key in ("max_slots", "idle_scale_down", "ec2"):
    del LAB[_key]
CALM: dict[str, Any] = {**LAB, "system": "calm-linux", "offline_timeout": 40.0}
ENDLESS = ["sh", "-c", "echo ready; setsid sleep 1000 & sleep 1000"]


class Lab(Stack):
    """A stack with a static pool, whose hosts have principals."""

    def add_key(self, name: str, role: str, *rights: str) -> str:
        """Add a principal and return the content of its key file."""
        store = self.services.ports.store
        added = add_principal(store, {"name": name, "role": role, "rights": [*rights]})
        return format_key_line(added.name, added.key, store.read_cluster().identity)

    def start_agent(self, slot: str, pool: str = "lab", label: str = "") -> Process:
        key_file = self.folder / f"{slot}.key"
        if not key_file.exists():
            key_file.write_text(self.add_key(slot, "host"))
            key_file.chmod(0o600)
        words = f"leasehold.cli host run {slot} --pool {pool} --machine m-{slot} --cpus 4 --json".split()
        words += ["--state", str(self.folder / "host-state"), "--label", f"name={slot}"]
        environment = self.environment | {"LEASEHOLD_ACCESS__KEY_FILE": str(key_file)}
        agent = self.processes[f"agent-{slot}{label}"] = Process(
            f"agent-{slot}{label}", words, environment, self.folder
        )
        return agent

    def commands_folder(self, slot: str) -> Path:
        return self.folder / "host-state" / "commands" / slot


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    rules = {"pools": {"warm": RULES["pools"]["warm"], "lab": LAB, "calm": CALM}}
    with Lab(tmp_path_factory.mktemp("commands"), rules) as running:
        yield running


@pytest.fixture(scope="module")
def producer(lab: Lab) -> Iterator[Client]:
    with Client(lab.redis_url("leasehold"), key=lab.add_key("ci", "producer", "run"), timeout=20) as client:
        yield client


@pytest.fixture
def slot(request: pytest.FixtureRequest, lab: Lab) -> Iterator[str]:
    """The slot of a host with an agent; each test has its own. The parameter is the pool."""
    name = str(request.node.name).removeprefix("test_").replace("[", "-").replace("]", "")[:60]
    pool = getattr(request, "param", "lab")
    agent = lab.start_agent(name, pool)
    wait_for(lambda: any(each.id == name for each in lab.slots(pool)), "the host")
    yield name
    if agent.is_alive:
        os.kill(agent.pid, signal.SIGCONT)
        agent.kill()
    end_guard(lab.commands_folder(name))
    assert lab.ask("remove", {"slot": name})["ok"]


def submit(client: Client, slot: str, argv: list[str], **more: Any) -> str:
    name = f"{slot}-{time.time_ns()}"
    run: Any = {"argv": argv}
    client.submit({"id": name, "pool": "lab", "labels": {"name": slot}, **more}, run=run)
    return name


def read_phase(client: Client, name: str) -> str | None:
    row = client.get(name)
    return None if row is None else row.phase


def await_command(client: Client, name: str, **expected: Any) -> Command:
    """Wait until the command of a reservation has these values."""

    def find() -> Command | None:
        found = client.command(name)
        return found if all(getattr(found, key) == value for key, value in expected.items()) else None

    return wait_for(find, f"{expected}; got {client.command(name)!r}")


def test_a_command_runs_and_its_exit_code_0_releases_the_reservation(lab: Lab, producer: Client, slot: str) -> None:
    name = submit(producer, slot, ["sh", "-c", "echo $LEASEHOLD_SLOT"])
    found = await_command(producer, name, phase="released")
    assert (found.why, found.exit_code) == ("exited", 0)
    assert found.last is not None
    assert (found.last.tail, found.last.bytes) == (f"{slot}\n", len(slot) + 1)


def test_another_exit_code_fails_the_reservation(lab: Lab, producer: Client, slot: str) -> None:
    found = await_command(producer, submit(producer, slot, ["sh", "-c", "exit 3"]), phase="failed")
    assert (found.why, found.exit_code) == ("exited", 3)


def test_a_command_lives_longer_than_its_ttl_and_ends_with_its_reservation(
    lab: Lab, producer: Client, slot: str
) -> None:
    name = submit(producer, slot, ENDLESS, ttl=4)
    await_command(producer, name, state="running")
    begin = time.monotonic()
    wait_for(lambda: time.monotonic() - begin > 8, "twice the ttl")
    assert read_phase(producer, name) == "leased"
    assert len(list_left(lab.commands_folder(slot))) >= 2
    producer.cancel(name)
    wait_for(lambda: not list_left(lab.commands_folder(slot)), "the end of the processes")
    await_command(producer, name, why="revoked")


def test_a_killed_guard_sends_the_reservation_back_to_the_queue(lab: Lab, producer: Client, slot: str) -> None:
    name = submit(producer, slot, ["sh", "-c", f"echo x >> {lab.folder}/{slot}.log; sleep 1000"])
    await_command(producer, name, state="running")
    os.kill(read_guard(lab.commands_folder(slot)), signal.SIGKILL)
    found = await_command(producer, name, state="running")
    wait_for(lambda: len(producer.command(name).executions) == 2, "the second run")
    found = await_command(producer, name, state="running")
    assert [each.why for each in found.executions] == ["lost", None]
    wait_for(lambda: (lab.folder / f"{slot}.log").read_text() == "x\nx\n", "the second start")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_command_of_a_silent_agent_ends_before_its_host_is_offline(
    lab: Lab, producer: Client, slot: str, number: signal.Signals
) -> None:
    name = submit(producer, slot, ENDLESS, on_interruption="fail")
    await_command(producer, name, state="running")
    agent = lab.processes[f"agent-{slot}"]
    os.kill(agent.pid, number)
    wait_for(lambda: not list_left(lab.commands_folder(slot)), "the end of the processes")
    assert read_phase(producer, name) == "leased"


@pytest.mark.parametrize("slot", ["calm"], indirect=True)
def test_a_new_agent_takes_a_running_command_back(lab: Lab, producer: Client, slot: str) -> None:
    go = lab.folder / f"{slot}.go"
    script = f"echo x >> {lab.folder}/{slot}.log; while ! [ -e {go} ]; do sleep 0.1; done"
    name = submit(producer, slot, ["sh", "-c", script], pool="calm")
    await_command(producer, name, state="running")
    lab.processes[f"agent-{slot}"].kill()
    second = lab.start_agent(slot, "calm", "-2")
    try:
        lines = second.log.read_text
        wait_for(lambda: any(json.loads(each)["event"] == "taken_back" for each in lines().splitlines()), "the command")
        go.write_text("")
        found = await_command(producer, name, phase="released")
        assert len(found.executions) == 1
        assert (lab.folder / f"{slot}.log").read_text() == "x\n"
    finally:
        second.kill()


def test_a_drained_host_runs_its_command_to_its_end(lab: Lab, producer: Client, slot: str) -> None:
    go = lab.folder / f"{slot}.go"
    name = submit(producer, slot, ["sh", "-c", f"while ! [ -e {go} ]; do sleep 0.1; done; exit 0"])
    await_command(producer, name, state="running")
    agent = lab.processes[f"agent-{slot}"]
    agent.ask_to_end()
    wait_for(lambda: '"leaving"' in agent.log.read_text(), "the end of service")
    assert is_running(read_guard(lab.commands_folder(slot)))
    go.write_text("")
    await_command(producer, name, phase="released")
    assert agent.await_end() == 0
    wait_for(lambda: not is_running(read_guard(lab.commands_folder(slot))), "the end of the guard")
