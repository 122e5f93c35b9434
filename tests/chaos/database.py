"""The database of one seed: a SQLite file, or a PostgreSQL with a standby behind a proxy, also by way of PgBouncer."""

import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, Self

from testbed.postgresql_server import start_own_postgresql
from testbed.proxy import Proxy
from tests.pgbouncer import PgBouncer

DATABASES: Final = ("postgresql", "sqlite")
POOLED: Final = "pgbouncer"
WAYS: Final = ("standby", "standby", "silent", "promote")
AWAY_SECONDS: Final = (0.5, 2.5)
"""How long the address leads to a standby, or connections are silent."""
_POOL_SIZE: Final = 20
"""Sessions of the server that the processes of a seed share; they have about three times as many connections."""


class Database:
    """What a seed knows about its database. `direct_url`: the URL without a pooler, for backups. `failover`: None for a
    file.
    """

    def __init__(self, url: str, direct_url: str, failover: "Failover | None" = None) -> None:
        self.url, self.direct_url, self.failover = url, direct_url, failover


class Failover:
    """A primary and its standby behind a proxy, as a context. Commits wait for the standby, so that its promotion loses
    nothing that was answered.
    """

    def __init__(self) -> None:
        self._servers = ExitStack()
        self._busy = threading.Lock()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            self._servers = started
            self.primary = start_own_postgresql()
            started.callback(self.primary.remove)
            self.name = self.primary.create_database()
            self.proxy = started.enter_context(Proxy(self.primary.port))
            self._add_standby()
            self._servers = started.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        # A failover that is under way would start another standby.
        with self._busy:
            self._servers.close()

    def strike(self, dice: random.Random) -> str:
        """Begin a failover, which ends by itself; return its description."""
        way, seconds = dice.choice(WAYS), dice.uniform(*AWAY_SECONDS)
        if not self._busy.acquire(blocking=False):
            return "one is under way"
        threading.Thread(target=self._run, args=(way, seconds), name="failover", daemon=True).start()
        return f"{way} for {seconds:.1f} s" if way != "promote" else way

    def settle(self) -> None:
        """Wait until no failover is under way."""
        with self._busy:
            pass

    def _run(self, way: str, seconds: float) -> None:
        try:
            if way == "silent":
                self.proxy.fall_silent()
                threading.Event().wait(seconds)
                self.proxy.go_on()
            elif way == "standby":
                self.proxy.target = self._standby.port
                self.proxy.cut()
                threading.Event().wait(seconds)
                # The sessions on the standby stay open.
                self.proxy.target = self.primary.port
            else:
                self.primary.kill()
                self._standby.promote()
                self.primary = self._standby
                self.proxy.target = self.primary.port
                self.proxy.cut()
                self._add_standby()
        finally:
            self._busy.release()

    def _add_standby(self) -> None:
        self._standby = self.primary.start_standby()
        self._servers.callback(self._standby.remove)
        with self.primary.connect() as connection:
            # After the copy was made, because a promoted standby has none of its own at first.
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")


@contextmanager
def open_database(kind: str, folder: Path) -> Iterator[Database]:
    if kind == "sqlite":
        url = f"sqlite:///{folder}/leasehold.db"
        yield Database(url, url)
        return
    with Failover() as failover:
        server = failover.primary
        direct = server.url(failover.name).replace(f":{server.port}/", f":{failover.proxy.port}/")
        if kind != POOLED:
            yield Database(direct, direct, failover)
            return
        with PgBouncer(server, size=_POOL_SIZE, target=failover.proxy.port) as pooler:
            yield Database(pooler.url(failover.name), direct, failover)
