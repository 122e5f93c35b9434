"""The checker finds each broken promise, and nothing where all were kept."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.model.rules import Rules
from scheduler.operations.intake import submit
from scheduler.operations.ledger import Ledger
from scheduler.store.memory import MemoryStore
from tests.chaos.checker import Evidence, find_violations, gather


def a_use(at: float, reservation: str = "r1", token: int = 1, **changes: Any) -> dict[str, Any]:
    return {
        "event": "use",
        "at": at,
        "reservation": reservation,
        "token": token,
        "component": "main",
        "slot": "single-1",
        "machine": "i-1",
        "cpus": 0,
        **changes,
    }


def a_call(at: float, action: str, token: str | None = None, **changes: Any) -> dict[str, Any]:
    return {
        "time": at,
        "action": action,
        "token": token,
        "instances": ["i-1"],
        "replayed": False,
        "code": None,
        **changes,
    }


def a_machine(name: str = "i-1", launch: str = "l1", state: str = "terminated") -> dict[str, Any]:
    return {"id": name, "state": state, "tags": {"leasehold:launch": launch, "leasehold:slot": "single-1"}}


GOOD = Evidence(
    accepted={"r1", "r2"},
    phases={"r1": "released", "r2": "expired"},
    slots={"single-1": "empty", "single-2": "error"},
    uses=[a_use(10), a_use(11), a_use(11, "r2", 2), a_use(12, "r2", 2)],
    calls=[
        a_call(1, "RunInstances", "t1"),
        a_call(2, "RunInstances", "t1", replayed=True),
        a_call(3, "TerminateInstances", code="Throttling"),
        a_call(13, "TerminateInstances"),
    ],
    machines=[a_machine()],
    launching=1,
    terms=[1, 1, 2, 5],
    ticks=[{"term": 1, "at": 1.0}, {"term": 1, "at": 2.0}, {"term": 3, "at": 2.0}],
)


def test_a_run_that_kept_every_promise_has_no_violations() -> None:
    assert find_violations(GOOD) == []


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        # Lost: still waiting, or not even there.
        (replace(GOOD, phases={"r1": "pending", "r2": "expired"}), "r1 was accepted and is pending"),
        (replace(GOOD, phases={"r2": "expired"}), "r1 was accepted and is unknown"),
        # Two on one machine; too many cpus on a shared one.
        (replace(GOOD, uses=[*GOOD.uses, a_use(11.5, "r1", 1)]), "i-1 was held by r1/1, r2/2"),
        (
            replace(
                GOOD,
                uses=[
                    a_use(at, name, token, slot="shared-1", cpus=cpus)
                    for at in (10, 11)
                    for name, token, cpus in (("r1", 1, 2), ("r2", 2, 3))
                ],
            ),
            "i-1 was held by r1/1, r2/2",
        ),
        (replace(GOOD, uses=[a_use(10), a_use(20, "r2", 1, machine="i-2")]), "token 1 was given to r1, r2"),
        # A machine more than tokens, than decisions, than launches.
        (
            replace(GOOD, calls=[a_call(1, "RunInstances", "t1"), a_call(1, "RunInstances", "t1")], launching=2),
            "2 machines were launched under 1 tokens",
        ),
        (
            replace(GOOD, calls=[a_call(1, "RunInstances", "t1"), a_call(1, "RunInstances", "t2")]),
            "2 machines were launched for 1 decisions",
        ),
        (replace(GOOD, machines=[a_machine(), a_machine("i-2")]), "launch l1 got 2 machines"),
        (replace(GOOD, machines=[a_machine(state="running")]), "machine i-1 of slot single-1 is running"),
        (replace(GOOD, slots={"single-1": "launching"}), "slot single-1 is launching"),
        (replace(GOOD, calls=[a_call(10.5, "TerminateInstances")]), "machine i-1 was ended while r1 held it"),
        (replace(GOOD, terms=[1, 2, 1]), "a leader of term 1 wrote after one of term 2"),
        (replace(GOOD, ticks=[{"term": 2, "at": 9.0}, {"term": 2, "at": 8.0}]), "the last tick went back"),
        (replace(GOOD, ticks=[{"term": 2, "at": 9.0}, {"term": 1, "at": 9.0}]), "the last tick went back"),
    ],
)
def test_each_broken_promise_is_found(broken: Evidence, said: str) -> None:
    assert any(line.startswith(said) for line in find_violations(broken))


def test_evidence_is_what_the_files_and_sql_say(tmp_path: Path) -> None:
    store = MemoryStore(lambda: 1000.0)
    with store.transaction() as transaction:
        ledger = Ledger(transaction, "tick", term=7)
        submit(ledger, Rules(), [])
        transaction.append_events([])
    accepted = json.dumps({"event": "accepted", "reservation": "r1", "at": 1.0})
    (tmp_path / "holders-0.jsonl").write_text(f"{accepted}\n{json.dumps(a_use(10))}\n" + '{"event": "us')
    (tmp_path / "calls.jsonl").write_text(json.dumps(a_call(1, "RunInstances", "t1")) + "\n")
    found = gather(tmp_path, store, [a_machine()])
    assert found == Evidence(
        accepted={"r1"}, uses=[a_use(10)], calls=[a_call(1, "RunInstances", "t1")], machines=[a_machine()]
    )
