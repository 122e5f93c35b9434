"""The summary of a replayed trace: examples computed by hand, and rules that hold for any trace."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.make_nasa_like import make_log, pack
from scheduler.model.events import Event
from scheduler.model.validation import InvalidInputError
from scheduler.simulation.metrics import Spread, Summary, WidthWaits
from scheduler.simulation.trace import Setbacks, TracePlay
from scheduler.simulation.workload import (
    Job,
    RequestedTimes,
    Workload,
    list_submissions,
    make_reservation,
    read_workload,
)
from tests.generated import TIMES
from tests.traces.logs import Document, Row, a_fleet, a_line, a_log, a_pool, an_ec2_pool, play, play_rows, write_log

THREE = ((0, 10, 2), (5, 20, 1), (6, 5, 1))
"""On two hosts the first job has both until 10 s; then the others run until 30 s and 15 s."""


def test_the_summary_on_static_hosts_is_as_computed_by_hand(tmp_path: Path) -> None:
    assert play_rows(tmp_path, a_fleet(), *THREE) == Summary(
        jobs=3,
        finished=3,
        skipped=0,
        left=0,
        makespan=30,
        wait=Spread(mean=3, p50=4, p95=4.9, p99=4.98),
        turnaround=Spread(mean=44 / 3, p50=10, p95=23.5, p99=24.7),
        slowdown=Spread(mean=(1 + 1.25 + 1) / 3, p50=1, p95=1.225, p99=1.245),
        utilisation=45 / 60,
        instance_hours=0,
        cost=0,
        launches=0,
        interruptions=0,
        preemptions=0,
        grants=0,
        revocations=0,
        ticks=6,
        wall_seconds=0,
        waits_by_width=(WidthWaits(least=1, most=1, jobs=2, p99=4.99), WidthWaits(least=2, most=3, jobs=1, p99=0)),
    )


def test_launched_machines_take_time_and_cost_money(tmp_path: Path) -> None:
    """Launched at 0 s, answered at 1 s, ready at 15 s, in use until 35 s; the machine costs from the answer on."""
    fleet = a_fleet(an_ec2_pool(), {"launch": 1, "boot": 10, "bind": 4, "terminate": 30})
    summary = play_rows(tmp_path, fleet, (0, 20, 1))
    assert (summary.wait.mean, summary.makespan, summary.launches) == (15, 35, 1)
    assert summary.instance_hours == pytest.approx(34 / 3600)
    assert summary.cost == pytest.approx(34 / 3600 * 3.6)
    assert summary.utilisation == pytest.approx(20 / 34)


def test_idle_machines_are_terminated_and_cost_no_more(tmp_path: Path) -> None:
    """The first machine is in use until 10 s and idle until 70 s; the second job is submitted later."""
    fleet = a_fleet(an_ec2_pool(idle_scale_down=60))
    summary = play_rows(tmp_path, fleet, (0, 10, 1), (1000, 10, 1))
    assert summary.launches == 2
    assert summary.instance_hours == pytest.approx((70 + 10) / 3600, abs=1e-6)


def test_the_virtual_clock_begins_with_the_first_job(tmp_path: Path) -> None:
    late = [(submit + 1_000_000, run, processors) for submit, run, processors in THREE]
    assert play_rows(tmp_path, a_fleet(), *late) == play_rows(tmp_path, a_fleet(), *THREE)


def test_jobs_out_of_order_are_submitted_in_order_of_time(tmp_path: Path) -> None:
    assert play_rows(tmp_path, a_fleet(), *reversed(THREE)) == play_rows(tmp_path, a_fleet(), *THREE)


def test_the_waits_depend_on_the_kind_of_queue(tmp_path: Path) -> None:
    """A job of size 200 and five of size 10 wait for one that has the only host until 100 s."""
    rows = [(0, 100, 1), (1, 200, 1), *((2, 10, 1) for _ in range(5))]
    fifo, size = (play_rows(tmp_path, a_fleet(a_pool(max_slots=1), queue=queue), *rows) for queue in ("fifo", "size"))
    assert (fifo.wait.p50, size.wait.p50) == (308, 118)
    assert (fifo.makespan, size.makespan) == (350, 350)


@pytest.mark.parametrize(
    ("market", "rate", "interrupted"), [("spot", 60.0, True), ("on-demand", 60.0, False), ("spot", 0.0, False)]
)
def test_spot_machines_are_interrupted_at_the_rate(market: str, rate: float, interrupted: bool, tmp_path: Path) -> None:
    offering = {"name": "c1", "market": market, "resources": {"cpus": 1}}
    fleet = a_fleet(an_ec2_pool(offerings=[offering]), {"interruption_rate": rate, "seed": 3})
    summary = play_rows(tmp_path, fleet, *((at, 20, 2) for at in range(0, 2000, 100)))
    assert (summary.interruptions > 0) == interrupted
    assert summary.finished == 20


def test_the_same_seed_gives_the_same_interruptions(tmp_path: Path) -> None:
    rows = [(at, 50, 2) for at in range(0, 3000, 60)]

    def play_seed(seed: int) -> Summary:
        return play_rows(tmp_path, a_fleet(an_ec2_pool(), {"interruption_rate": 30, "seed": seed}), *rows)

    assert play_seed(1) == play_seed(1) != play_seed(2)


def test_a_planned_outage_delays_the_jobs_submitted_during_it(tmp_path: Path) -> None:
    outage = {"pool": "p", "at": 0, "until": 500}
    summary = play_rows(tmp_path, a_fleet(an_ec2_pool(capacity_hold=50), {"outages": [outage]}), (100, 10, 1))
    assert summary.wait.mean == 500
    assert summary.launches > 1


def test_a_fleet_that_never_serves_a_job_ends_the_replay_with_an_error(tmp_path: Path) -> None:
    """A host with no uses left is empty until it registers again; hosts of a trace never do."""
    with pytest.raises(InvalidInputError, match='serves every job of the trace, got "job-2 waits for ever: pending"'):
        play_rows(tmp_path, a_fleet(a_pool(max_slots=1, max_uses=1)), (0, 10, 1), (20, 10, 1))


@pytest.mark.parametrize(
    ("cloud", "got"),
    [
        # ten hours of work on machines that run for some minutes
        ({"interruption_rate": 30}, "job-2 went back to the queue 20 times (slot_interrupted)"),
        # machines that are interrupted before they are ready
        ({"boot": 500, "interruption_rate": 3600}, "all jobs waited through 60 ticks in a row"),
        # an outage that never ends
        ({"outages": [{"pool": "p", "until": 1e9}]}, "all jobs waited through 60 ticks in a row"),
    ],
)
def test_a_trace_that_never_ends_ends_the_replay_with_an_error(cloud: Document, got: str, tmp_path: Path) -> None:
    fleet = a_fleet(an_ec2_pool(max_slots=1), cloud)
    workload = read_workload(a_log(tmp_path, (0, 10, 1), (20, 36_000, 1)), 1)
    with pytest.raises(InvalidInputError) as caught:
        TracePlay(workload, fleet, setbacks=Setbacks(most_setbacks=20, most_idle_ticks=60)).play()
    expected = "a fleet and a cloud on which every job of the trace ends"
    assert str(caught.value) == f'config: expected {expected}, got "{got}"'


def test_a_few_setbacks_do_not_end_the_replay() -> None:
    """A job that ends takes its setbacks with it. A tick in which some job does not wait resets the count of ticks."""
    setbacks = Setbacks(most_setbacks=3, most_idle_ticks=3)
    for job in ("job-1", "job-1", "job-2", "job-2"):
        setbacks.note(Event(at=0, name="reservation_pending", cause="tick", reservation=job))
    setbacks.note(Event(at=0, name="reservation_released", cause="holder", reservation="job-1"))
    setbacks.note(Event(at=0, name="reservation_pending", cause="tick", reservation="job-1"))
    for ticks, all_wait in ((2, True), (3, False), (5, True)):
        setbacks.note_ticks(ticks, all_wait=all_wait)
    with pytest.raises(InvalidInputError):
        setbacks.note_ticks(6, all_wait=True)
    with pytest.raises(InvalidInputError):
        setbacks.note(Event(at=0, name="reservation_pending", cause="tick", reservation="job-2"))


def test_a_job_becomes_a_reservation_with_its_fields() -> None:
    job = Job(7, 60, 300, 8, 600, user=12, group=2, application=33, queue=1)
    assert make_reservation(job, "job-1", "x", 0).model_dump(exclude_defaults=True) == {
        "id": "job-1",
        "system": "x",
        "account": "user-12",
        "size": 4800,
        "ttl": 0,
        "runtime": 300,
        "components": ({"name": "main", "count": 8, "resources": {"cpus": 1}},),
    }
    unknown = Job(7, 60, 300, 8, None, user=-1, group=-1, application=-1, queue=-1)
    assert (make_reservation(unknown, "job-1", "x", 0).size, make_reservation(unknown, "job-1", "x", 0).account) == (
        2400,
        None,
    )


def test_a_requested_time_becomes_what_is_wanted_and_the_run_time_stays() -> None:
    job = Job(7, 60, 300, 8, 200, user=-1, group=-1, application=-1, queue=-1)

    def fields(job: Job, way: RequestedTimes | None) -> tuple[str | None, float | None, float | None, float | None]:
        made = make_reservation(job, "job-1", "x", 0, way)
        return made.account, made.runtime, made.expected_runtime, made.max_runtime

    assert fields(job, None) == (None, 300, None, None)
    assert fields(job, "expected") == (None, 300, 200, None)
    # a job of an unknown user has an account, too, which enforces its limit
    assert fields(job, "limit") == ("user-unknown", 300, None, 200)
    assert fields(replace(job, user=3), "limit") == ("user-3", 300, None, 200)
    assert fields(replace(job, requested_seconds=None), "limit") == ("user-unknown", 300, None, None)
    assert fields(replace(job, requested_seconds=0), "expected") == (None, 300, None, None)


@pytest.mark.parametrize(
    ("way", "makespan", "at_limit", "p99"), [(None, 160, 0, 100), ("expected", 160, 0, 100), ("limit", 120, 1, 60)]
)
def test_a_job_that_runs_for_longer_than_requested_ends_at_its_limit_where_requested_times_are_limits(
    way: RequestedTimes | None, makespan: float, at_limit: int, p99: float, tmp_path: Path
) -> None:
    """One host. The first job runs for 100 s and has requested 60, the second one runs for 60 and has requested 60."""
    fleet = a_fleet(a_pool(max_slots=1))
    rows: list[Row] = [(0, 100, 1), (0, 60, 1)]
    path = write_log(tmp_path, *(a_line(number, row, requested=60) for number, row in enumerate(rows, start=1)))
    played = TracePlay(read_workload(path, fleet.most_processors), fleet, requested_times=way)
    played.play()
    summary = played.sum_up()
    assert (summary.finished, summary.makespan, summary.at_limit) == (2, makespan, at_limit)
    assert summary.waits_by_width[0].p99 == pytest.approx(p99 * 0.99)
    # The run time of the job that ended at its limit is 60 s.
    assert summary.slowdown.mean == pytest.approx((1 + (p99 + 60) / 60) / 2)


@pytest.mark.parametrize(
    ("processors", "share", "essential", "elastic"),
    [
        (8, 0.5, 4, 4),
        # rounded down
        (5, 0.5, 3, 2),
        (1, 0.5, 1, 0),
        # at least one processor is essential
        (8, 1, 1, 7),
        # 100 * 0.29 is 28.999999999999996
        (100, 0.29, 71, 29),
    ],
)
def test_a_share_of_the_processors_of_a_job_is_elastic(
    processors: int, share: float, essential: int, elastic: int
) -> None:
    request = make_reservation(Job(7, 60, 300, processors, None, 1, 1, 1, 1), "job-1", "x", share)
    found = [(each.name, each.kind, each.count) for each in request.components]
    assert found == [("main", "essential", essential), ("more", "elastic", elastic)][: 2 if elastic else 1]


def test_times_of_submission_count_from_the_first_job() -> None:
    jobs = [Job(1, at, 10, 1, None, 1, 1, 1, 1) for at in (50, 60.5)]
    found = list_submissions(Workload(Path("log"), tuple(jobs), ()), "x")
    assert [(at, request.id) for at, request in found] == [(0, "job-1"), (10.5, "job-2")]


def test_bad_lines_are_reported_and_skipped_with_skip_bad(tmp_path: Path) -> None:
    fleet = a_fleet()
    rows: list[Row | str] = [
        *THREE,
        "1 2 3",
        a_line(5, (7, -3, 1)),
        a_line(6, (8, 3, 99)),
        a_line(7, (9, 0, 1), status=5),
        (10, 5, 1),
    ]
    path = a_log(tmp_path, *rows)
    workload = read_workload(path, fleet.most_processors, skip_bad=True)
    assert list(workload.skipped) == [
        f"{path}:5: expected 18 fields, got 3",
        f"{path}:6: expected a run time >= 0, or -1 for unknown, got -3",
        f"{path}:7: expected at most 2 processors, the most that the fleet could ever have, got 99",
        f"{path}:8: cancelled before it ran",
    ]
    summary = play(workload, fleet)
    assert (summary.jobs, summary.finished, summary.skipped, summary.left) == (8, 4, 4, 0)


def test_with_skip_bad_a_truncated_log_is_replayed_up_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "cut.swf.gz"
    whole = pack(make_log(jobs=200))
    path.write_bytes(whole[: len(whole) // 2])
    workload = read_workload(path, 128, skip_bad=True)
    assert 0 < len(workload.jobs) < 200
    assert len(workload.skipped) == 1
    assert workload.skipped[0].endswith("expected a whole gzip file, got one that is cut off or damaged")


def test_a_limit_also_counts_skipped_jobs(tmp_path: Path) -> None:
    path = a_log(tmp_path, THREE[0], "1 2 3", THREE[1], THREE[2])
    for limit, jobs, skipped in ((1, 1, 0), (2, 1, 1), (3, 2, 1), (9, 3, 1)):
        workload = read_workload(path, 2, limit=limit, skip_bad=True)
        assert (len(workload.jobs), len(workload.skipped)) == (jobs, skipped)


POOLS: tuple[Document, ...] = (
    a_pool(max_slots=4),
    a_pool(max_slots=2, resources={"cpus": 2}),
    an_ec2_pool(max_slots=4, idle_scale_down=30),
    {"system": "x", "max_slots": 4},
)
CLOUD: Document = {"launch": 1, "boot": 5, "terminate": 3, "interruption_rate": 20}
ROWS = st.lists(
    st.tuples(st.integers(0, 300).map(float), st.integers(0, 60).map(float), st.integers(1, 5)), min_size=1, max_size=12
)


@settings(max_examples=25 * TIMES)
@given(
    ROWS,
    st.sampled_from(POOLS),
    st.sampled_from(["fifo", "priority", "size", "dynsize"]),
    st.sampled_from(["pack", "spread"]),
    st.booleans(),
    st.integers(0, 5),
)
def test_every_job_of_any_trace_is_finished_or_skipped_and_a_second_replay_is_equal(
    tmp_path_factory: pytest.TempPathFactory,
    rows: list[tuple[float, float, int]],
    pool: Document,
    queue: str,
    profile: str,
    backfill: bool,
    seed: int,
) -> None:
    # Without backfill and with interrupted machines, the first job of the queue may wait forever.
    may_block = pool.get("provider") == "static"
    scheduler = {"queue": queue, "profile": profile, "backfill": backfill or not may_block}
    fleet = a_fleet(pool, {**CLOUD, "seed": seed}, **scheduler)
    path = a_log(tmp_path_factory.mktemp("log"), *rows)
    workload = read_workload(path, fleet.most_processors, skip_bad=True)
    summary = play(workload, fleet)
    assert summary.finished + summary.skipped == summary.jobs == len(rows)
    assert summary.left == 0
    assert 0 <= summary.utilisation <= 1
    assert summary.slowdown.mean >= 1 or not summary.finished
    assert 0 <= summary.wait.mean <= summary.turnaround.mean
    assert summary == play(workload, fleet)


def test_ended_jobs_are_forgotten_during_a_replay() -> None:
    """The memory of a replay depends on the number of concurrent jobs, not on the length of the trace."""
    jobs = [Job(number, number * 10.0, 5.0, 2, None, 1, 1, 1, 1) for number in range(1000)]
    played = TracePlay(Workload(Path("log"), tuple(jobs), ()), a_fleet())
    played.play()
    store = played.cluster.store
    assert played.sum_up().finished == 1000
    assert len(store.find_reservations(limit=1000)) < 500
    assert len(store.events) < 2000
