"""Fixtures of the tests of the HTTP API."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.servers import redis_client, redis_server, redis_url
from tests.api.caller import Caller
from tests.client.intake import FakeIntake, intake
from tests.console.served import Console, serve, settings_for

__all__ = ["intake", "redis_client", "redis_server", "redis_url"]


@pytest.fixture
def console(intake: FakeIntake, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    """A real server in front of the fake intake; it sends an unanswered request again after 0.1 s."""
    monkeypatch.setattr("leasehold.client.redis.exchange.RESEND_SECONDS", 0.1)
    with serve(settings_for(intake.url, sqlite_url, tmp_path / "console-token")) as running:
        yield running


@pytest.fixture
def api(console: Console) -> Caller:
    """A caller with the token of the server."""
    return Caller(console.settings.console.port, {"Authorization": f"Bearer {console.token}"})
