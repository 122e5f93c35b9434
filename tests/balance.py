"""How a run is spread over the processes of pytest-xdist (`--dist loadfile`): so that all of them end together.

xdist hands out the files with the fewest tests last, and those are ours that take longest: one process would end a
minute or more after the other. So the long ones go first. All tests that share the stack of tests/e2e are one piece:
they wait more than they compute, and one stack serves them, beside a process that computes.
"""

from collections.abc import Sequence
from typing import Any, Final

import pytest

E2E: Final = "tests/e2e"
LONG: Final = (
    E2E,
    "tests/ops/test_containers.py",
    "tests/chaos/test_chaos.py",
    "tests/cli/test_stack.py",
    "tests/ops/test_redis_acl.py",
    "tests/ops/test_installed_wheel.py",
    "tests/policy/test_plans.py",
    "tests/policy/test_suggest.py",
    "tests/quota/test_same_decisions.py",
    "tests/mutations/test_mutations.py",
    "tests/store/test_round_trip.py",
    "tests/traces/test_trace.py",
    "tests/operations/test_races.py",
    "tests/ec2/test_emulator.py",
    "tests/quota/test_properties.py",
    "tests/second_tick/test_second_tick.py",
    "tests/operations/test_killed_anywhere.py",
    "tests/policy/test_elastic_plans.py",
    "tests/ops/test_tls.py",
    "tests/store/test_contract.py",
    "tests/cli/test_holding.py",
    "tests/cli/test_hosting.py",
    "tests/cli/test_commands.py",
    "tests/store/test_postgresql.py",
    "tests/unit/test_tasks.py",
    "tests/ec2/test_fleet.py",
    "tests/traces/test_page.py",
    "tests/store/test_reading.py",
)
"""Pieces of work in the order in which they are begun; the others follow as they are collected."""


def find_piece(nodeid: str) -> str:
    """What a test is handed out with: all of tests/e2e, else all of its file."""
    file = nodeid.partition("::")[0]
    return E2E if file.startswith(f"{E2E}/") else file


def order(nodeids: Sequence[str]) -> list[str]:
    """The pieces of LONG first, in its order."""
    ranks = {piece: rank for rank, piece in enumerate(LONG)}
    return sorted(nodeids, key=lambda nodeid: ranks.get(find_piece(nodeid), len(LONG)))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a process of xdist, where the order of the collection becomes that of the work."""
    if hasattr(config, "workerinput"):
        places = {nodeid: place for place, nodeid in enumerate(order([item.nodeid for item in items]))}
        items.sort(key=lambda item: places[item.nodeid])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    """See the module; any other `--dist` is xdist's own matter."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # where xdist is switched off, nobody asks

    class Pieces(LoadFileScheduling):  # type: ignore[misc] # xdist ships no types
        def _split_scope(self, nodeid: str) -> str:
            return find_piece(nodeid)

    config.option.loadscopereorder = False
    return Pieces(config, log)
