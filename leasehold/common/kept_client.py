"""A Redis client that is kept for each channel of kombu. kombu itself makes a new client for every command, which takes
a tenth of the CPU time of a sender of messages, and a larger part of the CPU time of a worker.
"""

from typing import Any


class KeptClient:
    """A base class for kombu's Redis channels, to be named before kombu's own channel class. It makes the channel keep
    its Redis client.
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
