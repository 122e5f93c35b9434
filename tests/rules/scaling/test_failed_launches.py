"""Launches that fail: pauses by category, and what is tried instead. Sources: the autoscaler's tick, Arvados."""

import itertools

import pytest

from tests.rules.playing import (
    Cases,
    Document,
    a_holder,
    a_pool,
    a_scenario,
    a_slot,
    act,
    play_out,
    reported,
    submit,
    tick,
    ticks,
)

OTHER = "aarch64-linux"


def an_outage(error: str, until: float = 9999, **fields: object) -> Document:
    return act(0, "outage", {"pool": "linux", "error": error, "until": until} | fields)


def offerings(*rows: tuple[str, float, float], market: str = "spot") -> list[Document]:
    """(name, cpus, price)."""
    return [{"name": name, "price": price, "market": market, "resources": {"cpus": cpus}} for name, cpus, price in rows]


def attempts(error: str, *times: float, **parts: object) -> list[str]:
    """Return when a launch is tried for a pending reservation while this error lasts."""
    return [
        each.removesuffix(" demand")
        for each in play_out(a_scenario(an_outage(error), submit(0, "r1"), *ticks(*times), **parts)).decisions
    ]


@pytest.mark.parametrize(
    ("error", "times", "expected"),
    [
        # a pause of 60 s ends when now >= its end
        ("capacity", (0, 59.9, 60, 119, 120), ["0", "60", "120"]),
        ("quota", (0, 5, 30, 59, 60), ["0", "60"]),
        # last delay * 1.5 + 1
        ("throttled", range(20), ["0", "1", "4", "9", "18"]),
        ("throttled", (0, 0.9, 1, 3.4, 3.5, 8.2, 8.25, 16.3, 16.375), ["0", "1", "3.5", "8.25", "16.375"]),
    ],
)
def test_a_launch_back_off_delays_launches_until_its_end(
    error: str, times: tuple[float, ...], expected: list[str]
) -> None:
    assert attempts(error, *times) == [f"{at} launch linux-1" for at in expected]


def test_the_back_off_after_throttling_is_at_most_a_minute() -> None:
    times = [float(each.split()[0]) for each in attempts("throttled", *range(400))]
    delays = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert delays[-1] == 60
    assert max(delays) == 60


def test_any_other_answer_resets_the_back_off_to_0() -> None:
    """Throttled at 0 and 1, refused for capacity at 4, and throttled again at 64: one second."""
    timeline = [
        an_outage("throttled", 3),
        act(3, "outage", {"pool": "linux", "error": "capacity", "until": 10}),
        act(3, "outage", {"pool": "linux", "error": "throttled", "until": 99}),
    ]
    played = play_out(a_scenario(timeline[0], submit(0, "r1"), *ticks(0, 1), *timeline[1:], *ticks(4, 64, 64.9, 65)))
    assert [each.split()[0] for each in played.decisions] == ["0", "1", "4", "64", "65"]


def test_launches_of_one_tick_that_are_throttled_count_as_one_refusal() -> None:
    assert reported(an_outage("throttled"), submit(0, "r1", "r2", "r3"), *ticks(0, 1, 3.4, 3.5))[1:] == [
        ["launch linux-1 demand", "launch linux-2 demand", "launch linux-3 demand"]
        + [f"r{n} waits booting" for n in (1, 2, 3)],
        [f"r{n} waits throttled" for n in (1, 2, 3)],
        ["launch linux-1 demand", "launch linux-2 demand", "launch linux-3 demand"]
        + [f"r{n} waits booting" for n in (1, 2, 3)],
    ]


@pytest.mark.parametrize("error", ["capacity", "quota", "throttled"])
def test_a_refused_slot_is_empty_at_once_and_no_slot_is_lost(error: str) -> None:
    played = play_out(a_scenario(an_outage(error), submit(0, "r1"), tick(0)))
    assert played.events == ["0 reservation_submitted r1", "0 slot_launching linux-1", "0 slot_empty linux-1"]


