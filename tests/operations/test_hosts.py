"""Static hosts: registration, heartbeats, offline and back, removal; an outage of the scheduler fails no host."""

from typing import Any

import msgspec
import pytest

from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.tick.heartbeat_intake import MOST_HINTS, choose_hints, describe_host, hear_hosts, name_version
from scheduler.operations.unit_of_work import UnitOfWork
from tests.builders import a_slot
from tests.operations.harness import CONFIG, Harness

TIMEOUT = 30.0
RULES: dict[str, Any] = {
    "pools": {
        **CONFIG["pools"],
        "lab": {"system": "lab-linux", "provider": "static", "lease_ttl": 0, "offline_timeout": TIMEOUT},
    }
}


def a_lab(*, machine: str = "m1", **reservation: Any) -> Harness:
    """Return a harness with one host and one lease on it."""
    harness = Harness(RULES)
    assert register(harness, machine=machine)["ok"]
    harness.tick()
    assert harness.ask("submit", id="r1", system="lab-linux", **reservation)["ok"]
    harness.tick()
    assert harness.phase() == "leased"
    return harness


def register(harness: Harness, slot: str = "lab-1", machine: str = "m1", **fields: Any) -> dict[str, Any]:
    return harness.ask("register", slot=slot, pool="lab", machine=machine, **fields)


def pass_time(harness: Harness, seconds: float, *beating: str, hear: bool = True) -> None:
    """Run ticks for this time. The hosts `beating` send heartbeats; with `hear` the health worker reads them."""
    end = harness.now + seconds
    while harness.now < end:
        harness.now += harness.leader.interval
        for slot in beating:
            harness.heartbeats.beat(slot, "m1")
        if hear:
            hear_hosts(harness.ports)
        harness.tick()


def test_a_host_that_registers_gets_an_answer_and_is_ready() -> None:
    harness = Harness(RULES)
    answer = register(harness, resources={"cpus": 4}, labels={"disk": "ssd"}, address="10.0.0.7")
    assert answer == {
        "ok": True,
        "slot": "lab-1",
        "state": "ready",
        "cordoned": False,
        "offline_timeout": TIMEOUT,
        "heartbeat": harness.now * 1000,
    }
    slot = harness.slot("lab-1")
    assert (slot.resources, slot.labels, slot.address) == ({"cpus": 4}, {"disk": "ssd"}, "10.0.0.7")
    assert harness.notifier.is_rung


def test_another_machine_is_refused_until_an_operator_removes_the_slot() -> None:
    harness = a_lab(restart_policy="on_failure")
    refused = register(harness, machine="m2")
    assert [error["path"] for error in refused["errors"]] == ["machine"]
    assert harness.events[-1].name == "register_refused"
    assert harness.slot("lab-1").machine == "m1"

    assert harness.ask("remove", slot="lab-1")["ok"]
    assert register(harness, machine="m2")["ok"]
    harness.tick()
    assert harness.phase() == "failed"
    harness.tick()
    assert harness.phase() == "leased"


def test_a_slot_of_an_ec2_pool_cannot_be_removed() -> None:
    harness = Harness(RULES).leased()
    refused = harness.ask("remove", slot="linux-1")
    assert [error["expected"] for error in refused["errors"]] == ["a slot of a static pool"]
    assert harness.slot("linux-1").state == "ready"


def test_a_heartbeat_keeps_a_host_online_and_changes_only_the_time() -> None:
    harness = a_lab()
    version = harness.slot("lab-1").version
    pass_time(harness, 10 * TIMEOUT, "lab-1")
    assert harness.phase() == "leased"
    assert harness.slot("lab-1").last_seen == harness.now
    assert harness.slot("lab-1").version == version


def test_a_heartbeat_keeps_a_change_of_an_operator() -> None:
    harness = a_lab()
    assert harness.ask("cordon", slot="lab-1")["ok"]
    pass_time(harness, TIMEOUT, "lab-1")
    assert harness.slot("lab-1").cordoned


