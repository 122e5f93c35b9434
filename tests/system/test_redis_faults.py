"""Redis loses its data or restarts with old data: this causes a delay and changes no outcome."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from scheduler.model.view import View
from scheduler.ports import EventFilter
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.processes import wait_for
from testbed.stack import Stack
from tests.view.rows import as_in_view

pytestmark = pytest.mark.timeout(240)

Fault = Callable[[Stack], None]
OUTCOME: Final = {"reservation_submitted": 1, "reservation_leased": 1, "reservation_released": 1}


def flush(stack: Stack) -> None:
    """Delete all keys."""
    stack.redis.flushall()


def restart_empty(stack: Stack) -> None:
    """Kill Redis and start it without data."""
    stack.redis_server.kill()
    stack.redis_server.restart()


def restart_with_old_data(stack: Stack) -> None:
    """Kill Redis and start it with an earlier snapshot: old rows, old messages and an old lock."""
    stack.redis_server.kill()
    _snapshot(stack).write_bytes(stack.folder.joinpath("past.rdb").read_bytes())
    stack.redis_server.restart()
    # The next restart must not find this snapshot.
    _snapshot(stack).unlink()
    assert stack.redis.exists("past")


def _snapshot(stack: Stack) -> Path:
    return stack.redis_server.directory / "dump.rdb"


def keep_snapshot(stack: Stack) -> None:
    stack.redis.set("past", 1)
    stack.redis.save()
    stack.folder.joinpath("past.rdb").write_bytes(_snapshot(stack).read_bytes())
    _snapshot(stack).unlink()


def equals_database(stack: Stack) -> bool:
    """Return whether a new reader of the view finds the rows of the database."""
    view = RedisViewCache(stack.redis).load()
    stored = View(as_in_view(stack.services.ports.store.read_rows()))
    return view is not None and (view.slots, view.reservations, view.holds) == (
        stored.slots,
        stored.reservations,
        stored.holds,
    )


def history(stack: Stack, name: str) -> dict[str, int]:
    """Return event -> count for a reservation."""
    return dict(Counter(event.name for event in stack.services.ports.store.read_events(EventFilter(reservation=name))))


@pytest.mark.parametrize("fault", [flush, restart_empty, restart_with_old_data])
def test_after_a_fault_of_redis_every_reservation_ends_and_the_view_equals_the_database(
    stack: Stack, fault: Fault
) -> None:
    """The fault happens while the reservations wait, while machines boot, during the leases and after their release."""
    names = [f"{fault.__name__}-{number}" for number in range(6)]
    launched = stack.launched()
    assert stack.submit(names[0])["ok"]
    keep_snapshot(stack)
    assert stack.submit(names[1])["ok"]
    fault(stack)
    for name in names[2:]:
        assert stack.submit(name)["ok"]
    wait_for(lambda: [each for each in stack.slots() if each.state != "empty"], "a launch")
    fault(stack)
    rows = stack.await_phase(names, "leased")
    fault(stack)
    releases = [{"reservation": row.id, "token": row.token} for row in rows]
    assert stack.ask("release", {"items": releases})["ok"]
    fault(stack)
    stack.await_phase(names, "released")
    stack.await_empty()
    wait_for(lambda: equals_database(stack), "a view equal to the database")
    assert {name: history(stack, name) for name in names} == dict.fromkeys(names, OUTCOME)
    machines = [each for each in stack.instances() if each["tags"]["leasehold:pool"] == "linux"]
    assert {each["state"] for each in machines} == {"terminated"}
    assert stack.launched() - launched <= len(stack.slots())
    assert all(process.is_alive for process in stack.processes.values())


@pytest.mark.parametrize("key", ["leasehold:leader", "leasehold:view:generation", "ticks"])
def test_a_key_of_a_wrong_type_does_not_stop_ticks_or_workers(stack: Stack, key: str) -> None:
    """Such a key of the view, the leader lock or a queue must not fail ticks or end workers."""
    name = f"wrong-type-{key.rpartition(':')[2]}"
    with stack.redis.pipeline(transaction=True) as pipeline:
        pipeline.delete(key)
        pipeline.hset(key, "my", "own")
        pipeline.execute()
    try:
        assert stack.submit(name, pool="warm", ttl=0)["ok"]
        (row,) = stack.await_phase([name], "leased")
        assert stack.ask("release", {"reservation": name, "token": row.token})["ok"]
        wait_for(lambda: equals_database(stack), "a view equal to the database")
        wait_for(lambda: key in list_set_aside(stack), "the event")
        assert stack.redis.hgetall(f"leasehold:set-aside:{key}") == {b"my": b"own"}
        assert all(process.is_alive for process in stack.processes.values())
    finally:
        if stack.redis.type(key) == b"hash":
            stack.redis.delete(key)


def list_set_aside(stack: Stack) -> list[str]:
    events = stack.services.ports.store.read_events(EventFilter(name="key_set_aside"))
    return [str(event.detail["key"]) for event in events]
