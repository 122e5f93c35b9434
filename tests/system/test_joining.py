"""Machines join a whole stack: by the token of their launch in a pool without an instance profile, by a proof in one
with a profile. The emulator plays them as processes, and each runs commands of leases.
"""

import base64
import os
import re
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pytest

from leasehold.client.client import Client
from leasehold.stack import Stack
from scheduler.ports import EventFilter
from scheduler.protocol.host_proof import JOIN_PATH
from testbed.processes import wait_for
from tests.api.caller import Caller

PROFILE = "leasehold-machine"
POOL: dict[str, Any] = {
    "agent": True,
    "max_slots": 2,
    "offline_timeout": 10,
    "idle_scale_down": 600,
    "lease_ttl": 60,
    "resources": {"cpus": 2},
}
AGAIN = """#!/bin/sh
export LEASEHOLD_JOIN_TOKEN="${{join_token}}"
while :; do
    leasehold host join "${{join_url}}" --cluster "${{cluster_id}}" &
    echo $$! > {path}.new && mv {path}.new {path}
    wait
done
"""
IMAGE = "ami-12345678"
SECONDS = 90.0


@pytest.fixture(scope="module")
def pid_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file with the process id of the agent of the pool `again`."""
    return tmp_path_factory.mktemp("agent") / "pid"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, pid_file: Path) -> Iterator[Stack]:
    pools = {
        "bare": {"image": IMAGE},
        "again": {"image": IMAGE, "user_data": AGAIN.format(path=pid_file)},
        "proven": {"image": IMAGE, "instance_profile": PROFILE},
    }
    rules = {"pools": {name: {**POOL, "system": name, "ec2": ec2} for name, ec2 in pools.items()}}
    environment = {"LEASEHOLD_SWEEP_INTERVAL": "1", "LEASEHOLD_TICKS__INTERVAL": "1"}
    folder = tmp_path_factory.mktemp("stack")
    with Stack(folder, rules=rules, environment=environment, emulator={"boot_seconds": 0.5}) as running:
        yield running


def open_aws(stack: Stack, service: str) -> Any:
    environment = stack.configuration.environment
    return boto3.client(
        service,  # type: ignore[call-overload]
        region_name=environment["LEASEHOLD_AWS__REGION"],
        endpoint_url=stack.emulator_url,
        aws_access_key_id=environment["LEASEHOLD_AWS__ACCESS_KEY_ID"],
        aws_secret_access_key=environment["LEASEHOLD_AWS__SECRET_ACCESS_KEY"],
    )


def submit(client: Client, name: str, pool: str, **fields: Any) -> None:
    run = {"argv": ["sh", "-c", 'echo "token [$LEASEHOLD_JOIN_TOKEN] on $LEASEHOLD_SLOT"']}
    wanted = fields or {"resources": {"cpus": 2}}
    client.submit({"id": name, "system": pool, "run": run, **wanted})


def read_outputs(client: Client, name: str) -> list[str]:
    """Wait for the end of a command and return its outputs, sorted."""
    client.wait(name, "released", SECONDS)
    return sorted(str(each.tail) for each in client.command(name).executions)


def list_events(stack: Stack, name: str) -> list[tuple[str | None, Any]]:
    with closing(stack.open_store()) as store:
        return [(each.slot, each.detail["machine"]) for each in store.read_events(EventFilter(name=name))]


def find_machines(client: Client, pool: str) -> dict[str, str]:
    return {each.id: str(each.instance_id) for each in client.slots() if each.pool == pool and each.instance_id}


def test_machines_without_a_profile_join_by_the_token_of_their_launch_and_run_commands(stack: Stack) -> None:
    with stack.client() as client:
        # A gang, so that one request launches both machines.
        submit(client, "pair", "bare", components=[{"name": "node", "count": 2, "resources": {"cpus": 2}}])
        # The commands do not inherit the token.
        assert read_outputs(client, "pair") == ["token [] on bare-1\n", "token [] on bare-2\n"]
        machines = find_machines(client, "bare")
    joined = [each for each in list_events(stack, "host_joined") if each[0] in machines]
    assert sorted(joined) == sorted(machines.items())
    ec2 = open_aws(stack, "ec2")
    tokens = set()
    for machine in machines.values():
        found = ec2.describe_instance_attribute(InstanceId=machine, Attribute="userData")["UserData"]["Value"]
        tokens |= set(re.findall(r'LEASEHOLD_JOIN_TOKEN="([A-Za-z0-9_-]{43})"', base64.b64decode(found).decode()))
    (token,) = tokens
    # Whoever reads the user data later gets no key with it, and the operator sees the attempt.
    port = int(stack.urls["console"].rsplit(":", 1)[1].split("/")[0])
    answer = Caller(port, {}).post(JOIN_PATH, {"machine": machines["bare-1"], "token": token})
    assert (answer.status, answer.faults) == (409, [("token", "a token that this machine has not used before")])
    assert list_events(stack, "host_join_refused") == [("bare-1", machines["bare-1"])]
    assert find_files_with(stack.directory, token) == []


def find_files_with(folder: Path, text: str) -> list[str]:
    """Return the files of a stack, its database, Redis and logs, that contain a text."""
    found = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [str(path) for path in found if text.encode() in path.read_bytes()]


def test_an_agent_that_was_killed_goes_on_with_the_key_that_it_has_kept(stack: Stack, pid_file: Path) -> None:
    with stack.client() as client:
        submit(client, "again-a", "again")
        assert read_outputs(client, "again-a") == ["token [] on again-1\n"]
        machines = find_machines(client, "again")
        first = int(pid_file.read_text())
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: int(pid_file.read_text()) != first or None, "the next agent")
        submit(client, "again-b", "again")
        assert read_outputs(client, "again-b") == ["token [] on again-1\n"]
        assert find_machines(client, "again") == machines
    assert [each for each in list_events(stack, "host_joined") if each[0] == "again-1"] == [*machines.items()]
    assert [each for each in list_events(stack, "host_join_refused") if each[0] == "again-1"] == []


def test_machines_with_a_profile_join_by_a_proof_and_get_no_token(stack: Stack) -> None:
    open_aws(stack, "iam").create_instance_profile(InstanceProfileName=PROFILE)
    with stack.client() as client:
        submit(client, "proven-a", "proven")
        assert read_outputs(client, "proven-a") == ["token [] on proven-1\n"]
        machines = find_machines(client, "proven")
    assert [each for each in list_events(stack, "host_joined") if each[0] == "proven-1"] == [*machines.items()]
    found = open_aws(stack, "ec2").describe_instance_attribute(InstanceId=machines["proven-1"], Attribute="userData")
    assert "TOKEN" not in base64.b64decode(found["UserData"]["Value"]).decode()
