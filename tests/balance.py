"""Start the processes of pytest-xdist, and order the files of a run for them (`--dist loadfile`), so that all processes
end together.

`--numprocesses auto` starts one process more than there are logical cores. Tests of servers, processes and browsers
wait for most of their time, so a third process keeps two cores busy.

By itself xdist starts the files with the fewest tests last. If such a file takes a minute, one process ends a minute
after the other. So the pieces start in the order of their measured seconds, the longest first. A piece without a
measurement starts before all others, because it may take long. All tests that share the stack of tests/system are one
piece, because one stack serves them. Its files with stacks of their own (OWN_STACKS) are pieces like other files.

`make durations` measures every piece that it runs (`PYTEST_ARGS=...`) and writes DURATIONS.
"""

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
DURATIONS: Final = Path(__file__).with_name("durations.json")
E2E: Final = "tests/system"
OWN_STACKS: Final = frozenset(
    f"{E2E}/test_{name}.py"
    for name in (
        *("bad_day", "bulk", "host_commands", "hostile", "joining", "nothing_is_left", "plain_moto", "postgresql"),
        *("restore", "runs", "signed", "stopped_tier", "transport"),
    )
)


def find_piece(nodeid: str) -> str:
    """Return the piece of work to which a test belongs: the shared stack of tests/system, or its file."""
    file = nodeid.partition("::")[0]
    return E2E if file.startswith(f"{E2E}/") and file not in OWN_STACKS else file


def load_durations(path: Path = DURATIONS) -> dict[str, float]:
    """Return the measured seconds by piece; nothing if nothing was measured."""
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def save_durations(measured: Mapping[str, float], path: Path = DURATIONS, root: Path = ROOT) -> None:
    """Write the measured seconds of this run's pieces; other pieces keep theirs while their files exist."""
    known = {piece: seconds for piece, seconds in load_durations(path).items() if (root / piece).exists()}
    rounded = known | {piece: round(seconds, 1) for piece, seconds in measured.items()}
    path.write_text(json.dumps(rounded, indent=0, sort_keys=True) + "\n", encoding="utf-8")


def order(nodeids: Sequence[str], durations: Mapping[str, float]) -> list[str]:
    """Return the tests of unknown pieces in their order, then all others, the longest piece first."""
    return sorted(nodeids, key=lambda nodeid: -durations.get(find_piece(nodeid), inf))


class _Measuring:
    """Sums the durations of the tests of each piece."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed = set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        piece = find_piece(report.nodeid)
        self._seconds[piece] += report.duration
        if report.failed:
            self._failed.add(piece)

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the pieces whose tests passed. An interrupted run measures too little, and a test that failed may have
        ended early or waited for its limit.
        """
        if exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            save_durations({piece: each for piece, each in self._seconds.items() if piece not in self._failed})


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-durations", action="store_true", help="write the seconds by file to tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Measuring())


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests in a process of xdist, where the order of collection becomes the order of work."""
    if hasattr(config, "workerinput"):
        nodeids = order([item.nodeid for item in items], load_durations())
        places = {nodeid: place for place, nodeid in enumerate(nodeids)}
        items.sort(key=lambda item: places[item.nodeid])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the number of processes for `--numprocesses auto`. `logical` and a number in the environment mean what
    xdist documents.
    """
    if config.option.numprocesses != "auto" or "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    # macOS has no affinity.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores + 1


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """Return a scheduler that follows the order; other values of `--dist` keep xdist's own."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # imported only where xdist is in use

    class Pieces(LoadFileScheduling):  # type: ignore[misc] # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            return find_piece(nodeid)

    config.option.loadscopereorder = False
    return Pieces(config, log)
