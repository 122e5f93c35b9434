"""The agent of a host against a fake stack: its requests, its events and when it ends."""

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import redis
from typing_extensions import override

from leasehold import Client, Refused, Unavailable
from leasehold.agent.agent import HostAgent, HostSpec
from leasehold.agent.commands import HostCommands
from leasehold.client.hosts import Hosts
from leasehold.client.models import LeaseKey
from leasehold.work.command import HostIdentity, Signer
from leasehold.work.ports import Taken
from leasehold.work.runner import Runner
from scheduler.protocol.heartbeats import LONGEST_BEAT_SECONDS, Heartbeat, find_beat, is_heartbeat_of, read_heartbeat
from scheduler.protocol.signing import make_key, read_key
from testbed.processes import wait_for
from tests.client.intake import Document, FakeIntake

SPEC = HostSpec("lab-1", "lab", "m1", {"cpus": 4}, {"disk": "ssd"}, "10.0.0.7")
LEASE: Document = {"reservation": "r1", "component": "main", "token": 7, "resources": {"cpus": 1}}
UNKNOWN: Document = {"ok": False, "errors": [{"index": 0, "path": "slot", "expected": "a slot", "got": '"lab-1"'}]}


class FakeHost:
    """The stack's view of one host. A test may change any field while the agent runs; the next answer contains it."""

    def __init__(self) -> None:
        self.state: str = "ready"
        self.leases: list[Document] = [LEASE]
        self.refusal: Document = {}
        self.drains_to = "draining"
        self.offline_timeout = 1.8
        self.version: str | None = None

    def answer(self, verb: str, _document: Document) -> Document | None:
        if self.refusal:
            return dict(self.refusal)
        if verb == "leave":
            self.state = self.drains_to
        if verb == "register" and self.state == "empty":
            self.state = "ready"
        fields: Document = {"slot": "lab-1", "state": self.state, "offline_timeout": self.offline_timeout}
        if self.version is not None:
            fields["version"] = self.version
        return {"ok": True, **fields, "leases": self.leases}


class Running:
    """An agent that runs in its own thread, with the events that it reported."""

    def __init__(self, client: Client, make_runner: Callable[[str], Runner] | None = None) -> None:
        self.events: list[Mapping[str, Any]] = []
        self.error: Exception | None = None
        self.agent = HostAgent(client.hosts, SPEC, self.events.append, poll_seconds=0.1, make_runner=make_runner)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.agent.run()
        except Refused as error:
            self.error = error

    def await_event(self, event: str) -> Mapping[str, Any]:
        """Wait for the first event of this kind and return it."""
        return wait_for(lambda: next((each for each in self.events if each["event"] == event), None), event)

    @property
    def has_ended(self) -> bool:
        """Whether the thread of the agent has ended."""
        return not self._thread.is_alive()


@pytest.fixture
def host(intake: FakeIntake) -> FakeHost:
    """A host at the fake stack; its `answer` is the handler of the intake."""
    fake = FakeHost()
    intake.handler = fake.answer
    return fake


@pytest.fixture
def start(blocking_client: Client) -> Iterator["Start"]:
    """A function that starts the agent; the agent ends after the test."""
    started: list[Running] = []

    def begin(make_runner: Callable[[str], Runner] | None = None) -> Running:
        started.append(Running(blocking_client, make_runner))
        return started[-1]

    yield begin
    for each in started:
        each.agent.leave()
        each.agent.leave()
        wait_for(lambda each=each: each.has_ended, "the agent's end")  # type: ignore[misc]


Start = Callable[..., Running]


