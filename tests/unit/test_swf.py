"""Workload logs: what is read, what is refused and with which message; the log of the examples."""

import gzip
from collections import Counter
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.make_nasa_like import make_log, pack
from scheduler.simulation.workload import Job, TraceError, read_jobs
from tests.traces.logs import a_line, write_log

EXAMPLE = Path(__file__).parents[2] / "examples" / "nasa-like.swf.gz"

HEADER = "; Version: 2.2\n; MaxProcs: 128\n; Queue: 0 interactive\n; Queue: 1 batch\n;\n; no colon here\n"
JOB = Job(
    number=7,
    submit_seconds=60,
    run_seconds=300,
    processors=4,
    requested_seconds=600,
    user=12,
    group=2,
    application=33,
    queue=1,
)


def a_row(**fields: str | float) -> str:
    """The line of that job, with other values in these fields."""
    known: dict[str, str | float] = {"asked_processors": 8, "requested": 600, "user": 12, "group": 2, "application": 33}
    return a_line(7, (60, 300, 4), **(known | fields))


ROW = a_row()


def test_a_job_line_becomes_a_job(tmp_path: Path) -> None:
    assert list(read_jobs(write_log(tmp_path, HEADER, ROW))) == [JOB]


def test_blank_lines_comments_and_odd_spacing_do_not_matter(tmp_path: Path) -> None:
    log = write_log(tmp_path, "", ROW.replace(" ", "\t "), "  ", "; a comment between", f"  {ROW}\r")
    assert list(read_jobs(log)) == [JOB, JOB]


def test_a_comment_may_hold_any_bytes(tmp_path: Path) -> None:
    assert list(read_jobs(write_log(tmp_path, "; Ören".encode("latin-1"), ROW))) == [JOB]


def test_a_gzipped_log_is_known_by_its_content_not_by_its_name(tmp_path: Path) -> None:
    log = write_log(tmp_path, HEADER, ROW)
    log.write_bytes(gzip.compress(log.read_bytes()))
    assert list(read_jobs(log)) == [JOB]
    plain = tmp_path / "plain.swf.gz"
    plain.write_text(ROW)
    assert list(read_jobs(str(plain))) == [JOB]


@pytest.mark.parametrize(
    ("allocated", "requested", "processors"),
    [
        (4, 8, 4),  # the allocated processors count
        (-1, 8, 8),  # else the requested ones
        (4, -1, 4),  # the log does not contain the requested ones
    ],
)
def test_processors_are_the_allocated_else_the_requested(
    tmp_path: Path, allocated: int, requested: int, processors: int
) -> None:
    (job,) = read_jobs(write_log(tmp_path, a_row(processors=allocated, asked_processors=requested)))
    assert job.processors == processors


@pytest.mark.parametrize(("given_", "counted"), [("0", 1), ("0.4", 1), ("1", 1), ("1.5", 1.5)])
def test_a_run_time_below_a_second_counts_as_one(tmp_path: Path, given_: str, counted: float) -> None:
    (job,) = read_jobs(write_log(tmp_path, a_row(run=given_)))
    assert job.run_seconds == counted


def test_an_unknown_requested_time_is_none(tmp_path: Path) -> None:
    (job,) = read_jobs(write_log(tmp_path, a_row(requested=-1)))
    assert job.requested_seconds is None


def read_with_skips(log: Path) -> tuple[list[Job], dict[int, str]]:
    skipped: dict[int, str] = {}
    return list(read_jobs(log, skipped.__setitem__)), skipped


def test_a_job_that_never_started_is_skipped(tmp_path: Path) -> None:
    log = write_log(
        tmp_path,
        a_row(status=5, run=-1, processors=-1, asked_processors=-1),
        ROW,
        a_row(status=5, run=0, processors=0),
        a_row(status=5),
        a_row(status=0, run=-1),
    )
    jobs, skipped = read_with_skips(log)
    assert len(jobs) == 2
    cancelled, silent = "cancelled before it ran", "never started, because its run time is -1"
    assert skipped == {1: cancelled, 3: cancelled, 5: silent}
    assert list(read_jobs(log)) == jobs


