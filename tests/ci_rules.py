"""A skipped test fails the run on a build server, because a missing server there would hide untested code.

On other machines a skip is allowed, since servers may be missing there. The reasons in `ALLOWED` are allowed
everywhere: they name things that the test run cannot install.
"""

import os
from typing import Final

import pytest

NO_INDEX: Final = "no package index can be reached"
NO_ENGINE: Final = "no container engine with Compose and the base images"
NO_SYSTEMD: Final = "no systemd-analyze"
NO_CHROMIUM: Final = "no Chromium with its driver"
ONE_USER: Final = "the tests may not switch users"
NO_MEMORY_CONTROLLER: Final = "no writable cgroup v2 with the controller of memory"
ALLOWED: Final = frozenset({NO_INDEX, NO_ENGINE, NO_SYSTEMD, NO_CHROMIUM, ONE_USER, NO_MEMORY_CONTROLLER})


def find_skipped(config: pytest.Config) -> list[pytest.TestReport | pytest.CollectReport]:
    """Return the reports of skips for a reason that is not allowed, including modules that skip themselves."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return [report for report in skipped if _find_reason(report) not in ALLOWED]


def _find_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(reason).removeprefix("Skipped: ")


def is_forbidden(config: pytest.Config) -> bool:
    """Return whether skips are forbidden: the variable CI is set and not empty."""
    return bool(os.environ.get("CI")) and bool(find_skipped(config))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Let a run with forbidden skips fail."""
    passed = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    if passed and is_forbidden(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print why the run failed."""
    if is_forbidden(config):
        count = len(find_skipped(config))
        terminalreporter.write_line(f"{count} skipped: with CI set every test must run", red=True)
