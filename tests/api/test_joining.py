"""A launched machine joins over HTTP: the server asks STS, or checks the token of the launch, and the answer has the
key of its slot.
"""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from leasehold.agent.joining import IDENTITY_FILE, Identity, find_instance_id, join, join_by_token, make_proof
from leasehold.errors import BadCredentials, Refused, Unavailable
from scheduler.model.principals import WORKER
from scheduler.ports import EventFilter
from scheduler.protocol.host_proof import CLUSTER, JOIN_PATH
from scheduler.protocol.join_tokens import TOKEN_PLACE, make_join_token
from scheduler.protocol.signing import read_key, read_key_line
from scheduler.store.opening import open_store
from tests.api.caller import Caller
from tests.client.intake import FakeIntake
from tests.console.served import Console, serve, settings_for
from tests.ec2.test_machine_processes import (
    SCRIPT,
    PlayingEmulator,
    find_folder,
    launch,
    read_environment,
    start_emulator,
)
from tests.operations.harness import CONFIG, Harness

REGION = "us-east-1"
LAUNCH = "l-1"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which machines are played."""
    return tmp_path_factory.mktemp("machines")


@pytest.fixture(scope="module")
def emulator(machines: Path) -> Iterator[PlayingEmulator]:
    with start_emulator(machines) as found:
        yield found


@pytest.fixture(scope="module")
def played(emulator: PlayingEmulator, machines: Path) -> tuple[str, dict[str, str]]:
    """Return the id and the environment of a played machine. No test changes it."""
    name = launch(emulator, SCRIPT)
    return name, read_environment(find_folder(machines, name))


@pytest.fixture
def machine(played: tuple[str, dict[str, str]], sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The played machine, which the slot linux-1 has. This process has its credentials."""
    name, environment = played
    for key, value in environment.items():
        if key.startswith("AWS_"):
            monkeypatch.setenv(key, value)
    store = open_store(sqlite_url)
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "agent": True}}}, store=store)
    launched = {"state": "binding", "launch_id": LAUNCH, "epoch": 1, "launched_at": store.now()}
    harness.put(msgspec.structs.replace(harness.slot(), instance_id=name, **launched))
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
    with pytest.raises(Unavailable, match="within 4 s"):
        join(find_url(console), find_cluster(console), None, seen.append, seconds=4)
    assert {each["event"] for each in seen} == {"waiting"}
    store.close()


def test_a_key_is_sent_over_tls_only(tmp_path: Path) -> None:
    with pytest.raises(BadCredentials, match="expected https"):
        join("http://console.example.org", "c", REGION, lambda _: None)
    with pytest.raises(BadCredentials, match="expected https"):
        join_by_token("http://console.example.org", "c", "A" * 43, tmp_path, lambda _: None)


def find_token(console: Console) -> str:
    """Return the token of the launch of the machine."""
    worker = next(each for each in console.store.find_principals() if each.name == WORKER)
    return make_join_token(read_key(worker.key), find_cluster(console), LAUNCH)


def join_with_token(console: Console, state: Path, token: str | None = None) -> Identity:
    found = find_token(console) if token is None else token
    return join_by_token(find_url(console), find_cluster(console), found, state, lambda _: None, seconds=5)


def list_events(console: Console, name: str) -> list[Any]:
    return [event.detail["machine"] for event in console.store.read_events(EventFilter(name=name))]


def test_a_machine_without_a_profile_gets_the_key_of_its_slot_by_the_token_of_its_launch(
    console: Console, machine: str, tmp_path: Path
) -> None:
    identity = join_with_token(console, tmp_path / "state")
    assert identity[:3] == ("linux-1", "linux", machine)
    name, _, cluster = read_key_line(identity.key)
    assert (name, cluster) == ("linux-1", find_cluster(console))


def test_an_agent_that_starts_again_has_its_identity_in_a_file_that_only_its_user_reads(
    console: Console, machine: str, tmp_path: Path
) -> None:
    state = tmp_path / "new" / "state"
    first = join_with_token(console, state)
    assert (state / IDENTITY_FILE).stat().st_mode & 0o777 == 0o600
    assert state.stat().st_mode & 0o777 == 0o700
    assert [each.name for each in state.iterdir()] == [IDENTITY_FILE]
    assert join_with_token(console, state) == first
    assert list_events(console, "host_joined") == [machine]


