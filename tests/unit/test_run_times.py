"""Classes of work, the run times that they keep, and the estimates from them."""

import pytest

from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.run_times import (
    ALL,
    KEPT,
    KEPT_OF_ALL,
    Estimates,
    RunTimes,
    is_class_of,
    list_classes,
    measure_run_time,
    with_run_time,
)


def a_request(count: int = 1, cpus: float = 1.0, **fields: object) -> Request:
    return Request(components=(Component(name="main", count=count, resources={"cpus": cpus}),), **fields)  # type: ignore[arg-type]


def a_row(name: str, *seconds: float) -> RunTimes:
    return RunTimes(id=name, seconds=seconds)


def test_classes_go_from_the_most_similar_to_all_work() -> None:
    request = a_request(3, 2.0, account="ci", system="linux", tags={"job": "build"})
    assert list_classes(request, "ann") == (
        '["ci","ann","build","linux",2,3]',
        '["ci","ann","build","linux"]',
        '["ci","ann"]',
        "[null,null,null,null,2,3]",
        ALL,
    )


@pytest.mark.parametrize(
    ("one", "other", "are_equal"),
    [
        (a_request(5), a_request(7), True),
        (a_request(7), a_request(8), False),
        (a_request(1, 4.0), a_request(1, 8.0), False),
        (a_request(tags={"job": "a", "name": "b"}), a_request(tags={"job": "a"}), True),
        (a_request(tags={"name": "b"}), a_request(tags={"job": "b"}), True),
        (a_request(tags={"other": "b"}), a_request(), True),
    ],
)
def test_equal_sizes_and_jobs_are_one_class(one: Request, other: Request, are_equal: bool) -> None:
    assert (list_classes(one, None) == list_classes(other, None)) is are_equal


@pytest.mark.parametrize(
    ("name", "account", "job", "is_one"),
    [
        ('["ci","ann","build","linux",2,3]', None, None, True),
        ('["ci","ann","build","linux"]', "ci", None, True),
        ('["ci","ann","build","linux"]', "other", None, False),
        ('["ci","ann","build","linux"]', None, "build", True),
        ('["ci","ann","build","linux"]', "ci", "test", False),
        ('["ci","ann"]', "ci", "build", False),
        (ALL, "ci", None, False),
        (ALL, None, None, True),
    ],
)
def test_a_class_is_of_an_account_and_a_job_if_it_names_them(
    name: str, account: str | None, job: str | None, is_one: bool
) -> None:
    assert is_class_of(name, account, job) is is_one


@pytest.mark.parametrize(("name", "kept"), [('["ci",null]', KEPT), (ALL, KEPT_OF_ALL)])
def test_a_class_keeps_the_last_run_times(name: str, kept: int) -> None:
    row = a_row(name)
    for number in range(kept + 3):
        row = with_run_time(row, float(number), None, float(number))
        assert row.released_at == number
    assert row.seconds == tuple(map(float, range(3, kept + 3)))
    assert row.ratios == ()
    row = with_run_time(row, 30.0, 60.0, 1.0)
    assert (row.seconds[-1], row.ratios, row.released_at) == (30.0, (0.5,), kept + 2.0)


REQUEST = a_request(account="ci", system="linux")
OWN, PARENT = list_classes(REQUEST, None)[:3:2]


def estimate(rows: list[RunTimes], elapsed: float, quantile: float, stated: float | None = None) -> float | None:
    estimates = Estimates({row.id: row for row in rows})
    return estimates.find_run_time(
        a_request(account="ci", system="linux", expected_runtime=stated), None, elapsed, quantile
    )


@pytest.mark.parametrize(
    ("elapsed", "quantile", "found"),
    [
        (0.0, 0.8, 50.0),  # the class knows five run times
        (0.0, 0.2, 10.0),
        (0.0, 1.0, 60.0),
        (25.0, 0.5, 50.0),  # of 50 and 60, which are longer
        (60.0, 0.5, 900.0),  # the class is outlived, so its parent answers
        (900.0, 0.5, None),
    ],
)
def test_the_most_similar_class_that_can_answer_is_asked(elapsed: float, quantile: float, found: float | None) -> None:
    few = a_row(OWN, 1.0, 1.0)
    own = a_row(PARENT, 60.0, 10.0, 20.0, 50.0, 20.0)
    assert estimate([few, own, a_row(ALL, 1.0, 2.0, 3.0, 4.0, 900.0)], elapsed, quantile) == found


@pytest.mark.parametrize(
    ("rows", "elapsed", "found"),
    [
        ([], 0.0, 100.0),  # nothing is known: what the request states
        ([], 100.0, None),  # it was wrong
        ([a_row(ALL, *[30.0] * 5)], 0.0, 30.0),  # the shorter of both
        ([a_row(ALL, *[130.0] * 5)], 0.0, 100.0),
        ([RunTimes(id=OWN, seconds=(500.0,) * 5, ratios=(0.5, 0.5, 0.2, 0.4, 0.9))], 0.0, 50.0),
        ([RunTimes(id=OWN, seconds=(500.0,) * 5, ratios=(0.5, 0.5, 0.2, 0.4, 0.9))], 60.0, 90.0),
        ([RunTimes(id=OWN, seconds=(500.0,) * 5, ratios=(0.5, 0.5, 0.2, 0.4, 0.9))], 90.0, 500.0),
        ([RunTimes(id=OWN, seconds=(500.0,) * 5, ratios=(0.5, 0.5))], 0.0, 500.0),  # too few stated any
    ],
)
def test_a_stated_run_time_counts_as_far_as_others_of_its_class_were_right(
    rows: list[RunTimes], elapsed: float, found: float | None
) -> None:
    assert estimate(rows, elapsed, 0.8, 100.0) == found


def test_an_estimate_follows_a_new_row() -> None:
    rows = {ALL: a_row(ALL, *[5.0] * 5)}
    estimates = Estimates(rows)
    assert estimates.find_run_time(REQUEST, None, 0.0, 0.9) == 5.0
    rows[ALL] = a_row(ALL, *[7.0] * 5)
    assert estimates.find_run_time(REQUEST, None, 0.0, 0.9) == 7.0


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({}, 7.0),
        ({"finished_at": 1.0}, 0.0),  # the clock was set back
        ({"phase": "failed"}, None),
        ({"revoke_reason": "preempted"}, None),
        ({"leased_at": None}, None),
        ({"finished_at": None}, None),
    ],
)
def test_only_work_that_its_holder_released_has_a_run_time(changes: dict[str, object], seconds: float | None) -> None:
    fields = {"phase": "released", "leased_at": 3.0, "finished_at": 10.0, **changes}
    row = Reservation(id="r", request=a_request(), created_at=0.0, **fields)  # type: ignore[arg-type]
    assert measure_run_time(row) == seconds
