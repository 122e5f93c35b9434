"""Notices of the cloud: whose they are, what they change, and that none is lost or heeded twice."""

import msgspec
import pytest

from scheduler.operations.machines.check import check
from scheduler.operations.machines.interrupt import MOST_BATCHES, HandledNotices, heed_notices
from scheduler.operations.machines.recover import sweep
from scheduler.operations.machines.terminate import terminate
from scheduler.ports import CloudError, EventFilter, LaunchOrder, Notice
from scheduler.simulation.feed import MOST_AT_ONCE, MemoryFeed
from tests.operations.harness import CONFIG, NOW, Harness

HIDDEN = 30.0


@pytest.fixture
def rig() -> Harness:
    """A process on a fleet, with r1 leased on i-1 in linux-1."""
    return Harness().leased()


@pytest.fixture
def feed(rig: Harness) -> MemoryFeed:
    return MemoryFeed(rig.clock, HIDDEN)


def interruption(machine: str = "i-1", at: float = NOW) -> Notice:
    return Notice(machine=machine, kind="interruption", at=at)


def hint(machine: str = "i-1", at: float = NOW) -> Notice:
    return Notice(machine=machine, kind="rebalance", at=at)


def is_drained(rig: Harness, feed: MemoryFeed) -> bool:
    """Whether nothing is left in the feed, hidden or not."""
    rig.now += HIDDEN
    return feed.receive() == []


def test_the_holder_has_two_minutes_from_the_event_and_gets_another_machine(rig: Harness, feed: MemoryFeed) -> None:
    """However late the message came."""
    token = rig.token()
    feed.put(interruption(at=NOW - 20))
    assert heed_notices(rig.ports, feed) == HandledNotices(changed=1)
    assert (rig.slot().interrupted_at, rig.slot().interrupted_by) == (NOW, NOW + 100)
    assert rig.notifier.is_rung
    rig.tick()
    row = rig.store.find_reservations(ids=["r1"])[0]
    assert (row.phase, row.revoke_by, row.reason) == ("revoking", NOW + 100, "slot_interrupted")
    rig.play_tasks()
    rig.now += 100
    rig.tick()
    assert (rig.phase(), rig.token() > token) == ("leased", True)
    assert [lease.slot for lease in rig.store.find_reservations(ids=["r1"])[0].leases] == ["linux-2"]


def test_a_message_that_comes_after_the_deadline_leaves_no_grace(rig: Harness, feed: MemoryFeed) -> None:
    feed.put(interruption(at=NOW - 500))
    heed_notices(rig.ports, feed)
    rig.tick()
    assert rig.phase() == "pending"


def test_it_is_an_event_and_counted_once_however_often_it_comes(rig: Harness, feed: MemoryFeed) -> None:
    for _ in range(3):
        feed.put(interruption())
    assert heed_notices(rig.ports, feed).changed == 1
    feed.put(interruption(at=NOW + 50))
    assert heed_notices(rig.ports, feed).changed == 0
    assert rig.slot().interrupted_by == NOW + 120
    (event,) = rig.store.read_events(EventFilter(name="slot_interrupted"))
    assert (event.slot, event.cause, event.detail) == ("linux-1", "cloud", {"epoch": 1, "gone_at": NOW + 120})
    assert interruptions(rig) == {("linux", "interruption"): 1}


def interruptions(rig: Harness) -> dict[tuple[str, str], int]:
    """What was counted, by pool and kind."""
    found = {}
    for (name, labels), count in rig.meter.counts.items():
        if name == "leasehold_interruptions_total":
            values = dict(labels)
            found[values["pool"], values["kind"]] = count
    return found


def test_both_kinds_for_one_machine_are_heeded(rig: Harness, feed: MemoryFeed) -> None:
    """The hint drains it, the warning then takes its leases back."""
    feed.put(hint())
    feed.put(hint())
    assert heed_notices(rig.ports, feed).changed == 1
    assert (rig.slot().state, rig.slot().drain_reason, rig.slot().interrupted_at) == ("draining", "rebalance", None)
    rig.tick()
    assert rig.phase() == "leased"
    feed.put(interruption())
    assert heed_notices(rig.ports, feed).changed == 1
    rig.tick()
    assert rig.phase() == "revoking"
    assert interruptions(rig) == {("linux", "rebalance"): 1, ("linux", "interruption"): 1}


