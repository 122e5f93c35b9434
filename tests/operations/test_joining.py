"""A launched machine gets the key of its slot by its proof, and acts with it for itself only."""

from typing import Any

import pytest

from scheduler.model.principals import Principal
from scheduler.operations.commands.intake import accept, check_question
from scheduler.operations.commands.lease_commands import CommandRefused
from scheduler.operations.machines.joining import JOINED, Identity, join
from scheduler.operations.principals import add_principal
from tests.operations.harness import Harness
from tests.operations.test_launched_hosts import a_harness, check_machines


def join_with(harness: Harness, machine: str = "i-1", signature: str = "s1") -> Identity:
    return join(harness.store, harness.ports.rules(), machine, signature)


def find_principal(harness: Harness, name: str = "linux-1") -> Principal:
    return next(each.principal for each in harness.store.find_principals() if each.name == name)


def register_as(harness: Harness, principal: Principal, **fields: Any) -> dict[str, Any]:
    document = {"request": f"{fields}", "slot": "linux-1", "pool": "linux", "machine": "i-1", "run": "a", **fields}
    return accept(harness.ports, "register", document, principal=principal)


def test_a_machine_gets_the_slot_that_has_it() -> None:
    harness = a_harness()
    identity = join_with(harness)
    assert identity[:3] == ("linux-1", "linux", "i-1")
    principal = find_principal(harness)
    assert (principal.role, principal.machine) == ("host", "i-1")
    assert [(event.slot, event.detail["machine"]) for event in harness.events if event.name == JOINED] == [
        ("linux-1", "i-1")
    ]
    assert register_as(harness, principal)["ok"]


def test_a_proof_counts_once() -> None:
    harness = a_harness()
    first = join_with(harness)
    with pytest.raises(CommandRefused, match="not used before"):
        join_with(harness)
    assert join_with(harness, signature="s2").key != first.key


@pytest.mark.parametrize("machine", ["i-2", "i-9"])
def test_a_machine_that_no_slot_has_is_refused(machine: str) -> None:
    harness = a_harness()
    with pytest.raises(CommandRefused, match="agent = true"):
        join_with(harness, machine)


def test_a_machine_of_a_pool_without_agents_is_refused() -> None:
    with pytest.raises(CommandRefused, match="agent = true"):
        join_with(a_harness(agent=False))


def test_a_principal_with_another_role_keeps_its_name() -> None:
    harness = a_harness()
    add_principal(harness.store, {"name": "linux-1", "role": "producer"})
    with pytest.raises(CommandRefused, match="role producer"):
        join_with(harness)
    assert find_principal(harness).role == "producer"


def test_the_key_of_an_ended_machine_does_not_count_for_the_next_machine_of_the_slot() -> None:
    harness = a_harness()
    join_with(harness)
    old = find_principal(harness)
    assert register_as(harness, old)["ok"]
    harness.fleet.terminate(["i-1"])
    for _ in range(2):
        check_machines(harness)
        harness.tick()
    check_machines(harness)
    assert harness.slot("linux-1").instance_id == "i-2"
    refused = register_as(harness, old, machine="i-2")
    assert [each["path"] for each in refused["errors"]] == ["machine"]
    assert [each["path"] for each in register_as(harness, old, run="b")["errors"]] == ["machine"]
    assert harness.slot("linux-1").machine is None


@pytest.mark.parametrize(("slot", "machine", "path"), [("linux-2", "i-1", "slot"), ("linux-1", "i-2", "machine")])
def test_a_host_asks_for_the_leases_of_its_own_slot_and_machine_only(slot: str, machine: str, path: str) -> None:
    harness = a_harness()
    join_with(harness)
    principal = find_principal(harness)
    check_question(principal, "leases", slot="linux-1", machine="i-1")
    with pytest.raises(CommandRefused) as refused:
        check_question(principal, "leases", slot=slot, machine=machine)
    assert refused.value.fault.path == path
