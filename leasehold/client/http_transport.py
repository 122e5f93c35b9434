"""Send requests to the HTTP API and wait for their answers.

A request is sent again under its id until it is answered or its time is over: after a lost connection, after a response
that reports that no worker answered, and after a response that asks for the request to be sent again later. A worker
carries a request out once, however often it arrives.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from http.client import GATEWAY_TIMEOUT
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from leasehold.client.backoff import Backoff, lengthen
from leasehold.client.describing import describe_silence
from leasehold.client.http_channel import HttpChannel, Reply
from leasehold.client.http_clock import HttpClock
from leasehold.client.http_hints import HttpHostHints, HttpRowHints
from leasehold.client.http_reader import read_joined
from leasehold.client.ports import Joined, is_run_unknown
from leasehold.errors import Fault, NotAnswered, Refused, Unavailable, read_faults
from scheduler.protocol.http_routes import REQUEST_HEADER, make_call, quote_id

if TYPE_CHECKING:
    from leasehold.canaries import Probe
    from leasehold.client.http_notices import HttpNotices

SLICE_SECONDS: Final = 25.0
"""The most seconds for which one HTTP request waits for an answer. Proxies end requests that take longer than about a
minute.
"""
FIRST_PAUSE_SECONDS: Final = 0.05
LONGEST_PAUSE_SECONDS: Final = 2.0
LONGEST_RETRY_SECONDS: Final = 60.0


class HttpTransport:
    """Sends requests to an HTTP API. Safe for threads and after a fork."""

    def __init__(self, channel: HttpChannel) -> None:
        self._channel = channel

    @property
    def clock(self) -> HttpClock:
        """The clock with cluster time, from the headers of responses."""
        return self._channel.clock

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._channel.is_closed

    def close(self) -> None:
        """Close all connections. Calls that wait for an answer raise Unavailable."""
        self._channel.close()

    def ask(
        self, verb: str, document: Mapping[str, Any], timeout: float, *, request: str | None = None
    ) -> dict[str, Any]:
        """Send one request and return its answer. Raise NotAnswered if there is no answer within `timeout` seconds, or
        Unavailable if the server cannot be reached. `request`: the id of the request (default: a random one).
        """
        return _Question(self._channel, verb, {"request": request, **document} if request else document, timeout).ask()

    def ask_each(self, verb: str, documents: Iterable[Mapping[str, Any]], timeout: float) -> Iterator[dict[str, Any]]:
        """Send several requests, each after the answer to the one before, and yield their answers. Raise NotAnswered or
        Unavailable if one is not answered within `timeout` seconds.
        """
        # One after the other: reservations are queued in the order in which their requests arrive.
        for document in documents:
            yield self.ask(verb, document, timeout)

    def submit(self, document: Mapping[str, Any], timeout: float) -> tuple[dict[str, Any], Joined | None]:
        """Send the submission of one reservation. Return two things: (1) the answer, (2) a Joined with the row of the
        reservation after the submission. The `row` of the Joined is None if the view does not have the reservation yet.
        The second thing is None if the server did not read the row. Raise NotAnswered or Unavailable.
        """
        answer = self.ask("submit", document, timeout)
        row = answer.get("row")
        if isinstance(row, dict):
            return answer, read_joined(row)
        # The server has looked, and the view did not have the row.
        return answer, Joined(None) if "row" in answer else None

    def send_heartbeat(self, slot: str, machine: str, version: str | None, above: int, run: str | None = None) -> int:
        """Send a heartbeat of the host of this slot. `above`: the counter of the last heartbeat. The server signs and
        counts the heartbeat in place of this client, so the result is `above`, unchanged.

        Raise Refused if this principal may not send heartbeats for the slot, and Unavailable if the server does not
        answer.
        """
        body = {"machine": machine} if version is None else {"machine": machine, "version": version}
        path, more = f"/slots/{quote_id(slot)}/heartbeat", {} if run is None else {"run": run}
        reply = self._channel.call("POST", path, body=body | more)
        if more and reply.faults is not None and is_run_unknown(read_faults(reply.faults)):
            reply = self._channel.call("POST", path, body=body)
        if not reply.is_ok:
            raise self._channel.explain(reply)
        return above

    def hint_row(self, reservation: str) -> HttpRowHints:
        """Return a subscription to hints, which report that the row of this reservation has changed."""
        return HttpRowHints(self._channel, reservation)

    def hint_host(self, slot: str) -> HttpHostHints:
        """Return a subscription to hints, which report that this slot has changed."""
        return HttpHostHints(self._channel, slot)

    def collect_notices(self) -> "HttpNotices":
        """Return the receiver of notices about reservations for one event loop."""
        from leasehold.client.http_notices import HttpNotices

        return HttpNotices(self._channel)

    def collect_host_notices(self) -> None:
        """Return the receiver of the hints for hosts. Here: return None, because over HTTP there is no such receiver;
        each wait for a hint for a host needs a thread.
        """
        return

    def make_probe(self) -> "Probe":
        """Return the checks of the stack's health. Here: raise Unavailable, because the checks send canaries (test
        tasks) through the queues, which an HTTP client does not reach.
        """
        raise Unavailable(f"checks of queues and workers need the URL of the broker's Redis, not {self._channel.url}")


class _Question:
    """One request that is sent until it is answered or its time is over."""

    def __init__(self, channel: HttpChannel, verb: str, document: Mapping[str, Any], timeout: float) -> None:
        self._channel, self._verb, self._document, self._timeout = channel, verb, document, timeout
        self._request = str(document.get("request") or uuid4().hex)
        fields = {name: value for name, value in document.items() if name != "request"}
        try:
            self._call = make_call(verb, fields)
        except KeyError:
            raise Refused([Fault(0, "verb", "a verb of the HTTP API", f'"{verb}"')]) from None
        self._deadline = time.monotonic() + timeout
        self._backoff = Backoff(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        self._trouble: NotAnswered | Unavailable | None = None

    def ask(self) -> dict[str, Any]:
        """Send the request until it is answered, and return the answer. Raise NotAnswered or Unavailable when the time
        is over.
        """
        while True:
            try:
                reply = self._send(max(self._deadline - time.monotonic(), 0.0))
            except Unavailable as error:
                self._trouble = error
                if self._channel.is_closed:
                    raise
                self._rest(self._backoff.take())
                continue
            if reply.is_ok:
                answer: dict[str, Any] = reply.content if isinstance(reply.content, dict) else {}
                return answer
            if reply.faults is not None:
                return {"ok": False, "errors": reply.faults}
            self._note_problem(reply)

    def _send(self, left: float) -> Reply:
        wait = min(left, SLICE_SECONDS)
        method, path, query, body = self._call
        if self._verb == "submit" and "items" not in self._document:
            # The row comes with the answer, which saves a request.
            query = {**query, "row": "true"}
        return self._channel.call(
            method,
            path,
            {**query, "timeout": f"{wait:.3f}"},
            body,
            headers={REQUEST_HEADER: self._request},
            wait=wait,
        )

    def _note_problem(self, reply: Reply) -> None:
        """Wait until the request may be sent again after a response that reports a problem. If another attempt cannot
        help, raise the error of the response instead.
        """
        error = self._channel.explain(reply)
        if not isinstance(error, NotAnswered | Unavailable):
            raise error
        self._trouble = error
        if reply.status < 500 and reply.retry_after is None:  # noqa: PLR2004 - the classes of status codes
            raise error
        pause = 0.0 if reply.status == GATEWAY_TIMEOUT else self._backoff.take()
        if reply.retry_after is not None:
            pause = lengthen(min(reply.retry_after, LONGEST_RETRY_SECONDS))
        self._rest(pause)

    def _rest(self, seconds: float) -> None:
        left = self._deadline - time.monotonic()
        if left <= 0 or self._channel.is_closed:
            self._give_up()
        self._channel.pause(min(seconds, left))

    def _give_up(self) -> None:
        if self._channel.is_closed:
            raise Unavailable("the client was closed while it waited for an answer")
        if self._trouble is not None and not isinstance(self._trouble, NotAnswered):
            raise self._trouble
        kind = NotAnswered if self._trouble is None else type(self._trouble)
        reason = "" if self._trouble is None else self._trouble.reason
        raise kind(describe_silence(self._verb, self._document, self._timeout, reason), reason)
