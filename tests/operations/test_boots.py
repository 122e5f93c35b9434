"""Boots that fail in a row hold their pool, survive a restart as a row, and are counted."""

from typing import Any

import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.model.slots import Machine
from scheduler.operations.machines.check import check
from tests.builders import a_slot
from tests.operations.harness import CONFIG, NOW, Harness


def a_rig(**keys: Any) -> Harness:
    pool = {**CONFIG["pools"]["linux"], "unhealthy_after": 2, "boot_timeout": 100, "error_cooldown": 60, **keys}
    rig = Harness({"pools": {"linux": pool}})
    rig.submit("r1")
    return rig


def boot_and_lose(rig: Harness) -> None:
    """A launch is decided and made, and its machine is gone before it serves."""
    rig.tick()
    rig.play_tasks_of("launch")
    name = next(slot.id for slot in rig.store.find_slots(states=["booting"]))
    rig.fleet.terminate(rig.fleet.running)
    check(rig.ports, [name])


def unhealthy(rig: Harness) -> tuple[int, float, str] | None:
    """(boots that failed in a row, seconds that launches rest from now, how the last one failed)"""
    rows = [row for row in rig.store.read_rows() if isinstance(row, Hold) and row.kind == "unhealthy"]
    return (rows[0].streak, rows[0].until - rig.now, rows[0].subject) if rows else None


def why(rig: Harness) -> tuple[str, str]:
    (waiting,) = rig.tick().plan.waiting
    return waiting.code, waiting.detail


def test_boots_that_fail_in_a_row_hold_the_pool_with_a_reason() -> None:
    rig = a_rig()
    boot_and_lose(rig)
    assert unhealthy(rig) == (1, 0, "linux-1 lost its machine while booting")
    boot_and_lose(rig)
    assert unhealthy(rig) == (2, 60, "linux-1 lost its machine while booting")
    rig.restart()
    assert why(rig) == (
        "misconfigured",
        (
            "2 boots in a row failed (the last one: linux-1 lost its machine while booting); "
            "launches of linux rest, then one is tried alone"
        ),
    )


def test_after_the_cool_down_one_launch_is_tried_alone() -> None:
    rig = a_rig()
    for _ in range(2):
        boot_and_lose(rig)
    rig.submit("r2")
    rig.now += 59.9
    assert rig.tick().plan.wake_at == pytest.approx(rig.now + 0.1)
    assert rig.store.find_slots(states=["launching"]) == []
    rig.now += 0.2
    assert [each.code for each in rig.tick().plan.waiting] == ["booting", "misconfigured"]
    rig.play_tasks_of("launch")
    check(rig.ports, ["linux-1"])
    assert unhealthy(rig) == (0, 0, "linux-1 lost its machine while booting"), "a boot that succeeds ends the row"
    assert [each.code for each in rig.tick().plan.waiting] == ["booting"]


def test_the_probe_that_fails_holds_the_pool_again() -> None:
    rig = a_rig()
    for _ in range(2):
        boot_and_lose(rig)
    rig.now += 60
    boot_and_lose(rig)
    assert unhealthy(rig) == (3, 60, "linux-1 lost its machine while booting")
    assert why(rig)[0] == "misconfigured"


def test_the_boot_that_makes_it_enough_is_not_launched_for_again_in_its_tick() -> None:
    rig = a_rig(unhealthy_after=1)
    rig.tick()
    rig.play_tasks_of("launch")
    rig.now += 100
    assert why(rig) == (
        "misconfigured",
        "1 boots in a row failed (the last one: linux-1 timed out); launches of linux rest, then one is tried alone",
    )
    assert unhealthy(rig) == (1, 60, "linux-1 timed out while booting")


@pytest.mark.parametrize(
    "changes",
    [
        {"interrupted_at": NOW, "interrupted_by": NOW},  # the cloud took it back
        {"drain_reason": "requested"},  # an operator did not want it
    ],
)
def test_a_boot_that_was_not_to_succeed_is_none(changes: dict[str, Any]) -> None:
    rig = a_rig()
    rig.put(a_slot("linux-1", state="booting", version=1, instance_id="i-1", **changes))
    rig.fleet.appear("i-1", state="terminated")
    check(rig.ports, ["linux-1"])
    assert (rig.slot().state, unhealthy(rig)) == ("empty", None)


def test_at_0_it_is_off() -> None:
    rig = a_rig(unhealthy_after=0)
    for _ in range(5):
        boot_and_lose(rig)
    assert unhealthy(rig) is None
    assert why(rig)[0] == "booting"


def test_what_became_of_boots_is_counted() -> None:
    rig = a_rig()
    boot_and_lose(rig)
    rig.tick()
    rig.play_tasks()
    rig.fleet.terminate(rig.fleet.running)
    check(rig.ports, ["linux-1"])
    rig.put(a_slot("linux-2", state="booting", version=1, instance_id="i-8", since=rig.now - 100))
    rig.put(a_slot("linux-3", state="booting", version=1, instance_id="i-9", interrupted_at=rig.now, since=rig.now))
    rig.tick()
    counted = {
        (name.removeprefix("leasehold_"), *(value for _, value in labels)): count
        for (name, labels), count in rig.meter.counts.items()
        if "boot" in name or "disappeared" in name
    }
    assert counted == {
        ("boot_outcomes_total", "disappeared", "linux"): 1,
        ("boot_outcomes_total", "success", "linux"): 1,
        ("boot_outcomes_total", "failure", "linux"): 1,
        ("boot_outcomes_total", "aborted", "linux"): 1,
        ("slot_disappeared_total", "booting"): 1,
        ("slot_disappeared_total", "ready"): 1,
    }


def probe_ready_slot(rig: Harness, *answers: bool) -> None:
    """EC2's status checks say this of a ready slot, one look after the other."""
    for healthy in answers:
        rig.fleet.machines["i-linux-1"] = Machine(id="i-linux-1", state="running", healthy=healthy)
        check(rig.ports, ["linux-1"])


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ((False, False), "draining"),
        ((False, True, False), "ready"),  # a good one begins anew
        ((True,), "ready"),
        ((False,), "ready"),
    ],
)
def test_a_ready_slot_whose_probes_fail_in_a_row_is_drained(answers: tuple[bool, ...], state: str) -> None:
    rig = a_rig()
    rig.put(a_slot("linux-1", version=1, since=rig.now, idle_since=rig.now))
    probe_ready_slot(rig, *answers)
    rig.tick()
    assert (rig.slot().state, rig.slot().drain_reason) == (state, "unhealthy" if state == "draining" else None)


def test_of_a_machine_that_nobody_asks_nothing_is_held_against_it() -> None:
    """EC2's status checks are not known, or the pool looks at none."""
    for keys, healthy in (({}, None), ({"unhealthy_after": 0}, False)):
        rig = a_rig(**keys)
        rig.put(a_slot("linux-1", version=1, since=rig.now))
        rig.fleet.machines["i-linux-1"] = Machine(id="i-linux-1", state="running", healthy=healthy)
        for _ in range(5):
            check(rig.ports, ["linux-1"])
        assert rig.slot().failed_probes == 0