@pytest.mark.parametrize(("after", "phase"), [(TIMEOUT, "leased"), (TIMEOUT + 0.5, "failed")])
def test_a_host_without_heartbeats_for_longer_than_its_timeout_is_offline(after: float, phase: str) -> None:
    harness = a_lab()
    last_seen = harness.slot("lab-1").last_seen or 0
    pass_time(harness, TIMEOUT - 5)
    harness.now = last_seen + after
    harness.tick()
    assert harness.phase() == phase


def test_an_offline_host_fails_its_lease_once_and_serves_the_restart_when_it_is_back() -> None:
    harness = a_lab(restart_policy="on_failure")
    pass_time(harness, TIMEOUT + 5)
    assert [
        (event.name, event.detail.get("reason")) for event in harness.events if event.name == "reservation_failed"
    ] == [("reservation_failed", "slot_offline")]
    pass_time(harness, TIMEOUT)
    assert harness.phase() == "pending"
    harness.heartbeats.beat("lab-1", "m1")
    harness.notifier.hear()
    assert hear_hosts(harness.ports) == 1
    assert harness.notifier.is_rung
    harness.tick()
    assert harness.phase() == "leased"


def test_a_heartbeat_of_an_online_host_requests_no_tick() -> None:
    harness = a_lab()
    harness.now += 5
    harness.heartbeats.beat("lab-1", "m1")
    harness.notifier.hear()
    assert hear_hosts(harness.ports) == 1
    assert not harness.notifier.is_rung
    assert hear_hosts(harness.ports) == 0