def test_a_pool_may_ignore_hints() -> None:
    rig = Harness({"pools": {"linux": CONFIG["pools"]["linux"] | {"rebalance": "ignore"}}}).leased()
    feed = MemoryFeed(rig.clock, HIDDEN)
    feed.put(hint())
    assert heed_notices(rig.ports, feed) == HandledNotices()
    assert rig.slot().state == "ready"
    assert is_drained(rig, feed)


def test_what_is_not_ours_or_unreadable_changes_nothing_and_is_deleted(rig: Harness, feed: MemoryFeed) -> None:
    before = rig.slot()
    feed.put(None)
    feed.put(interruption("i-99"))
    assert heed_notices(rig.ports, feed) == HandledNotices()
    assert rig.slot() == before
    assert is_drained(rig, feed)


def test_a_machine_that_the_slot_had_before_is_not_its_machine(rig: Harness, feed: MemoryFeed) -> None:
    rig.ask("release", reservation="r1", token=rig.token())
    rig.ask("drain", slot="linux-1")
    rig.settle()
    rig.leased("r2")
    assert rig.slot().instance_id == "i-2"
    feed.put(interruption("i-1", at=rig.now))
    assert heed_notices(rig.ports, feed) == HandledNotices()
    assert rig.slot().interrupted_at is None


def test_a_message_is_kept_until_what_it_says_is_committed(rig: Harness, feed: MemoryFeed) -> None:
    """A process that dies before its delete leaves a message that is heeded again, to no effect."""
    feed.put(interruption())
    undeleted = MemoryFeed(rig.clock, HIDDEN)
    undeleted.put(interruption())
    undeleted.delete = lambda receipts: (_ for _ in ()).throw(CloudError("transient", "timeout", ""))  # type: ignore[method-assign]
    with pytest.raises(CloudError):
        heed_notices(rig.ports, undeleted)
    assert rig.slot().interrupted_at == NOW
    assert heed_notices(rig.ports, feed) == HandledNotices()
    assert is_drained(rig, feed)


def a_launching_rig() -> tuple[Harness, MemoryFeed]:
    """EC2 has launched i-1 for linux-1, and its answer is still on its way."""
    rig = Harness()
    rig.submit("r1")
    rig.tick()
    slot = rig.slot()
    assert slot.state == "launching"
    order = LaunchOrder(
        slot=slot.id, pool=slot.pool, launch_id=slot.launch_id or "", generation=slot.epoch, offering=slot.offering
    )
    request = rig.fleet.freeze(order, rig.ports.rules())
    rig.put(msgspec.structs.replace(slot, launch_request=request))
    rig.fleet.launch(request)
    return rig, MemoryFeed(rig.clock, HIDDEN)


def test_a_notice_that_comes_before_the_launch_is_settled_finds_its_slot_by_the_launch() -> None:
    """The slot goes at once, its machine is terminated, and another slot is launched."""
    rig, feed = a_launching_rig()
    feed.put(interruption("i-1"))
    assert heed_notices(rig.ports, feed) == HandledNotices(changed=1)
    assert is_drained(rig, feed)
    rig.tick()
    assert (rig.slot().state, rig.slot("linux-2").state) == ("terminating", "launching")
    rig.play_tasks()
    assert rig.fleet.terminations[0] == "i-1"
    assert rig.fleet.running == ["i-2"]


def test_a_notice_that_comes_while_the_launch_is_answered_stays_with_the_slot() -> None:
    """The launch does not lose its write: what it got drains as soon as a tick sees it."""
    rig = Harness()
    feed = MemoryFeed(rig.clock, HIDDEN)
    rig.submit("r1")
    rig.tick()
    feed.put(interruption("i-1"))
    rig.fleet.during_launch = lambda: heed_notices(rig.ports, feed)
    rig.play_tasks()
    assert rig.slot().interrupted_at == NOW
    rig.settle(10)
    assert (rig.fleet.terminations, rig.fleet.running) == (["i-1"], ["i-2"])


