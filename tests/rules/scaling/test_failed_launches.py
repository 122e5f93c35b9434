"""Launches that fail: pauses by category, and what is tried instead. Sources: the autoscaler's tick, Arvados."""

import itertools

import pytest

from tests.rules.playing import (
    Cases,
    Document,
    a_pool,
    a_scenario,
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


@pytest.mark.parametrize("error", ["capacity", "quota", "throttled"])
def test_a_refused_slot_is_empty_at_once_and_no_slot_is_lost(error: str) -> None:
    played = play_out(a_scenario(an_outage(error), submit(0, "r1"), tick(0)))
    assert played.events == ["0 reservation_submitted r1", "0 slot_launching linux-1", "0 slot_empty linux-1"]


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


def test_another_pool_of_the_same_system_launches_instead() -> None:
    assert reported(an_outage("capacity"), submit(0, "r1"), *ticks(0, 1), pools={"linux": a_pool(), "spare": a_pool()})[
        1
    ] == ["launch spare-1 demand", "r1 waits booting"]


def test_the_first_launch_after_a_quota_back_off_goes_alone() -> None:
    assert reported(an_outage("quota", 5), submit(0, "r1", "r2"), *ticks(0, 60, 61, 70), cloud={"launch": 5}) == [
        ["launch linux-1 demand", "launch linux-2 demand", "r1 waits booting", "r2 waits booting"],
        ["r1 waits at_quota", "r2 waits at_quota"],
        ["r1 waits at_quota", "r2 waits at_quota"],
        ["launch linux-1 demand", "r1 waits booting", "r2 waits at_quota"],
    ]


def test_the_simulated_quota_refuses_launches_beyond_its_number_of_machines() -> None:
    assert reported(submit(0, "r1", "r2", "r3"), *ticks(0, 1, 61), cloud={"quota": 2, "boot": 99}) == [
        ["launch linux-1 demand", "launch linux-2 demand", "launch linux-3 demand"]
        + [f"r{n} waits booting" for n in (1, 2, 3)],
        ["r1 waits booting", "r2 waits booting", "r3 waits at_quota"],
        ["launch linux-3 demand", "r1 waits booting", "r2 waits booting", "r3 waits booting"],
    ]


CHOICES: Cases = {
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
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_offering_is_chosen_by_price_size_and_name(name: str) -> None:
    document, expected = CHOICES[name]
    assert play_out(document).ticks == expected


def test_a_simulated_cloud_has_every_image_that_the_rules_name_by_a_source() -> None:
    played = play_out(a_scenario(submit(0, "r1"), *ticks(0), pool={"ec2": {"image": "ssm:/images/linux"}}))
    assert played.decisions == ["0 launch linux-1 demand"]
