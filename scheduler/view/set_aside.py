"""Keys of Redis with a wrong type are renamed, so that the next one who writes makes them again.

A key of a wrong type fails every command on it, also after a restart of all processes: no tick would end well. What was
there is kept under `<prefix>set-aside:<key>` for a week, the last one of each key.

    <prefix>set-aside           list    a JSON record for each key that was set aside, until a tick takes it
    <prefix>set-aside:<key>     any     what was there
"""

from collections.abc import Mapping
from typing import Final, Literal, cast

import msgspec
import redis

from scheduler.ports import SetAside
from scheduler.view.connection import load_script

KeyType = Literal["string", "list", "hash", "zset", "stream", "lock"]
"""`lock`: a string that expires."""
KEPT_SECONDS: Final = 7 * 86400
MOST_RECORDS: Final = 100
VIEW_TYPES: Final[Mapping[str, KeyType]] = {
    "leader": "lock",
    "again": "string",
    "kick": "string",
    "clock": "string",
    "heartbeats:since": "string",
    "metrics": "hash",
    "refused": "list",
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
    "view:report": "string",
}
"""After the prefix: the keys whose type every tick checks."""
_QUEUES: Final = ("reservations", "ticks", "launch", "health", "terminate")
_PRIORITIES: Final = ("", "\x06\x163", "\x06\x166", "\x06\x169")
BROKER_TYPES: Final[Mapping[str, KeyType]] = {
    **{f"{queue}{priority}": "list" for queue in _QUEUES for priority in _PRIORITIES},
    "unacked": "hash",
    "unacked_index": "zset",
    "unacked_mutex": "string",
}
"""The keys of kombu, which workers check; they have no prefix."""


def set_aside(client: redis.Redis, prefix: str, types: Mapping[str, KeyType]) -> list[SetAside]:
    """Set aside those of these keys that have another type. Raises redis.RedisError when Redis cannot be reached."""
    keys = list(types)
    names = [f"{prefix}set-aside", *keys, *(f"{prefix}set-aside:{key}" for key in keys)]
    script = load_script(client, "set_aside")
    found = cast("list[bytes]", script(names, [KEPT_SECONDS, MOST_RECORDS, *types.values()], client))
    return [SetAside(key.decode(), kind.decode()) for key, kind in zip(found[::2], found[1::2], strict=True)]


def take_records(client: redis.Redis, prefix: str) -> list[SetAside]:
    """What was set aside since the last time, by any process; each record is given once."""
    taken = cast("list[bytes] | None", client.lpop(f"{prefix}set-aside", MOST_RECORDS))
    return [msgspec.json.decode(each, type=SetAside) for each in taken or ()]
