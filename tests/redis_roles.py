"""A Redis with the users of compose/redis/users.acl, with passwords, and one more user for the test."""

import re
from pathlib import Path
from typing import Any, Final, cast

import redis

from scheduler.view.connection import make_redis
from testbed.servers import start_own_redis
from workers.embedded_redis import RedisServer

ACL_FILE: Final = Path(__file__).parents[1] / "compose" / "redis" / "users.acl"
EXAMINER: Final = "user examiner on >examiner ~* &* +@all"
"""A user that may read which commands Redis refused. No other user may."""
_PLACEHOLDER: Final = re.compile(r">CHANGE-ME-([A-Z]+)")


def read_rules() -> dict[str, list[str]]:
    """Return the rules of each user's line, without name and password."""
    lines = (line.split() for line in ACL_FILE.read_text(encoding="utf-8").splitlines())
    return {words[1]: [word for word in words[2:] if not word.startswith(">")] for words in lines}


class RedisWithRoles:
    """A server with the users of the file and no others."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        users = directory / "users.acl"
        shipped = _PLACEHOLDER.sub(lambda found: f">{found[1].lower()}-password", ACL_FILE.read_text(encoding="utf-8"))
        users.write_text(f"{shipped}{EXAMINER}\n", encoding="utf-8")
        self.server: RedisServer = start_own_redis(
            directory, ("examiner", "examiner"), aclfile=str(users), appendonly="yes", appendfsync="everysec"
        )

    def url(self, role: str) -> str:
        return f"redis://{role}:{role}-password@127.0.0.1:{self.server.port}/0"

    def read_refusals(self) -> list[tuple[str, str, str]]:
        """Return (user, reason, command or key or channel) of the refusals since the last call, unordered.

        Refusals of CLIENT SETINFO are omitted. redis-py sends it to servers of version 7.2 or newer.
        """
        with self.examine() as examiner:
            entries = cast("list[dict[str, Any]]", examiner.acl_log())
            examiner.acl_log_reset()
        found = [(_text(each["username"]), _text(each["reason"]), _text(each["object"])) for each in entries]
        return [each for each in found if each[2] != "client"]

    def examine(self) -> redis.Redis:
        """Return a connection with all rights."""
        return make_redis(f"redis://examiner:examiner@127.0.0.1:{self.server.port}/0")


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
