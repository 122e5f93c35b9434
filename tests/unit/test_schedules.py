"""Windows of schedules: cron expressions, time zones, changes of the clock; and the rules that they put in force."""

from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest

from scheduler.model.rules import Rules, RulesInForce, find_rules_in_force
from scheduler.model.schedules import (
    Schedule,
    find_clock_change,
    find_overlap,
    find_own_overlap,
    find_window,
    list_open,
    show_instant,
)
from scheduler.model.validation import InvalidInputError
from tests.builders import some_rules
from workers.configuration import check_configuration, find_warnings, read_configuration


def at(text: str) -> float:
    """The instant of a text like `2027-03-28T01:00` in UTC."""
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def a_schedule(cron: str = "0 8 * * *", **values: Any) -> Schedule:
    end = {} if "until" in values else {"duration": "2h"}
    return Schedule(**{"cron": cron, "max_slots": 1, **end, **values})


def show_window(schedule: Schedule, now: str) -> str:
    """The window at this instant, or the next one, in the time zone of the schedule."""
    window = find_window(schedule, at(now))
    assert window is not None
    word = "open" if window.start <= at(now) else "next"
    return " ".join([word, *(show_instant(schedule, each)[5:] for each in window)])


BERLIN = {"time_zone": "Europe/Berlin"}
WINDOWS: dict[str, tuple[str, dict[str, Any], str, str]] = {
    # cron, the other keys, now in UTC, the window
    "before it": ("0 8 * * *", {}, "2027-01-04T07:59", "next 01-04 08:00 UTC 01-04 10:00 UTC"),
    "its first instant": ("0 8 * * *", {}, "2027-01-04T08:00", "open 01-04 08:00 UTC 01-04 10:00 UTC"),
    "its last second": ("0 8 * * *", {}, "2027-01-04T09:59:59", "open 01-04 08:00 UTC 01-04 10:00 UTC"),
    "its end": ("0 8 * * *", {}, "2027-01-04T10:00", "next 01-05 08:00 UTC 01-05 10:00 UTC"),
    "days of the week": ("0 8 * * MON-FRI", {}, "2027-01-09T09:00", "next 01-11 08:00 UTC 01-11 10:00 UTC"),
    "another time zone": ("0 8 * * *", BERLIN, "2027-01-04T07:00", "open 01-04 08:00 CET 01-04 10:00 CET"),
    "over midnight": ("0 22 * * *", {"until": "06:00"}, "2027-01-04T05:00", "open 01-03 22:00 UTC 01-04 06:00 UTC"),
    "until the same time": (
        "0 8 * * *",
        {"until": "08:00"},
        "2027-01-04T09:00",
        "open 01-04 08:00 UTC 01-05 08:00 UTC",
    ),
    "windows that overlap are open without a break": (
        "0 * * * *",
        {"duration": "90m"},
        "2027-01-04T09:29",
        "open 01-04 09:00 UTC 01-04 10:30 UTC",
    ),
    "a time that the change of the clock skips is the first one after it": (
        "30 2 * * *",
        BERLIN,
        "2027-03-28T01:00",
        "open 03-28 03:00 CEST 03-28 05:00 CEST",
    ),
    "a time that occurs twice counts the first time": (
        "30 2 * * *",
        {**BERLIN, "duration": "30m"},
        "2027-10-31T00:45",
        "open 10-31 02:30 CEST 10-31 02:00 CET",
    ),
    "and not the second time": (
        "30 2 * * *",
        {**BERLIN, "duration": "30m"},
        "2027-10-31T01:45",
        "next 11-01 02:30 CET 11-01 03:00 CET",
    ),
    "the second pass of an hour belongs to a window that began before it": (
        "30 2 * * *",
        {**BERLIN, "duration": "3h"},
        "2027-10-31T01:15",
        "open 10-31 02:30 CEST 10-31 04:30 CET",
    ),
    "a duration is elapsed time when the clock is set forward": (
        "0 1 * * *",
        {**BERLIN, "duration": "3h"},
        "2027-03-28T00:30",
        "open 03-28 01:00 CET 03-28 05:00 CEST",
    ),
    "an until keeps its time of day": (
        "0 1 * * *",
        {**BERLIN, "until": "04:00"},
        "2027-03-28T00:30",
        "open 03-28 01:00 CET 03-28 04:00 CEST",
    ),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_the_window_of_a_schedule(name: str) -> None:
    cron, values, now, expected = WINDOWS[name]
    assert show_window(a_schedule(cron, **values), now) == expected


def test_windows_of_every_quarter_of_an_hour_follow_each_other_through_the_changes_of_the_clock() -> None:
    """From one window to the next for two days: each begins when the one before ends, as the clock shows it or not."""
    schedule = a_schedule("*/15 * * * *", duration="15m", **BERLIN)
    for day in ("2027-03-27T12:00", "2027-10-30T12:00"):
        now, seen = at(day), 0
        while now < at(day) + 2 * 86400:
            window = find_window(schedule, now)
            assert window == (now, now + 900)
            now, seen = now + 900, seen + 1
        assert seen == 192


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "never fires": ({"cron": "0 0 30 2 *"}, "cron: expected a cron expression of five fields that fires"),
    "no cron": ({"cron": "noon"}, "cron: expected a cron expression of five fields that fires"),
    "a minute that does not exist": ({"cron": "61 * * * *"}, "(Bad minute), got"),
    "with seconds": ({"cron": "0 0 8 * * *"}, "cron: expected a cron expression of five fields"),
    "an unknown time zone": (
        {"time_zone": "Europe/Berln"},
        'or UTC (did you mean "Europe/Berlin"?), got "Europe/Berln"',
    ),
    "a path as time zone": ({"time_zone": "../etc"}, "time_zone: expected a time zone"),
    "a folder of time zones": ({"time_zone": "Europe"}, "time_zone: expected a time zone"),
    "two ends": ({"until": "18:00"}, "duration: expected either `duration` or `until`"),
    "no end": ({"duration": None}, "duration: expected either `duration` or `until`"),
    "no time": ({"duration": 0}, "duration: expected a duration > 0"),
    "no time of day": ({"duration": None, "until": "25:00"}, "until: expected a time of day like 18:00"),
    "a short time of day": ({"duration": None, "until": "8:00"}, "until: expected a time of day like 18:00"),
    "nothing set": ({"max_slots": None}, "expected at least one of min_slots, target_warm_slots"),
    "a minimum above its maximum": ({"min_slots": 2}, "min_slots: expected at most max_slots (1), got 2"),
    "a minimum above the pool's maximum": (
        {"max_slots": None, "min_slots": 11},
        "min_slots: expected at most max_slots (10), got 11",
    ),
    "a wrong budget": ({"disruption_budget": "x"}, "disruption_budget: expected a whole number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_schedule_is_refused_in_one_line_with_its_path(name: str) -> None:
    changes, expected = REFUSED[name]
    schedule = {"cron": "0 8 * * *", "duration": "2h", "max_slots": 1, **changes}
    with pytest.raises(InvalidInputError) as raised:
        some_rules({"pools": {"linux": {"schedules": [schedule]}}})
    [line] = str(raised.value).splitlines()
    assert line.startswith("config.pools.linux.schedules[0]")
    assert expected in line


def test_a_pool_of_static_hosts_has_no_schedules() -> None:
    pool = {"system": "x", "provider": "static", "schedules": [{"cron": "0 8 * * *", "duration": 9, "max_slots": 1}]}
    with pytest.raises(InvalidInputError, match=r"config\.pools\.hosts\.schedules: expected nothing in a static pool"):
        some_rules({"pools": {"hosts": pool}})


def rules_with(*schedules: dict[str, Any], **pool: Any) -> Rules:
    given = [{"cron": "0 8 * * *", "duration": "2h", **each} for each in schedules]
    return some_rules({"pools": {"linux": {"schedules": given, **pool}}})


def test_the_limits_of_open_windows_are_in_force_and_the_last_one_listed_counts() -> None:
    rules = rules_with(
        {"min_slots": 1, "max_slots": 4},
        {"cron": "0 9 * * *", "min_slots": 3, "disruption_budget": 0},
        min_slots=2,
        replacement={"max_age": "1d", "disruption_budget": 5},
    )

    def find(now: str) -> tuple[Any, ...]:
        pool = find_rules_in_force(rules, at(now)).pools["linux"]
        return pool.min_slots, pool.max_slots, pool.replacement.disruption_budget, pool.replacement.max_age

    assert find("2027-01-04T07:00") == (2, 10, "5", 86400)
    assert find("2027-01-04T08:00") == (1, 4, "5", 86400)
    assert find("2027-01-04T09:00") == (3, 4, "0", 86400)
    assert find("2027-01-04T10:00") == (3, 10, "0", 86400)
    assert find("2027-01-04T11:00") == (2, 10, "5", 86400)


def test_a_minimum_above_the_maximum_in_force_counts_as_the_maximum() -> None:
    rules = rules_with({"max_slots": 1}, {"min_slots": 5})
    pool = find_rules_in_force(rules, at("2027-01-04T08:00")).pools["linux"]
    assert (pool.min_slots, pool.max_slots) == (1, 1)


def test_equal_values_are_one_object_while_no_window_opens_or_closes() -> None:
    rules, kept = rules_with({"max_slots": 1}), RulesInForce()
    closed, opens = kept.find(rules, at("2027-01-04T07:00"))
    assert closed is rules
    assert opens == at("2027-01-04T08:00")
    opened, closes = kept.find(rules, opens)
    assert closes == at("2027-01-04T10:00")
    assert kept.find(rules, closes - 1).rules is opened
    assert opened.pools["linux"] is kept.find(rules, opens + 1).rules.pools["linux"]
    assert kept.find(rules, closes).rules is rules
    assert kept.find(rules, opens).rules == opened  # the clock was set back
    other = rules_with({"max_slots": 2})
    assert kept.find(other, opens).rules.pools["linux"].max_slots == 2


def test_rules_without_schedules_are_in_force_for_ever() -> None:
    rules = some_rules()
    assert RulesInForce().find(rules, 5.0) == (rules, inf)
    assert list_open((), 5.0) == ((), inf)


def test_a_pool_has_slots_for_the_greatest_maximum_of_its_schedules() -> None:
    assert rules_with({"max_slots": 12}, {"max_slots": 3}).pools["linux"].most_slots == 12
    assert rules_with({"max_slots": 3}).pools["linux"].most_slots == 10


def test_overlaps_and_changes_of_the_clock_are_found_in_a_year() -> None:
    now = at("2027-01-01T00:00")
    night, day = a_schedule("0 22 * * *", duration="8h", **BERLIN), a_schedule("0 8 * * *", duration="9h", **BERLIN)
    assert find_overlap(night, day, now) is None
    assert find_overlap(day, a_schedule("30 16 * * FRI", **BERLIN), now) == at("2027-01-01T15:30")
    assert find_own_overlap(night, now) is None
    assert find_own_overlap(a_schedule("0 * * * *", duration="61m"), now) == at("2027-01-01T02:00")
    change = find_clock_change(night, now)
    assert change is not None
    assert show_instant(night, change.end) == "2027-03-28 07:00 CEST"
    assert find_clock_change(day, now) is None
    assert find_clock_change(a_schedule("0 22 * * *", until="06:00", **BERLIN), now) is None


FILE = """
[pools.linux]
system = "x86_64-linux"
max_slots = 4
ec2 = { image = "ami-1" }

[[pools.linux.schedules]]
cron = "0 22 * * *"
time_zone = "Europe/Berlin"
duration = "8h"
max_slots = 2

[[pools.linux.schedules]]
cron = "0 5 * * *"
time_zone = "Europe/Berlin"
duration = "2h"
max_slots = 3
"""


def test_config_check_warns_of_windows_that_overlap_or_cross_a_change_of_the_clock(tmp_path: Any) -> None:
    path = tmp_path / "leasehold.toml"
    path.write_text(FILE)
    first, second = [str(each) for each in find_warnings(read_configuration(path))]
    assert first.startswith("pools.linux.schedules[0].duration: expected no change of the clock in a window")
    assert second.startswith(
        "pools.linux.schedules[1].max_slots: expected no window that overlaps with one of schedules[0]"
    )


def test_config_check_prints_a_cron_expression_that_never_fires_and_an_unknown_time_zone(tmp_path: Any) -> None:
    path = tmp_path / "leasehold.toml"
    path.write_text(FILE.replace("0 22 * * *", "0 22 31 4 *").replace("Europe/Berlin", "Berlin", 1))
    first, second = map(str, check_configuration(path))
    assert first.startswith("pools.linux.schedules[0].cron: expected a cron expression of five fields that fires")
    assert second.startswith("pools.linux.schedules[0].time_zone: expected a time zone")
