"""The log that `bench.simulation` generates for large fleets."""

from pathlib import Path

from bench.simulation import LOAD, MEAN_RUN_SECONDS, list_jobs, play, write_files
from bench.traces import ONE_CPU_DAYS, ONE_CPU_JOBS, make_one_cpu_log
from scheduler.simulation.workload import read_workload

SLOTS, JOBS = 50, 2_000


def test_the_log_is_the_same_for_the_same_sizes() -> None:
    assert list(list_jobs(SLOTS, JOBS, 60)) == list(list_jobs(SLOTS, JOBS, 60))


def test_all_times_are_multiples_of_the_clock(tmp_path: Path) -> None:
    log, config = write_files(tmp_path, SLOTS, JOBS)
    jobs = read_workload(log, SLOTS).jobs
    assert len(jobs) == JOBS
    assert {job.submit_seconds % 60 for job in jobs} == {job.run_seconds % 60 for job in jobs} == {0}
    assert f"max_slots = {SLOTS}" in config.read_text(encoding="ascii")


def test_the_jobs_use_the_stated_share_of_the_slots(tmp_path: Path) -> None:
    jobs = read_workload(write_files(tmp_path, SLOTS, JOBS)[0], SLOTS).jobs
    work, span = sum(job.run_seconds for job in jobs), jobs[-1].submit_seconds
    assert 0.8 * LOAD <= work / span / SLOTS <= 1.2 * LOAD
    assert 0.8 <= work / JOBS / MEAN_RUN_SECONDS <= 1.2


def test_a_play_ends_all_jobs_and_reports_what_its_process_used(tmp_path: Path) -> None:
    figures = play(5, 50, 60, tmp_path)
    assert figures.finished == 50
    assert figures.peak_mib > 10
    assert figures.cpu > 0


def test_jobs_of_one_processor_come_at_the_rate_of_the_whole_log(tmp_path: Path) -> None:
    text, path = make_one_cpu_log(JOBS), tmp_path / "log.swf"
    path.write_text(text, encoding="ascii")
    jobs = read_workload(path, 1).jobs
    assert text == make_one_cpu_log(JOBS)
    assert (len(jobs), {job.processors for job in jobs}) == (JOBS, {1})
    span = ONE_CPU_DAYS * 86_400 * JOBS / ONE_CPU_JOBS
    assert 0.95 * span <= jobs[-1].submit_seconds - jobs[0].submit_seconds <= span
