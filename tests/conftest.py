"""Settings and fixtures for all tests."""

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.balance", "tests.ci_rules", "testbed.postgresql_server", "tests.sqlite_file"]


@pytest.fixture(scope="session", autouse=True)
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep keys of reservations in this file instead of the user's own, also in processes that tests start."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    os.environ["LEASEHOLD_KEYS"] = str(path)
    return path
