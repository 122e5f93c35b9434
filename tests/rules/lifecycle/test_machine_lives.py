"""How long a machine is used: `max_uses`, `recycle_unclean`, `unhealthy_after`; and what replaces spot machines."""

from typing import Any

import pytest

from tests.rules.playing import Document, a_holder, a_scenario, a_slot, act, play_out, reported, submit, tick, ticks

SLOW = {"boot": 99, "terminate": 5}


def test_after_max_uses_leases_a_slot_takes_no_more_and_drains_when_it_is_empty() -> None:
    assert reported(
        submit(0, "r1", "r2", "r3"),
        tick(0),
        act(1, "release", "r1"),
        tick(1),
        act(2, "release", "r2"),
        *ticks(2, 3),
        pool={"max_uses": 2, "max_leases_per_slot": 8, "max_slots": 2},
        slots=[a_slot("linux-1")],
        cloud=SLOW,
    ) == [
        ["assign r1 linux-1", "assign r2 linux-1", "launch linux-2 demand", "r3 waits booting"],
        ["r3 waits booting"],
        ["drain linux-1 used_up", "r3 waits booting"],
        ["terminate linux-1 drained", "r3 waits booting"],
    ]


def test_a_slot_in_flight_has_capacity_for_max_uses_leases_in_all() -> None:
    assert reported(
        submit(0, "r1", "r2", "r3"), *ticks(0, 5), pool={"max_uses": 2, "max_leases_per_slot": 8}, cloud={"boot": 5}
    ) == [
        ["launch linux-1 demand", "launch linux-2 demand", *(f"r{n} waits booting" for n in (1, 2, 3))],
        ["assign r1 linux-1", "assign r2 linux-1", "assign r3 linux-2"],
    ]


def test_the_next_machine_of_a_slot_counts_its_uses_from_0() -> None:
    played = play_out(
        a_scenario(
            *(submit(0, f"r{n}", runtime=10) for n in range(4)),
            pool={"max_uses": 1, "max_slots": 1},
            kicks=True,
            wakes=True,
            until=200,
            cloud={"boot": 5, "terminate": 5},
        )
    )
    assert set(played.phases.values()) == {"released"}
    assert [each for each in played.decisions if "used_up" in each] == [
        f"{at} drain linux-1 used_up" for at in (15, 35, 55, 75)
    ]


def test_a_static_host_at_max_uses_is_empty_until_it_registers_again_and_then_counts_from_0() -> None:
    """The agent of a drained host ends, and whatever restarts it may clean the host first."""
    host = {"id": "lab-1", "pool": "lab", "machine": "m"}
    assert reported(
        submit(0, "r1", "r2", "r3"),
        tick(0),
        act(1, "release", "r1"),
        tick(1),
        act(2, "release", "r2"),
        *ticks(2, 3, 4),
        act(5, "register", host),
        tick(5),
        pools={"lab": {"system": "x86_64-linux", "provider": "static", "max_leases_per_slot": 8, "max_uses": 2}},
        slots=[a_slot("lab-1", machine="m")],
    ) == [
        ["assign r1 lab-1", "assign r2 lab-1", "r3 waits no_capacity"],
        ["r3 waits no_capacity"],
        ["drain lab-1 used_up", "r3 waits no_capacity"],
        ["reset lab-1 drained", "r3 waits no_capacity"],
        ["r3 waits no_capacity"],
        ["assign r3 lab-1"],
    ]


CLAIMED: dict[str, tuple[int, str]] = {
    "its claim was the last use that was left": (2, "r4 waits at_max_slots"),
    "one more is left": (3, "preempt r4 linux-1 of r2 at 0"),
}


@pytest.mark.parametrize("name", CLAIMED)
def test_a_claim_counts_as_a_use_when_it_is_assigned_and_no_preemption_needs_a_use_that_is_not_left(name: str) -> None:
    """`r2` preempted `r0`, and gets its claim in the tick in which `r4` could pay for preempting it."""
    max_uses, found = CLAIMED[name]
    document = a_scenario(
        submit(0, "r0", runtime=60),
        tick(0),
        submit(1, "r2", account="poor"),
        tick(1),
        submit(2, "r4", account="rich"),
        tick(11),
        pool={"max_slots": 1, "max_uses": max_uses},
        slots=[a_slot("linux-1")],
        scheduler={"queue": "quota"},
    )
    document["config"]["accounts"] = {"rich": {"balance": [50]}, "poor": {"balance": [0, 9]}}
    played = play_out(document)
    assert played.ticks[2][:2] == ["assign r2 linux-1 at 1", found]
    assert "skipped" not in str(played.lines)


