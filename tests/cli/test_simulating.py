"""`leasehold simulate` with a workload trace, as a new user runs it."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from examples.make_nasa_like import make_log, pack
from tests.cli.conftest import Run
from tests.traces.logs import a_line, write_log

CONFIG = """
[pools.nodes]
system = "x86_64-linux"
provider = "static"
max_slots = 2
resources = { cpus = 1 }
"""
FIGURES = (
    *("jobs", "finished", "skipped", "makespan", "wait", "turnaround", "slowdown", "utilisation", "instance_hours"),
    *("cost", "launches", "preemptions", "ticks", "wall_seconds"),
)
"""Fields that the summary must have, because programs read them."""
SHOW_CURSOR = "\x1b[?25h"
ROWS = [(0, 100, 1), (0, 100, 1), (1, 200, 1), (2, 10, 1), (3, 10, 1), (4, 10, 2)]


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    """Write a fleet of two hosts and a log of six jobs."""
    (tmp_path / "fleet.toml").write_text(CONFIG)
    lines = [a_line(number, row) for number, row in enumerate(ROWS, start=1)]
    write_log(tmp_path, *lines)


def test_a_trace_ends_with_a_summary(run: Run) -> None:
    found = run("simulate", "log.swf", "--config", "fleet.toml")
    assert (found.status, found.err) == (0, "")
    rows = dict(line.strip().rsplit("  ", 1) for line in found.out.splitlines() if "  " in line.strip())
    reported = {name.strip(): value.strip() for name, value in rows.items()}
    assert (reported["jobs"], reported["finished"], reported["skipped"], reported["makespan"]) == (
        "6",
        "6",
        "0",
        "5 min",
    )
    assert reported["utilisation"] == "71.0%"


def test_the_summary_is_one_object_for_programs(run: Run) -> None:
    found = run("simulate", "log.swf", "--config", "fleet.toml", "--json")
    assert (found.status, found.err) == (0, "")
    summary = json.loads(found.out)
    assert set(FIGURES) <= set(summary)
    assert (
        set(summary["wait"]) == set(summary["turnaround"]) == set(summary["slowdown"]) == {"mean", "p50", "p95", "p99"}
    )
    assert (summary["jobs"], summary["finished"], summary["skipped"]) == (6, 6, 0)


def test_the_configuration_is_found_as_for_every_command(run: Run, tmp_path: Path) -> None:
    assert run("simulate", "log.swf").complaints == [
        "leasehold: a trace is played on a fleet: name a leasehold.toml with --config"
    ]
    (tmp_path / "leasehold.toml").write_text(CONFIG)
    assert run("simulate", "log.swf", "--json").status == 0


def test_slots_and_a_limit_are_options(run: Run) -> None:
    def makespan(*options: str) -> float:
        found = run("simulate", "log.swf", "--config", "fleet.toml", "--json", *options)
        return float(json.loads(found.out)["makespan"])

    assert makespan("--slots", "6") == 201
    assert makespan("--limit", "2") == 100


def test_combinations_are_played_side_by_side(run: Run) -> None:
    """Further keys may follow after --compare without the option, as the contract allows."""
    words = ("simulate", "log.swf", "--config", "fleet.toml", "--compare", "queue=fifo,size", "backfill=true,false")
    found = json.loads(run(*words, "--json").out)
    assert [each["settings"] for each in found["runs"]] == [
        {"queue": queue, "backfill": backfill} for queue in ("fifo", "size") for backfill in ("true", "false")
    ]
    waits = [each["wait"]["mean"] for each in found["runs"]]
    assert waits[0] > waits[2]
    table = run(*words)
    assert table.status == 0
    assert "queue=fifo" in table.out
    assert "backfill=false" in table.out
    again = run("simulate", "log.swf", "--config", "fleet.toml", "--compare", "queue=fifo,size", "--compare",
                "backfill=true,false", "--json")  # fmt: skip
    assert [each["wait"] for each in json.loads(again.out)["runs"]] == [each["wait"] for each in found["runs"]]


def test_a_share_of_each_job_may_be_elastic(run: Run, tmp_path: Path) -> None:
    """At 5 the first job of two processors gives one to the second, and both end later because of it."""
    lines = [a_line(number, (at, 10, 2)) for number, at in enumerate((0, 5), start=1)]
    write_log(tmp_path, *lines)
    comparison = ("--compare", "elastic=rigid,flexible,yielding")
    words = ("simulate", "log.swf", "--config", "fleet.toml", "--elastic-share", "0.5", *comparison)
    runs = json.loads(run(*words, "--json").out)["runs"]
    assert [each["turnaround"]["mean"] for each in runs] == [12.5, 12.5, 15]
    assert [(each["grants"], each["revocations"]) for each in runs] == [(2, 0), (2, 0), (2, 1)]
    reported = {line.split()[0]: line.split()[1:] for line in run(*words).out.splitlines() if line.strip()}
    assert (reported["grants"], reported["revocations"]) == (["2", "2", "2"], ["0", "0", "1"])


@pytest.mark.parametrize(
    ("words", "ended"),
    [
        (("log.swf",), None),
        (("log.swf", "--requested-times"), None),
        (("--requested-times", "log.swf"), None),
        (("log.swf", "--requested-times=expected"), None),
        (("log.swf", "--requested-times=limit"), 1),
        (("--requested-times", "limit", "log.swf"), 1),
    ],
)
def test_requested_times_are_expectations_or_limits(
    words: tuple[str, ...], ended: int | None, run: Run, tmp_path: Path
) -> None:
    lines = [a_line(number, row, requested=150) for number, row in enumerate(ROWS, start=1)]
    write_log(tmp_path, *lines)
    found = run("simulate", *words, "--config", "fleet.toml", "--json")
    assert (found.status, found.err) == (0, "")
    summary = json.loads(found.out)
    assert (summary["finished"], summary.get("at_limit")) == (6, ended)
    table = run("simulate", *words, "--config", "fleet.toml").out
    assert ("at limit" in table) == (ended is not None)


def test_a_setting_of_a_pool_may_be_compared_too(run: Run) -> None:
    found = run("simulate", "log.swf", "--config", "fleet.toml", "--compare", "pools.nodes.max_slots=2,3", "--json")
    assert [each["makespan"] for each in json.loads(found.out)["runs"]] == [310, 201]


def test_a_picture_is_drawn(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("simulate", "log.swf", "--config", "fleet.toml", "--compare", "queue=fifo,size", "--plot")
    assert run(*words, "queues.png").status == 0
    assert (tmp_path / "queues.png").read_bytes().startswith(b"\x89PNG")
    assert run(*words, "nowhere/queues.png").complaints == ["leasehold: --plot: there is no folder nowhere"]
    assert run(*words, "queues.xyz").status == 1


def test_without_matplotlib_one_line_names_the_extra(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    found = run("simulate", "log.swf", "--config", "fleet.toml", "--plot", "queues.png")
    assert found.complaints == ["leasehold: --plot needs matplotlib: pip install 'leasehold[server,plot]'"]


@pytest.mark.parametrize(
    ("lines", "complaint"),
    [
        (["1 2 3"], "log.swf:1: expected 18 fields, got 3"),
        ([a_line(1, (0, 10, 1)), a_line(2, (-5, 10, 1))], "log.swf:2: expected a submit time >= 0, got -5"),
        ([a_line(1, (0, -2, 1))], "log.swf:1: expected a run time >= 0, or -1 for unknown, got -2"),
        (
            [a_line(1, (0, 10, 3))],
            "log.swf:1: expected at most 2 processors, the most that the fleet could ever have, got 3",
        ),
        ([a_line(1, (0, 10, 0))], "log.swf:1: expected a whole number of processors >= 1, got 0"),
        ([], "log.swf: expected at least one job, got none"),
    ],
)
def test_a_broken_trace_is_one_line_that_names_the_place(
    lines: list[str], complaint: str, run: Run, tmp_path: Path
) -> None:
    write_log(tmp_path, *lines)
    found = run("simulate", "log.swf", "--config", "fleet.toml", "--json")
    assert (found.status, found.out, found.complaints) == (2, "", [f"leasehold: {complaint}"])


def test_a_truncated_log_is_reported_and_can_be_skipped(run: Run, tmp_path: Path) -> None:
    whole = pack(make_log(jobs=60))
    (tmp_path / "cut.swf.gz").write_bytes(whole[: len(whole) - 200])
    words = ("simulate", "cut.swf.gz", "--config", "fleet.toml", "--slots", "128")
    found = run(*words)
    assert found.status == 2
    assert len(found.complaints) == 1
    assert "expected a whole gzip file, got one that is cut off or damaged" in found.err
    summary = json.loads(run(*words, "--skip-bad", "--json").out)
    assert (summary["finished"] + summary["skipped"], summary["skipped"]) == (summary["jobs"], 1)


def test_skipped_lines_are_printed_and_counted(run: Run, tmp_path: Path) -> None:
    lines = [*("1 2 3" for _ in range(7)), a_line(8, (0, 10, 1))]
    write_log(tmp_path, *lines)
    found = run("simulate", "log.swf", "--config", "fleet.toml", "--skip-bad")
    assert found.out.splitlines()[:2] == [f"skipped: log.swf:{line}: expected 18 fields, got 3" for line in (1, 2)]
    assert "skipped: 2 more" in found.out
    summary = json.loads(run("simulate", "log.swf", "--config", "fleet.toml", "--skip-bad", "--json").out)
    assert (summary["jobs"], summary["finished"], summary["skipped"]) == (8, 1, 7)


def test_a_play_that_never_ends_is_named(run: Run, tmp_path: Path) -> None:
    """The only host is used up and stays empty."""
    (tmp_path / "fleet.toml").write_text(CONFIG + "max_uses = 1\n")
    found = run("simulate", "log.swf", "--config", "fleet.toml", "--compare", "queue=size,fifo")
    assert (found.status, found.out, len(found.complaints)) == (2, "", 1)
    assert "queue=size: config: expected a fleet that serves every job of the trace, got" in found.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("--compare", "queue"), '--compare: expected KEY=VALUE,VALUE, got "queue"'),
        (("--compare", "queue="), '--compare: expected KEY=VALUE,VALUE, got "queue="'),
        (
            ("--compare", "queue=fifo,sice"),
            '--compare queue: expected one of fifo, priority, size, dynsize, quota (did you mean "size"?), got "sice"',
        ),
        (
            ("--compare", "que=fifo"),
            '--compare: expected a key of [scheduler] (did you mean "queue"?), or a path like pools.NAME.KEY,',
        ),
        (("--compare", "queue=fifo", "queue=size"), '--compare: expected each key once, got "queue"'),
        (("--compare", "pools.lab.max_slots=3"), "--compare pools.lab.max_slots: expected "),
        (("--compare", "share_cores=true,false"), "--compare: expected no share_cores, which is off in traces"),
        (("queue=fifo",), "expected further arguments only after --compare, got queue=fifo"),
        (("--elastic-share", "2"), "Invalid value for '--elastic-share'"),
        (("--requested-times=no",), "--requested-times: expected one of expected, limit, got 'no'"),
        (("--slots", "0"), "Invalid value for '--slots'"),
        (
            ("--slots", "6", "--compare", "pools.nodes.max_slots=2,4"),
            "--slots: expected no comparison of pools.nodes.max_slots, which it replaces",
        ),
        (("--system", "arm"), '--system: expected one of: x86_64-linux, got "arm"'),
    ],
)  # fmt: skip
def test_wrong_options_are_one_line_and_nothing_is_played(words: tuple[str, ...], complaint: str, run: Run) -> None:
    found = run("simulate", "log.swf", "--config", "fleet.toml", *words)
    assert (found.status, found.out, len(found.complaints)) == (2, "", 1)
    assert complaint in found.err


def test_without_a_file_one_line_names_the_argument(run: Run) -> None:
    found = run("simulate")
    assert (found.status, found.out, len(found.complaints)) == (2, "", 1)
    assert "FILE" in found.err


def test_options_of_a_trace_are_refused_for_a_scenario(run: Run, tmp_path: Path) -> None:
    (tmp_path / "one.json").write_text('{"timeline": []}')
    for option, words in (("--slots", ["--slots", "3"]), ("--requested-times", ["--requested-times"])):
        found = run("simulate", "one.json", *words)
        assert found.status == 2
        assert found.complaints == [f"leasehold: {option}: expected a trace (.swf or .swf.gz), got one.json"]


def test_a_file_of_any_name_is_a_trace_where_a_fleet_is_named(run: Run, tmp_path: Path) -> None:
    (tmp_path / "log.swf").rename(tmp_path / "workload")
    assert json.loads(run("simulate", "workload", "--config", "fleet.toml", "--json").out)["finished"] == 6


@pytest.fixture
def process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Yield a long simulation with a terminal as its standard error; end it after the test."""
    (tmp_path / "long.swf").write_text(make_log(jobs=4_000))
    ours, theirs = pty.openpty()
    words = ("simulate", "long.swf", "--config", "fleet.toml", "--slots", "128", "--compare", "queue=fifo,size")
    # On a terminal that cannot move its cursor no bar is shown, and on a narrow one the message is wrapped.
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "200"}
    started = subprocess.Popen(
        [sys.executable, "-m", "leasehold.cli", *words],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=False,
    )
    os.close(theirs)
    yield started, ours
    started.kill()
    started.communicate()
    os.close(ours)


def test_ctrl_c_prints_the_progress_in_one_line(process: tuple[subprocess.Popen[bytes], int]) -> None:
    """On a terminal a bar shows the present play and the time left."""
    started, terminal = process
    shown = _read_until(terminal, b" 1%")
    assert b"queue=fifo" in shown
    started.send_signal(signal.SIGINT)
    rest = _read_until(terminal, b"")
    assert started.wait(40) == 130
    last = rest.decode().splitlines()[-1].removeprefix(SHOW_CURSOR)
    assert last.startswith("leasehold: interrupted: ")
    assert "of 4000 jobs were over after" in last
    assert last.endswith("run 1 of 2 (queue=fifo)")


def _read_until(terminal: int, mark: bytes) -> bytes:
    """Return the output of the terminal up to this mark; b"" reads to the end."""
    shown = b""
    # Linux reports the end of a terminal as an error.
    with suppress(OSError):
        while not mark or mark not in shown:
            shown += os.read(terminal, 65536)
    return shown
