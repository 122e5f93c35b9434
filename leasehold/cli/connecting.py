"""Connect a command to the stack, its database and its logs. If the environment of the command names no broker, the
command uses the environment of the stack that runs in this folder or above.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from leasehold.cli.output import NO_RULES, CommandError
from leasehold.client.discovery import URL_VARIABLE, find_running, list_folders
from leasehold.private_files import open_folder

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from scheduler.ports import AppliedRules, Store, StoredRules
    from workers.settings import Settings

_MOST_VERSION: Final = 2**62
"""The database has numbers of 64 bits."""


@contextmanager
def connect(timeout: float = 10.0) -> Iterator["Client"]:
    """Yield a client of the stack. From then on the command shows ages by cluster time (the time of the database).

    Raises NoStack if no stack is found, and Unavailable if Redis does not answer. If LEASEHOLD_BROKER__URL is the URL
    of an HTTP API, no request is sent to it here, so only the first request or read raises Unavailable.
    """
    from leasehold.cli.output import clock
    from leasehold.client.client import Client
    from leasehold.client.http.login import is_http

    with Client(timeout=timeout) as client:
        if not is_http(client.url):
            client.probe.check_redis()
        clock.now = client.now
        yield client


def adopt_stack() -> None:
    """Add the environment variables of the running stack's processes to those of this command, unless the command's own
    variables name a broker.
    """
    if os.environ.get(URL_VARIABLE):
        return
    running = find_running()
    if running is not None:
        os.environ.update(running.environment)


def load_settings() -> "Settings":
    """Return the settings from the environment and leasehold.toml, with the environment of the running stack. Raises
    InvalidInputError if a setting is wrong.
    """
    adopt_stack()
    from workers.configuration import load_settings as load

    return load()


@contextmanager
def open_store() -> Iterator["Store"]:
    """Yield the database, for data that the view in Redis does not have, and close it at the end. Raises
    InvalidInputError if a setting is wrong.
    """
    from scheduler.store.opening import open_store as open_

    with closing(open_(load_settings().database_url)) as store:
        yield store


def find_rules(store: "Store") -> "StoredRules":
    """Return the rules in force. Raises CommandError if no rules were applied yet."""
    stored = store.load_rules()
    if not stored.version:
        raise CommandError(NO_RULES)
    return stored


def find_version(store: "Store", version: int) -> "AppliedRules":
    """Return one earlier version of the rules. Raises CommandError if there is no version with this number."""
    found = store.read_rules_history(version=version) if version <= _MOST_VERSION else []
    if not found:
        raise CommandError(f"there is no version {version} of the rules: `leasehold rules history` lists them")
    return found[0]


def find_log_folder() -> Path:
    """Return the folder with the logs of the stack here or in the nearest folder above. Raises CommandError if there is
    none.
    """
    for folder in list_folders():
        with open_folder(folder) as descriptor:
            if descriptor is not None and (folder / "logs").is_dir():
                return folder / "logs"
    raise CommandError("no stack has run here or in a folder above: start one with `leasehold up`")
