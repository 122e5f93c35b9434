"""The reconciliation of machines and slots: unknown machines are adopted or terminated, and they count meanwhile."""

from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.model.rules import read_rules
from scheduler.model.slots import Machine
from scheduler.operations.machines.check import YOUNG_SECONDS, check, sweep
from scheduler.operations.machines.launch import MOST_ATTEMPTS, launch, order_of
from scheduler.operations.machines.reconcile import ORPHAN_SECONDS, Reconciled, reconcile
from scheduler.operations.machines.terminate import terminate
from scheduler.operations.machines.unbound import STRANGER_SECONDS
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


def count_unknown(harness: Harness) -> dict[str, int]:
    """Return pool -> number of machines without a slot, as the launch limits count them."""
    return {row.pool: row.active for row in harness.store.read_rows() if row.id.endswith("/strangers/")}  # type: ignore[union-attr]


def waiting(harness: Harness) -> list[tuple[str, str]]:
    return [(each.code, each.detail) for each in harness.tick().plan.waiting]


def test_an_unknown_machine_is_adopted_by_the_slot_that_it_names() -> None:
    harness = Harness()
    harness.fleet.appear("i-lost", "linux-2", launched_at=NOW - 10, type="c5.large", zone="a")
    assert reconcile(harness.ports) == Reconciled(adopted=1)
    slot = harness.slot("linux-2")
    assert (slot.state, slot.epoch, slot.instance_id, slot.launch_id) == ("booting", 1, "i-lost", "launch-of-i-lost")
    assert (slot.zone, slot.offering) == ("a", None)
    assert [event.name for event in harness.events if event.slot] == ["slot_adopted"]
    assert reconcile(harness.ports) == Reconciled()
    harness.submit("r1")
    harness.tick()
    assert [row.state for row in harness.store.find_slots() if row.state == "launching"] == [], (
        "r1 waits for the adopted slot"
    )
    harness.play_tasks()
    harness.tick()
    assert (harness.phase(), harness.slot("linux-2").state) == ("leased", "ready")


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        # the offering of the tag, with its current configuration
        ({"offering": "big"}, ("big", "on-demand", 2, {"cpus": 4}, {})),
        # no tag: the offering with the same type and market
        ({"type": "c5.large", "market": "spot"}, ("small", "spot", 1, {"cpus": 2}, {"disk": "ssd"})),
        # no longer configured: the resources of the pool
        ({"offering": "old", "market": "spot"}, ("old", "spot", None, {"cpus": 1}, {})),
        ({"type": "m5.large", "market": "spot"}, ("m5.large", "spot", None, {"cpus": 1}, {})),
    ],
)
def test_an_adopted_slot_gets_the_resources_of_its_offering(tags: dict[str, Any], expected: tuple[Any, ...]) -> None:
    harness = with_pool(offerings=OFFERINGS, resources={"cpus": 1})
    harness.fleet.appear("i-lost", **tags)
    reconcile(harness.ports)
    slot = harness.slot()
    assert (slot.offering, slot.market, slot.price, slot.resources, slot.labels) == expected


CANNOT_BE_ADOPTED: dict[str, dict[str, Any]] = {
    # reason -> tags of the machine
    "its slot has a machine": {"slot": "linux-1"},
    "another machine of the slot is adopted already": {"slot": "linux-2"},
    "its pool is not configured": {"slot": "windows-1", "pool": "windows"},
    "its slot belongs to another pool": {"slot": "linux-3", "pool": "windows"},
    "its slot is beyond max_slots": {"slot": "linux-4"},
    "it is stopping": {"slot": "linux-3", "state": "stopping"},
    "it has no tags": {"slot": None, "pool": None, "launch_id": None},
}


@pytest.mark.parametrize("name", CANNOT_BE_ADOPTED)
def test_a_machine_that_cannot_be_adopted_is_terminated_when_it_is_old(name: str) -> None:
    """A young machine may belong to a launch whose answer has not arrived yet."""
    harness = Harness().leased()
    harness.fleet.appear("i-lost-1", "linux-2")
    reconcile(harness.ports)
    harness.play_tasks()
    harness.fleet.appear("i-lost-2", **CANNOT_BE_ADOPTED[name], launched_at=harness.now)
    harness.now += ORPHAN_SECONDS - 1
    assert reconcile(harness.ports) == Reconciled(strangers=1)
    assert harness.fleet.terminations == []
    harness.now += 1
    assert reconcile(harness.ports) == Reconciled(strangers=1, ended=1)
    assert harness.fleet.terminations == ["i-lost-2"]
    assert [row.instance_id for row in harness.store.find_slots() if row.instance_id] == ["i-1", "i-lost-1"]
    assert reconcile(harness.ports) == Reconciled()


