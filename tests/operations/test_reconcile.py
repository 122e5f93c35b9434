"""The sweep for orphans, both ways: what runs is known or goes, and what is known is counted as it runs."""

from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.model.rules import read_rules
from scheduler.model.slots import Machine
from scheduler.operations.machines.check import YOUNG_SECONDS, check
from scheduler.operations.machines.launch import MOST_ATTEMPTS, launch, order_of
from scheduler.operations.machines.reconcile import ORPHAN_SECONDS, STRANGER_SECONDS, Reconciled, reconcile
from scheduler.operations.machines.recover import sweep
from scheduler.operations.machines.terminate import terminate
from scheduler.ports import CloudError
from scheduler.store.memory import MemoryStore
from tests.builders import a_slot
from tests.operations.harness import CONFIG, NOW, Harness

OFFERINGS = [
    {"name": "small", "type": "c5.large", "price": 1, "resources": {"cpus": 2}, "labels": {"disk": "ssd"}},
    {"name": "big", "type": "c5.xlarge", "market": "on-demand", "price": 2, "resources": {"cpus": 4}},
]


def with_pool(**keys: Any) -> Harness:
    return Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], **keys}}})


def holds(rig: Harness) -> dict[str, int]:
    """Pool -> machines that no slot knows, as the launches count them."""
    return {row.pool: row.active for row in rig.store.read_rows() if row.id.endswith("/strangers/")}  # type: ignore[union-attr]


def waiting(rig: Harness) -> list[tuple[str, str]]:
    return [(each.code, each.detail) for each in rig.tick().plan.waiting]


def test_a_machine_that_no_slot_knows_is_adopted_under_its_slots_id() -> None:
    rig = Harness()
    rig.fleet.appear("i-lost", "linux-2", launched_at=NOW - 10, type="c5.large", zone="a")
    assert reconcile(rig.ports) == Reconciled(adopted=1)
    slot = rig.slot("linux-2")
    assert (slot.state, slot.epoch, slot.instance_id, slot.launch_id) == ("booting", 1, "i-lost", "launch-of-i-lost")
    assert (slot.zone, slot.offering) == ("a", None)
    assert [event.name for event in rig.events if event.slot] == ["slot_adopted"]
    assert reconcile(rig.ports) == Reconciled()
    rig.submit("r1")
    rig.tick()
    assert [row.state for row in rig.store.find_slots() if row.state == "launching"] == [], "it waits for the one found"
    rig.play_tasks()
    rig.tick()
    assert (rig.phase(), rig.slot("linux-2").state) == ("leased", "ready")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # what the tag says, as it is configured now
        ({"offering": "big"}, ("big", "on-demand", 2, {"cpus": 4}, {})),
        # no tag: what it looks like
        ({"type": "c5.large", "market": "spot"}, ("small", "spot", 1, {"cpus": 2}, {"disk": "ssd"})),
        # no longer configured: what the pool's slots hold
        ({"offering": "old", "market": "spot"}, ("old", "spot", None, {"cpus": 1}, {})),
        ({"type": "m5.large", "market": "spot"}, ("m5.large", "spot", None, {"cpus": 1}, {})),
    ],
)
def test_an_adopted_slot_holds_what_its_offering_does(tags: dict[str, Any], expected: tuple[Any, ...]) -> None:
    rig = with_pool(offerings=OFFERINGS, resources={"cpus": 1})
    rig.fleet.appear("i-lost", **tags)
    reconcile(rig.ports)
    slot = rig.slot()
    assert (slot.offering, slot.market, slot.price, slot.resources, slot.labels) == expected


CANNOT_BE_ADOPTED: dict[str, dict[str, Any]] = {
    # tags of the machine, what is special about the fleet
    "its slot has a machine": {"slot": "linux-1"},
    "another one is adopted already": {"slot": "linux-2"},
    "of a pool that is not configured": {"slot": "windows-1", "pool": "windows"},
    "its slot is another pool's": {"slot": "linux-3", "pool": "windows"},
    "beyond max_slots": {"slot": "linux-4"},
    "it is on its way out": {"slot": "linux-3", "state": "stopping"},
    "without tags": {"slot": None, "pool": None, "launch_id": None},
}


