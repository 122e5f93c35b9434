"""On a build server a skipped test is a failure: a server that is missing there would hide what it guards.

Locally a skip is fine, since not everybody has every server. Reasons in `ALLOWED` are fine everywhere: what they name
cannot be installed by whoever runs the tests.
"""

import os
from typing import Final

import pytest

NO_INDEX: Final = "no package index can be reached"
NO_ENGINE: Final = "no container engine with Compose and the base images"
NO_SYSTEMD: Final = "no systemd-analyze"
ONE_USER: Final = "the tests may not switch users"
ALLOWED: Final = frozenset({NO_INDEX, NO_ENGINE, NO_SYSTEMD, ONE_USER})


def find_skipped(config: pytest.Config) -> list[pytest.TestReport | pytest.CollectReport]:
    """The reports of what was skipped for a reason that is not allowed, modules that skip themselves included."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    skipped = reporter.stats.get("skipped", []) if reporter else []
    return [report for report in skipped if _find_reason(report) not in ALLOWED]


def _find_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return str(reason).removeprefix("Skipped: ")


def is_forbidden(config: pytest.Config) -> bool:
    """A skip is forbidden when the variable CI is set, to anything but nothing."""
    return bool(os.environ.get("CI")) and bool(find_skipped(config))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Turn a run that would have passed into a failed one."""
    passed = exitstatus in {pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED}
    if passed and is_forbidden(session.config):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say why the run failed."""
    if is_forbidden(config):
        count = len(find_skipped(config))
        terminalreporter.write_line(f"{count} skipped: with CI set every test must run", red=True)
