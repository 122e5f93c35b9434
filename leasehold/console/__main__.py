"""`python -m leasehold.console [--local]`: the console and the HTTP API, on the address of the settings.

With `--local` (which `leasehold up` passes) it starts only on an address of loopback. It warns if no caller can log in.
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial

import uvicorn

from leasehold.api.app import make_api
from leasehold.console.app import make_app
from leasehold.web.backend import Backend
from leasehold.web.caller import PrincipalReader
from leasehold.web.feed import Feed, FollowedView, GarbageKeeper
from leasehold.web.gate import Gate
from leasehold.web.http_protocol import BACKLOG, BoundedProtocol, Doors, find_most_connections
from leasehold.web.token_file import TokenFileError
from leasehold.web.ways_in import find_refusal, has_way_in
from scheduler.model.validation import InvalidInputError
from scheduler.ports import ForeignClusterError, Store
from scheduler.store.opening import open_store
from scheduler.view.connection import make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from workers.configuration import load_settings
from workers.environment import find_taken_port
from workers.logs import configure_logging, get_logger
from workers.services import find_foreign
from workers.settings import Settings

log = get_logger(__name__)

KEEP_ALIVE_SECONDS = 75
SOCKET_SECONDS = 2.0
SWITCH_SECONDS = 0.001
"""The most seconds for which a thread that computes, such as a search over all rows, keeps the event loop waiting each
time. Python's default of 5 ms would slow a page, because the event loop waits several times for one page.
"""


def make_server(settings: Settings, store: Store, keeper: GarbageKeeper | None = None) -> uvicorn.Server:
    """Return the web server of the console. `keeper`: keeps the rows of the view away from the garbage collector; None:
    nothing does. Raises TokenFileError if `console.token_file` cannot be used.
    """
    console, kept = settings.console, settings.view.tombstones
    # A lost Redis is noticed within seconds.
    client = make_redis(settings.view_url or "", socket_seconds=SOCKET_SECONDS, connect_seconds=SOCKET_SECONDS)
    cache = RedisViewCache(client, settings.view.prefix, make_view=lambda: FollowedView(kept))
    principals = PrincipalReader(store)
    feed = Feed(cache, kept, keeper=keeper)
    gate = Gate(settings, principals)
    backend = Backend(settings, feed, store, principals)
    app = make_app(backend, gate, api=make_api(backend))
    config = uvicorn.Config(
        app,
        host=console.host,
        port=console.port,
        log_config=None,
        # An address may contain the token, and the gate must see the true peer.
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=True,
        http=partial(BoundedProtocol, Doors(find_most_connections(), gate.is_trusted)),  # type: ignore[arg-type]
        backlog=BACKLOG,
        ws="none",
        lifespan="on",
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=3,
        h11_max_incomplete_event_size=64 * 1024,
    )
    return uvicorn.Server(config)


def main(arguments: Sequence[str]) -> int:
    """Serve the console until the process is stopped, and return 0. Return 1 after a message if the configuration is
    wrong, the port is taken, or Redis belongs to another cluster than the database.
    """
    try:
        settings = load_settings()
        configure_logging(settings.log.format, settings.log.level)
        if settings.broker_url is None:
            return _complain("broker.url: expected the URL of a Redis, got nothing")
        if line := find_foreign(settings):
            return _complain(line)
        if line := find_refusal(settings, local="--local" in arguments):
            return _complain(line)
        if line := find_taken_port("console.port", settings.console.host, settings.console.port):
            return _complain(line)
        with closing(open_store(settings.database_url)) as store:
            if not has_way_in(settings, store):
                log.warning(
                    "No caller can log in to the console: there is no principal (`leasehold principals add`),"
                    " console.token_file or console.user_header.",
                    action="console.no_way_in",
                )
            sys.setswitchinterval(SWITCH_SECONDS)
            make_server(settings, store, GarbageKeeper()).run()
    except InvalidInputError as error:
        return _complain(*map(str, error.faults))
    except (ForeignClusterError, TokenFileError) as error:
        return _complain(str(error))
    except SystemExit as error:
        # uvicorn ends the process if it cannot listen; it has written the reason to the log.
        return int(error.code or 0)
    return 0


def _complain(*lines: str) -> int:
    sys.stderr.writelines(f"leasehold: {line}\n" for line in lines)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
