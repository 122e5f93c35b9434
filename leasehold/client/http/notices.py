"""Notices over HTTP for all watches of one event loop. A notice reports that the row of a watched reservation, or the
slot of a host, has changed.

For each watched reservation, one request for all of them contains a mark: a text that identifies the row that was read
last. The server responds as soon as one of the rows differs from its mark, so no change is missed between two requests.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from typing_extensions import override

from leasehold.client.http.channel import HttpChannel
from leasehold.client.marks import mark_row
from leasehold.client.models import HostHint, LeaseKey
from leasehold.client.ports import Flag, Joined, Notices
from leasehold.errors import LeaseholdError
from scheduler.model.validation import is_name
from scheduler.protocol.http_routes import MOST_MARKS, quote_id

POLL_SECONDS: Final = 20.0
"""The most seconds for which one HTTP request waits for a change."""
LISTEN_SECONDS: Final = 2.0
"""The most seconds for which a new subscription to the hints of a host waits for its first hint."""
PAUSE_SECONDS: Final = 0.2
"""Seconds before the next request for hints if the server does not answer."""
TURN_SECONDS: Final = 0.2
"""The most seconds for which the server may delay its response if more than MOST_MARKS reservations are watched. Each
request then asks about a part of them, and the next parts wait for its end. So the limit is short.
"""
GATHER_SECONDS: Final = 0.02
"""Seconds for which new watches are gathered before the request is sent again with them."""


class RowNotices(Notices):
    """The notices about reservations. A task asks the server while there are watches."""

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel
        self._flags: dict[str, set[Flag]] = {}
        self._marks: dict[str, str] = {}
        """Reservation -> mark of its row that was read last."""
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[dict[str, str]] | None = None
        self._turn = 0

    @override
    def add(self, name: str, flag: Flag) -> None:
        self._flags.setdefault(name, set()).add(flag)

    @override
    async def listen(self, name: str) -> None:
        """Do nothing: no change is missed, because the server compares marks."""

    @override
    def remove(self, name: str, flag: Flag) -> None:
        flags = self._flags.get(name, set())
        flags.discard(flag)
        if not flags:
            self._flags.pop(name, None)
            self._marks.pop(name, None)

    @override
    def find_expected(self, name: str) -> Collection[str]:
        return ()

    @override
    def note(self, name: str, seen: Joined) -> None:
        if name not in self._flags or not is_name(name):
            return
        mark, known = mark_row(seen), self._marks.get(name)
        self._marks[name] = mark
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._hear())
        elif known is None and self._asking is not None:
            # The next request is sent at once and contains the new watch.
            self._asking.cancel()
        if known not in {None, mark}:
            # Another watch of this reservation has not read the new row yet.
            self._set([name])

    async def close(self) -> None:
        """End the task, and set all flags. The channel must be closed before."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._set(list(self._flags))

    async def _hear(self) -> None:
        while self._marks and not self._channel.is_closed:
            if len(self._marks) > 1:
                await asyncio.sleep(GATHER_SECONDS)
            self._asking = asyncio.get_running_loop().create_task(self._ask(*self._choose()))
            try:
                changed = await self._asking
            except asyncio.CancelledError:
                if not self._asking.cancelled():
                    self._asking.cancel()
                    raise
            except LeaseholdError:
                await self._channel.pause(PAUSE_SECONDS)
            else:
                # A watch that does not read again soon must not make the server respond at once each time.
                self._marks.update((name, mark) for name, mark in changed.items() if name in self._marks)
                self._set(changed)

    def _choose(self) -> tuple[dict[str, str], float]:
        """Choose the watched reservations that the next request asks about. Return their marks, and the seconds for
        which the request may wait. If there are more than fit into one request, each asks about the next part of them.
        """
        marks = dict(self._marks)
        if len(marks) <= MOST_MARKS:
            return marks, POLL_SECONDS
        names = [*marks, *marks][self._turn % len(marks) :][:MOST_MARKS]
        self._turn += MOST_MARKS
        return {name: marks[name] for name in names}, TURN_SECONDS

    async def _ask(self, marks: dict[str, str], seconds: float) -> dict[str, str]:
        """Return reservation -> new mark for the reservations whose row differs from its mark, at the latest after
        `seconds`.
        """
        body = {"marks": marks, "wait": seconds}
        reply = await self._channel.call("POST", "/reservations/changes", body=body, wait=seconds)
        if not reply.is_ok:
            raise self._channel.explain(reply)
        changed: dict[str, str] = reply.content["marks"]
        return changed

    def _set(self, names: Collection[str]) -> None:
        for name in names:
            for flag in self._flags.get(name, ()):
                flag.set()


class HostNotices(Notices):
    """The hints for hosts. A task for each host asks the server in long requests, so that a short wait needs no
    request.
    """

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel
        self._flags: dict[str, set[Flag]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._listening: dict[str, asyncio.Event] = {}
        self._commands: dict[str, Sequence[LeaseKey]] = {}

    @override
    def add(self, name: str, flag: Flag) -> None:
        self._flags.setdefault(name, set()).add(flag)
        if name not in self._tasks:
            self._listening[name] = asyncio.Event()
            self._tasks[name] = asyncio.get_running_loop().create_task(self._hear(name))

    @override
    async def listen(self, name: str) -> None:
        if name in self._listening:
            await self._listening[name].wait()

    @override
    def remove(self, name: str, flag: Flag) -> None:
        self._flags.get(name, set()).discard(flag)
        if not self._flags.get(name) and name in self._tasks:
            self._flags.pop(name, None)
            self._tasks.pop(name).cancel()
            self._listening.pop(name).set()
            self._commands.pop(name, None)

    @override
    def find_expected(self, name: str) -> Collection[str]:
        return ()

    @override
    def find_commands(self, name: str) -> Sequence[LeaseKey]:
        return self._commands.get(name, ())

    @override
    def note(self, name: str, seen: Joined) -> None:
        """Do nothing: these hints are about slots."""

    async def close(self) -> None:
        """End the tasks, and set all flags. The channel must be closed before."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for name, flags in self._flags.items():
            self._listening[name].set()
            for flag in flags:
                flag.set()

    async def _hear(self, name: str) -> None:
        # The first request begins the subscription at the server, which keeps hints between two requests from then on.
        # It is answered soon: a new subscription begins with a hint, because earlier ones were missed.
        seconds, is_first = LISTEN_SECONDS, True
        while not self._channel.is_closed:
            try:
                query, path = {"wait": f"{seconds:.3f}"}, f"/slots/{quote_id(name)}/hint"
                reply = await self._channel.call("GET", path, query, wait=seconds)
                if not reply.is_ok:
                    raise self._channel.explain(reply)
                hint = msgspec.convert(reply.content, HostHint)
            except msgspec.ValidationError:
                pass
            except LeaseholdError:
                await self._channel.pause(PAUSE_SECONDS)
            else:
                if hint.changed and not is_first:
                    self._commands[name] = hint.list_commands()
                    for flag in self._flags.get(name, ()):
                        flag.set()
            self._listening[name].set()
            seconds, is_first = POLL_SECONDS, False
