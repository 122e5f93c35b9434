"""Stops and starts: each task may run twice, late, or after the process died, and the cloud may refuse them."""

from typing import Any

import msgspec
import pytest

from scheduler.model.slots import Machine
from scheduler.operations.costs import sum_by
from scheduler.operations.machines.check import MOST_MISSES, check, recover
from scheduler.operations.machines.power import start_all, stop_all
from scheduler.operations.machines.reconcile import reconcile
from scheduler.ports import CloudError
from tests.operations.harness import Harness

SMALL: dict[str, Any] = {"name": "small", "market": "on-demand", "price": 1.0, "resources": {"cpus": 2}}
LARGE: dict[str, Any] = {"name": "large", "market": "on-demand", "price": 2.0, "resources": {"cpus": 8}}


def a_config(**changes: Any) -> dict[str, Any]:
    """Rules with one pool that has a stopped tier of one machine."""
    pool = {"system": "x86_64-linux", "max_slots": 3, "lease_ttl": 0, "idle_scale_down": 10, "stopped_slots": 1}
    return {"pools": {"linux": {**pool, "offerings": [SMALL], **changes}}}


def booted(**changes: Any) -> Harness:
    """A harness whose tier's machine has booted, and is to stop; the message for that waits."""
    harness = Harness(a_config(**changes))
    harness.tick()
    harness.play_tasks()
    harness.tick()
    assert (harness.slot().state, harness.slot().power) == ("stopped", "stop")
    return harness


def stopped(**changes: Any) -> Harness:
    """A harness whose tier has a stopped machine."""
    harness = booted(**changes)
    harness.play_tasks()
    assert (harness.slot().state, harness.slot().power) == ("stopped", None)
    return harness


def to_start(**changes: Any) -> Harness:
    """A harness with a start that is decided; only the message for it waits."""
    harness = stopped(**changes)
    harness.submit("r1", resources={"cpus": 2})
    harness.tick()
    assert (harness.slot().state, harness.slot().power) == ("booting", "start")
    harness.mailbox.tasks = [task for task in harness.mailbox.tasks if task[0] == "start"]
    return harness


def test_a_machine_of_the_tier_is_stopped_and_started_for_demand() -> None:
    harness = to_start()
    harness.play_tasks()
    harness.tick()
    assert harness.phase() == "leased"
    assert harness.slot().epoch == 1
    assert harness.fleet.powered == [("stop", "i-1"), ("start", "i-1")]
    assert [slot.state for slot in harness.store.find_slots()][:2] == ["ready", "launching"]


def test_the_intent_is_in_the_database_before_the_cloud_is_called() -> None:
    """The process dies before its messages are sent; another one finds what is to be done."""
    harness = booted()
    harness.mailbox.tasks.clear()
    harness.restart()
    harness.now += 11
    assert recover(harness.ports) == 1
    harness.play_tasks()
    assert (harness.slot().power, harness.fleet.machines["i-1"].state) == (None, "stopped")


def test_a_lost_start_is_sent_again() -> None:
    harness = to_start()
    harness.mailbox.tasks.clear()
    harness.now += 11
    assert recover(harness.ports) >= 1
    harness.play_tasks()
    assert harness.slot().state in {"binding", "ready"}


def test_a_stop_that_runs_twice_or_late_does_nothing_more() -> None:
    harness = booted()
    pairs = [("linux-1", 1)]
    assert stop_all(harness.ports, pairs) == {"linux-1": "asked"}
    assert stop_all(harness.ports, pairs) == {"linux-1": "not_due"}
    harness.play_tasks()
    assert stop_all(harness.ports, pairs) == {"linux-1": "not_wanted"}
    harness.submit("r1", resources={"cpus": 2})
    harness.tick()
    harness.play_tasks()
    assert stop_all(harness.ports, pairs) == {"linux-1": "not_wanted"}, "the machine runs again"
    assert stop_all(harness.ports, [("linux-1", 7)]) == {"linux-1": "not_wanted"}, "another epoch"
    assert harness.fleet.machines["i-1"].state == "running"


