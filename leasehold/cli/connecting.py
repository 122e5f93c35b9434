"""How commands find the stack: by the environment variables of a stack that runs in this folder or above, unless the
command's own environment names a broker.
"""

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
    """Yield a client of the stack; from then on, ages are shown by cluster time (the time of the database).

    Raises NoStack if no stack is found, and Unavailable at once if Redis does not answer.
    """
    from leasehold.cli.output import clock
    from leasehold.client.client import Client

    with Client(timeout=timeout) as client:
        client.probe.check_redis()
        clock.now = client.now
        yield client


def adopt_stack() -> None:
    """Add the environment variables of the running stack's processes to those of this command, unless these name a
    broker already.
    """
    if os.environ.get(URL_VARIABLE):
        return
    running = find_running()
    if running is not None:
        os.environ.update(running.environment)


def load_settings() -> "Settings":
    """Return the settings, read from the environment variables of the running stack. Raises InvalidInputError if a
    setting is wrong.
    """
    adopt_stack()
    from workers.configuration import load_settings as load

    return load()


@contextmanager
def open_store() -> Iterator["Store"]:
    """Yield the database, for rows that the view in Redis does not have, and close the connections at the end. Raises
    InvalidInputError if a setting is wrong.
    """
    from scheduler.store.opening import open_store as open_

    with closing(open_(load_settings().database_url)) as store:
        yield store
