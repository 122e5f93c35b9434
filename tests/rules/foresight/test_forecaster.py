"""Forecasts over the life of a small cluster: what is known when, and what odd input does to them."""

from collections import deque
from math import exp, inf
from random import Random
from typing import Any

import msgspec
import pytest

from scheduler.foresight.forecaster import Forecaster
from scheduler.foresight.margins import KEPT, LEAST, SECONDS, Margins, Outcome, Waits
from scheduler.model.forecasts import Forecast
from scheduler.model.reservations import Reservation
from scheduler.model.rules import Rules
from scheduler.model.run_times import ALL, RunTimes, count_runs, list_runs
from scheduler.model.view import View
from tests.builders import NOW, SYSTEM, a_lease, a_reservation, a_slot, some_rules


def rules(slots: int = 1) -> Rules:
    return some_rules({"pools": {"linux": {"system": SYSTEM, "provider": "static", "max_slots": slots}}})


class Cluster:
    """One slot, which serves reservations one after the other."""

    def __init__(self, seed: int = 1) -> None:
        self.random, self.now, self.number = Random(seed), NOW, 0
        self.waiting = deque[Reservation]()
        self.running: tuple[Reservation, float] | None = None
        self.times: dict[str, RunTimes] = {}
        self.forecaster, self.rules, self.policy = Forecaster(1), rules(), "1"
        self.seconds = 100.0

    def view(self) -> View:
        runs = [] if self.running is None else [self.running[0]]
        return View([a_slot(), *self.times.values(), *self.waiting, *runs])

    def submit(self) -> Reservation:
        self.number += 1
        row = a_reservation(f"r{self.number}", sequence=self.number, created_at=self.now, account="a")
        self.waiting.append(row)
        return row

    def step(self) -> None:
        """Submit work, ask for its forecast, and go on until the running work has ended."""
        while len(self.waiting) < 4:
            self.submit()
        if self.running is None:
            row = self.waiting.popleft()
            lease = a_lease(epoch=1)
            leased = msgspec.structs.replace(row, phase="leased", leased_at=self.now, leases=(lease,))
            self.running = leased, self.now + self.random.uniform(0.5, 1.5) * self.seconds
        self.ask()
        row, self.now = self.running
        ended = msgspec.structs.replace(row, phase="released", finished_at=self.now, leases=())
        self.times |= {each.id: each for each in count_runs(list_runs([ended]), self.times)}
        self.running = None

    def ask(self) -> list[Forecast]:
        self.forecaster.see(self.view(), self.rules, self.policy, self.now)
        self.forecaster.play(8)
        return [self.forecaster.answer(row) for row in self.waiting]


@pytest.fixture
def cluster() -> Cluster:
    one = Cluster()
    for _ in range(80):
        one.step()
    return one


def test_a_forecast_is_an_interval_around_what_comes(cluster: Cluster) -> None:
    cluster.step()
    *_, last = cluster.ask()
    assert last.unknown == ""
    assert last.as_of == cluster.now
    assert cluster.now < last.low <= last.median <= last.high <= last.late
    # Three wait before it or with it, each for about 100 s.
    assert 100 < last.median - cluster.now < 500
    assert last.high - last.low < 500


def test_intervals_hold_about_their_share_of_the_starts(cluster: Cluster) -> None:
    for _ in range(200):
        cluster.step()
    quality = cluster.forecaster.qualities.list()[0]
    assert quality.coverage is not None
    assert 0.7 < quality.coverage < 0.92


def test_starts_are_unknown_before_enough_outcomes() -> None:
    one = Cluster()
    for _ in range(10):
        one.step()
    assert {each.unknown for each in one.ask()} == {"few_outcomes"}


def test_a_change_of_the_policy_begins_the_record_again(cluster: Cluster) -> None:
    assert len(cluster.forecaster.margins) >= LEAST
    cluster.policy = "2"
    assert {each.unknown for each in cluster.ask()} == {"few_outcomes"}


def test_a_change_of_other_rules_keeps_outcomes_and_arrivals(cluster: Cluster) -> None:
    arrivals = len(cluster.forecaster.arrivals)
    cluster.rules = rules(5)
    assert {each.unknown for each in cluster.ask()} == {""}
    assert len(cluster.forecaster.arrivals) == arrivals > 0


def test_a_clock_that_was_set_back_begins_the_record_again(cluster: Cluster) -> None:
    cluster.now -= 86_400
    assert {each.unknown for each in cluster.ask()} == {"few_outcomes"}
    for _ in range(70):
        cluster.step()
    assert {each.unknown for each in cluster.ask()} == {""}


def test_a_clock_that_jumps_ahead_leaves_wide_forecasts(cluster: Cluster) -> None:
    cluster.now += 30 * 86_400
    assert all(each.unknown or each.low <= each.high for each in cluster.ask())


def test_a_record_survives_a_new_process(cluster: Cluster) -> None:
    record = cluster.forecaster.dump()
    cluster.forecaster = Forecaster(2)
    cluster.forecaster.load(record)
    assert {each.unknown for each in cluster.ask()} == {""}
    cluster.forecaster = Forecaster(2)
    cluster.forecaster.load(b"no record")
    assert {each.unknown for each in cluster.ask()} == {"few_outcomes"}


