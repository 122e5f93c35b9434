"""What the tests of the client share. `client` is each kind of client in turn: one suite holds for both."""

from tests.client.intake import client as blocking_client
from tests.client.intake import either_client as client
from tests.client.intake import intake
from tests.servers import redis_client, redis_server, redis_url

__all__ = ["blocking_client", "client", "intake", "redis_client", "redis_server", "redis_url"]
