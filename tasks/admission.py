"""What the main process of an intake worker (a worker of the queue `reservations`) does with a request before a process
of the worker's pool gets the request.

A copy of a request is dropped if the request was answered after the copy was sent: the sender has its answer. A copy of
an unsigned request that is being carried out is dropped too. A copy of a signed request goes to the pool, because the
main process does not verify signatures and the running request may be forged; the pool returns the stored answer. While
more requests wait than can be answered in time (`policy/load_shedding.py`), some requests get the answer "come again
later", and questions (requests that only read) whose senders have given up are dropped.

The process writes two keys in Redis. `<prefix>queue:taken`: the `sent_at` of the request that was taken last, by which
a client sees whether its own request still waits. `<prefix>queue:count`: the number of requests that all workers have
taken.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, Final

import msgspec
import redis

from scheduler.model.validation import Fault, InvalidInputError
from scheduler.policy.load_shedding import QueueGauge, find_retry
from scheduler.ports import ForeignAddressError, Meter, ViewUnavailableError
from scheduler.protocol.names import RESERVATIONS, TASK_PREFIX, RedisNames, task_name
from scheduler.protocol.signing import PRINCIPAL, encode_canonically
from scheduler.protocol.verbs import QUESTIONS
from scheduler.view.connection import make_redis
from scheduler.view.redis_ports import RedisNotifier
from tasks.current import find_services
from tasks.queues import MOST_SEARCHES, SEARCHES
from workers.access import is_signed
from workers.logs import get_logger

log = get_logger(__name__)

MEASURE_SECONDS: Final = 0.25
"""The least seconds between two readings of the queue's length. Each reading also writes the keys `queue:taken` and
`queue:count` in Redis.
"""
KNOWN_SECONDS: Final = 60.0
"""Seconds after an answer for which copies of the answered request are recognised. Redis keeps the answer for the same
time.
"""
MOST_KNOWN: Final = 10_000
HANGING_SECONDS: Final = 5.0
"""A request that runs for more than this number of seconds may hang; a copy of it then goes to another process."""
SEARCH_RETRY: Final = 5.0
"""Seconds after which the sender of a search may come again if the worker holds too many."""
LEASES_PATIENCE: Final = 7.0
"""Seconds after which a host repeats its request for its leases, if the message has no `patience`."""
ARRIVAL: Final = "arrival"
"""Name of the message header with the number that a worker's main process gives to each message it takes. If the sender
has set this header, its value is replaced.

The id of a message cannot be used as the number, because senders choose the ids: two messages may have the same id.
"""
SHED: Final = "leasehold_shed_requests_total"
SKIPPED: Final = "leasehold_skipped_requests_total"


class _Document(msgspec.Struct):
    request: str | None = None
    reply_to: str | None = None


_BODY: Final = msgspec.json.Decoder(tuple[list[msgspec.Raw], dict[str, msgspec.Raw], Any])
_DOCUMENT: Final = msgspec.json.Decoder(_Document)


@dataclass(frozen=True)
class Arrival:
    """A request that a worker took from the queue `reservations`. `key`: a hash that is equal for all copies of one
    request; None if copies cannot be recognised. `patience`: seconds for which the sender waits for the answer.
    """

    number: str
    """Number that this worker's main process gave to the message."""
    verb: str
    key: bytes | None
    reply_to: str | None
    sent_at: float | None
    patience: float | None
    is_signed: bool = False
    """Whether the message has a signature, which a process of the worker's process pool verifies."""


def read_arrival(message: Mapping[str, Any], body: bytes) -> Arrival:
    """Return the `Arrival` (facts about a request taken from the queue) for a message that passed `check_message` and
    has a number. `body`: the decoded body of the message.
    """
    headers = message["headers"]
    verb = str(headers["task"]).removeprefix(f"{TASK_PREFIX}.{RESERVATIONS}.")
    document = _read_document(body)
    key = None
    if document.request is not None:
        # A copy has the same bytes and the same principal; another sender's message with this id is no copy.
        key = sha256(encode_canonically(verb, str(is_signed(headers)), str(headers.get(PRINCIPAL))) + body).digest()
    return Arrival(
        number=str(headers[ARRIVAL]),
        verb=verb,
        key=key,
        reply_to=document.reply_to,
        sent_at=_read_number(headers.get("sent_at")),
        patience=_read_number(headers.get("patience")),
        is_signed=is_signed(headers),
    )


def _is_search(arrival: Arrival) -> bool:
    return task_name(RESERVATIONS, arrival.verb) in SEARCHES


