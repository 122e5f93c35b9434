"""rediss:// for broker and view: every client verifies the server's certificate and presents its own."""

import os
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from leasehold import Client
from leasehold.client.redis.transport import RequestTransport
from leasehold.errors import Unavailable
from scheduler.model.validation import InvalidInputError
from scheduler.ports import ViewUnavailableError
from scheduler.protocol.names import TICKS
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from scheduler.view.connection import make_redis
from scheduler.view.redis_view_cache import RedisViewCache
from tasks.app import make_app
from tasks.queues import list_queues
from testbed.processes import PATIENCE, Process, wait_for
from testbed.servers import redis_server, redis_url
from testbed.stack import ROOT, a_pool
from tests.tls_proxy import Authority, TlsProxy
from workers.embedded_redis import RedisServer
from workers.setting_types import SecretText
from workers.settings import BrokerSettings, Settings, read_settings

__all__ = ["redis_server", "redis_url"]

MakeUrl = Callable[..., str]


@pytest.fixture
def make_url(tmp_path: Path, redis_server: RedisServer, redis_url: str) -> Iterator[MakeUrl]:
    """Yield a function that returns a URL of the shared Redis with TLS. `trust`: the file of a CA; None: the host's."""
    authority, stranger = Authority(tmp_path, "authority"), Authority(tmp_path, "stranger")
    files = {"authority": authority.file, "stranger": stranger.file}
    own = authority.sign("client")
    with TlsProxy(redis_server.port, authority.sign("server"), authority.file) as proxy:

        def make(trust: str | None, host: str = "127.0.0.1") -> str:
            ca = f"&ssl_ca_certs={files[trust]}" if trust else ""
            return f"rediss://{host}:{proxy.port}/0?ssl_certfile={own.certificate}&ssl_keyfile={own.key}{ca}"

        yield make


def settings_of(url: str) -> Settings:
    return Settings(broker=BrokerSettings(url=SecretText(url)))


def test_the_view_is_read_and_written(make_url: MakeUrl) -> None:
    with make_redis(make_url("authority")) as client:
        assert RedisViewCache(client).rebuild([]).slots == {}
    with Client(make_url("authority")) as producer:
        producer.ping()


def test_a_client_s_message_reaches_a_celery_worker_s_connection(make_url: MakeUrl) -> None:
    wire, app = RequestTransport(make_url("authority")), make_app(settings_of(make_url("authority")))
    wire.send_canary("ticks", "leasehold:reply:x")
    app.send_task("leasehold.ticks.tick")
    ticks = next(queue for queue in list_queues() if queue.name == TICKS)
    taken: list[Any] = []

    def take(_body: object, message: Any) -> None:
        taken.append(message.headers["task"])
        message.ack()

    with app.connection_for_read() as connection, connection.Consumer([ticks], callbacks=[take]):
        while len(taken) < 2:
            connection.drain_events(timeout=10)
    wire.close()
    assert taken == ["leasehold.ticks.canary", "leasehold.ticks.tick"]


def test_a_whole_worker_serves_a_client_over_tls(make_url: MakeUrl, tmp_path: Path) -> None:
    """Broker, view, answers and kicks: no process has the port without TLS."""
    url = make_url("authority")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")},
        "PYTHONPATH": str(ROOT),
        "LEASEHOLD_BROKER__URL": url,
        "LEASEHOLD_DATABASE__URL": f"sqlite:///{tmp_path}/tls.db",
        "LEASEHOLD_CELERY__SOFT_SHUTDOWN": "1",
    }
    migrate(environment["LEASEHOLD_DATABASE__URL"])
    with closing(open_store(environment["LEASEHOLD_DATABASE__URL"])) as store:
        with store.transaction() as transaction:
            transaction.save_rules({"pools": {"linux": a_pool()}}, 0)
        with make_redis(url) as view:
            RedisViewCache(view).rebuild([])
        worker = Process("reservations", ["tasks.worker", "reservations"], environment, tmp_path)
        try:
            with Client(url, timeout=2 * PATIENCE) as client:
                accepted = client.reserve(id="over-tls", pool="linux")
                assert (accepted.id, accepted.phase) == ("over-tls", "pending")
                assert client.cancel("over-tls").ok
            assert worker.is_alive, worker.read_log()
            assert [row.phase for row in store.find_reservations()] == ["cancelled"]
            # The kick was sent over TLS too.
            with make_redis(url) as broker:
                wait_for(lambda: broker.llen(TICKS), "the requested tick")
        finally:
            worker.stop()
    assert "certificate" not in worker.read_log()


@pytest.mark.parametrize(
    ("trust", "host"), [("stranger", "127.0.0.1"), (None, "127.0.0.1"), ("authority", "localhost")]
)
def test_every_client_refuses_an_untrusted_certificate_in_one_line(
    trust: str | None, host: str, make_url: MakeUrl
) -> None:
    url = make_url(trust, host)
    with make_redis(url) as client, pytest.raises(ViewUnavailableError, match="certificate verify failed"):
        RedisViewCache(client).read_report()
    with Client(url, timeout=0.1) as producer:
        with pytest.raises(Unavailable, match="certificate verify failed") as found:
            producer.ping()
        with pytest.raises(Unavailable, match="certificate verify failed"):
            producer.probe.silent_queues(0.1)
    assert "\n" not in str(found.value)
    connection = make_app(settings_of(url)).connection_for_write()
    with connection, pytest.raises(OperationalError, match="certificate verify failed"):
        _ = connection.default_channel


def test_celery_verifies_the_certificate_by_default() -> None:
    app = make_app(settings_of("rediss://redis.example:6379/0"))
    assert app.conf.broker_use_ssl == app.connection_for_write().ssl == {"ssl_cert_reqs": 2}
    assert make_app(settings_of("redis://redis.example:6379/0")).conf.broker_use_ssl is False


def test_contradicting_tls_parameters_are_refused_in_one_line() -> None:
    with pytest.raises(InvalidInputError) as found:
        read_settings({"broker": {"url": "rediss://redis.example/0?ssl_cert_reqs=yes"}})
    assert [str(fault) for fault in found.value.faults] == [
        'broker.url: expected ssl_cert_reqs=required, optional or none, got "yes"'
    ]
