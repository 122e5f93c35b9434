"""Draws of run times and of arrivals: from which values, how often, and within what limits."""

from collections import Counter
from math import inf
from random import Random

from scheduler.foresight.forecaster import DAY, MOST_DAYS, ArrivalRecord
from scheduler.foresight.play import BOOT_SECONDS, UNKNOWN_SECONDS, Arrival, Draws
from scheduler.foresight.present import Kind, Lane
from scheduler.model.run_times import RunTimes
from tests.builders import NOW, a_request

LANE = Lane(0, ())


def a_kind(*classes: str, stated: float | None = None, most: float = inf) -> Kind:
    return Kind(LANE, a_request(expected_runtime=stated), None, classes, most)


def a_row(name: str, *seconds: float, ratios: tuple[float, ...] = ()) -> RunTimes:
    return RunTimes(id=name, seconds=seconds, ratios=ratios)


def draw(rows: list[RunTimes], kind: Kind, elapsed: float = 0.0, times: int = 2000) -> Counter[float]:
    """Draw once in each of many plays."""
    draws, found = Draws({row.id: row for row in rows}, Random(5)), Counter[float]()
    for _ in range(times):
        draws.begin()
        found[draws.draw(kind, elapsed)] += 1
    return found


def test_a_class_with_more_run_times_is_asked_more_often_than_its_parents() -> None:
    for count, share in ((4, 0.5), (12, 0.75)):
        found = draw([a_row("own", *[10.0] * count), a_row("all", *[99.0] * 30)], a_kind("own", "all"))
        assert found[10.0] + found[99.0] == 2000
        assert abs(found[10.0] / 2000 - share) < 0.05
    # The last class is asked in any case, and classes without run times are passed over.
    assert set(draw([a_row("own", 10.0)], a_kind("none", "own"))) == {10.0}


def test_half_of_the_plays_draw_from_the_last_run_times() -> None:
    values = tuple(map(float, range(100, 130)))
    found = draw([a_row("own", *values)], a_kind("own"), times=8000)
    assert set(found) == set(values)
    last = sum(found[each] for each in values[-5:])
    # Half of the plays, and those of the others whose block lies there.
    assert 0.5 < last / 8000 < 0.62


def test_within_one_play_the_run_times_of_a_class_followed_each_other() -> None:
    draws = Draws({"own": a_row("own", *map(float, range(100, 130)))}, Random(2))
    spans = []
    for _ in range(50):
        draws.begin()
        found = [draws.draw(a_kind("own"), 0.0) for _ in range(40)]
        spans.append(max(found) - min(found))
    assert max(spans) == 4
    assert sum(each == 4 for each in spans) > 40


def test_a_run_time_is_longer_than_the_work_has_run() -> None:
    row = a_row("own", 10.0, 20.0, 30.0, 40.0)
    assert set(draw([row], a_kind("own"), 20.0)) == {30.0, 40.0}
    # The other classes are asked, if none of a class is longer; and if none is at all, the work goes on at random.
    assert set(draw([row, a_row("all", 70.0)], a_kind("own", "all"), 40.0)) == {70.0}
    found = draw([row], a_kind("own"), 40.0)
    assert len(found) > 1000
    assert min(found) >= 41.0


def test_a_block_that_the_work_has_outlived_is_left() -> None:
    # The last five are short: the whole class is asked.
    row = a_row("own", 500.0, *[10.0] * 29)
    assert set(draw([row], a_kind("own"), 20.0)) == {500.0}


def test_work_without_run_times_lasts_an_hour_or_as_long_as_it_has_run_on_average() -> None:
    def mean(kind: Kind, elapsed: float) -> float:
        found = draw([], kind, elapsed, 6000)
        return sum(value * count for value, count in found.items()) / 6000 - elapsed

    assert abs(mean(a_kind("own"), 0.0) / UNKNOWN_SECONDS - 1) < 0.06
    assert abs(mean(a_kind("own"), 5 * UNKNOWN_SECONDS) / (5 * UNKNOWN_SECONDS) - 1) < 0.06
    assert abs(mean(a_kind("own", stated=60.0), 0.0) / 60 - 1) < 0.06


def test_an_expectation_is_multiplied_by_ratios() -> None:
    row = a_row("own", 100.0, 200.0, ratios=(0.5, 0.25))
    assert set(draw([row], a_kind("own", stated=40.0))) == {20.0, 10.0}
    assert set(draw([row], a_kind("own", stated=40.0), 15.0)) == {20.0}
    # The limit holds for both.
    assert set(draw([row], a_kind("own", stated=40.0, most=15.0))) == {15.0, 10.0}
    assert set(draw([row], a_kind("own", most=150.0))) == {100.0, 150.0}


