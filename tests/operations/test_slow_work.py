"""Launch, check, terminate, recover: each task may run twice, late, or beside its own copy."""

import msgspec
import pytest

from scheduler.operations.machines.check import check
from scheduler.operations.machines.launch import MOST_ATTEMPTS, launch
from scheduler.operations.machines.recover import recover, sweep
from scheduler.operations.machines.terminate import terminate
from scheduler.ports import CloudError
from tests.builders import a_slot
from tests.operations.harness import Harness


@pytest.fixture
def rig() -> Harness:
    """With one launch decided, its task not yet played."""
    rig = Harness()
    rig.submit("r1")
    rig.tick()
    assert rig.mailbox.tasks == [("launch", ("linux-1", rig.slot().launch_id))]
    return rig


def begin(rig: Harness) -> str:
    return launch(rig.ports, "linux-1", rig.slot().launch_id or "")


def test_a_launch_that_runs_twice_makes_one_machine(rig: Harness) -> None:
    name = rig.slot().launch_id or ""
    assert [launch(rig.ports, "linux-1", name) for _ in range(2)] == ["success", "not_wanted"]
    assert rig.fleet.running == ["i-1"]


def test_copies_of_a_launch_that_run_side_by_side_leave_its_machine_alone(rig: Harness) -> None:
    """The second asks the cloud while the first has settled: the same machine, in use by now."""
    name, results = rig.slot().launch_id or "", []

    def meanwhile() -> None:
        rig.fleet.during_launch = lambda: None
        results.append(launch(rig.ports, "linux-1", name))

    rig.fleet.during_launch = meanwhile
    results.append(launch(rig.ports, "linux-1", name))
    assert results == ["success", "repeated"]
    assert rig.fleet.terminations == []
    assert (rig.slot().state, rig.slot().instance_id) == ("booting", "i-1")
    labels = (("offering", ""), ("pool", "linux"), ("result", "success"))
    launches = {key: count for key, count in rig.meter.counts.items() if key[0] == "leasehold_launches_total"}
    assert launches == {("leasehold_launches_total", labels): 1}


def test_a_launch_of_an_earlier_machine_is_not_wanted(rig: Harness) -> None:
    assert launch(rig.ports, "linux-1", "launch-of-old") == "not_wanted"
    assert rig.fleet.running == []


def test_a_launch_that_is_not_wanted_any_more_ends_what_came_for_it(rig: Harness) -> None:
    """Cancelled and timed out while the cloud made the machine."""
    name = rig.slot().launch_id or ""

    def meanwhile() -> None:
        rig.fleet.during_launch = lambda: None
        rig.now += 300
        rig.tick()

    rig.fleet.during_launch = meanwhile
    assert launch(rig.ports, "linux-1", name) == "aborted"
    assert rig.fleet.running == []
    rig.settle()
    assert (rig.phase(), rig.fleet.running) == ("leased", ["i-2"])


@pytest.mark.parametrize("category", ["capacity", "quota", "throttled", "auth"])
def test_a_definite_refusal_empties_the_slot_and_kicks(rig: Harness, category: str) -> None:
    kicks = rig.notifier.kicks
    rig.fleet.errors = [CloudError(category, "Code", "no")]  # type: ignore[arg-type]
    assert begin(rig) == category
    assert rig.slot().state == "empty"
    assert rig.notifier.kicks == kicks + 1


def test_what_nobody_knows_is_asked_again_with_the_very_same_request(rig: Harness) -> None:
    """The first answer was lost, but the machine was made: there is one in the end."""
    name = rig.slot().launch_id or ""
    rig.fleet.during_launch = lambda: _lose_answer(rig)
    assert launch(rig.ports, "linux-1", name) == "transient"
    request = rig.slot().launch_request
    assert launch(rig.ports, "linux-1", name) == "not_wanted", "not before its time"
    rig.now += 11
    assert recover(rig.ports) == 1
    rig.play_tasks()
    assert rig.slot().state in {"booting", "binding", "ready"}
    assert request is not None
    assert rig.fleet.running == ["i-1"]


def _lose_answer(rig: Harness) -> None:
    rig.fleet.during_launch = lambda: None
    raise CloudError("unknown", "Timeout", "no answer")


def test_after_five_unknown_answers_it_counts_as_misconfigured(rig: Harness) -> None:
    rig.fleet.errors = [CloudError("unknown", "Odd", "what?") for _ in range(MOST_ATTEMPTS)]
    rig.mailbox.tasks.clear()
    results = []
    for _ in range(MOST_ATTEMPTS):
        results.append(begin(rig))
        rig.now += 61
    assert results == ["transient"] * (MOST_ATTEMPTS - 1) + ["misconfigured"]
    assert rig.slot().state == "error"


def test_a_success_ends_the_back_off(rig: Harness) -> None:
    rig.fleet.errors = [CloudError("throttled", "RequestLimitExceeded", "slow down")]
    assert begin(rig) == "throttled"
    rig.now += 1
    rig.tick()
    assert begin(rig) == "success"
    assert rig.ports.view_cache.catch_up() is None or rig.tick().plan.wake_at is not None
    assert [row.id for row in rig.store.read_rows() if row.id.startswith("linux/")] == []


