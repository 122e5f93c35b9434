"""The cost of a lost message or a killed worker for the client: one more copy of its request and one more tick.

The tests count copies, ticks and simulated seconds. They kill the worker once at every call of a port.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from leasehold.client.backoff import Backoff
from leasehold.client.redis.exchange import LONGEST_RESEND_SECONDS, RESEND_SECONDS
from scheduler.model.slots import Slot
from scheduler.operations.commands.intake import accept
from tests.operations.harness import Harness
from tests.operations.saboteur import Killed, Saboteur

REPLY = "leasehold:reply:r1"
REQUEST: dict[str, Any] = {"request": "submit-r1", "id": "r1", "system": "x86_64-linux"}
PORTS = ("store", "view_cache", "dispatcher", "notifier", "meter")


class Wait:
    """A client with one request, a ready slot for it, and the worker that takes the client's messages."""

    def __init__(self) -> None:
        self.harness = Harness()
        self.harness.put(
            Slot(
                id="linux-1",
                version=self.harness.slot().version,
                pool="linux",
                state="ready",
                epoch=1,
                since=self.harness.now,
                instance_id="i-1",
                last_seen=self.harness.now,
            )
        )
        self.harness.tick()
        self.harness.notifier.hear()
        self.began = self.harness.now
        self.next_tick = self.harness.now + self.harness.leader.interval
        self.copies = 0
        self.ticks_since_copy = 0
        self.kills = 0

    def play(self, take: Callable[[int], None]) -> "Wait":
        """Run until the reservation is leased and the client has its answer; `take` handles each copy."""
        due, backoff = self.harness.now, make_backoff()
        while not (self._is_answered() and self.harness.phase() == "leased"):
            if not self._is_answered() and self.harness.now >= due:
                self.copies += 1
                self.ticks_since_copy = 0
                self._run(lambda: take(self.copies))
                due = self.harness.now + backoff.take()
            if self.harness.notifier.ticks_sent or self.harness.now >= self.next_tick:
                self._tick()
            else:
                self.harness.now = min(self.next_tick, due) if not self._is_answered() else self.next_tick
        return self

    def serve(self) -> None:
        """Accept the request and reply, as the task of the intake does."""
        answer = accept(self.harness.ports, "submit", REQUEST)
        self.harness.ports.notifier.reply(REPLY, answer)

    def sabotage(self, saboteur: Saboteur) -> None:
        """Wrap the ports of the worker that takes the first copy with a saboteur."""
        for port in PORTS:
            setattr(self.harness.ports, port, saboteur.wrap(getattr(self.harness.ports, port), port))

    @property
    def seconds(self) -> float:
        return self.harness.now - self.began

    def _run(self, job: Callable[[], None]) -> None:
        notifier = self.harness.notifier
        try:
            job()
        except Killed:
            self.kills += 1
            self.harness.restart()
            # The flag of the kick, the message of the tick and the answer are in Redis and survive the worker.
            self.harness.notifier = self.harness.ports.notifier = notifier

    def _tick(self) -> None:
        if not self.harness.notifier.ticks_sent:
            self.next_tick += self.harness.leader.interval
        self.harness.notifier.ticks_sent = 0
        self.ticks_since_copy += 1
        self.harness.tick()

    def _is_answered(self) -> bool:
        return bool(self.harness.notifier.replies.get(REPLY))


def make_backoff() -> Backoff:
    """Return the client's pauses between the copies of a request, each of its maximum length."""
    return Backoff(RESEND_SECONDS, LONGEST_RESEND_SECONDS, draw=lambda: 0.0)


def test_without_a_loss_the_client_sends_one_copy_and_waits_for_one_tick() -> None:
    wait = Wait()
    wait.play(lambda _number: wait.serve())
    assert (wait.copies, wait.ticks_since_copy, wait.seconds) == (1, 1, 0.0)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_each_lost_message_costs_one_more_copy(lost: int) -> None:
    wait = Wait()
    wait.play(lambda number: wait.serve() if number > lost else None)
    assert (wait.copies, wait.ticks_since_copy) == (lost + 1, 1)
    backoff = make_backoff()
    assert wait.seconds == sum(backoff.take() for _ in range(lost))


def count_calls() -> int:
    """Return the number of calls of ports for one request."""
    saboteur, wait = Saboteur(0, afterwards=False), Wait()
    wait.sabotage(saboteur)
    wait.serve()
    return saboteur.calls


@pytest.mark.parametrize("afterwards", [False, True])
def test_a_worker_that_is_killed_anywhere_costs_one_more_copy_and_one_tick(afterwards: bool) -> None:
    """The worker is killed at every call of every port, before or after the call took effect."""
    calls = count_calls()
    assert calls > 10
    for at in range(1, calls + 1):
        saboteur, wait = Saboteur(at, afterwards=afterwards), Wait()
        wait.sabotage(saboteur)
        wait.play(partial(_serve, wait))
        case = f"killed at call {at}, {saboteur.places[at - 1]}"
        assert wait.kills == 1, case
        assert wait.copies <= 2, case
        assert wait.ticks_since_copy <= 1, case
        assert wait.seconds <= RESEND_SECONDS + wait.harness.leader.interval, case
        assert [event.name for event in wait.harness.events if event.reservation] == [
            "reservation_submitted",
            "reservation_leased",
        ], case


def _serve(wait: Wait, _number: int) -> None:
    wait.serve()


def test_a_lost_kick_costs_one_interval() -> None:
    """The worker is killed between the flag of a kick and its message."""
    wait = Wait()

    def serve(_number: int) -> None:
        wait.serve()
        wait.harness.notifier.ticks_sent = 0

    wait.play(serve)
    assert (wait.copies, wait.ticks_since_copy) == (1, 1)
    assert wait.seconds <= wait.harness.leader.interval
