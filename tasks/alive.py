"""The file by which a health check sees that this process works and that its messages are accepted. Beat and the
workers write it; `leasehold alive` reads it, and so does the check of a container (compose/alive), which starts no
Python.

The file has two lines: `<time> <seconds> <process>`, and the reason why messages of this process are refused, which is
empty if they are not. The process works if at most <seconds> have passed since <time> on the monotonic clock
(`read_monotonic`, on Linux the first number of /proc/uptime).
"""

import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import redis
from kombu.exceptions import OperationalError

from scheduler.model.validation import InvalidInputError
from scheduler.protocol.clock import read_monotonic
from scheduler.protocol.names import CANARY, QUEUE_NAMES, RedisNames, task_name
from workers.logs import get_logger

if TYPE_CHECKING:
    from celery import Celery

    from workers.services import Services

log = get_logger(__name__)

RESEND_SECONDS: Final = 2.0
PAUSE_SECONDS: Final = 0.1
ROUND_SECONDS: Final = 15.0
"""Pause between two rounds of the self-check of a process."""
OWN_SECONDS: Final = 10.0
OTHER_SECONDS: Final = 5.0
WORKER_SECONDS: Final = 60.0
"""A worker counts as alive for this time after it answered a canary of its own: two rounds, and the tasks before it."""


NEVER: Final = 0.0
"""The time in the file of a worker that has answered none of its canaries yet."""


class Sign(NamedTuple):
    """The content of the file: the seconds since the last sign of life (`age`), for how long it counts (`seconds`; None
    if the file has only a time), the process, and why its messages are refused ("": they are not).
    """

    age: float
    seconds: float | None
    process: str
    refusal: str


class AliveFile:
    """Writes the file, first with the time `at`. Threads may share an object. Raises OSError if the file cannot be
    written at first; a later failure, like a full disk, must not stop the process, and a health check sees the old
    file.
    """

    def __init__(self, path: Path, process: str, seconds: float, at: float) -> None:
        self._path, self._process, self._seconds, self._at = path, process, seconds, at
        self._guard = threading.Lock()
        self._refusal = ""
        self._write()

    def note_life(self) -> None:
        """Note that the process did its work just now."""
        self._at = read_monotonic()
        with suppress(OSError):
            self._write()

    def note_refusal(self, refusal: str) -> None:
        """Note why messages of this process are refused; "" if they are accepted."""
        self._refusal = refusal
        with suppress(OSError):
            self._write()

    def _write(self) -> None:
        # Replaced at once, so that no check reads half of it. Several processes of a worker write the same file.
        with self._guard:
            new = self._path.with_name(f"{self._path.name}.{os.getpid()}")
            line = " ".join(self._refusal.split())
            new.write_text(f"{self._at:.3f} {self._seconds:g} {self._process}\n{line}\n", encoding="utf-8")
            new.replace(self._path)


def read_sign(path: Path) -> Sign:
    """Return the content of the file. Raises OSError if it cannot be read.

    If it has no time (a foreign program wrote it), the time of its last change counts.
    """
    first, _, rest = path.read_text(encoding="utf-8", errors="replace").partition("\n")
    try:
        at, *more = first.split()
        age = max(read_monotonic() - float(at), 0.0)
        return Sign(age, float(more[0]) if more else None, " ".join(more[1:]), rest.strip())
    except ValueError:
        return Sign(max(time.time() - path.stat().st_mtime, 0.0), None, "", "")


class Answer(NamedTuple):
    """What became of a canary: the host of the worker that answered (None: no answer), why a worker refused it (""
    if none did), and the other hosts that answered.
    """

    host: str | None = None
    refusal: str = ""
    others: Sequence[str] = ()


