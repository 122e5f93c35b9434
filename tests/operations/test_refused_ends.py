"""The cloud refuses to end a machine: its slot waits with the reason, the others end, and the tries become rare."""

from typing import Any

import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.model.slots import Slot
from scheduler.operations.machines.check import recover
from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.reconcile import ORPHAN_SECONDS, Reconciled, reconcile
from scheduler.operations.machines.terminate import terminate, terminate_all
from scheduler.ports import CloudError
from tests.builders import a_slot
from tests.operations.harness import CONFIG, Harness

PROTECTED = CloudError("state", "OperationNotPermitted", "The machine is protected.")
ANSWER = "OperationNotPermitted: The machine is protected."
POOL = {**CONFIG["pools"]["linux"], "max_slots": 6}


def ending(count: int = 6, **errors: CloudError) -> Harness:
    """A harness with terminating slots, whose machines are i-1, i-2, …. `errors`: machine -> why it may not end."""
    harness = Harness({"pools": {"linux": POOL}})
    for number in range(1, count + 1):
        harness.fleet.appear(f"i-{number}", f"linux-{number}")
        name, before = f"linux-{number}", harness.slot(f"linux-{number}").version
        harness.put(a_slot(name, state="terminating", version=before, epoch=1, instance_id=f"i-{number}", since=1.0))
    harness.fleet.protected = {name.replace("_", "-"): error for name, error in errors.items()}
    harness.mailbox.tasks.clear()
    return harness


def end_all(harness: Harness, count: int = 6) -> dict[str, str]:
    return terminate_all(harness.ports, [(f"linux-{number}", 1) for number in range(1, count + 1)])


def refused(harness: Harness, name: str = "slot_end_refused") -> list[Any]:
    return [event.detail["refusal"] for event in harness.events if event.name == name]


def strangers(harness: Harness) -> Hold:
    (hold,) = [row for row in harness.store.read_rows() if isinstance(row, Hold) and row.kind == "strangers"]
    return hold


def test_of_six_machines_with_a_protected_one_five_end_and_the_slot_of_that_one_has_the_reason() -> None:
    harness = ending(i_3=PROTECTED)
    assert end_all(harness) == {f"linux-{number}": "state" if number == 3 else "asked" for number in range(1, 7)}
    harness.play_tasks()
    states = {slot.id: (slot.state, slot.refusal) for slot in harness.store.find_slots()}
    assert states.pop("linux-3") == ("terminating", ANSWER)
    assert set(states.values()) == {("empty", None)}
    assert refused(harness) == [ANSWER]


def test_the_view_has_the_reason_too() -> None:
    harness = ending(i_3=PROTECTED)
    harness.tick()
    end_all(harness)
    view = harness.ports.view_cache.load()
    assert view is not None
    assert view.slots["linux-3"].refusal == ANSWER


def test_the_tries_of_a_refused_machine_become_rare_and_are_one_event() -> None:
    harness = ending(1, i_1=PROTECTED)
    delays = []
    for _ in range(9):
        assert terminate(harness.ports, "linux-1", 1) == "state"
        assert terminate(harness.ports, "linux-1", 1) == "not_due"
        delays.append(harness.slot().not_before - harness.now)
        harness.now = harness.slot().not_before + 0.01
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert refused(harness) == [ANSWER]


def test_the_timeout_of_the_state_does_not_make_the_tries_frequent_again() -> None:
    harness = ending(1, i_1=PROTECTED)
    for _ in range(8):
        terminate(harness.ports, "linux-1", 1)
        harness.now = harness.slot().not_before + 0.01
    harness.now += 300
    harness.tick()
    assert ("terminate", ("linux-1", 1)) in harness.mailbox.tasks
    assert terminate(harness.ports, "linux-1", 1) == "state"
    assert harness.slot().not_before - harness.now == 60


def test_another_reason_is_another_event() -> None:
    harness = ending(1, i_1=PROTECTED)
    terminate(harness.ports, "linux-1", 1)
    harness.now += 2
    harness.fleet.protected["i-1"] = CloudError("auth", "UnauthorizedOperation", "You may not.")
    assert terminate(harness.ports, "linux-1", 1) == "auth"
    assert harness.slot().refusal == "UnauthorizedOperation: You may not."
    assert refused(harness) == [ANSWER, "UnauthorizedOperation: You may not."]


def test_a_machine_that_may_end_again_ends_without_the_reason() -> None:
    harness = ending(1, i_1=PROTECTED)
    terminate(harness.ports, "linux-1", 1)
    harness.fleet.protected.clear()
    harness.now += 2
    assert recover(harness.ports) == 1
    harness.mailbox.tasks = [task for task in harness.mailbox.tasks if task[0] == "terminate"]
    name, arguments = harness.mailbox.tasks.pop()
    assert terminate(harness.ports, *arguments) == "asked", name
    assert (harness.slot().state, harness.slot().refusal) == ("terminating", None)
    harness.play_tasks()
    assert harness.slot().state == "empty"


def test_a_machine_that_was_refused_is_in_no_call_with_others() -> None:
    """AWS ends none of the machines in the zone of a protected one."""
    harness = ending(i_3=PROTECTED)
    terminate(harness.ports, "linux-3", 1)
    harness.now += 2
    calls: list[list[str]] = []
    end = harness.fleet.terminate

    def record(machines: Any) -> dict[str, CloudError]:
        calls.append(list(machines))
        return end(machines)

    harness.fleet.terminate = record  # type: ignore[method-assign]
    end_all(harness)
    assert calls == [["i-1", "i-2", "i-4", "i-5", "i-6"], ["i-3"]]


