"""The composition root: from the settings to wired operations; the only place that knows every adapter.

Nothing is built before it is first used, and each process builds its own: a connection that was made before a
fork belongs to the parent.
"""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar, cast
from uuid import uuid4

from redis import Redis

from scheduler.model.validation import InvalidInputError
from scheduler.operations.heartbeats import HostKeys
from scheduler.operations.membership import MembershipCheck, compare_membership
from scheduler.operations.ports import Ports
from scheduler.operations.tick.tick import Leader
from scheduler.ports import (
    CloudError,
    DatabaseWentBackError,
    Dispatcher,
    Fleet,
    ForeignClusterError,
    Meter,
    NoticeFeed,
    Store,
    StoreUnavailableError,
)
from workers.access import Access
from workers.setting_types import SecretText
from workers.settings import Settings

if TYPE_CHECKING:
    from scheduler.view.redis_clock import RedisClock
    from workers.ec2.budget import CallBudget
    from workers.ec2.fleet import Ec2Access

Value = TypeVar("Value")
START_SECONDS: Final = 1.0
"""How long a process that starts waits for the answer of a Redis that may not be there yet."""
ADAPTERS: Final = (
    "scheduler.store.opening",
    "scheduler.view.redis_notifier",
    "scheduler.view.redis_view_cache",
    "scheduler.view.redis_clock",
    "scheduler.view.redis_leader_lock",
    "scheduler.view.redis_meter",
    "scheduler.view.redis_record",
    "workers.probes",
)


class TickingDispatcher(Dispatcher, Protocol):
    """A dispatcher that the bell can send its tick messages with."""

    def send_tick(self) -> None:
        """Ask the ticks queue for a tick now."""


class PerProcess(Generic[Value]):
    """A value that each process makes for itself on first use, whatever its parent had made before the fork."""

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._pid = 0
        self._guard = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def get(self) -> Value:
        """This process's value; made once, however many threads ask."""
        if self._pid != os.getpid():
            with self._guard:
                if self._pid != os.getpid():
                    self._value = self._make()
                    self._pid = os.getpid()
        return self._value

    def _forget(self) -> None:
        # The lock too: another thread of the parent may have held it at the fork.
        self._guard = threading.Lock()
        self._pid = 0


