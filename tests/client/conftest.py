"""Fixtures of the tests of the client. A test with `client` runs with the blocking and with the asyncio client, each
through Redis and through a real HTTP server.
"""

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.servers import redis_client, redis_server, redis_url
from tests.client.intake import blocking_client, http_access, intake
from tests.client.intake import client as redis_only_client
from tests.client.intake import either_client as client

__all__ = [
    "blocking_client",
    "client",
    "http_access",
    "intake",
    "redis_client",
    "redis_only_client",
    "redis_server",
    "redis_url",
]


@pytest.fixture(autouse=True)
def own_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each test has its own file of reservation keys."""
    monkeypatch.setenv("LEASEHOLD_KEYS", str(tmp_path / "state" / "keys"))


@pytest.fixture
def no_garbage_collection() -> Iterator[None]:
    """No collection of garbage during the test."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()
