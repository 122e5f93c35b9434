"""The process `foresight`: when it publishes, what its file for health checks shows, and how it ends."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from scheduler.model.forecasts import Foreseen
from scheduler.ports import ForeignClusterError, StoreUnavailableError, ViewUnavailableError
from tasks.foresight import Publisher, main
from tests.memory_forecasts import MemoryForecasts
from tests.operations.harness import Harness
from workers.settings import Settings, read_settings

INTERVAL = 30.0
TAKES = 4.0
"""How long it takes to publish."""
FOREIGN = "Redis belongs to cluster b, the database to cluster a"


class Process:
    """The process on a harness, with a clock of its own. It gets SIGTERM in the wait of the number `stop_after`."""

    def __init__(self) -> None:
        self.harness = Harness({"pools": {"linux": {"system": "x86_64-linux", "provider": "static"}}})
        self.harness.ports.forecasts = _Slow(self)
        self.monotonic, self.waits, self.stop_after = 1000.0, list[float | None](), 2
        self.names, self.published = list[str](), 0

    def find_settings(self, **celery: str) -> Settings:
        foresight = {"interval": INTERVAL}
        return read_settings({"broker": {"url": "redis://localhost/0"}, "foresight": foresight, "celery": celery})


class _Slow(MemoryForecasts):
    """Publishing takes a while."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    @override
    def publish(self, foreseen: Foreseen, record: bytes) -> None:
        super().publish(foreseen, record)
        self._process.published += 1
        self._process.monotonic += TAKES


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    one = Process()

    class Stop(threading.Event):
        @override
        def wait(self, timeout: float | None = None) -> bool:
            one.waits.append(timeout)
            one.monotonic += timeout or 0.0
            if len(one.waits) == one.stop_after:
                os.kill(os.getpid(), signal.SIGTERM)
            return self.is_set()

    monkeypatch.setattr("tasks.foresight.threading", SimpleNamespace(Event=Stop))
    for module in ("foresight", "alive"):
        monkeypatch.setattr(f"tasks.{module}.read_monotonic", lambda: one.monotonic)
    services = SimpleNamespace(ports=one.harness.ports, name_process=one.names.append)
    monkeypatch.setattr("tasks.app.app", SimpleNamespace(services=services))
    monkeypatch.setattr("tasks.app.settings", one.find_settings())
    monkeypatch.setattr("tasks.app.find_foreign", lambda _settings: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield one
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def file(process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "foresight"
    monkeypatch.setattr("tasks.app.settings", process.find_settings(alive_file=str(path)))
    return path


def test_it_publishes_once_in_each_interval_until_it_is_stopped(process: Process, file: Path) -> None:
    process.harness.tick()
    assert main() == 0
    assert (process.published, process.waits) == (2, [INTERVAL - TAKES] * 2)
    # Each time it has published it notes that in its file. It is late after three intervals.
    assert file.read_text() == f"{1000.0 + INTERVAL + TAKES:.3f} {3 * INTERVAL:g} foresight\n\n"
    assert process.names == ["foresight"]


@pytest.mark.parametrize(
    ("times", "actions"),
    [
        (1, []),  # usual while a stack starts
        (2, ["foresight.paused"]),
        (4, ["foresight.paused"]),  # once
    ],
)
def test_its_file_keeps_the_time_of_its_start_while_nothing_can_be_published(
    process: Process, file: Path, times: int, actions: list[str]
) -> None:
    process.stop_after = times
    with capture_logs() as lines:
        assert main() == 0  # no tick has built the view
    assert file.read_text().startswith("1000.000 ")
    assert [each["action"] for each in lines] == actions


def test_it_publishes_without_a_file_for_health_checks(process: Process) -> None:
    process.harness.tick()
    assert main() == 0
    assert process.published == 2


def test_it_does_not_start_if_its_file_cannot_be_written(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks.app.settings", process.find_settings(alive_file=str(tmp_path / "none" / "file")))
    assert main() == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("leasehold: celery.alive_file: expected a file that can be written, got ")


def test_it_does_not_start_if_redis_belongs_to_another_cluster(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.harness.tick()
    monkeypatch.setattr("tasks.app.find_foreign", lambda _settings: FOREIGN)
    with pytest.raises(SystemExit) as ended:
        main()
    assert (ended.value.code, process.published) == (f"leasehold: {FOREIGN}", 0)


def test_it_ends_if_redis_becomes_that_of_another_cluster(
    process: Process, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tasks.foresight.check_membership", lambda _ports: fail(ForeignClusterError(FOREIGN)))
    assert main() == 1
    assert capsys.readouterr().err == f"leasehold: {FOREIGN}\n"


def test_it_tries_again_while_the_database_or_redis_does_not_answer(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    process.harness.tick()
    publisher = Publisher(process.harness.ports, interval=INTERVAL, share=0.3, stop=threading.Event())
    for error in (StoreUnavailableError("gone"), ViewUnavailableError("gone")):
        with monkeypatch.context() as patch:
            patch.setattr("tasks.foresight.check_membership", lambda _ports, error=error: fail(error))
            assert not publisher.publish()
    assert publisher.publish()


def fail(error: Exception) -> None:
    raise error
