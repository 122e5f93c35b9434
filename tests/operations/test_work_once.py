"""Slow work that waits or is under way is not sent again, however long it takes."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

import msgspec
import pytest

from scheduler.model.slots import Machine
from scheduler.model.transitions import SlotState
from scheduler.operations.machines.check import check, recover, send_checks, sweep
from scheduler.operations.machines.launch import launch
from scheduler.operations.machines.power import start_all
from scheduler.operations.machines.terminate import terminate_all
from scheduler.operations.machines.work import BATCH, MOST_CHECKED, UNDER_WAY, act_once, check_soon, launch_once
from scheduler.ports import Waiting, Work
from scheduler.protocol.names import HEALTH, LAUNCH, TERMINATE
from tests.builders import a_slot
from tests.operations.harness import Harness


class OtherProcesses:
    """A WorkWatch that knows the work of this process and of other ones (`work`)."""

    def __init__(self) -> None:
        self.work = Work()
        self.mine: set[str] = set()

    @contextmanager
    def begin(self, names: Collection[str]) -> Iterator[frozenset[str]]:
        begun = frozenset(names) - self.work.under_way - self.mine
        self.mine |= begun
        yield begun
        self.mine -= begun

    def read(self, queues: Sequence[str]) -> Work:
        waiting = {queue: self.work.waiting.get(queue, Waiting()) for queue in queues}
        return Work(under_way=self.work.under_way | self.mine, waiting=waiting)


@pytest.fixture
def others() -> OtherProcesses:
    """What is known of slow work; nothing at first."""
    return OtherProcesses()


@pytest.fixture
def harness(others: OtherProcesses) -> Harness:
    """A harness with one planned launch, whose task has not run yet."""
    harness = Harness()
    harness.submit("r1")
    harness.tick()
    harness.ports.work_watch = others
    return harness


def put_terminating(harness: Harness) -> str:
    """Let the slot be terminating. Return the name of the work."""
    harness.put(msgspec.structs.replace(harness.slot(), state="terminating", instance_id="i-1"))
    return f"terminate:linux-1:{harness.slot().epoch}"


def put_starting(harness: Harness) -> str:
    """Let the machine of the slot be about to start. Return the name of the work."""
    harness.put(msgspec.structs.replace(harness.slot(), state="booting", instance_id="i-1", power="start"))
    return f"start:linux-1:{harness.slot().epoch}"


def leave_launching(harness: Harness) -> str:
    """Leave the slot as it is. Return the name of the work."""
    return f"launch:{harness.slot().launch_id}"


PUTS: dict[str, tuple[Callable[[Harness], str], str]] = {
    "launch": (leave_launching, LAUNCH),
    "terminate": (put_terminating, TERMINATE),
    "start": (put_starting, LAUNCH),
}


@pytest.mark.parametrize("verb", PUTS)
def test_work_that_a_worker_carries_out_is_not_sent_again(harness: Harness, others: OtherProcesses, verb: str) -> None:
    """A launch may take a minute, and work is sent again after ten seconds."""
    put, _ = PUTS[verb]
    others.work = Work(under_way=frozenset({put(harness)}))
    harness.now += 3600
    assert recover(harness.ports) == 0
    others.work = Work()
    assert recover(harness.ports) == 1, "its worker has died"


@pytest.mark.parametrize("verb", PUTS)
def test_work_that_waits_in_its_queue_is_not_sent_again(harness: Harness, others: OtherProcesses, verb: str) -> None:
    put, queue = PUTS[verb]
    put(harness)
    sent_at = harness.slot().sent_at
    # The message itself is the oldest, or an older one waits before it. It was sent a moment after `sent_at`.
    for since in (sent_at - 50, sent_at, sent_at + 1):
        others.work = Work(waiting={queue: Waiting(count=9, since=since)})
        harness.now = sent_at + 3600
        assert recover(harness.ports) == 0
    # All messages from the time of the slot were taken.
    others.work = Work(waiting={queue: Waiting(count=9, since=sent_at + 60)})
    assert recover(harness.ports) == 1


def test_a_queue_of_unknown_age_and_another_queue_keep_no_work_back(harness: Harness, others: OtherProcesses) -> None:
    unknown, other = Waiting(count=9), Waiting(count=9, since=harness.now)
    others.work = Work(waiting={LAUNCH: unknown, TERMINATE: other, HEALTH: other})
    harness.now += 3600
    assert recover(harness.ports) == 1


def test_a_copy_of_a_launch_that_is_under_way_asks_for_nothing(harness: Harness) -> None:
    name, results = harness.slot().launch_id or "", []

    def begin() -> str:
        return launch_once(harness.ports, name, lambda: launch(harness.ports, name, "linux-1"))

    harness.fleet.during_launch = lambda: results.append(begin())
    results.append(begin())
    assert results == [UNDER_WAY, "success"]
    assert harness.slot().instance_id == "i-1"


def test_copies_of_starts_and_terminations_leave_out_what_is_under_way(
    harness: Harness, others: OtherProcesses
) -> None:
    others.work = Work(under_way=frozenset({put_terminating(harness)}))
    wanted = [("linux-1", harness.slot().epoch), ("linux-2", 1)]
    assert act_once(harness.ports, "terminate", wanted, terminate_all) == {
        "linux-1": UNDER_WAY,
        "linux-2": "not_wanted",
    }
    assert harness.fleet.terminations == []
    # Another verb is other work.
    assert act_once(harness.ports, "start", wanted[:1], start_all) == {"linux-1": "not_wanted"}


def boot(harness: Harness, count: int, state: SlotState = "booting") -> list[str]:
    """Put `count` slots with machines in this state. Return their ids in order."""
    names = [f"other-{number:05}" for number in range(count)]
    harness.put(*(a_slot(name, pool="other", state=state, instance_id=f"i-{name}") for name in names))
    return names


def take_checks(harness: Harness) -> list[str]:
    """Return the slots of all tasks that check slots, and remove the tasks."""
    found = [name for kind, arguments in harness.mailbox.tasks if kind == "check" for name in arguments[0]]
    harness.mailbox.tasks.clear()
    return found


def test_a_slot_is_not_checked_again_before_its_check_has_ended(harness: Harness, others: OtherProcesses) -> None:
    names = boot(harness, 3)
    others.work = Work(under_way=frozenset({f"check:{names[1]}"}))
    assert sweep(harness.ports) == 2
    assert take_checks(harness) == [names[0], names[2]]
    others.work = Work(waiting={HEALTH: Waiting(count=1, since=harness.now)})
    assert sweep(harness.ports) == 0, "the checks of the last sweep wait"
    others.work = Work(waiting={HEALTH: Waiting(count=1, since=harness.now + 1)})
    assert sweep(harness.ports) == 3


def test_a_check_is_under_way_while_it_runs(
    harness: Harness, others: OtherProcesses, monkeypatch: pytest.MonkeyPatch
) -> None:
    [name] = boot(harness, 1)
    seen = []

    def describe(*_: object, **__: object) -> dict[str, Machine]:
        seen.append(set(others.mine))
        return {}

    monkeypatch.setattr(harness.fleet, "describe", describe)
    check(harness.ports, [name])
    assert (seen, others.mine) == ([{f"check:{name}"}], set())


def test_sweeps_check_a_large_cluster_in_parts_and_every_slot_once(harness: Harness, others: OtherProcesses) -> None:
    names = boot(harness, 2 * MOST_CHECKED + BATCH)
    found = []
    for _ in range(3):
        sweep(harness.ports)
        found.append(take_checks(harness))
        harness.now += 1
    assert [len(part) for part in found] == [MOST_CHECKED] * 3, "the third begins again"
    assert found[0] + found[1] == names[: 2 * MOST_CHECKED]
    assert found[2] == sorted(names[: MOST_CHECKED - BATCH] + names[-BATCH:])
    busy = frozenset(f"check:{name}" for name in names[:BATCH])
    others.work = Work(under_way=busy, waiting={HEALTH: Waiting(count=1, since=harness.now)})
    assert sweep(harness.ports) == MOST_CHECKED - 2 * BATCH


def test_slots_that_change_are_checked_before_ready_ones(harness: Harness) -> None:
    boot(harness, MOST_CHECKED + 1, state="ready")
    harness.put(a_slot("other-99999", pool="other", state="booting", instance_id="i-99999"))
    sweep(harness.ports, all_machines=True)
    assert take_checks(harness)[-1] == "other-99999"
    # The next sweep checks the rest, though it is no sweep of all machines.
    harness.now += 1
    assert sweep(harness.ports) == 3


def test_checks_of_swept_slots_are_left_to_the_sweep_if_many_wait(harness: Harness, others: OtherProcesses) -> None:
    """A check of a ready slot, which EC2 has reported as ending, does not wait for a sweep of all machines."""
    slots = [a_slot("other-1", state="booting", instance_id="i-1"), a_slot("other-2", state="ready", instance_id="i-2")]
    others.work = Work(waiting={HEALTH: Waiting(count=MOST_CHECKED // BATCH, since=harness.now)})
    check_soon(harness.ports, ["other-1"])
    assert send_checks(harness.ports, slots) == 1
    assert take_checks(harness) == ["other-2"]
    others.work = Work()
    check_soon(harness.ports, ["other-1"])
    assert send_checks(harness.ports, slots) == 2
    assert take_checks(harness) == ["other-1", "other-1", "other-2"]
