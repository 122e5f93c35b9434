"""`leasehold alive`: each process has to show that it works; if not, one line gives the reason."""

import base64
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import redis
from celery.signals import after_task_publish

from leasehold.liveness import PROCESSES
from scheduler.model.forecasts import Foreseen
from scheduler.protocol.clock import read_monotonic
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.view.forecasts import RedisForecasts
from tasks.alive import NEVER, WORKER_SECONDS, AliveFile
from tasks.clock import record_sends
from testbed.servers import open_redis, redis_server, redis_url
from tests.cli.conftest import Outcome, Run, run

__all__ = ["open_redis", "redis_server", "redis_url", "run"]

UNREACHABLE = "redis://127.0.0.1:1/0"
TICK_SECONDS = 5.0
Ask = Callable[..., Outcome]


@pytest.fixture
def ask(run: Run, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Return a function that runs `leasehold alive PROCESS` with these settings."""

    def command(process: str, **settings: str) -> Outcome:
        for name, value in settings.items():
            monkeypatch.setenv(f"LEASEHOLD_{name}", value)
        return run("alive", process, "--timeout", "1.5")

    return command


@contextmanager
def workers_on(client: redis.Redis, queue: str, *hosts: str) -> Iterator[list[dict[str, Any]]]:
    """Run workers of this queue on these hosts, which take messages in turn; yield the headers of these messages."""
    over = threading.Event()
    taken: list[dict[str, Any]] = []

    def serve() -> None:
        while not over.is_set():
            got: Any = client.brpop([queue], timeout=0.1)
            if got is None:
                continue
            envelope = json.loads(got[1])
            (address,), _, _ = json.loads(base64.b64decode(envelope["body"]))
            host = hosts[len(taken) % len(hosts)]
            taken.append(envelope["headers"])
            client.rpush(address, json.dumps({"ok": True, "queue": queue, "host": host, "pid": 1}))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield taken
    finally:
        over.set()
        thread.join()


@pytest.fixture
def worker_client(redis_url: str, open_redis: Callable[[str], redis.Redis]) -> redis.Redis:
    return open_redis(redis_url)


@pytest.mark.parametrize("queue", QUEUE_NAMES)
def test_a_worker_is_alive_when_it_takes_a_canary(
    queue: str, redis_url: str, worker_client: redis.Redis, ask: Ask
) -> None:
    with workers_on(worker_client, queue, socket.gethostname()) as taken:
        found = ask(queue, BROKER__URL=redis_url)
    assert (found.status, found.out, found.err) == (0, f"{queue} is alive\n", "")
    assert [each["task"] for each in taken] == [f"leasehold.{queue}.canary"]


def test_a_canary_that_no_worker_takes_is_removed(redis_url: str, worker_client: redis.Redis, ask: Ask) -> None:
    found = ask("ticks", BROKER__URL=redis_url)
    assert found.status == 1
    assert found.complaints == ["leasehold: no worker of the queue ticks on this host answered in 1.5 s"]
    left: Any = worker_client.lrange("ticks", 0, -1)
    assert [json.loads(body)["headers"]["expires"] for body in left] != [None]


def test_canaries_are_sent_until_one_is_answered_from_this_host(
    redis_url: str, worker_client: redis.Redis, ask: Ask
) -> None:
    """Two hosts share the queue, so a worker of either may take a canary."""
    with workers_on(worker_client, "ticks", "elsewhere", socket.gethostname()) as taken:
        assert ask("ticks", BROKER__URL=redis_url).status == 0
    assert len(taken) == 2


def test_an_answer_from_a_worker_on_another_host_does_not_count(
    redis_url: str, worker_client: redis.Redis, ask: Ask
) -> None:
    with workers_on(worker_client, "ticks", "elsewhere"):
        found = ask("ticks", BROKER__URL=redis_url)
    assert found.status == 1
    assert found.complaints[0].endswith("on this host answered in 1.5 s, workers on elsewhere did")


def test_without_a_file_foresight_is_alive_while_its_forecasts_are_new(
    redis_url: str, worker_client: redis.Redis, ask: Ask
) -> None:
    forecasts = RedisForecasts(worker_client)
    missing = ask("foresight", BROKER__URL=redis_url)
    forecasts.publish(Foreseen(as_of=time.time() - 1000), b"")
    old = ask("foresight", BROKER__URL=redis_url)
    forecasts.publish(Foreseen(as_of=time.time()), b"")
    assert ask("foresight", BROKER__URL=redis_url).out == "foresight is alive\n"
    assert [found.status for found in (missing, old)] == [1, 1]
    assert "foresight has published nothing for 600 s, or has not started" in missing.err
    assert "foresight has published nothing for 1000 s" in old.err


@pytest.mark.parametrize(
    ("process", "settings", "complaint"),
    [
        ("ticks", {"BROKER__URL": UNREACHABLE}, "Redis at redis://127.0.0.1:1/0"),
        ("ticks", {}, "broker.url: expected the URL of a Redis, got nothing"),
        ("beat", {}, "celery.beat_file: expected the file that beat touches, got nothing"),
        ("beat", {"CELERY__BEAT_FILE": "nowhere"}, "beat has not started, because its file nowhere cannot be read"),
        ("foresight", {}, "broker.url: expected the URL of a Redis, got nothing"),
        ("foresight", {"BROKER__URL": UNREACHABLE}, "connecting to 127.0.0.1:1"),
        ("foresight", {"CELERY__ALIVE_FILE": "nowhere"}, "foresight has not started, because its file nowhere cannot"),
        ("emulator", {}, "aws.endpoint_url: expected the emulator's URL, got nothing"),
        (
            "emulator",
            {"AWS__ENDPOINT_URL": "http://127.0.0.1:1"},
            "http://127.0.0.1:1/_leasehold/health does not answer",
        ),
        ("flower", {"FLOWER__PORT": "1"}, "http://127.0.0.1:1/healthcheck does not answer"),
        ("console", {"CONSOLE__PORT": "1", "CONSOLE__PREFIX": "/x"}, "http://127.0.0.1:1/x/healthz does not answer"),
        ("metrics", {"METRICS__PORT": "1"}, "http://127.0.0.1:1/metrics does not answer"),
    ],
)
def test_a_failed_check_is_reported_in_one_line(
    process: str, settings: dict[str, str], complaint: str, ask: Ask
) -> None:
    found = ask(process, **settings)
    assert (found.status, len(found.complaints)) == (1, 1)
    assert complaint in found.complaints[0]


def test_an_unknown_process_is_bad_input(ask: Ask) -> None:
    found = ask("nonsense")
    assert found.status == 2
    assert "expected one of reservations, ticks" in found.complaints[0]


@pytest.mark.parametrize("jump", [-600, 600])
def test_a_jump_of_the_wall_clock_makes_beat_neither_late_nor_alive(tmp_path: Path, ask: Ask, jump: float) -> None:
    file = tmp_path / "beat"
    record_sends(file, TICK_SECONDS)
    os.utime(file, (time.time() - jump, time.time() - jump))
    assert ask("beat", CELERY__BEAT_FILE=str(file)).status == 0
    AliveFile(file, "beat", 3 * TICK_SECONDS, read_monotonic() - 60)
    os.utime(file, (time.time() - jump, time.time() - jump))
    assert ask("beat", CELERY__BEAT_FILE=str(file)).status == 1


def test_beat_writes_its_file_with_each_periodic_task_that_it_sent(tmp_path: Path, ask: Ask) -> None:
    file = tmp_path / "beat"
    record_sends(file, TICK_SECONDS)
    AliveFile(file, "beat", 3 * TICK_SECONDS, read_monotonic() - 60)
    after_task_publish.send("leasehold.ticks.canary")
    late = ask("beat", CELERY__BEAT_FILE=str(file))
    assert (late.status, len(late.complaints)) == (1, 1)
    # One or two seconds more on a busy machine.
    assert re.fullmatch(r"leasehold: beat has sent nothing for [67]\d s", late.complaints[0])
    after_task_publish.send("leasehold.ticks.tick")
    assert ask("beat").status == 0


def test_the_process_foresight_is_late_if_it_has_published_nothing(tmp_path: Path, ask: Ask) -> None:
    file = tmp_path / "foresight"
    AliveFile(file, "foresight", 90.0, read_monotonic() - 80)
    assert ask("foresight", CELERY__ALIVE_FILE=str(file)).status == 0
    AliveFile(file, "foresight", 90.0, read_monotonic() - 200)
    found = ask("foresight")
    assert found.status == 1
    assert re.fullmatch(r"leasehold: foresight has published nothing for 20\d s", found.complaints[0])


def test_a_beat_file_that_cannot_be_written_is_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        record_sends(tmp_path / "nowhere" / "beat", TICK_SECONDS)


def test_a_file_without_a_time_counts_by_its_last_change(tmp_path: Path, ask: Ask) -> None:
    file = tmp_path / "beat"
    file.touch()
    assert ask("beat", CELERY__BEAT_FILE=str(file)).status == 0
    os.utime(file, (time.time() - 600, time.time() - 600))
    assert ask("beat").status == 1


def test_refused_messages_fail_the_check_until_they_are_accepted(tmp_path: Path, ask: Ask) -> None:
    file = record_sends(tmp_path / "beat", TICK_SECONDS)
    file.note_refusal("the worker of the queue ticks refuses its messages:\nsignature")
    found = ask("beat", CELERY__BEAT_FILE=str(tmp_path / "beat"))
    assert found.status == 1
    assert found.complaints == ["leasehold: the worker of the queue ticks refuses its messages: signature"]
    file.note_refusal("")
    assert ask("beat").status == 0


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = self.path in {"/healthcheck", "/healthz", "/metrics", "/_leasehold/health"}
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(b"OK")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Log nothing."""


@pytest.fixture
def port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Page)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize("process", ["flower", "console", "metrics", "emulator"])
def test_a_server_is_alive_when_its_page_answers(process: str, port: int, ask: Ask) -> None:
    """A server that listens on all addresses, as in a container, is checked on loopback."""
    settings = {
        "flower": {"FLOWER__HOST": "0.0.0.0", "FLOWER__PORT": str(port), "FLOWER__BASIC_AUTH": "a:b"},  # noqa: S104
        "console": {"CONSOLE__HOST": "0.0.0.0", "CONSOLE__PORT": str(port)},  # noqa: S104
        "metrics": {"METRICS__HOST": "0.0.0.0", "METRICS__PORT": str(port)},  # noqa: S104
        "emulator": {"AWS__ENDPOINT_URL": f"http://127.0.0.1:{port}"},
    }
    assert ask(process, **settings[process]).status == 0


