"""A launched machine joins over HTTP: the server asks STS, and the answer has the key of its slot."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from leasehold.agent.joining import join, make_proof
from leasehold.errors import BadCredentials, Refused, Unavailable
from scheduler.protocol.host_proof import CLUSTER, JOIN_PATH
from scheduler.protocol.signing import read_key_line
from scheduler.store.opening import open_store
from tests.api.caller import Caller
from tests.client.intake import FakeIntake
from tests.console.served import Console, serve, settings_for
from tests.ec2.test_machine_processes import SCRIPT, PlayingEmulator, emulator, find_folder, launch, read_environment
from tests.operations.harness import CONFIG, Harness

__all__ = ["emulator"]

REGION = "us-east-1"


@pytest.fixture
def machine(emulator: PlayingEmulator, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A played machine, which the slot linux-1 has. This process has its credentials."""
    name = launch(emulator, SCRIPT)
    for key, value in read_environment(find_folder(tmp_path, name)).items():
        if key.startswith("AWS_"):
            monkeypatch.setenv(key, value)
    store = open_store(sqlite_url)
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "agent": True}}}, store=store)
    harness.put(msgspec.structs.replace(harness.slot(), state="binding", instance_id=name, launch_id="l-1", epoch=1))
    store.close()
    return name


@pytest.fixture
def console(
    intake: FakeIntake, sqlite_url: str, tmp_path: Path, emulator: PlayingEmulator, machine: str
) -> Iterator[Console]:
    assert machine
    sections: dict[str, Mapping[str, Any]] = {
        "aws": {"region": REGION, "endpoint_url": emulator.url},
        "access": {"join_roles": ["123456789012:emulated-host"]},
    }
    with serve(settings_for(intake.url, sqlite_url, tmp_path / "console-token", **sections)) as running:
        yield running


def find_url(console: Console) -> str:
    return f"http://127.0.0.1:{console.settings.console.port}"


def find_cluster(console: Console) -> str:
    return console.store.read_cluster().identity


def send(console: Console, headers: object) -> Any:
    """Send a proof as a caller without a key."""
    return Caller(console.settings.console.port, {}).post(JOIN_PATH, {"headers": headers})


def test_a_machine_gets_the_key_of_its_slot(console: Console, machine: str) -> None:
    identity = join(find_url(console), find_cluster(console), None, lambda _: None)
    assert identity[:3] == ("linux-1", "linux", machine)
    name, _, cluster = read_key_line(identity.key)
    assert (name, cluster) == ("linux-1", find_cluster(console))


def test_a_proof_counts_once_and_for_one_cluster(console: Console) -> None:
    proof = make_proof(find_cluster(console), REGION)
    assert send(console, proof).status == 201
    assert send(console, proof).status == 409
    with pytest.raises(Refused, match="the identity of this cluster"):
        join(find_url(console), "another-cluster", REGION, lambda _: None)
    altered = make_proof("another-cluster", REGION) | {CLUSTER: find_cluster(console)}
    assert send(console, altered).faults == [("headers.authorization", "a signature that AWS accepts")]


@pytest.mark.parametrize("headers", [None, [], {}, {"authorization": "x"}, {"authorization": 1}])
def test_a_body_without_a_proof_is_refused(console: Console, headers: object) -> None:
    assert send(console, headers).status == 403


def test_a_role_that_is_not_listed_is_refused(
    intake: FakeIntake, sqlite_url: str, tmp_path: Path, emulator: PlayingEmulator, machine: str
) -> None:
    assert machine
    aws = {"region": REGION, "endpoint_url": emulator.url}
    with (
        serve(settings_for(intake.url, sqlite_url, tmp_path / "console-token", aws=aws)) as running,
        pytest.raises(Refused, match=r"access\.join_roles"),
    ):
        join(find_url(running), find_cluster(running), None, lambda _: None)


def test_a_machine_asks_again_while_no_slot_has_it(console: Console, sqlite_url: str) -> None:
    store = open_store(sqlite_url)
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "agent": True}}}, store=store)
    harness.put(msgspec.structs.replace(harness.slot(), instance_id="i-other"))
    seen: list[Mapping[str, Any]] = []
    with pytest.raises(Unavailable, match="within 2 s"):
        join(find_url(console), find_cluster(console), None, seen.append, seconds=2)
    assert {each["event"] for each in seen} == {"waiting"}
    store.close()


def test_a_key_is_sent_over_tls_only() -> None:
    with pytest.raises(BadCredentials, match="expected https"):
        join("http://console.example.org", "c", REGION, lambda _: None)
