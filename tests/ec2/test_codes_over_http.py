"""Each code of EC2 over HTTP, in the three places where EC2 reports errors, and what a launch makes of it."""

from collections.abc import Iterator
from typing import Any

import pytest

from scheduler.operations.explain import explain
from scheduler.operations.machines.check import recover
from scheduler.ports import CloudError
from tests.ec2.conftest import IMAGE, Emulator, an_order, launch_one, some_rules
from tests.ec2.test_batches import a_batch
from tests.ec2.test_errors import KNOWN, REFUSED, Known
from tests.generated import draw_some
from tests.operations.harness import Harness
from workers.ec2.clients import Ec2Access, open_client
from workers.ec2.fleet import Ec2Fleet

UNKNOWN = Known("misconfigured", ["offering"], "NobodyKnowsThisCode", "")


@pytest.fixture(scope="module")
def hasty(access: Ec2Access) -> Ec2Fleet:
    """A fleet whose calls boto3 does not repeat."""
    return Ec2Fleet(open_client("ec2", access, 10.0, attempts=1), "blue")


def codes(note: str) -> Iterator[tuple[Known, str]]:
    """Yield each line of error_codes.tsv that holds at a place, with a code. `note`: the place."""
    for known in (*KNOWN, UNKNOWN):
        if known.note in {"", "image", note}:
            yield known, known.examples[0]


def some_codes(found: list[tuple[Known, str]]) -> list[tuple[Known, str]]:
    """A third of them in each run, and the code that no line has. Each test of a place but the first asks these:
    `test_errors.py` compares the meanings of all codes.
    """
    chosen = {number % len(found) for number in draw_some(range(len(found)), len(found) // 3)}
    return [each for number, each in enumerate(found) if number in chosen or each[0] is UNKNOWN]


def test_each_code_in_a_call_has_its_meaning(hasty: Ec2Fleet, emulator: Emulator) -> None:
    found, expected = {}, {}
    for number, (known, code) in enumerate(codes("launch")):
        emulator.set_fault(code=code, where="call", status=400, message=known.message)
        with pytest.raises(CloudError) as caught:
            launch_one(hasty, hasty.freeze(an_order(number), some_rules()))
        error = caught.value
        found[code, known.note] = (error.category, error.scope, error.code, error.message)
        # The requests have no subnet and no zone: what concerns a place concerns the offering.
        scope = known.scopes[-1].replace("place", "offering")
        expected[code, known.note] = (known.category, scope, code, known.message)
    assert found == expected
    assert emulator.instances() == []


@pytest.mark.parametrize("beside", [False, True])
def test_each_code_in_the_errors_of_a_fleet_has_its_meaning(beside: bool, hasty: Ec2Fleet, emulator: Emulator) -> None:
    rules = some_rules(offerings=[{"name": "c5.large", "zone": "us-east-1a"}, {"name": "m5.large"}])
    keys = list(rules.pools["linux"].offering_by_key)
    found, expected = {}, {}
    for number, (known, code) in enumerate(some_codes([*codes("launch"), *codes("fleet")])):
        emulator.set_fault(code=code, where="fleet", type="c5.large", message=known.message)
        order = a_batch(1, *(keys if beside else keys[:1]))
        request = hasty.freeze(order, rules)
        request["parameters"]["ClientToken"] = f"token-{number}"
        found[code] = describe(hasty, request, has_machines=beside)
        expected[code] = (keys[0], known.category, known.scopes[-1], code, known.message)
    assert found == expected


def describe(fleet: Ec2Fleet, request: dict[str, Any], *, has_machines: bool) -> tuple[Any, ...]:
    """Send the request of a batch. Return what the refusal in its answer has."""
    try:
        answer = fleet.launch(request)
    except CloudError as error:
        # Without machines, an answer with only unclear errors is no answer.
        return "c5.large", error.category, error.scope, error.code, error.message
    assert bool(answer.machines) == has_machines
    (refusal,) = answer.refusals
    return refusal.offering, refusal.category, refusal.scope, refusal.code, refusal.message


def test_each_code_as_a_state_reason_has_its_meaning(hasty: Ec2Fleet, emulator: Emulator) -> None:
    found, expected = {}, {}
    for number, (known, code) in enumerate(some_codes([*codes("launch")])):
        if known is UNKNOWN:
            continue
        emulator.set_fault(code=f"Client.{code}", where="machine", message=known.message)
        machine = launch_one(hasty, hasty.freeze(an_order(number), some_rules()))
        ended = hasty.describe([machine.id])[machine.id]
        found[code, known.note] = (ended.state, ended.reason, ended.category, ended.scope)
        meaning = (known.category, known.scopes[-1]) if known.category in REFUSED else (None, None)
        expected[code, known.note] = ("terminated", f"Client.{code}: {known.message}", *meaning)
    assert found == expected


class ReadyFleet:
    """The fleet of EC2, whose running machines are ready."""

    def __init__(self, fleet: Ec2Fleet) -> None:
        self._fleet = fleet

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def is_ready(self, _slot: object, machine: Any, _rules: object) -> bool:
        return bool(machine.state == "running")


def a_harness(fleet: Ec2Fleet, reservations: int) -> Harness:
    """Return a harness with this number of reservations, whose launches go to EC2."""
    pool = {
        "system": "x86_64-linux",
        "max_slots": 5,
        "lease_ttl": 0,
        "max_leases_per_slot": 1,
        "ec2": {"image": IMAGE},
        "offerings": [{"name": "c5.large", "zone": "us-east-1a", "price": 0.05}],
    }
    harness = Harness({"pools": {"linux": pool}}, fleet=ReadyFleet(fleet))  # type: ignore[arg-type]
    for number in range(reservations):
        harness.submit(f"r{number}")
    harness.tick()
    return harness


@pytest.mark.parametrize("count", [1, 2])
def test_machines_of_a_lost_answer_get_their_slots_after_a_refusal(
    count: int, hasty: Ec2Fleet, emulator: Emulator
) -> None:
    emulator.set_fault(lost="reset", count=1)
    harness = a_harness(hasty, count)
    harness.play_tasks()
    assert len(emulator.instances()) == count
    emulator.set_fault(code="NobodyKnowsThisCode", where="call")
    harness.now += 11
    recover(harness.ports)
    harness.play_tasks()
    slots = [harness.slot(f"linux-{number}") for number in range(1, count + 1)]
    assert {slot.instance_id for slot in slots} == {each["id"] for each in emulator.instances()}
    assert {slot.state for slot in slots} <= {"booting", "binding", "ready"}


def test_an_unknown_code_in_the_errors_of_a_fleet_makes_few_requests_and_is_explained(
    hasty: Ec2Fleet, emulator: Emulator
) -> None:
    emulator.set_fault(code="NobodyKnowsThisCode", where="fleet", message="A sentence from EC2")
    harness = a_harness(hasty, 3)
    harness.settle(3600, 20)
    launches = emulator.calls("CreateFleet") + emulator.calls("RunInstances")
    assert 3 <= len(launches) <= 30
    assert "NobodyKnowsThisCode: A sentence from EC2" in str(explain(harness.ports, "r0"))
    assert {harness.slot(f"linux-{number}").refusal for number in range(1, 4)} == {
        "NobodyKnowsThisCode: A sentence from EC2"
    }
    events = [event.detail.get("refusal") for event in harness.events if event.name == "slot_error"]
    assert set(events) == {"NobodyKnowsThisCode: A sentence from EC2"}
