"""Forecasts are made from the view and published, and the answer to a submission has that of its kind."""

import ast
from random import Random
from typing import Any

import msgspec
import pytest

from scheduler.foresight.forecaster import DAY, PLAYS, Forecaster
from scheduler.foresight.margins import LEAST, Outcome, Waits
from scheduler.model.forecasts import Forecast, Foreseen, name_kind
from scheduler.operations.explain import explain as explain_now
from scheduler.operations.foresight import look_ahead, open_forecaster
from scheduler.operations.ports import Newcomers
from scheduler.operations.rules.apply import apply_rules
from scheduler.ports import ViewUnavailableError
from tests.memory_forecasts import MemoryForecasts
from tests.operations.harness import CONFIG, Harness

RUN: float = 120.0
HOUR = 3600


class Foreseeing:
    """A harness whose single slot is leased again and again, with forecasts before each tick."""

    def __init__(self) -> None:
        pool = {"system": "x86_64-linux", "provider": "static", "max_leases_per_slot": 1, "lease_ttl": 0}
        self.config = {"pools": {"linux": pool}}
        self.harness = Harness(self.config)
        self.harness.ports.forecasts = MemoryForecasts()
        self.forecaster = Forecaster()
        self.harness.ask("register", slot="linux-1", pool="linux", machine="m")
        self.number = 0

    def submit(self, count: int) -> None:
        for _ in range(count):
            self.number += 1
            self.harness.submit(f"r{self.number}", ttl=0)

    def look(self, *, is_short: bool = False) -> Foreseen:
        """Tick and forecast; `is_short`: by one play."""
        self.harness.tick()
        found = look_ahead(self.harness.ports, self.forecaster, lambda: not is_short)
        assert found is not None
        return found

    def learn(self) -> None:
        """Give the forecaster as many outcomes as forecasts need."""
        self.look(is_short=True)
        for _ in range(LEAST):
            self.forecaster.margins.note(Outcome(Waits(1.0, 2.0, 3.0, 4.0), 2.0), None)

    def play(self, starts: int) -> Foreseen:
        """Let this many reservations run, one after the other. One play forecasts each start but the last ones."""
        found = self.look()
        for number in range(starts):
            (leased,) = self.harness.store.find_reservations(phases=["leased"])
            self.harness.now += RUN
            self.harness.ask("release", reservation=leased.id, token=leased.token)
            found = self.look(is_short=number < starts - 2)
        return found


@pytest.fixture
def fleet() -> Foreseeing:
    return Foreseeing()


