"""The code of a fault names its kind for programs, whatever its text is."""

from typing import Any

import pytest

from scheduler.model.principals import Principal
from tests.operations.hostile import KEY
from tests.operations.test_rights import OPERATOR, OTHER_HOST, READER, RIVAL, SHOP, Cluster

LAB: Principal = Principal(name="lab-1", role="host")

CASES: list[tuple[Principal, str, dict[str, Any], str, str | None]] = [
    # sender, verb, document -> path and code of the first fault
    (READER, "cancel", {"reservation": "waiting"}, "principal", "forbidden"),
    (SHOP, "submit", {"id": "new", "system": "x86_64-linux", "account": "rival"}, "account", "forbidden"),
    (SHOP, "renew", {"reservation": "leased", "token": 1}, "key", "forbidden"),
    (OTHER_HOST, "leave", {"slot": "lab-1", "machine": "m1"}, "slot", "forbidden"),
    (RIVAL, "cancel", {"reservation": "waiting"}, "reservation", "unknown"),
    (OPERATOR, "cancel", {"reservation": "nothing"}, "reservation", "unknown"),
    (OPERATOR, "cordon", {"slot": "nothing"}, "slot", "unknown"),
    (OPERATOR, "reset_account", {"account": "nothing"}, "account", "unknown"),
    (SHOP, "renew", {"reservation": "leased", "token": 10**6, "key": KEY}, "token", "conflict"),
    (SHOP, "surrender", {"reservation": "bare", "token": 1}, "token", "conflict"),
    (OPERATOR, "remove", {"slot": "linux-1"}, "slot", "conflict"),
    (LAB, "leave", {"slot": "lab-1", "machine": "another"}, "machine", "conflict"),
    (RIVAL, "submit", {"id": "waiting", "system": "x86_64-linux"}, "id", "conflict"),
    # The request itself is wrong.
    (SHOP, "renew", {"reservation": 7}, "reservation", None),
    (SHOP, "renew", {"reservation": "leased", "token": "x"}, "token", None),
    (SHOP, "renew", {"reservation": "leased", "key": 7}, "key", None),
    (OPERATOR, "cordon", {}, "slot", None),
    (OPERATOR, "fly", {}, "verb", None),
]


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    """One cluster for all cases: a refused request changes nothing."""
    return Cluster()


@pytest.mark.parametrize(("sender", "verb", "document", "path", "code"), CASES)
def test_a_fault_has_the_code_of_its_kind(
    sender: Principal, verb: str, document: dict[str, Any], path: str, code: str | None, cluster: Cluster
) -> None:
    answer = cluster.ask(sender, verb, **document)
    assert not answer["ok"]
    assert (answer["errors"][0]["path"], answer["errors"][0].get("code")) == (path, code)


def test_a_reservation_that_has_ended_conflicts() -> None:
    cluster = Cluster()
    assert cluster.ask(SHOP, "cancel", reservation="waiting")["ok"]
    (found,) = cluster.ask(SHOP, "renew", reservation="waiting")["errors"]
    assert (found["expected"], found["code"]) == ("a reservation that has not ended", "conflict")