def test_a_machine_that_the_cloud_does_not_show_yet_leaves_its_message_until_its_deadline() -> None:
    rig, feed = a_launching_rig()
    hidden = rig.fleet.machines.pop("i-1")
    feed.put(interruption("i-1"))
    assert heed_notices(rig.ports, feed) == HandledNotices(left=1)
    rig.now += HIDDEN
    rig.fleet.machines["i-1"] = hidden
    assert heed_notices(rig.ports, feed) == HandledNotices(changed=1)
    rig.fleet.machines.clear()
    feed.put(interruption("i-7"))
    rig.now += 120
    assert heed_notices(rig.ports, feed) == HandledNotices()
    assert is_drained(rig, feed)


def test_a_fleet_that_does_not_answer_keeps_nobody_else_waiting() -> None:
    """The known ones of the batch are heeded and deleted, the others come again."""
    rig = Harness().leased()
    rig.submit("r2")
    rig.tick()
    assert rig.slot("linux-2").state == "launching"
    feed = MemoryFeed(rig.clock, HIDDEN)
    feed.put(interruption("i-9"))
    feed.put(interruption("i-1"))

    def fail(_machines: object) -> dict[str, object]:
        raise CloudError("throttled", "RequestLimitExceeded", "")

    rig.fleet.describe = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(CloudError):
        heed_notices(rig.ports, feed)
    assert rig.slot().interrupted_at == NOW
    rig.now += HIDDEN
    assert [message.notice for message in feed.receive()] == [interruption("i-9")]


def test_a_machine_on_its_way_out_needs_no_notice(rig: Harness, feed: MemoryFeed) -> None:
    rig.ask("release", reservation="r1", token=rig.token())
    rig.ask("drain", slot="linux-1")
    rig.tick()
    assert rig.slot().state == "terminating"
    feed.put(interruption())
    feed.put(hint())
    assert heed_notices(rig.ports, feed) == HandledNotices()
    assert terminate(rig.ports, "linux-1", rig.slot().epoch) == "asked"


def test_one_call_reads_the_feed_until_it_is_empty_but_is_bounded(rig: Harness, feed: MemoryFeed) -> None:
    batch = MOST_BATCHES * MOST_AT_ONCE
    for _ in range(batch):
        feed.put(None)
    feed.put(interruption())
    assert heed_notices(rig.ports, feed) == HandledNotices()
    assert heed_notices(rig.ports, feed) == HandledNotices(changed=1)


def test_notices_of_one_batch_go_to_their_slots(rig: Harness, feed: MemoryFeed) -> None:
    rig.leased("r2")
    feed.put(hint("i-2"))
    feed.put(interruption("i-1"))
    assert heed_notices(rig.ports, feed) == HandledNotices(changed=2)
    assert (rig.slot("linux-1").interrupted_at, rig.slot("linux-2").state) == (NOW, "draining")


def test_a_machine_that_the_cloud_takes_back_without_a_notice_counts_as_interrupted(rig: Harness) -> None:
    """Its holder has no time left; an end for any other reason is no interruption."""
    machine = rig.fleet.machines["i-1"]
    rig.fleet.machines["i-1"] = msgspec.structs.replace(machine, state="stopping")
    assert check(rig.ports, ["linux-1"]) == 0
    assert (rig.slot().interrupted_at, rig.notifier.is_rung) == (None, False)
    rig.fleet.machines["i-1"] = msgspec.structs.replace(machine, state="stopping", interrupted=True)
    for _ in range(2):
        check(rig.ports, ["linux-1"])
    assert (rig.slot().interrupted_at, rig.slot().interrupted_by) == (NOW, NOW)
    assert (rig.notifier.is_rung, interruptions(rig)) == (True, {("linux", "interruption"): 1})
    rig.tick()
    row = rig.store.find_reservations(ids=["r1"])[0]
    assert (row.phase, row.reason, row.interruptions) == ("pending", "slot_interrupted", 1)


def test_a_slot_that_is_interrupted_is_looked_at_by_every_sweep(rig: Harness, feed: MemoryFeed) -> None:
    """So that it is empty soon after its deadline; others that are ready or drain wait for the full one."""
    rig.leased("r2")
    rig.ask("drain", slot="linux-2")
    rig.mailbox.tasks.clear()
    sweep(rig.ports)
    assert rig.mailbox.tasks == []
    feed.put(interruption("i-1"))
    heed_notices(rig.ports, feed)
    rig.tick()
    rig.mailbox.tasks.clear()
    sweep(rig.ports)
    assert rig.mailbox.tasks == [("check", (["linux-1"],))]