def test_work_runs_longer_than_its_expectation_only_if_other_work_ran_so_long() -> None:
    row = a_row("own", *[100.0] * 5, ratios=(5.0,) * 5)
    assert set(draw([row], a_kind("own", stated=10.0))) == {50.0}
    assert set(draw([row], a_kind("own", stated=40.0))) == {100.0}
    assert set(draw([row], a_kind("own", stated=400.0))) == {400.0}
    assert set(draw([row], a_kind("own", stated=40.0), 120.0)) == {121.0}


def test_a_changed_row_is_read_again() -> None:
    draws = Draws({"own": a_row("own", 10.0)}, Random(1))
    assert draws.draw(a_kind("own"), 0.0) == 10.0
    draws.take_rows({"own": a_row("own", 20.0)})
    draws.begin()
    assert draws.draw(a_kind("own"), 0.0) == 20.0


def test_a_boot_time_is_one_that_was_seen() -> None:
    draws = Draws({}, Random(1))
    assert {draws.draw_boot([5.0, 6.0]) for _ in range(50)} == {5.0, 6.0}
    assert draws.draw_boot([]) == BOOT_SECONDS


KIND = a_kind()


def record(*hours: float, since: float = NOW - 3 * DAY) -> ArrivalRecord:
    """Arrivals at these hours after the begin of the record. The rank of each is its number."""
    found = ArrivalRecord()
    found.begin(since)
    for number, each in enumerate(hours):
        found.add(since + 3600 * each, KIND, float(number))
    return found


def replay(found: ArrivalRecord, now: float = NOW, horizon: float = DAY, seed: int = 1) -> list[Arrival]:
    return list(found.replay(now, horizon, Random(seed)))


def test_a_day_repeats_the_arrivals_of_one_past_day_at_their_hours() -> None:
    # Each day has one arrival, at another hour.
    found = record(1.0, 24 + 2.0, 48 + 3.0)
    seen = Counter(tuple(replay(found, seed=each)) for each in range(300))
    assert set(seen) == {(Arrival(NOW + 3600 * (number + 1), KIND, float(number)),) for number in range(3)}
    assert min(seen.values()) > 60
    # Two days are drawn apart, each from all days of the record.
    days = {tuple(each.rank for each in replay(found, horizon=2 * DAY, seed=seed)) for seed in range(300)}
    assert days == {(float(one), float(other)) for one in range(3) for other in range(3)}
    assert [each.at > NOW + DAY for each in replay(found, horizon=2 * DAY)] == [False, True]


def test_nothing_arrives_before_a_whole_day_was_recorded() -> None:
    assert replay(record(1.0, since=NOW - DAY + 1)) == []
    assert len(replay(record(1.0, since=NOW - DAY))) == 1
    assert replay(ArrivalRecord()) == []


def test_an_arrival_at_the_present_time_is_the_last_one_of_its_day() -> None:
    # A day begins after its first instant, so each arrival belongs to one day.
    assert [each.at for each in replay(record(0.0, 24.0, since=NOW - DAY))] == [NOW + DAY]


def test_no_more_than_the_last_days_are_repeated_and_kept() -> None:
    found = record(*(24 * day + 1.0 for day in range(60)), since=NOW - 60 * DAY)
    ranks = {each.rank for seed in range(400) for each in replay(found, seed=seed)}
    assert ranks == set(map(float, range(60 - MOST_DAYS, 60)))
    found.forget_old(NOW)
    assert len(found) == MOST_DAYS + 1
    assert {each.rank for seed in range(400) for each in replay(found, seed=seed)} == ranks
    # Few old ones are left, because forgetting copies the rest.
    found.forget_old(NOW + 2 * DAY)
    assert len(found) == MOST_DAYS + 1


def test_the_last_arrivals_are_kept() -> None:
    found = ArrivalRecord(most=3)
    found.begin(NOW - 9 * DAY)
    for number in range(6):
        found.add(NOW - (8 - number) * DAY, KIND, float(number))
    assert len(found) == 3
    # The record begins with the first one that is kept. Its day is not whole.
    assert {each.rank for seed in range(200) for each in replay(found, seed=seed)} == {4.0, 5.0}


def test_an_arrival_is_not_before_the_last_one_and_a_clock_that_was_set_back_begins_again() -> None:
    found = record(5.0, 4.0)
    found.begin(NOW - 2 * DAY)
    assert {each.at for seed in range(50) for each in replay(found, seed=seed)} == {NOW + 5 * 3600}
    assert len(found) == 2
    found.begin(NOW - 4 * DAY)
    assert len(found) == 0
    found.add(NOW - 3.5 * DAY, KIND, 7.0)
    assert {each.rank for seed in range(50) for each in replay(found, seed=seed)} == {7.0}


def test_kinds_of_the_record_are_replaced() -> None:
    found, other = record(1.0, 25.0), a_kind("other")
    asked: list[Kind] = []

    def find(kind: Kind) -> Kind:
        asked.append(kind)
        return other

    found.translate(find)
    assert asked == [KIND]
    assert {each.kind for seed in range(50) for each in replay(found, seed=seed)} == {other}
