"""Settings and fixtures for all tests."""

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test asserts a time: the first text that a process draws builds a table, which takes seconds on a busy machine.
# Fixtures that generated cases of one test share are meant to be shared.
_ANY = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("leasehold", deadline=None, suppress_health_check=_ANY)
settings.load_profile("leasehold")

pytest_plugins = ["tests.balance", "tests.ci_rules", "testbed.postgresql_server", "tests.sqlite_file"]


@pytest.fixture(scope="session", autouse=True)
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep keys of reservations in this file instead of the user's own, also in processes that tests start."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    os.environ["LEASEHOLD_KEYS"] = str(path)
    return path
