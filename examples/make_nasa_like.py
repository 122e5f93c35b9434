"""Make a workload log that resembles the NASA Ames iPSC/860 log of 1993, but contains no row of it.

``python -m examples.make_nasa_like [FILE]`` writes 2,000 made-up jobs in the Standard Workload Format; the
same seed gives the same log. The original log is available from the Parallel Workloads Archive.

Published figures (D. G. Feitelson, B. Nitzberg: "Job characteristics of a production parallel scientific
workload on the NASA Ames iPSC/860", IPPS 1995, and the archive's page of the log):

- 128 nodes; each job takes a power of two of them, 1 to 128. Sequential jobs are the most frequent size.
- 42,264 jobs in 92 days. 24,025 of them are ``pwd`` runs by system staff, which the made-up log omits; the others
  are 200 a day.
- The mean run time grows with the number of nodes. Half of the machine is in use.
- The rate of submission peaks in office hours. It is lower at weekends, and low at night, when jobs are long and
  large (batch queue).
- 69 users; a few of them submit most of the jobs.
- Two thirds of the applications run repeatedly, some very often: jobs come in series.

Where the publications give no number, the constants below are round numbers. They are chosen so that the shares by
size, the arrivals by hour and the median run times by size come near those of the whole log. The original log has
start times only, in the field for submit times; so has this one.
"""

import gzip
import io
import itertools
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SEED = 1993
JOBS = 2_000
START = 749_718_000  # Monday, 4 October 1993, midnight in California
UTC_OFFSET = -28_800
HOUR = 3_600
DAY = 24 * HOUR

# nodes: (share in %, median run time in s, spread of its logarithm)
SIZES = {
    1: (27, 24, 1.4),
    2: (10, 90, 1.7),
    4: (15, 80, 1.9),
    8: (10, 85, 1.8),
    16: (10, 95, 1.8),
    32: (20, 210, 1.8),
    64: (6, 300, 2.0),
    128: (2, 350, 2.1),
}
LONGEST_RUN = 3 * HOUR

# Arrivals by hour of the day, in parts of 1,000.
BY_HOUR = [5, 5, 5, 5, 10, 15, 20, 40, 65, 80, 95, 85, 80, 85, 85, 80, 70, 55, 45, 30, 20, 10, 5, 5]
WEEKDAYS = 5
WEEKEND = 0.3  # arrivals of a day at the weekend, as a share of those of a working day
SERIES_A_WORKDAY = 82
BATCH_HOURS = {*range(6), *range(20, 24)}
BATCH_LENGTH = 3.0  # run time of a parallel job in batch hours, as a multiple of that in other hours

USERS = 69
USERS_STEEPNESS = 0.9  # the nth user's jobs, as a share of the first user's: n to the power of minus this
JOBS_A_SERIES = 3
PAUSE = (75.0, 1.2)  # between the jobs of a series: median in s, spread of its logarithm
SAME_SPREAD = 0.35  # spread of the logarithm of the run times within a series
STAFF_USERS = 6
APPLICATIONS = 480


@dataclass(frozen=True, slots=True)
class Series:
    """Jobs of one user who runs one application again and again."""

    at: float
    user: int
    application: int
    nodes: int
    median_run: float


@dataclass(frozen=True, slots=True)
class Row:
    """One job of the log."""

    submit: int
    run: int
    nodes: int
    user: int
    application: int


def make_log(seed: int = SEED, jobs: int = JOBS) -> str:
    """Return a log of this number of jobs; the same seed gives the same text."""
    rows = make_rows(random.Random(seed), jobs)
    lines = [format_row(number, row) for number, row in enumerate(rows, start=1)]
    return "\n".join([*format_header(seed, jobs), *lines]) + "\n"


def make_rows(rng: random.Random, jobs: int) -> list[Row]:
    """Draw series of jobs, and return the first `jobs` rows in order of submission.

    Series begin in order of time, so drawing ends when the next series begins after the last of these rows.
    """
    rows: list[Row] = []
    for series in draw_series(rng):
        rows.sort(key=lambda row: row.submit)
        if len(rows) >= jobs and rows[jobs - 1].submit < series.at:
            break
        rows.extend(draw_jobs(rng, series))
    return rows[:jobs]


