"""Schedules in a play: limits that come into force, the tick that is due then, and disruption windows."""

from math import inf
from typing import Any

import pytest

from scheduler.model.validation import InvalidInputError
from scheduler.simulation.scenario import read_scenario
from tests.rules.playing import Document, a_scenario, a_slot, play_out, submit, tick
from tests.rules.watching import Seen, watch

SLOW = {"boot": 9, "terminate": 5}


def a_scheduled_pool(*schedules: Document, **pool: Any) -> Document:
    """A pool with schedules, each of which has a window from the first to before the tenth minute of each hour."""
    return {"schedules": [{"cron": "0 * * * *", "duration": "10m", **each} for each in schedules], **pool}


def test_the_minimum_of_a_window_is_launched_when_it_opens_and_drains_after_it_closed() -> None:
    played = play_out(
        a_scenario(
            tick(3000),
            pool=a_scheduled_pool({"min_slots": 2}, idle_scale_down=60),
            cloud=SLOW,
            wakes=True,
            kicks=True,
            until=5000,
        )
    )
    assert played.decisions == [
        "3600 launch linux-1 minimum",
        "3600 launch linux-2 minimum",
        "4200 drain linux-1 idle",
        "4200 drain linux-2 idle",
        "4200 terminate linux-1 drained",
        "4200 terminate linux-2 drained",
    ]


def test_the_next_tick_is_due_when_a_window_opens_or_closes() -> None:
    found: list[float | None] = []
    watch(
        a_scenario(tick(0), tick(600), tick(700), pool=a_scheduled_pool({"target_warm_slots": 0})),
        lambda seen: found.append(seen.plan.wake_at),
    )
    assert found == [600, 3600, 3600]


def test_without_schedules_no_tick_is_due() -> None:
    found: list[Seen] = []
    watch(a_scenario(tick(0)), found.append)
    assert [each.plan.wake_at or inf for each in found] == [inf]


def test_a_window_raises_the_maximum_and_its_end_ends_no_lease() -> None:
    played = play_out(
        a_scenario(
            submit(0, "r1", "r2"),
            tick(0),
            submit(700, "r3"),
            tick(700),
            pool=a_scheduled_pool({"max_slots": 2}, max_slots=1),
            kicks=True,
            wakes=True,
        )
    )
    assert played.slots == {"linux-1": "ready r1", "linux-2": "ready r2"}
    assert played.ticks[-1] == ["r3 waits at_max_slots"]


def test_a_disruption_window_lets_machines_be_replaced() -> None:
    played = play_out(
        a_scenario(
            tick(1000),
            pool=a_scheduled_pool(
                {"disruption_budget": "100%"},
                idle_scale_down=9999,
                replacement={"max_age": 500, "disruption_budget": 0},
            ),
            slots=[a_slot("linux-1"), a_slot("linux-2")],
            wakes=True,
            until=4000,
        )
    )
    assert [each for each in played.decisions if "drain " in each] == [
        "3600 drain linux-1 aged",
        "3600 drain linux-2 aged",
    ]


@pytest.mark.parametrize(
    ("starts_at", "opened"),
    [
        ("2027-03-27T23:00:00+01:00", 10800),
        ("2027-03-28T23:00:00+02:00", 14400),
        ("2027-10-30T21:00:00Z", 18000),
        (0, 7200),
    ],
)
def test_a_scenario_begins_at_a_date_and_its_windows_follow_the_clock(starts_at: Any, opened: int) -> None:
    """A window opens at 3 o'clock in Berlin: three, four or five hours after 23 o'clock, as the clock is set forward in
    that night, stays, or is set back. Time 0 is 1 o'clock there.
    """
    pool = {"schedules": [{"cron": "0 3 * * *", "time_zone": "Europe/Berlin", "duration": "1h", "min_slots": 1}]}
    document = a_scenario(tick(0), pool=pool, wakes=True, until=19000, starts_at=starts_at)
    assert [each for each in play_out(document).decisions if "launch" in each] == [f"{opened} launch linux-1 minimum"]


@pytest.mark.parametrize("starts_at", ["2027-03-28T00:00:00", "noon", -1, 1e12, None])
def test_a_scenario_begins_at_a_time_with_an_offset(starts_at: Any) -> None:
    with pytest.raises(InvalidInputError, match="starts_at: expected a date and time with an offset"):
        read_scenario({"starts_at": starts_at})
