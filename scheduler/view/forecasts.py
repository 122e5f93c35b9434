"""The port Forecasts on Redis.

<prefix>forecasts          hash    reservation id -> its forecast as JSON; expires after KEPT_SECONDS
<prefix>forecasts:new      hash    the next one while it is written
<prefix>forecasts:summary  string  what else was published, as JSON; expires after KEPT_SECONDS
<prefix>forecasts:record   string  what the process `foresight` has to remember if it starts again
"""

from collections.abc import Iterable
from itertools import islice
from typing import Final, TypeVar, cast

import msgspec
import redis
from typing_extensions import override

from scheduler.model.forecasts import Forecast, Foreseen
from scheduler.ports.forecasts import Forecasts
from scheduler.protocol.names import DEFAULT_PREFIX, RedisNames
from scheduler.view.connection import redis_errors

KEPT_SECONDS: Final = 600
FIELDS_A_COMMAND: Final = 2000
Value = TypeVar("Value")
_ONE = msgspec.json.Decoder(Forecast)
_SUMMARY = msgspec.json.Decoder(Foreseen)


class RedisForecasts(Forecasts):
    """The port on Redis. A value that cannot be decoded counts as missing: it was written by another version."""

    def __init__(self, client: redis.Redis, prefix: str = DEFAULT_PREFIX) -> None:
        self._client, self._names = client, RedisNames(prefix)

    @override
    def publish(self, foreseen: Foreseen, record: bytes) -> None:
        key, encode = self._names.forecasts, msgspec.json.encode
        new = f"{key}:new"
        with redis_errors(), self._client.pipeline(transaction=True) as steps:
            steps.delete(new)
            left = iter(foreseen.forecasts.items())
            while part := [word for name, each in islice(left, FIELDS_A_COMMAND) for word in (name, encode(each))]:
                steps.hset(new, items=part)
            if foreseen.forecasts:
                steps.rename(new, key)
                steps.expire(key, KEPT_SECONDS)
            else:
                steps.delete(key)
            steps.set(f"{key}:summary", encode(msgspec.structs.replace(foreseen, forecasts={})), ex=KEPT_SECONDS)
            steps.set(f"{key}:record", record)
            steps.execute()

    @override
    def read(self, ids: Iterable[str]) -> dict[str, Forecast]:
        names = list(ids)
        if not names:
            return {}
        with redis_errors():
            bodies = cast("list[bytes | None]", self._client.hmget(self._names.forecasts, names))
        found: dict[str, Forecast] = {}
        for name, body in zip(names, bodies, strict=True):
            if body is not None and (forecast := _decode(_ONE, body)) is not None:
                found[name] = forecast
        return found

    @override
    def read_summary(self) -> Foreseen | None:
        with redis_errors():
            body = cast("bytes | None", self._client.get(f"{self._names.forecasts}:summary"))
        return None if body is None else _decode(_SUMMARY, body)

    @override
    def read_record(self) -> bytes | None:
        with redis_errors():
            return cast("bytes | None", self._client.get(f"{self._names.forecasts}:record"))


def _decode(decoder: msgspec.json.Decoder[Value], body: bytes) -> Value | None:
    try:
        return decoder.decode(body)
    except msgspec.DecodeError:
        return None
