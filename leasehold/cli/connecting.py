"""How commands find the stack: by the environment of the running stack, unless ours names a broker."""

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
    """Yield a client of the stack; ages are then shown by cluster time.

    Raises NoStack and Unavailable, the latter at once if Redis does not answer.
    """
    from leasehold.cli.output import clock
    from leasehold.client.client import Client

    with Client(timeout=timeout) as client:
        client.probe.check_redis()
        clock.now = client.now
        yield client


def adopt_stack() -> None:
    """Add the environment of the running stack's processes to ours, unless ours names a broker already."""
    if os.environ.get(URL_VARIABLE):
        return
    running = find_running()
    if running is not None:
        os.environ.update(running.environment)


def load_settings() -> "Settings":
    """Return the settings in the environment of the running stack. Raises InvalidInputError."""
    adopt_stack()
    from workers.configuration import load_settings as load

    return load()


@contextmanager
def open_store() -> Iterator["Store"]:
    """Yield the database, for rows that the view does not have; close its connections at the end. Raises
    InvalidInputError.
    """
    from scheduler.store.opening import open_store as open_

    with closing(open_(load_settings().database_url)) as store:
        yield store