def test_a_start_that_runs_twice_does_nothing_more() -> None:
    harness = to_start()
    pairs = [("linux-1", 1)]
    assert start_all(harness.ports, pairs) == {"linux-1": "asked"}
    assert start_all(harness.ports, pairs) == {"linux-1": "not_due"}
    harness.play_tasks()
    assert start_all(harness.ports, pairs) == {"linux-1": "not_wanted"}
    labels = (("offering", "small"), ("pool", "linux"), ("result", "success"))
    assert harness.meter.counts["leasehold_starts_total", labels] == 1


def test_a_message_about_another_machine_changes_nothing() -> None:
    harness = stopped()
    assert start_all(harness.ports, [("linux-1", 1), ("linux-9", 1)]) == {
        "linux-1": "not_wanted",
        "linux-9": "not_wanted",
    }
    assert harness.fleet.powered == [("stop", "i-1")]


@pytest.mark.parametrize("category", ["capacity", "quota", "throttled", "auth"])
def test_a_refused_start_leaves_the_slot_stopped_and_pauses_launches(category: str) -> None:
    harness = to_start()
    kicks = harness.notifier.kicks
    harness.fleet.refused["i-1"] = CloudError(category, "Code", "no")  # type: ignore[arg-type]
    assert start_all(harness.ports, [("linux-1", 1)]) == {"linux-1": category}
    assert (harness.slot().state, harness.slot().power) == ("stopped", None)
    assert harness.notifier.kicks == kicks + 1
    holds = [row.kind for row in harness.store.read_rows() if row.id.startswith(("linux/", "*/"))]  # type: ignore[union-attr]
    assert holds == [category]


@pytest.mark.parametrize("category", ["misconfigured", "state"])
def test_a_machine_that_cannot_be_started_is_terminated(category: Any) -> None:
    harness = to_start()
    harness.fleet.refused["i-1"] = CloudError(category, "IncorrectInstanceState", "no")
    assert start_all(harness.ports, [("linux-1", 1)]) == {"linux-1": category}
    assert harness.slot().state == "terminating"
    harness.play_tasks()
    assert harness.fleet.machines["i-1"].state == "terminated"


@pytest.mark.parametrize("category", ["misconfigured", "state"])
def test_a_machine_that_cannot_be_stopped_is_terminated(category: Any) -> None:
    harness = booted()
    harness.fleet.refused["i-1"] = CloudError(category, "UnsupportedOperation", "no")
    harness.play_tasks()
    assert harness.fleet.machines["i-1"].state == "terminated"


def test_a_machine_whose_stop_is_not_permitted_stays_in_the_tier_until_the_stop_succeeds() -> None:
    harness = booted()
    harness.fleet.refused["i-1"] = CloudError("auth", "UnauthorizedOperation", "You may not.")
    delays = []
    for _ in range(4):
        harness.play_tasks()
        slot = harness.slot()
        assert (slot.state, slot.power, slot.refusal) == ("stopped", "stop", "UnauthorizedOperation: You may not.")
        delays.append(slot.not_before - harness.now)
        harness.now = slot.not_before + 0.01
        recover(harness.ports)
    assert delays == [1, 2, 4, 8]
    (event,) = [each for each in harness.events if each.name == "slot_stop_refused"]
    assert event.detail["refusal"] == "UnauthorizedOperation: You may not."
    harness.fleet.refused.clear()
    harness.play_tasks()
    assert (harness.slot().state, harness.slot().power, harness.slot().refusal) == ("stopped", None, None)


def test_a_stop_that_is_not_permitted_ends_at_its_timeout_like_one_without_effect() -> None:
    harness = booted()
    harness.fleet.refused["i-1"] = CloudError("auth", "UnauthorizedOperation", "You may not.")
    harness.play_tasks()
    harness.now += 301
    harness.tick()
    assert (harness.slot().state, harness.slot().refusal) == ("terminating", None)


