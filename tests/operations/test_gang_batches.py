"""The machines of a gang: all of them in one request, and none is kept while another one is missing."""

from typing import Any

import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.operations.machines.launch import launch
from scheduler.ports import CloudError, LaunchAnswer
from tests.operations.harness import Harness

POOL: dict[str, Any] = {"system": "x86_64-linux", "max_slots": 6, "lease_ttl": 0, "launch_timeout": 30}
GANG: dict[str, Any] = {"components": [{"name": "worker", "count": 3}]}
NAMES = ["linux-1", "linux-2", "linux-3"]


@pytest.fixture
def harness() -> Harness:
    """A harness with the planned launches of a gang of three and of one other reservation."""
    harness = Harness({"pools": {"linux": POOL}})
    harness.submit("gang", **GANG)
    harness.submit("single")
    harness.tick()
    return harness


def batch_of(harness: Harness) -> str:
    return harness.slot().batch or ""


def states(harness: Harness) -> list[str]:
    """Return the states of the slots that were launched for the gang."""
    return [harness.slot(name).state for name in NAMES]


def test_the_machines_of_a_gang_are_a_batch_of_their_own(harness: Harness) -> None:
    gangs = {name: harness.slot(name).gang for name in [*NAMES, "linux-4"]}
    assert gangs == {**dict.fromkeys(NAMES, "gang"), "linux-4": None}
    assert {harness.slot(name).batch for name in NAMES} == {batch_of(harness)} != {""}
    assert harness.slot("linux-4").batch is None
    harness.settle()
    assert (harness.phase("gang"), harness.phase("single")) == ("leased", "leased")
    assert len(harness.fleet.machines) == 4


@pytest.mark.parametrize(("fields", "is_gang"), [(GANG, True), ({}, False)])
def test_an_order_has_whether_its_machines_are_of_use_only_together(fields: dict[str, Any], is_gang: bool) -> None:
    harness = Harness({"pools": {"linux": POOL}})
    for number in range(2):
        harness.submit(f"r{number}", **fields)
    harness.tick()
    harness.fleet.errors = [CloudError("transient", "InternalError", "")]
    launch(harness.ports, batch_of(harness))
    stored = harness.slot().launch_request
    assert stored is not None
    assert stored["order"]["is_gang"] is is_gang


def test_an_incomplete_gang_is_ended_at_once(harness: Harness) -> None:
    harness.fleet.most = 2
    assert launch(harness.ports, batch_of(harness)) == "capacity"
    assert states(harness) == ["terminating", "terminating", "empty"]
    assert launch(harness.ports, batch_of(harness)) == "not_wanted"
    harness.fleet.most = 0
    harness.play_tasks()
    assert sorted(harness.fleet.terminations) == ["i-1", "i-2"]
    assert states(harness) == ["empty"] * 3


def test_a_killed_worker_leaves_the_end_of_an_incomplete_gang_to_the_next_one(harness: Harness) -> None:
    harness.fleet.most = 2
    launch(harness.ports, batch_of(harness))
    harness.mailbox.tasks.clear()
    harness.fleet.most = None
    harness.settle(120)
    assert sorted(harness.fleet.terminations) == ["i-1", "i-2"]
    assert harness.phase("gang") == "leased"
    assert len(harness.fleet.running) == 4


def test_what_an_incomplete_gang_has_cost_is_booked(harness: Harness) -> None:
    harness.fleet.most = 2
    launch(harness.ports, batch_of(harness))
    harness.mailbox.tasks.clear()
    harness.now += 60
    harness.settle(10)
    assert sum(cost.seconds for cost in harness.store.read_costs()) >= 2 * 60


@pytest.mark.parametrize("has_error", [True, False])
def test_an_incomplete_gang_pauses_its_offering_even_without_an_error_of_ec2(
    harness: Harness, *, has_error: bool
) -> None:
    batch = batch_of(harness)
    harness.fleet.most = 2
    if not has_error:
        answer = harness.fleet.launch

        def without_error(request: Any) -> LaunchAnswer:
            return LaunchAnswer(machines=answer(request).machines)

        harness.fleet.launch = without_error  # type: ignore[method-assign]
    launch(harness.ports, batch)
    assert [row.kind for row in harness.store.read_rows() if isinstance(row, Hold)] == ["capacity"]
    harness.now += 1
    harness.tick()
    assert [harness.slot(name).state for name in NAMES].count("launching") == 0


def test_slots_that_were_given_up_do_not_make_a_gang_incomplete(harness: Harness) -> None:
    """Its reservation was cancelled, so nothing of the gang is wanted; then the answer has no partial machines."""

    def meanwhile() -> None:
        harness.fleet.during_launch = lambda: None
        harness.ask("cancel", reservation="gang")
        harness.now += 31
        harness.tick()

    harness.fleet.during_launch = meanwhile
    assert launch(harness.ports, batch_of(harness)) == "aborted"
    assert harness.fleet.running == []
    assert states(harness) == ["empty"] * 3
