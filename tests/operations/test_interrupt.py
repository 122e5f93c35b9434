"""Notices of EC2: their slots and effects. No notice is lost or handled twice."""

from typing import Any

import msgspec
import pytest

from scheduler.operations.machines.check import check, recover, sweep
from scheduler.operations.machines.interrupt import MOST_BATCHES, HandledNotices, handle_notices
from scheduler.operations.machines.launch import order_of
from scheduler.operations.machines.terminate import terminate
from scheduler.ports import CloudError, EventFilter, Notice
from tests.memory_feed import MOST_AT_ONCE, MemoryFeed
from tests.operations.harness import CONFIG, NOW, Harness

HIDDEN = 30.0


@pytest.fixture
def harness() -> Harness:
    """A harness where r1 has a lease on linux-1, which is the machine i-1."""
    return Harness().leased()


@pytest.fixture
def feed(harness: Harness) -> MemoryFeed:
    return MemoryFeed(harness.clock, HIDDEN)


def interruption(machine: str = "i-1", at: float = NOW) -> Notice:
    return Notice(machine=machine, kind="interruption", at=at)


def hint(machine: str = "i-1", at: float = NOW) -> Notice:
    return Notice(machine=machine, kind="rebalance", at=at)


def is_drained(harness: Harness, feed: MemoryFeed) -> bool:
    """Return whether the feed contains no message, also none that is hidden."""
    harness.now += HIDDEN
    return feed.receive() == []


def test_the_holder_has_two_minutes_from_the_notice_and_gets_another_machine(
    harness: Harness, feed: MemoryFeed
) -> None:
    """The time of the event counts, not the time when the message arrives."""
    token = harness.token()
    feed.put(interruption(at=NOW - 20))
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=1)
    assert (harness.slot().interrupted_at, harness.slot().interrupted_by) == (NOW, NOW + 100)
    assert harness.notifier.is_rung
    harness.tick()
    row = harness.store.find_reservations(ids=["r1"])[0]
    assert (row.phase, row.revoke_by, row.reason) == ("revoking", NOW + 100, "slot_interrupted")
    harness.play_tasks()
    harness.now += 100
    harness.tick()
    assert (harness.phase(), harness.token() > token) == ("leased", True)
    assert [lease.slot for lease in harness.store.find_reservations(ids=["r1"])[0].leases] == ["linux-2"]


def test_a_notice_after_the_deadline_gives_no_grace(harness: Harness, feed: MemoryFeed) -> None:
    feed.put(interruption(at=NOW - 500))
    handle_notices(harness.ports, feed)
    harness.tick()
    assert harness.phase() == "pending"


def test_a_repeated_notice_is_one_event_and_counts_once(harness: Harness, feed: MemoryFeed) -> None:
    for _ in range(3):
        feed.put(interruption())
    assert handle_notices(harness.ports, feed).changed == 1
    feed.put(interruption(at=NOW + 50))
    assert handle_notices(harness.ports, feed).changed == 0
    assert harness.slot().interrupted_by == NOW + 120
    (event,) = harness.store.read_events(EventFilter(name="slot_interrupted"))
    assert (event.slot, event.cause, event.detail) == ("linux-1", "cloud", {"epoch": 1, "gone_at": NOW + 120})
    assert interruptions(harness) == {("linux", "interruption"): 1}


def test_an_earlier_deadline_reaches_the_holder_of_a_revoked_lease(harness: Harness, feed: MemoryFeed) -> None:
    feed.put(interruption())
    handle_notices(harness.ports, feed)
    harness.tick()
    feed.put(interruption(at=NOW - 60))
    assert handle_notices(harness.ports, feed).changed == 1
    harness.tick()
    row = harness.store.find_reservations(ids=["r1"])[0]
    assert (row.phase, row.revoke_by, [each.revoke_by for each in row.leases]) == ("revoking", NOW + 60, [NOW + 60])
    assert (row.reason, row.interruptions) == ("slot_interrupted", 1)
    (event,) = harness.store.read_events(EventFilter(name="reservation_revoked"))
    assert (event.reservation, event.detail["slot"], event.detail["deadline"]) == ("r1", "linux-1", NOW + 60)
    harness.now += 60
    harness.tick()
    assert harness.phase() == "pending"


def interruptions(harness: Harness) -> dict[tuple[str, str], int]:
    """Return (pool, kind) -> number of counted notices."""
    found = {}
    for (name, labels), count in harness.meter.counts.items():
        if name == "leasehold_interruptions_total":
            values = dict(labels)
            found[values["pool"], values["kind"]] = count
    return found