def test_the_agent_registers_its_machine_and_sends_heartbeats(
    host: FakeHost, start: Start, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    running = start()
    assert running.await_event("registered") == {
        "event": "registered",
        "slot": "lab-1",
        "state": "ready",
        "machine": "m1",
    }
    verb, document = intake.seen[0]
    fields = {key: value for key, value in document.items() if key not in {"request", "reply_to"}}
    assert (len(fields.pop("run").partition("-")[2]), fields.pop("waited") < 5) == (32, True)
    assert (verb, fields) == (
        "register",
        {
            "slot": "lab-1",
            "pool": "lab",
            "machine": "m1",
            "resources": {"cpus": 4},
            "labels": {"disk": "ssd"},
            "address": "10.0.0.7",
        },
    )
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1") == b"m1", "a heartbeat")
    redis_client.delete("leasehold:heartbeat:lab-1")
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1"), "the next heartbeat")


def test_heartbeats_continue_while_requests_get_no_answer(
    host: FakeHost, start: Start, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    running = start()
    running.await_event("leased")
    intake.handler = lambda _verb, _document: None
    for _ in range(3):
        redis_client.delete("leasehold:heartbeat:lab-1")
        wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1"), "a heartbeat")
    intake.handler = host.answer  # so that the agent can leave


def test_a_shorter_offline_timeout_applies_from_the_next_answer_on(
    host: FakeHost, start: Start, redis_client: redis.Redis
) -> None:
    """The agent does not wait for the end of the longer pause that it had begun."""
    host.offline_timeout = 1000.0
    start().await_event("leased")
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1"), "the first heartbeat")
    redis_client.delete("leasehold:heartbeat:lab-1")
    host.offline_timeout = 1.8
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1"), "the next heartbeat", LONGEST_BEAT_SECONDS / 2)


def publish_hint(redis_client: redis.Redis) -> None:
    """Publish the hint that a worker publishes when the slot or its leases change."""
    redis_client.publish("leasehold:host:lab-1", b"{}")


def test_heartbeats_carry_the_last_version_and_a_hint_makes_the_agent_read_its_leases(
    host: FakeHost, start: Start, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    """A new version is sent at once, however long the pause between two heartbeats."""
    host.version, host.offline_timeout = "0:7:1000", 1000.0
    running = start()
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1") == b"m1 0:7:1000", "the version")
    host.version, host.leases = "0:8:1000", []
    publish_hint(redis_client)
    running.await_event("ended")
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1") == b"m1 0:8:1000", "the next version")
    assert intake.verbs().count("leases") == 2


@pytest.mark.parametrize(
    ("hint", "commands"),
    [
        (b'{"commands": [{"reservation": "r1", "component": "main", "token": 7}]}', [LeaseKey("r1", "main", 7)]),
        (b"{}", []),
        (b'{"commands": [{"reservation": "r1"}]}', []),
        (b"\xff", []),
    ],
)
def test_a_hint_names_new_commands(
    hint: bytes, commands: list[LeaseKey], blocking_client: Client, redis_client: redis.Redis
) -> None:
    hints = blocking_client.hosts.hints("lab-1")
    hints.listen()
    assert not hints.commands
    redis_client.publish("leasehold:host:lab-1", hint)
    assert hints.wait(10)
    assert list(hints.commands) == commands
    hints.close()


def test_the_agent_takes_a_command_that_a_hint_names_before_it_reads_its_leases(
    host: FakeHost, start: Start, intake: FakeIntake, blocking_client: Client, redis_client: redis.Redis, tmp_path: Path
) -> None:
    taken: list[tuple[LeaseKey, int]] = []

    class Commands(HostCommands):
        @override
        def take(self, nonces: Mapping[LeaseKey, str]) -> Mapping[LeaseKey, Taken | Refused]:
            taken.extend((key, intake.verbs().count("leases")) for key in nonces)
            raise Unavailable("no answer")

    def make_runner(run: str) -> Runner:
        identity = HostIdentity("lab-1", "m1", run)
        signer = Signer("lab-1", b"k" * 32, "a-cluster")
        return Runner(Commands(blocking_client, identity), signer, identity, tmp_path, lambda _: None)

    host.version, host.leases = "0:7:1.8", []
    start(make_runner)
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1") == b"m1 0:7:1.8", "the version")
    named = {"reservation": "r1", "component": "main", "token": 7}
    redis_client.publish("leasehold:host:lab-1", json.dumps({"commands": [named]}))
    wait_for(lambda: intake.verbs().count("leases") == 2, "the next read of the leases")
    assert taken == [(LeaseKey("r1", "main", 7), 1)]


def test_the_agent_reads_its_leases_when_heartbeats_succeed_again(
    host: FakeHost, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hints may have been lost while no heartbeat reached Redis."""
    monkeypatch.setattr("leasehold.agent.agent.RETURN_SECONDS", 0.1)
    host.version = "0:7:1.8"
    is_cut = threading.Event()
    heartbeat = Hosts.heartbeat

    def beat(hosts: Hosts, slot: str, machine: str, version: str | None = None, run: str | None = None) -> None:
        if is_cut.is_set():
            raise Unavailable("no heartbeat comes through")
        heartbeat(hosts, slot, machine, version, run)

    monkeypatch.setattr(Hosts, "heartbeat", beat)
    running = start()
    running.await_event("leased")
    is_cut.set()
    running.await_event("unreachable")
    host.leases = []
    is_cut.clear()
    running.await_event("ended")


@pytest.mark.usefixtures("host")
def test_an_error_that_ends_the_heartbeats_ends_the_agent(intake: FakeIntake) -> None:
    """Otherwise the agent would run without heartbeats, and the host would be offline for the scheduler."""

    def report(event: Mapping[str, Any]) -> None:
        if event["event"] == "unreachable":
            raise BrokenPipeError

    class Unreachable(Hosts):
        """A client whose heartbeats never reach Redis."""

        def heartbeat(self, slot: str, machine: str, version: str | None = None, run: str | None = None) -> None:
            raise Unavailable(f"no heartbeat of {slot} by {machine} in {run}")

    with Client(intake.url) as client:
        agent = HostAgent(Unreachable(lambda: client._core.hosts, client._run), SPEC, report, poll_seconds=0.1)
        with pytest.raises(BrokenPipeError):
            agent.run()


def test_an_agent_drained_before_its_first_look_ends(host: FakeHost, start: Start, intake: FakeIntake) -> None:
    def drained_at_once(verb: str, document: Document) -> Document | None:
        answer = host.answer(verb, document)
        host.leases, host.state = [], "empty"
        return answer

    intake.handler = drained_at_once
    running = start()
    wait_for(lambda: running.has_ended, "the agent's end")
    assert intake.verbs().count("register") == 1


def test_the_agent_reports_each_lease_that_begins_is_revoked_and_ends(host: FakeHost, start: Start) -> None:
    running = start()
    running.await_event("leased")
    host.leases = [{**LEASE, "state": "revoking", "revoke_by": 5.0}]
    running.await_event("revoking")
    host.leases = []
    running.await_event("ended")
    host.leases = [{**LEASE, "token": 8}]
    wait_for(lambda: [each["event"] for each in running.events].count("leased") == 2, "the next lease")
    assert [(each["event"], each.get("token")) for each in running.events[1:]] == [
        ("leased", 7),
        ("revoking", 7),
        ("ended", None),
        ("leased", 8),
    ]


def test_the_agent_leaves_when_its_last_lease_has_ended(host: FakeHost, start: Start) -> None:
    running = start()
    running.await_event("leased")
    running.agent.leave()
    running.await_event("leaving")
    assert not running.has_ended
    host.leases, host.state = [], "empty"
    running.await_event("left")
    wait_for(lambda: running.has_ended, "the agent's end")


def test_a_second_leave_ends_the_agent_at_once(host: FakeHost, start: Start) -> None:
    running = start()
    running.await_event("leased")
    running.agent.leave()
    running.agent.leave()
    wait_for(lambda: running.has_ended, "the agent's end")
    assert "left" not in {each["event"] for each in running.events}


def test_an_agent_drained_by_an_operator_ends_and_does_not_register_again(
    host: FakeHost, start: Start, intake: FakeIntake
) -> None:
    running = start()
    running.await_event("leased")
    host.leases, host.state = [], "empty"
    wait_for(lambda: running.has_ended, "the agent's end")
    assert intake.verbs().count("register") == 1


def test_an_agent_that_starts_while_its_slot_drains_registers_again_when_the_slot_is_empty(
    host: FakeHost, start: Start, intake: FakeIntake
) -> None:
    host.state = "draining"
    running = start()
    assert running.await_event("registered")["state"] == "draining"
    host.state = "empty"
    wait_for(lambda: running.events[-1].get("state") == "ready", "the second registration")
    assert intake.verbs().count("register") == 2


def test_an_agent_whose_slot_was_removed_ends_with_the_refusal(host: FakeHost, start: Start) -> None:
    running = start()
    running.await_event("leased")
    host.refusal = UNKNOWN
    wait_for(lambda: running.has_ended, "the agent's end")
    assert [error.path for error in getattr(running.error, "errors", ())] == ["slot"]


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        # The default timeout: six heartbeats.
        (180.0, 30.0),
        (60.0, 10.0),
        # At most 30 s between two heartbeats.
        (3600.0, 30.0),
        (None, 30.0),
        # At least 0.3 s between two heartbeats.
        (0.5, 0.3),
    ],
)
def test_several_heartbeats_fit_in_an_offline_timeout(timeout: float | None, seconds: float) -> None:
    assert find_beat(timeout) == seconds


def test_a_changed_limit_of_cores_is_not_reported_as_a_new_lease(host: FakeHost, start: Start) -> None:
    host.leases = [{**LEASE, "cores": 2.0}]
    running = start()
    assert running.await_event("leased")["cores"] == 2
    host.leases = [{**LEASE, "cores": 1.0}]
    event = running.await_event("cores")
    assert (event["reservation"], event["component"], event["cores"]) == ("r1", "main", 1)
    assert [each["event"] for each in running.events].count("leased") == 1


def test_a_host_with_a_principal_signs_its_heartbeats_and_increases_the_counter(
    intake: FakeIntake, redis_client: redis.Redis
) -> None:
    """The counter starts above the one in the answer to `register`, because the clock of the host may be slow."""
    above = 10**15
    intake.handler = lambda _verb, _document: {"ok": True, "slot": "lab-1", "state": "ready", "heartbeat": above}
    redis_client.set("leasehold:cluster", "c-1")
    key = make_key()
    with Client(intake.url, key=key, principal="lab-1", timeout=5) as client:
        hosts = client.hosts
        hosts.register("lab-1", pool="lab", machine="m1")
        beats = [send_heartbeat(hosts, redis_client, version) for version in ("1:2:30", "1:2:30", None)]
    assert [beat.counter for beat in beats] == [above + 1, above + 2, above + 3]
    assert [beat.version for beat in beats] == ["1:2:30", "1:2:30", None]
    assert all(is_heartbeat_of(read_key(key), "c-1", "lab-1", beat) for beat in beats)
    assert not any(is_heartbeat_of(read_key(make_key()), "c-1", "lab-1", beat) for beat in beats)


def test_the_counter_of_a_heartbeat_is_the_time_in_milliseconds(intake: FakeIntake, redis_client: redis.Redis) -> None:
    """So a restarted host, or a command that sends one heartbeat, needs no stored counter."""
    redis_client.set("leasehold:cluster", "c-1")
    with Client(intake.url, key=make_key(), principal="lab-1") as client:
        beat = send_heartbeat(client.hosts, redis_client, None)
        now = client._wire.clock.now()
    assert beat.counter is not None
    # The client estimates cluster time over the network; the error is below the round trip to Redis.
    assert abs(beat.counter / 1000 - now) < 60


def test_a_principal_that_is_not_the_host_sends_plain_heartbeats(intake: FakeIntake, redis_client: redis.Redis) -> None:
    redis_client.set("leasehold:cluster", "c-1")
    with Client(intake.url, key=make_key(), principal="ops") as client:
        assert send_heartbeat(client.hosts, redis_client, "1:2:30") == Heartbeat("m1", "1:2:30")


def send_heartbeat(hosts: Hosts, client: redis.Redis, version: str | None) -> Heartbeat:
    hosts.heartbeat("lab-1", "m1", version)
    beat = read_heartbeat(client.get("leasehold:heartbeat:lab-1"))  # type: ignore[arg-type]  # no coroutine
    assert beat is not None
    return beat


def fault(path: str, code: str | None, expected: str = "another") -> Document:
    error = {"index": 0, "path": path, "expected": expected, "got": "this"}
    return {"ok": False, "errors": [error | ({} if code is None else {"code": code})]}


def test_an_agent_asks_again_while_an_earlier_run_may_be_live_and_sends_the_run_that_was_accepted(
    host: FakeHost, start: Start, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    seen: list[Document] = []

    def answer(verb: str, document: Document) -> Document | None:
        seen.append({"verb": verb, **document})
        if verb == "register" and len(seen) < 3:
            return fault("run", "conflict", "no live agent of lab-1")
        found = host.answer(verb, document)
        return found if found is None else {**found, "run": document["run"]}

    intake.handler = answer
    running = start()
    running.await_event("leased")
    assert [each["event"] for each in running.events] == ["waiting", "registered", "leased"]
    assert [each["verb"] for each in seen[:4]] == ["register", "register", "register", "leases"]
    assert len({each["run"] for each in seen[:4]}) == 1
    assert 0 == seen[0]["waited"] < seen[1]["waited"] < seen[2]["waited"]
    run = seen[0]["run"]
    wait_for(lambda: redis_client.get(f"leasehold:heartbeat:lab-1:{run}") == b"m1", "a heartbeat of the run")
    assert redis_client.get("leasehold:heartbeat:lab-1") == b"m1"
    # Another agent has taken the place of this one while it was stopped.
    intake.handler = lambda _verb, _document: fault("run", "conflict")
    wait_for(lambda: running.has_ended, "the agent's end")
    assert [error.path for error in getattr(running.error, "errors", ())] == ["run"]


def test_an_agent_ends_if_another_live_one_has_its_identity(start: Start, intake: FakeIntake) -> None:
    intake.handler = lambda _verb, _document: fault("machine", "conflict")
    running = start()
    wait_for(lambda: running.has_ended, "the agent's end")
    assert [error.path for error in getattr(running.error, "errors", ())] == ["machine"]


def test_workers_of_an_earlier_version_get_requests_without_a_run(
    host: FakeHost, start: Start, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    """They refuse fields that they do not know."""

    def answer(verb: str, document: Document) -> Document | None:
        if unknown := [name for name in ("run", "waited") if name in document]:
            errors = [fault(name, None, "a known key")["errors"][0] for name in unknown]
            return {"ok": False, "errors": errors}
        return host.answer(verb, document)

    intake.handler = answer
    running = start()
    running.await_event("leased")
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1") == b"m1", "a heartbeat")
    assert not [*redis_client.scan_iter("leasehold:heartbeat:lab-1:*")]
    host.leases, host.state = [], "empty"
    wait_for(lambda: running.has_ended, "the agent's end")
    assert running.error is None
