"""Connections to the Redis server that is the primary now.

After a failover a URL leads to another server. Connections that were open before stay with the old one, which is a
replica then: it refuses to write, and its rows may be old. So each connection is checked now and then, and is opened
again if its server is a replica, refuses to write, or has had no valid view for some seconds.
"""

import time
from typing import Any, Final

import redis
from redis.backoff import ConstantBackoff
from redis.exceptions import ReadOnlyError
from redis.retry import Retry

CHECK_SECONDS: Final = 3.0
"""Seconds after which the server of a connection is asked again whether it is the primary."""
NO_VIEW_SECONDS: Final = 2.0
"""Seconds without a valid view after which a process opens its connections again."""
_RETRY_SECONDS: Final = 0.05
REPLICA: Final = b"replica"
_CHECKED_AT: Final = "leasehold_checked_at"


class PrimaryPool(redis.ConnectionPool):
    """A pool of connections to the primary behind one URL. `left`: how often connections were closed because of their
    server. The owner of another kind of connection to the URL, such as a subscription, closes it when `left` changes.
    """

    left = 0
    _may_check = True

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._valid_at = time.monotonic()

    def get_connection(self, *args: Any, **options: Any) -> Any:
        """Return a connection. If its last check is too old and its server is a replica now, it is opened again."""
        connection: Any = super().get_connection(*args, **options)
        now = time.monotonic()
        if self._may_check and now - getattr(connection, _CHECKED_AT, float("-inf")) >= CHECK_SECONDS:
            setattr(connection, _CHECKED_AT, now)
            try:
                self._leave_replica(connection)
            except BaseException:
                self.release(connection)
                raise
        return connection

    def note_view(self, *, is_valid: bool) -> None:
        """Record whether the server that answered has a valid view. If there was none for NO_VIEW_SECONDS, close the
        connections, so that the next commands use new ones.
        """
        now = time.monotonic()
        if is_valid:
            self._valid_at = now
        elif now - self._valid_at >= NO_VIEW_SECONDS:
            self._valid_at = now
            self.left += 1
            self.disconnect(inuse_connections=False)

    def _leave_replica(self, connection: Any) -> None:
        try:
            # Every user may send HELLO, unlike INFO. Without arguments it changes nothing.
            connection.send_command("HELLO")
            answer = connection.read_response()
        except redis.ResponseError:
            self._may_check = False
        except redis.ConnectionError:
            # The connection was lost: the command that follows opens it again.
            return
        else:
            if REPLICA in answer:
                self.left += 1
                connection.disconnect()
                connection.connect()


def open_redis(url: str, *, socket_seconds: float, connect_seconds: float, **options: Any) -> redis.Redis:
    """Return a client of the primary behind this URL, whose answers are bytes and whose waits all have a time limit.

    A command that fails because the connection was lost, or because the server is a replica, is tried once more on a
    new connection.
    """
    again = (redis.ConnectionError, redis.TimeoutError, ReadOnlyError)
    pool = PrimaryPool.from_url(
        url,
        socket_timeout=socket_seconds,
        socket_connect_timeout=connect_seconds,
        socket_keepalive=True,
        health_check_interval=10,
        retry=Retry(ConstantBackoff(_RETRY_SECONDS), 1, again),
        protocol=2,
        **options,
    )
    return redis.Redis.from_pool(pool)


def note_view(client: redis.Redis, *, is_valid: bool) -> None:
    """Record for the pool of this client whether its server has a valid view. See PrimaryPool."""
    if isinstance(client.connection_pool, PrimaryPool):
        client.connection_pool.note_view(is_valid=is_valid)


def count_left(client: redis.Redis) -> int:
    """Return how often the pool of this client has closed connections because of their server. See PrimaryPool."""
    return getattr(client.connection_pool, "left", 0)