def test_run_times_that_double_widen_the_intervals_until_they_hold(cluster: Cluster) -> None:
    cluster.seconds = 200.0
    for _ in range(150):
        cluster.step()
    before = cluster.forecaster.qualities.list()[0].count
    hits = 0
    for _ in range(60):
        *_, last = cluster.ask()
        row = cluster.waiting[-1]
        while row in cluster.waiting:
            cluster.step()
        assert cluster.running is None
        hits += last.low <= cluster.now <= last.high + 600
    assert before
    assert hits > 36


def test_what_no_slot_can_hold_or_is_on_hold_has_no_forecast(cluster: Cluster) -> None:
    strange = a_reservation("s1", sequence=900, created_at=cluster.now, labels={"zone": "mars"})
    held = a_reservation("s2", sequence=901, created_at=cluster.now, priority=0)
    cluster.waiting += [strange, held]
    found = cluster.ask()
    assert [each.unknown for each in found[-2:]] == ["not_placed", "not_placed"]


@pytest.mark.parametrize("hold", [{"suspended": True}, {"priority": 0}], ids=["suspended", "priority 0"])
def test_the_time_on_hold_is_not_in_an_outcome(hold: dict[str, Any]) -> None:
    one = Cluster()
    row = one.submit()
    for seconds, present in ((0, row), (100, msgspec.structs.replace(row, **hold)), (9_000, row)):
        one.now += seconds
        one.waiting[0] = present
        one.ask()
    one.now += 5
    one.waiting.clear()
    one.running = msgspec.structs.replace(row, phase="leased", leased_at=one.now, leases=(a_lease(epoch=1),)), 0.0
    one.ask()
    [(place, taken, *_)] = one.forecaster.margins.dump().rows
    assert exp(place + taken) - SECONDS == pytest.approx(5)


def test_a_reservation_of_a_later_view_is_not_yet_known(cluster: Cluster) -> None:
    cluster.ask()
    assert cluster.forecaster.answer(cluster.submit()).unknown == "not_yet"


def test_work_that_never_ends_makes_the_start_unknown() -> None:
    one = Cluster()
    for _ in range(80):
        one.step()
    one.seconds = 1e9
    while one.running is None:
        row = one.waiting.popleft()
        one.running = (
            msgspec.structs.replace(row, phase="leased", leased_at=one.now - 1e8, leases=(a_lease(epoch=1),)),
            1e18,
        )
    found = one.ask()
    assert {each.unknown for each in found} == {"beyond"}


def test_forecasts_between_two_noted_places_are_interpolated() -> None:
    run = RunTimes(id=ALL, seconds=(600.0,) * 30)
    leased = a_reservation("runs", phase="leased", leased_at=NOW, leases=(a_lease(epoch=1),))
    rows = [a_reservation(f"r{number}", created_at=NOW + number) for number in range(200)]
    view, forecaster = View([a_slot(), run, leased, *rows]), Forecaster(horizon=150 * 600.0)
    forecaster.see(view, rules(), "1", NOW)
    forecaster.play(1)
    waits = [forecaster.predict(row) for row in rows]
    assert len(forecaster._starts) < 50
    # Each of them runs for 600 s. What lies between a known start and one beyond the horizon is beyond it.
    medians = [each.median for each in waits if each is not None]
    known = [each for each in medians if each < inf]
    assert known == pytest.approx([600.0 * (number + 1) for number in range(len(known))])
    assert 130 < len(known) < 150
    assert medians[len(known) :] == [inf] * (200 - len(known))


def test_many_classes_are_bounded() -> None:
    one = Cluster()
    for number in range(3000):
        row = one.submit()
        one.waiting[-1] = msgspec.structs.replace(
            row, request=msgspec.structs.replace(row.request, account=f"a{number}", tags={"job": f"j{number}"})
        )
    assert len(one.ask()) == 3000
    one.waiting.clear()
    for _ in range(3):
        one.step()
    census = one.forecaster._census
    assert census is not None
    assert len(census._known) < 300


def test_margins_keep_few_outcomes_and_hold_their_share() -> None:
    margins, random, hits = Margins(), Random(3), 0
    for number in range(KEPT + 500):
        predicted = Waits(50.0, 100.0, 150.0, 170.0)
        seconds = 100.0 * random.lognormvariate(0.5, 1.0)
        given = margins.widen(predicted) if number >= KEPT - 500 else None
        hits += number >= KEPT and given is not None and given.waits.low <= seconds <= given.waits.high
        margins.note(Outcome(predicted, seconds), given)
    assert len(margins) == KEPT
    assert 0.76 < hits / 500 < 0.84


def test_an_interval_of_exact_predictions_contains_the_start() -> None:
    margins = Margins()
    for number in range(2 * LEAST):
        seconds = 70.0 + 30 * number
        given = margins.widen(Waits(*[seconds] * 4))
        assert given.waits.low < seconds < given.waits.high
        assert given.waits.high - given.waits.low < 0.01
        margins.note(Outcome(Waits(*[seconds] * 4), seconds), given)


def test_margins_of_short_waits_do_not_widen_long_ones() -> None:
    margins = Margins()
    short, long = Waits(1.0, 2.0, 3.0, 3.0), Waits(9_000.0, 10_000.0, 11_000.0, 12_000.0)
    for _ in range(200):
        for outcome in (Outcome(short, 3000.0), Outcome(long, 10_000.0)):
            margins.note(outcome, margins.widen(outcome.predicted) if margins.are_known else None)
    # The ways that ask outcomes of both kinds have lost their weight.
    assert margins.widen(long).waits.high < 12_000
    assert margins.widen(short).waits.high > 1_000
