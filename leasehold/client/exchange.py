"""Sends requests and receives their answers. Each request is sent again, at growing intervals, until its answer
arrives.

No copy of a request is sent while an earlier copy still waits in the queue; workers publish which message they took
last. A worker that is overloaded answers that the request should be sent again later (`retry_after`).
"""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast
from uuid import uuid4

import msgspec
import redis

from leasehold.client.backoff import Backoff, lengthen, shorten
from leasehold.client.describing import describe_silence
from leasehold.errors import NotAnswered, Overloaded, Unavailable

if TYPE_CHECKING:
    from leasehold.client.transport import RequestTransport

RESEND_SECONDS: Final = 2.0
"""Seconds without an answer after which the first copy of a request is sent. The time before each further copy doubles.
"""
LONGEST_RESEND_SECONDS: Final = 15.0
LONGEST_HOLD_SECONDS: Final = 30.0
"""The most seconds for which no further copy of a request is sent because an earlier copy seems to wait in the queue.
The limit is needed because the clocks of senders may differ.
"""
LONGEST_RETRY_SECONDS: Final = 60.0
REQUESTS_IN_FLIGHT: Final = 8
"""The most requests of one call that wait for their answers at the same time."""
LONGEST_WAIT_SECONDS: Final = 0.5
"""The most seconds of one blocking read for an answer. After each read the exchange checks whether the client was
closed.
"""


class Earlier(NamedTuple):
    """A first copy of a request, which was sent before the Exchange (below) that repeats the request was made.

    `sent_at`: the sending time in the copy's header. `waited`: the longest time in seconds that the sender waited for
    the answer. `retry_after`: the pause in seconds that an overloaded worker named in its answer; None: no worker has
    answered.
    """

    sent_at: float
    waited: float
    retry_after: float | None = None


class Pending:
    """A request that has no answer yet, with the time at which its next copy is sent."""

    def __init__(self, index: int, document: dict[str, Any]) -> None:
        self.index, self.document = index, document
        self.due = 0.0
        self.sent_at: float | None = None
        """The time in the header of the newest copy of the request; None before the request is sent."""
        self.times_shed = 0
        self._backoff = Backoff(RESEND_SECONDS, LONGEST_RESEND_SECONDS)
        self._held_until = 0.0

    def note_sent(self, sent_at: float) -> None:
        """Record that the request or a copy of it was sent to the broker. `sent_at`: the time in its header."""
        now = time.monotonic()
        self.sent_at, self._held_until = sent_at, now + LONGEST_HOLD_SECONDS
        self.due = now + self._backoff.take()  # promise: request-sent-again

    def note_earlier(self, earlier: Earlier) -> None:
        """Record a copy of the request that was sent before this object was made. The copy was either not answered, or
        an overloaded worker asked for the request to be sent again later.
        """
        self.note_sent(earlier.sent_at)
        self.due = time.monotonic() + max(RESEND_SECONDS - earlier.waited, 0.0)
        if earlier.retry_after is not None:
            self.note_shed(earlier.retry_after)

    def may_be_held(self) -> bool:
        """Return whether the newest copy of the request may still wait in the queue: it was sent less than
        LONGEST_HOLD_SECONDS ago.
        """
        return self.sent_at is not None and time.monotonic() < self._held_until

    def hold(self) -> None:
        """Delay the next copy of the request, because the newest copy is still in the queue."""
        self.due = time.monotonic() + shorten(RESEND_SECONDS)

    def note_shed(self, seconds: float) -> None:
        """Record that an overloaded worker asked for the request to be sent again after `seconds`."""
        self.times_shed += 1
        self._backoff.reset()
        # No copy waits in the queue any more, so the next one is sent when it is due.
        self.sent_at = None
        self.due = time.monotonic() + lengthen(min(seconds, LONGEST_RETRY_SECONDS))


def address_request(document: Mapping[str, Any], request: str, address: str) -> dict[str, Any]:
    """Return the document of a request with its id and the address for its answer."""
    return {**document, "request": request, "reply_to": address}


def read_retry(answer: Mapping[str, Any]) -> float | None:
    """If this is the answer of an overloaded worker, return after how many seconds the request is to be sent again.
    Return None for any other answer.
    """
    seconds = answer.get("retry_after")
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    return float(cast("float", seconds)) if is_number and answer.get("ok") is False else None