def test_both_kinds_for_one_machine_are_handled(harness: Harness, feed: MemoryFeed) -> None:
    """The rebalance recommendation drains the slot; the interruption warning then revokes its leases."""
    feed.put(hint())
    feed.put(hint())
    assert handle_notices(harness.ports, feed).changed == 1
    assert (harness.slot().state, harness.slot().drain_reason, harness.slot().interrupted_at) == (
        "draining",
        "rebalance",
        None,
    )
    harness.tick()
    assert harness.phase() == "leased"
    feed.put(interruption())
    assert handle_notices(harness.ports, feed).changed == 1
    harness.tick()
    assert harness.phase() == "revoking"
    assert interruptions(harness) == {("linux", "rebalance"): 1, ("linux", "interruption"): 1}


def test_a_pool_may_ignore_hints() -> None:
    harness = Harness({"pools": {"linux": CONFIG["pools"]["linux"] | {"rebalance": "ignore"}}}).leased()
    feed = MemoryFeed(harness.clock, HIDDEN)
    feed.put(hint())
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert harness.slot().state == "ready"
    assert is_drained(harness, feed)


def test_an_unreadable_or_foreign_notice_changes_nothing_and_is_deleted(harness: Harness, feed: MemoryFeed) -> None:
    before = harness.slot()
    feed.put(None)
    feed.put(interruption("i-99"))
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert harness.slot() == before
    assert is_drained(harness, feed)


def test_a_notice_about_an_earlier_machine_of_a_slot_changes_nothing(harness: Harness, feed: MemoryFeed) -> None:
    harness.ask("release", reservation="r1", token=harness.token())
    harness.ask("drain", slot="linux-1")
    harness.settle()
    harness.leased("r2")
    assert harness.slot().instance_id == "i-2"
    feed.put(interruption("i-1", at=harness.now))
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert harness.slot().interrupted_at is None


def test_a_notice_is_deleted_only_after_its_effect_is_committed(harness: Harness, feed: MemoryFeed) -> None:
    """A process that is killed before the delete leaves the message; it is handled again without effect."""
    feed.put(interruption())
    undeleted = MemoryFeed(harness.clock, HIDDEN)
    undeleted.put(interruption())
    undeleted.delete = lambda receipts: (_ for _ in ()).throw(CloudError("transient", "timeout", ""))  # type: ignore[method-assign]
    with pytest.raises(CloudError):
        handle_notices(harness.ports, undeleted)
    assert harness.slot().interrupted_at == NOW
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert is_drained(harness, feed)


def a_launching_harness() -> tuple[Harness, MemoryFeed]:
    """Return a harness where EC2 has launched i-1 for linux-1 and the answer has not arrived yet."""
    harness = Harness()
    harness.submit("r1")
    harness.tick()
    slot = harness.slot()
    assert slot.state == "launching"
    request = harness.fleet.freeze(order_of(slot), harness.ports.rules())
    harness.put(msgspec.structs.replace(slot, launch_request=request))
    harness.fleet.launch(request)
    return harness, MemoryFeed(harness.clock, HIDDEN)


def test_a_notice_before_the_answer_to_the_launch_finds_its_slot() -> None:
    """The slot is given up at once, its machine is terminated, and another slot is launched."""
    harness, feed = a_launching_harness()
    feed.put(interruption("i-1"))
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=1)
    assert is_drained(harness, feed)
    harness.tick()
    assert (harness.slot().state, harness.slot("linux-2").state) == ("terminating", "launching")
    harness.play_tasks()
    assert harness.fleet.terminations[0] == "i-1"
    assert harness.fleet.running == ["i-2"]


def test_a_notice_during_the_launch_is_kept_on_the_slot() -> None:
    """The launch keeps its result, and the next tick drains the slot."""
    harness = Harness()
    feed = MemoryFeed(harness.clock, HIDDEN)
    harness.submit("r1")
    harness.tick()
    feed.put(interruption("i-1"))
    harness.fleet.during_launch = lambda: handle_notices(harness.ports, feed)
    harness.play_tasks()
    assert harness.slot().interrupted_at == NOW
    harness.settle(10)
    assert (harness.fleet.terminations, harness.fleet.running) == (["i-1"], ["i-2"])


def test_a_notice_about_a_machine_that_is_not_listed_yet_is_kept_until_its_deadline() -> None:
    harness, feed = a_launching_harness()
    hidden = harness.fleet.machines.pop("i-1")
    feed.put(interruption("i-1"))
    assert handle_notices(harness.ports, feed) == HandledNotices(left=1)
    harness.now += HIDDEN
    harness.fleet.machines["i-1"] = hidden
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=1)
    harness.fleet.machines.clear()
    feed.put(interruption("i-7"))
    harness.now += 120
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert is_drained(harness, feed)


