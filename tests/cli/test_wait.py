"""`leasehold wait`: it returns when the phase is reached, else it ends with a status and one line."""

import json
import signal
from typing import Any

import pytest

from scheduler.model.waits import Waits
from testbed.processes import wait_for
from tests.builders import a_slot
from tests.cli.conftest import Run
from tests.cli.started import Start, leased, start
from tests.client.intake import FakeIntake, a_row

__all__ = ["start"]


def test_wait_returns_when_it_is_leased(stack: FakeIntake, start: Start) -> None:
    stack.publish(a_row("r1"))
    found = start("wait", "r1", "--json")
    wait_for(lambda: stack.count_listeners("r1"), "the wait")
    stack.publish(a_slot("linux-1", version=1), leased())
    assert (found.await_status(), found.complaints()) == (0, [])
    row = json.loads(found.read())
    assert (row["id"], row["phase"], row["leases"][0]["slot"]) == ("r1", "leased", "linux-1")


@pytest.mark.parametrize(
    ("words", "phase", "status", "out", "complaint"),
    [
        (("--for", "ended"), "released", 0, "r1 released\n", ""),
        (("--for", "released"), "released", 0, "r1 released\n", ""),
        ((), "released", 1, "", "leasehold: r1 is released"),
        (("--for", "failed"), "released", 1, "", "leasehold: r1 is released"),
        (("--timeout", "0.2"), "pending", 1, "", " s: at_quota: 10 of 10 cpus"),
        (("--for", "gone"), "pending", 2, "", "expected one of pending, leased, revoking,"),
        (("--for", "pending", "--timeout", "9"), "pending", 0, "r1 pending\n", ""),
    ],
)
def test_wait_is_for_a_phase_and_for_a_time(
    words: tuple[str, ...], phase: Any, status: int, out: str, complaint: str, stack: FakeIntake, run: Run
) -> None:
    stack.publish(a_row("r1", phase=phase))
    stack.view_cache.write_report({"at": 5.0}, Waits(["r1"], [("at_quota", "10 of 10 cpus")]))
    found = run("wait", "r1", *words)
    assert (found.status, found.out) == (status, out)
    assert complaint in found.err


def test_the_end_of_an_old_reservation_is_read_by_a_worker(
    stack: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.client.waiting.UNKNOWN_SECONDS", 0.1)
    row = {"id": "r1", "phase": "released", "request": {}}
    stack.handler = lambda _verb, _document: {"ok": True, "reservations": [row]}
    assert run("wait", "r1", "--for", "ended").out == "r1 released\n"
    assert run("wait", "r1").complaints == ["leasehold: r1 is released"]
    stack.handler = lambda _verb, _document: {"ok": True, "reservations": []}
    assert run("wait", "r1").complaints == ["leasehold: there is no reservation r1"]


def test_ctrl_c_ends_only_the_wait(stack: FakeIntake, start: Start) -> None:
    stack.publish(a_row("r1"))
    found = start("wait", "r1")
    wait_for(lambda: stack.count_listeners("r1"), "the wait")
    found.process.send_signal(signal.SIGINT)
    assert (found.await_status(), found.complaints()) == (130, ["leasehold: interrupted: r1 stays as it is"])
    assert stack.seen == []