def read_first_answer(replies: Sequence[Any], sent_at: float, wait: float) -> dict[str, Any] | Earlier | None:
    """Return what two Redis commands had as result: LPUSH, which sent a request, and BLPOP, which waited for its answer
    for at most `wait` seconds. `replies`: the replies of Redis to both. `sent_at`: the time in the request's header.

    The result is one of three: (1) the answer, if a worker has answered; (2) an Earlier, if no answer has come or the
    worker was overloaded: the caller passes it to an Exchange, which sends the request again; (3) None, if a reply is
    missing or is an error.
    """
    if len(replies) < 2 or any(isinstance(each, Exception) for each in replies[:2]):  # noqa: PLR2004 - see above
        return None
    if (found := replies[1]) is None:
        return Earlier(sent_at, wait)
    answer: dict[str, Any] = msgspec.json.decode(found[1])
    retry_after = read_retry(answer)
    return answer if retry_after is None else Earlier(sent_at, wait, retry_after)


class Exchange:
    """Sends several requests with one verb, at most REQUESTS_IN_FLIGHT at a time, and receives their answers.

    `timeout`: the most seconds without any answer. `earlier`: the copy of the first request that was sent before the
    Exchange was made; None: no copy was sent. `spent`: the seconds of `timeout` that have passed since then.
    """

    def __init__(
        self,
        wire: "RequestTransport",
        verb: str,
        documents: Iterable[Mapping[str, Any]],
        timeout: float,
        earlier: Earlier | None = None,
        spent: float = 0.0,
    ) -> None:
        self._wire, self._verb, self._timeout, self._earlier = wire, verb, timeout, earlier
        self._deadline = time.monotonic() + timeout - spent
        self._waiting = enumerate(documents)
        self._pending: dict[str, Pending] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._trouble: Unavailable | None = None

    def answers(self) -> Iterator[dict[str, Any]]:
        """Yield the answers in the order of the requests. Raise NotAnswered or Unavailable after `timeout` seconds
        without any answer.
        """
        index = 0
        self._fill()
        while self._pending or index in self._answers:
            if index in self._answers:
                yield self._answers.pop(index)
                index += 1
                continue
            self._send_due()
            self._receive()
            self._fill()

    def _fill(self) -> None:
        while len(self._pending) < REQUESTS_IN_FLIGHT:
            following = next(self._waiting, None)
            if following is None:
                return
            index, document = following
            request = str(document.get("request") or uuid4().hex)
            address = self._wire.reply_address(request)
            pending = Pending(index, address_request(document, request, address))
            if self._earlier is not None:
                pending.note_earlier(self._earlier)
                self._earlier = None
            self._pending[address] = pending
            self._send_due()

    def _send_due(self) -> None:
        """Send each request that is due, unless its newest copy still waits in the queue."""
        due = [pending for pending in self._pending.values() if pending.due <= time.monotonic()]
        taken = self._wire.read_taken() if any(pending.may_be_held() for pending in due) else None
        for pending in due:
            if taken is not None and pending.may_be_held() and (pending.sent_at or 0.0) > taken:
                pending.hold()
                continue
            try:
                patience = max(self._deadline - time.monotonic(), 0.0)
                sent_at = self._wire.send(self._verb, pending.document, patience)
            except Unavailable as error:
                self._note_trouble(error)
                return
            pending.note_sent(sent_at)

    def _receive(self) -> None:
        """Wait for one answer, at most until the next request must be sent again. Raise NotAnswered or Unavailable if
        the time limit has passed.
        """
        now = time.monotonic()
        if now >= self._deadline or self._wire.is_closed:
            self._give_up()
        until = min(self._deadline, *(max(each.due, now + 0.05) for each in self._pending.values()))
        try:
            wait = min(max(until - now, 0.01), LONGEST_WAIT_SECONDS)
            got = cast("list[bytes] | None", self._wire.redis.blpop(list(self._pending), timeout=wait))
        except redis.RedisError as error:
            self._note_trouble(self._wire.explain(error, "take answers"))
            return
        if got is not None:
            self._trouble = None
            self._take(got[0].decode(), msgspec.json.decode(got[1]))

    def _take(self, address: str, answer: dict[str, Any]) -> None:
        if (seconds := read_retry(answer)) is not None:
            self._pending[address].note_shed(seconds)
            return
        self._answers[self._pending.pop(address).index] = answer
        self._deadline = time.monotonic() + self._timeout

    def _note_trouble(self, error: Unavailable) -> None:
        self._trouble = error
        if time.monotonic() >= self._deadline:
            raise error
        self._wire.pause()

    def _give_up(self) -> None:
        if self._wire.is_closed:
            raise Unavailable("the client was closed while it waited for an answer")
        if self._trouble is not None:
            raise self._trouble
        first = next(iter(self._pending.values()))
        reason = _find_reason(first)
        kind = Overloaded if first.times_shed else NotAnswered
        raise kind(describe_silence(self._verb, first.document, self._timeout, reason), reason)


def _find_reason(pending: Pending) -> str:
    if pending.times_shed:
        times = "once" if pending.times_shed == 1 else f"{pending.times_shed} times"
        return f"the service is overloaded and asked {times} to come again later"
    return "messages wait in the queue `reservations` until a worker takes them"
