"""The agent of a host, against a stand-in for the stack: what it asks, what it tells, when it ends."""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import redis

from leasehold import Client, Refused, Unavailable
from leasehold.agent.agent import LONGEST_BEAT_SECONDS, HostAgent, HostSpec, find_beat
from leasehold.client.hosts import Hosts
from leasehold.client.transport import RequestTransport
from leasehold.client.view_reader import ViewReader
from leasehold.common.heartbeats import Heartbeat, is_heartbeat_of, read_heartbeat
from leasehold.common.signing import make_key, read_key
from tests.client.intake import Document, FakeIntake
from tests.system.processes import wait_for

SPEC = HostSpec("lab-1", "lab", "m1", {"cpus": 4}, {"disk": "ssd"}, "10.0.0.7")
LEASE: Document = {"reservation": "r1", "component": "main", "token": 7, "resources": {"cpus": 1}}
UNKNOWN: Document = {"ok": False, "errors": [{"index": 0, "path": "slot", "expected": "a slot", "got": '"lab-1"'}]}


class FakeHost:
    """The stack's side of one host: `answer` is what its intake says, and may be changed at any time."""

    def __init__(self) -> None:
        self.state: str = "ready"
        self.leases: list[Document] = [LEASE]
        self.refusal: Document = {}
        self.drains_to = "draining"
        self.offline_timeout = 1.8
        self.version: str | None = None

    def answer(self, verb: str, _document: Document) -> Document | None:
        """What is answered to a host."""
        if self.refusal:
            return dict(self.refusal)
        if verb == "leave":
            self.state = self.drains_to
        if verb == "register" and self.state == "empty":
            self.state = "ready"
        said = {"slot": "lab-1", "state": self.state, "offline_timeout": self.offline_timeout}
        if self.version is not None:
            said["version"] = self.version
        return {"ok": True, **said, "leases": self.leases}


class Running:
    """An agent in a thread of its own; `told` is what it told."""

    def __init__(self, client: Client) -> None:
        self.told: list[Mapping[str, Any]] = []
        self.error: Exception | None = None
        self.agent = HostAgent(client.hosts, SPEC, self.told.append, poll_seconds=0.1)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.agent.run()
        except Refused as error:
            self.error = error

    def await_told(self, event: str) -> Mapping[str, Any]:
        """The first event of this kind."""
        return wait_for(lambda: next((each for each in self.told if each["event"] == event), None), event)

    @property
    def has_ended(self) -> bool:
        """Whether it came to its end."""
        return not self._thread.is_alive()


@pytest.fixture
def host(intake: FakeIntake) -> FakeHost:
    """What the intake says of the host."""
    fake = FakeHost()
    intake.handler = fake.answer
    return fake


@pytest.fixture
def start(blocking_client: Client) -> Iterator[Callable[[], Running]]:
    """Starts the agent, and ends it after the test."""
    started: list[Running] = []

    def begin() -> Running:
        started.append(Running(blocking_client))
        return started[-1]

    yield begin
    for each in started:
        each.agent.leave()
        each.agent.leave()
        wait_for(lambda each=each: each.has_ended, "the agent's end")  # type: ignore[misc]


Start = Callable[[], Running]


