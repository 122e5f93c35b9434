"""Hosts with real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.work.guarded_host import GuardedHost


@pytest.fixture
def host(tmp_path: Path) -> Iterator[GuardedHost]:
    found = GuardedHost(tmp_path)
    try:
        yield found
    finally:
        found.close()