UNCLEAN: dict[str, tuple[list[Document], str]] = {
    "release": ([act(5, "release", "r1")], ""),
    "cancel": ([act(5, "cancel", "r1")], "drain linux-1 unclean"),
    "fail": ([act(5, "fail", {"reservation": "r1"})], "drain linux-1 unclean"),
    "decline": ([act(5, "decline", "r1")], "drain linux-1 unclean"),
    "suspend": ([act(5, "suspend", "r1")], "drain linux-1 unclean"),
}


@pytest.mark.parametrize("name", UNCLEAN)
def test_a_lease_that_did_not_end_by_release_drains_its_slot(name: str) -> None:
    words, drained = UNCLEAN[name]
    played = play_out(
        a_scenario(submit(0, "r1"), tick(0), *words, tick(5), pool={"recycle_unclean": True}, slots=[a_slot("linux-1")])
    )
    assert [each for each in played.ticks[1] if "unclean" in each] == [drained] * bool(drained)


def test_an_expiry_drains_the_slot_in_the_same_tick_and_no_lease_is_placed_on_it() -> None:
    timeline = [submit(0, "r1", ttl=10), tick(0), submit(5, "r2"), tick(10)]
    assert reported(*timeline, pool={"recycle_unclean": True, "max_slots": 1}, slots=[a_slot("linux-1")]) == [
        ["assign r1 linux-1"],
        ["expire r1 ttl", "drain linux-1 unclean", "r2 waits at_max_slots"],
    ]
    assert reported(*timeline, pool={"max_slots": 1}, slots=[a_slot("linux-1")])[1] == [
        "expire r1 ttl",
        "assign r2 linux-1",
    ]


def test_other_leases_on_an_unclean_slot_run_on() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1", "r2"),
            tick(0),
            act(5, "cancel", "r1"),
            *ticks(5, 6),
            pool={"recycle_unclean": True, "max_leases_per_slot": 2},
            slots=[a_slot("linux-1")],
        )
    )
    assert played.slots == {"linux-1": "draining r2"}


def test_a_slot_with_unconfirmed_leases_in_a_row_is_drained_as_unhealthy() -> None:
    """Three in a row; otherwise `pack` would place leases on a broken slot without end."""
    played = reported(
        submit(0, "r1"),
        *ticks(0, 10, 20, 30, 31),
        scheduler={"confirm_timeout": 10},
        slots=[a_slot("linux-1")],
        pool={"max_slots": 1},
        cloud=SLOW,
    )
    again = ["requeue r1 unconfirmed", "assign r1 linux-1"]
    assert played == [
        ["assign r1 linux-1"],
        again,
        again,
        ["requeue r1 unconfirmed", "drain linux-1 unhealthy", "r1 waits at_max_slots"],
        ["terminate linux-1 drained", "r1 waits at_max_slots"],
    ]


def test_a_draining_slot_whose_last_lease_was_not_confirmed_ends_in_the_following_tick() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1"),
            tick(0),
            act(1, "drain", "linux-1"),
            scheduler={"confirm_timeout": 10},
            slots=[a_slot("linux-1")],
            pool={"max_slots": 1},
            wakes=True,
            until=30,
        )
    )
    assert played.decisions[1:3] == ["10 requeue r1 unconfirmed", "10 terminate linux-1 drained"]


@pytest.mark.parametrize("word", ["confirm", "renew", "release"])
def test_a_confirmation_resets_the_count_of_unconfirmed_leases(word: str) -> None:
    """Two are not confirmed, one is; then two more may follow."""
    value: Any = {"reservation": "r2", "slot": "linux-1"} if word == "confirm" else "r2"
    played = play_out(
        a_scenario(
            submit(0, "r1"),
            *ticks(0, 10, 20),
            act(21, "cancel", "r1"),
            submit(21, "r2"),
            tick(21),
            act(22, word, value),
            act(22, "release", "r2"),
            submit(22, "r3"),
            *ticks(22, 32, 42, 52),
            scheduler={"confirm_timeout": 10},
            slots=[a_slot("linux-1")],
        )
    )
    assert [each for each in played.decisions if "unhealthy" in each] == ["52 drain linux-1 unhealthy"]


def test_with_unhealthy_after_0_no_slot_is_unhealthy() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1"),
            *ticks(*range(0, 100, 10)),
            scheduler={"confirm_timeout": 10},
            pool={"unhealthy_after": 0},
            slots=[a_slot("linux-1")],
        )
    )
    assert not [each for each in played.decisions if "drain" in each]


