"""Launch, check, terminate, recover: each task may run twice, late, or at the same time as a copy of it."""

import threading

import msgspec
import pytest

from scheduler.operations.machines.check import check, recover, sweep
from scheduler.operations.machines.launch import MOST_ATTEMPTS, launch
from scheduler.operations.machines.terminate import terminate
from scheduler.ports import CloudError
from tests.builders import a_slot
from tests.operations.harness import Harness


@pytest.fixture
def harness() -> Harness:
    """A harness with one planned launch, whose task has not run yet."""
    harness = Harness()
    harness.submit("r1")
    harness.tick()
    assert harness.mailbox.tasks == [("launch", ("linux-1", harness.slot().launch_id))]
    return harness


def begin(harness: Harness) -> str:
    return launch(harness.ports, harness.slot().launch_id or "", "linux-1")


def test_a_launch_that_runs_twice_makes_one_machine(harness: Harness) -> None:
    name = harness.slot().launch_id or ""
    assert [launch(harness.ports, name, "linux-1") for _ in range(2)] == ["success", "not_wanted"]
    assert harness.fleet.running == ["i-1"]


def test_copies_of_a_launch_that_run_at_once_make_one_machine(harness: Harness) -> None:
    """The second copy calls the cloud after the first has stored the machine, and gets the same machine."""
    name, results = harness.slot().launch_id or "", []

    def meanwhile() -> None:
        harness.fleet.during_launch = lambda: None
        results.append(launch(harness.ports, name, "linux-1"))

    harness.fleet.during_launch = meanwhile
    results.append(launch(harness.ports, name, "linux-1"))
    assert results == ["success", "repeated"]
    assert harness.fleet.terminations == []
    assert (harness.slot().state, harness.slot().instance_id) == ("booting", "i-1")
    labels = (("offering", ""), ("pool", "linux"), ("result", "success"))
    launches = {key: count for key, count in harness.meter.counts.items() if key[0] == "leasehold_launches_total"}
    assert launches == {("leasehold_launches_total", labels): 1}


def test_a_launch_of_an_earlier_machine_is_not_wanted(harness: Harness) -> None:
    assert launch(harness.ports, "launch-of-old", "linux-1") == "not_wanted"
    assert harness.fleet.running == []


def test_a_launch_that_is_not_wanted_any_more_terminates_its_machine(harness: Harness) -> None:
    """The reservation was cancelled and the slot timed out while the cloud launched the machine."""
    name = harness.slot().launch_id or ""

    def meanwhile() -> None:
        harness.fleet.during_launch = lambda: None
        harness.now += 300
        harness.tick()

    harness.fleet.during_launch = meanwhile
    assert launch(harness.ports, name, "linux-1") == "aborted"
    assert harness.fleet.running == []
    harness.settle()
    assert (harness.phase(), harness.fleet.running) == ("leased", ["i-2"])


@pytest.mark.parametrize("category", ["capacity", "quota", "throttled", "auth"])
def test_a_definite_refusal_empties_the_slot_and_kicks(harness: Harness, category: str) -> None:
    kicks = harness.notifier.kicks
    harness.fleet.errors = [CloudError(category, "Code", "no")]  # type: ignore[arg-type]
    assert begin(harness) == category
    assert harness.slot().state == "empty"
    assert harness.notifier.kicks == kicks + 1


def test_a_launch_with_an_unknown_outcome_is_sent_again_with_the_same_request(harness: Harness) -> None:
    """The first answer was lost, but the machine was launched. In the end there is one machine."""
    name = harness.slot().launch_id or ""
    harness.fleet.during_launch = lambda: _lose_answer(harness)
    assert launch(harness.ports, name, "linux-1") == "transient"
    request = harness.slot().launch_request
    assert launch(harness.ports, name, "linux-1") == "not_wanted", "before its due time"
    harness.now += 11
    assert recover(harness.ports) == 1
    harness.play_tasks()
    assert harness.slot().state in {"booting", "binding", "ready"}
    assert request is not None
    assert harness.fleet.running == ["i-1"]


def _lose_answer(harness: Harness) -> None:
    harness.fleet.during_launch = lambda: None
    raise CloudError("unknown", "Timeout", "no answer")


