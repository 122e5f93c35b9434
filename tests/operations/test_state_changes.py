"""Events of EC2 about changed states and scheduled changes: few checks, no belief, and no effect of wrong events."""

import pytest

from scheduler.operations.machines.interrupt import HandledNotices, handle_notices
from scheduler.operations.machines.work import BATCH
from scheduler.ports import CloudError, EventFilter, Notice
from tests.memory_feed import MemoryFeed
from tests.operations.harness import CONFIG, NOW, Harness
from tests.operations.test_interrupt import HIDDEN, a_launching_harness, interruption, interruptions, is_drained

RETIREMENT = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
DAY = 86_400.0


@pytest.fixture
def harness() -> Harness:
    """A harness where r1 has a lease on linux-1, which is the machine i-1."""
    found = Harness().leased()
    found.mailbox.tasks.clear()
    return found


@pytest.fixture
def feed(harness: Harness) -> MemoryFeed:
    return MemoryFeed(harness.clock, HIDDEN)


def change(state: str, machine: str = "i-1", at: float = NOW) -> Notice:
    return Notice(machine=machine, kind="state", at=at, state=state)


def maintenance(machine: str = "i-1", ends_at: float | None = NOW + 15 * DAY) -> Notice:
    return Notice(
        machine=machine, kind="maintenance", at=NOW, code=RETIREMENT, begins_at=NOW + 14 * DAY, ends_at=ends_at
    )


def checks(harness: Harness) -> list[list[str]]:
    return [arguments[0] for kind, arguments in harness.mailbox.tasks if kind == "check"]


@pytest.mark.parametrize("state", ["stopping", "stopped", "shutting-down", "terminated"])
def test_the_end_of_a_machine_causes_a_check_of_its_slot(state: str, harness: Harness, feed: MemoryFeed) -> None:
    feed.put(change(state))
    assert handle_notices(harness.ports, feed) == HandledNotices(checked=1)
    assert checks(harness) == [["linux-1"]]
    assert is_drained(harness, feed)
    assert harness.meter.counts["leasehold_state_changes_total", (("pool", "linux"), ("state", state))] == 1


def test_a_machine_that_is_gone_is_seen_by_the_check(harness: Harness, feed: MemoryFeed) -> None:
    harness.fleet.terminate(["i-1"])
    feed.put(change("terminated"))
    handle_notices(harness.ports, feed)
    harness.play_tasks_of("check")
    assert harness.slot().state == "empty"
    harness.tick()
    assert harness.phase() == "failed"


def test_an_event_is_never_believed(harness: Harness, feed: MemoryFeed) -> None:
    """EC2 lists the machine as running: the check changes nothing, whatever events report."""
    before = harness.slot()
    for state in ("terminated", "shutting-down", "terminated", "stopped"):
        feed.put(change(state))
    handle_notices(harness.ports, feed)
    harness.play_tasks_of("check")
    assert harness.slot() == before
    assert harness.phase() == "leased"


def test_a_boot_is_seen_at_once_and_repeats_and_late_events_cause_no_check() -> None:
    harness, feed = a_launching_harness()
    harness.play_tasks_of("launch")
    feed.put(change("running"))
    assert (harness.slot().state, handle_notices(harness.ports, feed).checked) == ("booting", 1)
    harness.play_tasks_of("check")
    assert harness.slot().state == "ready"
    harness.tick()
    harness.mailbox.tasks.clear()
    for _ in range(3):
        feed.put(change("running"))
    assert handle_notices(harness.ports, feed) == HandledNotices()
    harness.ask("release", reservation="r1", token=harness.token())
    harness.ask("drain", slot="linux-1")
    harness.tick()
    assert harness.slot().state == "terminating"
    harness.mailbox.tasks.clear()
    for state in ("running", "stopping", "shutting-down"):
        feed.put(change(state))
    assert handle_notices(harness.ports, feed) == HandledNotices()
    feed.put(change("terminated"))
    assert handle_notices(harness.ports, feed) == HandledNotices(checked=1)


def test_events_of_machines_that_no_slot_has_cause_neither_a_check_nor_a_call() -> None:
    harness, feed = a_launching_harness()

    def fail(_machines: object, **_options: object) -> dict[str, object]:
        raise CloudError("throttled", "RequestLimitExceeded", "")

    harness.fleet.describe = fail  # type: ignore[method-assign,assignment]
    feed.put(change("running", "i-1"))
    feed.put(change("terminated", "i-99"))
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert checks(harness) == []
    assert is_drained(harness, feed)