def sing(
    send: Callable[[float], object],
    take: Callable[[float], bytes | None],
    seconds: float,
    host: str | None = None,
) -> Answer:
    """Send canaries until a worker answers, for at most `seconds`. `send` sends one that expires after the given time;
    `take` waits for an answer, at most the given time.

    If several hosts share a queue, a worker of any host may take a canary. With `host`, canaries are sent until a
    worker of this host answers.
    """
    until, others = time.monotonic() + seconds, set()
    while (left := until - time.monotonic()) > 0:
        send(left)
        got = take(min(left, RESEND_SECONDS))
        if got is None:
            continue
        answer = msgspec.json.decode(got, type=dict[str, Any])
        if not answer.get("ok"):
            return Answer(refusal=describe_refusal(answer.get("errors")))
        found = str(answer.get("host"))
        if host in {None, found}:
            return Answer(host=found)
        others.add(found)
        time.sleep(PAUSE_SECONDS)
    return Answer(others=sorted(others))


def describe_refusal(errors: Any) -> str:
    """Return the errors of a refused canary as text."""
    try:
        return "; ".join(f"{each['path']}: expected {each['expected']}, got {each['got']}" for each in errors)
    except (KeyError, TypeError):
        return str(errors)


class SelfCheck:
    """Sends canaries with the producer and the signature of this process, and notes in its file what became of them.

    A worker must take a canary from its own queue (`own`), which shows that it consumes messages and reaches Redis; a
    worker that answers Celery's pings may still consume none. A canary to the other queues, one in each round, shows
    whether messages of this process are accepted there.
    """

    def __init__(self, app: "Celery", client: Callable[[], redis.Redis], names: RedisNames, file: AliveFile) -> None:
        self._app, self._client, self._names, self._file = app, client, names, file
        self._refusals: dict[str, str] = {}

    def check(self, queue: str, *, own: bool) -> None:
        """Send a canary to this queue, and note its answer. Nothing is noted about a queue without an answer, because
        this is a fault of its worker.
        """
        address = self._names.reply(f"alive-{secrets.token_hex(8)}")
        host = socket.gethostname() if own else None

        def send(seconds: float) -> None:
            self._app.send_task(task_name(queue, CANARY), args=[address], expires=seconds)

        def take(seconds: float) -> bytes | None:
            got: Any = self._client().blpop([address], timeout=seconds)
            return None if got is None else got[1]

        answer = sing(send, take, OWN_SECONDS if own else OTHER_SECONDS, host)
        if answer.refusal:
            self._note(queue, answer.refusal)
        elif answer.host or answer.others:
            self._note(queue, "")
        if own and answer.host:
            self._file.note_life()

    def _note(self, queue: str, refusal: str) -> None:
        if refusal and queue not in self._refusals:
            log.error(
                "Workers refuse the messages of this process.", action="messages.refused", queue=queue, why=refusal
            )
        self._refusals.pop(queue, None)
        if refusal:
            self._refusals[queue] = refusal
        refused = [
            f"the worker of the queue {name} refuses its messages: {why}" for name, why in self._refusals.items()
        ]
        self._file.note_refusal(refused[0] if refused else "")

    def run(self, own: str | None, pause: Callable[[float], object] = time.sleep) -> None:
        """Check one queue after the other, and the queue `own` in each round, without end."""
        queues = [queue for queue in QUEUE_NAMES if queue != own]
        # Each process begins with another queue, so that those that start together do not all ask the same worker.
        first = os.getpid() % len(queues)
        others = cycle([*queues[first:], *queues[:first]])
        while True:
            for queue in (*([own] if own else []), next(others)):
                # Without Redis or the database nothing is known; the file grows old meanwhile.
                with suppress(OperationalError, redis.RedisError, OSError, InvalidInputError):
                    self.check(queue, own=queue == own)
            pause(ROUND_SECONDS)


def start_self_check(app: "Celery", services: "Services", file: AliveFile, own: str | None) -> None:
    """Check this process in a thread of its own, until the process ends."""
    check = SelfCheck(app, lambda: services.redis, RedisNames(services.settings.view.prefix), file)
    threading.Thread(target=check.run, args=(own,), name="leasehold-self-check", daemon=True).start()
