"""Machines that nobody may use are not launched again and again, and what cannot be carried out is not decided."""

from typing import Any

from tests.rules.playing import (
    SYSTEM,
    Document,
    a_holder,
    a_pool,
    a_scenario,
    a_slot,
    a_wish,
    act,
    play_out,
    submit,
    tick,
    told,
)

SLOW = {"boot": 5, "terminate": 5}


def launches(document: Document) -> list[str]:
    """What a minute of it launches, with kicks, wakes and a periodic tick."""
    played = play_out({**document, "kicks": True, "wakes": True, "tick_every": 5, "until": 120, "cloud": SLOW})
    return [each for each in played.decisions if " launch " in each]


def test_a_holder_that_declined_gets_the_next_machine_of_that_slot() -> None:
    """It was set against the launch, and a tick later the slot was none for it: launched and let go for ever."""
    document = a_scenario(
        submit(0, "r1"), act(5, "decline", "r1"), pool={"max_slots": 1}, slots=[a_slot("linux-1")], cloud=SLOW
    )
    played = play_out({**document, "kicks": True, "wakes": True, "until": 120})
    assert [each for each in played.decisions if " launch " in each] == ["10 launch linux-1 demand"]
    assert played.phases == {"r1": "leased"}


def test_a_machine_that_comes_in_the_moment_of_the_decline_is_the_next_one_too() -> None:
    """Where machines take no time, it was taken for the one that was declined: it went and came again without end."""
    document = a_scenario(submit(0, "r1"), act(5, "decline", "r1"), pool={"max_slots": 1, "idle_scale_down": 0})
    played = play_out({**document, "kicks": True, "wakes": True, "tick_every": 5, "until": 60})
    assert [each for each in played.decisions if " launch " in each] == [f"{at} launch linux-1 demand" for at in (0, 5)]
    assert played.phases == {"r1": "leased"}


def test_the_next_machine_of_a_declined_slot_is_another_though_somebody_has_used_it() -> None:
    document = a_scenario(
        submit(0, "r1"),
        act(8, "decline", "r1"),
        act(8, "suspend", "r1"),
        act(8, "drain", "linux-1"),
        submit(9, "r2"),
        act(40, "resume", "r1"),
        pool={"max_slots": 1, "max_leases_per_slot": 2},
        cloud=SLOW,
    )
    played = play_out({**document, "kicks": True, "wakes": True, "tick_every": 5, "until": 60})
    assert played.decisions[-1] == "40 assign r1 linux-1"


def test_what_a_record_says_was_declined_is_left_out() -> None:
    """Nothing is known there of how often the machine was used."""
    waiting = a_wish("r1", declined=["linux-1"])
    assert told(tick(0), slots=[a_slot("linux-1"), a_slot("linux-2")], reservations=[waiting]) == [
        ["assign r1 linux-2"]
    ]


def test_a_host_that_is_used_up_waits_for_a_stranger_without_a_word() -> None:
    """It was drained in every tick and skipped at every commit; with wakes the play did not come to rest."""
    hosts = {"lab": {"system": SYSTEM, "provider": "static", "lease_ttl": 0, "max_uses": 1}}
    assert told(
        submit(0, "r1"),
        tick(0),
        act(1, "confirm", {"reservation": "nobody-knows", "slot": "lab-1"}),
        act(2, "release", "r1"),
        tick(3),
        act(5, "idle", {"slot": "lab-1"}),
        tick(5),
        pools=hosts,
        slots=[a_slot("lab-1", machine="m")],
    ) == [["assign r1 lab-1"], [], ["drain lab-1 used_up"]]


def test_nothing_is_launched_behind_one_for_whom_the_guard_would_keep_it() -> None:
    """`g` waits for a second slot; what `r1` had launched was kept for `g`, went as idle, and was launched again."""
    document = a_scenario(
        submit(0, "g", components=[{"name": "w", "count": 2}]),
        submit(30, "r1"),
        pool={"max_slots": 3, "idle_scale_down": 10},
        slots=[a_slot("linux-1", "ready", "h1"), a_slot("linux-2", "ready", "h2")],
        reservations=[a_holder("h1"), a_holder("h2")],
        scheduler={"starvation_guard": 20},
    )
    assert launches(document) == []
    timeline = [*document["timeline"], tick(60)]
    assert play_out({**document, "timeline": timeline}).ticks == [["g waits at_max_slots", "r1 waits behind_queue"]]


def test_nothing_is_released_for_a_gang_that_lacks_a_slot_of_another_pool_as_well() -> None:
    """The slot that went came again as the minimum, and went again: `f` is full of work, and none of its slots goes."""
    elastic = {
        "max_slots": 2,
        "min_slots": 1,
        "price_factor": 1,
        "offerings": [{"name": "a", "price": 2, "labels": {"z": "a"}}, {"name": "d", "price": 1}],
        "max_leases_per_slot": 1,
    }
    gang: dict[str, Any] = {"name": "w", "count": 3, "labels": {"z": "a"}}
    document = a_scenario(
        act(0, "submit", a_wish("g", components=[gang])),
        pools={"e": a_pool(**elastic), "f": a_pool(max_slots=1, labels={"z": "a"})},
        slots=[a_slot("f-1", "ready", "h")],
        reservations=[a_holder("h")],
    )
    assert launches(document) == ["0 launch e-1 d minimum"]


PARTS = [{"name": "m", "resources": {"cpus": 8}}, {"name": "x", "count": 2, "resources": {"cpus": 1}}]


def a_gang_of_two_sizes(max_slots: int) -> Document:
    """`m` fits on the host, which counts leases, and the two `x` on a machine; once that is ready `m` takes it."""
    machines = a_pool(max_slots=max_slots, resources={"cpus": 8}, idle_scale_down=10, lease_ttl=0)
    hosts = {"system": SYSTEM, "provider": "static", "lease_ttl": 0}
    return a_scenario(
        submit(0, "g", components=PARTS), pools={"e": machines, "f": hosts}, slots=[a_slot("f-1", machine="m")]
    )


def test_nothing_is_launched_for_a_gang_whose_instances_would_be_in_each_others_way() -> None:
    """The machine came, `m` took it, one `x` the host, the other nothing: it went as idle, and came again for ever."""
    document = a_gang_of_two_sizes(1)
    assert launches(document) == []
    assert play_out({**document, "timeline": [*document["timeline"], tick(1)]}).ticks == [["g waits at_max_slots"]]


def test_a_gang_has_as_many_machines_launched_as_it_takes_once_all_are_ready() -> None:
    document = a_gang_of_two_sizes(2)
    assert launches(document) == ["0 launch e-1 demand", "0 launch e-2 demand"]
    assert play_out({**document, "kicks": True, "wakes": True, "until": 60, "cloud": SLOW}).phases == {"g": "leased"}


def test_the_end_of_a_drain_that_the_tick_began_wakes_it_too() -> None:
    """Only an operator's drain was waited for: without periodic ticks its leases ran on past `drain_timeout`."""
    document = a_scenario(
        act(1, "cancel", "r1"),
        slots=[a_slot("linux-1", "ready", "r1", "r2")],
        reservations=[a_holder("r1"), a_holder("r2")],
        pool={"drain_timeout": 10, "recycle_unclean": True, "max_leases_per_slot": 2},
        kicks=True,
        wakes=True,
        until=60,
    )
    assert play_out(document).decisions[:3] == [
        *("1 drain linux-1 unclean", "11 requeue r2 slot_draining", "11 terminate linux-1 timeout"),
    ]