def test_whoever_comes_first_gets_the_slot_and_an_operator_sees_that_another_one_came(
    console: Console, machine: str, tmp_path: Path
) -> None:
    thief = send_token(console, machine, find_token(console))
    assert thief.status == 201
    with pytest.raises(Refused, match="has not used before"):
        join_with_token(console, tmp_path / "state")
    assert not (tmp_path / "state" / IDENTITY_FILE).exists()
    assert list_events(console, "host_join_refused") == [machine]


def test_a_file_that_an_image_has_from_another_machine_is_no_identity(
    console: Console, machine: str, tmp_path: Path
) -> None:
    kept = {"cluster": find_cluster(console), "machine": "i-0123456789abcdef0"}
    (tmp_path / IDENTITY_FILE).write_text(json.dumps({**kept, "slot": "linux-2", "pool": "linux", "key": "k"}))
    assert join_with_token(console, tmp_path).machine == machine
    assert json.loads((tmp_path / IDENTITY_FILE).read_text())["slot"] == "linux-1"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cluster": 1}'])
def test_a_broken_file_is_no_identity(console: Console, machine: str, tmp_path: Path, text: str) -> None:
    (tmp_path / IDENTITY_FILE).write_text(text)
    assert join_with_token(console, tmp_path).machine == machine


def test_a_token_is_not_used_if_the_identity_could_not_be_kept(console: Console, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        join_with_token(console, tmp_path / "file")
    assert list_events(console, "host_joined") == []
    assert join_with_token(console, tmp_path / "state").slot == "linux-1"


def send_token(console: Console, machine: object, token: object, **more: object) -> Any:
    """Send a token as a caller without a key."""
    return Caller(console.settings.console.port, {}).post(JOIN_PATH, {"machine": machine, "token": token, **more})


def test_a_token_that_is_wrong_or_of_another_form_is_refused(console: Console, machine: str) -> None:
    token = find_token(console)
    wrong = make_join_token(b"k" * 32, find_cluster(console), LAUNCH)
    for other in (wrong, TOKEN_PLACE, token[:-1], "", None, 1, [token], {"": token}, token + "\n"):
        refused = send_token(console, machine, other)
        assert (refused.status, [path for path, _ in refused.faults]) == (403, ["token"])
    for name in (None, 1, [machine], "linux-1", machine + "\n", f"{machine}0" * 9):
        refused = send_token(console, name, token)
        assert (refused.status, [path for path, _ in refused.faults]) == (403, ["machine"])
    assert send_token(console, machine, token, headers={}).status == 403
    assert send_token(console, machine, token).status == 201
    assert send_token(console, machine, token).status == 409


def test_a_machine_that_the_cluster_does_not_know_yet_asks_again(console: Console, tmp_path: Path) -> None:
    assert send_token(console, "i-0123456789abcdef0", find_token(console)).status == 404
    slot = console.store.find_slots(ids=["linux-1"])[0]
    with console.store.transaction() as transaction:
        transaction.save([msgspec.structs.replace(slot, instance_id=None, state="launching")])
    with pytest.raises(Unavailable, match="within 5 s"):
        join_with_token(console, tmp_path)


def test_no_line_of_the_log_has_a_token(
    console: Console, machine: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    token = find_token(console)
    assert [send_token(console, machine, each).status for each in (token, token, token[::-1])] == [201, 409, 403]
    written = "".join([*capfd.readouterr(), caplog.text])
    assert token not in written
    assert token[::-1] not in written


def test_the_metadata_service_of_a_played_machine_names_it_and_wants_a_session(
    machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_instance_id() == machine
    url = os.environ["AWS_EC2_METADATA_SERVICE_ENDPOINT"]
    assert httpx.get(f"{url}/latest/meta-data/instance-id").status_code == 401
    session = httpx.put(f"{url}/latest/api/token").text
    assert httpx.get(f"{url}/latest/user-data", headers={"X-aws-ec2-metadata-token": session}).status_code == 404
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"{url}0")
    with pytest.raises(Unavailable, match="metadata service"):
        find_instance_id()
