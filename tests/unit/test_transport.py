"""What the door in front of the queues lets pass."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from kombu import Connection

from tasks.app import app
from tasks.queues import TICKS, task_name
from tasks.transport import Transport
from tests.e2e.bad_messages import an_envelope


@pytest.fixture(autouse=True, scope="module")
def _tasks() -> None:
    app.loader.import_default_modules()


def deliver(**headers: Any) -> list[dict[str, Any]]:
    """What comes through of one message to the queue of ticks that has these headers."""
    envelope = an_envelope(TICKS, task_name(TICKS, "tick"), [[], {}, None], "one")
    envelope["headers"] |= headers
    transport: Any = Transport(Connection("redis://127.0.0.1:1"))
    passed: list[dict[str, Any]] = []
    transport._callbacks[TICKS] = passed.append
    transport._deliver(envelope, TICKS)
    return passed


@pytest.mark.parametrize("zone", [UTC, None], ids=["with its zone", "in UTC without saying so"])
@pytest.mark.parametrize(("seconds", "passes"), [(-3600, False), (-1, False), (3600, True)])
def test_what_came_too_late_is_left_at_the_door(zone: Any, seconds: float, passes: bool) -> None:
    expires = (datetime.now(UTC) + timedelta(seconds=seconds)).replace(tzinfo=zone)
    assert bool(deliver(expires=expires.isoformat())) is passes


@pytest.mark.parametrize("limits", [[0.1, 0.1], [None, None], [120.0, 100.0], "x", 7, {}, None])
def test_a_senders_time_limits_are_discarded(limits: Any) -> None:
    (passed,) = deliver(timelimit=limits)
    assert "timelimit" not in passed["headers"]


def test_what_never_expires_passes() -> None:
    assert deliver(expires=None)
    assert deliver()
