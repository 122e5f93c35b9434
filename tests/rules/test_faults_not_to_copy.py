"""Faults of the autoscaler that are not copied: a regression test for each."""

from tests.rules.playing import a_holder, a_pool, a_scenario, a_slot, act, play_out, reported, submit, tick, ticks

OTHER = "aarch64-linux"


def test_an_outage_leaves_no_slot_in_error() -> None:
    """In the autoscaler, `error` is final, and every tick of an outage leaves further slots in it."""
    played = play_out(
        a_scenario(
            act(0, "outage", {"pool": "linux", "error": "misconfigured", "until": 1000}),
            submit(0, "r1"),
            tick_every=5,
            until=2000,
        )
    )
    assert played.phases == {"r1": "leased"}
    launches = [each for each in played.decisions if " launch " in each]
    # The pauses are 60, 60, 120, 240, 480 and 900 s.
    assert len(launches) == 7


def test_a_slow_cloud_does_not_stop_expiry_and_draining() -> None:
    """In the autoscaler, launches are made inside the tick."""
    assert reported(
        submit(0, "r1", ttl=20, resources={"cpus": 1}),
        *ticks(0, 20),
        pool={"idle_scale_down": 10, "resources": {"cpus": 1}},
        slots=[a_slot("linux-4", resources={}), a_slot("linux-3", resources={})],
        cloud={"launch": 290},
    )[1] == ["expire r1 ttl", "drain linux-3 idle", "drain linux-4 idle"]


def test_leases_on_an_interrupted_slot_are_requeued_and_replaced_at_once() -> None:
    """In the autoscaler, they stay until the machine ends."""
    assert reported(
        act(0, "interrupt", {"slot": "linux-1", "deadline": 120}),
        tick(0),
        slots=[a_slot("linux-1", "ready", "r1")],
        reservations=[a_holder("r1")],
    ) == [["drain linux-1 interrupted", "requeue r1 slot_interrupted", "launch linux-2 demand"]]


def test_an_interrupted_slot_that_boots_is_stopped_and_replaced_at_once() -> None:
    """In the autoscaler, it counts as capacity and as warm until it is ready."""
    assert reported(
        act(0, "interrupt", {"slot": "linux-1", "deadline": 120}),
        tick(0),
        pool={"target_warm_slots": 1},
        slots=[a_slot("linux-1", "booting")],
        cloud={"boot": 60},
    ) == [["terminate linux-1 interrupted", "launch linux-2 warm"]]


def test_a_reservation_on_a_vanished_slot_fails_in_the_next_tick() -> None:
    """In the autoscaler, it stays leased until it expires."""
    assert reported(
        act(0, "remove", "linux-1"), tick(0), slots=[a_slot("linux-1", "ready", "r1")], reservations=[a_holder("r1")]
    ) == [["fail r1 slot_gone"]]


def test_only_serving_slots_satisfy_the_minimum() -> None:
    """In the autoscaler, a draining slot does."""
    for state in ("draining", "terminating", "error"):
        assert (
            reported(tick(0), pool={"min_slots": 1}, slots=[a_slot("linux-1", state)], cloud={"terminate": 60})[0][-1]
            == "launch linux-2 minimum"
        )


def test_the_reserve_contains_only_slots_that_no_reservation_waits_for() -> None:
    """In the autoscaler, launches for demand count as warm, so no reserve is left under load."""
    assert reported(submit(0, "r1", "r2"), tick(0), pool={"target_warm_slots": 2}) == [
        [
            *("launch linux-1 demand", "launch linux-2 demand", "launch linux-3 warm", "launch linux-4 warm"),
            *("r1 waits booting", "r2 waits booting"),
        ]
    ]


def test_idle_scale_down_never_goes_below_the_warm_target() -> None:
    """In the autoscaler, it drains, then launches, without end."""
    played = play_out(
        a_scenario(
            kicks=True,
            wakes=True,
            tick_every=5,
            until=3000,
            pool={"target_warm_slots": 2, "idle_scale_down": 30},
            cloud={"boot": 10, "terminate": 5},
        )
    )
    assert played.decisions == ["0 launch linux-1 warm", "0 launch linux-2 warm"]


def test_idle_time_counts_from_the_end_of_the_last_lease() -> None:
    """In the autoscaler, it counts from `ready`, so a slot is drained at the second at which a long lease ends."""
    assert reported(
        act(0, "release", "r1"),
        *ticks(0, 300, 300.1),
        slots=[a_slot("linux-1", "ready", "r1", since=-9999)],
        reservations=[a_holder("r1")],
    ) == [[], [], ["drain linux-1 idle"]]


def test_a_lease_that_expires_in_this_tick_ends_in_this_tick() -> None:
    """The slot was ready for a long time, but its last lease ended just now."""
    assert reported(
        *ticks(0, 300, 300.1),
        slots=[a_slot("linux-1", "ready", "r1", since=-9999)],
        reservations=[a_holder("r1", created_at=-10, ttl=10)],
    ) == [["expire r1 ttl"], [], ["drain linux-1 idle"]]


def test_a_requeued_lease_ends_the_busy_time_of_its_slot_in_this_tick() -> None:
    assert reported(
        submit(-0.0, "r1", priority=1),
        tick(0),
        act(5, "priority", {"reservation": "r1", "priority": 0}),
        tick(10),
        scheduler={"confirm_timeout": 10},
        slots=[a_slot("linux-1", since=-9999, idle_since=-9999)],
    ) == [["assign r1 linux-1"], ["requeue r1 unconfirmed", "r1 waits on_hold"]]


def test_which_slot_drains_and_which_reservation_gets_the_last_unit_is_determined() -> None:
    """In the autoscaler, row order decides. Here: longest idle first, each pool its own limits, queue order."""
    slots = [a_slot("linux-3", idle_since=-500), a_slot("linux-1", idle_since=-400), a_slot("linux-2", idle_since=-600)]
    assert reported(tick(0), pool={"min_slots": 1}, slots=slots) == [["drain linux-2 idle", "drain linux-3 idle"]]
    for names in (("a", "b"), ("b", "a")):
        assert reported(submit(0, *names), tick(0), pool={"max_slots": 1}) == [
            ["launch linux-1 demand", f"{names[0]} waits booting", f"{names[1]} waits at_max_slots"]
        ]


def test_minimum_and_warm_are_each_pools_own() -> None:
    """In the autoscaler, they launch any system."""
    assert reported(
        tick(0),
        pools={"linux": a_pool(min_slots=1), "arm": a_pool(system=OTHER, target_warm_slots=1)},
        slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-2")],
        reservations=[a_holder("r1")],
    ) == [["launch arm-1 warm"]]