@pytest.mark.parametrize("category", ["transient", "unknown"])
def test_after_an_unclear_answer_the_start_is_sent_again(category: str) -> None:
    harness = to_start()
    harness.fleet.refused["i-1"] = CloudError(category, "Timeout", "no answer")  # type: ignore[arg-type]
    assert start_all(harness.ports, [("linux-1", 1)]) == {"linux-1": category}
    assert (harness.slot().state, harness.slot().power) == ("booting", "start")
    harness.fleet.refused.clear()
    harness.now += 11
    recover(harness.ports)
    harness.play_tasks()
    assert harness.fleet.machines["i-1"].state == "running"


def test_throttling_after_an_unclear_answer_is_no_refusal() -> None:
    harness = to_start()
    for category in ("transient", "throttled"):
        harness.fleet.refused["i-1"] = CloudError(category, "Code", "no")
        assert start_all(harness.ports, [("linux-1", 1)]) == {"linux-1": category}
        harness.now += 3
    assert harness.slot().state == "booting"


def test_of_several_machines_of_one_call_only_the_refused_ones_stay_stopped() -> None:
    harness = Harness(a_config(stopped_slots=3, max_slots=3))
    harness.tick()
    harness.play_tasks()
    harness.tick()
    harness.play_tasks()
    names = ["linux-1", "linux-2", "linux-3"]
    assert {harness.slot(name).power for name in names} == {None}
    for name in names:
        harness.submit(f"r-{name}", resources={"cpus": 2})
    harness.tick()
    last = harness.slot("linux-3").instance_id or ""
    harness.fleet.refused[last] = CloudError("capacity", "InsufficientInstanceCapacity", "no")
    outcomes = start_all(harness.ports, [(name, 1) for name in names])
    assert outcomes == {"linux-1": "asked", "linux-2": "asked", "linux-3": "capacity"}
    assert [harness.slot(name).state for name in names] == ["booting", "booting", "stopped"]
    assert harness.slot("linux-3").refusal == "InsufficientInstanceCapacity: no"


def test_a_start_as_another_offering_changes_the_type_before() -> None:
    harness = stopped(offerings=[SMALL, LARGE], resize_stopped=True, price_factor=3, max_slots=1)
    slot = harness.slot()
    harness.put(msgspec.structs.replace(slot, instance_type="small"))
    harness.submit("r1", resources={"cpus": 2})
    harness.tick()
    harness.fleet.refused["i-1"] = CloudError("capacity", "InsufficientInstanceCapacity", "no")
    start_all(harness.ports, [("linux-1", 1)])
    harness.fleet.refused.clear()
    harness.mailbox.tasks.clear()
    harness.tick()
    assert (harness.slot().offering, harness.slot().resources, harness.slot().price) == ("large", {"cpus": 8.0}, 2.0)
    harness.play_tasks()
    assert harness.fleet.powered[-2:] == [("resize", "i-1", "large"), ("start", "i-1")]
    harness.tick()
    assert harness.phase() == "leased"


def test_a_machine_that_vanished_while_it_was_stopped_makes_its_slot_empty() -> None:
    harness = stopped()
    harness.fleet.terminate(["i-1"])
    check(harness.ports, ["linux-1"])
    assert (harness.slot().state, harness.slot().instance_id) == ("empty", None)


def test_a_stopped_machine_of_a_slot_is_no_orphan() -> None:
    harness = stopped()
    harness.now += 10_000
    assert reconcile(harness.ports).ended == 0
    assert harness.fleet.machines["i-1"].state == "stopped"


def test_a_stopped_machine_without_a_slot_is_terminated_and_not_adopted() -> None:
    harness = Harness(a_config(stopped_slots=0))
    harness.fleet.appear("i-lost", "linux-2", state="stopped", launched_at=harness.now - 400)
    assert reconcile(harness.ports).ended == 1
    assert harness.fleet.machines["i-lost"].state == "terminated"


def test_a_stopped_machine_that_runs_again_is_stopped_again() -> None:
    """An operator of EC2, or a message from before a restore, started it."""
    harness = stopped()
    harness.fleet.machines["i-1"] = msgspec.structs.replace(harness.fleet.machines["i-1"], state="running")
    for _ in range(MOST_MISSES):
        assert harness.slot().power is None
        check(harness.ports, ["linux-1"])
    assert harness.slot().power == "stop"
    recover(harness.ports)
    harness.play_tasks()
    assert harness.fleet.machines["i-1"].state == "stopped"


