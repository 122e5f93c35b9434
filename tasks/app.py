"""The Celery application: `celery -A tasks.app worker -Q ticks`. It connects to nothing when it is imported.

Why each setting is what it is stands in docs/how-to/operations.md.
"""

import ssl
import sys
import time
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from celery import Celery
from celery.signals import before_task_publish, celeryd_after_setup, celeryd_init, setup_logging, worker_process_init
from kombu.utils.url import parse_url

from leasehold.common.masking import is_shown
from scheduler.model.validation import InvalidInputError
from tasks.beat import make_schedule
from tasks.dispatch import CeleryDispatcher
from tasks.messages import move_instant
from tasks.queues import RESERVATIONS, list_queues, list_routes
from tasks.signing import sign_with
from workers.configuration import load_settings
from workers.logs import configure_logging, get_logger
from workers.queue_watch import SENT_AT
from workers.services import Services
from workers.settings import Settings

log = get_logger(__name__)

PUBLISH_RETRIES: Final = {"max_retries": 3, "interval_start": 0.0, "interval_step": 0.2, "interval_max": 0.5}
"""Of a message and of the connection for it: about a second in all, then what sends it goes on without."""

MODULES: Final = (
    "tasks.reservations",
    "tasks.ticks",
    "tasks.launch",
    "tasks.health",
    "tasks.terminate",
    "tasks.canary",
)


def make_app(settings: Settings) -> Celery:
    """The application by these settings."""
    signs = settings.access.mode != "open"
    app = Celery(
        "leasehold",
        task_cls="tasks.base:LeaseholdTask",
        include=MODULES,
        amqp="tasks.signing:SigningAMQP" if signs else None,
    )
    app.conf.update(_messages(settings), **_broker(settings), **_workers(settings))
    app.conf.update(
        beat_schedule=make_schedule(settings),
        # In memory: no file is left anywhere, and each entry is due an interval after the start.
        beat_scheduler="tasks.punctual:PunctualScheduler",
    )
    return app


def _messages(settings: Settings) -> dict[str, Any]:
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
    }


def _broker(settings: Settings) -> dict[str, Any]:
    url, user, password = split_login(settings.broker_url)
    return {
        # All three: a CELERY_BROKER_URL of the surroundings must not win over our settings.
        "broker_url": url,
        "broker_read_url": url,
        "broker_write_url": url,
        # Workers answer a remote `inspect conf`, and Flower shows it: Celery hides what is named password, and of URLs
        # only `broker_url`.
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
    """A URL without its login and without secret parameters, the user, and the password. What a parameter says of TLS
    is in `find_tls`.
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
    """What the query of a rediss:// URL says, with the server's certificate verified unless it says otherwise (kombu
    would verify nothing); False without TLS. Flower reads it here, and here only.
    """
    if url is None or not url.startswith("rediss://"):
        return False
    return {"ssl_cert_reqs": ssl.CERT_REQUIRED, **parse_url(url).get("ssl", {})}


def _workers(settings: Settings) -> dict[str, Any]:
    return {
        "worker_prefetch_multiplier": 1,
        "worker_soft_shutdown_timeout": settings.celery.soft_shutdown,
        "worker_enable_soft_shutdown_on_idle": False,
        "worker_cancel_long_running_tasks_on_connection_loss": False,
        "worker_send_task_events": True,
        "worker_hijack_root_logger": False,
        "worker_redirect_stdouts": False,
    }


def _read_settings() -> Settings:
    """The settings of this process; a fault in them ends it with one line for each."""
    try:
        return load_settings()
    except InvalidInputError as error:
        sys.exit("\n".join(f"leasehold: {fault}" for fault in error.faults))


def require_broker() -> None:
    """End this process with a line unless the settings name a broker; there is no default to fall back to."""
    if settings.broker_url is None:
        sys.exit("leasehold: broker.url: expected the URL of a Redis (LEASEHOLD_BROKER__URL), got nothing")


def refuse_foreign() -> None:
    """End this process with a line if its Redis belongs to another cluster, or its database is an older state."""
    if line := services.find_foreign():
        sys.exit(f"leasehold: {line}")


def _make_dispatcher() -> CeleryDispatcher:
    return CeleryDispatcher(
        app,
        tick_seconds=settings.ticks.interval,
        resend_seconds=settings.recover_interval,
        sweep_seconds=settings.sweep_interval,
    )


settings: Final = _read_settings()
app: Final = make_app(settings)
services: Final = Services(settings, _make_dispatcher)
sign_with(app, lambda: services.access)


@celeryd_init.connect(weak=False)
def _guard_queues(conf: Any, **_signal: object) -> None:
    """In workers alone: Flower and people know the broker by the scheme of its URL, which this replaces."""
    conf.broker_transport = "tasks.transport:Transport"


@celeryd_after_setup.connect(weak=False)
def _report_schema(**_signal: object) -> None:
    """In workers, before they consume: report a schema that is older or newer than the program."""
    with suppress(InvalidInputError):
        if fault := services.find_schema_fault():
            log.error("The schema of the database is not this program's.", action="schema.unfit", error=fault)


@before_task_publish.connect(weak=False)
def _note_time(headers: dict[str, Any], **_signal: object) -> None:
    """Stamp what this process sends with cluster time: when it was sent (by it the metrics process knows how old a
    message is that waits), and when it expires. Celery counts from the wall clock of this host. A client in this
    process stamps its own messages.
    """
    if SENT_AT in headers:
        return
    wall, now = time.time(), services.clock.now()
    headers[SENT_AT] = now
    if headers.get("expires"):
        headers["expires"] = move_instant(headers["expires"], now - wall)


@worker_process_init.connect(weak=False)
def _warm_up(**_signal: object) -> None:
    """In each process of a pool, after the fork. (Pools of threads are warmed up by tasks/worker.py.)"""
    services.warm_up(fleet=False)


@setup_logging.connect(weak=False)
def _set_up_logging(**_signal: object) -> None:
    """Celery leaves logging alone once somebody listens here."""
    configure_logging(settings.log.format, settings.log.level)
