"""Requests that schemathesis makes from the OpenAPI document get no status 500."""

from typing import Any

from scheduler.ports import StoredPrincipal
from scheduler.protocol.signing import make_key
from scheduler.protocol.verbs import Role
from tests.client.intake import FakeIntake, a_row, accept
from tests.console.served import Console
from tests.fuzz.api import fuzz, make_login

ROLES: tuple[Role, ...] = ("operator", "producer", "reader")


def answer(verb: str, document: dict[str, Any]) -> dict[str, Any]:
    if verb == "submit" and not isinstance(document.get("items", []), list):
        return {"ok": False, "errors": [{"index": 0, "path": "items", "expected": "a list", "got": "\x9b\u202e"}]}
    return (
        accept(verb, document) if all(isinstance(each, dict) for each in document.get("items", ())) else {"ok": False}
    )


def test_no_request_fails(console: Console, intake: FakeIntake) -> None:
    """`make fuzz` sends many thousands of them to a whole stack."""
    intake.publish(a_row("r1"))
    intake.handler = answer
    logins: dict[Role, str] = {}
    for role in ROLES:
        row = StoredPrincipal(name=role, role=role, key=make_key(), created_at=0.0)
        console.add(row)
        logins[role] = make_login(row.name, row.key)
    failures, statuses = fuzz(f"http://127.0.0.1:{console.settings.console.port}/api/v1", logins, examples=1, share=3)
    assert failures == {}
    assert {200, 400, 403} <= statuses.keys()
