"""Celery without a broker: names and routes, alarms, readable arguments, start conditions."""

import os
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from celery.exceptions import InvalidTaskError
from celery.schedules import schedule
from kombu.exceptions import OperationalError

from scheduler.model.command_schemas import SCHEMAS
from scheduler.model.reservations import Callback
from scheduler.model.validation import Fault
from scheduler.ports import CloudError, Defect, OutboxMessage, StoreUnavailableError, ViewUnavailableError
from scheduler.protocol.names import QUEUE_NAMES, RESERVATIONS, task_name
from tasks.app import app, make_app
from tasks.base import LeaseholdTask
from tasks.beat import PunctualScheduler, make_schedule
from tasks.dispatch import Alarm, CeleryDispatcher
from tasks.monitor import refuse
from tasks.queues import HELD_A_PROCESS, list_routes
from tasks.requests import ReadableRequest, describe_arguments
from tasks.worker import worker_options
from testbed.processes import Process, wait_for
from tests.builders import a_slot
from workers.services import PerProcess
from workers.settings import FlowerSettings, read_settings

ROOT = Path(__file__).parents[2]
UNREACHABLE = "redis://127.0.0.1:1/0"


@pytest.fixture(scope="module", autouse=True)
def _tasks() -> None:
    app.loader.import_default_modules()


def test_every_task_goes_to_the_queue_in_its_name() -> None:
    ours = [name for name in app.tasks if name.startswith("leasehold.")]
    assert {f"leasehold.reservations.{verb}" for verb in SCHEMAS} < set(ours)
    for name in ours:
        assert app.amqp.router.route({}, name)["queue"].name == name.split(".")[1]
    assert len(list_routes()) == len(QUEUE_NAMES)


def test_every_beat_entry_names_a_task_and_expires() -> None:
    for entry in make_schedule(read_settings()).values():
        assert entry["task"] in app.tasks
        assert entry["options"]["expires"] > 0


def test_beat_sleeps_until_the_next_task_is_due_and_no_less() -> None:
    """A task that is due later would make beat wake up again and again."""
    now = [datetime(2026, 1, 1, tzinfo=UTC)]
    every = schedule(run_every=2.0, nowfun=lambda: now[0], app=app)
    entry = PunctualScheduler.Entry(name="a tick", schedule=every, last_run_at=now[0], app=app)
    beat = PunctualScheduler(app, schedule={"a tick": entry}, lazy=True)
    assert make_app(read_settings()).conf.beat_scheduler == "tasks.beat:PunctualScheduler"
    assert beat.tick() == 2.0
    now[0] += timedelta(seconds=2)
    assert beat.is_due(entry)[0]


@pytest.mark.parametrize("jump", [-600.0, 600.0])
def test_a_jump_of_the_wall_clock_moves_nothing_in_the_schedule(jump: float) -> None:
    entries = make_schedule(read_settings())
    beat = PunctualScheduler(app, schedule={}, lazy=True)
    beat.update_from_dict(entries)
    names = sorted(entries)
    before = [beat.is_due(beat.schedule[name]) for name in names]
    with time_machine.travel(datetime.now(UTC) + timedelta(seconds=jump), tick=True):
        after = [beat.is_due(beat.schedule[name]) for name in names]
    assert [is_due for is_due, _ in after] == [is_due for is_due, _ in before]
    assert [wait for _, wait in after] == pytest.approx([wait for _, wait in before], abs=30)


def test_nothing_uses_an_eta_a_result_or_pickle() -> None:
    assert app.conf["result_backend"] is None
    assert app.conf.task_ignore_result
    assert list(app.conf.accept_content) == ["json"]
    assert app.conf.broker_transport_options["visibility_timeout"] > 2 * app.conf.task_time_limit
    source = "".join(path.read_text() for path in (ROOT / "tasks").glob("*.py"))
    assert "countdown=" not in source
    assert "eta=" not in source


def test_the_environment_does_not_choose_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CELERY_BROKER_URL", "redis://elsewhere:1/0")
    made = make_app(read_settings({"broker": {"url": "redis://here:1/0"}}))
    assert made.connection_for_write().hostname == "here"
    assert made.connection_for_read().hostname == "here"