def test_it_says_what_it_has_and_beats_by_itself(
    host: FakeHost, start: Start, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    running = start()
    assert running.await_told("registered") == {
        "event": "registered",
        "slot": "lab-1",
        "state": "ready",
        "machine": "m1",
    }
    verb, document = intake.seen[0]
    said = {key: value for key, value in document.items() if key not in {"request", "reply_to"}}
    assert (verb, said) == (
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
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1"), "the next one")


def test_it_beats_while_nobody_answers(
    host: FakeHost, start: Start, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    running = start()
    running.await_told("leased")
    intake.handler = lambda _verb, _document: None
    for _ in range(3):
        redis_client.delete("leasehold:heartbeat:lab-1")
        wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1"), "a heartbeat")


def test_a_shorter_timeout_counts_from_the_next_answer_on(
    host: FakeHost, start: Start, redis_client: redis.Redis
) -> None:
    """And not only after the long pause that was begun before."""
    host.offline_timeout = 1000.0
    start().await_told("leased")
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1"), "the first heartbeat")
    redis_client.delete("leasehold:heartbeat:lab-1")
    host.offline_timeout = 1.8
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1"), "the next one", LONGEST_BEAT_SECONDS / 2)


def hint(redis_client: redis.Redis) -> None:
    """What a worker publishes when something changed."""
    redis_client.publish("leasehold:host:lab-1", b"{}")


def test_its_heartbeats_carry_the_version_that_it_knows_and_it_asks_only_when_hinted_at(
    host: FakeHost, start: Start, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    """A new version is sent at once, however long the pause between two heartbeats."""
    host.version, host.offline_timeout = "0:7:1000", 1000.0
    running = start()
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1") == b"m1 0:7:1000", "the version")
    host.version, host.leases = "0:8:1000", []
    hint(redis_client)
    running.await_told("ended")
    wait_for(lambda: redis_client.get("leasehold:heartbeat:lab-1") == b"m1 0:8:1000", "the next version")
    assert intake.verbs().count("leases") == 2


def test_it_asks_when_its_heartbeats_come_through_again(
    host: FakeHost, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hint may have been lost meanwhile."""
    monkeypatch.setattr("leasehold.agent.agent.RETURN_SECONDS", 0.1)
    host.version = "0:7:1.8"
    is_cut = threading.Event()
    heartbeat = Hosts.heartbeat

    def beat(hosts: Hosts, slot: str, machine: str, version: str | None = None) -> None:
        if is_cut.is_set():
            raise Unavailable("no heartbeat comes through")
        heartbeat(hosts, slot, machine, version)

    monkeypatch.setattr(Hosts, "heartbeat", beat)
    running = start()
    running.await_told("leased")
    is_cut.set()
    running.await_told("unreachable")
    host.leases = []
    is_cut.clear()
    running.await_told("ended")


@pytest.mark.usefixtures("host")
def test_what_ends_its_heartbeats_ends_the_agent(intake: FakeIntake) -> None:
    """Else the host would look dead while its agent seems to be well."""

    def tell(event: Mapping[str, Any]) -> None:
        if event["event"] == "unreachable":
            raise BrokenPipeError

    class Unreachable(Hosts):
        """No heartbeat comes through."""

        def heartbeat(self, slot: str, machine: str, version: str | None = None) -> None:
            raise Unavailable(f"no heartbeat of {slot} by {machine}")

    wire = RequestTransport(intake.url)
    try:
        with pytest.raises(BrokenPipeError):
            HostAgent(
                Unreachable(wire, ViewReader(wire.redis, "leasehold:", intake.url), 10.0), SPEC, tell, poll_seconds=0.1
            ).run()
    finally:
        wire.close()


def test_drained_before_its_first_look_it_ends_all_the_same(host: FakeHost, start: Start, intake: FakeIntake) -> None:
    def drained_at_once(verb: str, document: Document) -> Document | None:
        answer = host.answer(verb, document)
        host.leases, host.state = [], "empty"
        return answer

    intake.handler = drained_at_once
    running = start()
    wait_for(lambda: running.has_ended, "its end")
    assert intake.verbs().count("register") == 1


def test_it_tells_of_each_lease_that_comes_changes_and_ends(host: FakeHost, start: Start) -> None:
    running = start()
    running.await_told("leased")
    host.leases = [{**LEASE, "state": "revoking", "revoke_by": 5.0}]
    running.await_told("revoking")
    host.leases = []
    running.await_told("ended")
    host.leases = [{**LEASE, "token": 8}]
    wait_for(lambda: [each["event"] for each in running.told].count("leased") == 2, "the next lease")
    told = [(each["event"], each.get("token")) for each in running.told[1:]]
    assert told == [("leased", 7), ("revoking", 7), ("ended", None), ("leased", 8)]


def test_it_leaves_when_its_last_lease_has_ended(host: FakeHost, start: Start) -> None:
    running = start()
    running.await_told("leased")
    running.agent.leave()
    running.await_told("leaving")
    assert not running.has_ended
    host.leases, host.state = [], "empty"
    running.await_told("left")
    wait_for(lambda: running.has_ended, "its end")


def test_said_twice_it_goes_at_once(host: FakeHost, start: Start) -> None:
    running = start()
    running.await_told("leased")
    running.agent.leave()
    running.agent.leave()
    wait_for(lambda: running.has_ended, "its end")
    assert "left" not in {each["event"] for each in running.told}


def test_drained_by_an_operator_it_ends_and_does_not_come_back_by_itself(
    host: FakeHost, start: Start, intake: FakeIntake
) -> None:
    running = start()
    running.await_told("leased")
    host.leases, host.state = [], "empty"
    wait_for(lambda: running.has_ended, "its end")
    assert intake.verbs().count("register") == 1


def test_started_while_its_slot_still_drains_it_registers_again_when_that_is_empty(
    host: FakeHost, start: Start, intake: FakeIntake
) -> None:
    host.state = "draining"
    running = start()
    assert running.await_told("registered")["state"] == "draining"
    host.state = "empty"
    wait_for(lambda: running.told[-1].get("state") == "ready", "the second registration")
    assert intake.verbs().count("register") == 2


def test_whose_slot_was_removed_ends_with_the_refusal(host: FakeHost, start: Start) -> None:
    running = start()
    running.await_told("leased")
    host.refusal = UNKNOWN
    wait_for(lambda: running.has_ended, "its end")
    assert [error.path for error in getattr(running.error, "errors", ())] == ["slot"]


@pytest.mark.parametrize(
    ("timeout", "seconds"),
    [
        # The default: six in a timeout.
        (180.0, 30.0),
        (60.0, 10.0),
        # Never less often than every half minute.
        (3600.0, 30.0),
        (None, 30.0),
        # Never faster than it can be told from the one before.
        (0.5, 0.3),
    ],
)
def test_several_heartbeats_fit_a_timeout(timeout: float | None, seconds: float) -> None:
    assert find_beat(timeout) == seconds


def test_a_limit_of_cores_that_changes_is_no_new_lease(host: FakeHost, start: Start) -> None:
    host.leases = [{**LEASE, "cores": 2.0}]
    running = start()
    assert running.await_told("leased")["cores"] == 2
    host.leases = [{**LEASE, "cores": 1.0}]
    told = running.await_told("cores")
    assert (told["reservation"], told["component"], told["cores"]) == ("r1", "main", 1)
    assert [each["event"] for each in running.told].count("leased") == 1


def test_a_host_with_a_principal_signs_its_heartbeats_and_counts_on(
    intake: FakeIntake, redis_client: redis.Redis
) -> None:
    """Its clock may be behind: the counter is above the one that the answer to `register` states."""
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
    """So a host that starts again, or a command that sends one heartbeat, counts on without a note of the last one."""
    redis_client.set("leasehold:cluster", "c-1")
    with Client(intake.url, key=make_key(), principal="lab-1") as client:
        beat = send_heartbeat(client.hosts, redis_client, None)
        now = client._wire.clock.now()
    assert beat.counter is not None
    # Cluster time is estimated over the network: it is right to a part of the time that Redis takes to answer.
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
