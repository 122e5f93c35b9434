"""When a worker sends its events about tasks."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker.consumer import Consumer as CeleryConsumer

from tasks import consumer as module
from tasks.app import app
from tasks.consumer import EVENT_SECONDS, Consumer


class Loop:
    """The loop of a worker, whose timers a test fires."""

    def __init__(self) -> None:
        self.timers: list[Callable[[], object]] = []

    def call_later(self, seconds: float, act: Callable[[], object]) -> None:
        """Keep a timer for the test."""
        assert seconds == EVENT_SECONDS
        self.timers.append(act)


class Dispatcher:
    """Counts how often the events are sent."""

    sent = 0

    def flush(self) -> None:
        """Count."""
        self.sent += 1


class Clock:
    """A monotonic clock."""

    now = 100.0

    def monotonic(self) -> float:
        """Return the time."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def consumer() -> Any:
    found: Any = Consumer.__new__(Consumer)
    found.hub, found.event_dispatcher, found.connection_errors = Loop(), Dispatcher(), (OSError,)
    return found


def test_workers_use_this_consumer() -> None:
    assert app.conf.worker_consumer == f"{Consumer.__module__}:{Consumer.__qualname__}"


@pytest.mark.usefixtures("clock")
def test_events_are_sent_together_and_after_the_present_round_of_the_loop(consumer: Any) -> None:
    consumer.on_send_event_buffered()
    consumer.on_send_event_buffered()
    assert consumer.event_dispatcher.sent == 0
    (timer,) = consumer.hub.timers
    timer()
    assert consumer.event_dispatcher.sent == 1


def test_events_are_sent_although_a_lost_connection_cleared_the_timers(consumer: Any, clock: Clock) -> None:
    consumer.on_send_event_buffered()
    consumer.hub.timers.clear()
    clock.now += 2 * EVENT_SECONDS
    consumer.on_send_event_buffered()
    assert len(consumer.hub.timers) == 1


def test_a_consumer_that_stops_sends_its_events_first(consumer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    monkeypatch.setattr(CeleryConsumer, "stop", lambda self: sent.append(self.event_dispatcher.sent))
    consumer.stop()
    assert sent == [1]


class Pool:
    """The part of Celery's pool of processes that the consumer reads."""

    def __init__(self, waiting: list[str], busy: set[int], active: set[int]) -> None:
        self.outbound_buffer, self._all_inqueues = waiting, {11, 13, 12}
        self._busy_workers, self._active_writes = busy, active


@pytest.mark.parametrize(
    ("pool", "written"),
    [
        (Pool(["job"], set(), set()), [[11, 12, 13]]),
        (Pool(["job"], {11}, {13}), [[12]]),
        (Pool(["job"], {11, 12, 13}, set()), []),
        (Pool([], set(), set()), []),
        (object(), []),
    ],
)
def test_a_job_is_written_to_an_idle_process_at_once(
    monkeypatch: pytest.MonkeyPatch, pool: object, written: list[list[int]]
) -> None:
    steps: list[Any] = []

    def keep(consumer: Any, on_task_request: Callable[[Any], object], **_options: object) -> None:
        consumer.on_task_request = on_task_request

    monkeypatch.setattr(CeleryConsumer, "__init__", keep)
    consumer: Any = Consumer(steps.append, hub=None)
    consumer.pool = SimpleNamespace(_pool=pool)
    consumer.hub = SimpleNamespace(consolidate_callback=steps.append)
    consumer.on_task_request("request")
    assert steps == ["request", *written]


def test_a_consumer_without_a_loop_leaves_the_writing_to_celery(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[Any] = []
    monkeypatch.setattr(CeleryConsumer, "__init__", lambda consumer, act: setattr(consumer, "on_task_request", act))
    consumer: Any = Consumer(steps.append)
    consumer.pool, consumer.hub = SimpleNamespace(_pool=Pool(["job"], set(), set())), None
    consumer.on_task_request("request")
    assert steps == ["request"]
