"""The market of the next launch, as `leasehold offers` and `leasehold explain` show it, and in bulk launches."""

from typing import Any

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.operations.explain import describe_conditions, explain
from scheduler.operations.machines.launch import launch
from scheduler.operations.rules.offers import Ages, Offer, list_offers
from tests.operations.harness import Harness

AGES = Ages(3600.0, 7200.0)
OFFERINGS = [
    {"name": "m", "market": "spot", "price": 1.0, "resources": {"cpus": 4}},
    {"name": "m", "market": "on-demand", "price": 3.0, "resources": {"cpus": 4}},
]


def a_harness(market: dict[str, Any], **pool: Any) -> Harness:
    table = {"system": "x86_64-linux", "max_slots": 4, "lease_ttl": 0, "max_leases_per_slot": 1, "offerings": OFFERINGS}
    return Harness({"pools": {"linux": {**table, **pool, "market": market}}})


def offers(harness: Harness, **wanted: Any) -> list[Offer]:
    return list_offers(harness.store, AGES, **wanted)


def hold_back(harness: Harness, subject: str, *, streak: int = 1, ago: float = 0.0) -> None:
    """Store the back-off after EC2 had no capacity for an offering, `ago` seconds ago; it lasts for 60 s."""
    at = harness.now - ago
    fields: dict[str, Any] = {"pool": "linux", "kind": "capacity", "subject": subject, "streak": streak}
    with harness.store.transaction() as transaction:
        transaction.save([Hold(id=hold_id("linux", "capacity", subject), refused_at=at, until=at + 60, **fields)])


def test_offers_mark_the_next_one_and_name_the_market_whose_turn_it_is() -> None:
    harness = a_harness({"on_demand_base": 1, "on_demand_share": 0.0})
    turn = "the next machine is to be on-demand: 0 of 0 slots are on-demand (on_demand_base 1, on_demand_share 0)"
    assert [(each.key, each.is_next, each.reasons, each.turn) for each in offers(harness)] == [
        ("m/on-demand", True, (), turn),
        ("m/spot", False, (turn,), turn),
    ]
    harness.submit("r1")
    harness.tick()
    turn = "the next machine is to be spot: 1 of 1 slots are on-demand (on_demand_base 1, on_demand_share 0)"
    assert [(each.key, each.is_next, each.reasons, each.turn) for each in offers(harness)] == [
        ("m/spot", True, (), turn),
        ("m/on-demand", False, (turn,), turn),
    ]


def test_without_a_mix_the_first_offering_that_nothing_prevents_is_next() -> None:
    harness = a_harness({}, price_factor=3.0)
    assert [(each.key, each.is_next, each.turn) for each in offers(harness)] == [
        ("m/spot", True, None),
        ("m/on-demand", False, None),
    ]
    hold_back(harness, "m/spot")
    assert [(each.key, each.is_next) for each in offers(harness)] == [("m/spot", False), ("m/on-demand", True)]
    assert [each.is_next for each in offers(harness, wanted={"cpus": 9.0})] == [False, False]


def test_offers_name_the_time_after_which_spot_is_tried_again() -> None:
    harness = a_harness({"spot_again_after": 600}, on_demand_after=2)
    hold_back(harness, "m/spot", streak=2, ago=100.0)
    spot, usual = offers(harness)
    assert spot.reasons == ("spot again in 8 min: spot_again_after, after 2 refusals in a row",)
    assert [each.until - harness.now for each in spot.holds] == [500.0]
    assert (usual.key, usual.is_next, usual.reasons) == ("m/on-demand", True, ())
    (text,) = describe_conditions(harness.ports)["pools"]["linux"]
    pause = "not launched for 8 min more (2 refusals in a row), spot_again_after"
    assert text == f"EC2 has no capacity for m/spot of pool linux: {pause}"
    over = a_harness({"spot_again_after": 600}, on_demand_after=2)
    hold_back(over, "m/spot", streak=2, ago=600.0)
    first, _ = offers(over)
    assert (first.key, first.is_next, first.holds) == ("m/spot", True, ())


def test_offers_do_not_wait_for_spot_that_could_not_hold_the_wanted_amounts() -> None:
    large = {"name": "large", "market": "on-demand", "price": 9.0, "resources": {"cpus": 16}}
    harness = a_harness({"on_demand_share": 0.0}, offerings=[*OFFERINGS, large])
    first = offers(harness, wanted={"cpus": 8.0})[0]
    assert (first.key, first.is_next) == ("large", True)


def test_a_wait_for_the_other_market_is_explained() -> None:
    harness = a_harness({"on_demand_base": 1})
    hold_back(harness, "m/on-demand")
    harness.submit("r1")
    found = explain(harness.ports, "r1")
    turn = "the next machine is to be on-demand: 0 of 0 slots are on-demand (on_demand_base 1)"
    assert found["waiting"]["code"] == "capacity"
    assert turn in found["waiting"]["detail"]
    assert found["pools"]["linux"][-1] == turn
    (capacity,) = [each for each in found["conditions"] if each["name"] == "ec2_capacity"]
    assert capacity["met"] is False
    assert turn in capacity["evidence"]


def test_a_reservation_that_no_on_demand_offering_holds_is_explained() -> None:
    small = {"name": "small", "market": "on-demand", "price": 1.0, "resources": {"cpus": 1}}
    harness = a_harness({"on_demand_base": 1}, offerings=[OFFERINGS[0], small])
    harness.submit("r1", resources={"cpus": 4})
    found = explain(harness.ports, "r1")
    assert found["waiting"]["code"] == "no_capacity"
    (capacity,) = [each for each in found["conditions"] if each["name"] == "ec2_capacity"]
    assert capacity["evidence"] == (
        "no offering of its pools could hold it; pool linux: the next machine is to be on-demand: "
        "0 of 0 slots are on-demand (on_demand_base 1)"
    )


def test_an_offering_that_waits_for_spot_again_after_is_no_alternative_in_a_bulk_launch() -> None:
    other = {"name": "n", "market": "spot", "price": 1.1, "resources": {"cpus": 4}}
    harness = a_harness({"spot_again_after": 600}, on_demand_after=2, offerings=[*OFFERINGS, other])
    hold_back(harness, "n", streak=2, ago=100.0)
    for number in range(2):
        harness.submit(f"r{number}")
    harness.tick()
    launch(harness.ports, harness.slot().batch or "")
    (answer,) = harness.fleet.answers.values()
    assert {machine.offering for machine in answer.machines} == {"m/spot"}