def a_fleet(count: int) -> Harness:
    """Return a harness with this number of leased machines, launched in a batch."""
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "max_slots": count}}})
    for number in range(count):
        harness.submit(f"r{number}")
    harness.tick()
    harness.play_tasks()
    harness.mailbox.tasks.clear()
    return harness


def test_a_burst_of_events_is_gathered_into_one_message_for_each_batch_of_slots() -> None:
    """Seven hundred machines end, each with two events: two messages, although the feed gives ten events at a time."""
    harness = a_fleet(700)
    feed = MemoryFeed(harness.clock, HIDDEN)
    for state in ("shutting-down", "terminated"):
        for number in range(1, 701):
            feed.put(change(state, f"i-{number}"))
    assert handle_notices(harness.ports, feed).checked >= 700
    found = checks(harness)
    assert len({slot for each in found for slot in each}) == 700
    assert max(map(len, found)) <= BATCH
    assert len(found) <= 4
    assert is_drained(harness, feed)


def test_events_are_deleted_only_after_their_check_was_sent(harness: Harness, feed: MemoryFeed) -> None:
    feed.put(change("terminated"))

    def fail(_slots: object) -> None:
        raise ConnectionError

    harness.mailbox.send_checks = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(ConnectionError):
        handle_notices(harness.ports, feed)
    harness.now += HIDDEN
    assert [message.notices for message in feed.receive()] == [(change("terminated"),)]


def test_a_notice_among_changes_of_state_is_recorded_at_once(harness: Harness, feed: MemoryFeed) -> None:
    feed.put(change("shutting-down"))
    feed.put(interruption())
    feed.put(change("terminated"))
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=1, checked=1)
    assert checks(harness) == [["linux-1"]]


class SlowFeed(MemoryFeed):
    """A feed that records how long it is asked to wait; a message arrives while it waits for the first time."""

    waits: list[float]

    def receive(self, wait_seconds: float = 0.0) -> list:  # type: ignore[type-arg]
        if wait_seconds and not self.waits:
            self.put(change("terminated"))
        self.waits.append(wait_seconds)
        return super().receive()


def test_reading_goes_on_until_its_time_is_over(harness: Harness) -> None:
    """An event that arrives early does not end the reading: the next one would wait for the next task."""
    feed = SlowFeed(harness.clock, HIDDEN)
    feed.waits = []
    times = iter([0.0, 0.0, 1.5, 1.5, 1.5])
    handle_notices(harness.ports, feed, 4.0, lambda: next(times))
    assert feed.waits == [4.0, 0.0, 2.5]


def test_a_scheduled_change_drains_the_slot_with_a_reason_that_names_it(harness: Harness, feed: MemoryFeed) -> None:
    """Its lease runs on; another slot is launched for the next reservation. Doubled events change nothing."""
    feed.put(maintenance(), maintenance("i-99"))
    feed.put(maintenance())
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=1)
    assert (harness.slot().state, harness.slot().drain_reason) == ("draining", "maintenance")
    (event,) = harness.store.read_events(EventFilter(name="slot_maintenance"))
    assert (event.slot, event.detail) == ("linux-1", {"epoch": 1, "code": RETIREMENT, "begins_at": NOW + 14 * DAY})
    assert interruptions(harness) == {("linux", "maintenance"): 1}
    harness.tick()
    assert harness.phase() == "leased"
    harness.ask("release", reservation="r1", token=harness.token())
    harness.settle(10)
    assert harness.fleet.terminations == ["i-1"]


def test_a_booting_machine_with_a_scheduled_change_is_replaced() -> None:
    harness, feed = a_launching_harness()
    harness.play_tasks_of("launch")
    feed.put(maintenance())
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=1)
    decided = harness.tick().plan.decisions
    assert [getattr(each, "reason", None) for each in decided if getattr(each, "slot", "") == "linux-1"] == [
        "maintenance"
    ]


def test_a_pool_may_ignore_scheduled_changes_and_one_that_is_over_changes_nothing(feed: MemoryFeed) -> None:
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "maintenance": "ignore"}}}).leased()
    feed.put(maintenance())
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert harness.slot().state == "ready"
    harness = Harness({"pools": {"linux": {**CONFIG["pools"]["linux"], "rebalance": "ignore"}}}).leased()
    feed.put(maintenance(ends_at=NOW))
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert harness.slot().state == "ready"
    feed.put(maintenance(ends_at=None))
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=1)
