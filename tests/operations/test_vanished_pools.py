"""A pool that the rules no longer list: its machines would run, and cost, for ever unless they are let go."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.operations.apply import apply_rules
from scheduler.operations.commands.lease_commands import interrupt
from scheduler.operations.machines.launch import order_of
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError
from tests.operations.harness import CONFIG, Harness

OTHERS: dict[str, Any] = {"pools": {"arm": {"system": "aarch64-linux", "max_slots": 1}}}


def vanish(harness: Harness) -> None:
    """The rules list another pool only."""
    apply_rules(harness.ports, OTHERS)


def launching(harness: Harness) -> None:
    """The message of its launch is lost as well."""
    harness.submit("r1")
    harness.tick()
    harness.mailbox.tasks.clear()


def launched(harness: Harness) -> None:
    """EC2 has made the machine, and the answer got lost."""
    launching(harness)
    harness.fleet.launch(harness.fleet.freeze(order_of(harness.slot()), harness.ports.rules()))


def booting(harness: Harness) -> None:
    """Its machine was not checked yet."""
    harness.submit("r1")
    harness.tick()
    harness.play_tasks_of("launch")


def idle(harness: Harness) -> None:
    """It served, and is free."""
    harness.leased()
    harness.ask("release", reservation="r1", token=harness.token())


def draining(harness: Harness) -> None:
    """By an operator's word."""
    idle(harness)
    harness.ask("drain", slot="linux-1")


def terminating(harness: Harness) -> None:
    """The message of its termination is lost as well."""
    draining(harness)
    harness.tick()
    harness.mailbox.tasks.clear()


@pytest.mark.parametrize("reach", [launching, launched, booting, idle, draining, terminating])
def test_its_machines_go_in_whatever_state_they_are(reach: Callable[[Harness], None]) -> None:
    harness = Harness()
    reach(harness)
    vanish(harness)
    harness.settle(120)
    assert harness.fleet.running == []
    assert harness.slot().state == "empty"


def test_what_is_leased_there_runs_on_until_its_holder_is_done() -> None:
    harness = Harness().leased()
    vanish(harness)
    harness.settle(120)
    assert (harness.phase(), harness.slot().state, harness.slot().drain_reason) == (
        "leased",
        "draining",
        "unconfigured",
    )
    assert harness.ask("renew", reservation="r1", token=harness.token())["ok"]
    assert harness.ask("release", reservation="r1", token=harness.token())["ok"]
    harness.settle(60)
    assert harness.fleet.running == []
    assert harness.slot().state == "empty"


def test_its_holders_hear_of_an_interruption() -> None:
    harness = Harness().leased()
    vanish(harness)
    harness.tick()
    with harness.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.load(slots=["linux-1"])
        interrupt(work, "linux-1", harness.now + 60)
        harness.ports.view_cache.publish(work.flush().rows)
    harness.tick()
    (row,) = harness.store.find_reservations(ids=["r1"])
    assert (row.phase, row.revoke_by) == ("revoking", harness.now + 60)


def test_one_that_failed_to_launch_is_empty_again() -> None:
    harness = Harness()
    launching(harness)
    harness.fleet.errors = [CloudError("misconfigured", "InvalidAMIID.Malformed", "no such image")]
    harness.settle(15)
    assert harness.slot().state == "error"
    vanish(harness)
    harness.tick()
    assert harness.slot().state == "empty"


def test_a_pool_that_comes_back_launches_again() -> None:
    harness = Harness()
    idle(harness)
    vanish(harness)
    harness.settle(60)
    apply_rules(harness.ports, CONFIG)
    harness.submit("r2")
    harness.settle(20)
    assert harness.phase("r2") == "leased"
    assert len(harness.fleet.running) == 1
