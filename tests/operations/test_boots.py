"""Failed boots in a row: they pause the launches of their pool, are stored in a row, and are counted."""

from typing import Any

import msgspec
import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.model.slots import Machine
from scheduler.operations.machines.check import check
from tests.builders import a_slot
from tests.operations.harness import CONFIG, NOW, Harness


def a_harness(**keys: Any) -> Harness:
    pool = {**CONFIG["pools"]["linux"], "unhealthy_after": 2, "boot_timeout": 100, "error_cooldown": 60, **keys}
    harness = Harness({"pools": {"linux": pool}})
    harness.submit("r1")
    return harness


def boot_and_lose(harness: Harness) -> None:
    """Launch a machine and terminate it before its slot is ready."""
    harness.tick()
    harness.play_tasks_of("launch")
    name = next(slot.id for slot in harness.store.find_slots(states=["booting"]))
    harness.fleet.terminate(harness.fleet.running)
    check(harness.ports, [name])


def die(harness: Harness, names: list[str], reason: str, category: str | None = None, scope: str = "") -> None:
    """Let EC2 end these machines with a state reason, and check their slots."""
    for name in names:
        harness.fleet.machines[name] = msgspec.structs.replace(
            harness.fleet.machines[name], state="terminated", reason=reason, category=category, scope=scope or None
        )
    check(harness.ports, [slot.id for slot in harness.store.find_slots() if slot.instance_id in names])


def holds(harness: Harness) -> dict[str, Hold]:
    return {row.id: row for row in harness.store.read_rows() if isinstance(row, Hold)}


def boot(harness: Harness, count: int) -> list[str]:
    """Launch the machines of `count` slots, which do not become ready. Return the ids of the machines."""
    harness.fleet.is_ready = lambda slot, machine, rules: False  # type: ignore[method-assign]
    for number in range(1, count):
        harness.submit(f"r{number + 1}")
    harness.tick()
    harness.play_tasks()
    machines = [str(slot.instance_id) for slot in harness.store.find_slots(states=["booting", "binding"])]
    assert len(machines) == count
    return machines


def test_a_machine_that_dies_leaves_the_reason_on_its_slot_in_the_event_and_in_the_log() -> None:
    harness = a_harness()
    [machine] = boot(harness, 1)
    die(harness, [machine], "Client.InternalError: the key of the volume is disabled")
    reason = "Client.InternalError: the key of the volume is disabled"
    assert (harness.slot().state, harness.slot().refusal) == ("empty", reason)
    event = next(each for each in reversed(harness.events) if each.name == "slot_empty")
    assert (event.detail["reason"], event.detail["refusal"]) == ("gone", reason)
    assert unhealthy(harness) == (1, 0, "linux-1 lost its machine while binding")
    harness.tick()
    assert (harness.slot().state, harness.slot().refusal) == ("launching", None)


def test_a_machine_whose_end_was_decided_here_leaves_no_reason() -> None:
    harness = Harness(CONFIG).leased()
    harness.ask("release", reservation="r1", token=harness.token())
    harness.ask("drain", slot="linux-1")
    harness.tick()
    die(harness, ["i-1"], "Client.UserInitiatedShutdown: User initiated shutdown")
    assert (harness.slot().state, harness.slot().refusal) == ("empty", None)


def test_a_boot_that_ends_for_the_reason_of_a_refused_launch_pauses_launches_like_one() -> None:
    """The pause of a quota ends when fewer slots are active than after the refusal, so all slots that died count."""
    harness = a_harness(max_leases_per_slot=1)
    machines = boot(harness, 3)
    die(harness, machines[:2], "Client.VolumeLimitExceeded: too many volumes", "quota", "pool")
    [hold] = holds(harness).values()
    assert (hold.id, hold.code, hold.message) == ("linux/quota/", "Client.VolumeLimitExceeded", "too many volumes")
    assert (hold.active, hold.streak, hold.at_boot, hold.until) == (1, 1, True, NOW + 60)
    assert unhealthy(harness) is None
    assert [waiting.code for waiting in harness.tick().plan.waiting] == ["booting", "at_quota", "at_quota"]


def test_a_machine_that_becomes_ready_ends_the_pause_of_refused_boots() -> None:
    harness = a_harness()
    [machine] = boot(harness, 1)
    die(harness, [machine], "Client.VolumeLimitExceeded: too many volumes", "quota", "pool")
    del harness.fleet.is_ready
    harness.now += 60
    harness.settle(10)
    assert (harness.phase(), holds(harness)) == ("leased", {})


@pytest.mark.parametrize(("zone", "subject"), [("a", "@a"), ("c", ""), (None, "")])
def test_a_boot_that_ends_for_lack_of_capacity_rests_the_zone_of_the_machine_if_the_rules_name_it(
    zone: str | None, subject: str
) -> None:
    harness = a_harness(ec2={"subnets": ["a:subnet-1", "b:subnet-2"]})
    [machine] = boot(harness, 1)
    harness.fleet.machines[machine] = msgspec.structs.replace(harness.fleet.machines[machine], zone=zone)
    die(harness, [machine], "Server.InsufficientInstanceCapacity: none left", "capacity", "offering")
    assert list(holds(harness)) == [f"linux/capacity/{subject}"]


def unhealthy(harness: Harness) -> tuple[int, float, str] | None:
    """Return (failed boots in a row, seconds until the next launch, how the last boot failed)."""
    rows = [row for row in harness.store.read_rows() if isinstance(row, Hold) and row.kind == "unhealthy"]
    return (rows[0].streak, rows[0].until - harness.now, rows[0].subject) if rows else None