def test_a_machine_of_the_doctor_is_never_adopted_and_may_boot_before_it_is_terminated() -> None:
    """`leasehold doctor` ends it itself. If the doctor dies, nothing leaks."""
    harness = with_pool(boot_timeout=400, binding_timeout=100)
    harness.fleet.appear("i-trial", "linux-2", launch_id="doctor-1", launched_at=harness.now)
    harness.fleet.appear("i-gone", "linux-2", pool="windows", launch_id="doctor-2", launched_at=harness.now)
    harness.now += ORPHAN_SECONDS
    assert reconcile(harness.ports) == Reconciled(strangers=2, ended=1, trials=1)
    harness.now += 499
    assert reconcile(harness.ports) == Reconciled(strangers=1, trials=1)
    assert harness.fleet.terminations == ["i-gone"]
    harness.now += 1
    assert reconcile(harness.ports) == Reconciled(strangers=1, ended=1)
    assert [row.state for row in harness.store.find_slots() if row.state != "empty"] == []


def test_a_terminated_orphan_leaves_an_event() -> None:
    harness = Harness()
    harness.fleet.appear("i-lost", "linux-9")
    reconcile(harness.ports)
    (event,) = [each for each in harness.events if each.name == "machine_orphaned"]
    assert event.detail == {"instance": "i-lost", "pool": "linux", "slot": "linux-9", "launch": "launch-of-i-lost"}


def test_without_rules_no_machine_is_touched() -> None:
    """This may be a new database in place of the one that knows these machines."""
    harness = Harness()
    assert isinstance(harness.store, MemoryStore)
    harness.store._world.rules = type(harness.store.load_rules())(0, {}, read_rules({}))
    harness.fleet.appear("i-lost", "linux-9")
    assert reconcile(harness.ports) == Reconciled()
    assert harness.fleet.terminations == []


def a_launch_whose_answer_was_lost() -> Harness:
    harness = Harness()
    harness.submit("r1")
    harness.tick()
    harness.mailbox.tasks.clear()

    def lose() -> None:
        harness.fleet.during_launch = lambda: None
        raise CloudError("transient", "Timeout", "no answer")

    harness.fleet.during_launch = lose
    assert launch(harness.ports, harness.slot().launch_id or "", "linux-1") == "transient"
    return harness


def test_a_launch_whose_answer_was_lost_gets_its_machine() -> None:
    harness = a_launch_whose_answer_was_lost()
    assert reconcile(harness.ports) == Reconciled(settled=1)
    assert (harness.slot().state, harness.slot().instance_id) == ("booting", "i-1")
    assert reconcile(harness.ports) == Reconciled()
    assert [event.name for event in harness.events].count("slot_adopted") == 0


def test_a_second_machine_of_one_launch_is_terminated_at_once() -> None:
    """This must never happen. If it does, the second machine costs money and is not used."""
    harness = a_launch_whose_answer_was_lost()
    harness.fleet.appear("i-2", launch_id=harness.slot().launch_id, launched_at=harness.now)
    assert reconcile(harness.ports) == Reconciled(settled=1, ended=1, strangers=1)
    harness.fleet.appear("i-3", launch_id=harness.slot().launch_id, launched_at=harness.now)
    assert reconcile(harness.ports) == Reconciled(ended=1, strangers=1)
    assert (harness.slot().instance_id, harness.fleet.running) == ("i-1", ["i-1"])


def test_a_machine_launched_during_the_listing_is_not_an_orphan() -> None:
    """The cloud is listed before the rows are read, so every listed machine has its row by then."""
    harness = Harness()
    harness.submit("r1")
    listed = harness.fleet.sweep

    def launch_meanwhile() -> Iterator[Machine]:
        harness.tick()
        harness.fleet.launch(harness.ports.fleet.freeze(order_of(harness.slot()), harness.ports.rules()))
        return listed()

    harness.fleet.sweep = launch_meanwhile  # type: ignore[method-assign]
    assert reconcile(harness.ports) == Reconciled(settled=1)
    assert (harness.slot().state, harness.slot().instance_id, harness.fleet.terminations) == ("booting", "i-1", [])


