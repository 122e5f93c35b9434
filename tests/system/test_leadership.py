"""Two schedulers: when the leader is killed, the other one takes over, and terms only increase."""

import os
import signal
from pathlib import Path

import pytest

from scheduler.ports import EventFilter
from testbed.processes import Process, wait_for
from testbed.stack import Stack
from testbed.takeover import kill_holder, second_scheduler
from tests.chaos.points import give_order
from tests.chaos.worker import FOLDER, HOST

pytestmark = pytest.mark.timeout(240)


def test_a_leader_killed_with_the_lock_is_replaced_by_another(stack: Stack) -> None:
    with second_scheduler(stack) as second:
        before = stack.services.ports.store.load_leader_term()
        kill_holder(stack, second)
        assert stack.submit("after-the-kill", pool="warm")["ok"]
        (row,) = stack.await_phase(["after-the-kill"], "leased")
        after = stack.services.ports.store.load_leader_term()
        assert after.term > before.term
        assert after.holder != before.holder
        stack.processes["ticks"].start()
        stack.await_canary("ticks")
    assert stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]


def test_two_schedulers_share_the_work_and_serve_everything(stack: Stack) -> None:
    names = [f"shared-{number}" for number in range(20)]
    terms = [stack.services.ports.store.load_leader_term().term]
    with second_scheduler(stack):
        for name in names:
            assert stack.submit(name, pool="warm")["ok"]
            terms.append(stack.services.ports.store.load_leader_term().term)
        rows = stack.await_phase(names, "leased")
        # A scheduler takes a new term whenever the other one ticked last.
        wait_for(lambda: stack.services.ports.store.load_leader_term().term > terms[0], "a change of leaders")
        answer = stack.ask("release", {"items": [{"reservation": row.id, "token": row.token} for row in rows]})
    assert answer["ok"]
    assert terms == sorted(terms)


def test_a_leader_paused_between_plan_and_commit_writes_nothing(stack: Stack) -> None:
    """Another scheduler led meanwhile, so the commit of the old leader is refused because of its term."""
    folder, store = stack.folder / "points", stack.services.ports.store
    stack.processes["ticks"].stop()
    hosts = [start_with_points(stack, folder, name) for name in ("ticks-one", "ticks-two")]
    try:
        for host in hosts:
            wait_for(lambda host=host: "ready." in host.read_log(), "a scheduler")  # type: ignore[misc]
        give_order(folder, "between_plan_and_commit", "stop")
        assert stack.submit("paused", pool="warm")["ok"]
        (stopped,) = wait_for(lambda: list(folder.glob("between_plan_and_commit.*")), "a paused leader")
        planned_in = store.load_leader_term()
        (row,) = stack.await_phase(["paused"], "leased")
        assert store.load_leader_term().term > planned_in.term
        os.kill(int(stopped.suffix[1:]), signal.SIGCONT)
        wait_for(lambda: any("deposed" in host.read_log(100_000) for host in hosts), "a leader that was deposed")
        assert store.find_reservations(ids=["paused"]) == [row]
        events = store.read_events(EventFilter(reservation="paused"))
        assert [event.name for event in events] == ["reservation_submitted", "reservation_leased"]
    finally:
        for host in hosts:
            host.kill()
            del stack.processes[host.name]
        stack.processes["ticks"].start()
    stack.await_canary("ticks")
    assert stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]


def start_with_points(stack: Stack, folder: Path, name: str) -> Process:
    """Start a scheduler as on another host; it pauses at the point that the test names."""
    environment = {**stack.environment, FOLDER: str(folder), HOST: name}
    words = ["tests.chaos.worker", "ticks"]
    started = stack.processes[name] = Process(name, words, environment, stack.folder, like="tasks.worker")
    return started