SHOW_APP = """
from tasks.app import app, settings
app.loader.import_default_modules()
print(app.conf.humanize(with_defaults=True, censored=False), app.conf.broker_url, type(app.backend))
print(app.connection_for_read().as_uri(), app.connection_for_write().as_uri(), len(app.tasks))
"""


def test_another_celery_application_of_the_user_changes_no_setting_of_ours(tmp_path: Path) -> None:
    annotations = "task_annotations = {'*': {'rate_limit': '10/m'}}\nbroker_pool_limit = 1\n"
    for name in ("celeryconfig", "shop_config"):
        (tmp_path / f"{name}.py").write_text(annotations)
    elsewhere = "redis://127.0.0.1:1/0"
    foreign = {
        "CELERY_CONFIG_MODULE": "shop_config",
        "CELERY_LOADER": "default",
        "CELERY_BROKER_URL": elsewhere,
        "CELERY_BROKER_READ_URL": elsewhere,
        "CELERY_BROKER_WRITE_URL": elsewhere,
        "CELERY_RESULT_BACKEND": "no-such-backend://",
        "DJANGO_SETTINGS_MODULE": "shop.settings",
        "FORKED_BY_MULTIPROCESSING": "1",
    }
    own = {name: value for name, value in os.environ.items() if name not in foreign}
    own |= {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}", "LEASEHOLD_BROKER__URL": "redis://here:1/0"}
    shown = [
        subprocess.run(
            [sys.executable, "-c", SHOW_APP], cwd=tmp_path, env=each, capture_output=True, text=True, check=True
        ).stdout
        for each in (own, own | foreign)
    ]
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("url", "user", "password"),
    [
        ("redis://me:hunter2@here:1/3", "me", "hunter2"),
        ("redis://:a%40hunter2%2F@here:1/3", None, "a@hunter2/"),
        ("redis://me:a@hunter2@here:1/3", "me", "a@hunter2"),
        ("rediss://me:hunter2@here:1/3?ssl_cert_reqs=none&ssl_password=hunter2", "me", "hunter2"),
        ("redis://here:1/3?password=hunter2", None, "hunter2"),
        ("redis://here:1/3", None, None),
    ],
)
def test_connections_log_in_and_no_setting_of_celery_has_the_password_in_a_url(
    url: str, user: str | None, password: str | None
) -> None:
    made = make_app(read_settings({"broker": {"url": url}}))
    for connection in (made.connection_for_write(), made.connection_for_read(), made.connection()):
        found = (connection.hostname, connection.port, connection.virtual_host)
        assert (*found, connection.userid, connection.password) == ("here", 1, "3", user, password)
        assert "hunter2" not in connection.as_uri()
    assert "hunter2" not in str(made.conf.humanize(with_defaults=True, censored=True))
    hidden = {"broker_password", "broker_use_ssl"}
    assert "hunter2" not in str({name: value for name, value in made.conf.items() if name not in hidden})


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["linux-1", 7], "linux-1, 7"),
        ([{"id": "r1", "pool": "linux", "token": 5}], "r1"),
        ([{"reservation": "r1", "token": 5, "reply_to": "leasehold:reply:x"}], "r1"),
        ([{"items": [{"id": "r1"}, {"id": "r2"}]}], "2 items"),
        ([{"token": 5, "request": "q"}], '{"request": "q"}'),
        ([], ""),
        ([None, [["deep"]]], 'null, [["deep"]]'),
        (["redis://:secret@host/0"], "redis://:***@host/0"),
        (["x" * 1000], f"{'x' * 200}…"),
    ],
)
def test_arguments_are_shown_readably_and_without_tokens(arguments: list[Any], shown: str) -> None:
    assert describe_arguments(arguments) == shown


class _Message:
    """The part of a kombu message that a request reads."""

    delivery_info = properties = headers = None

    def __init__(self, payload: object) -> None:
        self.body = self.payload = payload