FIRST = a_row(status=2, run=120)
NEXT = a_row(status=2, submit=-1, run=100)
LAST = a_row(status=3, submit=-1, run=80)
OTHER = a_line(8, (90, 10, 1))


@pytest.mark.parametrize(
    ("rows", "skipped"),
    [
        ((ROW, FIRST, NEXT, LAST, OTHER), {2, 3, 4}),
        ((FIRST, NEXT, LAST, ROW, OTHER), {1, 2, 3}),
        ((ROW, FIRST, OTHER, NEXT, a_row(status=4, submit=-1, run=80)), {2, 4, 5}),
        # without a summary
        ((FIRST, NEXT, OTHER, LAST), {2, 4}),
        ((a_row(status=3), OTHER), set[int]()),
    ],
)
def test_a_job_with_bursts_counts_once(tmp_path: Path, rows: tuple[str, ...], skipped: set[int]) -> None:
    jobs, found = read_with_skips(write_log(tmp_path, *rows))
    first, second = sorted(jobs, key=lambda job: job.number)
    assert (first, second.number) == (JOB, 8)
    assert found == dict.fromkeys(skipped, "a part of job 7, which counts once")


def test_a_job_none_of_whose_bursts_ran_is_skipped(tmp_path: Path) -> None:
    jobs, found = read_with_skips(
        write_log(tmp_path, a_row(status=2, run=-1), a_row(status=4, submit=-1, run=-1), OTHER)
    )
    assert [job.number for job in jobs] == [8]
    assert found == dict.fromkeys((1, 2), "never started, because its run time is -1")


@pytest.mark.parametrize("rows", [(HEADER, ROW), (ROW,)])
def test_a_byte_order_mark_is_no_part_of_the_log(tmp_path: Path, rows: tuple[str, ...]) -> None:
    log = write_log(tmp_path, *rows)
    log.write_bytes(b"\xef\xbb\xbf" + log.read_bytes())
    assert list(read_jobs(log)) == [JOB]
    log.write_bytes(gzip.compress(log.read_bytes()))
    assert list(read_jobs(log)) == [JOB]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        # too short, too long
        ("1 2 3 4 5 6 7", "expected 18 fields, got 7"),
        (ROW + " 1", "expected 18 fields, got 19"),
        # no numbers
        (a_row(run="long"), 'expected a number in field 4, got "long"'),
        (a_row(user="nan"), 'expected a number in field 12, got "nan"'),
        (a_row(submit="1e999"), 'expected a number in field 2, got "1e999"'),
        (a_row(number="x" * 99), f'expected a number in field 1, got "{"x" * 40}"'),
        # no times
        (a_row(submit=-1), "expected a submit time >= 0, got -1"),
        (a_row(run=-2), "expected a run time >= 0, or -1 for unknown, got -2"),
        (a_row(requested=-60), "expected a requested time >= 0, or -1 for unknown, got -60"),
        # more time than a play has
        (a_row(submit=2e10), "expected a submit time of at most 1e+10 s, got 2e+10"),
        (a_row(run=1e300), "expected a run time of at most 1e+10 s, got 1e+300"),
        (a_row(requested=1e13), "expected a requested time of at most 1e+10 s, got 1e+13"),
        # a user that no account can be named by
        (a_row(user="9" * 200), "expected a user below 1e+15, got 1e+200"),
        # no processors
        (a_row(processors=0), "expected a whole number of processors >= 1, got 0"),
        (a_row(processors=-1, asked_processors=-1), "expected a whole number of processors >= 1, got -1"),
        (a_row(processors="2.5"), "expected a whole number of processors >= 1, got 2.5"),
        # no text
        (b"\x7fELF\x00\x01", "expected text, got binary data"),
        (ROW.encode() + b"\xff", "expected text, got binary data"),
        ("<html>", "expected 18 fields, got 1"),
    ],
)
def test_a_line_that_is_no_job_is_named(tmp_path: Path, row: str | bytes, message: str) -> None:
    log = write_log(tmp_path, "; MaxProcs: 128", ROW, row)
    with pytest.raises(TraceError) as caught:
        list(read_jobs(log))
    assert str(caught.value) == f"{log}:3: {message}"
    assert (caught.value.path, caught.value.line) == (log, 3)