def test_a_cloud_that_does_not_answer_delays_no_other_notice() -> None:
    """Messages about known machines are handled and deleted; the others are delivered again."""
    harness = Harness().leased()
    harness.submit("r2")
    harness.tick()
    assert harness.slot("linux-2").state == "launching"
    feed = MemoryFeed(harness.clock, HIDDEN)
    feed.put(interruption("i-9"))
    feed.put(interruption("i-1"))

    def fail(_machines: object) -> dict[str, object]:
        raise CloudError("throttled", "RequestLimitExceeded", "")

    harness.fleet.describe = fail  # type: ignore[method-assign,assignment]
    with pytest.raises(CloudError):
        handle_notices(harness.ports, feed)
    assert harness.slot().interrupted_at == NOW
    harness.now += HIDDEN
    assert [message.notices for message in feed.receive()] == [(interruption("i-9"),)]


def test_a_notice_about_a_terminating_machine_changes_nothing(harness: Harness, feed: MemoryFeed) -> None:
    harness.ask("release", reservation="r1", token=harness.token())
    harness.ask("drain", slot="linux-1")
    harness.tick()
    assert harness.slot().state == "terminating"
    feed.put(interruption())
    feed.put(hint())
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert terminate(harness.ports, "linux-1", harness.slot().epoch) == "asked"


def test_one_call_reads_a_limited_number_of_batches(harness: Harness, feed: MemoryFeed) -> None:
    batch = MOST_BATCHES * MOST_AT_ONCE
    for _ in range(batch):
        feed.put(None)
    feed.put(interruption())
    assert handle_notices(harness.ports, feed) == HandledNotices()
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=1)


def test_each_notice_of_a_batch_changes_its_slot(harness: Harness, feed: MemoryFeed) -> None:
    harness.leased("r2")
    feed.put(hint("i-2"))
    feed.put(interruption("i-1"))
    assert handle_notices(harness.ports, feed) == HandledNotices(changed=2)
    assert (harness.slot("linux-1").interrupted_at, harness.slot("linux-2").state) == (NOW, "draining")


def test_a_machine_interrupted_without_a_notice_counts_as_interrupted(harness: Harness) -> None:
    """The holder has no time left. A machine that stops for any other reason does not count as interrupted."""
    machine = harness.fleet.machines["i-1"]
    harness.fleet.machines["i-1"] = msgspec.structs.replace(machine, state="stopping")
    assert check(harness.ports, ["linux-1"]) == 0
    assert (harness.slot().interrupted_at, harness.notifier.is_rung) == (None, False)
    harness.fleet.machines["i-1"] = msgspec.structs.replace(machine, state="stopping", interrupted=True)
    for _ in range(2):
        check(harness.ports, ["linux-1"])
    assert (harness.slot().interrupted_at, harness.slot().interrupted_by) == (NOW, NOW)
    assert (harness.notifier.is_rung, interruptions(harness)) == (True, {("linux", "interruption"): 1})
    harness.tick()
    row = harness.store.find_reservations(ids=["r1"])[0]
    assert (row.phase, row.reason, row.interruptions) == ("pending", "slot_interrupted", 1)


def let_ec2_end(harness: Harness, name: str = "i-1") -> None:
    """Let EC2 take a spot machine back: it is terminated, and nothing reported it before."""
    machine = harness.fleet.machines[name]
    harness.fleet.machines[name] = msgspec.structs.replace(machine, state="terminated", interrupted=True)


@pytest.mark.parametrize("noticed", [False, True])
def test_a_machine_that_ec2_has_taken_back_already_counts_as_interrupted(
    harness: Harness, feed: MemoryFeed, noticed: bool
) -> None:
    """The slot keeps its leases until a tick has requeued the reservation, also if a second check comes before it."""
    if noticed:
        feed.put(interruption())
        handle_notices(harness.ports, feed)
    let_ec2_end(harness)
    for _ in range(3):
        check(harness.ports, ["linux-1"])
    assert (harness.slot().state, harness.slot().interrupted_by) == ("ready", NOW)
    assert (harness.notifier.is_rung, interruptions(harness)[("linux", "interruption")]) == (True, 1 + noticed)
    harness.tick()
    row = harness.store.find_reservations(ids=["r1"])[0]
    assert (row.phase, row.reason, row.interruptions) == ("pending", "slot_interrupted", 1)
    assert check(harness.ports, ["linux-1"]) == 1
    assert (harness.slot().state, harness.fleet.terminations) == ("empty", [])
    harness.play_tasks()
    harness.tick()
    assert harness.phase() == "leased"


