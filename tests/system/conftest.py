"""One stack for all tests of this folder; the report of a failed test contains the logs of its processes."""

from collections.abc import Generator, Iterator

import pytest

from testbed.processes import wait_for
from testbed.stack import Stack, a_pool

STACK = pytest.StashKey[Stack]()

RULES = {
    "pools": {
        "linux": a_pool(),
        # One slot is always ready, so that a lease on it needs only a tick.
        "warm": a_pool(system="warm-linux", min_slots=1, max_slots=1, max_leases_per_slot=100),
    }
}


@pytest.fixture(scope="package")
def stack(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Stack]:
    """The running stack with the pools of RULES. It ends after the last test of this folder, because it uses CPU."""
    with Stack(tmp_path_factory.mktemp("stack"), RULES) as running:
        request.config.stash[STACK] = running
        wait_for(lambda: [each for each in running.slots("warm") if each.state == "ready"], "the warm slot")
        yield running


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    used = getattr(item, "funcargs", {}).get("stack")
    stack = used if isinstance(used, Stack) else item.config.stash.get(STACK, None)
    if report.failed and stack is not None:
        report.sections.append(("logs of the stack", stack.read_logs()))
        if report.when == "call":
            try:
                stack.let_go()
            except AssertionError as error:
                report.sections.append(("reservations that the failed test left", str(error)))
    return report
