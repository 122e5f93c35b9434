"""The Meter port on Redis: counters and histograms of all processes, added up in one Redis hash. Losing the hash loses
metrics only.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Final, cast

import msgspec
import redis
from typing_extensions import override

from scheduler.ports import RefusedMessage
from scheduler.ports.view import MOST_KEPT, MOST_REFUSED, REFUSED_SECONDS, Meter
from scheduler.protocol.names import DEFAULT_PREFIX
from scheduler.view.connection import Command, ask, redis_errors
from scheduler.view.metric_table import METRICS, REFUSED, find_label_values

Labels = tuple[str, ...]
"""The values of a metric's labels, in the order in which METRICS declares the labels."""
Field = bytes | bytearray | memoryview | str | int | float
"""The types that the Redis client takes as a key or a value of a hash."""
PROBED = "probed_at"
"""Name under which the hash of metrics stores, for each slot, when its machine last answered a probe."""
_REFUSED = msgspec.json.Decoder(RefusedMessage)
_FIELD = msgspec.json.Decoder(tuple[str, Labels, str])
_GATHERED: Final[ContextVar["dict[RedisMeter, Counter[str]] | None"]] = ContextVar("gathered", default=None)
"""The amounts that this thread has collected in a `gather_counts` block; None outside such a block."""


class Spread(msgspec.Struct):
    """The values observed in one histogram. `counts`: the number of values in each bucket (not cumulative); `sum`:
    their sum.
    """

    counts: list[int]
    sum: float = 0.0


class Tally(msgspec.Struct):
    """The values of all metrics as stored in Redis: counters and histograms by metric name and label values."""

    counters: dict[str, dict[Labels, float]]
    histograms: dict[str, dict[Labels, Spread]]
    probed: dict[str, float] = {}
    """Slot id -> the last time at which the slot's machine answered a probe or EC2 reported the machine."""


@contextmanager
def gather_counts() -> Iterator[None]:
    """Collect all counts and observations that this thread makes in the `with` block, and send them in one round trip
    at its end.

    They are lost if the process dies before the end, which is acceptable for metrics.
    """
    gathered: dict[RedisMeter, Counter[str]] = {}
    before = _GATHERED.set(gathered)
    try:
        yield
    finally:
        _GATHERED.reset(before)
        for meter, sums in gathered.items():
            meter.add(sums)


