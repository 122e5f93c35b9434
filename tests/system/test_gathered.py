"""Single requests that wait are carried out together; nothing is lost, whatever dies or pauses meanwhile."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from scheduler.ports import EventFilter, Pending
from scheduler.protocol.names import RESERVATIONS, task_name
from testbed.processes import PATIENCE, wait_for
from testbed.stack import Stack
from tests.system.bad_messages import an_envelope
from tests.system.test_lost_messages import Producer, awaiting_start, database_locked, is_stored, writes_paused

pytestmark = pytest.mark.timeout(240)
COUNT = 20


@contextmanager
def waiting_intake(stack: Stack) -> Iterator[None]:
    """Stop the main process of the intake within this block, so that it takes all messages together afterwards."""
    pid = stack.processes[RESERVATIONS].pid
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.fixture(autouse=True)
def _end_reservations(stack: Stack) -> Iterator[None]:
    """Cancel the reservations of these tests, which are on hold, so that no other test of the stack counts them."""
    yield
    rows = stack.services.ports.store.find_reservations(phases=["pending"], limit=10_000)
    items = [{"reservation": row.id} for row in rows if row.priority == 0]
    if items:
        stack.ask("cancel", {"items": items})


def send(stack: Stack, name: str, **fields: Any) -> str:
    """Send one submission without a client that repeats it; return its reply address."""
    address: str = fields.pop("reply_to", f"leasehold:reply:{name}")
    stack.send("submit", {"request": name, "reply_to": address, "id": name, "pool": "linux", "priority": 0, **fields})
    return address


def make_names(count: int = COUNT) -> list[str]:
    """New names of reservations."""
    run = uuid4().hex[:8]
    return [f"{run}-{number}" for number in range(count)]


def read_answers(stack: Stack, address: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(each) for each in stack.redis.lrange(address, 0, -1)]


def await_answers(stack: Stack, addresses: list[str], patience: float = PATIENCE) -> None:
    """Wait until there is an answer at each of these addresses."""
    wait_for(lambda: all(stack.redis.exists(address) for address in addresses), "all answers", patience)


def await_sent(stack: Stack) -> None:
    """Wait until COUNT messages have come to the stopped intake. Redis has given one of them to its waiting read."""
    wait_for(lambda: stack.redis.llen(RESERVATIONS) >= COUNT - 1, "all messages")


def await_held(stack: Stack, count: int) -> None:
    """Wait until workers have this many unacknowledged submissions."""

    def is_held() -> bool:
        return sum(b"leasehold.reservations.submit" in body for body in stack.redis.hvals("unacked")) >= count

    wait_for(is_held, f"{count} requests that are under way")


def test_requests_that_wait_are_stored_together_and_answered_one_by_one(stack: Stack) -> None:
    names, kept = make_names(), {*stack.redis.hkeys("unacked")}
    with waiting_intake(stack):
        addresses = [send(stack, name) for name in names]
    await_answers(stack, addresses)
    answers = [read_answers(stack, address) for address in addresses]
    assert [[each["reservation"] for each in found] for found in answers] == [[name] for name in names]
    rows = stack.services.ports.store.find_reservations(ids=names)
    assert len(rows) == COUNT
    # All rows of a transaction are created at the time of its begin. A process that is free takes what has arrived, so
    # the first messages may be alone.
    assert len({row.created_at for row in rows}) <= COUNT // 2
    # Workers that other tests killed may have left records of their messages.
    wait_for(lambda: kept.issuperset(stack.redis.hkeys("unacked")), "acknowledged messages")


def test_an_unsigned_reservation_counts_for_the_host_in_the_header_of_its_message(stack: Stack) -> None:
    origins = ["gen7@web-1", "gen8@web-1", "gen7@web@2", "web-1", f"gen7@{'x' * 256}", "gen7@", {"a": 1}, None]
    names, run = make_names(len(origins)), uuid4().hex[:8]
    origins = [each.replace("@web", f"@{run}") if isinstance(each, str) else each for each in origins]
    with waiting_intake(stack):
        for name, origin in zip(names, origins, strict=True):
            document = {"request": name, "reply_to": f"leasehold:reply:{name}", "id": name, "pool": "linux"}
            task = task_name(RESERVATIONS, "submit")
            envelope = an_envelope(RESERVATIONS, task, [[{**document, "priority": 0}], {}, None], name)
            # A message of another program may have no such header.
            envelope["headers"] |= {} if origin is None else {"origin": origin}
            stack.redis.lpush(RESERVATIONS, json.dumps(envelope))
    await_answers(stack, [f"leasehold:reply:{name}" for name in names])
    rows = stack.services.ports.store.find_reservations(ids=names)
    assert len(rows) == len(names)
    with stack.services.ports.store.transaction() as transaction:
        last = max(row.sequence for row in rows)
        counted = transaction.count_inserted(min(row.sequence for row in rows) - 1, last)
        assert counted == {
            (None, None, f"{run}-1"): Pending(2, 2),
            (None, None, f"{run}@2"): Pending(1, 1),
            (None, None, None): Pending(5, 5),
        }
        assert transaction.count_pending_of_principal(None, f"{run}-1") == Pending(2, 2)
    answer = stack.ask("query", {"ids": names[:1]})
    assert "sender" not in answer["reservations"][0]
    view = stack.services.ports.view_cache.load()
    assert view is not None
    assert view.reservations[names[0]].sender is None
    stored = stack.redis.hget("leasehold:view:reservations", names[0])
    assert names[0] in str(stored)
    assert run not in str(stored)


def test_a_bad_request_is_refused_alone(stack: Stack) -> None:
    names = make_names()
    stack.redis.set(f"leasehold:reply:{names[2]}", "no list")
    with waiting_intake(stack):
        addresses = [
            send(stack, names[0], resources={"cpus": -1}),
            # an address that is no reply address
            send(stack, names[1], reply_to="leasehold:leader"),
            # an address whose key has a wrong type
            send(stack, names[2]),
            *(send(stack, name) for name in names[3:]),
        ]
    await_answers(stack, [addresses[0], *addresses[3:]])
    (refused,) = read_answers(stack, addresses[0])
    assert [error["path"] for error in refused["errors"]] == ["resources.cpus"]
    assert all(read_answers(stack, address)[0]["ok"] for address in addresses[3:])
    assert {row.id for row in stack.services.ports.store.find_reservations(ids=names)} == {*names[2:]}


def test_a_worker_that_is_killed_with_gathered_requests_loses_none(stack: Stack) -> None:
    names = make_names()
    with database_locked(stack):
        with waiting_intake(stack):
            producers = [Producer(stack, name) for name in names]
            await_sent(stack)
        await_held(stack, COUNT)
        stack.processes[RESERVATIONS].kill()
    assert not any(is_stored(stack, name) for name in names)
    stack.processes[RESERVATIONS].start()
    assert_each_is_answered_once(stack, producers)


def test_a_worker_that_is_killed_between_the_commit_and_the_answers_loses_none(stack: Stack) -> None:
    names = make_names()
    with ExitStack() as pause:
        with database_locked(stack):
            with awaiting_start(stack, *names), waiting_intake(stack):
                producers = [Producer(stack, name) for name in names]
                await_sent(stack)
            pause.enter_context(writes_paused(stack))
        wait_for(lambda: any(is_stored(stack, name) for name in names), "the commit")
        stack.processes[RESERVATIONS].kill()
        assert not any(producer.answers for producer in producers)
    stack.processes[RESERVATIONS].start()
    assert_each_is_answered_once(stack, producers)


def assert_each_is_answered_once(stack: Stack, producers: list[Producer]) -> None:
    """Each producer has one answer, and each reservation was submitted once; then they are released."""
    for producer in producers:
        producer.join(2 * PATIENCE)
    assert [[row.id for row in producer.answers] for producer in producers] == [[each.name] for each in producers]
    for producer in producers:
        events = stack.services.ports.store.read_events(EventFilter(reservation=producer.name))
        assert [event.name for event in events].count("reservation_submitted") == 1
        assert stack.ask("cancel", {"reservation": producer.name})["ok"]


def test_when_a_process_of_the_pool_dies_its_requests_are_carried_out_one_by_one(stack: Stack) -> None:
    names = make_names()
    main = stack.processes[RESERVATIONS].pid
    with database_locked(stack):
        # A request that finds an idle worker runs alone. The others go together to the process that is left.
        with awaiting_start(stack, f"{names[0]}-alone"):
            send(stack, f"{names[0]}-alone")
        with awaiting_start(stack, *names), waiting_intake(stack):
            addresses = [send(stack, name) for name in names]
        for child in find_children(main):
            os.kill(child, signal.SIGKILL)
    await_answers(stack, addresses, 2 * PATIENCE)
    assert "requests.separated" in stack.processes[RESERVATIONS].read_log(40_000)
    assert stack.processes[RESERVATIONS].pid == main


def find_children(pid: int) -> list[int]:
    """Return the processes that this process has started."""
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
