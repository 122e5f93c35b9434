"""The console follows the view to another Redis server, and answers while Redis does not."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from leasehold.client.redis import connection
from leasehold.console import __main__ as console_process
from scheduler.model.accounts import Account
from scheduler.view.connection import make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.processes import wait_for
from testbed.redis_pair import RedisPair
from tests.builders import a_reservation, a_slot
from tests.console.served import serve, settings_for
from workers.embedded_redis import RedisServer


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[RedisPair]:
    with RedisPair(tmp_path) as found:
        yield found


@pytest.mark.parametrize("is_linked", [True, False])
def test_the_console_follows_the_view_to_the_server_that_became_the_primary(
    pair: RedisPair, sqlite_url: str, tmp_path: Path, is_linked: bool
) -> None:
    """Its open connections lead to the old primary, which is a replica and serves reads."""
    with serve(settings_for(pair.url, sqlite_url, tmp_path / "token"), rows=(a_slot("linux-1"),)) as console:
        browser = console.entered()
        assert "linux-1" in browser.get("/fleet").text
        pair.await_link()
        pair.switch(is_linked=is_linked)
        with make_redis(pair.url) as client:
            RedisViewCache(client).rebuild([a_slot("linux-1"), a_slot("linux-2")])
        wait_for(lambda: "linux-2" in browser.get("/fleet").text, "the view of the new primary")
        assert browser.get("/api/v1/slots/linux-2").status == 200


PAGES = ["/fleet", "/reservations", "/reservations/r1", "/accounts", "/accounts/builds", "/queues", "/events", "/about"]


def test_pages_show_what_is_known_while_redis_hangs(
    redis_server: RedisServer, redis_url: str, sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time limits of connections are longer here than a browser waits, so a page that waits for Redis fails."""
    monkeypatch.setattr(connection, "SOCKET_SECONDS", 600.0)
    monkeypatch.setattr(console_process, "SOCKET_SECONDS", 600.0)
    rows = (a_slot("linux-1"), a_reservation("r1"), Account(id="builds"))
    with serve(settings_for(redis_url, sqlite_url, tmp_path / "token"), rows=rows) as console:
        browser = console.entered()
        os.kill(redis_server.pid, signal.SIGSTOP)
        try:
            answers = {path: browser.get(path) for path in PAGES}
            assert {path: answer.status for path, answer in answers.items()} == dict.fromkeys(PAGES, 200)
            assert "linux-1" in answers["/fleet"].text
            assert "builds" in answers["/accounts"].text
            assert browser.get("/api/v1/slots/linux-1").status == 503
            assert browser.get("/api/v1/status").status == 200
        finally:
            os.kill(redis_server.pid, signal.SIGCONT)
        wait_for(lambda: browser.get("/api/v1/slots/linux-1").status == 200, "Redis to answer again")