def why(harness: Harness) -> tuple[str, str]:
    (waiting,) = harness.tick().plan.waiting
    return waiting.code, waiting.detail


def test_failed_boots_in_a_row_pause_the_launches_of_the_pool_with_a_reason() -> None:
    harness = a_harness()
    boot_and_lose(harness)
    assert unhealthy(harness) == (1, 0, "linux-1 lost its machine while booting")
    boot_and_lose(harness)
    assert unhealthy(harness) == (2, 60, "linux-1 lost its machine while booting")
    harness.restart()
    assert why(harness) == (
        "misconfigured",
        (
            "2 boots in a row failed (the last one: linux-1 lost its machine while booting); "
            "launches of linux rest, then one is tried alone"
        ),
    )


def test_after_the_pause_one_launch_is_tried_alone() -> None:
    harness = a_harness()
    for _ in range(2):
        boot_and_lose(harness)
    harness.submit("r2")
    harness.now += 59.9
    assert harness.tick().plan.wake_at == pytest.approx(harness.now + 0.1)
    assert harness.store.find_slots(states=["launching"]) == []
    harness.now += 0.2
    assert [each.code for each in harness.tick().plan.waiting] == ["booting", "misconfigured"]
    harness.play_tasks_of("launch")
    check(harness.ports, ["linux-1"])
    assert unhealthy(harness) == (0, 0, "linux-1 lost its machine while booting"), "a successful boot resets the count"
    assert [each.code for each in harness.tick().plan.waiting] == ["booting"]


def test_a_failed_trial_launch_pauses_the_pool_again() -> None:
    harness = a_harness()
    for _ in range(2):
        boot_and_lose(harness)
    harness.now += 60
    boot_and_lose(harness)
    assert unhealthy(harness) == (3, 60, "linux-1 lost its machine while booting")
    assert why(harness)[0] == "misconfigured"


def test_the_tick_that_counts_the_last_failed_boot_launches_nothing() -> None:
    harness = a_harness(unhealthy_after=1)
    harness.tick()
    harness.play_tasks_of("launch")
    harness.now += 100
    assert why(harness) == (
        "misconfigured",
        "1 boots in a row failed (the last one: linux-1 timed out); launches of linux rest, then one is tried alone",
    )
    assert unhealthy(harness) == (1, 60, "linux-1 timed out while booting")


@pytest.mark.parametrize(
    "changes",
    [
        {"interrupted_at": NOW, "interrupted_by": NOW},  # interrupted by EC2
        {"drain_reason": "requested"},  # drained by an operator
    ],
)
def test_a_boot_that_was_interrupted_or_drained_does_not_count_as_failed(changes: dict[str, Any]) -> None:
    harness = a_harness()
    harness.put(a_slot("linux-1", state="booting", version=1, instance_id="i-1", **changes))
    harness.fleet.appear("i-1", state="terminated")
    check(harness.ports, ["linux-1"])
    assert (harness.slot().state, unhealthy(harness)) == ("empty", None)


def test_with_unhealthy_after_0_failed_boots_pause_nothing() -> None:
    harness = a_harness(unhealthy_after=0)
    for _ in range(5):
        boot_and_lose(harness)
    assert unhealthy(harness) is None
    assert why(harness)[0] == "booting"


def test_outcomes_of_boots_are_counted() -> None:
    harness = a_harness()
    boot_and_lose(harness)
    harness.tick()
    harness.play_tasks()
    harness.fleet.terminate(harness.fleet.running)
    check(harness.ports, ["linux-1"])
    harness.put(a_slot("linux-2", state="booting", version=1, instance_id="i-8", since=harness.now - 100))
    harness.put(
        a_slot("linux-3", state="booting", version=1, instance_id="i-9", interrupted_at=harness.now, since=harness.now)
    )
    harness.tick()
    counted = {
        (name.removeprefix("leasehold_"), *(value for _, value in labels)): count
        for (name, labels), count in harness.meter.counts.items()
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


def probe_ready_slot(harness: Harness, *answers: bool) -> None:
    """Check the ready slot once for each answer of EC2's status checks."""
    for healthy in answers:
        harness.fleet.machines["i-linux-1"] = Machine(id="i-linux-1", state="running", healthy=healthy)
        check(harness.ports, ["linux-1"])


@pytest.mark.parametrize(
    ("answers", "state"),
    [
        ((False, False), "draining"),
        ((False, True, False), "ready"),  # a healthy answer resets the count
        ((True,), "ready"),
        ((False,), "ready"),
    ],
)
def test_a_ready_slot_whose_probes_fail_in_a_row_is_drained(answers: tuple[bool, ...], state: str) -> None:
    harness = a_harness()
    harness.put(a_slot("linux-1", version=1, since=harness.now, idle_since=harness.now))
    probe_ready_slot(harness, *answers)
    harness.tick()
    assert (harness.slot().state, harness.slot().drain_reason) == (state, "unhealthy" if state == "draining" else None)


def test_a_machine_without_a_probe_never_counts_as_failing() -> None:
    """EC2 reports no status checks, or the pool does not use them."""
    for keys, healthy in (({}, None), ({"unhealthy_after": 0}, False)):
        harness = a_harness(**keys)
        harness.put(a_slot("linux-1", version=1, since=harness.now))
        harness.fleet.machines["i-linux-1"] = Machine(id="i-linux-1", state="running", healthy=healthy)
        for _ in range(5):
            check(harness.ports, ["linux-1"])
        assert harness.slot().failed_probes == 0
