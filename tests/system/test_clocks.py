"""Wrong clocks on real processes: the wall clock of each program has another offset, then the whole host jumps.

Meanwhile a command on EC2 and one on a static host hold leases.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import uuid4

import pytest

from scheduler.protocol.names import CANARY, task_name
from scheduler.view.redis_meter import RedisMeter
from testbed.processes import Process, wait_for
from testbed.stack import Stack, a_pool
from tests.system.conftest import RULES

pytestmark = pytest.mark.timeout(300)
TTL: Final = 6.0
SERVERS: Final = ("reservations", "ticks", "launch", "health", "terminate", "beat")
CLIENTS: Final = ("holder", "lab-holder", "agent")
PROGRAMS: Final = (*SERVERS, *CLIENTS)
STEPS: Final[Mapping[str, Mapping[str, float]]] = {
    # When messages expired by wall clocks, each of these offsets alone stopped or slowed the service.
    "apart": {
        "launch": 21,
        "ticks": 11,
        "terminate": 21,
        "health": 5,
        "beat": -5,
        "reservations": 60,
        "holder": 600,
        "lab-holder": -60,
        "agent": -600,
    },
    "apart the other way": {
        "launch": -600,
        "ticks": -60,
        "terminate": -600,
        "health": 600,
        "beat": 600,
        "reservations": -20,
        "holder": -600,
        "lab-holder": 20,
        "agent": 600,
    },
    "host ahead": dict.fromkeys(PROGRAMS, 600.0),
    "host behind": dict.fromkeys(PROGRAMS, -600.0),
    "right again": dict.fromkeys(PROGRAMS, 0.0),
}
ALONE: Final[tuple[tuple[str, float], ...]] = (
    ("launch", 21),  # no machine was launched
    ("ticks", 11),  # no tick ran
    ("terminate", 21),  # no machine was terminated
    ("health", 5),  # every check expired, and machines became ready late
    ("beat", -5),  # every periodic tick expired; only kicks caused ticks
    ("beat", 600),  # the fleet did not settle when other clocks were wrong too
    # The fleet never settled:
    ("health", 600),
    ("launch", -600),
)
"""(program, offset in seconds); comments: the effect when messages expired by wall clocks."""
LAB: Final[dict[str, Any]] = {
    "system": "lab-clock",
    "provider": "static",
    "offline_timeout": 8,
    "max_leases_per_slot": 1,
}


@pytest.fixture
def skewed(stack: Stack) -> Iterator[Stack]:
    """The stack with a pool of one slot, a pool whose machines are terminated at once, and a static pool."""
    one = {"max_slots": 1, "max_leases_per_slot": 1}
    pools = {
        "one": a_pool(system="one", **one),
        "brief": a_pool(system="brief", idle_scale_down=0.1, **one),
        "lab": LAB,
    }
    stack.apply({"pools": {**RULES["pools"], **pools}})
    yield stack
    stack.shifts.set_all(PROGRAMS, 0.0)
    stack.await_right_clocks()
    for name in CLIENTS:
        process = stack.processes.pop(name, None)
        if process is not None:
            process.stop()
    stack.ask("remove", {"slot": "clock-1"})
    stack.await_empty("one")
    stack.await_empty("brief")
    stack.apply(RULES)


def hold(stack: Stack, name: str, reservation: str, pool: str) -> Process:
    """Hold a lease with a command that ends when its file exists and is killed when the lease is lost."""
    arguments = ["leasehold.cli", "run", "--id", reservation, "--pool", pool, "--ttl", str(TTL), "--wait", "60", "--"]
    command = f"until [ -e {stack.folder}/{name}-may-end ]; do sleep 0.1; done"
    return stack.start(name, *arguments, "sh", "-c", command)


def await_renewals(stack: Stack, *reservations: str) -> None:
    """Wait until each lease has been renewed for longer than its ttl; fail when one ends or is revoked."""
    before = {name: stack.find(name).expires_at or 0.0 for name in reservations}

    def are_renewed() -> bool:
        rows = [stack.find(name) for name in reservations]
        assert [row.phase for row in rows] == ["leased"] * len(rows), rows
        return all((row.expires_at or 0.0) > before[row.id] + TTL for row in rows)

    wait_for(are_renewed, f"{reservations} to be renewed for a ttl")


def test_leases_are_kept_and_the_fleet_settles_with_wrong_clocks(skewed: Stack) -> None:
    stack = skewed
    agent = "leasehold.cli host run clock-1 --pool lab --machine m1 --cpus 4 --state"
    stack.start("agent", *agent.split(), str(stack.folder / "clock-host"))
    wait_for(lambda: stack.slots("lab"), "the host")
    holders = [hold(stack, "holder", "clock-held", "one"), hold(stack, "lab-holder", "clock-lab-held", "lab")]
    (held, lab_held) = stack.await_phase(["clock-held", "clock-lab-held"], "leased")
    for reservation, pool in (("clock-next", "one"), ("clock-lab-next", "lab")):
        assert stack.ask("submit", {"id": reservation, "pool": pool, "ttl": 0})["ok"]
    for number, (step, shifts) in enumerate(STEPS.items()):
        for name, seconds in shifts.items():
            stack.shifts.set(name, seconds)
        brief = f"clock-brief-{number}"
        assert stack.ask("submit", {"id": brief, "pool": "brief", "ttl": 0})["ok"], step
        (leased,) = stack.await_phase([brief], "leased")
        assert stack.ask("release", {"reservation": brief, "token": leased.token})["ok"], step
        await_renewals(stack, "clock-held", "clock-lab-held")
        # The next reservation of each pool still waits, so the slots were not leased twice.
        stack.await_phase(["clock-next", "clock-lab-next"], "pending")
        assert [stack.find(row.id).token for row in (held, lab_held)] == [held.token, lab_held.token], step
        # Idle machines are terminated.
        stack.await_empty("brief")
    for name in ("holder", "lab-holder"):
        (stack.folder / f"{name}-may-end").touch()
    assert [holder.await_end() for holder in holders] == [0, 0], [holder.read_log() for holder in holders]
    for row in stack.await_phase(["clock-next", "clock-lab-next"], "leased"):
        assert row.token > max(held.token, lab_held.token)
        assert stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]
    stack.await_phase(["clock-held", "clock-lab-held", "clock-next", "clock-lab-next"], "released")


@pytest.fixture(scope="module")
def right_afterwards(stack: Stack) -> Iterator[Stack]:
    """The stack; its clocks are right again after the tests of this file."""
    yield stack
    stack.shifts.set_all(PROGRAMS, 0.0)
    stack.await_right_clocks()


@pytest.mark.parametrize(("program", "seconds"), ALONE)
def test_a_machine_is_launched_and_terminated_while_one_clock_is_wrong(
    right_afterwards: Stack, program: str, seconds: float
) -> None:
    stack, name = right_afterwards, f"alone-{program}-{seconds:g}"
    stack.shifts.set(program, seconds)
    try:
        await_messages(stack, program)
        assert stack.submit(name, ttl=0)["ok"]
        (row,) = stack.await_phase([name], "leased")
        assert stack.ask("release", {"reservation": name, "token": row.token})["ok"]
        stack.await_empty()
        wait_for(lambda: not machines_of_linux(stack), "the machine to end")
    finally:
        stack.shifts.set(program, 0.0)
        # After a failure the next test starts with an empty pool.
        stack.ask("cancel", {"reservation": name})


def await_messages(stack: Stack, program: str) -> None:
    """Wait until the worker `program` takes messages that expire within seconds, or beat sends such messages."""
    address = f"leasehold:reply:{uuid4().hex}"
    before = count_ticks(stack)

    def send_and_look() -> object:
        stack.app.send_task(task_name(program, CANARY), args=[address], expires=4)
        return stack.redis.blpop([address], timeout=2)

    if program == "beat":
        # Without changes only beat causes ticks.
        wait_for(lambda: count_ticks(stack) >= before + 3, "the ticks that beat asks for")
    else:
        wait_for(send_and_look, f"a message that the worker {program} does not take for expired")


def count_ticks(stack: Stack) -> float:
    """Return the number of ticks so far."""
    return sum(RedisMeter(stack.redis).read().counters.get("leasehold_ticks_total", {}).values())


def machines_of_linux(stack: Stack) -> list[dict[str, Any]]:
    """Return the running machines of the pool `linux`."""
    return [each for each in stack.instances("pending", "running") if each["tags"]["leasehold:pool"] == "linux"]
