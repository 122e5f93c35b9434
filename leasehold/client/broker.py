"""The transport with which a client sends tasks: kombu's, with one Redis client for each connection. Importing this
module imports kombu.
"""

from kombu.transport import redis

from leasehold.common.kept_client import KeptClient


class Channel(KeptClient, redis.Channel):
    """A kombu channel that keeps its Redis client."""


class Transport(redis.Transport):
    """A kombu transport whose channels keep their Redis clients."""

    Channel = Channel
