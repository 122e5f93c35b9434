"""One Redis client for each channel of kombu. kombu makes a client for every command, which takes a tenth of the time
of a sender and more of a worker.
"""

from typing import Any


class KeptClient:
    """A base class before kombu's Redis channel: the channel keeps its Redis client."""

    pool: Any
    _kept: Any = None

    def _create_client(self, asynchronous: bool = False) -> Any:  # noqa: FBT001, FBT002 - kombu's signature
        """Return the Redis client of this channel. kombu's asynchronous client has a connection of its own. For all
        other uses one client serves, also from several threads: it takes a connection from the pool for each command.
        """
        if asynchronous:
            return super()._create_client(asynchronous=True)  # type: ignore[misc] # kombu's channel has it
        # After a lost connection the channel has a new pool.
        if self._kept is None or self._kept.connection_pool is not self.pool:
            self._kept = super()._create_client()  # type: ignore[misc] # as above
        return self._kept