def test_a_termination_names_the_machine_that_it_means() -> None:
    rig = Harness().leased()
    epoch = rig.slot().epoch
    assert terminate(rig.ports, "linux-1", epoch) == "not_wanted", "it is ready"
    rig.ask("release", reservation="r1", token=rig.token())
    rig.now += 301
    rig.tick()
    rig.tick()
    assert rig.slot().state == "terminating"
    assert terminate(rig.ports, "linux-1", epoch - 1) == "not_wanted", "that was another one"
    assert rig.fleet.running == ["i-1"]
    assert [terminate(rig.ports, "linux-1", epoch) for _ in range(2)] == ["asked", "asked"]
    assert rig.fleet.running == []
    rig.play_tasks()
    assert rig.slot().state == "empty"
    assert terminate(rig.ports, "linux-1", epoch) == "not_wanted"


def test_a_slot_is_empty_only_when_the_cloud_says_so() -> None:
    rig = Harness().leased()
    rig.ask("release", reservation="r1", token=rig.token())
    rig.now += 301
    rig.tick()
    rig.tick()
    rig.fleet.terminate = lambda machines: None  # type: ignore[method-assign]
    rig.play_tasks()
    assert check(rig.ports, ["linux-1"]) == 0
    assert rig.slot().state == "terminating"


def test_a_termination_that_takes_too_long_is_sent_again(rig: Harness) -> None:
    rig.play_tasks()
    rig.tick()
    rig.ask("release", reservation="r1", token=rig.token())
    rig.now += 301
    rig.tick()
    rig.tick()
    rig.mailbox.tasks.clear()
    rig.now += 300
    rig.tick()
    assert rig.mailbox.tasks == [("terminate", ("linux-1", 1))]


def test_a_launch_that_never_began_is_empty_after_its_termination(rig: Harness) -> None:
    rig.mailbox.tasks.clear()
    rig.ask("cancel", reservation="r1")
    rig.now += 300
    rig.tick()
    rig.play_tasks()
    assert rig.slot().state == "empty"
    assert rig.fleet.machines == {}


def test_a_launch_that_died_after_the_cloud_made_its_machine_is_found_by_its_tag(rig: Harness) -> None:
    def die() -> None:
        rig.fleet.during_launch = lambda: None
        raise KeyboardInterrupt

    rig.fleet.during_launch = die
    with pytest.raises(KeyboardInterrupt):
        begin(rig)
    rig.ask("cancel", reservation="r1")
    rig.mailbox.tasks.clear()
    rig.now += 300
    rig.tick()
    rig.play_tasks()
    assert rig.fleet.running == []
    assert rig.slot().state == "empty"


def test_recover_sends_what_was_lost_once_and_not_again_for_a_while(rig: Harness) -> None:
    rig.mailbox.tasks.clear()
    assert recover(rig.ports) == 0, "it was sent just now"
    rig.now += 10
    assert [recover(rig.ports), recover(rig.ports)] == [1, 0]
    assert rig.mailbox.tasks == [("launch", ("linux-1", rig.slot().launch_id))]


@pytest.mark.parametrize("is_put_off", [False, True])
def test_a_clock_that_is_put_back_keeps_no_lost_launch_waiting(rig: Harness, is_put_off: bool) -> None:
    """Neither by when it was sent last, nor by when it is due again."""
    if is_put_off:
        rig.fleet.errors = [CloudError("transient", "Timeout", "no answer")]
        rig.play_tasks()
    rig.mailbox.tasks.clear()
    rig.now -= 3600
    assert [recover(rig.ports), recover(rig.ports)] == [1, 0]
    rig.play_tasks()
    assert rig.slot().state == "ready"


def test_a_clock_that_is_put_back_keeps_no_lost_termination_waiting(rig: Harness) -> None:
    rig.play_tasks()
    rig.put(msgspec.structs.replace(rig.slot(), state="terminating", not_before=rig.now + 60, sent_at=rig.now))
    assert recover(rig.ports) == 0, "it is put off"
    rig.now -= 3600
    assert [recover(rig.ports), recover(rig.ports)] == [1, 0]
    rig.play_tasks()
    assert rig.fleet.running == []


def test_the_sweep_looks_after_what_is_on_its_way_and_all_when_asked() -> None:
    rig = Harness().leased()
    assert sweep(rig.ports) == 0
    assert sweep(rig.ports, all_machines=True) == 1
    assert rig.mailbox.tasks == [("check", (["linux-1"],))]


def test_slots_that_may_have_to_be_probed_travel_in_small_batches() -> None:
    """A probe may take its whole timeout: a hundred of them in one task would outlive the message's visibility."""
    rig = Harness()
    names = [f"other-{number:02}" for number in range(25)]
    rig.put(*(a_slot(name, pool="other", state="booting", instance_id=f"i-{name}") for name in names))
    assert sweep(rig.ports) == 25
    batches = [arguments[0] for kind, arguments in rig.mailbox.tasks if kind == "check"]
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert sorted(name for batch in batches for name in batch) == names


def test_a_check_that_runs_twice_moves_once(rig: Harness) -> None:
    begin(rig)
    assert [check(rig.ports, ["linux-1"]) for _ in range(2)] == [2, 0]
    assert rig.slot().state == "ready"


def test_a_machine_that_is_gone_empties_its_slot_and_what_it_held_fails() -> None:
    rig = Harness().leased()
    rig.fleet.terminate(["i-1"])
    check(rig.ports, ["linux-1"])
    assert rig.slot().state == "empty"
    rig.tick()
    assert rig.phase() == "failed"


def test_a_machine_that_the_cloud_does_not_know_yet_is_not_gone(rig: Harness) -> None:
    begin(rig)
    machines, rig.fleet.machines = rig.fleet.machines, {}
    for _ in range(5):
        check(rig.ports, ["linux-1"])
    assert rig.slot().state == "booting"
    rig.fleet.machines = machines
    check(rig.ports, ["linux-1"])
    assert rig.slot().state == "ready"