@pytest.mark.parametrize("payload", [[1], "abc", {"a": 1}, [1, 2, 3], [{}, {}, {}], ["abc", {}, {}], None])
def test_a_message_that_is_no_task_is_invalid_and_no_more(payload: object) -> None:
    headers = {"id": "1", "task": "leasehold.ticks.tick"}
    with pytest.raises(InvalidTaskError):
        ReadableRequest(_Message(payload), app=app, headers=headers, decoded=True)


def test_a_process_of_the_pool_gets_the_documents_of_a_request_once() -> None:
    """They are in the body. The headers contain them in Celery, too."""
    payload: list[Any] = [[{"items": [{"id": "r1"}, {"id": "r2"}]}], {}, None]
    headers = {"id": "1", "task": task_name(RESERVATIONS, "submit")}
    request = ReadableRequest(_Message(payload), app=app, headers=headers, decoded=True)
    assert request.args == payload[0]
    assert "r1" not in str(request.request_dict)


def test_an_alarm_rings_once_and_only_the_last_one() -> None:
    rung: list[str] = []
    done = threading.Event()

    def ring() -> None:
        rung.append("rung")
        done.set()

    alarm = Alarm(ring)
    alarm.set(60)
    alarm.set(0.01)
    assert done.wait(10)
    alarm.set(60)
    alarm.set(None)
    assert rung == ["rung"]


def _a_dispatcher() -> CeleryDispatcher:
    made = make_app(read_settings({"broker": {"url": UNREACHABLE}}))
    made.conf.task_publish_retry = False
    return CeleryDispatcher(made, tick_seconds=5)


def test_a_callback_that_the_broker_does_not_accept_is_a_connection_error() -> None:
    callback = Callback(task="producer.leased", queue="producer")
    with pytest.raises(ConnectionError):
        _a_dispatcher().send_callback(OutboxMessage(id="r1/leased", callback=callback, payload={}, created_at=0))


@pytest.mark.parametrize(
    "send",
    [
        lambda dispatcher: dispatcher.send_tick(),
        lambda dispatcher: dispatcher.send_launches([a_slot()]),
        lambda dispatcher: dispatcher.send_terminations([a_slot()]),
        lambda dispatcher: dispatcher.send_checks(["linux-1"]),
    ],
)
def test_without_a_broker_a_send_fails_by_its_name(send: Callable[[CeleryDispatcher], None]) -> None:
    with pytest.raises(OperationalError):
        send(_a_dispatcher())


def test_without_a_message_to_send_no_broker_is_needed() -> None:
    dispatcher = _a_dispatcher()
    dispatcher.send_launches([])
    dispatcher.send_terminations([])
    dispatcher.send_checks([])
    dispatcher.wake_at(None, 0)


@pytest.mark.parametrize(
    ("error", "result"),
    [
        (StoreUnavailableError("the disk is full"), "store_unavailable"),
        (ViewUnavailableError("no Redis"), "view_unavailable"),
        (OperationalError("refused"), "broker_unavailable"),
        (CloudError("transient", "InternalError", "?"), "cloud_error"),
        (None, "fine"),
    ],
)
def test_a_failure_in_a_task_is_a_result_and_not_an_exception(error: Exception | None, result: str) -> None:
    def run(name: str) -> str:
        if error is not None:
            raise error
        return name

    task = make_app(read_settings()).task(name="leasehold.test.run", base=_Unmeasured)(run)
    assert task("fine") == result
    assert task() == "refused"
    assert task(7) == "refused"
    assert task("fine", more=True) == "refused"


class _Unmeasured(LeaseholdTask):
    def measure(self, result: str, seconds: float) -> None:
        """There is no Redis to count in."""

    def _report(self, defect: Defect, faults: Sequence[Fault]) -> None:
        """As above."""


def test_a_fault_of_the_product_is_raised() -> None:
    def run() -> str:
        raise LookupError("ours")

    with pytest.raises(LookupError):
        make_app(read_settings()).task(name="leasehold.test.fault", base=_Unmeasured)(run)()