def _read_document(body: bytes) -> _Document:
    with suppress(msgspec.MsgspecError, RecursionError):
        arguments, named, _ = _BODY.decode(body)
        raw = arguments[0] if arguments else named.get("document")
        if raw is not None:
            return _DOCUMENT.decode(raw)
        return _DOCUMENT.decode(msgspec.json.encode(named))
    return _Document()


def _read_number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type] # checked in the line before


@dataclass
class _Running:
    number: str
    key: bytes | None
    since: float
    ahead: int = 0
    """Number of requests of this worker that ran when it took this request."""


class Admission:
    """Decides for each request that a worker takes whether the request goes to the worker's process pool, is dropped,
    or is answered "come again later". Used by the thread of one main process. `concurrency`: number of processes in the
    pool. `longest`: the setting `intake.longest_wait`, the wait in seconds above which queries are refused. `clock`
    returns cluster time, by which senders stamp their messages.
    """

    def __init__(
        self,
        broker: redis.Redis,
        view: redis.Redis,
        meter: Meter,
        prefix: str,
        *,
        concurrency: int,
        longest: float,
        clock: Callable[[], float],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker, self._view, self._meter, self._prefix = broker, view, meter, prefix
        self._notifier = RedisNotifier(view, lambda: None, prefix)
        self._gauge, self._longest = QueueGauge(concurrency), longest
        self._clock, self._monotonic = clock, monotonic
        self._running: dict[str, _Running] = {}
        self._keys: dict[bytes, float] = {}
        """Key of each unsigned request that runs -> monotonic time at which the newest copy of the request began to
        run.
        """
        self._searches: set[str] = set()
        """Numbers of the searches that this worker holds."""
        self._left: _Running | None = None
        """The request that left the worker's process pool last."""
        self._answered: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        """Key of an answered request -> when the request was answered, by cluster time and by the monotonic clock."""
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._taken = self._counted = 0
        self._measured_at = float("-inf")

    def admit(self, arrival: Arrival) -> bool:
        """Return whether this request goes to the worker's process pool. If not, the request has been answered "come
        again later" or dropped.
        """
        self._gauge.note_taken()
        if self._monotonic() - self._measured_at >= MEASURE_SECONDS:
            self._measure(arrival.sent_at)
        if self._is_copy(arrival):
            self._count(SKIPPED, reason="copy")
            return False
        if self._gauge.wait > self._longest and self._is_abandoned(arrival):
            self._count(SKIPPED, reason="abandoned")
            return False
        if self._shed(arrival):
            return False
        self._taken += 1
        if _is_search(arrival):
            self._searches.add(arrival.number)
        self._running[arrival.number] = _Running(arrival.number, arrival.key, self._monotonic(), len(self._running))
        if arrival.key is not None and not arrival.is_signed:
            self._keys[arrival.key] = self._monotonic()
        return True

    def answer_unreadable(self, body: bytes, faults: Sequence[Fault]) -> None:
        """Send the faults of a message that is no request to its sender, if the body names an address for the answer.
        The sender would else wait until its time is over.
        """
        address = _read_document(body).reply_to
        if address is not None:
            errors = [{"index": 0, **msgspec.to_builtins(each)} for each in faults]
            with suppress(ForeignAddressError, ViewUnavailableError):
                self._notifier.reply(address, {"ok": False, "errors": errors})

    def note_left(self, number: str) -> None:
        """Record that the request with this number left the worker's process pool, with any result."""
        self._left = running = self._running.pop(number, None)
        if running is None:
            return
        now = self._monotonic()
        if number in self._searches:
            # It waited for other searches, and not for the requests whose wait is estimated.
            self._searches.discard(number)
        else:
            self._gauge.note_run(now - running.since, running.ahead + 1)
        if running.key is not None:
            self._keys.pop(running.key, None)
        if self._counts and now - self._measured_at >= MEASURE_SECONDS:
            self._measure(None)

    def note_result(self, number: str, result: str) -> None:
        """If `result` shows that the request with this number has an answer, record that it is answered. Copies of the
        request that were sent before the answer are then dropped. `result`: the task's result as text, e.g.
        `'accepted'`. Call this method right after `note_left`: a request that was not the last to leave the process
        pool is ignored.

        A request without an answer may be carried out again, so it is not recorded. A request with a refused signature
        is not recorded either, because it may be a forged copy.
        """
        left, self._left = self._left, None
        # The result as Celery's event has it: its repr.
        is_answered = result.strip("'\"").startswith(("accepted", "refused:"))
        if is_answered and left is not None and left.number == number and left.key is not None:
            self._answered[left.key] = (self._clock(), self._monotonic())

    def _is_copy(self, arrival: Arrival) -> bool:
        if arrival.key is None:
            return False
        since = self._keys.get(arrival.key)
        if since is not None:
            # If the process hangs, a copy of its request must reach another process.
            return self._monotonic() - since < HANGING_SECONDS
        self._drop_old_answers()
        answered = self._answered.get(arrival.key)
        # A copy that was sent after the answer is carried out: its sender has not received the answer.
        return answered is not None and arrival.sent_at is not None and arrival.sent_at <= answered[0]

    def _drop_old_answers(self) -> None:
        before = self._monotonic() - KNOWN_SECONDS
        while self._answered:
            oldest = next(iter(self._answered))
            if len(self._answered) <= MOST_KNOWN and self._answered[oldest][1] > before:
                return
            del self._answered[oldest]

    def _is_abandoned(self, arrival: Arrival) -> bool:
        """Return whether the request only reads and its sender has stopped waiting for the answer."""
        if arrival.verb not in QUESTIONS or arrival.sent_at is None:
            return False
        patience = LEASES_PATIENCE if arrival.patience is None and arrival.verb == "leases" else arrival.patience
        return patience is not None and self._clock() - arrival.sent_at > patience

    def _shed(self, arrival: Arrival) -> bool:
        """Answer "come again later" and return True, if the queue is too long for the request's verb, or if it is a
        search and this worker holds MOST_SEARCHES. Otherwise, or if no answer can be sent, return False.

        The answer needs two fields of the request: how long its sender waits (`patience`), and the address
        (`reply_to`).
        """
        wait = self._gauge.wait
        seconds = find_retry(arrival.verb, wait, self._longest)
        if _is_search(arrival) and len(self._searches) >= MOST_SEARCHES:
            seconds = seconds or SEARCH_RETRY
        if seconds is None or arrival.reply_to is None or arrival.patience is None:
            return False
        try:
            error = {
                "index": 0,
                "path": ".",
                "expected": f"a queue that is answered within {self._longest:g} s",
                "got": f"a queue of about {wait:.0f} s: come again in {seconds:.0f} s",
            }
            self._notifier.reply(arrival.reply_to, {"ok": False, "retry_after": round(seconds, 3), "errors": [error]})
        except (ForeignAddressError, ViewUnavailableError):
            # The task will refuse the address. Without Redis no answer can be sent.
            return False
        self._count(SHED, verb=arrival.verb)
        return True

    def _count(self, name: str, **labels: str) -> None:
        self._counts[name, tuple(labels.items())] += 1

    def _measure(self, sent_at: float | None) -> None:
        """Exchange the numbers about the queue `reservations`. (1) Add the counts of requests that this worker did not
        admit to the metrics. (2) Write `sent_at` into the Redis key `queue:taken`, and add the number of newly admitted
        requests to `queue:count`, the sum of all workers. (3) Read the length of the queue. If Redis cannot be reached,
        the last known length stays in use.

        `sent_at`: the sending time of the request that was taken last; None: do not write `queue:taken`.
        """
        self._measured_at = self._monotonic()
        counts, self._counts = self._counts, Counter()
        for (name, labels), amount in counts.items():
            self._meter.count(name, dict(labels), amount)
        try:
            depth = self._broker.llen(RESERVATIONS)
            with self._view.pipeline(transaction=False) as pipeline:
                if sent_at is not None:
                    pipeline.set(RedisNames(self._prefix).taken, min(sent_at, self._clock()))
                pipeline.incrby(f"{self._prefix}queue:count", self._taken - self._counted)
                everywhere = int(pipeline.execute()[-1])
        except redis.RedisError as error:
            log.debug(
                "The length of the queue `reservations` cannot be read from Redis; the last known length is used.",
                action="admission.unknown",
                error=str(error),
            )
            return
        self._counted = self._taken
        self._gauge.note_sample(depth, self._taken, everywhere)


@cache
def find_admission() -> Admission | None:
    """Return the `Admission` of this process, which decides whether requests are carried out; None if the settings are
    invalid, which was reported at the start of the process.
    """
    services = find_services()
    settings = services.settings
    with suppress(InvalidInputError):
        return Admission(
            make_redis(settings.broker_url or ""),
            services.redis,
            services.meter,
            settings.view.prefix,
            concurrency=settings.celery.concurrency.reservations,
            longest=settings.intake.longest_wait,
            clock=services.clock.now,
        )
    return None