@pytest.mark.parametrize("name", CANNOT_BE_ADOPTED)
def test_what_cannot_be_adopted_is_ended_once_it_is_old(name: str) -> None:
    """A young one may belong to a launch whose answer is on its way."""
    rig = Harness().leased()
    rig.fleet.appear("i-lost-1", "linux-2")
    reconcile(rig.ports)
    rig.play_tasks()
    rig.fleet.appear("i-lost-2", **CANNOT_BE_ADOPTED[name], launched_at=rig.now)
    rig.now += ORPHAN_SECONDS - 1
    assert reconcile(rig.ports) == Reconciled(strangers=1)
    assert rig.fleet.terminations == []
    rig.now += 1
    assert reconcile(rig.ports) == Reconciled(strangers=1, ended=1)
    assert rig.fleet.terminations == ["i-lost-2"]
    assert [row.instance_id for row in rig.store.find_slots() if row.instance_id] == ["i-1", "i-lost-1"]
    assert reconcile(rig.ports) == Reconciled()


def test_an_orphan_that_is_ended_leaves_an_event() -> None:
    rig = Harness()
    rig.fleet.appear("i-lost", "linux-9")
    reconcile(rig.ports)
    (event,) = [each for each in rig.events if each.name == "machine_orphaned"]
    assert event.detail == {"instance": "i-lost", "pool": "linux", "slot": "linux-9", "launch": "launch-of-i-lost"}


def test_without_rules_no_machine_is_touched() -> None:
    """A database that was just made, in place of the one that knows these machines."""
    rig = Harness()
    assert isinstance(rig.store, MemoryStore)
    rig.store._world.rules = type(rig.store.load_rules())(0, {}, read_rules({}))
    rig.fleet.appear("i-lost", "linux-9")
    assert reconcile(rig.ports) == Reconciled()
    assert rig.fleet.terminations == []


def a_launch_whose_answer_was_lost() -> Harness:
    rig = Harness()
    rig.submit("r1")
    rig.tick()
    rig.mailbox.tasks.clear()

    def lose() -> None:
        rig.fleet.during_launch = lambda: None
        raise CloudError("transient", "Timeout", "no answer")

    rig.fleet.during_launch = lose
    assert launch(rig.ports, "linux-1", rig.slot().launch_id or "") == "transient"
    return rig


def test_a_launch_whose_answer_was_lost_is_settled_with_its_machine() -> None:
    rig = a_launch_whose_answer_was_lost()
    assert reconcile(rig.ports) == Reconciled(settled=1)
    assert (rig.slot().state, rig.slot().instance_id) == ("booting", "i-1")
    assert reconcile(rig.ports) == Reconciled()
    assert [event.name for event in rig.events].count("slot_adopted") == 0


def test_of_two_machines_of_one_launch_the_second_is_ended_at_once() -> None:
    """That must never be; if it is, it costs money and nobody uses it."""
    rig = a_launch_whose_answer_was_lost()
    rig.fleet.appear("i-2", launch_id=rig.slot().launch_id, launched_at=rig.now)
    assert reconcile(rig.ports) == Reconciled(settled=1, ended=1)
    rig.fleet.appear("i-3", launch_id=rig.slot().launch_id, launched_at=rig.now)
    assert reconcile(rig.ports) == Reconciled(ended=1)
    assert (rig.slot().instance_id, rig.fleet.running) == ("i-1", ["i-1"])


def test_a_launch_that_is_made_while_the_cloud_is_listed_is_no_orphan() -> None:
    """The cloud first, SQL second: whatever the listing shows has its row by then."""
    rig = Harness()
    rig.submit("r1")
    listed = rig.fleet.sweep

    def launch_meanwhile() -> Iterator[Machine]:
        rig.tick()
        rig.fleet.launch(rig.ports.fleet.freeze(order_of(rig.slot()), rig.ports.rules()))
        return listed()

    rig.fleet.sweep = launch_meanwhile  # type: ignore[method-assign]
    assert reconcile(rig.ports) == Reconciled(settled=1)
    assert (rig.slot().state, rig.slot().instance_id, rig.fleet.terminations) == ("booting", "i-1", [])


