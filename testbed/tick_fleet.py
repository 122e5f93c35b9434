"""A cluster whose ticks are measured: a real database, a real Redis, ready slots, and one process that ticks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

import msgspec
import redis
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.engine import Engine

from leasehold.stack.preparation import QuietDispatcher
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.slots import Slot
from scheduler.operations.ports import Ports, announce
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.tick.leader import Leader
from scheduler.operations.tick.tick import Ticked, tick
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import OutboxMessage
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from scheduler.store.postgresql_pipeline import PostgresConnection
from scheduler.store.sqlite import SqliteConnection
from scheduler.view.connection import Bundle, make_redis
from scheduler.view.memory import MemoryMeter
from scheduler.view.redis_ports import RedisHeartbeats, RedisLeaderLock, RedisNotifier, RedisRecord
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.guarding import take_signals_as_interrupts
from testbed.postgresql_server import open_postgresql
from testbed.servers import start_own_redis

LEASES_A_SLOT: Final = 4
REQUEST: Final = Request(system="bench", components=(Component(name="main"),))


class CountingDispatcher(QuietDispatcher):
    """Counts the Celery messages that a tick would send, and sends none."""

    def __init__(self) -> None:
        self.messages = 0

    def send_launches(self, slots: Sequence[Slot]) -> None:
        """See QuietDispatcher. Each launch is a message."""
        self.messages += len(slots)

    def send_terminations(self, slots: Sequence[Slot]) -> None:
        """See QuietDispatcher. Each termination is a message."""
        self.messages += len(slots)

    def send_power(self, slots: Sequence[Slot]) -> None:
        """See QuietDispatcher. Each start or stop is a message."""
        self.messages += len(slots)

    def send_checks(self, slots: Sequence[str]) -> None:
        """See QuietDispatcher. Each check is a message."""
        self.messages += len(slots)

    def send_callback(self, outgoing: OutboxMessage) -> None:
        """See QuietDispatcher."""
        self.messages += 1
        super().send_callback(outgoing)

    def send_tick(self) -> None:
        """See QuietDispatcher."""
        self.messages += 1


class Meters:
    """What one stage costs: statements, round trips, commands and bytes."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self.statements = self.round_trips = 0
        sqlalchemy_event.listen(Engine, "before_cursor_execute", self._count_statement)
        SqliteConnection.execute = self._counting(SqliteConnection.execute)  # type: ignore[method-assign]
        PostgresConnection.send_later = self._counting(PostgresConnection.send_later)  # type: ignore[method-assign]
        send: Callable[..., Any] = redis.connection.AbstractConnection.send_packed_command
        port = client.get_connection_kwargs()["port"]

        def send_counted(connection: Any, *arguments: Any, **options: Any) -> Any:
            # Threads that other tests of this process have left use other servers.
            self.round_trips += connection.port == port
            return send(connection, *arguments, **options)

        redis.connection.AbstractConnection.send_packed_command = send_counted  # type: ignore[assignment,method-assign]

    def _counting(self, execute: Callable[..., Any]) -> Callable[..., Any]:
        def execute_counted(*arguments: Any, **options: Any) -> Any:
            self.statements += 1
            return execute(*arguments, **options)

        return execute_counted

    def _count_statement(self, *_: object) -> None:
        self.statements += 1

    def read(self) -> dict[str, int]:
        """Return the counts so far."""
        counted = {"statements": self.statements, "round_trips": self.round_trips}
        info = self._client.info()
        return {
            **counted,
            "commands": info["total_commands_processed"],
            "bytes": info["total_net_input_bytes"],
            "bytes_read": info["total_net_output_bytes"],
        }


