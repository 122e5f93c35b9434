"""A static host and an EC2 pool serve one queue of requests that fit on both, while the host or EC2 fails."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any
from urllib.request import Request, urlopen

import pytest

from scheduler.model.launch_backoff import Hold
from testbed.processes import Process, wait_for
from testbed.stack import Stack, a_pool
from tests.system.conftest import RULES

OFFERING = "m5.xlarge"
HOLD_SECONDS = 5.0
SYSTEM = "mixed"
POOLS: dict[str, Any] = {
    "mixed-lab": {"system": SYSTEM, "provider": "static", "offline_timeout": 4, "max_leases_per_slot": 9},
    "mixed-cloud": a_pool(
        system=SYSTEM,
        max_slots=3,
        idle_scale_down=60,
        quota_hold=HOLD_SECONDS,
        capacity_hold=HOLD_SECONDS,
        offerings=[{"name": OFFERING, "price": 1, "resources": {"cpus": 4}}],
    ),
}
NAMES = [f"mixed-{number}" for number in range(6)]
CLOUD = {f"mixed-cloud-{number}" for number in (1, 2, 3)}


@pytest.fixture
def mixed(stack: Stack) -> Iterator[Stack]:
    """The stack with both pools. They are removed afterwards, and EC2 refuses nothing."""
    stack.apply({"pools": {**RULES["pools"], **POOLS}})
    yield stack
    refuse(stack, None)
    stack.ask("cancel", {"items": [{"reservation": name} for name in NAMES]})
    stack.ask("drain", {"items": [{"slot": slot.id} for slot in stack.slots("mixed-cloud")]})
    stack.await_empty("mixed-cloud")
    stack.ask("remove", {"slot": "mixed-host"})
    stack.apply(RULES)


@pytest.fixture
def host(mixed: Stack) -> Iterator[Process]:
    """A static host of four CPUs, registered by its agent."""
    arguments = "leasehold.cli host run mixed-host --pool mixed-lab --machine m1 --cpus 4 --json"
    agent = mixed.start("agent-mixed", *arguments.split())
    wait_for(lambda: mixed.slots("mixed-lab"), "the host")
    yield agent
    agent.kill()
    del mixed.processes[agent.name]


def refuse(stack: Stack, code: str | None) -> None:
    """Let EC2 refuse every launch with this code from now on; None: refuse nothing."""
    faults = [{"code": code, "status": 400, "type": OFFERING}] if code else []
    url = f"{stack.emulator_url}/_leasehold/faults"
    with urlopen(Request(url, data=json.dumps(faults).encode(), method="PUT"), timeout=10) as answer:  # noqa: S310 (loopback)
        assert answer.status == 200


def await_waiting(stack: Stack, code: str, count: int) -> None:
    """Wait until exactly `count` reservations of this test wait, all with this code."""

    def look() -> bool:
        waiting = stack.services.ports.view_cache.read_report().get("waiting", {})
        return [waiting[name][0] for name in NAMES if name in waiting] == [code] * count

    wait_for(look, f"{count} reservations with the waiting code {code}")


def submit(stack: Stack, names: list[str]) -> None:
    """Submit reservations of two CPUs, which fit on the host and on EC2."""
    requests = [{"id": name, "system": SYSTEM, "resources": {"cpus": 2}, "ttl": 0} for name in names]
    assert stack.ask("submit", {"items": [{**each, "restart_policy": "on_failure"} for each in requests]})["ok"]


def find_hold(stack: Stack, kind: str) -> Hold:
    """Return the launch back-off of this kind, after the launches under way have been answered."""
    wait_for(lambda: not [slot for slot in stack.slots("mixed-cloud") if slot.state == "launching"], "the answers")
    rows = stack.services.ports.store.read_rows()
    return next(row for row in rows if isinstance(row, Hold) and row.kind == kind and row.pool == "mixed-cloud")


def restart_scheduler(stack: Stack, kind: str, code: str | None) -> Hold:
    """Restart the scheduler and let EC2 refuse with this code; return the back-off that held before."""
    store, ticks = stack.services.ports.store, stack.processes["ticks"]
    ticks.stop()
    held, term = find_hold(stack, kind), store.load_leader_term().term
    refuse(stack, code)
    ticks.start()
    stack.await_canary("ticks")
    wait_for(lambda: store.load_leader_term().term > term, "a new term")
    return held


def slots_of(stack: Stack, names: list[str]) -> set[str]:
    """Return the slots with leases of these reservations."""
    return {lease.slot for row in stack.services.ports.store.find_reservations(ids=names) for lease in row.leases}


@pytest.mark.timeout(300)
def test_a_host_and_ec2_serve_one_queue_and_all_reservations_are_leased_in_the_end(mixed: Stack, host: Process) -> None:
    submit(mixed, NAMES[:4])
    mixed.await_phase(NAMES[:4], "leased")
    assert slots_of(mixed, NAMES[:4]) == {"mixed-host", "mixed-cloud-1"}

    refuse(mixed, "VcpuLimitExceeded")
    submit(mixed, NAMES[4:])
    await_waiting(mixed, "at_quota", 2)
    os.kill(host.pid, signal.SIGSTOP)
    await_waiting(mixed, "at_quota", 4)
    by_quota = restart_scheduler(mixed, "quota", "InsufficientInstanceCapacity")
    await_waiting(mixed, "capacity", 4)
    by_capacity = restart_scheduler(mixed, "capacity", None)

    mixed.await_phase(NAMES, "leased")
    assert slots_of(mixed, NAMES) == CLOUD
    calls = [call["time"] for call in mixed.calls("RunInstances")]
    for held in (by_quota, by_capacity):
        assert not [time for time in calls if held.refused_at < time < held.until]
    for name in NAMES:
        assert mixed.ask("release", {"reservation": name, "token": mixed.find(name).token})["ok"]

    silent_until = mixed.slots("mixed-lab")[0].last_seen or 0
    os.kill(host.pid, signal.SIGCONT)
    wait_for(lambda: (mixed.slots("mixed-lab")[0].last_seen or 0) > silent_until, "the host to be back")
