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


def vanish(rig: Harness) -> None:
    """The rules list another pool only."""
    apply_rules(rig.ports, OTHERS)


def launching(rig: Harness) -> None:
    """The message of its launch is lost as well."""
    rig.submit("r1")
    rig.tick()
    rig.mailbox.tasks.clear()


def launched(rig: Harness) -> None:
    """EC2 has made the machine, and the answer got lost."""
    launching(rig)
    rig.fleet.launch(rig.fleet.freeze(order_of(rig.slot()), rig.ports.rules()))


def booting(rig: Harness) -> None:
    """Nobody has looked at its machine yet."""
    rig.submit("r1")
    rig.tick()
    rig.play_tasks_of("launch")


def idle(rig: Harness) -> None:
    """It served, and is free."""
    rig.leased()
    rig.ask("release", reservation="r1", token=rig.token())


def draining(rig: Harness) -> None:
    """By an operator's word."""
    idle(rig)
    rig.ask("drain", slot="linux-1")


def terminating(rig: Harness) -> None:
    """The message of its termination is lost as well."""
    draining(rig)
    rig.tick()
    rig.mailbox.tasks.clear()


@pytest.mark.parametrize("reach", [launching, launched, booting, idle, draining, terminating])
def test_its_machines_go_in_whatever_state_they_are(reach: Callable[[Harness], None]) -> None:
    rig = Harness()
    reach(rig)
    vanish(rig)
    rig.settle(120)
    assert rig.fleet.running == []
    assert rig.slot().state == "empty"


def test_what_is_leased_there_runs_on_until_its_holder_is_done() -> None:
    rig = Harness().leased()
    vanish(rig)
    rig.settle(120)
    assert (rig.phase(), rig.slot().state, rig.slot().drain_reason) == ("leased", "draining", "unconfigured")
    assert rig.ask("renew", reservation="r1", token=rig.token())["ok"]
    assert rig.ask("release", reservation="r1", token=rig.token())["ok"]
    rig.settle(60)
    assert rig.fleet.running == []
    assert rig.slot().state == "empty"


def test_its_holders_hear_of_an_interruption() -> None:
    rig = Harness().leased()
    vanish(rig)
    rig.tick()
    with rig.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.load(slots=["linux-1"])
        interrupt(work, "linux-1", rig.now + 60)
        rig.ports.view_cache.publish(work.flush().rows)
    rig.tick()
    (row,) = rig.store.find_reservations(ids=["r1"])
    assert (row.phase, row.revoke_by) == ("revoking", rig.now + 60)


def test_one_that_failed_to_launch_is_empty_again() -> None:
    rig = Harness()
    launching(rig)
    rig.fleet.errors = [CloudError("misconfigured", "InvalidAMIID.Malformed", "no such image")]
    rig.settle(15)
    assert rig.slot().state == "error"
    vanish(rig)
    rig.tick()
    assert rig.slot().state == "empty"


def test_a_pool_that_comes_back_launches_again() -> None:
    rig = Harness()
    idle(rig)
    vanish(rig)
    rig.settle(60)
    apply_rules(rig.ports, CONFIG)
    rig.submit("r2")
    rig.settle(20)
    assert rig.phase("r2") == "leased"
    assert len(rig.fleet.running) == 1