def test_a_machine_that_ends_during_the_listing_is_not_adopted() -> None:
    """The slot became empty after the listing and before the rows were read. It stays empty, and no boot fails."""
    harness = Harness().leased()
    harness.ask("release", reservation="r1", token=harness.token())
    harness.ask("drain", slot="linux-1")
    harness.tick()
    listed = list(harness.fleet.sweep())

    def end_meanwhile() -> Iterator[Machine]:
        harness.play_tasks()
        assert harness.slot().state == "empty"
        return iter(listed)

    harness.fleet.sweep = end_meanwhile  # type: ignore[method-assign]
    assert reconcile(harness.ports) == Reconciled()
    assert (harness.slot().state, harness.slot().instance_id) == ("empty", None)


def test_two_sweeps_at_once_adopt_a_machine_once() -> None:
    """A second run has listed the cloud and read the rows before the first one writes."""
    harness = Harness()
    harness.fleet.appear("i-lost")
    find_slots = harness.store.find_slots

    def meanwhile(**which: Any) -> Any:
        found = find_slots(**which)
        harness.store.find_slots = find_slots  # type: ignore[method-assign]
        assert reconcile(harness.ports).adopted == 1
        return found

    harness.store.find_slots = meanwhile  # type: ignore[method-assign]
    assert reconcile(harness.ports) == Reconciled()
    assert (harness.slot().epoch, harness.fleet.running) == (1, ["i-lost"])


def test_unknown_machines_count_towards_max_slots() -> None:
    harness = with_pool(max_slots=1)
    harness.fleet.appear("i-lost", "linux-7", launched_at=NOW)
    reconcile(harness.ports)
    harness.submit("r1")
    assert waiting(harness) == [
        (
            "at_max_slots",
            (
                "a launch would serve the reservation, but no slot is left within max_slots; "
                "machines of ours that no slot knows: 1"
            ),
        )
    ]
    harness.restart()
    assert [code for code, _ in waiting(harness)] == ["at_max_slots"], "a restarted scheduler counts them too"
    harness.now += ORPHAN_SECONDS
    kicks = harness.notifier.kicks
    reconcile(harness.ports)
    reconcile(harness.ports)
    assert harness.notifier.kicks == kicks + 1
    assert (count_unknown(harness), harness.fleet.running) == ({}, [])
    assert [code for code, _ in waiting(harness)] == ["booting"]


def test_unknown_machines_of_any_pool_count_towards_the_maximum_over_all_pools() -> None:
    harness = Harness({**CONFIG, "scheduler": {"max_slots": 1}})
    harness.fleet.appear("i-lost", "windows-1", pool="windows", launched_at=NOW)
    reconcile(harness.ports)
    harness.submit("r1")
    assert [code for code, _ in waiting(harness)] == ["at_max_slots"]


def test_unknown_machines_stop_counting_when_no_sweep_has_found_them_for_a_while() -> None:
    harness = with_pool(max_slots=1)
    harness.fleet.appear("i-lost", "linux-7", launched_at=NOW)
    reconcile(harness.ports)
    harness.submit("r1")
    harness.now += STRANGER_SECONDS / 2
    reconcile(harness.ports)
    harness.now += STRANGER_SECONDS - 1
    assert [code for code, _ in waiting(harness)] == ["at_max_slots"]
    harness.now += 1
    assert [code for code, _ in waiting(harness)] == ["booting"]


def test_a_refused_termination_is_repeated_by_the_sweep() -> None:
    """A launch was not wanted any more, the call that ends its machine failed, and the slot is in use again."""
    harness = Harness()
    harness.submit("r1")
    harness.tick()
    harness.mailbox.tasks.clear()
    ends, name = harness.fleet.terminate, harness.slot().launch_id or ""

    def refuse(machines: object) -> dict[str, CloudError]:
        raise CloudError("throttled", "RequestLimitExceeded", str(machines))

    def meanwhile() -> None:
        harness.put(a_slot("linux-1", state="ready", version=harness.slot().version, epoch=2, launch_id="launch-2"))

    harness.fleet.during_launch, harness.fleet.terminate = meanwhile, refuse  # type: ignore[method-assign]
    with pytest.raises(CloudError):
        launch(harness.ports, name, "linux-1")
    assert harness.fleet.running == ["i-1"]
    harness.fleet.terminate = ends  # type: ignore[method-assign]
    assert reconcile(harness.ports) == Reconciled(strangers=1, ended=1)
    assert harness.fleet.running == []