class _OnDemand:
    """Stands for an object that is made when something of it is first asked for."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._made = PerProcess(make)

    def __getattr__(self, name: str) -> object:
        return getattr(self._made.get(), name)


class Services:
    """Everything that tasks and commands work with. `make_dispatcher` is called once a process, and sends what the
    operations want done later.
    """

    def __init__(self, settings: Settings, make_dispatcher: Callable[[], TickingDispatcher]) -> None:
        self.settings = settings
        self._make_dispatcher = make_dispatcher
        self._redis = PerProcess(self._connect)
        self._ports = PerProcess(self._wire)
        self._meter = PerProcess(self._make_meter)
        self._leader = PerProcess(self._make_leader)
        self._notices = PerProcess(self._open_notices)
        self._membership = PerProcess(MembershipCheck)
        self._access = PerProcess(lambda: Access(self.ports.store))
        self._clock = PerProcess(self._make_clock)
        self._process = ("", 0)

    @property
    def ports(self) -> Ports:
        """The adapters that every operation is handed."""
        return self._ports.get()

    @property
    def redis(self) -> Redis:
        """The client of the Redis that holds the view, answers and counters."""
        return self._redis.get()

    @property
    def meter(self) -> Meter:
        """The counters alone, for a process that must not open the database: a worker's main process."""
        return self._meter.get()

    @property
    def access(self) -> Access:
        """The principals and their keys, from the database."""
        return self._access.get()

    @property
    def clock(self) -> "RedisClock":
        """Cluster time without the database. What leaves this process is stamped and judged by it."""
        return self._clock.get()

    def name_process(self, name: str) -> None:
        """Have this process, and none that it forks, write down under this name how far its wall clock is off."""
        self._process = name, os.getpid()

    @property
    def leader(self) -> Leader:
        """What this process remembers between its ticks; its holder id is random."""
        return self._leader.get()

    @property
    def notices(self) -> NoticeFeed | None:
        """What EC2 says ahead of interruptions; None where no queue is set. Raises CloudError as `make_feed` does."""
        return self._notices.get()

    def warm_up(self, *, fleet: bool) -> None:
        """Build what the first task would otherwise wait for; `fleet`: boto3's clients too. Connects to nothing.

        What cannot be built is said by the tasks that need it.
        """
        with suppress(InvalidInputError, CloudError):
            ports = self.ports
            if fleet:
                _ = ports.fleet.launch

    def import_adapters(self) -> None:
        """Import what `engine` is made of, and make nothing: a pool's processes then share what is imported before
        the fork, and need not do it each.
        """
        for module in ADAPTERS:
            import_module(module)

    def open_store(self) -> Store:
        """A store of its own, for commands that need nothing else."""
        from scheduler.store.opening import open_store

        return open_store(self.settings.database_url)

    def find_schema_fault(self) -> str | None:
        """What is wrong with the database's schema, and what mends it; None if nothing is, or nothing can be seen."""
        from scheduler.store.schema import find_fault

        return find_fault(self.settings.database_url)

    def ensure_membership(self) -> None:
        """Check, at most once a second, that database and Redis belong to one cluster and that the database did not go
        back. Raises ForeignClusterError, DatabaseWentBackError, and StoreUnavailableError without a database.
        """
        self._membership.get().ensure(self.ports)

    def find_foreign(self) -> str | None:
        """See `find_foreign`, for this process's database and Redis."""
        return find_foreign(self.settings)

    def _connect(self) -> Redis:
        from scheduler.view.connection import make_redis

        return make_redis(self.settings.view_url or "")

    def _make_meter(self) -> Meter:
        from scheduler.view.redis_meter import RedisMeter

        return RedisMeter(self.redis, self.settings.view.prefix)

    def _make_clock(self) -> "RedisClock":
        from scheduler.view.redis_clock import RedisClock

        name, pid = self._process
        client = self.redis if self.settings.view_url else None
        return RedisClock(client, self.settings.view.prefix, process=name if pid == os.getpid() else "")

    def _make_leader(self) -> Leader:
        ticks = self.settings.ticks
        process = f"{socket.gethostname()}:{os.getpid()}"
        return Leader(uuid4().hex, interval=ticks.interval, lock_seconds=ticks.lock_seconds, process=process)

    def _wire(self) -> Ports:
        from scheduler.view.redis_heartbeats import RedisHeartbeats
        from scheduler.view.redis_leader_lock import RedisLeaderLock
        from scheduler.view.redis_notifier import RedisNotifier
        from scheduler.view.redis_record import RedisRecord
        from scheduler.view.redis_view_cache import RedisViewCache
        from workers.probes import Probes

        view, ticks, prefix = self.settings.view, self.settings.ticks, self.settings.view.prefix
        client, dispatcher = self.redis, self._make_dispatcher()
        return Ports(
            store=self.open_store(),
            view_cache=RedisViewCache(client, prefix, kept_seconds=view.tombstones),
            lock=RedisLeaderLock(client, prefix, lock_seconds=ticks.lock_seconds),
            notifier=RedisNotifier(client, dispatcher.send_tick, prefix, kick_seconds=ticks.kick_seconds),
            heartbeats=RedisHeartbeats(client, prefix),
            dispatcher=dispatcher,
            meter=self.meter,
            fleet=self._make_fleet(),
            probe=Probes(),
            new_id=lambda: uuid4().hex,
            record=RedisRecord(client, prefix),
            host_keys=HostKeys(self.settings.access.mode),
        )

    def _make_fleet(self) -> Fleet:
        """boto3's clients take a second to make and may be refused for want of a region: intake and ticks, which
        need none, do not make them.
        """
        return cast("Fleet", _OnDemand(self._open_fleet))

    def _open_fleet(self) -> Fleet:
        from workers.ec2.fleet import make_fleet

        return make_fleet(self.settings.aws.cluster, read_access(self.settings), self._make_budget())

    def _make_budget(self) -> "CallBudget | None":
        from workers.ec2.budget import CALLS_PER_SECOND, CallBudget

        aws = self.settings.aws
        usual = CALLS_PER_SECOND if aws.endpoint_url is None else 0.0
        per_second = usual if aws.calls_per_second is None else aws.calls_per_second
        return CallBudget(self.redis, self.settings.view.prefix, per_second) if per_second else None

    def _open_notices(self) -> NoticeFeed | None:
        if self.settings.aws.interruption_queue is None:
            return None
        from workers.ec2.interruptions import make_feed

        return make_feed(self.settings.aws.interruption_queue, read_access(self.settings))


def find_foreign(settings: Settings) -> str | None:
    """Why no process may start: the line of ForeignClusterError or DatabaseWentBackError. None if nothing is wrong, or
    the database cannot be asked now. Opens connections of its own and closes them.
    """
    from scheduler.store.opening import open_store
    from scheduler.view.connection import make_redis
    from scheduler.view.redis_record import RedisRecord

    client = make_redis(settings.view_url or "", socket_seconds=START_SECONDS, connect_seconds=START_SECONDS)
    with closing(open_store(settings.database_url)) as store, client:
        try:
            compare_membership(store, RedisRecord(client, settings.view.prefix))
        except (ForeignClusterError, DatabaseWentBackError) as error:
            return str(error)
        except StoreUnavailableError:
            return None
    return None


def read_access(settings: Settings) -> "Ec2Access":
    """How the settings say that EC2 is reached."""
    from workers.ec2.fleet import Ec2Access

    aws = settings.aws
    return Ec2Access(
        region=aws.region,
        endpoint_url=aws.endpoint_url,
        access_key_id=_reveal(aws.access_key_id),
        secret_access_key=_reveal(aws.secret_access_key),
        profile=aws.profile,
    )


def _reveal(secret: SecretText | None) -> str | None:
    return secret.get_secret_value() if secret else None
