"""What EC2 refuses, and where: the refusals in the answers of fleets, and answers that are broken or very long."""

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from scheduler.ports import MOST_MESSAGE, CloudError, LaunchAnswer, Refusal
from tests.ec2.conftest import Emulator, Launch
from tests.ec2.test_batches import TYPES, a_batch, launch, rules
from workers.ec2.fleet import Ec2Fleet, read_answer

if TYPE_CHECKING:
    from scheduler.model.rules import Rules

__all__ = ["rules"]

PLACES = {
    "a": [{"InstanceType": "a", "SubnetId": "s1"}, {"InstanceType": "a", "SubnetId": "s2"}],
    "b": [{"InstanceType": "b", "SubnetId": "s1"}, {"InstanceType": "b", "SubnetId": "s2"}],
}


def read(*errors: tuple[str, str, str], machines: int = 0, places: dict[str, Any] | None = None) -> LaunchAnswer:
    """Return the answer to a batch of two machines. `errors`: (instance type, subnet, code)."""
    request = {
        "parameters": {"TargetCapacitySpecification": {"TotalTargetCapacity": 2}, "TagSpecifications": [{"Tags": []}]},
        "offerings": PLACES if places is None else places,
    }

    def at(kind: str, subnet: str) -> dict[str, Any]:
        return {"LaunchTemplateAndOverrides": {"Overrides": {"InstanceType": kind, "SubnetId": subnet}}}

    ids = [f"i-{number}" for number in range(machines)]
    answer = {
        "Instances": [{**at("b", "s2"), "InstanceType": "b", "InstanceIds": ids, "Lifecycle": "spot"}] if ids else [],
        "Errors": [{**at(kind, subnet), "ErrorCode": code, "ErrorMessage": "no"} for kind, subnet, code in errors],
    }
    return read_answer(answer, request)


def a_refusal(offering: str, code: str, category: Any, scope: Any = "offering", place: str = "") -> Refusal:
    return Refusal(offering=offering, category=category, code=code, message="no", scope=scope, place=place)


NONE_LEFT = "InsufficientInstanceCapacity"
NO_ADDRESS = "InsufficientFreeAddressesInSubnet"


@pytest.mark.parametrize(
    ("errors", "refusals"),
    [
        # everywhere: the offering
        ([("a", "s1", NONE_LEFT), ("a", "s2", NONE_LEFT)], [a_refusal("a", NONE_LEFT, "capacity")]),
        # in one of two places: the offering there
        ([("a", "s1", NONE_LEFT)], [a_refusal("a", NONE_LEFT, "capacity", place="s1")]),
        # the code is about the place, and about nothing else
        (
            [("a", "s1", NO_ADDRESS), ("a", "s2", NO_ADDRESS)],
            [a_refusal("a", NO_ADDRESS, "capacity", "place", place) for place in ("s1", "s2")],
        ),
        # what a user has to mend is shown, and capacity elsewhere is held, too
        (
            [("a", "s1", "InvalidSubnetID.NotFound"), ("a", "s2", NONE_LEFT)],
            [
                a_refusal("a", NONE_LEFT, "capacity", place="s2"),
                a_refusal("a", "InvalidSubnetID.NotFound", "misconfigured", "place", "s1"),
            ],
        ),
        # a wrong configuration is no lack of capacity
        (
            [("a", "s1", "NobodyKnowsThisCode"), ("a", "s2", NONE_LEFT)],
            [a_refusal("a", "NobodyKnowsThisCode", "misconfigured")],
        ),
        (
            [("a", "s1", "NobodyKnowsThisCode"), ("a", "s2", "NobodyKnowsThisCode"), ("b", "s1", NONE_LEFT)],
            [a_refusal("b", NONE_LEFT, "capacity", place="s1"), a_refusal("a", "NobodyKnowsThisCode", "misconfigured")],
        ),
        ([("a", "s1", "UnauthorizedOperation")], [a_refusal("a", "UnauthorizedOperation", "auth", place="s1")]),
        (
            [("a", "s1", "VcpuLimitExceeded"), ("a", "s2", "VcpuLimitExceeded")],
            [a_refusal("a", "VcpuLimitExceeded", "quota", "class")],
        ),
    ],
)
def test_the_errors_of_a_fleet_are_refusals_of_offerings_and_places(
    errors: list[tuple[str, str, str]], refusals: list[Refusal]
) -> None:
    for machines in (0, 1):
        assert list(read(*errors, machines=machines).refusals) == refusals


def test_errors_beside_all_machines_count_only_for_offerings_that_failed_everywhere() -> None:
    errors = [("a", "s1", NONE_LEFT), ("a", "s2", NONE_LEFT), ("b", "s1", NONE_LEFT)]
    assert list(read(*errors, machines=2).refusals) == [a_refusal("a", NONE_LEFT, "capacity")]