def a_terminating_launch() -> Harness:
    """Return a harness whose slot is terminating; its launch has no answer and its machine is not listed yet."""
    harness = a_launch_whose_answer_was_lost()
    harness.ask("cancel", reservation="r1")
    harness.now += 300
    harness.tick()
    harness.mailbox.tasks.clear()
    harness.fleet.hidden = {"i-1"}
    assert (harness.slot().state, harness.slot().instance_id) == ("terminating", None)
    return harness


def test_a_machine_that_is_not_listed_yet_is_found_by_repeating_its_launch_request() -> None:
    harness = a_terminating_launch()
    assert terminate(harness.ports, "linux-1", 1) == "asked"
    assert harness.fleet.running == []
    assert harness.slot().instance_id == "i-1"


@pytest.mark.parametrize("category", ["throttled", "auth", "transient", "unknown"])
def test_an_error_without_a_definite_outcome_does_not_empty_the_slot(category: Any) -> None:
    harness = a_terminating_launch()
    harness.fleet.errors = [CloudError(category, "Code", "no")]
    assert terminate(harness.ports, "linux-1", 1) == category
    assert harness.slot().state == "terminating"
    harness.now += 60
    assert terminate(harness.ports, "linux-1", 1) == "asked"
    assert harness.fleet.running == []


@pytest.mark.parametrize("category", ["capacity", "quota", "misconfigured"])
def test_a_definite_refusal_of_the_repeated_launch_empties_the_slot(category: Any) -> None:
    harness = a_terminating_launch()
    harness.fleet.machines.clear()
    harness.fleet.errors = [CloudError(category, "Code", "no")]
    assert terminate(harness.ports, "linux-1", 1) == "empty"


def test_a_launch_with_a_mismatched_client_token_is_repeated_a_limited_number_of_times() -> None:
    harness = a_terminating_launch()
    harness.fleet.errors = [CloudError("unknown", "IdempotentParameterMismatch", "no")] * (MOST_ATTEMPTS + 1)
    results = []
    for _ in range(MOST_ATTEMPTS + 1):
        results.append(terminate(harness.ports, "linux-1", 1))
        harness.now += 60
    assert results == ["unknown"] * MOST_ATTEMPTS + ["empty"]
    harness.fleet.hidden = set()
    reconcile(harness.ports)
    harness.settle(400)
    assert harness.fleet.running == [], "a machine listed later is adopted, and terminated when it is idle"


def test_a_throttled_repetition_keeps_the_slot_launching() -> None:
    """The first answer was lost and the machine exists, so the slot must not be used for another machine."""
    harness = a_launch_whose_answer_was_lost()
    harness.fleet.errors = [CloudError("throttled", "RequestLimitExceeded", "slow down")]
    harness.now += 10
    assert launch(harness.ports, harness.slot().launch_id or "", "linux-1") == "throttled"
    assert harness.slot().state == "launching"
    assert [row.id for row in harness.store.read_rows() if row.id.endswith("/throttled/")] == ["linux/throttled/"]
    harness.now += 10
    assert launch(harness.ports, harness.slot().launch_id or "", "linux-1") == "success"
    assert harness.fleet.running == ["i-1"]


def test_a_terminating_machine_that_is_not_listed_yet_is_not_taken_for_terminated() -> None:
    """It is unknown whether the termination reached the machine."""
    harness = a_terminating_launch()
    terminate(harness.ports, "linux-1", 1)
    for _ in range(5):
        check(harness.ports, ["linux-1"])
    assert harness.slot().state == "terminating"
    harness.now += YOUNG_SECONDS
    check(harness.ports, ["linux-1"])
    assert harness.slot().state == "empty"


@pytest.mark.parametrize("state", ["booting", "binding", "ready", "draining", "terminating"])
def test_the_full_sweep_checks_slots_in_every_state_with_a_machine(state: Any) -> None:
    harness = Harness()
    harness.put(a_slot("linux-2", state=state, instance_id="i-gone", since=NOW, last_seen=NOW, version=1))
    for _ in range(3):
        harness.now += YOUNG_SECONDS / 2
        assert sweep(harness.ports, all_machines=True) == 1
        harness.play_tasks()
    assert harness.slot("linux-2").state == "empty"
