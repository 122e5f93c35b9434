"""What a slot keeps about its machine's life: the time of the launch, and hashes of what it was launched from."""

from typing import Any

import pytest

from scheduler.model.lives import find_drift
from scheduler.operations.explain import describe_conditions
from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.rules.apply import apply_rules
from scheduler.ports import CloudError
from tests.builders import SYSTEM
from tests.operations.harness import Harness


def with_image(image: str, **pool: Any) -> dict[str, Any]:
    """The document of rules with this image."""
    return {"pools": {"linux": {"system": SYSTEM, "max_slots": 3, "ec2": {"image": image}, **pool}}}


def digest_in_force(harness: Harness) -> str:
    return harness.ports.rules().pools["linux"].launch_digest


def test_a_launch_has_its_time_and_the_digest_of_the_rules() -> None:
    harness = Harness(with_image("ami-1"))
    harness.submit("r1")
    harness.tick()
    slot = harness.slot()
    assert (slot.launched_at, slot.launch_digest) == (harness.now, digest_in_force(harness))


@pytest.mark.parametrize("count", [1, 3])
def test_rules_that_changed_before_the_request_was_made_are_those_of_the_digest(count: int) -> None:
    """One machine is launched by itself, three in a batch."""
    harness = Harness(with_image("ami-1"))
    for number in range(count):
        harness.submit(f"r{number}")
    harness.tick()
    before = digest_in_force(harness)
    apply_rules(harness.ports, with_image("ami-2"))
    assert digest_in_force(harness) != before
    harness.play_tasks()
    slots = [slot for slot in harness.store.find_slots() if slot.instance_id]
    assert [slot.launch_digest for slot in slots] == [digest_in_force(harness)] * count


def test_a_request_that_is_sent_again_keeps_its_digest() -> None:
    harness = Harness(with_image("ami-1"))
    harness.submit("r1")
    harness.tick()
    harness.fleet.errors.append(CloudError("transient", "ConnectionError", "no answer"))
    slot = harness.slot()
    assert launch(harness.ports, slot.launch_id or "", slot.id) == "transient"
    before = digest_in_force(harness)
    apply_rules(harness.ports, with_image("ami-2"))
    harness.settle()
    assert harness.slot().launch_digest == before


def test_an_adopted_machine_has_the_age_that_ec2_names_and_does_not_drift() -> None:
    harness = Harness(with_image("ami-1"))
    harness.fleet.appear("i-lost", "linux-1", launched_at=harness.now - 500)
    reconcile(harness.ports)
    slot = harness.slot()
    assert (slot.state, slot.launched_at, slot.launch_digest) == ("booting", harness.now - 500, None)
    assert find_drift(slot, digest_in_force(harness)) == ()


def test_a_slot_without_a_machine_has_neither() -> None:
    harness = Harness(with_image("ami-1", idle_scale_down=1))
    harness.submit("r1")
    harness.settle(20)
    assert harness.slot().launched_at is not None
    harness.fleet.terminate([harness.slot().instance_id or ""])
    harness.settle()
    assert (harness.slot().state, harness.slot().launched_at, harness.slot().launch_digest) == ("empty", None, None)


def test_conditions_name_what_has_drifted_and_the_windows_that_are_open() -> None:
    always = {"cron": "* * * * *", "duration": "1h", "target_warm_slots": 0}
    harness = Harness(with_image("ami-1"))
    harness.leased()
    apply_rules(harness.ports, with_image("ami-2", schedules=[always]))
    found = describe_conditions(harness.ports)
    assert found["slots"]["linux-1"] == ["drifted: the pool has another image now"]
    [text] = found["pools"]["linux"]
    assert text.startswith("schedule * * * * *: target_warm_slots = 0 until ")