class Fleet:
    """A cluster in a database and a Redis of its own, with ready slots and one process that ticks."""

    def __init__(self, database_url: str, redis_url: str) -> None:
        migrate(database_url)
        self.database_url, self.redis_url = database_url, redis_url
        self.client = make_redis(redis_url)
        self.store = open_store(database_url)
        self.dispatcher = CountingDispatcher()
        bundle, record = Bundle(self.client), RedisRecord(self.client)
        view_cache = RedisViewCache(self.client, bundle=bundle)
        self.ports = Ports(
            store=self.store,
            view_cache=view_cache,
            lock=RedisLeaderLock(self.client, lock_seconds=600, early=[view_cache, record]),
            notifier=RedisNotifier(self.client, lambda: None, write_tick=lambda: "a tick", bundle=bundle),
            heartbeats=RedisHeartbeats(self.client),
            dispatcher=self.dispatcher,
            meter=MemoryMeter(),
            fleet=None,  # type: ignore[arg-type]
            probe=None,  # type: ignore[arg-type]
            new_id=lambda: uuid4().hex,
            record=record,
            together=bundle.open,
        )
        self.leader = self.make_leader()
        self.submitted = 0

    @staticmethod
    def make_leader() -> Leader:
        """Return the state of a process that has not ticked; it looks back and audits only when a stage asks for it."""
        return Leader(uuid4().hex, interval=1e6, lock_seconds=600, audit_seconds=1e6)

    def prepare(self, slots: int) -> None:
        """Store the rules and the slots, all ready."""
        pool = {"system": "bench", "min_slots": slots, "max_slots": slots, "max_leases_per_slot": LEASES_A_SLOT}
        rules = {"pools": {"bench": {**pool, "ec2": {"image": "ami-0123456789abcdef0"}}}}
        apply_rules(self.ports, rules, source="bench")
        with self.store.transaction() as transaction:
            rows = transaction.load_all_slots()
            now = transaction.now()
            transaction.save([_make_ready(row, now) for row in rows])

    def submit(self, count: int) -> list[Reservation]:
        """Store reservations and publish them to the view."""
        published = []
        for start in range(0, count, 1000):
            with self.store.transaction() as transaction:
                now = transaction.now()
                rows = [
                    Reservation(
                        id=f"r{self.submitted + number}",
                        request=REQUEST,
                        created_at=now,
                        changed_at=now,
                        phase="pending",
                        priority=1,
                    )
                    for number in range(start, min(start + 1000, count))
                ]
                published += transaction.insert_reservations(rows)
        self.submitted += count
        self.ports.view_cache.publish(published)
        return published

    def release(self, count: int) -> None:
        """End the first `count` leased reservations, as a holder's release does, and publish the changes."""
        names = [row.id for row in self.store.find_reservations(phases=["leased"], limit=count)]
        for start in range(0, len(names), 1000):
            with self.store.transaction() as transaction:
                work = UnitOfWork(transaction, "holder")
                work.load(reservations=names[start : start + 1000])
                for name in names[start : start + 1000]:
                    row = work.reservations[name]
                    work.move_reservation(row, "released", leases=())
                    work.free_slots(row)
                change_set = work.flush()
            announce(self.ports, change_set, kick=False)

    def tick(self) -> Ticked:
        """Run one tick."""
        (ticked,) = tick(self.ports, self.leader, nullcontext)
        return ticked

    def be_new_leader(self) -> None:
        """Continue as another process, which has no view yet."""
        self.ports.view_cache = RedisViewCache(self.client)
        self.ports.lock = RedisLeaderLock(self.client, lock_seconds=600)
        self.leader = self.make_leader()


def _make_ready(slot: Slot, now: float) -> Slot:
    return msgspec.structs.replace(slot, state="ready", since=now, idle_since=now, epoch=1, instance_id=f"i-{slot.id}")


@contextmanager
def open_fleet(*, on_postgresql: bool) -> Iterator[Fleet]:
    """Open a fleet on a new Redis and a new database."""
    take_signals_as_interrupts()
    with TemporaryDirectory(prefix="leasehold-bench-") as folder:
        server = start_own_redis(Path(folder))
        try:
            if on_postgresql:
                with open_postgresql() as url:
                    yield Fleet(url, server.url)
            else:
                yield Fleet(f"sqlite:///{Path(folder) / 'bench.db'}", server.url)
        finally:
            server.stop()
