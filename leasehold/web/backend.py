"""What the routes of the API and the console use: a client for each caller, the database, the feed, and the log of
changes.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, ParamSpec, TypeVar

from starlette.concurrency import run_in_threadpool

from leasehold.client.loop_client import LoopClient
from leasehold.errors import LeaseholdError, NotAnswered, Overloaded, Unavailable
from leasehold.web.caller import Caller, PrincipalReader
from leasehold.web.feed import Feed
from leasehold.web.server_sent import MOST_STREAMS, EventTail, Places
from scheduler.ports import Store, StoreUnavailableError
from scheduler.protocol.signing import format_key_line
from workers.access import LOOK_SECONDS
from workers.logs import get_logger
from workers.setting_types import reveal
from workers.settings import Settings

MOST_CLIENTS: Final = 32
"""The most clients that are kept, one for each principal and key. If there are more, the client that was not used for
the longest time is closed.
"""
WATCH_SECONDS: Final = 2.0
"""Seconds between two checks of the database while a page listens to the feed."""

P = ParamSpec("P")
R = TypeVar("R")
log = get_logger(__name__)


def may_be_carried_out(error: LeaseholdError) -> bool:
    """Return whether a worker may still carry out a change whose request ended with this error."""
    return isinstance(error, NotAnswered | Unavailable) and not isinstance(error, Overloaded)


class Backend:
    """The services that the API and the pages of one process of the console use: clients, database, feed and log.
    `client` and `run` may be called on the event loop of the process only.
    """

    def __init__(self, settings: Settings, feed: Feed, store: Store, principals: PrincipalReader) -> None:
        self.settings, self.feed, self.store = settings, feed, store
        self.streams = Places(MOST_STREAMS)
        """The places of open streams."""
        self.events = EventTail(lambda which: self.run(store.read_events, which))
        self._principals = principals
        self._clients: OrderedDict[tuple[str, str], LoopClient] = OrderedDict()
        self._closing: set[asyncio.Task[None]] = set()
        self._token_line: tuple[str | None, float] = None, float("-inf")
        """The key line (`NAME:KEY@CLUSTER`) of the settings `access`, and the monotonic time at which its file was
        read.
        """

    async def client(self, caller: Caller) -> LoopClient:
        """Return the client that signs its requests as the principal of this caller, with the principal's present key.
        A caller without a principal gets a client that does not sign; such a caller may change nothing
        (`Caller.refusal`) unless the cluster accepts unsigned requests.

        Raises Unavailable if the key cannot be read or Redis has no usable URL.
        """
        line = self._find_known_line(caller)
        if line is None and caller.principal is not None:
            # The file or the database may be slow. Meanwhile the event loop serves others.
            line = await run_in_threadpool(self._find_key_line, caller)
        name = (caller.principal or "", line or "")
        client = self._clients.get(name)
        if client is None:
            settings = self.settings
            client = self._clients[name] = LoopClient(
                settings.broker_url,
                view_url=settings.view_url,
                prefix=settings.view.prefix,
                key=line,
                limit=self.feed.unless_silent,
            )
            with suppress(Unavailable):
                # The first reading of the clock waits for Redis. Later ones use the monotonic clock.
                await self.feed.unless_silent(run_in_threadpool(client.now))
        self._clients[name] = client
        self._clients.move_to_end(name)
        while len(self._clients) > MOST_CLIENTS:
            _, oldest = self._clients.popitem(last=False)
            task = asyncio.create_task(oldest.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        return client

    async def run(self, function: Callable[P, R], /, *args: P.args, **keywords: P.kwargs) -> R:
        """Call a function that reads the database, in a thread, and return its result. Raises Unavailable if the
        database does not answer.
        """
        try:
            found = await run_in_threadpool(function, *args, **keywords)
        except StoreUnavailableError as error:
            self.feed.note_database(is_lost=True)
            raise Unavailable(str(error)) from error
        self.feed.note_database(is_lost=False)
        return found

    async def run_plain(self, function: Callable[P, R], /, *args: P.args, **keywords: P.kwargs) -> R:
        """Call a function that takes long, and return its result. It runs in a thread, so that the event loop serves
        other requests meanwhile.
        """
        return await run_in_threadpool(function, *args, **keywords)

    async def watch_database(self) -> None:
        """Check every WATCH_SECONDS whether the database answers, until this task is cancelled, so that the status of
        the feed shows it. The check is made only while a page listens to the feed, or after a use of the database
        failed, until the database answers again.
        """
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self.feed.subscriptions or self.feed.status.database_lost_since is not None:
                with suppress(Unavailable):
                    await self.run(self.store.now)

    def log_change(self, caller: Caller, verb: str, about: str, answer: object) -> None:
        """Write a line about a requested change to the log: the name of the caller, the verb, the id of the object to
        change (`about`), and the outcome. `answer`: the answer of the worker, or the error that was raised. Call this
        method on the event loop.
        """
        ok = getattr(answer, "ok", None)
        outcome = "refused" if ok is False else "done"
        if isinstance(answer, LeaseholdError):
            outcome = f"{'not known' if may_be_carried_out(answer) else 'refused'}: {answer}"
        # The line takes as long as the rest of a small request, so the response is sent first.
        asyncio.get_running_loop().call_soon(
            partial(
                log.info,
                "A change was requested over HTTP.",
                action="console.change",
                person=caller.name,
                source=caller.source,
                verb=verb,
                about=about,
                outcome=outcome,
            )
        )

    async def close(self) -> None:
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            await client.close()

    def _find_known_line(self, caller: Caller) -> str | None:
        """Return the line `NAME:KEY@CLUSTER` with which requests of this caller are signed, if this process has a copy
        that is less than LOOK_SECONDS old. Also return None for a caller without a principal.

        Return None if the copy is older. Then `_find_key_line` has to read the line from its file or from the database,
        in a thread. This method runs on the event loop, which must not wait for such a read.
        """
        if caller.source == "token":
            line, read_at = self._token_line
            return line if time.monotonic() - read_at < LOOK_SECONDS else None
        return self._find_key_line(caller) if self._principals.is_fresh else None

    def _find_key_line(self, caller: Caller) -> str | None:
        """Return the key line (`NAME:KEY@CLUSTER`) with which requests of this caller are signed. For the holder of the
        local stack's token it is the line of the settings `access`; for any other caller it has the key of the caller's
        principal in the database. Return None for a caller without a principal.
        """
        if caller.principal is None:
            return None
        access = self.settings.access
        if caller.source == "token":
            line = reveal(access.key) if access.key is not None else Path(access.key_file or "").read_text("utf-8")
            self._token_line = line, time.monotonic()
            return line
        try:
            known = self._principals.read()
        except StoreUnavailableError as error:
            raise Unavailable(str(error)) from error
        row = known.principals.get(caller.principal)
        if row is None:
            raise Unavailable(f"the principal {caller.principal} was removed")
        return format_key_line(row.name, row.key, known.state.identity)
