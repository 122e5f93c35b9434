"""What the main process of an intake worker does with a request before a process of its pool gets it.

Copies of a request that was answered after the copy was sent are thrown away: they would do nothing but give the same
answer once more. So are copies of an unsigned request that runs. The main process does not verify signatures: a signed
request that runs may be a forged one, so its copies go to the pool, which gives the stored answer. While more requests
wait than can be answered in time (`policy/load_shedding.py`), some are answered "come again later", and questions whose
senders gave up are thrown away.

It keeps `<prefix>queue:taken`: the `sent_at` of the request taken last, by which clients see whether theirs waits; and
`<prefix>queue:count`: how many requests all workers have taken.
"""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any, Final

import msgspec
import redis

from leasehold.common.signing import PRINCIPAL, encode_canonically
from scheduler.model.validation import InvalidInputError
from scheduler.policy.load_shedding import QUERIES, QueueGauge, find_retry
from scheduler.ports import ForeignAddressError, Meter, ViewUnavailableError
from scheduler.view.redis_notifier import RedisNotifier
from tasks.queues import PREFIX, RESERVATIONS
from workers.access import is_signed
from workers.logs import get_logger

log = get_logger(__name__)

LOOK_SECONDS: Final = 0.25
"""How often Redis is asked how many requests wait, and told how far they were taken."""
KNOWN_SECONDS: Final = 60.0
"""For how long copies of a request are recognised after its answer: as long as the answer is kept for its sender."""
MOST_KNOWN: Final = 10_000
HANGING_SECONDS: Final = 5.0
"""A request that runs for longer is carried out by another process when a copy of it comes."""
LEASES_PATIENCE: Final = 7.0
"""Seconds after which a host asks for its leases again if its message names no patience."""
ARRIVAL: Final = "arrival"
"""Header in which the main process numbers the messages that it takes. A sender's own value is overwritten; the id of a
message is its sender's, and two messages may have the same.
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
    """What is to be known of a request that was taken from the queue. `key` is None where copies are not recognised."""

    number: str
    """Of the message in this process, see ARRIVAL."""
    verb: str
    key: bytes | None
    reply_to: str | None
    sent_at: float | None
    patience: float | None
    is_signed: bool = False
    """Whether it claims to be: the process of the pool verifies that."""


def read_arrival(message: Mapping[str, Any], body: bytes) -> Arrival:
    """From a message that passed `check_message`, which returned its decoded body, and that was numbered."""
    headers = message["headers"]
    verb = str(headers["task"]).removeprefix(f"{PREFIX}.{RESERVATIONS}.")
    document = _read_document(body)
    key = None
    if document.request is not None:
        # The same bytes from the same principal: another sender's message with this id is no copy of it.
        sender = encode_canonically(verb, str(is_signed(headers)), str(headers.get(PRINCIPAL)))
        key = sha256(sender + body).digest()
    return Arrival(
        number=str(headers[ARRIVAL]),
        verb=verb,
        key=key,
        reply_to=document.reply_to,
        sent_at=_read_number(headers.get("sent_at")),
        patience=_read_number(headers.get("patience")),
        is_signed=is_signed(headers),
    )


def _read_document(body: bytes) -> _Document:
    with suppress(msgspec.MsgspecError):
        arguments, named, _ = _BODY.decode(body)
        raw = arguments[0] if arguments else named.get("document")
        if raw is not None:
            return _DOCUMENT.decode(raw)
        return _DOCUMENT.decode(msgspec.json.encode(named))
    return _Document()


def _read_number(value: object) -> float | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None  # type: ignore[arg-type] # as was just checked


@dataclass
class _Running:
    number: str
    key: bytes | None
    since: float


class Admission:
    """See the module. For the one thread of a worker's main process. `clock`: cluster time, by which senders stamp."""

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
        """Of unsigned requests that run: since when the newest copy does."""
        self._left: _Running | None = None
        """The request that left the pool last."""
        self._answered: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        """By key: when it was answered, by either clock."""
        self._counts: Counter[tuple[str, tuple[tuple[str, str], ...]]] = Counter()
        self._taken = self._counted = 0
        self._looked_at = float("-inf")

    def admit(self, arrival: Arrival) -> bool:
        """Whether this request goes to the pool. If not, it is dealt with."""
        self._gauge.note_taken()
        if self._monotonic() - self._looked_at >= LOOK_SECONDS:
            self._look(arrival.sent_at)
        if self._is_copy(arrival):
            self._count(SKIPPED, reason="copy")
            return False
        if self._gauge.wait > self._longest and self._is_abandoned(arrival):
            self._count(SKIPPED, reason="abandoned")
            return False
        if self._shed(arrival):
            return False
        self._taken += 1
        self._running[arrival.number] = _Running(arrival.number, arrival.key, self._monotonic())
        if arrival.key is not None and not arrival.is_signed:
            self._keys[arrival.key] = self._monotonic()
        return True

    def note_left(self, number: str) -> None:
        """The request of this message left the pool, whatever became of it."""
        self._left = running = self._running.pop(number, None)
        if running is None:
            return
        now = self._monotonic()
        self._gauge.note_run(now - running.since)
        if running.key is not None:
            self._keys.pop(running.key, None)
        if self._counts and now - self._looked_at >= LOOK_SECONDS:
            self._look(None)

    def note_result(self, number: str, result: str) -> None:
        """The result of the task that left the pool last. One that was not answered is carried out again. A message
        whose signature is refused has another result than these, so what is noted as answered was verified.
        """
        left, self._left = self._left, None
        # As it stands in Celery's event: its repr.
        is_answered = result.strip("'\"").startswith(("accepted", "refused:"))
        if is_answered and left is not None and left.number == number and left.key is not None:
            self._answered[left.key] = (self._clock(), self._monotonic())

    def _is_copy(self, arrival: Arrival) -> bool:
        if arrival.key is None:
            return False
        since = self._keys.get(arrival.key)
        if since is not None:
            # A process that hangs must not keep its request from the others.
            return self._monotonic() - since < HANGING_SECONDS
        self._forget()
        answered = self._answered.get(arrival.key)
        # One that was sent after the answer: its sender has not got that, and is answered again.
        return answered is not None and arrival.sent_at is not None and arrival.sent_at <= answered[0]

    def _forget(self) -> None:
        before = self._monotonic() - KNOWN_SECONDS
        while self._answered:
            oldest = next(iter(self._answered))
            if len(self._answered) <= MOST_KNOWN and self._answered[oldest][1] > before:
                return
            del self._answered[oldest]

    def _is_abandoned(self, arrival: Arrival) -> bool:
        """Whether it is a question whose sender does not wait for the answer any more."""
        if arrival.verb not in QUERIES or arrival.sent_at is None:
            return False
        patience = LEASES_PATIENCE if arrival.patience is None and arrival.verb == "leases" else arrival.patience
        return patience is not None and self._clock() - arrival.sent_at > patience

    def _shed(self, arrival: Arrival) -> bool:
        """Answer that it should come again, if its sender understands that and the queue is too long for it."""
        wait = self._gauge.wait
        seconds = find_retry(arrival.verb, wait, self._longest)
        if seconds is None or arrival.reply_to is None or arrival.patience is None:
            return False
        try:
            self._notifier.reply(arrival.reply_to, describe_retry(seconds, wait, self._longest))
        except (ForeignAddressError, ViewUnavailableError):
            # The task refuses the address as it does at any time; without Redis nothing can be answered.
            return False
        self._count(SHED, verb=arrival.verb)
        return True

    def _count(self, name: str, **labels: str) -> None:
        self._counts[name, tuple(labels.items())] += 1

    def _look(self, sent_at: float | None) -> None:
        """See how many wait, publish how far they were taken, add up what was counted."""
        self._looked_at = self._monotonic()
        counts, self._counts = self._counts, Counter()
        for (name, labels), amount in counts.items():
            self._meter.count(name, dict(labels), amount)
        try:
            depth = self._broker.llen(RESERVATIONS)
            with self._view.pipeline(transaction=False) as pipeline:
                if sent_at is not None:
                    pipeline.set(f"{self._prefix}queue:taken", min(sent_at, self._clock()))
                pipeline.incrby(f"{self._prefix}queue:count", self._taken - self._counted)
                everywhere = int(pipeline.execute()[-1])
        except redis.RedisError as error:
            log.debug("The queue cannot be measured.", action="admission.unknown", error=str(error))
            return
        self._counted = self._taken
        self._gauge.note_sample(depth, self._taken, everywhere)


def describe_retry(seconds: float, wait: float, longest: float) -> dict[str, Any]:
    """The answer to a request that was not carried out for want of time."""
    expected, got = f"a queue that is answered within {longest:g} s", f"a queue of about {wait:.0f} s"
    errors = [{"index": 0, "path": ".", "expected": expected, "got": f"{got}: come again in {seconds:.0f} s"}]
    return {"ok": False, "retry_after": round(seconds, 3), "errors": errors}


@cache
def find_admission() -> Admission | None:
    """The admission of this process; None where its settings are not valid, which was reported at the start."""
    from scheduler.view.connection import make_redis  # noqa: PLC0415 - only in a worker
    from tasks.app import services  # noqa: PLC0415 - the app names the transport, which imports this module

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