def test_a_machine_that_was_stopped_elsewhere_counts_as_interrupted() -> None:
    harness = Harness(a_config(stopped_slots=0)).leased()
    harness.fleet.machines["i-1"] = msgspec.structs.replace(harness.fleet.machines["i-1"], state="stopped")
    for _ in range(MOST_MISSES):
        assert harness.slot().interrupted_at is None
        check(harness.ports, ["linux-1"])
    assert harness.slot().interrupted_at == harness.now
    harness.tick()
    assert (harness.phase(), harness.slot().state) == ("pending", "draining")


def test_a_start_is_not_taken_for_a_machine_that_was_stopped_elsewhere() -> None:
    """EC2 may describe a machine as stopped for a while after its start."""
    harness = to_start()
    machine = harness.fleet.machines["i-1"]
    for _ in range(2 * MOST_MISSES):
        check(harness.ports, ["linux-1"])
    assert harness.slot().interrupted_at is None
    harness.fleet.machines["i-1"] = msgspec.structs.replace(machine, state="pending")
    check(harness.ports, ["linux-1"])
    assert (harness.slot().state, harness.slot().power) == ("booting", None)


def test_operators_cordon_and_drain_stopped_slots() -> None:
    harness = stopped()
    assert harness.ask("cordon", slot="linux-1")["ok"]
    harness.submit("r1", resources={"cpus": 2})
    harness.tick()
    assert harness.slot().state == "stopped", "a cordoned slot is not started"
    assert harness.slot("linux-2").state == "launching"
    assert harness.ask("drain", slot="linux-1")["ok"]
    harness.tick()
    assert harness.slot().state == "terminating"


def test_a_notice_about_a_stopped_machine_changes_nothing() -> None:
    harness = stopped()
    before = harness.slot()
    from scheduler.operations.commands.slot_commands import interrupt, rebalance
    from scheduler.operations.unit_of_work import UnitOfWork

    with harness.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.slots = transaction.load_slots(["linux-1"])
        interrupt(work, "linux-1", harness.now)
        rebalance(work, harness.ports.rules(), "linux-1")
        work.flush()
    assert harness.slot() == before


def test_a_stopped_machine_costs_its_storage_and_no_hours() -> None:
    harness = stopped(storage_price=0.073, ec2={"image": "ami-1", "volume_gib": 100})
    harness.now += 3600
    found = next(each for each in sum_by(harness.store.read_costs(0.0), "kind") if each.name == "stopped")
    assert found.seconds == 3600
    assert found.dollars == pytest.approx(100 * 0.073 / 730)


def test_storage_without_a_price_is_unpriced() -> None:
    harness = stopped()
    harness.now += 3600
    found = next(each for each in sum_by(harness.store.read_costs(0.0), "kind") if each.name == "stopped")
    assert (found.dollars, found.unpriced_seconds) == (0.0, 3600)


def test_the_plan_does_not_stop_a_slot_that_got_a_lease_meanwhile() -> None:
    from scheduler.model.decisions import Start, Stop
    from scheduler.operations.unit_of_work import UnitOfWork
    from scheduler.operations.writers.slots import SlotWriter

    harness = stopped()
    harness.submit("r1", resources={"cpus": 2})
    harness.tick()
    harness.play_tasks()
    harness.tick()
    assert harness.phase() == "leased"
    with harness.store.transaction() as transaction:
        work = UnitOfWork(transaction, "tick")
        work.load(slots=["linux-1"])
        writer = SlotWriter(work, harness.ports.rules(), lambda: "new")
        assert writer.write(Stop(slot="linux-1", reason="idle")) == "linux-1 is not idle"
        start = Start(slot="linux-1", pool="linux", offering="small", reason="demand")
        assert writer.write(start) == "linux-1 is ready"


def test_the_states_of_machines_have_the_state_stopped() -> None:
    assert Machine(id="i", state="stopped").state == "stopped"
