"""Two Redis servers behind one address: the second is a replica of the first, until the pair is switched."""

import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import redis

from scheduler.view.connection import make_redis
from testbed.processes import wait_for
from testbed.proxy import Proxy
from testbed.servers import start_own_redis
from workers.embedded_redis import RedisServer

_LINKED: Final = "up"


class RedisPair:
    """A primary and its replica behind a proxy, with the methods of RedisServer that tests use.

    `switch` makes the other server the primary, as a failover does. Connections that are open stay with the server to
    which they were opened, and new ones lead to the new primary. `kill`, `restart` and `stop` concern both servers.
    """

    def __init__(self, folder: Path) -> None:
        # A replica is connected without a wait for others.
        config = {"repl-diskless-sync-delay": "0"}
        self._servers = [start_own_redis(folder / name, None, None, **config) for name in ("first", "second")]
        self._proxy = Proxy(self.primary.port)
        self._proxy.__enter__()
        self.port = self._proxy.port
        self._follow()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def primary(self) -> RedisServer:
        """The server to which new connections lead."""
        return self._servers[0]

    @property
    def replica(self) -> RedisServer:
        """The other server: the primary before the last `switch`."""
        return self._servers[1]

    @property
    def url(self) -> str:
        """The URL of the proxy."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def directory(self) -> Path:
        """The folder of the primary."""
        return self.primary.directory

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        """The process of the primary."""
        return self.primary.process

    @property
    def pid(self) -> int:
        """The process id of the primary."""
        return self.primary.pid

    def switch(self, *, is_demoted: bool = True, is_linked: bool = True) -> None:
        """Exchange primary and replica, and keep the open connections. `is_demoted` False: the old server stays a
        primary. `is_linked` False: it becomes a replica of a server that does not answer, so its rows stay as they are.
        """
        self._servers.reverse()
        with make_redis(self.primary.url) as client:
            client.replicaof("NO", "ONE")
        self._proxy.target = self.primary.port
        if is_demoted and is_linked:
            self._follow()
        elif is_demoted:
            with make_redis(self.replica.url) as client, socket.socket() as silent:
                silent.bind(("127.0.0.1", 0))
                client.replicaof("127.0.0.1", str(silent.getsockname()[1]))

    def kill(self) -> None:
        """Kill both servers."""
        for server in self._servers:
            server.kill()

    def restart(self) -> None:
        """Start both servers again, with empty memory or their snapshots."""
        for server in self._servers:
            server.restart()
        self._follow()

    def stop(self) -> None:
        """Stop the proxy and both servers."""
        self._proxy.__exit__()
        for server in self._servers:
            server.stop()

    def await_link(self) -> None:
        """Wait until the replica has the contents of the primary."""
        wait_for(self.is_linked, "the replica")

    def is_linked(self) -> bool:
        """Return whether the replica has the contents of the primary."""
        with make_redis(self.replica.url) as client:
            return _is_linked(client)

    def _follow(self) -> None:
        with make_redis(self.replica.url) as client:
            client.replicaof("127.0.0.1", str(self.primary.port))


def _is_linked(client: redis.Redis) -> bool:
    with suppress(redis.RedisError):
        found = client.info("replication")
        return found["role"] == "slave" and found.get("master_link_status") == _LINKED
    return False