def test_a_launch_is_judged_when_it_is_decided_and_refused_later() -> None:
    played = play_out(
        a_scenario(an_outage("capacity", 2), submit(0, "r1"), *ticks(0, 3, 63), cloud={"launch": 5}, until=80)
    )
    assert played.ticks == [["launch linux-1 demand", "r1 waits booting"], ["r1 waits booting"], ["r1 waits capacity"]]
    assert played.events[1:] == ["0 slot_launching linux-1", "5 slot_empty linux-1"]


def test_a_misconfigured_slot_is_in_error_and_neither_it_nor_its_offering_is_tried_during_the_cooldown() -> None:
    played = play_out(a_scenario(an_outage("misconfigured", 50), submit(0, "r1"), *ticks(0, 5, 59.9, 60)))
    assert played.ticks == [
        ["launch linux-1 demand", "r1 waits booting"],
        ["r1 waits misconfigured"],
        ["r1 waits misconfigured"],
        ["reset linux-1 cooled_down", "launch linux-1 demand", "r1 waits booting"],
    ]
    assert played.events[1:3] == ["0 slot_launching linux-1", "0 slot_error linux-1"]


def test_after_the_outage_all_slots_are_there_again() -> None:
    played = play_out(
        a_scenario(an_outage("misconfigured", 100), submit(0, "r1", "r2", "r3", "r4"), tick_every=5, until=200)
    )
    assert set(played.phases.values()) == {"leased"}


@pytest.mark.parametrize("error", ["capacity", "quota", "throttled", "misconfigured"])
@pytest.mark.parametrize("pool", [{"min_slots": 1}, {"target_warm_slots": 1}])
def test_launch_back_offs_apply_to_minimum_and_warm_pool_too(error: str, pool: Document) -> None:
    assert [len(each) for each in reported(an_outage(error), *ticks(0, 0.5, 0.9), pool=pool)] == [1, 0, 0]


def test_a_launch_back_off_applies_to_no_other_pool() -> None:
    assert reported(
        an_outage("throttled"),
        submit(0, "r1"),
        tick(0),
        submit(0.5, "r2", system=OTHER),
        tick(0.5),
        pools={"linux": a_pool(), "arm": a_pool(system=OTHER)},
    )[1] == ["launch arm-1 demand", "r1 waits throttled", "r2 waits booting"]


def test_another_pool_of_the_same_system_launches_instead() -> None:
    assert reported(an_outage("capacity"), submit(0, "r1"), *ticks(0, 1), pools={"linux": a_pool(), "spare": a_pool()})[
        1
    ] == ["launch spare-1 demand", "r1 waits booting"]


def test_each_launch_of_a_tick_counts_towards_the_maximum_after_a_back_off() -> None:
    """Each launch of a tick counts, refused or not; none is tried a second time in that tick."""
    assert reported(an_outage("capacity"), submit(0, "r1", "r2", "r3"), tick(0), pool={"max_slots": 2}) == [
        [
            "launch linux-1 demand",
            "launch linux-2 demand",
            "r1 waits booting",
            "r2 waits booting",
            "r3 waits at_max_slots",
        ]
    ]


def test_a_quota_back_off_ends_when_fewer_slots_are_active_than_at_the_refusal() -> None:
    """Two others are active at the refusal; one of them ends after 10 s."""
    assert reported(
        an_outage("quota", 5),
        submit(0, "r1"),
        *ticks(0, 5, 9.9),
        act(10, "lose", "linux-1"),
        tick(10),
        slots=[a_slot("linux-1", "ready", "h1"), a_slot("linux-2", "ready", "h2")],
        reservations=[a_holder("h1"), a_holder("h2")],
        pool={"max_slots": 3},
    ) == [
        ["launch linux-3 demand", "r1 waits booting"],
        ["r1 waits at_quota"],
        ["r1 waits at_quota"],
        ["fail h1 slot_gone", "launch linux-1 demand", "r1 waits booting"],
    ]


def test_the_first_launch_after_a_quota_back_off_goes_alone() -> None:
    assert reported(an_outage("quota", 5), submit(0, "r1", "r2"), *ticks(0, 60, 61, 70), cloud={"launch": 5}) == [
        ["launch linux-1 demand", "launch linux-2 demand", "r1 waits booting", "r2 waits booting"],
        ["r1 waits at_quota", "r2 waits at_quota"],
        ["r1 waits at_quota", "r2 waits at_quota"],
        ["launch linux-1 demand", "r1 waits booting", "r2 waits at_quota"],
    ]


