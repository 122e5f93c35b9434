"""`leasehold run` with a whole stack: a command with a lease, and the ways in which the lease ends."""

from collections.abc import Callable, Iterator

import pytest

from testbed.processes import Process, wait_for
from testbed.stack import Stack

Start = Callable[..., Process]


@pytest.fixture
def start(stack: Stack) -> Iterator[Start]:
    """A function that starts `leasehold run --id NAME` with these arguments; its log contains the command's output."""
    found: list[Process] = []

    def begin(name: str, *arguments: str) -> Process:
        found.append(stack.start(name, "leasehold.cli", "run", "--id", name, *arguments))
        return found[-1]

    yield begin
    for process in found:
        if process.is_alive:
            process.kill()
        del stack.processes[process.name]


def test_an_interruption_sends_sigterm_to_the_command(stack: Stack, start: Start) -> None:
    """The lease is renewed for longer than its ttl, and released when the command ends."""
    script = """trap 'cat "$LEASEHOLD_REVOKED_FILE"; exit 3' TERM; echo "$LEASEHOLD_TOKEN on $LEASEHOLD_INSTANCE_ID"
        while :; do sleep 0.1; done"""
    process = start("run-interrupted", "--pool", "linux", "--ttl", "3", "--", "sh", "-c", script)
    [row] = stack.await_phase(["run-interrupted"], "leased")
    [lease] = row.leases
    machine = next(slot.instance_id for slot in stack.slots() if slot.id == lease.slot)
    wait_for(lambda: f"{row.token} on {machine}\n" in process.read_log(), "the command")
    expires_at = row.expires_at or 0.0
    wait_for(lambda: (stack.find(row.id).expires_at or 0.0) > expires_at + 3, "renewals for longer than the ttl")
    stack.let_happen("interrupt", str(machine))
    assert process.await_end() == 3
    assert "run-interrupted is being revoked: slot_interrupted; the command gets SIGTERM" in process.read_log()
    # The file LEASEHOLD_REVOKED_FILE contains the reason and the deadline.
    assert process.read_log().splitlines()[-2] == "slot_interrupted"
    assert float(process.read_log().splitlines()[-1]) > (row.expires_at or 0.0) + 60
    stack.await_phase(["run-interrupted"], "released")


def test_a_cancelled_reservation_kills_the_command(stack: Stack, start: Start) -> None:
    process = start("run-cancelled", "--pool", "warm", "--", "sh", "-c", "trap '' TERM; echo ready; sleep 600")
    wait_for(lambda: "ready" in process.read_log(), "the command")
    assert stack.ask("cancel", {"reservation": "run-cancelled", "reason": "not needed"})["ok"]
    assert process.await_end() == 125
    assert "run-cancelled is lost: it is cancelled" in process.read_log()


def test_without_its_process_a_lease_ends_with_its_ttl(stack: Stack, start: Start) -> None:
    process = start("run-killed", "--pool", "warm", "--ttl", "2", "--", "sleep", "600")
    stack.await_phase(["run-killed"], "leased")
    process.kill()
    stack.await_phase(["run-killed"], "expired")


def test_a_reservation_that_cannot_be_served_is_cancelled(stack: Stack, start: Start) -> None:
    process = start("run-in-vain", "--pool", "linux", "--label", "disk=none", "--", "true")
    assert process.await_end() == 1
    assert "run-in-vain cannot be served: never_fits: no slot" in process.read_log()
    [row] = stack.await_phase(["run-in-vain"], "cancelled")
    assert (row.reason or "").startswith("never_fits: no slot")
