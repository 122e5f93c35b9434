"""`leasehold explain` prints the conditions of a wait, as a worker answers them."""

import json

from tests.cli.conftest import Run
from tests.client.intake import FakeIntake, a_row


def test_the_conditions_of_a_wait_are_a_table_below_the_sentence(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_row("r1"))
    conditions = [
        {"name": "not_on_hold", "met": True, "evidence": "its priority is 1"},
        {"name": "whole_gang", "met": None, "evidence": "it has one instance"},
        {"name": "free_capacity", "met": False, "evidence": "cpus 1 is free\x1b[2J"},
    ]
    answer = {"ok": True, "reservation": "r1", "phase": "pending", "position": 1, "of": 1, "conditions": conditions}
    answer |= {"waiting": {"code": "no_capacity", "detail": "full"}}
    stack.handler = lambda verb, _document: answer if verb == "explain" else None
    lines = [" ".join(line.split()) for line in run("explain", "r1").out.splitlines()]
    assert [line.upper() for line in lines[1:2]] == ["CONDITION MET EVIDENCE"]
    assert lines[3].startswith("free_capacity no cpus 1 is free")  # what is not met stands first
    assert "\x1b" not in lines[3]
    assert lines[4] == "not_on_hold yes its priority is 1"
    assert len(lines) == 5
    assert json.loads(run("explain", "r1", "--json").out)["conditions"] == conditions
