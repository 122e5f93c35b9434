"""A machine that no reservation may use is not launched again and again, and no decision repeats that cannot be carried
out.
"""

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
    reported,
    submit,
    tick,
)

SLOW = {"boot": 5, "terminate": 5}


def launches(document: Document) -> list[str]:
    """Return the launches of one minute, with kicks, wakes and a periodic tick."""
    played = play_out({**document, "kicks": True, "wakes": True, "tick_every": 5, "until": 120, "cloud": SLOW})
    return [each for each in played.decisions if " launch " in each]


def test_a_holder_that_declined_gets_the_next_machine_of_that_slot() -> None:
    """Otherwise it would wait for the launch, and a tick later the slot would not suit it: launched and drained without
    end.
    """
    document = a_scenario(
        submit(0, "r1"), act(5, "decline", "r1"), pool={"max_slots": 1}, slots=[a_slot("linux-1")], cloud=SLOW
    )
    played = play_out({**document, "kicks": True, "wakes": True, "until": 120})
    assert [each for each in played.decisions if " launch " in each] == ["10 launch linux-1 demand"]
    assert played.phases == {"r1": "leased"}


def test_a_machine_that_arrives_at_the_instant_of_the_decline_is_the_next_one_too() -> None:
    """Without delays of the cloud, it would be taken for the declined machine: terminated and launched without end."""
    document = a_scenario(submit(0, "r1"), act(5, "decline", "r1"), pool={"max_slots": 1, "idle_scale_down": 0})
    played = play_out({**document, "kicks": True, "wakes": True, "tick_every": 5, "until": 60})
    assert [each for each in played.decisions if " launch " in each] == [f"{at} launch linux-1 demand" for at in (0, 5)]
    assert played.phases == {"r1": "leased"}


def test_the_next_machine_of_a_declined_slot_is_another_one_although_it_was_used() -> None:
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


def test_a_slot_that_a_record_lists_as_declined_is_not_used() -> None:
    """The record does not contain how often the machine was used."""
    waiting = a_wish("r1", declined=["linux-1"])
    assert reported(tick(0), slots=[a_slot("linux-1"), a_slot("linux-2")], reservations=[waiting]) == [
        ["assign r1 linux-2"]
    ]


def test_a_host_at_max_uses_with_an_unknown_occupant_is_not_drained() -> None:
    """Otherwise it would be drained in every tick and skipped at every commit; with wakes the play would not come to
    rest.
    """
    hosts = {"lab": {"system": SYSTEM, "provider": "static", "lease_ttl": 0, "max_uses": 1}}
    assert reported(
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


def test_nothing_is_launched_behind_a_reservation_for_which_the_guard_would_keep_it() -> None:
    """`g` waits for a second slot; a slot that `r1` launched would be kept for `g`, drain as idle, and be launched
    again.
    """
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


def test_behind_a_protected_gang_a_slot_is_launched_that_is_too_small_for_it() -> None:
    offerings = [{"name": f"of-{cpus}", "price": cpus, "resources": {"cpus": cpus}} for cpus in (1, 8)]
    assert reported(
        submit(0, "g", components=[{"name": "w", "count": 2, "resources": {"cpus": 8}}]),
        submit(30, "r1", resources={"cpus": 1}),
        tick(60),
        pool={"max_slots": 3, "offerings": offerings},
        slots=[a_slot(f"linux-{number}", "ready", f"h{number}", offering="of-1") for number in (1, 2)],
        reservations=[a_holder(f"h{number}", resources={"cpus": 1}) for number in (1, 2)],
        scheduler={"starvation_guard": 20},
        cloud=SLOW,
    ) == [["launch linux-3 of-1 demand", "g waits at_max_slots", "r1 waits booting"]]


def test_a_launch_that_is_tried_in_vain_for_a_gang_leaves_no_label_on_the_slot() -> None:
    """linux-1 is launched with `hdd` after a trial with `ssd`: `r2` finds its second place, too."""
    offerings = [{"name": disk, "price": 1, "labels": {"disk": disk}} for disk in ("ssd", "hdd")]
    assert reported(
        submit(0, "g", components=[{"name": "w", "count": 3, "labels": {"disk": "ssd"}}]),
        submit(0, "r1", "r2", labels={"disk": "hdd"}),
        tick(0),
        pool={"max_slots": 1, "max_leases_per_slot": 2, "offerings": offerings},
        cloud=SLOW,
    ) == [["launch linux-1 hdd demand", "g waits at_max_slots", "r1 waits booting", "r2 waits booting"]]


def test_nothing_is_drained_for_a_gang_that_also_lacks_a_slot_of_another_pool() -> None:
    """Otherwise the drained slot would be launched as the minimum, and drained again: `f` is full, and none of its
    slots ends.
    """
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


PARTS: list[Document] = [{"name": "m", "resources": {"cpus": 8}}, {"name": "x", "count": 2, "resources": {"cpus": 1}}]
OTHERS: list[Document] = [{"name": f"other{number}", "resources": {"gpus": number}} for number in range(1, 8)]
"""With these parts a gang has too many different requests for backtracking."""


def a_gang_of_two_sizes(max_slots: int, parts: list[Document]) -> Document:
    """`m` fits on the host, which counts leases, and the two `x` on a machine; once that is ready `m` takes it."""
    machines = a_pool(max_slots=max_slots, resources={"cpus": 8}, idle_scale_down=10, lease_ttl=0)
    hosts = {"system": SYSTEM, "provider": "static", "lease_ttl": 0}
    full = {"system": SYSTEM, "provider": "static", "lease_ttl": 0, "resources": {"gpus": 28}}
    return a_scenario(
        submit(0, "g", components=parts),
        pools={"e": machines, "f": hosts, "g": full},
        slots=[a_slot("f-1", machine="m"), a_slot("g-1", machine="n")],
    )


def test_a_gang_whose_instances_would_take_each_others_slots_is_placed_in_another_order() -> None:
    """Once the machine is ready, only an order other than that of writing leaves it to the two `x`."""
    document = a_gang_of_two_sizes(1, PARTS)
    assert launches(document) == ["0 launch e-1 demand"]
    assert play_out({**document, "kicks": True, "wakes": True, "until": 60, "cloud": SLOW}).phases == {"g": "leased"}


def test_nothing_is_launched_for_a_gang_whose_instances_would_take_each_others_slots() -> None:
    """Otherwise `m` would take the new machine, one `x` the host, the other nothing: drained as idle and launched
    without end.
    """
    document = a_gang_of_two_sizes(1, [*PARTS, *OTHERS])
    assert launches(document) == []
    assert play_out({**document, "timeline": [*document["timeline"], tick(1)]}).ticks == [["g waits at_max_slots"]]


def test_for_a_gang_slots_are_launched_until_all_instances_fit_once_every_slot_is_ready() -> None:
    document = a_gang_of_two_sizes(2, [*PARTS, *OTHERS])
    assert launches(document) == ["0 launch e-1 demand", "0 launch e-2 demand"]
    assert play_out({**document, "kicks": True, "wakes": True, "until": 60, "cloud": SLOW}).phases == {"g": "leased"}


def test_the_end_of_a_drain_that_the_tick_began_causes_a_wake_up() -> None:
    """Otherwise only an operator's drain would: without periodic ticks its leases would run on past `drain_timeout`."""
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
        *("1 drain linux-1 unclean", "11 requeue r2 slot_draining", "11 terminate linux-1 timeout")
    ]
