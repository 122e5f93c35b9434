"""The holders of the demo: a replay ends when every job has ended, with or without errors."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from leasehold import Client
from leasehold.demo.run import Holders, Stretch
from scheduler.simulation.workload import Job
from tests.builders import a_lease, a_slot
from tests.client.intake import Document, FakeIntake, a_row, accept

WAIT = 20.0
"""Timeout in seconds, longer than any step of these tests takes; a wait ends with its condition."""


class Stack:
    """Leases every reservation at once and refuses the requests listed in `refused`."""

    def __init__(self, intake: FakeIntake) -> None:
        self.intake = intake
        self.version = 1
        self.refused: list[tuple[str, str]] = []
        """(verb, reservation): each entry refuses one request."""
        self.held: set[str] = set()
        intake.view_cache.publish([a_slot("linux-1", version=1, instance_type="m7g.large", zone="us-east-1a")])
        intake.handler = self.handle

    def handle(self, verb: str, document: Document) -> Document | None:
        if verb == "submit":
            for item in document["items"]:
                self.publish(item["id"], "leased")
            return accept(verb, document)
        if "items" in document:
            return {"ok": True, "results": [self.handle(verb, each) for each in document["items"]]}
        name = document["reservation"]
        if (verb, name) in self.refused:
            self.refused.remove((verb, name))
            fault = {"index": 0, "path": "token", "expected": "the current token", "got": "1"}
            return {"ok": False, "errors": [fault]}
        if verb == "release":
            self.publish(name, "released")
        return {"ok": True, "reservation": name, "phase": "leased", "token": 1, "ttl": None}

    def publish(self, name: str, phase: str, **fields: Any) -> None:
        self.version += 1
        leases = (a_lease("linux-1", token=1),) if phase == "leased" else ()
        (self.held.add if leases else self.held.discard)(name)
        self.intake.publish(a_row(name, version=self.version, phase=phase, token=1, leases=leases, **fields))


@pytest.fixture
def stack(intake: FakeIntake) -> Stack:
    return Stack(intake)


def a_job(number: int, run_seconds: float = 1) -> Job:
    return Job(
        number=number,
        submit_seconds=0,
        run_seconds=run_seconds,
        processors=1,
        requested_seconds=None,
        user=1,
        group=1,
        application=1,
        queue=1,
    )


@pytest.fixture
def play(blocking_client: Client) -> Iterator[Callable[..., Holders]]:
    opened: list[Holders] = []

    def make(*jobs: Job, speed: float = 1.0) -> Holders:
        opened.append(Holders(blocking_client, Stretch(jobs, speed)))
        return opened[-1]

    yield make
    for holders in opened:
        holders.close()


def step_until(holders: Holders, is_so: Callable[[], bool]) -> None:
    """Step the holders, as the demo does, until the condition holds."""
    end = time.monotonic() + WAIT
    while not is_so():
        assert time.monotonic() < end, holders.progress
        holders.step()


def test_a_job_whose_renewal_is_refused_is_held_again_and_the_replay_continues(
    stack: Stack, play: Callable[..., Holders]
) -> None:
    holders = play(a_job(1, 0.2), a_job(2, 3600))
    stack.refused.append(("renew", "job-1"))
    step_until(holders, lambda: "job-1" in holders.progress.released)
    assert len(holders.progress.errors) == 1
    assert stack.held == {"job-2"}
    assert not holders.is_done


def test_a_replay_with_errors_ends_when_every_job_has_ended(stack: Stack, play: Callable[..., Holders]) -> None:
    holders = play(a_job(1), a_job(2), speed=10)
    stack.refused += [("renew", "job-1"), ("release", "job-2")]
    step_until(holders, lambda: holders.is_done)
    assert set(holders.progress.released) == {"job-1", "job-2"}
    assert not holders.progress.failed
    failed = ["a request for job-1 failed", "a request for job-2 failed"]
    assert sorted(error.partition(":")[0] for error in holders.progress.errors) == failed


def test_a_release_is_sent_after_the_answer_to_the_renewal(stack: Stack, play: Callable[..., Holders]) -> None:
    step_until(done := play(*map(a_job, range(1, 21)), speed=10), lambda: done.is_done)
    # A request that is sent again has the same id. Requests that are made at the same time travel together.
    seen = [
        (item.get("reservation"), verb, document["request"])
        for verb, document in stack.intake.seen
        for item in document.get("items", [document])
    ]
    for number in range(1, 21):
        first = dict.fromkeys((verb, request) for name, verb, request in seen if name == f"job-{number}")
        assert [verb for verb, _ in first] == ["renew", "release"]


def test_a_reservation_that_expires_fails_its_job_with_the_reason(stack: Stack, play: Callable[..., Holders]) -> None:
    def handle(verb: str, document: Document) -> Document:
        stack.publish("job-1", "expired", reason="ttl")
        return accept(verb, document)

    stack.intake.handler = handle
    holders = play(a_job(1))
    step_until(holders, lambda: holders.is_done)
    assert holders.progress.failed == {"job-1": "expired: ttl"}


def test_a_refused_job_fails_and_the_other_jobs_continue(stack: Stack, play: Callable[..., Holders]) -> None:
    fault = {"index": 0, "path": "resources.cpus", "expected": "a number >= 0", "got": "two"}

    def handle(verb: str, document: Document) -> Document | None:
        if verb != "submit":
            return stack.handle(verb, document)
        stack.publish("job-2", "leased")
        results: list[Document] = [
            {"ok": False, "errors": [fault]} if item["id"] == "job-1" else {"ok": True, "reservation": "job-2"}
            for item in document["items"]
        ]
        return {"ok": False, "results": results}

    stack.intake.handler = handle
    holders = play(a_job(1), a_job(2), speed=10)
    step_until(holders, lambda: holders.is_done)
    assert set(holders.progress.failed) == {"job-1"}
    assert set(holders.progress.released) == {"job-2"}