def test_jobs_before_the_bad_line_are_read(tmp_path: Path) -> None:
    jobs = read_jobs(write_log(tmp_path, ROW, "nonsense"))
    assert next(jobs) == JOB
    with pytest.raises(TraceError):
        next(jobs)


@pytest.mark.parametrize("rows", [(), (HEADER,), ("", "  ")])
def test_a_log_without_jobs_is_refused(tmp_path: Path, rows: tuple[str, ...]) -> None:
    log = write_log(tmp_path, *rows)
    with pytest.raises(TraceError, match="expected at least one job, got none") as caught:
        list(read_jobs(log))
    assert caught.value.line == 0


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    absent = tmp_path / "absent.swf"
    for path, got in [(absent, "no such file or directory"), (tmp_path, "is a directory")]:
        with pytest.raises(TraceError) as caught:
            list(read_jobs(path))
        assert str(caught.value) == f"{path}: expected a readable workload log, got {got}"


@pytest.mark.parametrize("keep", [0.5, 0.99])
def test_a_gzip_file_that_is_cut_off_is_refused(tmp_path: Path, keep: float) -> None:
    packed = EXAMPLE.read_bytes()
    log = tmp_path / "cut.swf.gz"
    log.write_bytes(packed[: int(len(packed) * keep)])
    with pytest.raises(TraceError, match="expected a whole gzip file, got one that is cut off or damaged"):
        list(read_jobs(log))


def test_a_damaged_gzip_file_is_refused(tmp_path: Path) -> None:
    packed = bytearray(EXAMPLE.read_bytes())
    packed[-8:-4] = b"\x00\x00\x00\x00"  # its checksum
    log = tmp_path / "bad.swf.gz"
    log.write_bytes(bytes(packed))
    with pytest.raises(TraceError, match="damaged"):
        list(read_jobs(log))


@given(content=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_in_one_line(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    log = tmp_path_factory.mktemp("any") / "log"
    log.write_bytes(content)
    refusals: list[str] = []
    try:
        list(read_jobs(log))
    except TraceError as error:
        refusals.append(str(error))
    assert not any("\n" in refusal for refusal in refusals)


def test_the_example_is_what_its_generator_makes() -> None:
    shipped = EXAMPLE.read_bytes()
    assert gzip.decompress(shipped).decode() == make_log()
    # Packed without a name or a date; the rest of the packing depends on the zlib at hand.
    assert shipped[:10] == pack("")[:10]


def test_another_seed_makes_another_log() -> None:
    assert make_log(seed=1, jobs=50) != make_log(seed=2, jobs=50) != make_log(seed=2, jobs=51)


def test_the_example_reads_as_two_thousand_jobs_in_order() -> None:
    jobs = list(read_jobs(EXAMPLE))
    assert len(jobs) == 2_000
    assert [job.number for job in jobs] == list(range(1, 2_001))
    assert [job.submit_seconds for job in jobs] == sorted(job.submit_seconds for job in jobs)
    assert b"; MaxProcs: 128\n" in gzip.decompress(EXAMPLE.read_bytes())


def test_the_example_resembles_the_published_figures() -> None:
    jobs = list(read_jobs(EXAMPLE))
    sizes = Counter(job.processors for job in jobs)
    assert set(sizes) == {1, 2, 4, 8, 16, 32, 64, 128}
    assert sizes.most_common(1)[0][0] == 1
    hours = Counter(int(job.submit_seconds % 86_400 // 3_600) for job in jobs)
    assert sum(hours[hour] for hour in range(8, 18)) > 0.7 * len(jobs)
    runs = {size: median(job.run_seconds for job in jobs if job.processors == size) for size in sizes}
    assert runs[1] < runs[4] < runs[32] < runs[128]
    users = Counter(job.user for job in jobs)
    assert 40 <= len(users) <= 69
    assert sum(count for _, count in users.most_common(10)) > 0.5 * len(jobs)
