"""Which requests are put off while too many wait, and how long a worker expects them to wait."""

import pytest

from scheduler.model.command_schemas import SCHEMAS
from scheduler.policy.load_shedding import LONGEST_RETRY, SHORTEST_RETRY, QueueGauge, find_rank, find_retry
from scheduler.protocol.verbs import QUESTIONS

HOLDERS = ("renew", "release", "confirm", "surrender", "fail", "decline")


@pytest.mark.parametrize("verb", [*SCHEMAS, *sorted(QUESTIONS)])
def test_nothing_is_put_off_while_the_queue_is_answered_in_time(verb: str) -> None:
    assert find_retry(verb, 0.9, longest=1.0) is None


def test_questions_and_registrations_are_put_off_first_and_holders_last() -> None:
    assert {find_rank(verb) for verb in (*QUESTIONS, "register")} == {0}
    assert find_rank("submit") == 1
    assert {find_rank(verb) for verb in (*HOLDERS, "drain", "cordon", "leave", "apply")} == {2}


@pytest.mark.parametrize(("verb", "times"), [("leases", 1), ("submit", 5), ("renew", 15)])
def test_each_rank_has_a_limit_of_its_own(verb: str, times: int) -> None:
    limit = 1.5 * times
    assert find_retry(verb, limit, longest=1.5) is None
    assert find_retry(verb, limit + 0.1, longest=1.5) == pytest.approx(limit + 0.1)


@pytest.mark.parametrize(("wait", "seconds"), [(0.2, SHORTEST_RETRY), (9.0, 9.0), (900.0, LONGEST_RETRY)])
def test_a_caller_retries_when_the_queue_is_worked_off_within_bounds(wait: float, seconds: float) -> None:
    assert find_retry("leases", wait, longest=0.1) == seconds


def a_gauge(seconds: float, concurrency: int = 2) -> QueueGauge:
    """A worker that has measured many requests of this duration."""
    gauge = QueueGauge(concurrency)
    for _ in range(200):
        gauge.note_run(seconds)
    return gauge


def test_the_wait_follows_from_depth_and_the_time_that_requests_take() -> None:
    gauge = a_gauge(0.02)
    gauge.note_sample(1000, 0, 0)
    assert gauge.wait == pytest.approx(10.0)


def test_requests_that_were_taken_wait_no_more() -> None:
    """Otherwise a worker would put off too many until it reads the queue again."""
    gauge = a_gauge(0.02)
    gauge.note_sample(3, 0, 0)
    for _ in range(5):
        gauge.note_taken()
    assert (gauge.depth, gauge.wait) == (0, 0.0)


def test_other_workers_of_the_queue_make_the_wait_shorter() -> None:
    gauge = a_gauge(0.02)
    gauge.note_sample(1000, 100, 300)
    gauge.note_sample(1000, 200, 700)
    assert gauge.wait == pytest.approx(10.0 / 4)


def test_a_worker_that_took_almost_no_request_is_counted_as_one_of_64() -> None:
    gauge = a_gauge(0.02)
    gauge.note_sample(6400, 100, 300)
    gauge.note_sample(6400, 101, 1300)
    assert gauge.wait == pytest.approx(1.0)


def test_counts_that_redis_lost_start_again() -> None:
    gauge = a_gauge(0.02)
    gauge.note_sample(1000, 100, 300)
    gauge.note_sample(1000, 200, 50)
    gauge.note_sample(1000, 250, 100)
    assert gauge.wait == pytest.approx(10.0)


def test_requests_that_are_carried_out_together_count_by_their_number() -> None:
    """A worker that answers 100 requests in a second, all at once, takes a hundredth of a second for each."""
    gauge = QueueGauge(2)
    for _ in range(200):
        gauge.note_run(1.0, 100)
    gauge.note_sample(100, 0, 0)
    assert gauge.wait == pytest.approx(1.0, rel=0.01)