class RedisMeter(Meter):
    """The Meter port on Redis.

    The hash `<prefix>metrics` has a field for each number; the field's name is the JSON of [metric, label values,
    part]. The part is "" for a counter, and `sum` or the index of a bucket for a histogram. The list `<prefix>refused`
    has the kept refused messages as JSON. `<prefix>refused:<defect>` has the number of refused messages with this
    defect in the last minute, and limits how many of them are kept.
    """

    def __init__(self, client: redis.Redis, prefix: str = DEFAULT_PREFIX) -> None:
        self._client, self._key, self._refused = client, f"{prefix}metrics", f"{prefix}refused"

    @override
    def count(self, name: str, labels: Mapping[str, str], amount: float = 1) -> None:
        self._add(name, find_label_values(name, "counter", labels), {"": amount})

    @override
    def observe(self, name: str, labels: Mapping[str, str], *values: float) -> None:
        found = find_label_values(name, "histogram", labels)
        if values:
            buckets = Counter(str(bisect_left(METRICS[name].buckets, value)) for value in values)
            self._add(name, found, {**buckets, "sum": sum(values)})

    @override
    def note_probes(self, slots: Sequence[str], at: float) -> None:
        fields: dict[Field, Field] = {msgspec.json.encode((PROBED, [slot], "")).decode(): at for slot in slots}
        with suppress(redis.RedisError):
            if fields:
                self._client.hset(self._key, mapping=fields)

    @override
    def note_refused(self, refused: RefusedMessage) -> None:
        labels = find_label_values(REFUSED, "counter", {"queue": refused.queue, "defect": refused.defect})
        noted = f"{self._refused}:{refused.defect}"
        with suppress(redis.RedisError), self._client.pipeline(transaction=False) as pipeline:
            pipeline.hincrbyfloat(self._key, msgspec.json.encode((REFUSED, labels, "")).decode(), 1)
            pipeline.set(noted, 0, ex=REFUSED_SECONDS, nx=True)
            pipeline.incr(noted)
            *_, count = pipeline.execute()
            if count <= MOST_REFUSED:
                self.put_back_refused([refused])

    @override
    def take_refused(self) -> list[RefusedMessage]:
        with suppress(redis.RedisError):
            taken = cast("list[bytes] | None", self._client.lpop(self._refused, MOST_KEPT))
            return [refused for each in taken or () if (refused := _read_refused(each)) is not None]
        return []

    @override
    def put_back_refused(self, refused: Sequence[RefusedMessage]) -> None:
        if not refused:
            return
        with suppress(redis.RedisError), self._client.pipeline(transaction=False) as pipeline:
            pipeline.rpush(self._refused, *map(msgspec.json.encode, refused))
            pipeline.ltrim(self._refused, -MOST_KEPT, -1)
            pipeline.execute()

    @redis_errors()
    def read(self) -> Tally:
        """Return the values of all metrics, including declared label values that are still 0. Raises
        ViewUnavailableError if Redis does not answer.
        """
        stored = cast("dict[bytes, bytes]", self._client.hgetall(self._key))
        tally = Tally({}, {})
        for metric in METRICS.values():
            if metric.kind == "counter":
                tally.counters[metric.name] = dict.fromkeys(metric.zeros, 0.0)
            else:
                tally.histograms[metric.name] = {labels: _no_spread(metric.name) for labels in metric.zeros}
        for field, value in stored.items():
            try:
                name, labels, part, amount = read_metric(field, value)
            except (msgspec.DecodeError, ValueError):
                # One of the next ticks renames the damaged hash.
                continue
            if name == PROBED:
                tally.probed[labels[0]] = amount
            # Skip metrics of another version of this program that this one does not know.
            if name in METRICS and len(labels) == len(METRICS[name].labels):
                _enter(tally, name, labels, part, amount)
        return tally

    def add(self, sums: Mapping[str, float]) -> None:
        """Add each of these amounts (field of the hash of metrics -> amount) to its field, in one round trip."""
        commands: list[Command] = [("HINCRBYFLOAT", self._key, field, amount) for field, amount in sums.items()]
        # A lost count is acceptable: the operation that counts must not fail because of it.
        with suppress(redis.RedisError):
            try:
                ask(self._client, commands)
            except redis.ConnectionError:  # a connection of the pool fails once if Redis restarted
                ask(self._client, commands)

    def _add(self, name: str, values: list[str], parts: Mapping[str, float]) -> None:
        sums = {msgspec.json.encode((name, values, part)).decode(): amount for part, amount in parts.items()}
        gathered = _GATHERED.get()
        if gathered is None:
            self.add(sums)
        else:
            found = gathered.setdefault(self, Counter())
            for field, amount in sums.items():
                found[field] += amount  # type: ignore[assignment] # it adds floats, too


def read_metric(field: bytes, value: bytes) -> tuple[str, Labels, str, float]:
    """Decode one field of the hash of metrics. Return (metric name, label values, part, value).

    The part is the index of a bucket or `sum` for a histogram; it is "" for a counter. Raises msgspec.DecodeError or
    ValueError if the field cannot be decoded.
    """
    name, labels, part = _FIELD.decode(field)
    if part not in {"", "sum"}:
        int(part)
    return name, labels, part, float(value)


def _read_refused(text: bytes) -> RefusedMessage | None:
    with suppress(msgspec.DecodeError):
        return _REFUSED.decode(text)
    return None


def _no_spread(name: str) -> Spread:
    return Spread([0] * (len(METRICS[name].buckets) + 1))


def _enter(tally: Tally, name: str, labels: Labels, part: str, value: float) -> None:
    if METRICS[name].kind == "counter":
        tally.counters[name][labels] = value
        return
    spread = tally.histograms[name].setdefault(labels, _no_spread(name))
    if part == "sum":
        spread.sum = value
    elif int(part) < len(spread.counts):
        spread.counts[int(part)] = int(value)
