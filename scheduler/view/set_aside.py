"""Renames Redis keys with a wrong type or unreadable contents, so that the next write creates them again.

Every command on a key of a wrong type fails, also after a restart of all processes, so no tick would succeed. The
renamed key is kept as `<prefix>set-aside:<key>` for a week; a key that is renamed again replaces the kept one.

    <prefix>set-aside                     list  a JSON record of each renamed key, until the event about it is committed
    <prefix>set-aside:<key>               any   the renamed key
    <prefix>set-aside:unacked:contents    hash  delivery tag -> kombu's entry of a message that kombu cannot read
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, Literal, cast

import msgspec
import redis

from scheduler.model.view import ROW_TYPES, Kind
from scheduler.ports import SetAside
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.view.codec import decode_row
from scheduler.view.connection import load_script
from scheduler.view.redis_meter import read_metric

KeyType = Literal["string", "list", "hash", "zset", "stream", "lock", "unreadable"]
"""The type that a Redis key should have. `lock`: a string that expires. `unreadable`: the caller has found that the
contents of the key are unreadable, whatever its type.
"""


def _read_row(kind: Kind, _: bytes, body: bytes) -> object:
    return decode_row(kind, body)


KEPT_SECONDS: Final = 7 * 86400
MOST_RECORDS: Final = 100
VIEW_TYPES: Final[Mapping[str, KeyType]] = {
    "leader": "lock",
    "again": "string",
    "kick": "string",
    "clock": "string",
    "heartbeats:since": "string",
    "forecasts": "hash",
    "forecasts:new": "hash",
    "forecasts:summary": "string",
    "forecasts:record": "string",
    "metrics": "hash",
    "history": "hash",
    "refused": "list",
    "queue:taken": "string",
    "queue:count": "string",
    "view:generation": "string",
    "view:building": "string",
    "view:sequence": "string",
    "view:deltas": "stream",
    "view:gone": "hash",
    "view:leaving": "zset",
    "view:slots": "hash",
    "view:reservations": "hash",
    "view:holds": "hash",
    "view:accounts": "hash",
    "view:run_times": "hash",
    "view:report": "string",
    "view:waits": "hash",
}
"""The Redis keys (without the prefix) whose type every tick checks -> the type that each should have."""
READERS: Final[Mapping[str, Callable[[bytes, bytes], object]]] = {
    **{f"view:{kind}": partial(_read_row, kind) for kind in ROW_TYPES},
    "view:gone": lambda _, version: int(version),
    "metrics": read_metric,
}
"""Redis key of a hash (without the prefix) -> the function that decodes one of its fields. The function raises
msgspec.DecodeError or ValueError if the field is unreadable.
"""
FIELDS_A_LOOK: Final = 20
_PRIORITIES: Final = ("", "\x06\x163", "\x06\x166", "\x06\x169")
UNACKED: Final = "unacked"
BROKER_TYPES: Final[Mapping[str, KeyType]] = {
    **{f"{queue}{priority}": "list" for queue in QUEUE_NAMES for priority in _PRIORITIES},
    UNACKED: "hash",
    "unacked_index": "zset",
    "unacked_mutex": "string",
}
"""Redis key of kombu (the library with which Celery sends messages) -> the type that this key should have. Workers
check the types of these keys. The keys have no prefix.
"""


def set_aside(client: redis.Redis, prefix: str, types: Mapping[str, KeyType]) -> list[SetAside]:
    """Rename each Redis key in `types` (key -> the type that the key should have) that has another type, or contents
    that make every write fail. Return a record for each renamed key. Raises redis.RedisError if Redis cannot be
    reached.
    """
    keys = list(types)
    names = [f"{prefix}set-aside", *keys, *(f"{prefix}set-aside:{key}" for key in keys)]
    script = load_script(client, "set_aside")
    found = cast("list[bytes]", script(names, [KEPT_SECONDS, MOST_RECORDS, *types.values()], client))
    return [SetAside(key.decode(), kind.decode()) for key, kind in zip(found[::2], found[1::2], strict=True)]


def set_aside_note(client: redis.Redis, prefix: str, tag: str) -> None:
    """Move kombu's entry of the unacknowledged message with the delivery tag `tag` from the hash `unacked` to a hash
    that is kept for a week. Raises redis.RedisError if Redis cannot be reached.
    """
    kept = f"{prefix}set-aside:unacked:contents"
    set_aside(client, prefix, {kept: "hash"})
    script = load_script(client, "set_aside_note")
    script([f"{prefix}set-aside", UNACKED, "unacked_index", kept], [KEPT_SECONDS, MOST_RECORDS, tag], client)


def list_records(client: redis.Redis, prefix: str) -> list[SetAside]:
    """Return the records of renamed Redis keys that `forget_records` has not removed. A record that cannot be decoded
    is deleted.
    """
    stored = cast("list[bytes]", client.lrange(f"{prefix}set-aside", 0, -1))
    found: list[SetAside] = []
    for each in stored:
        try:
            found.append(msgspec.structs.replace(msgspec.json.decode(each, type=SetAside), record=each))
        except msgspec.DecodeError:
            client.lrem(f"{prefix}set-aside", 1, cast("str", each))
    return found


def forget_records(client: redis.Redis, prefix: str, records: Sequence[SetAside]) -> None:
    """Delete these records from the list of renamed Redis keys. Other records stay."""
    with client.pipeline(transaction=True) as pipeline:
        for each in records:
            pipeline.lrem(f"{prefix}set-aside", 1, cast("str", each.record))
        pipeline.execute()


class ContentCheck:
    """Searches the hashes of one Redis for fields that cannot be decoded. Each call reads some fields of each hash."""

    def __init__(self, client: redis.Redis, prefix: str) -> None:
        self._client = client
        self._cursors = {f"{prefix}{key}": 0 for key in READERS}
        self._readers = {f"{prefix}{key}": reader for key, reader in READERS.items()}

    def find_unreadable(self) -> list[str]:
        """Read the next fields of each hash. Return the keys of the hashes in which one of these fields is unreadable.

        Raises redis.RedisError if Redis cannot be reached.
        """
        with self._client.pipeline(transaction=False) as pipeline:
            for key, cursor in self._cursors.items():
                pipeline.hscan(key, cursor, count=FIELDS_A_LOOK)
            answers = cast("list[tuple[int, dict[bytes, bytes]]]", pipeline.execute())
        parts = dict(zip(self._cursors, answers, strict=True))
        self._cursors = {key: cursor for key, (cursor, _) in parts.items()}
        return [key for key, (_, fields) in parts.items() if not self._is_readable(key, fields)]

    def _is_readable(self, key: str, fields: Mapping[bytes, bytes]) -> bool:
        try:
            for field, value in fields.items():
                self._readers[key](field, value)
        except (msgspec.DecodeError, ValueError):
            return False
        return True