def test_a_child_makes_its_own_value() -> None:
    value = PerProcess(os.getpid)
    assert value.get() == value.get() == os.getpid()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, str(value.get()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert int(os.read(reading, 100)) == child


@pytest.mark.parametrize(
    ("flower", "local", "may"),
    [
        (FlowerSettings(), False, False),
        (FlowerSettings(), True, True),
        (FlowerSettings(basic_auth="me:secret"), False, True),  # type: ignore[arg-type]
        (FlowerSettings(host="0.0.0.0"), True, False),  # noqa: S104 - the case that is refused
    ],
)
def test_flower_starts_without_a_password_in_the_local_stack_only(
    flower: FlowerSettings, local: bool, may: bool
) -> None:
    assert (refuse(flower, local=local) is None) is may


@pytest.mark.parametrize("queue", QUEUE_NAMES)
def test_a_worker_takes_its_queue_alone(queue: str) -> None:
    options = worker_options(queue, read_settings().celery.concurrency)
    assert options["queues"] == [queue]
    assert options["hostname"] == f"{queue}@{socket.gethostname()}"
    assert options["without_gossip"]
    assert options["without_mingle"]
    assert options["prefetch_multiplier"] == (HELD_A_PROCESS if queue == RESERVATIONS else 1)


@pytest.mark.parametrize("name", QUEUE_NAMES)
def test_the_procfile_starts_a_worker_for_each_queue(name: str) -> None:
    assert f"{name}: python -m tasks.worker {name}\n" in (ROOT / "Procfile").read_text()


@pytest.mark.parametrize(
    ("words", "variables", "status", "stated"),
    [
        (["tasks.worker"], {}, 2, "usage: python -m tasks.worker"),
        (["tasks.worker", "tick"], {}, 2, "usage: python -m tasks.worker"),
        (["tasks.worker", "ticks"], {}, 1, "broker.url: expected the URL of a Redis"),
        (["tasks.clock"], {}, 1, "broker.url: expected the URL of a Redis"),
        (["tasks.worker", "ticks"], {"LEASEHOLD_TICKS__INTERVALL": "5"}, 1, "did you mean"),
        (["tasks.monitor"], {"LEASEHOLD_BROKER__URL": UNREACHABLE}, 1, "flower.basic_auth"),
    ],
)
def test_a_process_that_cannot_start_prints_why_in_one_line(
    words: list[str], variables: dict[str, str], status: int, stated: str, tmp_path: Path
) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    done = subprocess.run(
        [sys.executable, "-m", *words],
        env={**kept, **variables, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == status
    assert stated in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("revision", "relation"), [("0001", "older"), ("0999", "newer")])
def test_a_worker_reports_a_schema_that_is_not_its_own_in_one_line(
    revision: str, relation: str, sqlite_url: str, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    ours = {"LEASEHOLD_BROKER__URL": UNREACHABLE, "LEASEHOLD_DATABASE__URL": sqlite_url}
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    worker = Process("worker", ["tasks.worker", "launch"], {**kept, **ours, "PYTHONPATH": str(ROOT)}, tmp_path)
    try:
        lines = wait_for(
            lambda: [line for line in worker.read_log().splitlines() if "action=schema.unfit" in line], "the line"
        )
    finally:
        worker.kill()
    assert len(lines) == 1
    assert f"schema is {relation} than this program (revision {revision}" in lines[0]


def test_task_names_are_readable() -> None:
    assert task_name("launch", "slot") == "leasehold.launch.slot"


def test_notices_are_read_only_where_a_queue_is_set() -> None:
    """At the set interval; a message that waited for two intervals is dropped."""
    assert "interruptions" not in make_schedule(read_settings())
    aws = {"interruption_queue": "https://sqs.us-east-1.amazonaws.com/1/x", "interruption_interval": 3}
    entry = make_schedule(read_settings({"aws": aws}))["interruptions"]
    assert (entry["task"], entry["options"]["expires"]) == ("leasehold.health.interruptions", 6)
    assert entry["task"] in app.tasks
    assert app.tasks[entry["task"]].run() == "no queue"
