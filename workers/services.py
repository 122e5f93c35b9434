"""Make the connections to database, Redis and EC2, and the services that use them, from the settings. This module is
the composition root: only it imports all adapters.

Each process makes each value by itself, at the first use, because a connection that was made before a fork belongs to
the parent.
"""

import os
import socket
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast
from uuid import uuid4

from redis import Redis
from redis.connection import parse_url

from scheduler.model.validation import InvalidInputError
from scheduler.operations.membership import MembershipCheck, compare_membership
from scheduler.ports import (
    CloudError,
    ClusterNumbers,
    ClusterSource,
    DatabaseWentBackError,
    Dispatcher,
    Fleet,
    ForeignClusterError,
    Images,
    MarketSource,
    Meter,
    NoticeFeed,
    Store,
    StoreUnavailableError,
)
from scheduler.protocol.names import DEFAULT_PREFIX, OWN_STACK_VARIABLE
from workers.access import Access
from workers.logs import get_logger
from workers.setting_types import reveal
from workers.settings import Settings

if TYPE_CHECKING:
    from scheduler.operations.market import OnDemandReader
    from scheduler.operations.ports import Ports
    from scheduler.operations.tick.leader import Leader
    from scheduler.view.redis_clock import RedisClock
    from scheduler.view.redis_ports import RedisRecord, Renewal
    from workers.ec2.budget import CallBudget
    from workers.ec2.clients import Ec2Access

Value = TypeVar("Value")
START_SECONDS: Final = 1.0
"""Seconds that Redis may take to answer at the start of a process. The process also starts without an answer."""
ADAPTERS: Final = (
    "scheduler.store.opening",
    "scheduler.view.redis_ports",
    "scheduler.view.redis_view_cache",
    "scheduler.view.redis_clock",
    "scheduler.view.redis_ports",
    "scheduler.view.redis_meter",
    "workers.probes",
)


class TickingDispatcher(Dispatcher, Protocol):
    """A dispatcher (which sends work to other processes) that can also send the request for a tick."""

    def send_tick(self) -> None:
        """Send the message that requests a tick now."""

    def write_tick(self) -> str | None:
        """Return the message that requests a tick now, as it is put on the Redis list of its queue. Return None if
        `send_tick` must be called.
        """


