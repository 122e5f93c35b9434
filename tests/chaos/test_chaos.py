"""A short chaos run; `make chaos` is the long one."""

from pathlib import Path

import pytest

from tests.chaos.commands.seed_run import run_command_seed
from tests.chaos.database import DATABASES, open_database
from tests.chaos.seed_run import run_seed


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", DATABASES)
def test_every_promise_is_kept_under_faults(kind: str, tmp_path: Path) -> None:
    with open_database(kind, tmp_path) as database:
        verdict = run_seed(tmp_path / "stack", database, seed=DATABASES.index(kind) + 1, count=50, seconds=6)
    assert verdict.violations == [], verdict.describe() + "\n" + "\n".join(verdict.faults)
    assert verdict.reservations == 50
    assert len(verdict.faults) > 5
    assert verdict.uses > 50
    assert min(verdict.calls[kind] for kind in ("batches by CreateFleet", "batches by RunInstances", "stops")) > 0


@pytest.mark.timeout(300)
def test_every_promise_about_commands_is_kept_under_faults_of_hosts(tmp_path: Path) -> None:
    only = ("command", "agent", "guard", "keeper", "host", "wipe", "link")
    with open_database("sqlite", tmp_path) as database:
        verdict = run_command_seed(tmp_path / "stack", database, seed=1, count=25, seconds=6, only=only)
    assert verdict.violations == [], verdict.describe() + "\n" + "\n".join(verdict.faults)
    assert verdict.reservations == 25
    assert len(verdict.faults) > 3
    assert verdict.runs >= 25
