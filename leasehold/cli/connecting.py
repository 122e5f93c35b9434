"""How commands find what they talk to: the running stack's surroundings are adopted where ours say nothing."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

from leasehold.client.discovery import URL_VARIABLE, find_running

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from scheduler.ports import Store
    from workers.settings import Settings


@contextmanager
def connect(timeout: float = 10.0) -> Iterator["Client"]:
    """A client of the stack. Raises NoStack, Unavailable, and Unavailable at once when Redis is not there."""
    from leasehold.cli.output import use_clock
    from leasehold.client.client import Client

    with Client(timeout=timeout) as client:
        client.probe.check_redis()
        use_clock(client.now)
        yield client


def adopt_stack() -> None:
    """Take over what the running stack tells its processes, unless we were told where the broker is ourselves."""
    if os.environ.get(URL_VARIABLE):
        return
    running = find_running()
    if running is not None:
        os.environ.update(running.environment)


def load_settings() -> "Settings":
    """The settings, with the running stack's surroundings. Raises InvalidInputError."""
    adopt_stack()
    from workers.configuration import load_settings as load

    return load()


@contextmanager
def open_store() -> Iterator["Store"]:
    """The database, to read what the view does not keep; its connections are closed at the end. Raises
    InvalidInputError.
    """
    from scheduler.store.opening import open_store as open_

    with closing(open_(load_settings().database_url)) as store:
        yield store
