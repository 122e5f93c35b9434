"""The Celery application, from which `celery -A tasks.app worker -Q ticks` starts a worker. The import of this module
opens no connection.

docs/reference/processes.md has the reason for each Celery setting.
"""

import ssl
import sys
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from celery.signals import before_task_publish, celeryd_after_setup, celeryd_init, setup_logging, worker_process_init
from kombu.utils.url import parse_url

from scheduler.model.validation import InvalidInputError
from scheduler.protocol.masking import is_shown
from scheduler.protocol.names import RESERVATIONS
from tasks.beat import make_schedule
from tasks.current import LeaseholdApp
from tasks.dispatch import CeleryDispatcher
from tasks.messages import move_instant
from tasks.queues import list_queues, list_routes
from tasks.signing import sign_with
from workers.configuration import load_settings
from workers.logs import configure_logging, get_logger
from workers.queue_watch import SENT_AT
from workers.services import Services, find_foreign
from workers.settings import Settings

log = get_logger(__name__)

PUBLISH_RETRIES: Final = {"max_retries": 3, "interval_start": 0.0, "interval_step": 0.2, "interval_max": 0.5}
"""How often kombu tries again to send a message or to open a connection to the broker. All attempts together take about
a second; then the sender continues without the message.
"""

MODULES: Final = (
    "tasks.reservations",
    "tasks.ticks",
    "tasks.machines",
    "tasks.canary",
)


def make_app(settings: Settings) -> LeaseholdApp:
    """Return the Celery application for these settings."""
    app = LeaseholdApp(
        "leasehold",
        # Given, because Celery would look for the loader and for Django's settings in the environment of the user.
        loader="app",
        fixups=[],
        task_cls="tasks.base:LeaseholdTask",
        include=MODULES,
        amqp="tasks.signing:SigningAMQP" if settings.access.mode != "open" else None,
    )
    app.conf.update(_tasks(settings), **_broker(settings))
    app.conf.update(
        beat_schedule=make_schedule(settings),
        # The schedule is kept in memory, without a file; each entry is due one interval after the start.
        beat_scheduler="tasks.beat:PunctualScheduler",
    )
    app.services = Services(
        settings,
        lambda: CeleryDispatcher(app, tick_seconds=settings.ticks.interval, now=app.services.clock.now),
    )
    return app


def _tasks(settings: Settings) -> dict[str, Any]:
    return {
        "task_serializer": "json",
        "accept_content": ["json"],
        "event_serializer": "json",
        "result_backend": None,
        "task_ignore_result": True,
        "task_store_errors_even_if_ignored": False,
        "task_queues": list_queues(),
        "task_routes": list_routes(),
        "task_default_queue": RESERVATIONS,
        "task_create_missing_queues": False,
        "task_acks_late": True,
        "task_acks_on_failure_or_timeout": True,
        "task_reject_on_worker_lost": False,
        "task_track_started": True,
        "task_publish_retry": True,
        "task_publish_retry_policy": PUBLISH_RETRIES,
        "task_time_limit": settings.celery.hard_time_limit,
        "task_soft_time_limit": settings.celery.soft_time_limit,
        "enable_utc": True,
        "timezone": "UTC",
        "worker_prefetch_multiplier": 1,
        "worker_soft_shutdown_timeout": settings.celery.soft_shutdown,
        "worker_enable_soft_shutdown_on_idle": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_send_task_events": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
        "worker_consumer": "tasks.consumer:Consumer",
    }


def _broker(settings: Settings) -> dict[str, Any]:
    url, user, password = split_login(settings.broker_url)
    return {
        # All three, because a CELERY_BROKER_URL of the environment (tasks/__init__.py) would replace a missing one.
        "broker_url": url,
        "broker_read_url": url,
        "broker_write_url": url,
        # The login is kept out of the URLs: a remote `inspect conf`, which Flower shows, hides only keys that are named
        # password, and of URLs only `broker_url`.
        "broker_user": user,
        "broker_password": password,
        "broker_use_ssl": find_tls(settings.broker_url),
        "broker_pool_limit": 5,
        "broker_connection_retry": True,
        "broker_connection_retry_on_startup": True,
        "broker_connection_max_retries": None,
        "broker_connection_timeout": 3.0,
        "broker_transport_options": {
            **PUBLISH_RETRIES,
            "visibility_timeout": settings.celery.visibility_timeout,
            "unacked_restore_interval": 5,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": 30,
            "socket_timeout": 30,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "view_prefix": settings.view.prefix,
        },
    }