def test_after_the_answer_to_the_first_launch_the_others_follow() -> None:
    assert reported(an_outage("quota", 5), submit(0, "r1", "r2"), *ticks(0, 60, 61), cloud={"boot": 30}) == [
        ["launch linux-1 demand", "launch linux-2 demand", "r1 waits booting", "r2 waits booting"],
        ["launch linux-1 demand", "r1 waits booting", "r2 waits at_quota"],
        ["launch linux-2 demand", "r1 waits booting", "r2 waits booting"],
    ]


def test_the_simulated_quota_refuses_launches_beyond_its_number_of_machines() -> None:
    assert reported(submit(0, "r1", "r2", "r3"), *ticks(0, 1, 61), cloud={"quota": 2, "boot": 99}) == [
        ["launch linux-1 demand", "launch linux-2 demand", "launch linux-3 demand"]
        + [f"r{n} waits booting" for n in (1, 2, 3)],
        ["r1 waits booting", "r2 waits booting", "r3 waits at_quota"],
        ["launch linux-3 demand", "r1 waits booting", "r2 waits booting", "r3 waits booting"],
    ]


PRICED = offerings(("a", 4, 2), ("b", 4, 2.2), ("c", 4, 3), ("d", 4, 3.4))

CHOICES: Cases = {
    "the cheapest that fits": (
        a_scenario(
            submit(0, "r1", resources={"cpus": 3}),
            tick(0),
            pool={"offerings": offerings(("small", 2, 1), ("large", 8, 4), ("medium", 4, 2))},
        ),
        [["launch linux-1 medium demand", "r1 waits booting"]],
    ),
    "none fits: never_fits": (
        a_scenario(submit(0, "r1", resources={"cpus": 9}), tick(0), pool={"offerings": PRICED}),
        [["r1 waits never_fits"]],
    ),
    "a name that no offering has counts as 0": (
        a_scenario(submit(0, "r1", resources={"gpus": 1}), tick(0), pool={"offerings": PRICED}),
        [["r1 waits never_fits"]],
    ),
    "factor 1.5, inclusive; dearer ones never": (
        a_scenario(
            an_outage("capacity", offering="a"),
            an_outage("capacity", offering="b"),
            an_outage("capacity", offering="c"),
            submit(0, "r1", resources={"cpus": 4}),
            *ticks(0, 1, 2, 3),
            pool={"offerings": PRICED},
        ),
        [
            ["launch linux-1 a demand", "r1 waits booting"],
            ["launch linux-1 b demand", "r1 waits booting"],
            ["launch linux-1 c demand", "r1 waits booting"],
            ["r1 waits capacity"],
        ],
    ),
    "factor 1.5 of 0.7 includes 1.05, although 1.5 * 0.7 is less in binary fractions": (
        a_scenario(
            an_outage("capacity", offering="a"),
            submit(0, "r1", resources={"cpus": 4}),
            *ticks(0, 1),
            pool={"offerings": offerings(("a", 4, 0.7), ("b", 4, 1.05))},
        ),
        [["launch linux-1 a demand", "r1 waits booting"], ["launch linux-1 b demand", "r1 waits booting"]],
    ),
    "factor 1: only the cheapest": (
        a_scenario(
            an_outage("capacity", offering="a"),
            submit(0, "r1", resources={"cpus": 4}),
            *ticks(0, 1),
            pool={"offerings": PRICED, "price_factor": 1},
        ),
        [["launch linux-1 a demand", "r1 waits booting"], ["r1 waits capacity"]],
    ),
    "a factor below 1 counts as 1": (
        a_scenario(submit(0, "r1", resources={"cpus": 4}), tick(0), pool={"offerings": PRICED, "price_factor": 0.5}),
        [["launch linux-1 a demand", "r1 waits booting"]],
    ),
    "the same price: more memory": (
        a_scenario(
            submit(0, "r1", resources={"memory_mib": 100}),
            tick(0),
            pool={
                "offerings": [
                    {"name": "a", "price": 1, "resources": {"memory_mib": 2048, "cpus": 8}},
                    {"name": "b", "price": 1, "resources": {"memory_mib": 4096, "cpus": 2}},
                ]
            },
        ),
        [["launch linux-1 b demand", "r1 waits booting"]],
    ),
    "then more cpus, then the name": (
        a_scenario(
            submit(0, "r1", "r2"),
            tick(0),
            pool={"offerings": offerings(("z", 2, 1), ("y", 4, 1), ("x", 4, 1)), "max_leases_per_slot": 1},
        ),
        [["launch linux-1 x demand", "launch linux-2 x demand", "r1 waits booting", "r2 waits booting"]],
    ),
    "reservations that need another offering are served": (
        a_scenario(
            an_outage("capacity", offering="large"),
            submit(0, "r1", resources={"cpus": 4}),
            tick(0),
            submit(1, "r2", resources={"cpus": 4}),
            submit(1, "r3", resources={"cpus": 1}),
            tick(1),
            pool={"offerings": offerings(("small", 1, 1), ("large", 4, 4))},
        ),
        [
            ["launch linux-1 large demand", "r1 waits booting"],
            ["launch linux-1 small demand", "r1 waits capacity", "r2 waits capacity", "r3 waits booting"],
        ],
    ),
    "a quota of one market does not affect the other": (
        a_scenario(
            an_outage("quota", offering="a"),
            submit(0, "r1"),
            *ticks(0, 1),
            pool={"offerings": [*offerings(("a", 2, 1)), *offerings(("b", 2, 1.2), market="on-demand")]},
        ),
        [["launch linux-1 a demand", "r1 waits booting"], ["launch linux-1 b demand", "r1 waits booting"]],
    ),
    "throttling pauses the whole pool": (
        a_scenario(an_outage("throttled", offering="a"), submit(0, "r1"), *ticks(0, 0.5), pool={"offerings": PRICED}),
        [["launch linux-1 a demand", "r1 waits booting"], ["r1 waits throttled"]],
    ),
    "a running machine is used whatever it costs": (
        a_scenario(submit(0, "r1"), tick(0), pool={"offerings": PRICED}, slots=[a_slot("linux-1", offering="d")]),
        [["assign r1 linux-1"]],
    ),
    "the rest of a new slot is capacity for later reservations": (
        a_scenario(
            submit(0, "r9", resources={"cpus": 9}),
            submit(0, "r5", resources={"cpus": 5}),
            submit(0, "r1", resources={"cpus": 1}),
            tick(0),
            pool={"offerings": offerings(*((f"t{n}", n, n) for n in (1, 2, 4, 8, 16))), "max_leases_per_slot": 8},
        ),
        [["launch linux-1 t16 demand", "r9 waits booting", "r5 waits booting", "r1 waits booting"]],
    ),
    "a reservation that does not fit on the rest gets its own slot": (
        a_scenario(
            submit(0, "r9", resources={"cpus": 9}),
            submit(0, "r8", resources={"cpus": 8}),
            tick(0),
            pool={"offerings": offerings(*((f"t{n}", n, n) for n in (1, 2, 4, 8, 16))), "max_leases_per_slot": 8},
        ),
        [["launch linux-1 t16 demand", "launch linux-2 t8 demand", "r9 waits booting", "r8 waits booting"]],
    ),
    "warm pool and minimum take the first offering that does not pause": (
        a_scenario(
            an_outage("capacity", offering="a"),
            *ticks(0, 1),
            pool={"offerings": PRICED, "min_slots": 1, "target_warm_slots": 2},
        ),
        [["launch linux-1 a minimum", "launch linux-2 a warm"], ["launch linux-1 b minimum", "launch linux-2 b warm"]],
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_offering_is_chosen_by_price_size_and_name(name: str) -> None:
    document, expected = CHOICES[name]
    assert play_out(document).ticks == expected


def test_a_simulated_cloud_has_every_image_that_the_rules_name_by_a_source() -> None:
    played = play_out(a_scenario(submit(0, "r1"), *ticks(0), pool={"ec2": {"image": "ssm:/images/linux"}}))
    assert played.decisions == ["0 launch linux-1 demand"]
