"""Static hosts on real processes: agents, workers, Redis and SQLite. Hosts and workers are stopped."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from leasehold.doctor.rules import judge_hosts
from scheduler.ports import EventFilter
from testbed.processes import Process, wait_for
from testbed.stack import Stack, a_pool
from tests.system.conftest import RULES

pytestmark = pytest.mark.timeout(240)
TIMEOUT = 4.0
LAB: dict[str, Any] = a_pool(system="lab-linux", provider="static", offline_timeout=TIMEOUT)
for _key in ("max_slots", "idle_scale_down", "ec2"):
    del LAB[_key]
FLOOD = 50
"""Messages in the queue, of a hundred documents each."""


@pytest.fixture(scope="module")
def lab(stack: Stack) -> Iterator[Stack]:
    """The stack with a static pool."""
    stack.apply({"pools": {**RULES["pools"], "lab": LAB}})
    yield stack
    stack.apply(RULES)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """The slot of the host; each test has its own."""
    return str(request.node.name).removeprefix("test_")


@pytest.fixture
def host(lab: Stack, name: str) -> Iterator[Process]:
    """An agent that has registered. Its slot is removed afterwards."""
    agent = start_agent(lab, name)
    wait_for(lambda: find_slot(lab, name), "the host")
    yield agent
    if agent.is_alive:
        agent.kill()
    del lab.processes[agent.name]
    assert lab.ask("remove", {"slot": name})["ok"]
    assert find_slot(lab, name) is None


def start_agent(lab: Stack, slot: str, machine: str = "m1", cpus: int = 4, label: str = "") -> Process:
    """Start the agent as an operator does. `label`: a part of the name of the process."""
    arguments = f"leasehold.cli host run {slot} --pool lab --machine {machine} --cpus {cpus} --json".split()
    arguments += ["--state", str(lab.folder / "host-state")]
    return lab.start(f"agent-{slot}-{machine}{label}", *arguments)


def list_records(agent: Process, event: str) -> list[dict[str, Any]]:
    """Return the agent's log records of this kind."""
    lines = [json.loads(line) for line in agent.read_log(100_000).splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


def find_slot(lab: Stack, name: str) -> Any:
    """Return the row of the slot, or None."""
    return next((slot for slot in lab.slots("lab") if slot.id == name), None)


def reserve(lab: Stack, name: str, **fields: Any) -> None:
    """Submit a reservation for one CPU in the pool `lab`, without a ttl."""
    assert lab.ask("submit", {"id": name, "pool": "lab", "resources": {"cpus": 1}, "ttl": 0, **fields})["ok"]


def event_names(lab: Stack, name: str) -> list[str]:
    """Return the events of a reservation, without changes of its core limit."""
    events = lab.services.ports.store.read_events(EventFilter(reservation=name))
    return [event.name.removeprefix("reservation_") for event in events if event.name != "reservation_cores"]


def test_a_host_registers_is_offline_returns_and_leaves(lab: Stack, host: Process, name: str) -> None:
    """A host gets a lease by a push, is stopped for longer than its timeout, comes back and leaves."""
    slot = find_slot(lab, name)
    assert (slot.state, slot.machine, slot.resources["cpus"]) == ("ready", "m1", 4)
    reserve(lab, "life-1", restart_policy="on_failure")
    lab.await_phase(["life-1"], "leased")
    (lease,) = wait_for(lambda: list_records(host, "leased"), "the push")
    assert (lease["reservation"], lease["token"]) == ("life-1", lab.find("life-1").token)

    os.kill(host.pid, signal.SIGSTOP)
    # The reservation fails, is restarted and waits, because there is no other host.
    lab.await_phase(["life-1"], "pending")
    assert event_names(lab, "life-1") == ["submitted", "leased", "failed", "pending"]
    assert find_slot(lab, name).state == "ready"

    os.kill(host.pid, signal.SIGCONT)
    lab.await_phase(["life-1"], "leased")
    wait_for(lambda: len(list_records(host, "leased")) == 2, "the second lease")

    host.ask_to_end()
    wait_for(lambda: find_slot(lab, name).state == "draining", "the slot to drain")
    row = lab.find("life-1")
    assert lab.ask("release", {"reservation": row.id, "token": row.token})["ok"]
    wait_for(lambda: host.has_succeeded, "the agent's end")
    assert find_slot(lab, name).state == "empty"


def test_another_machine_under_the_same_name_is_refused(lab: Stack, host: Process, name: str) -> None:
    other = start_agent(lab, name, "m2")
    wait_for(lambda: not other.is_alive, "the second agent's end")
    del lab.processes[other.name]
    expected = f"expected the machine that {name} belongs to (an operator can remove the slot)"
    assert other.read_log().splitlines() == [f'leasehold: machine: {expected}, got "m2"']
    assert find_slot(lab, name).machine == "m1"
    assert host.is_alive


def list_refusals(lab: Stack, slot: str) -> list[str]:
    """Return the reasons of the refused registrations of this slot."""
    events = lab.services.ports.store.read_events(EventFilter(name="register_refused", slot=slot))
    return [str(event.detail.get("reason")) for event in events]


def test_of_two_agents_with_one_identity_one_serves_and_the_other_ends(lab: Stack, name: str) -> None:
    """As on two machines that were cloned with their machine-id and host name."""
    agents = {cpus: start_agent(lab, name, cpus=cpus, label=f"-{cpus}") for cpus in (4, 16)}
    wait_for(lambda: sum(each.is_alive for each in agents.values()) == 1, "the end of one agent")
    (loser,) = [cpus for cpus, each in agents.items() if not each.is_alive]
    served = agents.pop(4 if loser == 16 else 16)
    assert "machine: expected an id that no other live agent has" in agents[loser].read_log().splitlines()[-1]
    assert not agents[loser].has_succeeded
    assert find_slot(lab, name).resources["cpus"] == 20 - loser
    assert list_refusals(lab, name) == ["two live agents"]
    store = lab.services.ports.store
    finding = judge_hosts(store.read_events(EventFilter(name="register_refused")), store.now())
    assert (finding.outcome, f"{name} (machine m1)" in finding.text) == ("warning", True)

    reserve(lab, "clone-1")
    lab.await_phase(["clone-1"], "leased")
    wait_for(lambda: list_records(served, "leased"), "the lease")
    # The lease stays where it is when a further one asks.
    third = start_agent(lab, name, cpus=16, label="-third")
    wait_for(lambda: not third.is_alive, "the end of the third agent")
    assert list_records(third, "leased") == list_records(agents[loser], "leased") == []
    assert find_slot(lab, name).state == "ready"
    release(lab, "clone-1")
    served.kill()
    for each in (served, third, agents[loser]):
        del lab.processes[each.name]
    assert lab.ask("remove", {"slot": name})["ok"]


def test_an_agent_that_was_killed_is_accepted_again(lab: Stack, host: Process, name: str) -> None:
    host.kill()
    again = start_agent(lab, name, label="-again")
    wait_for(lambda: list_records(again, "registered"), "the registration")
    assert list_refusals(lab, name) == []
    again.kill()
    del lab.processes[again.name]


def test_an_agent_that_was_stopped_ends_when_another_one_has_taken_its_place(
    lab: Stack, host: Process, name: str
) -> None:
    reserve(lab, "stopped-1")
    lab.await_phase(["stopped-1"], "leased")
    wait_for(lambda: list_records(host, "leased"), "the lease")
    os.kill(host.pid, signal.SIGSTOP)
    again = start_agent(lab, name, label="-again")
    wait_for(lambda: list_records(again, "leased"), "the lease")
    os.kill(host.pid, signal.SIGCONT)
    wait_for(lambda: not host.is_alive, "the end of the first agent")
    assert "run: expected" in host.read_log().splitlines()[-1]
    assert again.is_alive
    release(lab, "stopped-1")
    again.kill()
    del lab.processes[again.name]


def test_an_outage_of_the_schedulers_fails_no_host(lab: Stack, host: Process, name: str) -> None:
    """The scheduler and the reader of heartbeats are down for longer than the timeout of hosts."""
    reserve(lab, "outage-1")
    lab.await_phase(["outage-1"], "leased")
    slot = find_slot(lab, name)
    down = ("ticks", "health")
    for queue in down:
        lab.processes[queue].stop()
    last_seen = find_slot(lab, slot.id).last_seen
    wait_for(lambda: lab.services.ports.store.now() > last_seen + 2 * TIMEOUT, "twice the timeout")
    assert find_slot(lab, slot.id).last_seen == last_seen
    before = lab.services.ports.store.load_leader_term().ticked_at
    for queue in down:
        lab.processes[queue].start()
    for queue in down:
        lab.await_canary(queue)
    wait_for(lambda: lab.services.ports.store.load_leader_term().ticked_at > before + 2, "ticks")
    assert event_names(lab, "outage-1") == ["submitted", "leased"]
    assert host.is_alive
    release(lab, "outage-1")


def test_a_full_queue_does_not_make_a_host_offline(lab: Stack, host: Process, name: str) -> None:
    """No worker takes requests, and thousands wait. The heartbeats of the host still count, for several timeouts."""
    reserve(lab, "flood-1")
    lab.await_phase(["flood-1"], "leased")
    slot = find_slot(lab, name)
    lab.processes["reservations"].stop()
    for _ in range(FLOOD):
        lab.send("renew", {"request": "flood", "items": [{"reservation": "unknown"}] * 100})
    wait_for(lambda: find_slot(lab, slot.id).last_seen > slot.last_seen + 2 * TIMEOUT, "heartbeats to be recorded")
    assert event_names(lab, "flood-1") == ["submitted", "leased"]
    lab.processes["reservations"].start()
    lab.await_canary("reservations")
    assert host.is_alive
    release(lab, "flood-1")


def test_a_flushed_redis_fails_no_host(lab: Stack, host: Process, name: str) -> None:
    reserve(lab, "on-a-flushed-redis")
    lab.await_phase(["on-a-flushed-redis"], "leased")
    slot = find_slot(lab, name)
    lab.redis.flushall()
    wait_for(lambda: find_slot(lab, slot.id).last_seen > slot.last_seen + 2 * TIMEOUT, "heartbeats to be recorded")
    assert event_names(lab, "on-a-flushed-redis") == ["submitted", "leased"]
    assert host.is_alive
    release(lab, "on-a-flushed-redis")


def start_work(lab: Stack, slot: str, name: str) -> Process:
    """Start a process of this lease that sleeps, as its holder does."""
    arguments = f"leasehold.cli host exec {name} --slot {slot} --machine m1".split()
    return lab.start(f"work-of-{name}", *arguments, "--state", str(lab.folder / "host-state"), "--", "sleep", "600")


def await_cores(agent: Process, work: Process, name: str, cores: float, cpus: set[int]) -> None:
    """Wait until the agent reports this limit and the process may run on exactly these CPUs."""

    def is_limited() -> bool:
        known = [each["cores"] for each in list_records(agent, "limited") if each["reservation"] == name]
        return known[-1:] == [cores] and os.sched_getaffinity(work.pid) == cpus

    wait_for(is_limited, f"{cores} cores for {name}")


def test_the_limit_of_cores_follows_the_leases_of_the_host(lab: Stack, name: str) -> None:
    """A lease of one CPU may use both CPUs of the host while it is alone, and one while there is a second lease."""
    allowed = sorted(os.sched_getaffinity(0))
    first, second = {allowed[0]}, {allowed[1 % len(allowed)]}
    agent = start_agent(lab, name, cpus=2)
    wait_for(lambda: find_slot(lab, name), "the host")
    reserve(lab, "cores-1")
    lab.await_phase(["cores-1"], "leased")
    work = start_work(lab, name, "cores-1")
    await_cores(agent, work, "cores-1", 2, first | second)

    reserve(lab, "cores-2")
    lab.await_phase(["cores-2"], "leased")
    other = start_work(lab, name, "cores-2")
    await_cores(agent, work, "cores-1", 1, first)
    await_cores(agent, other, "cores-2", 1, second)

    release(lab, "cores-2")
    await_cores(agent, work, "cores-1", 2, first | second)
    wait_for(lambda: os.sched_getaffinity(other.pid) == set(allowed), "no limit without a lease")
    release(lab, "cores-1")
    for process in (agent, work, other):
        process.kill()
        del lab.processes[process.name]
    assert lab.ask("remove", {"slot": name})["ok"]


def release(lab: Stack, name: str) -> None:
    """Release the reservation as its holder does."""
    assert lab.ask("release", {"reservation": name, "token": lab.find(name).token})["ok"]