def split_login(url: str | None) -> tuple[str | None, str | None, str | None]:
    """Return (1) the Redis URL without its login and TLS parameters, (2) the user, (3) the password; None for a part
    that the URL does not have.
    """
    if url is None:
        return None, None, None
    parts = urlsplit(url)
    login, _, place = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    given = parse_qsl(parts.query)
    kept = urlencode([(name, value) for name, value in given if is_shown(name)])
    password = unquote(password) or dict(given).get("password", "")
    return urlunsplit(parts._replace(netloc=place, query=kept)), unquote(user) or None, password or None


def find_tls(url: str | None) -> dict[str, Any] | bool:
    """Return kombu's TLS options for a rediss:// URL; False for a URL without TLS.

    The server's certificate is verified unless the URL disables it; kombu's default is no verification. Flower reads
    its options only from this setting.
    """
    if url is None or not url.startswith("rediss://"):
        return False
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, **parse_url(url).get("ssl", {})}


def _read_settings() -> Settings:
    """Return the settings of this process. If they are invalid, end the process with one line for each fault."""
    try:
        return load_settings()
    except InvalidInputError as error:
        sys.exit("\n".join(f"leasehold: {fault}" for fault in error.faults))


def require_broker() -> None:
    """End this process with a line on stderr unless the settings name a broker. There is no default broker."""
    if settings.broker_url is None:
        sys.exit("leasehold: broker.url: expected the URL of a Redis (LEASEHOLD_BROKER__URL), got nothing")


def refuse_foreign() -> None:
    """End this process with a line on stderr if its Redis belongs to another cluster, or if its database was reset to
    an older state.
    """
    if line := find_foreign(settings):
        sys.exit(f"leasehold: {line}")


settings: Final = _read_settings()
app: Final = make_app(settings)
LeaseholdApp.of_process = app
sign_with(app, lambda: app.services.access)


@celeryd_init.connect(weak=False)
def _guard_queues(conf: Any, **_signal: object) -> None:
    """Use the project's transport, which checks messages, in workers. Other processes, like Flower, use the transport
    that the URL's scheme names.
    """
    conf.broker_transport = "tasks.transport:Transport"


@celeryd_after_setup.connect(weak=False)
def _report_schema(**_signal: object) -> None:
    """Before a worker consumes messages, check the database schema; log a line if it is older or newer than the
    program.
    """
    with suppress(InvalidInputError):
        if fault := app.services.find_schema_fault():
            log.error(
                "The database schema is older or newer than this program expects.", action="schema.unfit", error=fault
            )


@before_task_publish.connect(weak=False)
def _note_time(headers: dict[str, Any], **_signal: object) -> None:
    """Set two times of a message before this process sends it: the cluster time of the sending, and the expiry, which
    is converted to cluster time. A message that already has a time of sending is not changed.

    Celery computes the expiry from the wall clock of this host. The metrics process computes the age of waiting
    messages from the time of sending.
    """
    if SENT_AT in headers:
        return
    wall, now = time.time(), app.services.clock.now()
    headers[SENT_AT] = now
    if headers.get("expires"):
        headers["expires"] = move_instant(headers["expires"], now - wall)


@worker_process_init.connect(weak=False)
def _warm_up(**_signal: object) -> None:
    """Prepare the connections in each process of a worker's process pool after its fork. A pool of threads does this in
    tasks/worker.py.
    """
    app.services.warm_up(fleet=False)


@setup_logging.connect(weak=False)
def _set_up_logging(**_signal: object) -> None:
    """Configure the project's logging. Because Celery's signal for this has a receiver, Celery itself configures no
    logging.
    """
    configure_logging(settings.log.format, settings.log.level)
