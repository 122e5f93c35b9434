"""Send requests to the HTTP API and wait for their answers.

A request is sent again under its id until it is answered or its time is over: after a lost connection, after a response
that reports that no worker answered, and after a response that asks for the request to be sent again later. A worker
carries a request out once, however often it arrives.
"""

import time
from collections.abc import AsyncIterator, Iterable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, NoReturn
from uuid import uuid4

from typing_extensions import override

from leasehold.client.backoff import Backoff, lengthen
from leasehold.client.describing import describe_silence
from leasehold.client.http.channel import HttpChannel, Reply
from leasehold.client.http.clock import HttpClock
from leasehold.client.http.notices import HostNotices, RowNotices
from leasehold.client.http.reader import read_joined
from leasehold.client.ports import Answered, Joined, Wire, is_run_unknown
from leasehold.errors import Fault, NotAnswered, Refused, Unavailable, read_faults
from scheduler.model.faults import show
from scheduler.model.validation import A_NAME, is_name
from scheduler.protocol.http_routes import REQUEST_HEADER, ROUTES, make_call, quote_id

if TYPE_CHECKING:
    from leasehold.canaries import Probe

SLICE_SECONDS: Final = 25.0
"""The most seconds for which one HTTP request waits for an answer. Proxies end requests that take longer than about a
minute.
"""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0
LONGEST_RETRY_SECONDS: Final = 60.0


class HttpWire(Wire):
    """Sends requests to an HTTP API."""

    def __init__(self, channel: HttpChannel) -> None:
        self.channel = channel
        self.rows = RowNotices(channel)
        self.hosts = HostNotices(channel)

    @property
    @override
    def clock(self) -> HttpClock:
        return self.channel.clock

    @property
    @override
    def is_closed(self) -> bool:
        return self.channel.is_closed

    @override
    async def close(self) -> None:
        await self.channel.close()
        await self.rows.close()
        await self.hosts.close()

    @override
    async def ask(
        self,
        verb: str,
        document: Mapping[str, Any],
        timeout: float,
        *,
        request: str | None = None,
        has_row: bool = False,
    ) -> Answered:
        given = {"request": request, **document} if request else document
        field = None if "items" in document or verb not in ROUTES else ROUTES[verb].field
        if field is not None and not is_name(name := document.get(field)):
            # No path of a URL can have it, so the server would answer about another resource.
            fault = {"index": 0, "path": field, "expected": A_NAME, "got": show(name)}
            return Answered({"ok": False, "errors": [fault]})
        answer = await _Question(self.channel, verb, given, timeout, has_row=has_row).ask()
        row = answer.get("row")
        if isinstance(row, dict):
            return Answered(answer, read_joined(row))
        # The server has looked, and the view did not have the row.
        return Answered(answer, Joined(None) if "row" in answer else None)

    @override
    async def ask_each(
        self, verb: str, documents: Iterable[Mapping[str, Any]], timeout: float
    ) -> AsyncIterator[dict[str, Any]]:
        # One after the other: reservations are queued in the order in which their requests arrive.
        for document in documents:
            yield (await self.ask(verb, document, timeout)).answer

    @override
    async def send_heartbeat(
        self, slot: str, machine: str, version: str | None, above: int, run: str | None = None
    ) -> int:
        """The server signs and counts the heartbeat in place of this client, so the result is `above`, unchanged. Raise
        Refused if this principal may not send heartbeats for the slot.
        """
        body = {"machine": machine} if version is None else {"machine": machine, "version": version}
        path, more = f"/slots/{quote_id(slot)}/heartbeat", {} if run is None else {"run": run}
        reply = await self.channel.call("POST", path, body=body | more)
        if more and reply.faults is not None and is_run_unknown(read_faults(reply.faults)):
            reply = await self.channel.call("POST", path, body=body)
        if not reply.is_ok:
            raise self.channel.explain(reply)
        return above

    @override
    def make_probe(self) -> "Probe":
        raise Unavailable(f"checks of queues and workers need the URL of the broker's Redis, not {self.channel.url}")


class _Question:
    """One request that is sent until it is answered or its time is over."""

    def __init__(
        self, channel: HttpChannel, verb: str, document: Mapping[str, Any], timeout: float, *, has_row: bool
    ) -> None:
        self._channel, self._verb, self._document, self._timeout = channel, verb, document, timeout
        self._has_row = has_row
        self._request = str(document.get("request") or uuid4().hex)
        fields = {name: value for name, value in document.items() if name != "request"}
        try:
            self._call = make_call(verb, fields)
        except KeyError:
            raise Refused([Fault(0, "verb", "a verb of the HTTP API", f'"{verb}"')]) from None
        self._deadline = time.monotonic() + timeout
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._trouble: NotAnswered | Unavailable | None = None

    async def ask(self) -> dict[str, Any]:
        """Send the request until it is answered, and return the answer. Raise NotAnswered or Unavailable when the time
        is over.
        """
        while True:
            try:
                reply = await self._send(max(self._deadline - time.monotonic(), 0.0))
            except Unavailable as error:
                self._trouble = error
                if self._channel.is_closed:
                    raise
                await self._rest(self._backoff.take())
                continue
            if reply.is_ok:
                answer: dict[str, Any] = reply.content if isinstance(reply.content, dict) else {}
                return answer
            if reply.faults is not None:
                return {"ok": False, "errors": reply.faults}
            await self._note_problem(reply)

    async def _send(self, left: float) -> Reply:
        wait = min(left, SLICE_SECONDS)
        method, path, query, body = self._call
        if self._has_row:
            # The row comes with the answer, which saves a request.
            query = {**query, "row": "true"}
        return await self._channel.call(
            method,
            path,
            {**query, "timeout": f"{wait:.3f}"},
            body,
            headers={REQUEST_HEADER: self._request},
            wait=wait,
        )

    async def _note_problem(self, reply: Reply) -> None:
        """Wait until the request may be sent again after a response that reports a problem. If another attempt cannot
        help, raise the error of the response instead.
        """
        error = self._channel.explain(reply)
        if not isinstance(error, NotAnswered | Unavailable):
            raise error
        self._trouble = error
        if reply.status < 500 and reply.retry_after is None:  # noqa: PLR2004 - the classes of status codes
            raise error
        pause = 0.0 if reply.status == HTTPStatus.GATEWAY_TIMEOUT else self._backoff.take()
        if reply.retry_after is not None:
            pause = lengthen(min(reply.retry_after, LONGEST_RETRY_SECONDS))
        await self._rest(pause)

    async def _rest(self, seconds: float) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or self._channel.is_closed:
            self._give_up()
        await self._channel.pause(min(seconds, left))

    def _give_up(self) -> NoReturn:
        if self._channel.is_closed:
            raise Unavailable("the client was closed while it waited for an answer")
        if self._trouble is not None and not isinstance(self._trouble, NotAnswered):
            raise self._trouble
        kind = NotAnswered if self._trouble is None else type(self._trouble)
        reason = "" if self._trouble is None else self._trouble.reason
        raise kind(describe_silence(self._verb, self._document, self._timeout, reason), reason)