def test_a_machine_that_ends_while_the_cloud_is_listed_is_not_adopted() -> None:
    """Its slot was emptied after its page was read, and before SQL was: it has no machine, and no boot failed."""
    rig = Harness().leased()
    rig.ask("release", reservation="r1", token=rig.token())
    rig.ask("drain", slot="linux-1")
    rig.tick()
    listed = list(rig.fleet.sweep())

    def end_meanwhile() -> Iterator[Machine]:
        rig.play_tasks()
        assert rig.slot().state == "empty"
        return iter(listed)

    rig.fleet.sweep = end_meanwhile  # type: ignore[method-assign]
    assert reconcile(rig.ports) == Reconciled()
    assert (rig.slot().state, rig.slot().instance_id) == ("empty", None)


def test_a_slot_that_is_adopted_meanwhile_is_adopted_once() -> None:
    """Two copies: the second has listed the cloud and read SQL before the first one wrote."""
    rig = Harness()
    rig.fleet.appear("i-lost")
    find_slots = rig.store.find_slots

    def meanwhile(**which: Any) -> Any:
        found = find_slots(**which)
        rig.store.find_slots = find_slots  # type: ignore[method-assign]
        assert reconcile(rig.ports).adopted == 1
        return found

    rig.store.find_slots = meanwhile  # type: ignore[method-assign]
    assert reconcile(rig.ports) == Reconciled()
    assert (rig.slot().epoch, rig.fleet.running) == (1, ["i-lost"])


def test_machines_that_no_slot_knows_count_towards_max_slots() -> None:
    rig = with_pool(max_slots=1)
    rig.fleet.appear("i-lost", "linux-7", launched_at=NOW)
    reconcile(rig.ports)
    rig.submit("r1")
    assert waiting(rig) == [
        (
            "at_max_slots",
            "a launch would serve it, but no slot is left within max_slots; machines of ours that no slot knows: 1",
        )
    ]
    rig.restart()
    assert [code for code, _ in waiting(rig)] == ["at_max_slots"], "a scheduler that was restarted knows it too"
    rig.now += ORPHAN_SECONDS
    kicks = rig.notifier.kicks
    reconcile(rig.ports)
    reconcile(rig.ports)
    assert rig.notifier.kicks == kicks + 1
    assert (holds(rig), rig.fleet.running) == ({}, [])
    assert [code for code, _ in waiting(rig)] == ["booting"]


def test_they_count_towards_the_maximum_over_all_pools_whatever_pool_they_name() -> None:
    rig = Harness({**CONFIG, "scheduler": {"max_slots": 1}})
    rig.fleet.appear("i-lost", "windows-1", pool="windows", launched_at=NOW)
    reconcile(rig.ports)
    rig.submit("r1")
    assert [code for code, _ in waiting(rig)] == ["at_max_slots"]


def test_they_count_no_longer_when_no_sweep_has_seen_them_for_a_while() -> None:
    rig = with_pool(max_slots=1)
    rig.fleet.appear("i-lost", "linux-7", launched_at=NOW)
    reconcile(rig.ports)
    rig.submit("r1")
    rig.now += STRANGER_SECONDS / 2
    reconcile(rig.ports)
    rig.now += STRANGER_SECONDS - 1
    assert [code for code, _ in waiting(rig)] == ["at_max_slots"]
    rig.now += 1
    assert [code for code, _ in waiting(rig)] == ["booting"]


def test_an_end_that_the_cloud_refused_is_asked_for_again_by_the_sweep() -> None:
    """A launch lost its write, and the call that was to end its machine failed: the slot is used anew meanwhile."""
    rig = Harness()
    rig.submit("r1")
    rig.tick()
    rig.mailbox.tasks.clear()
    ends, name = rig.fleet.terminate, rig.slot().launch_id or ""

    def refuse(machines: object) -> None:
        raise CloudError("throttled", "RequestLimitExceeded", str(machines))

    def meanwhile() -> None:
        rig.put(a_slot("linux-1", state="ready", version=rig.slot().version, epoch=2, launch_id="launch-2"))

    rig.fleet.during_launch, rig.fleet.terminate = meanwhile, refuse  # type: ignore[method-assign]
    with pytest.raises(CloudError):
        launch(rig.ports, "linux-1", name)
    assert rig.fleet.running == ["i-1"]
    rig.fleet.terminate = ends  # type: ignore[method-assign]
    assert reconcile(rig.ports) == Reconciled(strangers=1, ended=1)
    assert rig.fleet.running == []


