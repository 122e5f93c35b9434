"""The machines of a pool that is not in the rules any more are terminated; otherwise they would cost money forever."""

from collections.abc import Callable
from typing import Any

import pytest

from scheduler.operations.commands.slot_commands import interrupt
from scheduler.operations.machines.launch import order_of
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError
from tests.operations.harness import CONFIG, Harness

OTHERS: dict[str, Any] = {"pools": {"arm": {"system": "aarch64-linux", "max_slots": 1}}}


def vanish(harness: Harness) -> None:
    """Apply rules with another pool only."""
    apply_rules(harness.ports, OTHERS)


def become_static(harness: Harness) -> None:
    """Apply rules in which the same pool has hosts that register themselves."""
    apply_rules(harness.ports, {"pools": {"linux": {"system": "x86_64-linux", "provider": "static"}}})


def launching(harness: Harness) -> None:
    """A slot is launching, and the message of its launch is lost."""
    harness.submit("r1")
    harness.tick()
    harness.mailbox.tasks.clear()


def launched(harness: Harness) -> None:
    """EC2 has launched the machine, and the answer is lost."""
    launching(harness)
    harness.fleet.launch(harness.fleet.freeze(order_of(harness.slot()), harness.ports.rules()))


def booting(harness: Harness) -> None:
    harness.submit("r1")
    harness.tick()
    harness.play_tasks_of("launch")


def idle(harness: Harness) -> None:
    """The slot is ready without a lease."""
    harness.leased()
    harness.ask("release", reservation="r1", token=harness.token())


def draining(harness: Harness) -> None:
    """An operator drains the slot."""
    idle(harness)
    harness.ask("drain", slot="linux-1")


def terminating(harness: Harness) -> None:
    """The slot is terminating, and the message of its termination is lost."""
    draining(harness)
    harness.tick()
    harness.mailbox.tasks.clear()


@pytest.mark.parametrize("change", [vanish, become_static])
@pytest.mark.parametrize("reach", [launching, launched, booting, idle, draining, terminating])
def test_machines_of_a_removed_pool_are_terminated_in_every_state(
    reach: Callable[[Harness], None], change: Callable[[Harness], None]
) -> None:
    harness = Harness()
    reach(harness)
    change(harness)
    harness.settle(120)
    assert harness.fleet.running == []
    assert harness.slot().state == "empty"


@pytest.mark.parametrize("change", [vanish, become_static])
def test_a_lease_in_a_removed_pool_continues_until_its_release(change: Callable[[Harness], None]) -> None:
    harness = Harness().leased()
    change(harness)
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


def test_a_host_may_take_the_slot_of_a_machine_of_a_pool_that_became_static() -> None:
    harness = Harness()
    idle(harness)
    become_static(harness)
    harness.settle(120)
    assert harness.ask("register", slot="linux-1", pool="linux", machine="m1", run="a")["ok"]
    harness.tick()
    assert harness.slot().state == "ready"


def test_a_lease_in_a_removed_pool_is_revoked_by_an_interruption() -> None:
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


def test_a_claim_on_a_slot_of_a_removed_pool_ends_in_the_same_tick() -> None:
    pool = {"system": "x86_64-linux", "provider": "static", "resources": {"cpus": 2}, "lease_ttl": 0}
    harness = Harness({"scheduler": {"preemption_grace": 30}, "pools": {"hosts": pool}})
    harness.ask("register", slot="hosts-1", pool="hosts", machine="m")
    cpus = {"resources": {"cpus": 1}}
    harness.submit("r1", components=[{"name": "main", **cpus}, {"name": "more", "kind": "elastic", **cpus}])
    harness.tick()
    harness.submit("r2", **cpus)
    harness.tick()
    assert [lease.state for lease in harness.store.find_reservations(ids=["r2"])[0].leases] == ["claimed"]
    vanish(harness)
    assert harness.tick().skipped == []
    assert harness.store.find_reservations(ids=["r2"])[0].leases == ()


def test_a_slot_in_error_of_a_removed_pool_becomes_empty() -> None:
    harness = Harness()
    launching(harness)
    harness.fleet.errors = [CloudError("misconfigured", "InvalidAMIID.Malformed", "no such image")]
    harness.settle(15)
    assert harness.slot().state == "error"
    vanish(harness)
    harness.tick()
    assert harness.slot().state == "empty"


def test_a_pool_that_is_added_again_launches_again() -> None:
    harness = Harness()
    idle(harness)
    vanish(harness)
    harness.settle(60)
    apply_rules(harness.ports, CONFIG)
    harness.submit("r2")
    harness.settle(20)
    assert harness.phase("r2") == "leased"
    assert len(harness.fleet.running) == 1