def test_a_reservation_that_forbids_it_fails_with_a_machine_that_ec2_took_back() -> None:
    harness = Harness()
    harness.submit("r1", on_interruption="fail")
    harness.settle(4)
    let_ec2_end(harness)
    check(harness.ports, ["linux-1"])
    harness.tick()
    assert harness.phase() == "failed"
    assert harness.store.find_reservations(ids=["r1"])[0].reason == "slot_interrupted"


def test_an_idle_or_draining_machine_that_ec2_took_back_is_gone_at_once(harness: Harness) -> None:
    harness.leased("r2")
    for name, token in (("r1", harness.token()), ("r2", harness.token("r2"))):
        harness.ask("release", reservation=name, token=token)
    harness.ask("drain", slot="linux-2")
    for name in ("i-1", "i-2"):
        let_ec2_end(harness, name)
    check(harness.ports, ["linux-1", "linux-2"])
    assert [harness.slot(name).state for name in ("linux-1", "linux-2")] == ["empty", "empty"]
    assert interruptions(harness) == {("linux", "interruption"): 2}


@pytest.mark.parametrize("runs", [False, True])
def test_a_boot_that_ec2_ended_to_take_the_capacity_back_is_no_failed_boot(runs: bool) -> None:
    harness = Harness({"pools": {"linux": CONFIG["pools"]["linux"] | {"unhealthy_after": 1}}})
    harness.fleet.is_ready = lambda slot, machine, rules: False  # type: ignore[method-assign]
    harness.submit("r1")
    harness.tick()
    harness.play_tasks_of("launch")
    if runs:
        check(harness.ports, ["linux-1"])
    assert harness.slot().state == ("binding" if runs else "booting")
    let_ec2_end(harness)
    check(harness.ports, ["linux-1"])
    assert (harness.slot().state, harness.store.find_holds()) == ("empty", [])
    harness.tick()
    assert harness.slot().state == "launching"


def test_a_terminating_slot_whose_machine_ec2_took_back_is_empty(harness: Harness) -> None:
    harness.ask("release", reservation="r1", token=harness.token())
    harness.ask("drain", slot="linux-1")
    harness.tick()
    let_ec2_end(harness)
    check(harness.ports, ["linux-1"])
    assert harness.slot().state == "empty"


def test_a_change_of_the_state_to_terminated_has_the_slot_checked(harness: Harness, feed: MemoryFeed) -> None:
    let_ec2_end(harness)
    feed.put(Notice(machine="i-1", kind="state", at=NOW, state="terminated"))
    assert handle_notices(harness.ports, feed).checked == 1
    harness.play_tasks()
    harness.tick()
    assert (harness.phase(), harness.slot().interrupted_by) == ("pending", NOW)


def test_every_lease_on_a_machine_that_ec2_took_back_ends() -> None:
    """The instances of one reservation, and the reservations that share the machine, are requeued together."""
    harness = Harness({"pools": {"linux": CONFIG["pools"]["linux"] | {"max_leases_per_slot": 2}}}).leased()
    harness.leased("r2")
    assert harness.slot("linux-2").state == "empty"
    let_ec2_end(harness)
    check(harness.ports, ["linux-1"])
    harness.tick()
    assert {harness.phase(name) for name in ("r1", "r2")} == {"pending"}
    harness.settle(10)
    assert {harness.phase(name) for name in ("r1", "r2")} == {"leased"}


SPOT = {
    "pools": {
        "linux": CONFIG["pools"]["linux"]
        | {"max_leases_per_slot": 1, "offerings": [{"name": "m5.large", "market": "spot", "price": 0.1}]}
    }
}


def a_spot_harness(**changes: Any) -> tuple[Harness, MemoryFeed]:
    """Return a harness where r1 has a lease on linux-1, which is the spot machine i-1, launched at NOW."""
    harness = Harness({"pools": {"linux": SPOT["pools"]["linux"] | changes}}).leased()
    return harness, MemoryFeed(harness.clock, HIDDEN)


def end_lease(harness: Harness) -> None:
    """Let the holder give its lease back; the plan then ends the machine."""
    harness.ask("release", reservation="r1", token=harness.token())
    for _ in range(2):
        harness.tick()
    assert harness.slot().state == "terminating"


def interrupt_and_drain(harness: Harness, feed: MemoryFeed) -> None:
    feed.put(interruption(at=harness.now))
    handle_notices(harness.ports, feed)
    harness.tick()
    end_lease(harness)


