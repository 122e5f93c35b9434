"""Launched machines with agents (`agent = true`): they are ready when their agent has registered, count as offline
without heartbeats, and are replaced.
"""

from typing import Any

import msgspec
import pytest

from scheduler.operations.machines.check import sweep
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.tick.heartbeat_intake import hear_hosts
from tests.operations.harness import CONFIG, CountingFleet, Harness
from workers.probes import Probes

TIMEOUT = 30.0


def a_harness(*, fleet: CountingFleet | None = None, **keys: Any) -> Harness:
    """Return a harness with one machine that has booted and one reservation that waits for it."""
    pool = {**CONFIG["pools"]["linux"], "agent": True, "offline_timeout": TIMEOUT, "max_slots": 2, **keys}
    harness = Harness({"pools": {"linux": pool}}, fleet=fleet)
    harness.fleet.is_ready = Probes().is_ready  # type: ignore[method-assign]
    harness.submit("r1", restart_policy="on_failure")
    harness.tick()
    check_machines(harness)
    return harness


def check_machines(harness: Harness) -> None:
    """Carry out all tasks, and check the machines twice: one check moves a slot one state on."""
    for _ in range(2):
        harness.play_tasks()
        sweep(harness.ports, all_machines=True)
    harness.play_tasks()


def register(harness: Harness, machine: str = "i-1", **fields: Any) -> dict[str, Any]:
    return harness.ask("register", **{"slot": "linux-1", "pool": "linux", "machine": machine, "run": "a", **fields})


def serve(harness: Harness) -> Harness:
    """Let the agent register, and lease the slot to the reservation."""
    assert register(harness)["ok"]
    harness.play_tasks()
    harness.tick()
    assert harness.phase() == "leased"
    return harness


def test_a_machine_is_ready_when_its_agent_has_registered() -> None:
    harness = a_harness()
    assert harness.slot("linux-1").state == "binding"
    answer = register(harness, resources={"cpus": 99}, labels={"disk": "own"})
    assert (answer["ok"], answer["offline_timeout"]) == (True, TIMEOUT)
    harness.play_tasks()
    slot = harness.slot("linux-1")
    assert (slot.state, slot.machine, slot.run, slot.resources, slot.labels) == ("ready", "i-1", "a", None, {})


def test_an_agent_that_registers_before_the_cloud_shows_its_machine_is_remembered() -> None:
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "agent": True}}})
    harness.fleet.is_ready = Probes().is_ready  # type: ignore[method-assign]
    harness.submit("r1")
    harness.tick()
    harness.fleet.hidden.add("i-1")
    harness.play_tasks()
    assert harness.slot("linux-1").state == "booting"
    assert register(harness)["ok"]
    harness.play_tasks()
    harness.fleet.hidden.clear()
    check_machines(harness)
    assert harness.slot("linux-1").state == "ready"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"machine": "i-2"}, "machine"),
        ({"slot": "linux-2"}, "slot"),
        ({"slot": "linux-9"}, "slot"),
        ({"pool": "other"}, "pool"),
    ],
)
def test_another_machine_a_slot_without_one_and_another_pool_are_refused(fields: dict[str, str], path: str) -> None:
    harness = a_harness()
    refused = register(harness, **fields)
    assert [each["path"] for each in refused["errors"]] == [path]
    assert harness.slot("linux-1").machine is None


def test_a_pool_without_agents_takes_no_registration() -> None:
    harness = a_harness(agent=False)
    assert [each["path"] for each in register(harness)["errors"]] == ["pool"]


def test_a_second_live_agent_of_the_machine_is_refused() -> None:
    harness = serve(a_harness())
    harness.heartbeats.beat("linux-1", "i-1")
    assert [each["path"] for each in register(harness, run="b")["errors"]] == ["run"]


def test_a_silent_machine_fails_its_lease_drains_and_is_replaced() -> None:
    harness = serve(a_harness())
    harness.now += TIMEOUT - 1
    harness.heartbeats.beat("linux-1", "i-1")
    hear_hosts(harness.ports)
    harness.now += TIMEOUT
    harness.tick()
    assert (harness.phase(), harness.slot("linux-1").state) == ("leased", "ready")
    harness.now += 0.5
    ticked = harness.tick()
    decided = [msgspec.to_builtins(each) for each in ticked.plan.decisions]
    assert {"do": "drain", "slot": "linux-1", "reason": "silent"} in decided
    assert {"do": "fail", "reservation": "r1", "reason": "slot_offline"} in decided
    harness.tick()
    harness.play_tasks()
    assert harness.fleet.terminations == ["i-1"]
    harness.settle(30)
    slot = next(iter(harness.store.find_slots(states=["binding"])))
    assert (slot.instance_id, slot.machine, slot.run) == ("i-2", None, None)


def test_a_machine_without_an_agent_is_not_silent_after_the_rules_ask_for_agents() -> None:
    harness = Harness().leased()
    pool = {**CONFIG["pools"]["linux"], "agent": True, "offline_timeout": TIMEOUT}
    apply_rules(harness.ports, {"pools": {"linux": pool}})
    harness.now += 10 * TIMEOUT
    harness.tick()
    assert harness.phase() == "leased"


def test_a_machine_with_an_agent_is_terminated_after_its_pool_was_removed_from_the_rules() -> None:
    harness = serve(a_harness())
    apply_rules(harness.ports, {"pools": {"arm": {"system": "aarch64-linux", "max_slots": 1}}})
    harness.tick()
    assert (harness.phase(), harness.slot("linux-1").state) == ("leased", "draining")
    assert harness.ask("release", reservation="r1", token=harness.token())["ok"]
    harness.settle(60)
    assert (harness.fleet.running, harness.slot("linux-1").state) == ([], "empty")


def test_a_machine_with_an_agent_cannot_be_removed_after_its_pool() -> None:
    harness = serve(a_harness())
    apply_rules(harness.ports, {"pools": {"arm": {"system": "aarch64-linux", "max_slots": 1}}})
    refused = harness.ask("remove", slot="linux-1")
    assert [error["expected"] for error in refused["errors"]] == ["a slot of a static pool"]
    assert harness.phase() == "leased"