class PerProcess(Generic[Value]):
    """A value that each process makes at its first use. A forked process makes its own, even if its parent has made
    one.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        self._pid = 0
        self._guard = threading.Lock()
        os.register_at_fork(after_in_child=self._forget)

    def get(self) -> Value:
        """Return the value of this process. The first call makes the value; if several threads call at the same time,
        the value is made once.
        """
        if self._pid != os.getpid():
            with self._guard:
                if self._pid != os.getpid():
                    self._value = self._make()
                    self._pid = os.getpid()
        return self._value

    def _forget(self) -> None:
        # A new lock, because another thread of the parent may have held the old one at the fork.
        self._guard = threading.Lock()
        self._pid = 0


class _OnDemand:
    """A stand-in for an object. The object is made when one of its attributes is used for the first time."""

    def __init__(self, make: Callable[[], object]) -> None:
        self._made = PerProcess(make)

    def __getattr__(self, name: str) -> object:
        return getattr(self._made.get(), name)


class once_per_process(Generic[Value]):  # noqa: N801 - used like `property`
    """A property whose value each process computes once, when the process uses the property for the first time."""

    def __init__(self, make: Callable[[Any], Value]) -> None:
        self._make, self.__doc__ = make, make.__doc__

    def __get__(self, owner: object, _kind: type | None = None) -> Value:
        """Return the value of the property in this process. The object `owner` keeps the value in an attribute, whose
        name is that of the property after an underscore.
        """
        name, kept = f"_{self._make.__name__}", vars(owner)
        if name not in kept:
            kept.setdefault(name, PerProcess(partial(self._make, owner)))
        value: Value = kept[name].get()
        return value


class Services:
    """The connections and services that tasks and commands use. Each is made from the settings at its first use.

    `make_dispatcher` is called once in each process. Its result sends the work of operations to other processes.
    """

    def __init__(self, settings: Settings, make_dispatcher: Callable[[], TickingDispatcher]) -> None:
        self.settings = settings
        self._make_dispatcher = make_dispatcher
        self._process = ("", 0)

    @once_per_process
    def ports(self) -> "Ports":
        """The interfaces (ports) to database, Redis, EC2 and other processes, which are an argument of every
        operation.
        """
        # Beat, Flower and the metrics process run no operation, so they need not import the operations and the rules.
        from scheduler.operations.heartbeats import HostKeys
        from scheduler.operations.ports import Ports
        from scheduler.view.connection import Bundle, make_redis
        from scheduler.view.forecasts import RedisForecasts
        from scheduler.view.redis_ports import RedisHeartbeats, RedisLeaderLock, RedisNotifier, RedisRecord
        from scheduler.view.redis_view_cache import RedisViewCache
        from workers.probes import Probes
        from workers.work_watch import RedisWorkWatch

        view, ticks, prefix = self.settings.view, self.settings.ticks, self.settings.view.prefix
        client, dispatcher = self.redis, self._make_dispatcher()
        bundle, record = Bundle(client), RedisRecord(client, prefix, open_other_records(self.settings))
        view_cache = RedisViewCache(client, prefix, kept_seconds=view.tombstones, bundle=bundle)
        return Ports(
            store=self.open_store(),
            view_cache=view_cache,
            lock=RedisLeaderLock(client, prefix, lock_seconds=ticks.lock_seconds, early=[view_cache, record]),
            notifier=RedisNotifier(
                client,
                dispatcher.send_tick,
                prefix,
                kick_seconds=ticks.kick_seconds,
                write_tick=dispatcher.write_tick if self.settings.view_url == self.settings.broker_url else None,
                bundle=bundle,
            ),
            heartbeats=RedisHeartbeats(client, prefix),
            dispatcher=dispatcher,
            meter=self.meter,
            # boto3's clients take a second to make and fail without a region; intake and ticks need neither.
            fleet=cast("Fleet", _OnDemand(self._open_fleet)),
            probe=Probes(),
            new_id=lambda: uuid4().hex,
            work_watch=RedisWorkWatch(
                client,
                client
                if self.settings.broker_url == self.settings.view_url
                else make_redis(self.settings.broker_url or ""),
                prefix,
                seconds=self.settings.recover_interval,
                clock=self.clock.now,
            ),
            forecasts=RedisForecasts(client, prefix),
            record=record,
            together=bundle.open,
            host_keys=HostKeys(self.settings.access.mode),
            is_own_stack=os.environ.get(OWN_STACK_VARIABLE) == "1",
            warn=get_logger(__name__).warning,
        )

    @once_per_process
    def redis(self) -> Redis:
        """The client of the view's Redis, which has the view (the copy of the state for clients), stored answers and
        counters.
        """
        from scheduler.view.connection import make_redis

        return make_redis(self.settings.view_url or "")

    @once_per_process
    def meter(self) -> Meter:
        """The counters of the metrics in Redis. A process that must not open the database, like the main process of a
        worker, uses only this.
        """
        from scheduler.view.redis_meter import RedisMeter

        return RedisMeter(self.redis, self.settings.view.prefix)

    @once_per_process
    def access(self) -> Access:
        """The object that verifies and signs messages with the keys of the principals (the senders that have keys) in
        the database.
        """
        return Access(self.ports.store)

    @once_per_process
    def clock(self) -> "RedisClock":
        """The clock of cluster time, which needs no database. The sending time of messages comes from this clock, and
        their expiry is checked by it.
        """
        from scheduler.view.redis_clock import RedisClock

        name, pid = self._process
        return RedisClock(
            self.redis if self.settings.view_url else None,
            self.settings.view.prefix,
            process=name if pid == os.getpid() else "",
        )

    @once_per_process
    def leader(self) -> "Leader":
        """The data that this process keeps between its ticks as a possible leader, such as its random id for the leader
        lock.
        """
        from scheduler.operations.tick.leader import Leader

        ticks = self.settings.ticks
        process = f"{socket.gethostname()}:{os.getpid()}"
        return Leader(uuid4().hex, interval=ticks.interval, lock_seconds=ticks.lock_seconds, process=process)

    @once_per_process
    def renewal(self) -> "Renewal":
        """The object whose `with` block renews the leader lock, in a thread, while a tick of this process runs."""
        from scheduler.view.redis_ports import Renewal

        return Renewal(self.ports.lock, self.settings.ticks.lock_seconds)

    @once_per_process
    def notices(self) -> NoticeFeed | None:
        """The source of EC2's interruption notices: an SQS queue; None if the settings name no queue. Raises CloudError
        if boto3 cannot make a client.
        """
        if self.settings.aws.interruption_queue is None:
            return None
        from workers.ec2.interruptions import make_feed

        return make_feed(self.settings.aws.interruption_queue, read_access(self.settings))

    @once_per_process
    def images(self) -> Images:
        """The object that finds the ids of images that rules name by a source (`ssm:…`, `newest:…`). boto3's clients
        are made at the first search.
        """
        from workers.ec2.images import make_images

        return cast("Images", _OnDemand(lambda: make_images(read_access(self.settings))))

    @once_per_process
    def market(self) -> MarketSource:
        """The source of EC2's catalogue of instance types and of EC2's prices. Raises CloudError if boto3 cannot make a
        client.
        """
        from workers.ec2.market import make_market

        return make_market(read_access(self.settings), self._make_budget(), self.settings.market.product)

    @once_per_process
    def on_demand(self) -> "OnDemandReader":
        """The object that reads on-demand prices. Each process has its own, with the data that it keeps between two
        readings.
        """
        from scheduler.operations.market import OnDemandReader

        return OnDemandReader()

    @once_per_process
    def _membership(self) -> MembershipCheck:
        return MembershipCheck()

    def name_process(self, name: str) -> None:
        """Let this process publish its clock offset (wall clock minus cluster time) under `name`. A process that is
        forked later from this one publishes none.
        """
        self._process = name, os.getpid()

    def warm_up(self, *, fleet: bool) -> None:
        """Make the objects that the first task of this process needs; with `fleet` also boto3's EC2 clients. No
        connection is opened.

        Errors are ignored, because each task that needs a missing object raises them again.
        """
        with suppress(InvalidInputError, CloudError):
            ports = self.ports
            if fleet:
                _ = ports.fleet.launch

    def import_adapters(self) -> None:
        """Import the modules for database, Redis and probes. The main process of a worker calls this before it forks,
        so that its child processes have the modules.
        """
        for module in ADAPTERS:
            import_module(module)

    def open_store(self) -> Store:
        """Open the database with a new connection, for commands that need no other service."""
        from scheduler.store.opening import open_store

        return open_store(self.settings.database_url)

    def find_schema_fault(self) -> str | None:
        """Return what is wrong with the schema of the database, with a remedy; None if the schema is correct or cannot
        be read.
        """
        from scheduler.store.opening import find_fault

        return find_fault(self.settings.database_url)

    def ensure_membership(self) -> None:
        """Check that database and Redis belong to one cluster, and that the database was not set back to an earlier
        state. The check is made at most once a second.

        Raises ForeignClusterError or DatabaseWentBackError if the check fails, StoreUnavailableError if the database is
        unavailable.
        """
        self._membership.ensure(self.ports)

    def ensure_membership_of_sender(self) -> None:
        """Check the membership like `ensure_membership`, for a process that sends messages and writes nothing into the
        database.
        """
        from scheduler.view.redis_ports import RedisRecord

        self._membership.compare(self._cluster, RedisRecord(self.redis, self.settings.view.prefix))

    @once_per_process
    def _cluster(self) -> ClusterSource[ClusterNumbers]:
        from scheduler.store.cluster_file import open_cluster

        return open_cluster(self.settings.database_url)

    def _open_fleet(self) -> Fleet:
        from workers.ec2.fleet import make_fleet

        access = read_access(self.settings)
        return make_fleet(self.settings.aws.cluster, access, self._make_budget(), self.settings.access.join_url)

    def _make_budget(self) -> "CallBudget | None":
        """Return the budget of EC2 calls in Redis; None if the calls have no limit, or if no Redis is configured."""
        from workers.ec2.budget import CALLS_PER_SECOND, CallBudget

        aws = self.settings.aws
        # By default the calls to an emulator have no limit.
        usual = CALLS_PER_SECOND if aws.endpoint_url is None else 0.0
        per_second = usual if aws.calls_per_second is None else aws.calls_per_second
        has_budget = bool(per_second and self.settings.view_url)
        return CallBudget(self.redis, self.settings.view.prefix, per_second) if has_budget else None


def find_foreign(settings: Settings) -> str | None:
    """Return why no process may start: database and Redis belong to different clusters, or the database was set back to
    an earlier state.

    Return None if neither is the case, or if the database is unavailable. This function opens connections of its own
    and closes them.
    """
    from scheduler.store.cluster_file import open_cluster
    from scheduler.view.connection import make_redis
    from scheduler.view.redis_ports import RedisRecord

    client = make_redis(settings.view_url or "", socket_seconds=START_SECONDS, connect_seconds=START_SECONDS)
    with closing(open_cluster(settings.database_url)) as source, client, suppress(StoreUnavailableError):
        try:
            limits = {"socket_seconds": START_SECONDS, "connect_seconds": START_SECONDS}
            for record in (RedisRecord(client, settings.view.prefix), *open_other_records(settings, **limits)):
                compare_membership(source, record)
        except (ForeignClusterError, DatabaseWentBackError) as error:
            return str(error)
    return None


def open_other_records(settings: Settings, **limits: float) -> "list[RedisRecord]":
    """Return the record of the cluster in the database of the queues, unless this is the record of the view.

    The names of queues have no prefix, so two clusters must not share the database of a Redis for their queues,
    whatever `view.prefix` and `view.url` are. If the view is in the same database, its user reads the record: that of
    the queues may only send messages. `limits`: as of `make_redis`.
    """
    from scheduler.view.connection import make_redis
    from scheduler.view.redis_ports import RedisRecord

    broker, view = settings.broker_url or "", settings.view_url or ""
    is_shared = _find_database(broker) == _find_database(view)
    if is_shared and settings.view.prefix == DEFAULT_PREFIX:
        return []
    return [RedisRecord(make_redis(view if is_shared else broker, **limits), DEFAULT_PREFIX)]


def _find_database(url: str) -> tuple[object, ...]:
    """Return the address and the number of the database of a Redis that a URL names, without its user."""
    options = parse_url(url)  # type: ignore[no-untyped-call]
    return tuple(options.get(name, usual) for name, usual in (("host", ""), ("port", 6379), ("path", ""), ("db", 0)))


def read_access(settings: Settings) -> "Ec2Access":
    from workers.ec2.clients import Ec2Access

    aws = settings.aws
    return Ec2Access(
        region=aws.region,
        endpoint_url=aws.endpoint_url,
        access_key_id=reveal(aws.access_key_id) if aws.access_key_id else None,
        secret_access_key=reveal(aws.secret_access_key) if aws.secret_access_key else None,
        profile=aws.profile,
    )
