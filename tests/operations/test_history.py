"""The history of the last hour: when a sample is written, and what it counts."""

import pytest

from scheduler.model.history import HOUR_SECONDS, SAMPLE_SECONDS, SAMPLES, Sample, find_last_hour, take_sample
from scheduler.model.view import Row, View
from scheduler.ports import ViewUnavailableError
from tests.builders import NOW, a_lease, a_reservation, a_slot
from tests.operations.harness import Harness

BEGIN = NOW // SAMPLE_SECONDS * SAMPLE_SECONDS


@pytest.fixture
def cluster() -> Harness:
    harness = Harness()
    harness.now = BEGIN
    return harness


def read(cluster: Harness) -> list[Sample]:
    return find_last_hour(cluster.ports.view_cache.read_history(), cluster.now)


def test_a_tick_writes_a_sample_if_there_is_none_of_its_ten_seconds(cluster: Harness) -> None:
    cluster.tick()
    for name in ("r1", "r2"):
        cluster.submit(name)
    cluster.tick()
    assert [each.waiting for each in read(cluster)] == [0]
    cluster.now += SAMPLE_SECONDS
    cluster.tick()
    assert [each.waiting for each in read(cluster)] == [0, 2]
    cluster.now += HOUR_SECONDS
    assert read(cluster) == []


def test_the_ring_stays_bounded_and_outlives_a_process(cluster: Harness) -> None:
    for _ in range(SAMPLES + 3):
        cluster.tick()
        cluster.now += SAMPLE_SECONDS
    cluster.restart()
    cluster.tick()
    assert len(cluster.ports.view_cache.read_history()) == SAMPLES
    assert len(read(cluster)) == SAMPLES


def test_a_sample_that_redis_did_not_take_is_written_by_the_next_tick(
    cluster: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_sample: Sample) -> None:
        raise ViewUnavailableError("Redis does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(cluster.ports.view_cache, "write_sample", fail)
        cluster.tick()
    assert read(cluster) == []
    cluster.tick()
    assert len(read(cluster)) == 1


def test_with_rare_ticks_there_is_a_sample_for_each(cluster: Harness) -> None:
    cluster.leader.interval = 25.0
    assert cluster.leader.sample_seconds == 30
    for _ in range(4):
        cluster.tick()
        cluster.now += 25.0
    assert len(read(cluster)) == 4 - 1  # Two ticks are in the same 30 seconds.


def test_each_launch_is_counted_in_one_sample() -> None:
    """The times of the samples within their ten seconds differ, as those of ticks do."""
    times = [BEGIN + 1.3 * number for number in range(60)]
    view = View([a_slot(f"linux-{number}", launched_at=at) for number, at in enumerate(times)])
    counts = [take_sample(view, 0, 0.0, BEGIN + 10 * number + number % 7).launches for number in range(12)]
    assert sum(counts) == len(times)


def test_the_leased_share_is_that_of_the_running_machines() -> None:
    rows: list[Row] = [
        a_slot("linux-1", resources={"cpus": 4.0, "memory_mib": 100.0}),
        a_slot("linux-2", resources={}),
        a_slot("linux-3", state="empty"),
        a_slot("linux-4", state="launching"),
        a_slot("linux-5", state="draining", resources={"cpus": 4.0}),
        a_reservation("r1", phase="leased", leases=(a_lease("linux-1", resources={"cpus": 1.0, "memory_mib": 50.0}),)),
        a_reservation("r2", phase="leased", leases=(a_lease("linux-2", resources={}),)),
    ]
    assert take_sample(View(rows), 3, 7.25, NOW) == Sample(NOW, 3, 7.2, 0.5, 0)
    assert take_sample(View(rows[2:4]), 0, 0.0, NOW).leased is None


def test_a_clock_that_was_set_back_shows_no_samples_of_the_future() -> None:
    samples = [Sample(NOW + seconds, 0, 0.0, None, 0) for seconds in (900.0, 0.0, -HOUR_SECONDS, -5.0)]
    assert [each.at - NOW for each in find_last_hour(samples, NOW)] == [-5.0, 0.0]