def test_heartbeats_of_many_hosts_are_written_in_several_transactions(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the intake and ticks can write in between."""
    harness = Harness(RULES)
    for number in range(5):
        assert register(harness, f"lab-{number}")["ok"]
    harness.now += 5
    for number in range(5):
        harness.heartbeats.beat(f"lab-{number}", "m1")
    monkeypatch.setattr("scheduler.operations.tick.heartbeat_intake.HOSTS_A_TRANSACTION", 2)
    written: list[int] = []
    flush = UnitOfWork.flush

    def count(work: UnitOfWork) -> Any:
        change_set = flush(work)
        written.append(len(change_set.rows))
        return change_set

    monkeypatch.setattr(UnitOfWork, "flush", count)
    assert hear_hosts(harness.ports) == 5
    assert written == [2, 2, 1]
    assert {harness.slot(f"lab-{number}").last_seen for number in range(5)} == {harness.now}


def test_a_heartbeat_of_another_machine_does_not_count() -> None:
    harness = a_lab(machine="m2")
    pass_time(harness, TIMEOUT + 5, "lab-1")
    assert harness.phase() == "failed"


def test_a_tick_reads_heartbeats_before_it_takes_a_host_for_offline() -> None:
    """The health queue may be full or without a worker."""
    harness = a_lab()
    pass_time(harness, 10 * TIMEOUT, "lab-1", hear=False)
    assert harness.phase() == "leased"


def test_after_an_outage_no_host_with_heartbeats_fails() -> None:
    harness = a_lab()
    harness.now += 100 * TIMEOUT
    harness.heartbeats.beat("lab-1", "m1")
    harness.now += 5
    harness.tick()
    assert harness.phase() == "leased"
    assert harness.slot("lab-1").last_seen == harness.now - 5


def test_after_an_outage_a_host_without_heartbeats_gets_one_more_timeout() -> None:
    harness = a_lab()
    harness.now += 100 * TIMEOUT
    harness.tick()
    assert harness.phase() == "leased"
    pass_time(harness, TIMEOUT)
    assert harness.phase() == "leased"
    pass_time(harness, 5)
    assert harness.phase() == "failed"


def test_after_an_outage_a_host_that_was_offline_before_stays_offline() -> None:
    harness = a_lab()
    pass_time(harness, TIMEOUT + 5)
    harness.now += 100 * TIMEOUT
    assert harness.ask("submit", id="r2", system="lab-linux")["ok"]
    harness.tick()
    assert harness.phase("r2") == "pending"


def test_heartbeats_that_redis_lost_do_not_make_a_host_offline() -> None:
    """Redis was down for longer than the timeout of the host, but not as long as an outage of the scheduler."""
    harness = Harness({"pools": {"lab": {**RULES["pools"]["lab"], "offline_timeout": 10}}})
    register(harness)
    harness.tick()
    assert harness.ask("submit", id="r1", system="lab-linux")["ok"]
    harness.tick()
    harness.now += 20
    harness.heartbeats.forget()
    harness.tick()
    assert harness.phase() == "leased"
    pass_time(harness, 10)
    assert harness.phase() == "leased"
    pass_time(harness, 5)
    assert harness.phase() == "failed"


def test_after_a_flush_a_host_that_was_offline_before_stays_offline() -> None:
    harness = a_lab()
    pass_time(harness, TIMEOUT + 5)
    harness.heartbeats.forget()
    assert harness.ask("submit", id="r2", system="lab-linux")["ok"]
    harness.tick()
    assert harness.phase("r2") == "pending"


def test_a_host_reads_its_leases_and_gets_a_hint_when_they_change() -> None:
    harness = a_lab()
    answer = describe_host(harness.ports, "lab-1", "m1")
    (lease,) = answer.pop("leases")
    assert answer == {
        "slot": "lab-1",
        "state": "ready",
        "cordoned": False,
        "offline_timeout": TIMEOUT,
        "version": name_version(harness.slot("lab-1"), TIMEOUT),
    }
    assert (lease["reservation"], lease["component"], lease["token"]) == ("r1", "main", harness.token())
    pushed = len(harness.notifier.news)
    assert pushed == 2
    harness.ask("release", reservation="r1", token=harness.token())
    assert harness.notifier.news[pushed:] == [("lab-1", {"slot": "lab-1", "state": "ready", "cordoned": False})]
    assert describe_host(harness.ports, "lab-1", "m1")["leases"] == []


class Observer:
    """A host that reads its leases after every step, with the answers and their versions."""

    def __init__(self, harness: Harness) -> None:
        self.harness = harness
        self.seen = [self.read()]

    def read(self) -> tuple[str, Any]:
        """Return (version, the other fields of the answer)."""
        answer = describe_host(self.harness.ports, "lab-1", "m1")
        return answer.pop("version"), answer

    def expect_change(self, step: str) -> None:
        """Check that the answer and its version changed, and that the host got a hint."""
        version, answer = self.read()
        assert answer != self.seen[-1][1], f"{step} does not change the answer to the host"
        assert version not in {each for each, _ in self.seen}, f"{step} leaves the version as it is"
        assert self.harness.notifier.news, f"{step} is not pushed to the host"
        self.harness.notifier.news.clear()
        self.seen.append((version, answer))


def test_every_change_of_a_hosts_leases_or_slot_changes_the_version() -> None:
    """So a host whose heartbeats name the version needs no polling."""
    lab = {**RULES["pools"]["lab"], "max_leases_per_slot": 4, "resources": {"cpus": 8}}
    harness = Harness({"pools": {**RULES["pools"], "lab": lab}})
    assert register(harness, resources={"cpus": 8})["ok"]
    observer = Observer(harness)
    harness.ask("submit", id="r1", system="lab-linux", resources={"cpus": 1})
    harness.tick()
    observer.expect_change("a lease")
    harness.ask("submit", id="r2", system="lab-linux", resources={"cpus": 1})
    harness.tick()
    harness.tick()
    observer.expect_change("another lease, and less spare cores for the first")
    for verb in ("cordon", "uncordon"):
        harness.ask(verb, slot="lab-1")
        observer.expect_change(verb)
    harness.ask("release", reservation="r1", token=harness.token("r1"))
    observer.expect_change("the end of a lease")
    harness.ask("leave", slot="lab-1", machine="m1")
    observer.expect_change("a drain")


def test_a_revoked_lease_changes_the_version() -> None:
    """The version changes although nothing else of the slot does."""
    harness = a_lab()
    version = describe_host(harness.ports, "lab-1", "m1")["version"]
    with harness.store.transaction() as transaction:
        work = UnitOfWork(transaction, "tick", 1)
        work.load(reservations=["r1"])
        row = work.reservations["r1"]
        leases = tuple(
            msgspec.structs.replace(each, state="revoking", revoke_by=harness.now + 30) for each in row.leases
        )
        work.move_reservation(row, "revoking", reason="slot_interrupted", leases=leases)
        change_set = work.flush()
    answer = describe_host(harness.ports, "lab-1", "m1")
    assert [lease["state"] for lease in answer["leases"]] == ["revoking"]
    assert answer["version"] != version
    assert [slot.id for slot in change_set.hosts] == ["lab-1"]


def test_renewals_and_heartbeats_do_not_change_the_version_of_a_host() -> None:
    harness = a_lab()
    version = describe_host(harness.ports, "lab-1", "m1")["version"]
    harness.ask("renew", reservation="r1", token=harness.token())
    pass_time(harness, TIMEOUT, "lab-1")
    assert describe_host(harness.ports, "lab-1", "m1")["version"] == version


@pytest.mark.parametrize(
    ("version", "hints"),
    [
        # The current version.
        (None, 0),
        ("0:0:30", 1),
        ("of another release", 1),
    ],
)
def test_a_host_gets_hints_while_its_heartbeat_names_an_old_version(version: str | None, hints: int) -> None:
    harness = a_lab()
    harness.heartbeats.beat("lab-1", "m1", version or describe_host(harness.ports, "lab-1", "m1")["version"])
    pushed = len(harness.notifier.news)
    for _ in range(2):
        hear_hosts(harness.ports)
    assert len(harness.notifier.news) - pushed == 2 * hints


def test_a_host_without_a_version_in_its_heartbeat_gets_no_hint() -> None:
    """Such a host polls every few seconds."""
    harness = a_lab()
    harness.heartbeats.beat("lab-1", "m1")
    pushed = len(harness.notifier.news)
    hear_hosts(harness.ports)
    assert len(harness.notifier.news) == pushed


def test_an_offline_host_gets_no_hint() -> None:
    harness = a_lab()
    harness.heartbeats.beat("lab-1", "m1", "0:0:30")
    harness.now += TIMEOUT + 1
    pushed = len(harness.notifier.news)
    hear_hosts(harness.ports)
    assert len(harness.notifier.news) == pushed


def test_hosts_get_a_hint_when_the_rules_change() -> None:
    harness = a_lab()
    harness.heartbeats.beat("lab-1", "m1", describe_host(harness.ports, "lab-1", "m1")["version"])
    apply_rules(harness.ports, {"pools": {**RULES["pools"], "lab": {**RULES["pools"]["lab"], "offline_timeout": 10}}})
    pushed = len(harness.notifier.news)
    hear_hosts(harness.ports)
    assert len(harness.notifier.news) == pushed + 1


def test_many_hosts_with_old_versions_get_hints_in_turns() -> None:
    """A host reads its leases at once when it gets a hint. Hosts that never react do not delay the hints of others."""
    behind = [a_slot(f"lab-{number}") for number in range(5 * MOST_HINTS)]
    turns = [choose_hints(behind, 1_000_000.0 + 2 * run) for run in range(60)]
    assert {len(turn) for turn in turns} == {MOST_HINTS}
    assert {slot.id for turn in turns for slot in turn} == {slot.id for slot in behind}


@pytest.mark.parametrize(("slot", "machine", "path"), [("lab-2", "m1", "slot"), ("lab-1", "m2", "machine")])
def test_another_machine_or_slot_is_refused(slot: str, machine: str, path: str) -> None:
    with pytest.raises(CommandRefused) as caught:
        describe_host(a_lab().ports, slot, machine)
    assert caught.value.fault.path == path


BEAT = TIMEOUT / 6


def beat(harness: Harness, run: str) -> None:
    """Send a heartbeat of this run of the agent of lab-1."""
    harness.heartbeats.beat("lab-1", "m1", run=run)


def paths(answer: dict[str, Any]) -> list[tuple[str, str]]:
    return [(error["path"], error["code"]) for error in answer.get("errors", [])]


def refusals(harness: Harness) -> list[dict[str, Any]]:
    return [event.detail for event in harness.events if event.name == "register_refused"]


def two_agents() -> Harness:
    """Return a harness in which one agent runs, and another one of the same machine has asked once."""
    harness = Harness(RULES)
    assert register(harness, run="a-1", resources={"cpus": 4})["run"] == "a-1"
    # Both were started at once: the first has not sent a heartbeat yet.
    assert paths(register(harness, run="b-1", resources={"cpus": 16})) == [("run", "conflict")]
    assert not refusals(harness)
    return harness


def test_of_two_live_agents_of_one_machine_the_second_is_refused() -> None:
    harness = two_agents()
    harness.now += 1
    beat(harness, "a-1")
    answer = register(harness, run="b-1", resources={"cpus": 16}, waited=1.5)
    assert paths(answer) == [("machine", "conflict")]
    assert refusals(harness) == [{"pool": "lab", "machine": "m1", "reason": "two live agents"}]
    assert (harness.slot("lab-1").resources, harness.slot("lab-1").run) == ({"cpus": 4}, "a-1")
    assert harness.ask("leave", slot="lab-1", machine="m1", run="b-1")["errors"][0]["path"] == "run"
    assert harness.slot("lab-1").state == "ready"


@pytest.mark.parametrize("is_heard", [True, False])
def test_an_agent_that_was_started_again_is_accepted_within_three_heartbeats_and_keeps_its_leases(
    is_heard: bool,
) -> None:
    """Also if Redis lost the last heartbeat."""
    harness = two_agents()
    harness.tick()
    assert harness.ask("submit", id="r1", system="lab-linux")["ok"]
    harness.tick()
    if is_heard:
        beat(harness, "a-1")
    harness.now += 0.5
    begin = harness.now
    assert paths(register(harness, run="a-2", waited=0.5)) == [("run", "conflict")]
    harness.now = begin + 2.1 * BEAT
    assert register(harness, run="a-2", waited=2.1 * BEAT)["run"] == "a-2"
    assert not refusals(harness)
    assert [lease["reservation"] for lease in describe_host(harness.ports, "lab-1", "m1", "a-2")["leases"]] == ["r1"]
    # The earlier one gets no leases, should it still run.
    with pytest.raises(CommandRefused, match="run"):
        describe_host(harness.ports, "lab-1", "m1", "a-1")


def test_the_silent_earlier_agent_is_not_heard_after_another_one_has_taken_its_place() -> None:
    harness = two_agents()
    harness.now += 2.1 * BEAT
    assert register(harness, run="b-1", waited=2.1 * BEAT)["ok"]
    beat(harness, "b-1")
    harness.now += 5
    hear_hosts(harness.ports)
    seen = harness.slot("lab-1").last_seen
    beat(harness, "a-1")
    hear_hosts(harness.ports)
    assert harness.slot("lab-1").last_seen == seen


@pytest.mark.parametrize(("old", "new"), [(None, "b-1"), ("a-1", None)])
def test_an_agent_of_an_earlier_version_counts_as_another_one(old: str | None, new: str | None) -> None:
    """Agents of earlier versions send no id of their run."""
    harness = Harness(RULES)
    first = {} if old is None else {"run": old}
    second = {} if new is None else {"run": new}
    assert register(harness, **first).get("run") == old
    harness.heartbeats.beat("lab-1", "m1", run=old)
    assert paths(register(harness, **second)) == [("run", "conflict")]
    assert register(harness, **first)["ok"]
    harness.now += 2.1 * BEAT
    assert register(harness, **second).get("run") == new


def test_the_heartbeats_of_an_agent_that_an_earlier_version_registered_count() -> None:
    """A worker of an earlier version leaves the run of the slot as it was."""
    harness = two_agents()
    beat(harness, "a-1")
    harness.now += 70
    harness.heartbeats.beat("lab-1", "m1")
    hear_hosts(harness.ports)
    assert harness.slot("lab-1").last_seen == harness.now


def test_a_drained_slot_takes_another_agent_at_once() -> None:
    harness = two_agents()
    beat(harness, "a-1")
    assert harness.ask("leave", slot="lab-1", machine="m1", run="a-1")["ok"]
    harness.tick()
    assert harness.slot("lab-1").state == "empty"
    assert register(harness, run="b-1")["run"] == "b-1"
