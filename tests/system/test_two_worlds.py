"""The same script on the simulator and on real processes gives the same state after each step."""

import json
import os
import signal
from typing import Any
from urllib.request import Request, urlopen

import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.model.slots import Slot
from scheduler.ports import EventFilter
from testbed.processes import wait_for
from testbed.stack import Stack
from tests.system.conftest import RULES
from tests.system.two_worlds import (
    CONFIG,
    HOST,
    HOST_CPUS,
    HOST_LABELS,
    LAB,
    LARGE,
    OFFLINE_SECONDS,
    POOL,
    SMALL,
    Script,
    Snapshot,
    generate,
)

SEED, LENGTH = 17, 38
POOLS = (POOL, LAB)
AGENT = "agent-worlds"
ENDS = frozenset({"reservation_released", "reservation_cancelled", "reservation_expired", "reservation_failed"})


@pytest.fixture(scope="module")
def script() -> Script:
    """The results of the simulator, for a script with some of every kind of step."""
    found = generate(SEED, LENGTH)
    kinds = {next(iter(step)) for step in found.steps}
    assert kinds >= {"submit", "release", "cancel", "renew", "drain", "outage", "calm", "interrupt", "lose"}
    assert kinds >= {"cordon", "uncordon", "register", "silence", "return", "leave"}
    assert found.revoked
    assert len(found.launches) >= 3
    assert set(found.offered.values()) == {SMALL, LARGE}
    assert list_restarted(found)
    return found


def list_restarted(script: Script) -> set[str]:
    """Return the reservations that were restarted after their host went offline."""
    found = set()
    for step, before, after in zip(script.steps[1:], script.snapshots, script.snapshots[1:], strict=False):
        if "silence" in step:
            lost = {name for name, (_, slots) in before.reservations.items() if HOST in slots}
            found |= {name for name in lost if after.reservations[name][0] != "failed"}
    return found


@pytest.mark.timeout(300)
def test_a_script_gives_the_same_states_on_the_simulator_and_on_real_processes(stack: Stack, script: Script) -> None:
    """The leases, the launched slots and the ends of reservations are equal, in the same order."""
    stack.apply({**CONFIG, "pools": {**RULES["pools"], **CONFIG["pools"]}})
    names = {each["id"] for step in script.steps for each in step.get("submit", [])}
    for number, (step, expected) in enumerate(zip(script.steps, script.snapshots, strict=True)):
        _act(stack, step)
        _await(stack, names, expected, f"step {number}: {step}")
    slots = {slot.id for slot in _slots(stack)}
    live = [event for event in _events(stack) if event.slot in slots or event.reservation in names]
    assert [event.slot for event in live if event.name == "slot_booting"] == script.launches
    ends = [(event.reservation, event.name.removeprefix("reservation_")) for event in live if event.name in ENDS]
    assert ends == script.ends
    assert [event.reservation for event in live if event.name == "reservation_revoking"] == script.revoked
    _clear(stack, names)


def _act(stack: Stack, step: dict[str, Any]) -> None:
    (kind, value), *_ = step.items()
    match kind:
        case "submit":
            assert stack.ask("submit", {"items": value})["ok"]
        case "outage":
            _set_faults(stack, [{"code": "InsufficientInstanceCapacity", "status": 400, "type": value}])
        case "calm":
            _set_faults(stack, [])
            # A step takes longer in the simulator, so its back-offs have ended by now; wait for the real ones.
            wait_for(lambda: not _holds(stack), "the end of all holds")
        case "register" | "silence" | "return" | "leave":
            _act_as_host(stack, kind)
        case "interrupt":
            _end_machine(stack, value["slot"], "interrupt", deadline=value["deadline"])
        case "lose":
            _end_machine(stack, value, "lose")
        case "drain" | "cordon" | "uncordon":
            assert stack.ask(kind, {"slot": value})["ok"]
        case _:
            # For an ended reservation the stack refuses the request and the simulator ignores it.
            row = stack.find(value)
            stack.ask(kind, {"reservation": value} | ({"token": row.token} if kind != "cancel" and row.token else {}))


