"""The transports with which a client sends tasks, or writes their messages: kombu's, with one Redis client for each
connection. Importing this module imports kombu.
"""

from typing import Any

from kombu.transport import redis, virtual
from kombu.utils.json import dumps

from leasehold.common.kept_client import KeptClient


class Channel(KeptClient, redis.Channel):
    """A kombu channel that keeps its Redis client."""


class Transport(redis.Transport):
    """A kombu transport whose channels keep their Redis clients."""

    Channel = Channel


class WritingChannel(virtual.Channel):
    """A kombu channel that keeps the message that was published last, as a Redis channel would put it on its queue's
    list. It has no connection.
    """

    _written = ""

    def take(self) -> str:
        """Return the message that was published last."""
        return self._written

    def _put(self, queue: str, message: dict[str, Any], **_options: Any) -> None:  # noqa: ARG002 - kombu's signature
        self._written = dumps(message)


class WritingTransport(virtual.Transport):
    """A kombu transport whose channels write messages without sending them."""

    Channel = WritingChannel
