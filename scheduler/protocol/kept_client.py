"""A Redis client that is kept for each channel of kombu. kombu itself makes a new client for every command, which takes
a tenth of the CPU time of a sender of messages, and a larger part of the CPU time of a worker.
"""

from typing import Any


class KeptClient:
    """A mixin that makes a Redis channel of kombu keep its Redis client. In the list of base classes it comes before
    kombu's class, e.g. `class Channel(KeptClient, redis.Channel)`.
    """

    pool: Any
    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Return the Redis client of this channel. kombu's asynchronous client has a connection of its own. All other
        uses, also in several threads, share one client, which takes a connection from the pool for each command.
        """
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc] # kombu's channel has it
        # After a lost connection the channel has a new pool.
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()  # type: ignore[misc] # as above
        return self._kept