def _act_as_host(stack: Stack, kind: str) -> None:
    """Start the agent of the host, stop it (as if its network failed), continue it, or end it."""
    match kind:
        case "register":
            options = f"--pool {LAB} --machine m1 --cpus {HOST_CPUS} --label disk={HOST_LABELS['disk']} --json"
            _await_agent_gone(stack)
            stack.start(AGENT, "leasehold.cli", "host", "run", HOST, *options.split())
            wait_for(lambda: _heard(stack), "the host")
        case "silence":
            os.kill(stack.processes[AGENT].pid, signal.SIGSTOP)
            wait_for(lambda: stack.services.ports.store.now() > _heard(stack) + OFFLINE_SECONDS, "the host's timeout")
        case "return":
            before = _heard(stack)
            os.kill(stack.processes[AGENT].pid, signal.SIGCONT)
            wait_for(lambda: _heard(stack) > before, "the host to be heard")
        case _:
            stack.processes[AGENT].ask_to_end()


def _await_agent_gone(stack: Stack) -> None:
    """Wait until the previous agent has ended; that is a little later than its slot is empty."""
    agent = stack.processes.get(AGENT)
    if agent is not None:
        wait_for(lambda: agent.has_succeeded, "the end of the agent that left")


def _heard(stack: Stack) -> float:
    """Return the time of the last heartbeat in the view; 0 before the host has registered."""
    view = stack.services.ports.view_cache.load()
    slot = None if view is None else view.slots.get(HOST)
    return (slot.last_seen or 0.0) if slot else 0.0


def _holds(stack: Stack) -> list[Hold]:
    now = stack.services.ports.store.now()
    rows = stack.services.ports.store.read_rows()
    return [row for row in rows if isinstance(row, Hold) and row.pool == POOL and row.until > now]


def _end_machine(stack: Stack, name: str, how: str, **more: Any) -> None:
    """Let EC2 end the machine of this slot, if there is one, and wait until the slot has no machine or another one."""
    machine = _machine_of(stack, name)
    if machine is not None:
        stack.let_happen(how, machine, **more)
        wait_for(lambda: _machine_of(stack, name) != machine, f"the end of {machine} on {name}")


def _machine_of(stack: Stack, name: str) -> str | None:
    return next((slot.instance_id for slot in stack.slots(POOL) if slot.id == name), None)


def _await(stack: Stack, names: set[str], expected: Snapshot, what: str) -> None:
    """Wait until the stack is in the simulated state; fail with both states if that takes too long."""
    found: list[Snapshot] = []

    def look() -> bool:
        found[:] = [_snapshot(stack, names)]
        return found[0] == expected

    try:
        wait_for(look, what, 30)
    except AssertionError:
        assert found[0] == expected, what
        raise


def _snapshot(stack: Stack, names: set[str]) -> Snapshot:
    rows = stack.services.ports.store.find_reservations(ids=sorted(names), limit=len(names))
    return Snapshot(
        {row.id: (row.phase, tuple(lease.slot for lease in row.leases)) for row in rows},
        {slot.id: slot.offering for slot in _slots(stack) if slot.state != "empty"},
    )


def _slots(stack: Stack) -> list[Slot]:
    return [slot for pool in POOLS for slot in stack.slots(pool)]


def _events(stack: Stack) -> list[Any]:
    found, after = [], 0
    while events := stack.services.ports.store.read_events(EventFilter(after=after)):
        found += events
        after = events[-1].number
    return found


def _set_faults(stack: Stack, faults: list[dict[str, Any]]) -> None:
    data = json.dumps(faults).encode()
    request = Request(f"{stack.emulator_url}/_leasehold/faults", data=data, method="PUT")  # noqa: S310 (loopback)
    with urlopen(request, timeout=10) as answer:  # noqa: S310 (as above)
        assert answer.status == 200


def _clear(stack: Stack, names: set[str]) -> None:
    _set_faults(stack, [])
    for name in sorted(names):
        stack.ask("cancel", {"reservation": name})
    for slot in stack.slots(POOL):
        stack.ask("drain", {"slot": slot.id})
    stack.await_empty(POOL)
    stack.processes.pop(AGENT).kill()
    assert stack.ask("remove", {"slot": HOST})["ok"]
