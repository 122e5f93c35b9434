"""What holds for every test."""

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.balance", "tests.ci_rules", "tests.postgresql_server", "tests.sqlite_file"]


@pytest.fixture(scope="session", autouse=True)
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keys of reservations are kept there, by the processes that the tests start, too; not in the user's own file."""
    path = tmp_path_factory.mktemp("keys") / "keys"
    os.environ["LEASEHOLD_KEYS"] = str(path)
    return path
