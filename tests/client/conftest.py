"""What the tests of the client share. `client` is each kind of client in turn: one suite holds for both."""

from pathlib import Path

import pytest

from tests.client.intake import client as blocking_client
from tests.client.intake import either_client as client
from tests.client.intake import intake
from tests.servers import redis_client, redis_server, redis_url

__all__ = ["blocking_client", "client", "intake", "redis_client", "redis_server", "redis_url"]


@pytest.fixture(autouse=True)
def own_keys(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test has the keys of another one's reservations."""
    monkeypatch.setenv("LEASEHOLD_KEYS", str(tmp_path / "state" / "keys"))