CHECK = Path(__file__).parents[2] / "compose" / "alive"


def check(process: str, **settings: object) -> tuple[int, str]:
    """Run the health check of the containers; return its status and its line."""
    environment = {"PATH": os.defpath, **{f"LEASEHOLD_{name}": str(value) for name, value in settings.items()}}
    done = subprocess.run(
        ["/bin/bash", str(CHECK), process], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout == ""
    return done.returncode, done.stderr.removeprefix("leasehold: ").rstrip("\n")


@pytest.mark.parametrize(
    ("age", "refusal", "status", "line"),
    [
        (0, "", 0, ""),
        (59, "", 0, ""),
        # Nothing is consumed, or the process hangs.
        (70, "", 1, "ticks has shown no sign of life for (69|7.) s"),
        (0, "the queue launch refuses", 1, "the queue launch refuses"),
        # The file as it is written at the start.
        (None, "", 1, "ticks has not answered a canary yet"),
    ],
)
def test_the_check_in_a_container_reads_the_file_of_a_worker(
    age: float | None, refusal: str, status: int, line: str, tmp_path: Path
) -> None:
    at = NEVER if age is None else read_monotonic() - age
    AliveFile(tmp_path / "alive", "ticks", WORKER_SECONDS, at).note_refusal(refusal)
    found = check("ticks", CELERY__ALIVE_FILE=tmp_path / "alive")
    assert found[0] == status
    assert re.fullmatch(line, found[1])
    # Another process would read a file that is not its own.
    assert check("launch", CELERY__ALIVE_FILE=tmp_path / "alive") == (1, f"{tmp_path}/alive is the file of ticks")


def test_the_check_in_a_container_reads_the_file_of_beat(tmp_path: Path) -> None:
    record_sends(tmp_path / "beat", TICK_SECONDS)
    assert check("beat", CELERY__BEAT_FILE=tmp_path / "beat") == (0, "")
    AliveFile(tmp_path / "beat", "beat", 3 * TICK_SECONDS, read_monotonic() - 20)
    assert check("beat", CELERY__BEAT_FILE=tmp_path / "beat")[1].startswith("beat has shown no sign of life for 2")
    missing = tmp_path / "nowhere"
    assert check("beat", CELERY__BEAT_FILE=missing) == (1, f"beat has not started: {missing} cannot be read")
    assert check("beat") == (1, "the environment names no file for the process beat")


@pytest.mark.parametrize("process", ["flower", "console", "metrics"])
def test_the_check_in_a_container_asks_a_server_for_its_page(process: str, port: int) -> None:
    name = f"{process.upper()}__PORT"
    assert check(process, **{name: port}) == (0, "")
    status, lines = check(process, **{name: 1})
    assert (status, lines.splitlines()[-1]) == (1, "leasehold: nothing listens on port 1")


def test_the_check_in_a_container_refuses_an_answer_that_is_an_error(port: int) -> None:
    text = CHECK.read_text(encoding="utf-8").replace("healthz", "other")
    done = subprocess.run(
        ["/bin/bash", "-c", text, "alive", "console"],
        env={"PATH": os.defpath, "LEASEHOLD_CONSOLE__PORT": str(port)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, f"leasehold: port {port}, /other: expected the status 200, got 404\n")


def test_the_check_in_a_container_knows_every_process_and_starts_no_other_program_than_cat() -> None:
    for process in PROCESSES:
        assert "expected a process" not in check(process)[1]
    assert check("nonsense") == (1, "expected a process that runs in a container, got 'nonsense'")
    assert not re.search(r"python|leasehold alive [a-z]", re.sub(r"(?m)^ *#.*$", "", CHECK.read_text(encoding="utf-8")))
