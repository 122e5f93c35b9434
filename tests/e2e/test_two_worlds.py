"""One script, two worlds: the simulator and the live processes come to the same, step by step."""

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

from scheduler.ports import EventFilter
from tests.e2e.conftest import RULES
from tests.e2e.processes import wait_for
from tests.e2e.stack import Stack
from tests.e2e.two_worlds import CONFIG, OFFERING, POOL, Script, Snapshot, generate

SEED, LENGTH = 1, 30
OUTAGE = [{"code": "InsufficientInstanceCapacity", "status": 400, "type": OFFERING}]
ENDS = frozenset({"reservation_released", "reservation_cancelled", "reservation_expired", "reservation_failed"})


@pytest.fixture(scope="module")
def script() -> Script:
    """What the simulator says; a script that has something of everything."""
    found = generate(SEED, LENGTH)
    kinds = {next(iter(step)) for step in found.steps}
    assert kinds >= {"submit", "release", "cancel", "renew", "drain", "outage", "calm", "interrupt", "lose"}
    assert found.taken_back
    assert "failed" in {how for _, how in found.ends}
    assert len(found.launches) >= 3
    return found


@pytest.mark.timeout(300)
def test_the_same_script_comes_to_the_same_in_both_worlds(stack: Stack, script: Script) -> None:
    """Who got what, which slots were launched and how each reservation ended, in the same order."""
    stack.apply({**CONFIG, "pools": {**RULES["pools"], **CONFIG["pools"]}})
    names = {each["id"] for step in script.steps for each in step.get("submit", [])}
    for number, (step, expected) in enumerate(zip(script.steps, script.snapshots, strict=True)):
        _act(stack, step)
        _await(stack, names, expected, f"step {number}: {step}")
    live = [event for event in _events(stack) if (event.slot or "").startswith(POOL) or event.reservation in names]
    assert [event.slot for event in live if event.name == "slot_booting"] == script.launches
    ends = [(event.reservation, event.name.removeprefix("reservation_")) for event in live if event.name in ENDS]
    assert ends == script.ends
    assert [event.reservation for event in live if event.name == "reservation_revoking"] == script.taken_back
    _clear(stack, names)


def _act(stack: Stack, step: dict[str, Any]) -> None:
    (kind, value), *_ = step.items()
    match kind:
        case "submit":
            assert stack.ask("submit", {"items": value})["ok"]
        case "outage" | "calm":
            _set_faults(stack, OUTAGE if kind == "outage" else [])
        case "interrupt":
            _end_machine(stack, value["slot"], "interrupt", deadline=value["deadline"])
        case "lose":
            _end_machine(stack, value, "lose")
        case "drain":
            assert stack.ask("drain", {"slot": value})["ok"]
        case _:
            # One that has ended is refused here and passed over there: both change nothing.
            row = stack.find(value)
            stack.ask(kind, {"reservation": value} | ({"token": row.token} if kind != "cancel" and row.token else {}))


def _end_machine(stack: Stack, name: str, how: str, **more: Any) -> None:
    """Let EC2 take the machine of this slot, if it has one, and wait until it is gone."""
    machine = _machine_of(stack, name)
    if machine is not None:
        stack.let_happen(how, machine, **more)
        wait_for(lambda: _machine_of(stack, name) != machine, f"the end of {machine} on {name}")


def _machine_of(stack: Stack, name: str) -> str | None:
    return next((slot.instance_id for slot in stack.slots(POOL) if slot.id == name), None)


def _await(stack: Stack, names: set[str], expected: Snapshot, what: str) -> None:
    """Wait until the live world is as the simulated one, and say both if it does not get there."""
    seen: list[Snapshot] = []

    def look() -> bool:
        seen[:] = [_snapshot(stack, names)]
        return seen[0] == expected

    try:
        wait_for(look, what, 30)
    except AssertionError:
        assert seen[0] == expected, what
        raise


def _snapshot(stack: Stack, names: set[str]) -> Snapshot:
    rows = stack.services.engine.store.find_reservations(ids=sorted(names), limit=len(names))
    slots = stack.slots(POOL)
    return Snapshot(
        {row.id: (row.phase, tuple(lease.slot for lease in row.leases)) for row in rows},
        frozenset(slot.id for slot in slots if slot.state != "empty"),
    )


def _events(stack: Stack) -> list[Any]:
    found, after = [], 0
    while events := stack.services.engine.store.read_events(EventFilter(after=after)):
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
