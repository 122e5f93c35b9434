"""Check whether one process on this host does its work. Health checks of containers and service managers use this check
through `leasehold alive`.

A worker must take a canary (a test message) from its queue and answer it, because a worker that answers Celery's pings
may still consume no messages. If several hosts share a queue, a worker of any host may take a canary. Canaries are
therefore sent until one is answered from this host.
"""

import secrets
import socket
import urllib.error
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import redis

from leasehold.client.redis.connection import explain_redis
from leasehold.client.redis.own_transport import open_wire
from leasehold.client.redis.transport import RequestTransport
from leasehold.errors import BadCredentials, Unavailable
from scheduler.ports import ViewUnavailableError
from scheduler.protocol.loopback import open_local
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.view.forecasts import KEPT_SECONDS, RedisForecasts
from tasks.alive import read_sign, sing
from tasks.clock import LATE_INTERVALS
from workers.settings import Settings

PROCESSES: Final = (*QUEUE_NAMES, "beat", "foresight", "flower", "console", "metrics", "emulator")
_NO_BROKER: Final = "broker.url: expected the URL of a Redis, got nothing"
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - the server listens there


def find_trouble(process: str, settings: Settings, seconds: float) -> str | None:
    """Return a sentence that explains why a process on this host does not work, or None if the process works.
    `process`: an element of PROCESSES: the queue of a worker, or another process such as `beat`. The check takes about
    `seconds` at most.
    """
    match process:
        case "beat":
            usual = LATE_INTERVALS * settings.ticks.interval
            return _find_late(process, "celery.beat_file", settings.celery.beat_file, usual, "sent")
        case "foresight":
            usual = LATE_INTERVALS * settings.foresight.interval
            if settings.celery.alive_file is None:
                return _find_old_forecasts(settings, usual)
            return _find_late(process, "celery.alive_file", settings.celery.alive_file, usual, "published")
        case "flower":
            return _find_silence(_url(settings.flower.host, settings.flower.port, "healthcheck"), seconds)
        case "console":
            page = f"{settings.console.prefix}/healthz".lstrip("/")
            return _find_silence(_url(settings.console.host, settings.console.port, page), seconds)
        case "metrics":
            return _find_silence(_url(settings.metrics.host, settings.metrics.port, "metrics"), seconds)
        case "emulator":
            if settings.aws.endpoint_url is None:
                return "aws.endpoint_url: expected the emulator's URL, got nothing"
            return _find_silence(f"{settings.aws.endpoint_url}/_leasehold/health", seconds)
        case queue:
            return _find_idle_worker(queue, settings, seconds)


def _find_late(process: str, setting: str, file: str | None, usual: float, done: str) -> str | None:
    """Return why a process that writes a sign of life into a file does not work. `setting`: the name of the setting
    that has the file; `usual`: the age that counts as late if the file states none; `done`: what the process does.
    """
    if file is None:
        return f"{setting}: expected the file that {process} touches, got nothing"
    try:
        sign = read_sign(Path(file))
    except OSError as error:
        return f"{process} has not started, because its file {file} cannot be read: {error.strerror}"
    if sign.age > (usual if sign.seconds is None else sign.seconds):
        return f"{process} has {done} nothing for {sign.age:.0f} s"
    return sign.refusal or None


def _find_old_forecasts(settings: Settings, usual: float) -> str | None:
    """Return why no process `foresight` of the cluster works, by the age of the forecasts in the view."""
    if settings.broker_url is None:
        return _NO_BROKER
    with closing(open_wire(settings)) as wire:
        try:
            found = RedisForecasts(wire.redis, settings.view.prefix).read_summary()
        except (Unavailable, BadCredentials, ViewUnavailableError) as error:
            return str(error)
        if found is None:
            return f"foresight has published nothing for {KEPT_SECONDS} s, or has not started"
        age = wire.clock.now() - found.as_of
    return f"foresight has published nothing for {age:.0f} s" if age > usual else None


def _find_silence(url: str, seconds: float) -> str | None:
    try:
        with open_local(url, seconds) as answer:
            return None if answer.read(1) else f"{url} sent an empty answer"
    except (urllib.error.URLError, OSError) as error:
        return f"{url} does not answer: {error}"


def _url(host: str, port: int, page: str) -> str:
    reached = _EVERYWHERE.get(host, host)
    return f"http://[{reached}]:{port}/{page}" if ":" in reached else f"http://{reached}:{port}/{page}"


def _find_idle_worker(queue: str, settings: Settings, seconds: float) -> str | None:
    if settings.broker_url is None:
        return _NO_BROKER
    with closing(open_wire(settings)) as wire:
        try:
            return _await_canary(wire, queue, seconds) or _find_refusal(queue, settings)
        except (Unavailable, BadCredentials) as error:
            return str(error)
        except redis.RedisError as error:
            return str(explain_redis(error, wire.view_url, "take answers"))


def _await_canary(wire: RequestTransport, queue: str, seconds: float) -> str | None:
    address = wire.reply_address(f"alive-{secrets.token_hex(8)}")

    def take(left: float) -> bytes | None:
        got: Any = wire.redis.blpop([address], timeout=left)
        return None if got is None else got[1]

    answer = sing(lambda left: wire.send_canary(queue, address, expires=left), take, seconds, socket.gethostname())
    if answer.refusal:
        return f"the worker of the queue {queue} refused the canary: {answer.refusal}"
    if answer.host is not None:
        return None
    known = f", workers on {', '.join(answer.others)} did" if answer.others else ""
    return f"no worker of the queue {queue} on this host answered in {seconds:g} s{known}"


def _find_refusal(queue: str, settings: Settings) -> str | None:
    """Return why other workers refuse the messages of this worker, as it noted itself in `celery.alive_file`."""
    if settings.celery.alive_file is None:
        return None
    try:
        sign = read_sign(Path(settings.celery.alive_file))
    except OSError:
        return None
    return sign.refusal or None if sign.process == queue else None
