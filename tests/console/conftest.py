"""Fixtures of the tests of the console."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.view import Row
from testbed.servers import open_redis, redis_client, redis_server, redis_url
from tests.console.served import Console, serve, settings_for

__all__ = ["open_redis", "redis_client", "redis_server", "redis_url"]

MakeConsole = Callable[..., Console]
"""Starts a console with sections of settings (`console={"prefix": "/x"}`) and the rows of its view."""


@pytest.fixture
def make_console(redis_url: str, sqlite_url: str, tmp_path: Path) -> Iterator[MakeConsole]:
    with ExitStack() as running:

        def make(rows: tuple[Row, ...] = (), **sections: Mapping[str, Any]) -> Console:
            settings = settings_for(redis_url, sqlite_url, tmp_path / "console-token", **sections)
            return running.enter_context(serve(settings, rows=rows))

        yield make


@pytest.fixture
def console(make_console: MakeConsole) -> Console:
    """A console with the default settings on an empty cluster."""
    return make_console()