def a_slot_on_its_way_out_of_a_launch() -> Harness:
    """The cloud has made a machine that its tags do not show yet; nobody heard the answer."""
    rig = a_launch_whose_answer_was_lost()
    rig.ask("cancel", reservation="r1")
    rig.now += 300
    rig.tick()
    rig.mailbox.tasks.clear()
    rig.fleet.hidden = {"i-1"}
    assert (rig.slot().state, rig.slot().instance_id) == ("terminating", None)
    return rig


def test_a_machine_too_young_to_be_listed_is_found_by_sending_its_request_again() -> None:
    rig = a_slot_on_its_way_out_of_a_launch()
    assert terminate(rig.ports, "linux-1", 1) == "asked"
    assert rig.fleet.running == []
    assert rig.slot().instance_id == "i-1"


@pytest.mark.parametrize("category", ["throttled", "auth", "transient", "unknown"])
def test_an_answer_that_tells_nothing_of_the_first_launch_does_not_empty_the_slot(category: Any) -> None:
    rig = a_slot_on_its_way_out_of_a_launch()
    rig.fleet.errors = [CloudError(category, "Code", "no")]
    assert terminate(rig.ports, "linux-1", 1) == category
    assert rig.slot().state == "terminating"
    rig.now += 60
    assert terminate(rig.ports, "linux-1", 1) == "asked"
    assert rig.fleet.running == []


@pytest.mark.parametrize("category", ["capacity", "quota", "misconfigured"])
def test_a_refusal_says_that_the_first_launch_made_nothing(category: Any) -> None:
    rig = a_slot_on_its_way_out_of_a_launch()
    rig.fleet.machines.clear()
    rig.fleet.errors = [CloudError(category, "Code", "no")]
    assert terminate(rig.ports, "linux-1", 1) == "empty"


def test_a_token_that_another_request_has_used_is_not_asked_for_ever() -> None:
    rig = a_slot_on_its_way_out_of_a_launch()
    rig.fleet.errors = [CloudError("unknown", "IdempotentParameterMismatch", "no")] * (MOST_ATTEMPTS + 1)
    said = []
    for _ in range(MOST_ATTEMPTS + 1):
        said.append(terminate(rig.ports, "linux-1", 1))
        rig.now += 60
    assert said == ["unknown"] * MOST_ATTEMPTS + ["empty"]
    rig.fleet.hidden = set()
    reconcile(rig.ports)
    rig.settle(400)
    assert rig.fleet.running == [], "what shows up later is adopted, and goes when it is idle"


def test_a_replay_that_is_throttled_leaves_the_slot_with_its_launch() -> None:
    """The first answer was lost and the machine was made: the slot must not be used for another."""
    rig = a_launch_whose_answer_was_lost()
    rig.fleet.errors = [CloudError("throttled", "RequestLimitExceeded", "slow down")]
    rig.now += 10
    assert launch(rig.ports, "linux-1", rig.slot().launch_id or "") == "throttled"
    assert rig.slot().state == "launching"
    assert [row.id for row in rig.store.read_rows() if row.id.endswith("/throttled/")] == ["linux/throttled/"]
    rig.now += 10
    assert launch(rig.ports, "linux-1", rig.slot().launch_id or "") == "success"
    assert rig.fleet.running == ["i-1"]


def test_a_machine_that_is_not_shown_yet_is_not_taken_for_gone_because_it_is_to_go() -> None:
    """Nobody knows whether the termination reached it."""
    rig = a_slot_on_its_way_out_of_a_launch()
    terminate(rig.ports, "linux-1", 1)
    for _ in range(5):
        check(rig.ports, ["linux-1"])
    assert rig.slot().state == "terminating"
    rig.now += YOUNG_SECONDS
    check(rig.ports, ["linux-1"])
    assert rig.slot().state == "empty"


@pytest.mark.parametrize("state", ["booting", "binding", "ready", "draining", "terminating"])
def test_every_state_with_a_machine_is_mirrored_by_the_full_sweep(state: Any) -> None:
    rig = Harness()
    rig.put(a_slot("linux-2", state=state, instance_id="i-gone", since=NOW, last_seen=NOW, version=1))
    for _ in range(3):
        rig.now += YOUNG_SECONDS / 2
        assert sweep(rig.ports, all_machines=True) == 1
        rig.play_tasks()
    assert rig.slot("linux-2").state == "empty"