def run_recover(harness: Harness, seconds: float) -> set[str]:
    """Let time pass, run the task that repeats lost work, and return the machines that were terminated so far."""
    harness.now += seconds
    recover(harness.ports)
    harness.play_tasks()
    return set(harness.fleet.terminations)


def test_the_end_of_an_interrupted_spot_machine_in_its_first_hour_is_left_to_ec2() -> None:
    """Its slot takes no lease. The call comes a minute after the deadline, if EC2 has not ended the machine by then."""
    harness, feed = a_spot_harness()
    interrupt_and_drain(harness, feed)
    harness.play_tasks()
    assert terminate(harness.ports, "linux-1", 1) == "not_due"
    assert run_recover(harness, 179.9) == set()
    assert run_recover(harness, 0.2) == {"i-1"}


def test_no_call_is_made_for_a_machine_that_ec2_ended() -> None:
    harness, feed = a_spot_harness()
    interrupt_and_drain(harness, feed)
    harness.play_tasks()
    harness.now += 120
    let_ec2_end(harness)
    harness.settle(300)
    assert "i-1" not in harness.fleet.terminations
    assert harness.slot().instance_id != "i-1"


def test_a_machine_that_boots_is_left_to_ec2_too() -> None:
    harness = Harness(SPOT)
    feed = MemoryFeed(harness.clock, HIDDEN)
    harness.submit("r1")
    harness.tick()
    harness.play_tasks_of("launch")
    feed.put(interruption(at=harness.now))
    handle_notices(harness.ports, feed)
    harness.tick()
    assert harness.slot().state == "terminating"
    assert run_recover(harness, 1) == set()


@pytest.mark.parametrize(("max_slots", "expected"), [(1, {"i-1"}), (3, set())])
def test_a_machine_makes_place_for_a_reservation_that_waits_for_its_slot(max_slots: int, expected: set[str]) -> None:
    """A reservation that waits for a slot of another pool changes nothing."""
    pool = SPOT["pools"]["linux"]
    other = pool | {"system": "other", "max_slots": 1}
    harness = Harness({"pools": {"linux": pool | {"max_slots": max_slots}, "other": other}}).leased()
    feed = MemoryFeed(harness.clock, HIDDEN)
    for name in ("o1", "o2"):
        harness.ask("submit", id=name, system="other")
    interrupt_and_drain(harness, feed)
    harness.submit("r2")
    harness.tick()
    assert harness.ports.view_cache.read_report()["codes"]["at_max_slots"] == len(expected) + 1
    assert run_recover(harness, 11) == expected


@pytest.mark.parametrize("age", [3600.0, 3480.0])
def test_a_machine_whose_deadline_is_after_its_first_hour_is_ended_at_once(age: float) -> None:
    harness, feed = a_spot_harness(idle_scale_down=0)
    harness.now += age
    interrupt_and_drain(harness, feed)
    assert run_recover(harness, 11) == {"i-1"}


def test_an_on_demand_machine_and_one_with_a_hint_are_ended_at_once() -> None:
    harness, feed = a_spot_harness()
    feed.put(hint())
    handle_notices(harness.ports, feed)
    end_lease(harness)
    assert run_recover(harness, 11) == {"i-1"}
    harness, feed = a_spot_harness(offerings=[{"name": "m5.large", "market": "on-demand", "price": 0.1}])
    interrupt_and_drain(harness, feed)
    assert run_recover(harness, 11) == {"i-1"}


@pytest.mark.parametrize("seconds", [-3600.0, -61.0, 181.0])
def test_a_clock_that_was_set_back_does_not_keep_the_machine(seconds: float) -> None:
    """By a clock that shows a time before the notice, the call is made at once. The notice's own time, by EC2's clock,
    does not count if it is later: the call is made three minutes after the notice arrived.
    """
    harness, feed = a_spot_harness()
    feed.put(interruption(at=harness.now + 1000))
    handle_notices(harness.ports, feed)
    harness.tick()
    end_lease(harness)
    assert run_recover(harness, seconds) == {"i-1"}


def test_every_sweep_checks_interrupted_slots(harness: Harness, feed: MemoryFeed) -> None:
    """So the slot is empty soon after its deadline. Other ready or draining slots are checked by the full sweep."""
    harness.leased("r2")
    harness.ask("drain", slot="linux-2")
    harness.mailbox.tasks.clear()
    sweep(harness.ports)
    assert harness.mailbox.tasks == []
    feed.put(interruption("i-1"))
    handle_notices(harness.ports, feed)
    harness.tick()
    harness.mailbox.tasks.clear()
    sweep(harness.ports)
    assert harness.mailbox.tasks == [("check", (["linux-1"],))]
