"""What the tests of the client share."""

from tests.client.intake import client, intake
from tests.servers import redis_client, redis_server, redis_url

__all__ = ["client", "intake", "redis_client", "redis_server", "redis_url"]