def test_a_host_with_unconfirmed_leases_in_a_row_is_taken_out_of_service() -> None:
    hosts = {"lab": {"system": "x86_64-linux", "provider": "static", "unhealthy_after": 1, "lease_ttl": 0}}
    assert reported(
        submit(0, "r1"),
        *ticks(0, 10, 11),
        pools=hosts,
        scheduler={"confirm_timeout": 10},
        slots=[a_slot("lab-1"), a_slot("lab-2")],
    ) == [
        ["assign r1 lab-1"],
        ["requeue r1 unconfirmed", "drain lab-1 unhealthy", "assign r1 lab-2"],
        ["reset lab-1 drained"],
    ]


def spot_and_demand(factor: float = 1) -> Document:
    sizes = {"cpus": 4}
    return {
        "price_factor": factor,
        "offerings": [
            {"name": "s", "price": 1, "resources": sizes},
            {"name": "s2", "price": 1, "resources": sizes},
            {"name": "small", "market": "on-demand", "price": 2, "resources": {"cpus": 1}},
            {"name": "d", "market": "on-demand", "price": 3, "resources": sizes},
            {"name": "d2", "market": "on-demand", "price": 9, "resources": sizes},
        ],
    }


def buy(most: int, *times: float) -> list[str]:
    played = play_out(
        a_scenario(
            *(act(0, "outage", {"pool": "linux", "offering": name, "error": "capacity", "until": 999}) for name in "s"),
            act(0, "outage", {"pool": "linux", "offering": "s2", "error": "capacity", "until": 999}),
            submit(0, "r1", resources={"cpus": 2}),
            *ticks(*times),
            pool={**spot_and_demand(), "on_demand_after": most},
        )
    )
    return played.decisions


def test_after_on_demand_after_capacity_errors_on_all_spot_offerings_on_demand_is_launched() -> None:
    tried = ["0 launch linux-1 s demand", "1 launch linux-1 s2 demand"]
    again = ["61 launch linux-1 s demand", "62 launch linux-1 s2 demand"]
    assert buy(0, 0, 1, 2, 61, 62, 63) == tried + again
    assert buy(1, 0, 1, 2) == [*tried, "2 launch linux-1 d demand"]
    assert buy(2, 0, 1, 2, 61, 62, 63) == [*tried, *again, "63 launch linux-1 d demand"]


def test_after_on_demand_after_interruptions_on_demand_is_eligible_for_that_reservation() -> None:
    """The other reservation, which was never interrupted, waits for spot."""
    played = reported(
        act(0, "outage", {"pool": "linux", "offering": "s", "error": "capacity", "until": 999}),
        act(0, "interrupt", {"slot": "linux-1", "deadline": 60}),
        tick(0),
        act(1, "interrupt", {"slot": "linux-2", "deadline": 60}),
        submit(1, "r2", resources={"cpus": 4}),
        *ticks(1, 2),
        scheduler={"interruption_grace": 0},
        pool={"offerings": spot_and_demand()["offerings"][::3], "price_factor": 1, "on_demand_after": 2},
        slots=[a_slot("linux-1", "ready", "r1", offering="s"), a_slot("linux-2", offering="s")],
        reservations=[a_holder("r1", resources={"cpus": 4})],
        cloud={"boot": 99, "terminate": 9},
    )
    assert played[0] == ["drain linux-1 interrupted", "requeue r1 slot_interrupted", "assign r1 linux-2"]
    assert played[2][-3:] == ["launch linux-3 d demand", "r1 waits booting", "r2 waits capacity"]


def test_no_lease_is_judged_unconfirmed_while_a_found_machine_has_not_answered() -> None:
    parts: dict[str, Any] = {"scheduler": {"confirm_timeout": 10}, "slots": [a_slot("linux-1")], "cloud": {"boot": 30}}
    timeline = [submit(0, "r1"), tick(0), act(5, "found", {"pool": "linux", "slot": "linux-2"})]
    assert reported(*timeline, *ticks(10, 34, 35), **parts)[1:] == [
        [],
        [],
        ["requeue r1 unconfirmed", "assign r1 linux-1"],
    ]
    parts["cloud"] = {"boot": 500}
    assert reported(*timeline, *ticks(10, 64, 65), **parts)[1:] == [
        [],
        [],
        ["requeue r1 unconfirmed", "assign r1 linux-1"],
    ]
    parts["scheduler"]["adoption_timeout"] = 0
    assert reported(*timeline, tick(10), **parts)[1:] == [["requeue r1 unconfirmed", "assign r1 linux-1"]]


def test_with_wakes_leases_are_judged_as_soon_as_the_adoption_timeout_is_over() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1"),
            act(5, "found", {"pool": "linux", "slot": "linux-2"}),
            scheduler={"confirm_timeout": 10},
            slots=[a_slot("linux-1")],
            cloud={"boot": 500},
            kicks=True,
            wakes=True,
            until=70,
        )
    )
    assert played.decisions[:2] == ["0 assign r1 linux-1", "65 requeue r1 unconfirmed"]