@pytest.mark.parametrize("category", ["throttled", "transient", "unknown"])
def test_an_answer_that_concerns_no_machine_is_no_reason(category: Any) -> None:
    harness = ending(2, i_1=CloudError(category, "Code", "no"))
    assert end_all(harness, 2) == {"linux-1": category, "linux-2": category}
    assert [(slot.attempts, slot.refusal) for slot in harness.store.find_slots()][:2] == [(1, None), (1, None)]
    assert refused(harness) == []


def test_the_reason_is_bounded() -> None:
    harness = ending(1, i_1=CloudError("state", "OperationNotPermitted", "x" * 100_000))
    terminate(harness.ports, "linux-1", 1)
    assert len(harness.slot().refusal or "") < 600


def test_the_next_machine_of_a_slot_has_no_reason() -> None:
    harness = ending(1, i_1=PROTECTED)
    terminate(harness.ports, "linux-1", 1)
    harness.fleet.terminate(["i-2"])
    harness.fleet.protected.clear()
    harness.fleet.terminate(["i-1"])
    harness.settle(20)
    harness.submit("r1")
    harness.settle(20)
    assert (harness.phase(), harness.slot().refusal) == ("leased", None)


def test_orphans_end_beside_a_refused_one_whose_tries_become_rare() -> None:
    harness = Harness()
    for name in ("i-1", "i-2", "i-3"):
        harness.fleet.appear(name, "linux-9", launched_at=harness.now - ORPHAN_SECONDS)
    harness.fleet.protected = {"i-2": PROTECTED}
    assert reconcile(harness.ports) == Reconciled(strangers=3, ended=2, refused=1)
    assert harness.fleet.running == ["i-2"]
    assert refused(harness, "machine_end_refused") == [ANSWER]
    assert (strangers(harness).code, strangers(harness).message) == ("OperationNotPermitted", PROTECTED.message)
    tries = []
    for second in range(60, 3600, 60):
        harness.now += 60
        if reconcile(harness.ports).refused:
            tries.append(second)
    assert tries == [60, 120, 240, 480, 960, 1860, 2760]
    assert refused(harness, "machine_end_refused") == [ANSWER]
    assert len([event for event in harness.events if event.name == "machine_orphaned"]) == 3


def test_a_new_orphan_does_not_wait_for_a_refused_one() -> None:
    harness = Harness()
    harness.fleet.appear("i-1", "linux-9", launched_at=harness.now - ORPHAN_SECONDS)
    harness.fleet.protected = {"i-1": PROTECTED}
    for _ in range(3):
        reconcile(harness.ports)
        harness.now += 60
    harness.fleet.appear("i-2", "linux-8", launched_at=harness.now - ORPHAN_SECONDS + 1)
    harness.now += 1
    assert reconcile(harness.ports) == Reconciled(strangers=2, ended=1)
    assert harness.fleet.running == ["i-1"]


def test_an_orphan_that_may_end_again_leaves_no_reason() -> None:
    harness = Harness()
    harness.fleet.appear("i-1", "linux-9", launched_at=harness.now - ORPHAN_SECONDS)
    harness.fleet.appear("i-2", "linux-8", state="stopping", launched_at=harness.now - ORPHAN_SECONDS)
    harness.fleet.protected = {"i-1": PROTECTED}
    reconcile(harness.ports)
    harness.fleet.protected.clear()
    harness.now += 60
    harness.fleet.appear("i-2", "linux-8", state="stopping", launched_at=harness.now - 2 * ORPHAN_SECONDS)
    assert reconcile(harness.ports).refused == 0
    assert harness.fleet.running == []
    harness.fleet.appear("i-3", "linux-7", launched_at=harness.now)
    reconcile(harness.ports)
    assert (strangers(harness).code, strangers(harness).streak) == ("", 1)


def test_the_machine_of_a_launch_that_is_not_wanted_is_ended_by_the_sweep_after_a_refusal() -> None:
    harness = Harness()
    harness.submit("r1")
    harness.tick()
    harness.mailbox.tasks.clear()
    name = harness.slot().launch_id or ""

    def meanwhile() -> None:
        harness.put(a_slot("linux-1", state="ready", version=harness.slot().version, epoch=2, launch_id="launch-2"))

    harness.fleet.during_launch = meanwhile
    harness.fleet.protected = {"i-1": PROTECTED}
    assert launch(harness.ports, name, "linux-1") == "aborted"
    assert refused(harness, "machine_end_refused") == [ANSWER]
    assert strangers(harness).active == 1
    harness.fleet.protected.clear()
    harness.now += 60
    assert reconcile(harness.ports).ended == 1
    assert harness.fleet.running == []


def test_a_second_machine_of_a_launch_that_may_not_end_counts_until_it_ends() -> None:
    harness = Harness().leased()
    harness.fleet.appear("i-2", launch_id=harness.slot().launch_id, launched_at=harness.now)
    harness.fleet.protected = {"i-2": PROTECTED}
    assert reconcile(harness.ports) == Reconciled(strangers=1, refused=1)
    assert reconcile(harness.ports) == Reconciled(strangers=1), "it is not due yet"
    assert strangers(harness).active == 1
    harness.fleet.protected.clear()
    harness.now += 60
    assert reconcile(harness.ports) == Reconciled(strangers=1, ended=1)
    assert reconcile(harness.ports) == Reconciled()


def test_a_slot_that_begins_to_terminate_has_no_reason_of_earlier_calls() -> None:
    harness = Harness().leased()
    slot: Slot = harness.slot()
    harness.put(
        a_slot("linux-1", state="booting", version=slot.version, epoch=1, refusal="Code: of a start", since=1.0)
    )
    harness.tick()
    assert (harness.slot().state, harness.slot().refusal) == ("terminating", None)
