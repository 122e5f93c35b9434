"""Two schedulers: whoever dies at its work is followed by the other, and terms only grow."""

import os
import signal
from pathlib import Path

import pytest

from scheduler.ports import EventFilter
from tests.chaos.points import give_order
from tests.chaos.worker import FOLDER, HOST
from tests.system.processes import Process, wait_for
from tests.system.stack import Stack
from tests.system.takeover import kill_holder, second_scheduler

pytestmark = pytest.mark.timeout(240)


def test_a_leader_that_dies_with_the_lock_in_its_hand_is_followed_by_another(stack: Stack) -> None:
    with second_scheduler(stack) as second:
        before = stack.services.ports.store.load_leader_term()
        kill_holder(stack, second)
        assert stack.submit("after-the-king", pool="warm")["ok"]
        (row,) = stack.await_phase(["after-the-king"], "leased")
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
        # Each of them is a new holder whenever the other one ticked last.
        wait_for(lambda: stack.services.ports.store.load_leader_term().term > terms[0], "a change of leaders")
        answer = stack.ask("release", {"items": [{"reservation": row.id, "token": row.token} for row in rows]})
    assert answer["ok"]
    assert terms == sorted(terms)


def test_a_leader_that_stood_still_between_plan_and_commit_writes_nothing(stack: Stack) -> None:
    """Another one led meanwhile: the plan of the old one is refused, its term is over."""
    folder, store = stack.folder / "points", stack.services.ports.store
    stack.processes["ticks"].stop()
    hosts = [start_with_points(stack, folder, name) for name in ("ticks-one", "ticks-two")]
    try:
        for host in hosts:
            wait_for(lambda host=host: "ready." in host.read_log(), "a scheduler")  # type: ignore[misc]
        give_order(folder, "between_plan_and_commit", "stop")
        assert stack.submit("stood-still", pool="warm")["ok"]
        (stopped,) = wait_for(lambda: list(folder.glob("between_plan_and_commit.*")), "a leader that stands still")
        planned_in = store.load_leader_term()
        (row,) = stack.await_phase(["stood-still"], "leased")
        assert store.load_leader_term().term > planned_in.term
        os.kill(int(stopped.suffix[1:]), signal.SIGCONT)
        wait_for(lambda: any("deposed" in host.read_log(100_000) for host in hosts), "a leader that was deposed")
        assert store.find_reservations(ids=["stood-still"]) == [row]
        events = store.read_events(EventFilter(reservation="stood-still"))
        assert [event.name for event in events] == ["reservation_submitted", "reservation_leased"]
    finally:
        for host in hosts:
            host.kill()
            del stack.processes[host.name]
        stack.processes["ticks"].start()
    stack.await_canary("ticks")
    assert stack.ask("release", {"reservation": row.id, "token": row.token})["ok"]


def start_with_points(stack: Stack, folder: Path, name: str) -> Process:
    """A scheduler on a host of its own, that stands still where it is ordered to."""
    told = {**stack.environment, FOLDER: str(folder), HOST: name}
    stack.processes[name] = Process(name, ["tests.chaos.worker", "ticks"], told, stack.folder)
    return stack.processes[name]
