"""Commands on leases by the client: what is sent, and what is read of the answers, in each client and over each way."""

from collections.abc import Iterator
from typing import Any

import pytest

from leasehold import Client, Refused, Run
from tests.client.intake import Document, FakeIntake, a_row, accept

LEASE: dict[str, Any] = {"run": "x", "reservation": "r1", "component": "main", "token": 7}
HOST: Document = {"slot": "lab-1", "machine": "m1"}
RUN: Run = {"argv": ["sh", "-c", "echo $A"], "env": {"A": "b"}, "on_exit": "release"}
FAULT: Document = {"index": 0, "path": "token", "expected": "the token of this lease", "got": "7", "code": "conflict"}


def take_one(intake: FakeIntake) -> Document:
    """Return the document of the only request, without the fields of the message."""
    ((_, document),) = intake.seen
    return {name: value for name, value in document.items() if name not in {"request", "reply_to"}}


def test_a_command_is_submitted(intake: FakeIntake, client: Client) -> None:
    def answer(verb: str, document: Document) -> Document:
        intake.publish(a_row(document["id"]))
        return accept(verb, document)

    intake.handler = answer
    assert client.submit({"id": "r1", "pool": "lab"}, run=RUN).id == "r1"
    assert take_one(intake)["run"] == RUN


def test_a_command_is_read_with_its_runs(intake: FakeIntake, client: Client) -> None:
    run = {"component": "main", "slot": "lab-1", "machine": "m", "run": "x", "reservation": "r1", "taken_at": 5.0}
    run |= {"token": 7, "state": "ended", "why": "signal", "signal": 9, "tail": "the end\n", "bytes": 8}
    answer: Document = {"ok": True, "reservation": "r1", "phase": "failed", "reason": "signal", "state": "ended"}
    answer |= {"exit_code": None, "signal": 9, "why": "signal", "run": {"argv": ["a"]}, "executions": [run]}
    intake.handler = lambda _verb, _document: answer
    found = client.command("r1")
    assert (found.phase, found.state, found.why, found.signal, found.run) == (
        *("failed", "ended", "signal", 9),
        {"argv": ["a"]},
    )
    assert found.last is not None
    assert (found.last.tail, found.last.bytes, found.last.token) == ("the end\n", 8, 7)
    assert take_one(intake) == {"reservation": "r1"}


@pytest.fixture(params=["redis", "http"])
def host_client(intake: FakeIntake, request: pytest.FixtureRequest) -> Iterator[Client]:
    """The client of a host: over HTTP only a principal with the role host may take commands."""
    if request.param == "redis":
        with Client(intake.url, timeout=5) as made:
            yield made
        return
    access = request.getfixturevalue("http_access")
    with access.open(key=access.add_principal("lab-1", "host")) as made:
        yield made


def test_a_host_takes_a_command(intake: FakeIntake, host_client: Client) -> None:
    intake.handler = lambda _verb, _document: {"ok": True, "reservation": "r1", "command": "{}", "signature": "ab"}
    taken = host_client.hosts.take("lab-1", "m1", **LEASE, nonce="n" * 16)
    assert (taken.command, taken.signature) == ("{}", "ab")
    assert "{}" not in repr(taken)
    assert take_one(intake) == {**HOST, **LEASE, "nonce": "n" * 16}


def test_a_refused_take_is_raised_with_its_fault(intake: FakeIntake, host_client: Client) -> None:
    intake.handler = lambda _verb, _document: {"ok": False, "errors": [FAULT]}
    with pytest.raises(Refused) as refused:
        host_client.hosts.take("lab-1", "m1", **LEASE, nonce="n" * 16)
    assert [(each.path, each.code) for each in refused.value.errors] == [("token", "conflict")]


def test_a_host_reports_the_start_and_the_end(intake: FakeIntake, blocking_client: Client) -> None:
    assert blocking_client.hosts.started("lab-1", "m1", **LEASE).ok
    ended: dict[str, Any] = {"why": "exited", "exit_code": 0, "tail": "", "bytes": 0}
    assert blocking_client.hosts.exited("lab-1", "m1", **LEASE, **ended).ok
    (first, started), (second, exited) = intake.seen
    assert (first, second) == ("started", "exited")
    assert LEASE.items() <= started.items()
    assert (LEASE | ended).items() <= exited.items()
    assert not exited.keys() & {"signal", "error"}


def test_the_output_of_all_commands_is_one_request(intake: FakeIntake, blocking_client: Client) -> None:
    def answer(_verb: str, document: Document) -> Document:
        good = [item["token"] == 7 for item in document["items"]]
        results = [{"ok": True, "reservation": "r1"} if each else {"ok": False, "errors": [FAULT]} for each in good]
        return {"ok": all(good), "results": results}

    intake.handler = answer
    reports: Any = [{"reservation": "r1", "component": "main", "token": n, "tail": "t", "bytes": 1} for n in (7, 8)]
    found = blocking_client.hosts.output("lab-1", "m1", run="x", reports=reports)
    assert [each.ok for each in found] == [True, False]
    assert take_one(intake) == {"items": [{**HOST, "run": "x", **each} for each in reports]}