def draw_series(rng: random.Random) -> Iterator[Series]:
    """Yield series in the order of their beginnings, without end, at the rate of each hour."""
    for hour in itertools.count():
        day, hour_of_day = divmod(hour, 24)
        rate = SERIES_A_WORKDAY * BY_HOUR[hour_of_day] / 1_000 * (WEEKEND if day % 7 >= WEEKDAYS else 1)
        at = rng.expovariate(rate)
        while at < 1:
            yield make_series(rng, (hour + at) * HOUR)
            at += rng.expovariate(rate)


def make_series(rng: random.Random, at: float) -> Series:
    """Draw the user, application, size and run time of a series that begins at `at`; batch hours have longer jobs."""
    nodes = draw_weighted(rng, {nodes: share for nodes, (share, _, _) in SIZES.items()})
    user = draw_weighted(rng, {n: n**-USERS_STEEPNESS for n in range(1, USERS + 1)})
    _, median, spread = SIZES[nodes]
    length = BATCH_LENGTH if int(at % DAY // HOUR) in BATCH_HOURS and nodes > 1 else 1.0
    run = draw_around(rng, median * length, (spread**2 - SAME_SPREAD**2) ** 0.5)
    return Series(at, user, 1 + int(rng.random() * APPLICATIONS), nodes, run)


def draw_jobs(rng: random.Random, series: Series) -> Iterator[Row]:
    """Yield the jobs of a series, with the user's pauses between the starts."""
    at = series.at
    again = True
    while again:
        run = min(LONGEST_RUN, max(1, round(draw_around(rng, series.median_run, SAME_SPREAD))))
        yield Row(int(at), run, series.nodes, series.user, series.application)
        at += draw_around(rng, *PAUSE)
        again = rng.random() > 1 / JOBS_A_SERIES


def draw_around(rng: random.Random, median: float, spread: float) -> float:
    """Draw from the log-normal distribution with this median and this spread of its logarithm."""
    return median * rng.lognormvariate(0, spread)


def draw_weighted(rng: random.Random, weights: dict[int, float]) -> int:
    """Draw a key with a probability in proportion to its weight."""
    return rng.choices(list(weights), list(weights.values()))[0]


def format_row(number: int, row: Row) -> str:
    """Return the 18 fields of a job; -1 for those that the original log does not contain either."""
    group = 2 if row.user <= STAFF_USERS and row.user % 2 else 1
    fields = [
        number,
        row.submit,
        -1,
        row.run,
        row.nodes,
        -1,
        -1,
        -1,
        -1,
        -1,
        -1,
        row.user,
        group,
        row.application,
    ]
    return " ".join(str(field) for field in [*fields, -1, -1, -1, -1])


def format_header(seed: int, jobs: int) -> list[str]:
    """Return the header comments, which state that the log is made up."""
    return [
        "; Version: 2.2",
        "; Computer: none (a made-up log that resembles that of an Intel iPSC/860)",
        "; Installation: none",
        f"; Note: made by examples/make_nasa_like.py, seed {seed}, no row is from a real log",
        f"; MaxJobs: {jobs}",
        f"; MaxRecords: {jobs}",
        f"; UnixStartTime: {START}",
        f"; TimeZone: {UTC_OFFSET}",
        "; TimeZoneString: US/Pacific",
        "; MaxNodes: 128",
        "; MaxProcs: 128",
    ]


def pack(text: str) -> bytes:
    """Compress the text by gzip without name or date, so that the same text gives the same file."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as file:
        file.write(text.encode("ascii"))
    return buffer.getvalue()


def main() -> None:
    """Write the log to the file of the command line; default: `nasa-like.swf.gz` in the folder of this script."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("nasa-like.swf.gz")
    target.write_bytes(pack(make_log()))
    print(f"wrote {JOBS} jobs to {target}")


if __name__ == "__main__":
    main()
