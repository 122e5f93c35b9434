"""A share of each job's processors is elastic: when jobs end under each setting, and that no work is lost."""

from math import fsum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.simulation.fleet import Fleet
from scheduler.simulation.metrics import Summary
from scheduler.simulation.trace import TracePlay
from scheduler.simulation.workload import read_workload
from tests.traces.logs import Row, a_fleet, a_log, a_pool

SETTINGS = ("rigid", "malleable", "flexible", "yielding")


def a_host(cpus: int, **scheduler: Any) -> Fleet:
    """Return a fleet of one host without a grace period."""
    return a_fleet(a_pool(max_slots=1, resources={"cpus": cpus}), preemption_grace=0, **scheduler)


def play_elastic(folder: Path, fleet: Fleet, *rows: Row, share: float = 0.5) -> Summary:
    played = TracePlay(read_workload(a_log(folder, *rows), fleet.most_processors), fleet, share)
    played.play()
    return played.sum_up()


@pytest.mark.parametrize(
    ("cpus", "elastic", "turnarounds", "makespan", "moved"),
    [
        # the second job waits until all of it fits
        (4, "rigid", (10, 15), 20, (4, 0)),
        # the essential half of the second job does not fit, and nothing is reclaimed
        (4, "malleable", (10, 15), 20, (4, 0)),
        # the first job alone uses the whole host
        (4, "flexible", (10, 15), 20, (4, 0)),
        # at 5 the second job gets two CPUs; the first is half done and ends at 15; the second then has half left
        (4, "yielding", (15, 15), 20, (4, 2)),
        (5, "rigid", (10, 15), 20, (4, 0)),
        (5, "malleable", (10, 15), 20, (4, 0)),
        # one CPU is free, so one reclaimed CPU is enough: 3 beside 2 until 5 + 20 / 3, then 4 for 80 / 3 / 4 more
        (5, "flexible", (35 / 3, 40 / 3), 55 / 3, (4, 1)),
        (5, "yielding", (35 / 3, 40 / 3), 55 / 3, (4, 1)),
    ],
)
def test_two_jobs_of_four_processors_end_as_computed_by_hand(
    cpus: int, elastic: str, turnarounds: tuple[float, float], makespan: float, moved: tuple[int, int], tmp_path: Path
) -> None:
    """Both jobs run for 10 s on four processors; the second is submitted at 5 s."""
    found = play_elastic(tmp_path, a_host(cpus, elastic=elastic), (0, 10, 4), (5, 10, 4))
    assert (found.turnaround.mean, found.makespan) == pytest.approx((fsum(turnarounds) / 2, makespan), rel=1e-12)
    assert (found.grants, found.revocations) == moved


def test_a_holder_with_a_grace_surrenders_at_once_and_each_revocation_counts_once(tmp_path: Path) -> None:
    fleet = a_fleet(a_pool(max_slots=1, resources={"cpus": 4}), elastic="yielding", preemption_grace=30)
    found = play_elastic(tmp_path, fleet, (0, 10, 4), (5, 10, 4))
    assert (found.turnaround.mean, found.grants, found.revocations) == (15, 4, 2)


def test_a_claim_does_not_count_as_used(tmp_path: Path) -> None:
    """All 4 CPUs are leased all the time, also while the second job waits for those that the first has to release."""
    fleet = a_fleet(a_pool(max_slots=1, resources={"cpus": 4}), elastic="yielding", preemption_grace=30)
    assert play_elastic(tmp_path, fleet, (0, 10, 4), (5, 10, 4)).utilisation == 1


def test_every_job_ends_in_spite_of_rounding(tmp_path: Path) -> None:
    """After three months of simulated time, instants are exact only to a billionth of a second."""
    late = 8_000_000
    rows = [(0, 1, 1), *((late + 0.1 * number, 10 + 0.7 * number, 7) for number in range(40))]
    found = play_elastic(tmp_path, a_host(10, elastic="yielding"), *rows)
    assert (found.finished, found.left) == (41, 0)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(0, 60).map(float), st.integers(1, 40).map(float), st.integers(1, 8)),
        min_size=1,
        max_size=10,
    ),
    st.sampled_from(SETTINGS),
    st.sampled_from(["fifo", "size", "dynsize"]),
    st.sampled_from([0, 5]),
    st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    st.booleans(),
)
def test_work_is_conserved_and_no_job_ends_before_its_runtime(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[Row],
    elastic: str,
    queue: str,
    grace: float,
    share: float,
    backfill: bool,
) -> None:
    """The leased processor-seconds are equal to those of the jobs, however the CPUs were shared."""
    pool = a_pool(max_slots=2, resources={"cpus": 4})
    fleet = a_fleet(pool, elastic=elastic, queue=queue, preemption_grace=grace, backfill=backfill)
    workload = read_workload(a_log(tmp_path_factory.mktemp("log"), *rows), fleet.most_processors)
    played = TracePlay(workload, fleet, share)
    played.play()
    found = played.sum_up()
    assert (found.finished, found.left) == (len(rows), 0)
    leased = found.utilisation * fleet.most_processors * found.makespan
    assert leased == pytest.approx(fsum(job.run_seconds * job.processors for job in workload.jobs), rel=1e-9)
    assert found.turnaround.mean >= fsum(job.run_seconds for job in workload.jobs) / len(rows) - 1e-6
    assert found.slowdown.mean >= 1