def test_after_five_unknown_answers_a_launch_counts_as_misconfigured(harness: Harness) -> None:
    harness.fleet.errors = [CloudError("unknown", "Odd", "what?") for _ in range(MOST_ATTEMPTS)]
    harness.mailbox.tasks.clear()
    results = []
    for _ in range(MOST_ATTEMPTS):
        results.append(begin(harness))
        harness.now += 61
    assert results == ["transient"] * (MOST_ATTEMPTS - 1) + ["misconfigured"]
    assert harness.slot().state == "error"


def test_a_success_ends_the_back_off(harness: Harness) -> None:
    harness.fleet.errors = [CloudError("throttled", "RequestLimitExceeded", "slow down")]
    assert begin(harness) == "throttled"
    harness.now += 1
    harness.tick()
    assert begin(harness) == "success"
    assert harness.ports.view_cache.catch_up() is None or harness.tick().plan.wake_at is not None
    assert [row.id for row in harness.store.read_rows() if row.id.startswith("linux/")] == []


def test_a_termination_applies_only_to_its_epoch() -> None:
    harness = Harness().leased()
    epoch = harness.slot().epoch
    assert terminate(harness.ports, "linux-1", epoch) == "not_wanted", "the slot is ready"
    harness.ask("release", reservation="r1", token=harness.token())
    harness.now += 301
    harness.tick()
    harness.tick()
    assert harness.slot().state == "terminating"
    assert terminate(harness.ports, "linux-1", epoch - 1) == "not_wanted", "another epoch"
    assert harness.fleet.running == ["i-1"]
    outcomes = [terminate(harness.ports, "linux-1", epoch) for _ in range(2)]
    assert outcomes == ["asked", "not_due"], "EC2 has accepted the first call"
    assert harness.fleet.running == []
    harness.play_tasks()
    assert harness.slot().state == "empty"
    assert terminate(harness.ports, "linux-1", epoch) == "not_wanted"


def test_a_slot_is_empty_only_when_the_cloud_reports_its_machine_gone() -> None:
    harness = Harness().leased()
    harness.ask("release", reservation="r1", token=harness.token())
    harness.now += 301
    harness.tick()
    harness.tick()
    harness.fleet.terminate = lambda machines: {}  # type: ignore[method-assign]
    harness.play_tasks()
    assert check(harness.ports, ["linux-1"]) == 0
    assert harness.slot().state == "terminating"


def test_a_termination_that_takes_too_long_is_sent_again(harness: Harness) -> None:
    harness.play_tasks()
    harness.tick()
    harness.ask("release", reservation="r1", token=harness.token())
    harness.now += 301
    harness.tick()
    harness.tick()
    harness.mailbox.tasks.clear()
    harness.now += 300
    harness.tick()
    assert harness.mailbox.tasks == [("terminate", ("linux-1", 1))]


def test_a_launch_that_never_began_is_empty_after_its_termination(harness: Harness) -> None:
    harness.mailbox.tasks.clear()
    harness.ask("cancel", reservation="r1")
    harness.now += 300
    harness.tick()
    harness.play_tasks()
    assert harness.slot().state == "empty"
    assert harness.fleet.machines == {}


def test_the_machine_of_a_killed_launch_is_found_by_its_tag(harness: Harness) -> None:
    def die() -> None:
        harness.fleet.during_launch = lambda: None
        raise KeyboardInterrupt

    harness.fleet.during_launch = die
    with pytest.raises(KeyboardInterrupt):
        begin(harness)
    harness.ask("cancel", reservation="r1")
    harness.mailbox.tasks.clear()
    harness.now += 300
    harness.tick()
    harness.play_tasks()
    assert harness.fleet.running == []
    assert harness.slot().state == "empty"


def test_recover_sends_a_lost_message_once_in_a_while(harness: Harness) -> None:
    harness.mailbox.tasks.clear()
    assert recover(harness.ports) == 0, "the message was sent just now"
    harness.now += 10
    assert [recover(harness.ports), recover(harness.ports)] == [1, 0]
    assert harness.mailbox.tasks == [("launch", ("linux-1", harness.slot().launch_id))]