def test_starts_are_unknown_before_enough_outcomes_and_known_after(fleet: Foreseeing) -> None:
    fleet.submit(LEAST + 12)
    found = fleet.play(LEAST // 2)
    assert {each.unknown for each in found.forecasts.values()} == {"few_outcomes"}
    found = fleet.play(LEAST // 2 + 4)
    known = [each for each in found.forecasts.values() if not each.unknown]
    assert len(known) == len(found.forecasts) == 7
    first = known[0]
    assert first.as_of == fleet.harness.now
    assert first.as_of <= first.low <= first.median <= first.high <= first.late
    assert fleet.harness.ports.forecasts.read(["r60"]) == {"r60": found.forecasts["r60"]}
    assert found.qualities[0].name == "all"
    assert found.qualities[0].count >= LEAST


def test_a_change_of_the_pools_makes_starts_unknown_again(fleet: Foreseeing) -> None:
    fleet.submit(2)
    fleet.learn()
    assert {each.unknown for each in fleet.look().forecasts.values()} == {""}
    other = {"system": "arm", "provider": "static"}
    apply_rules(fleet.harness.ports, {"pools": {**fleet.config["pools"], "other": other}})
    assert {each.unknown for each in fleet.look().forecasts.values()} == {"few_outcomes"}


def test_the_outcomes_of_a_version_count_for_one_with_more_keys(fleet: Foreseeing) -> None:
    """They are kept with the rules as they were applied, without the keys that have their defaults."""
    fleet.look()
    record = msgspec.json.decode(fleet.harness.ports.forecasts.read_record() or b"")
    scheduler, pools, accounts = ast.literal_eval(record["policy"])
    assert (scheduler, pools, accounts) == (None, fleet.config["pools"], None)


def test_without_a_valid_view_nothing_is_published() -> None:
    harness = Harness(CONFIG)
    harness.ports.forecasts = MemoryForecasts()
    assert look_ahead(harness.ports, Forecaster()) is None
    assert harness.ports.forecasts.read_summary() is None


def test_nothing_is_played_if_nothing_waits(fleet: Foreseeing) -> None:
    found = fleet.look()
    assert (found.plays, found.forecasts, found.newcomers) == (0, {}, {})


def test_at_least_one_play_is_made_without_time(fleet: Foreseeing) -> None:
    fleet.submit(2)
    fleet.harness.tick()
    found = look_ahead(fleet.harness.ports, fleet.forecaster, lambda: False)
    assert found is not None
    assert found.plays == 1
    found = look_ahead(fleet.harness.ports, fleet.forecaster)
    assert found is not None
    assert found.plays == PLAYS


def test_the_newest_reservation_of_a_kind_stands_for_newcomers_for_five_minutes(fleet: Foreseeing) -> None:
    fleet.submit(2)
    fleet.learn()
    fleet.harness.now += 10.0
    fleet.submit(1)
    fleet.harness.submit("other", ttl=0, labels={"zone": "mars"}, priority=7)  # no slot can hold it
    found = fleet.look(is_short=True)
    (row,) = fleet.harness.store.find_reservations(ids=["r3"])
    assert found.newcomers == {name_kind(row.request, row.priority): found.forecasts["r3"]}
    assert not found.forecasts["r3"].unknown
    fleet.harness.now += 300.0
    assert set(fleet.look(is_short=True).newcomers) == set(found.newcomers)
    fleet.harness.now += 0.5
    assert fleet.look(is_short=True).newcomers == {}


def test_the_answer_to_a_submission_has_the_forecast_of_its_kind(fleet: Foreseeing) -> None:
    fleet.submit(1)
    (row,) = fleet.harness.store.find_reservations(ids=["r1"])
    eta = Forecast(as_of=1.0, low=2.0, median=3.0, high=4.0, late=5.0)
    kinds = {name_kind(row.request, row.priority): eta}
    fleet.harness.ports.forecasts.publish(Foreseen(as_of=1.0, newcomers=kinds), b"")
    fleet.harness.ports.newcomers = Newcomers()
    assert fleet.harness.submit("r2")["eta"] == eta.list_fields()
    assert "eta" not in fleet.harness.submit("r2")  # it exists already
    assert "eta" not in fleet.harness.submit("r3", priority=7)


def test_submissions_are_answered_while_redis_does_not_answer(fleet: Foreseeing) -> None:
    class Broken(MemoryForecasts):
        def read_summary(self) -> Foreseen | None:
            raise ViewUnavailableError("no")

    fleet.harness.ports.forecasts = Broken()
    fleet.harness.ports.newcomers = Newcomers()
    assert fleet.harness.submit("r1")["ok"]


def test_an_explanation_has_the_forecast_of_a_pending_reservation(fleet: Foreseeing) -> None:
    fleet.submit(2)
    fleet.harness.tick()

    def explain(name: str) -> dict[str, Any]:
        return explain_now(fleet.harness.ports, name)

    assert explain("r2")["eta"] is None
    eta = Forecast(as_of=1.0, unknown="beyond")
    fleet.harness.ports.forecasts.publish(Foreseen(as_of=1.0, forecasts={"r2": eta}), b"")
    assert explain("r2")["eta"] == {"as_of": 1.0, "unknown": "beyond"}
    assert "eta" not in explain("r1")


def test_a_new_process_knows_the_outcomes_of_the_one_before(fleet: Foreseeing) -> None:
    fleet.submit(2)
    fleet.learn()
    fleet.look()
    fleet.forecaster = open_forecaster(fleet.harness.ports)
    assert {each.unknown for each in fleet.look().forecasts.values()} == {""}


def arrivals(forecaster: Forecaster, now: float) -> list[float]:
    """When work arrives in one day of a play, in seconds from its begin, over many plays."""
    replays = (forecaster.arrivals.replay(now, DAY, Random(seed)) for seed in range(60))
    return sorted({round(each.at - now) for replay in replays for each in replay})


def test_a_new_process_knows_the_arrivals_of_past_days(fleet: Foreseeing) -> None:
    """What has ended, runs and waits: the process before need not have seen it."""
    harness = fleet.harness
    begin = harness.now
    fleet.submit(1)
    fleet.look()
    for _ in range(2):  # two days, with an arrival two hours after the begin of each
        harness.now += 2 * HOUR
        (leased,) = harness.store.find_reservations(phases=["leased"])
        harness.ask("release", reservation=leased.id, token=leased.token)
        fleet.submit(1)
        fleet.look()
        harness.now += 22 * HOUR
    fleet.submit(1)
    harness.now = begin + 50 * HOUR  # two days after the first end, since which nothing is missing
    fleet.forecaster = open_forecaster(harness.ports)
    fleet.look()
    assert len(fleet.forecaster.arrivals) == 3
    seen = arrivals(fleet.forecaster, harness.now)
    assert seen == [22 * HOUR, 24 * HOUR] or seen == [22 * HOUR]
    # It does not read them twice, and notes what comes.
    fleet.submit(1)
    fleet.look()
    assert len(fleet.forecaster.arrivals) == 4


def test_a_process_that_reads_too_many_arrivals_of_a_day_leaves_out_the_day(
    fleet: Foreseeing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.operations.foresight.ROWS_A_BATCH", 2)
    fleet.submit(9)
    fleet.play(1)
    fleet.submit(1)
    fleet.play(3)
    fleet.harness.now += DAY
    fleet.play(2)

    def count(most: int) -> int:
        monkeypatch.setattr("scheduler.operations.foresight.MOST_ARRIVALS", most)
        forecaster = Forecaster()
        assert look_ahead(fleet.harness.ports, forecaster, lambda: False) is not None
        assert arrivals(forecaster, fleet.harness.now) == []
        return len(forecaster.arrivals)

    # Nine were submitted before the first end that is known. Beside the last day, 3 of 4 ends may be read.
    assert (count(9), count(4)) == (1, 0)


def test_a_change_of_the_pools_keeps_arrivals_and_a_clock_that_was_set_back_reads_them_again(fleet: Foreseeing) -> None:
    fleet.submit(3)
    fleet.play(1)
    fleet.submit(2)
    fleet.look()
    known = len(fleet.forecaster.arrivals)
    assert known >= 2
    other = {"system": "arm", "provider": "static"}
    apply_rules(fleet.harness.ports, {"pools": {**fleet.config["pools"], "other": other}})
    fleet.look()
    assert len(fleet.forecaster.arrivals) == known
    fleet.harness.now -= 1.0
    fleet.look()
    assert not fleet.forecaster.lacks_past
