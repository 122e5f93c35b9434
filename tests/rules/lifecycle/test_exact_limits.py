"""A limit that is reached exactly is not exceeded, also at times with decimals: 64.4 is exactly 60 s after 4.4.

The difference of such times is often rounded to more or less than their distance; the sum of time and limit is not.
"""

import pytest

from tests.rules.playing import Document, a_holder, a_slot, a_wish, act, reported, submit, ticks

HOSTS = {"hosts": {"system": "x86_64-linux", "provider": "static", "lease_ttl": 0}}


@pytest.mark.parametrize("start", [4.4, 10.1, 33.3, 76.1])
def test_a_slot_drains_after_more_than_the_idle_time(start: float) -> None:
    assert reported(
        act(start, "release", "r1"),
        *ticks(round(start + 60, 1), round(start + 60.1, 1)),
        slots=[a_slot("linux-1", "ready", "r1")],
        reservations=[a_holder("r1")],
        pool={"idle_scale_down": 60},
    ) == [[], ["drain linux-1 idle"]]


@pytest.mark.parametrize("start", [1.1, 76.1])
def test_a_host_is_offline_after_more_than_the_timeout(start: float) -> None:
    assert reported(
        act(start, "seen", "hosts-1"),
        *ticks(round(start + 180, 1), round(start + 180.1, 1)),
        slots=[a_slot("hosts-1", "ready", "r1")],
        reservations=[a_holder("r1")],
        pools=HOSTS,
    ) == [[], ["fail r1 slot_offline"]]


@pytest.mark.parametrize("start", [1.1, 10.1])
def test_a_restart_is_due_after_more_than_the_delay(start: float) -> None:
    fail: Document = {"reservation": "r1"}
    again = ["restart r1 restart_due", "assign r1 linux-1"]
    assert reported(
        act(start, "fail", fail),
        *ticks(start),
        act(start, "fail", fail),
        *ticks(round(start + 15, 1), round(start + 15.1, 1)),
        slots=[a_slot("linux-1", "ready", "r1")],
        reservations=[a_holder("r1", restart_policy="on_failure")],
        pool={"min_slots": 1},
    ) == [again, [], again]


@pytest.mark.parametrize("start", [4.4, 10.1])
def test_the_starvation_guard_protects_after_more_than_its_time(start: float) -> None:
    """`long` needs all of the slot; until it is protected, the later `r1` and `r2` overtake it."""
    waits = "long waits at_max_slots"
    assert reported(
        submit(start, "long", resources={"cpus": 2}),
        submit(round(start + 60, 1), "r1", resources={"cpus": 0.5}),
        *ticks(round(start + 60, 1)),
        submit(round(start + 60.1, 1), "r2", resources={"cpus": 0.5}),
        *ticks(round(start + 60.1, 1)),
        slots=[a_slot("linux-1", "ready", "h1")],
        reservations=[a_wish("h1", phase="leased", resources={"cpus": 1})],
        pool={"resources": {"cpus": 2}, "max_slots": 1},
        scheduler={"starvation_guard": 60},
    ) == [["assign r1 linux-1", waits], [waits, "r2 waits behind_queue"]]