@pytest.mark.parametrize("has_due_time", [False, True])
def test_a_clock_set_back_does_not_delay_a_lost_launch(harness: Harness, has_due_time: bool) -> None:
    """Times in the future, of the last message or of the next attempt, do not delay it."""
    if has_due_time:
        harness.fleet.errors = [CloudError("transient", "Timeout", "no answer")]
        harness.play_tasks()
    harness.mailbox.tasks.clear()
    harness.now -= 3600
    assert [recover(harness.ports), recover(harness.ports)] == [1, 0]
    harness.play_tasks()
    assert harness.slot().state == "ready"


def test_a_clock_set_back_does_not_delay_a_lost_termination(harness: Harness) -> None:
    harness.play_tasks()
    harness.put(
        msgspec.structs.replace(harness.slot(), state="terminating", not_before=harness.now + 60, sent_at=harness.now)
    )
    assert recover(harness.ports) == 0, "it is not due yet"
    harness.now -= 3600
    assert [recover(harness.ports), recover(harness.ports)] == [1, 0]
    harness.play_tasks()
    assert harness.fleet.running == []


def test_the_sweep_checks_slots_in_flight_and_on_request_all() -> None:
    harness = Harness().leased()
    assert sweep(harness.ports) == 0
    assert sweep(harness.ports, all_machines=True) == 1
    assert harness.mailbox.tasks == [("check", (["linux-1"],))]


def test_slots_are_checked_in_batches_of_five_hundred() -> None:
    harness = Harness()
    names = [f"other-{number:04}" for number in range(1100)]
    harness.put(*(a_slot(name, pool="other", state="booting", instance_id=f"i-{name}") for name in names))
    assert sweep(harness.ports) == 1100
    batches = [arguments[0] for kind, arguments in harness.mailbox.tasks if kind == "check"]
    assert [len(batch) for batch in batches] == [500, 500, 100]
    assert sorted(name for batch in batches for name in batch) == names


def test_machines_of_one_message_are_probed_at_the_same_time() -> None:
    """A probe may take its whole timeout; many of them one after the other would outlast the visibility timeout."""
    harness = Harness({"pools": {"linux": {"system": "a", "max_slots": 9, "probe": {"kind": "tcp", "port": 22}}}})
    names = [f"linux-{number}" for number in range(1, 10)]
    for name in names:
        harness.fleet.appear(f"i-{name}", name)
        harness.put(msgspec.structs.replace(harness.slot(name), state="booting", instance_id=f"i-{name}"))
    together = threading.Barrier(len(names))

    class Patient:
        def is_ready(self, *_: object) -> bool:
            """Return True once the probes of all machines have begun."""
            together.wait(20)
            return True

    harness.ports.probe = Patient()
    check(harness.ports, names)
    assert {harness.slot(name).state for name in names} == {"ready"}


def test_a_check_that_runs_twice_changes_the_state_once(harness: Harness) -> None:
    begin(harness)
    assert [check(harness.ports, ["linux-1"]) for _ in range(2)] == [2, 0]
    assert harness.slot().state == "ready"


def test_a_lost_machine_empties_its_slot_and_fails_its_reservation() -> None:
    harness = Harness().leased()
    harness.fleet.terminate(["i-1"])
    check(harness.ports, ["linux-1"])
    assert harness.slot().state == "empty"
    harness.tick()
    assert harness.phase() == "failed"


def test_a_machine_that_is_not_listed_yet_is_not_taken_for_lost(harness: Harness) -> None:
    begin(harness)
    machines, harness.fleet.machines = harness.fleet.machines, {}
    for _ in range(5):
        check(harness.ports, ["linux-1"])
    assert harness.slot().state == "booting"
    harness.fleet.machines = machines
    check(harness.ports, ["linux-1"])
    assert harness.slot().state == "ready"


def test_an_address_that_the_cloud_returns_late_is_filled_in_by_the_check(harness: Harness) -> None:
    harness.leased()
    machine = harness.slot().instance_id or ""
    harness.put(msgspec.structs.replace(harness.slot(), address=None))
    harness.fleet.machines[machine] = msgspec.structs.replace(harness.fleet.machines[machine], address=None)
    check(harness.ports, ["linux-1"])
    assert harness.slot().address is None
    harness.fleet.machines[machine] = msgspec.structs.replace(harness.fleet.machines[machine], address="2001:db8::1")
    check(harness.ports, ["linux-1"])
    assert (harness.slot().state, harness.slot().address) == ("ready", "2001:db8::1")