def test_an_answer_whose_errors_are_all_unclear_is_no_refusal_of_places() -> None:
    with pytest.raises(CloudError) as caught:
        read(("a", "s1", "InternalError"))
    assert (caught.value.category, caught.value.code) == ("transient", "InternalError")
    assert [each.category for each in read(("a", "s1", "InternalError"), machines=1).refusals] == ["transient"]
    mixed = read(("a", "s1", "InternalError"), ("b", "s1", "VcpuLimitExceeded")).refusals
    assert {each.category for each in mixed} == {"transient", "quota"}


def test_an_error_about_zones_names_the_zone() -> None:
    place = {"InstanceType": "a", "SubnetId": "s1", "AvailabilityZone": "z1"}
    for code, named in (("InsufficientVolumeCapacity", "z1"), (NO_ADDRESS, "s1")):
        found = read(("a", "s1", code), places={"a": [place]}).refusals
        assert list(found) == [a_refusal("a", code, "capacity", "place", named)]


def test_a_refusal_without_a_place_concerns_the_offering() -> None:
    found = read(("a", "s1", NO_ADDRESS), places={"a": [{"InstanceType": "a"}]}).refusals
    assert list(found) == [a_refusal("a", NO_ADDRESS, "capacity")]


def test_an_answer_has_machines_and_errors(fleet: Ec2Fleet, rules: "Rules", emulator: Emulator) -> None:
    emulator.set_fault(code="NobodyKnowsThisCode", where="fleet", type="c5.large", message="A sentence from EC2")
    answer = launch(fleet, rules, 2, *TYPES)
    assert [machine.offering for machine in answer.machines] == ["m5.large"] * 2
    (refusal,) = answer.refusals
    assert (refusal.offering, refusal.category, refusal.code, refusal.message) == (
        "c5.large",
        "misconfigured",
        "NobodyKnowsThisCode",
        "A sentence from EC2",
    )


@pytest.mark.parametrize("where", ["call", "fleet"])
def test_a_permission_that_lacks_for_several_offerings_concerns_the_pool(
    where: str, fleet: Ec2Fleet, rules: "Rules", emulator: Emulator
) -> None:
    """For a single offering, and in the errors of a fleet, it concerns the offering."""
    emulator.set_fault(code="UnauthorizedOperation", where=where)

    def refused(*offerings: str) -> str:
        order = msgspec.structs.replace(a_batch(2, *offerings), batch=f"batch-{len(offerings)}")
        try:
            return fleet.launch(fleet.freeze(order, rules)).refusals[-1].scope
        except CloudError as error:
            return error.scope

    assert refused(*TYPES) == ("pool" if where == "call" else "offering")
    assert refused(TYPES[0]) == "offering"


def test_a_single_launch_has_the_scope_of_one_offering(launch: Launch, emulator: Emulator) -> None:
    emulator.set_fault(code="UnauthorizedOperation", where="call")
    with pytest.raises(CloudError) as caught:
        launch()
    assert (caught.value.category, caught.value.scope) == ("auth", "offering")


def test_a_refused_place_is_named_by_the_message_or_is_the_only_one(
    fleet: Ec2Fleet, rules: "Rules", emulator: Emulator
) -> None:
    first, second = rules.pools["linux"].ec2.subnets

    def refused(rules: "Rules", message: str) -> tuple[str, str]:
        emulator.set_fault(code="InvalidSubnetID.NotFound", where="call", message=message)
        with pytest.raises(CloudError) as caught:
            launch(fleet, rules, 2, *TYPES)
        return caught.value.scope, caught.value.place

    assert refused(rules, f"The subnet ID '{second}' does not exist") == ("place", second)
    assert refused(rules, "The subnet does not exist") == ("offering", "")
    pool = rules.pools["linux"]
    ec2 = pool.ec2.model_copy(update={"subnets": (first,)})
    alone = rules.model_copy(update={"pools": {"linux": pool.model_copy(update={"ec2": ec2})}})
    assert refused(alone, "The subnet does not exist") == ("place", first)


@pytest.mark.parametrize("body", ["html", "empty"])
@pytest.mark.parametrize("status", [400, 403, 503])
def test_a_broken_answer_is_unclear(
    body: str, status: int, fleet: Ec2Fleet, rules: "Rules", emulator: Emulator
) -> None:
    emulator.set_fault(code="InvalidAMIID.NotFound", where="call", body=body, status=status)
    with pytest.raises(CloudError) as caught:
        launch(fleet, rules, 2, *TYPES)
    assert caught.value.category == "transient"
    assert len(caught.value.message) <= MOST_MESSAGE
    assert "<" not in caught.value.message


def test_a_message_of_100_kb_is_bounded(fleet: Ec2Fleet, rules: "Rules", emulator: Emulator) -> None:
    emulator.set_fault(code="NobodyKnowsThisCode", where="call", message="word " * 20_000)
    with pytest.raises(CloudError) as caught:
        launch(fleet, rules, 2, *TYPES)
    assert caught.value.message == ("word " * 20_000)[:MOST_MESSAGE]
    emulator.set_fault(code="NobodyKnowsThisCode", where="fleet", message="word " * 20_000)
    assert {len(each.message) for each in launch(fleet, rules, 2, *TYPES).refusals} == {MOST_MESSAGE}
