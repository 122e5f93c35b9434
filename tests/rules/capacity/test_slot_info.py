"""Slot info: the number of leases that a slot takes, apart from its resources."""

from typing import Literal

import pytest

from scheduler.model.decisions import Assign, Drain
from scheduler.model.view import Row, View
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.plan import plan
from tests.builders import NOW, a_lease, a_reservation, a_slot, some_rules


@pytest.mark.parametrize(
    ("held", "uses", "pool", "has_place"),
    [
        (1, 0, {"max_leases_per_slot": 2}, True),
        (2, 0, {"max_leases_per_slot": 2}, False),
        # A slot that counts leases only takes one by default; a slot with resources takes what fits.
        (1, 0, {}, False),
        (9, 0, {"resources": {"cpus": 1}}, True),
        # Leases that have ended count towards `max_uses` too.
        (0, 2, {"max_uses": 3, "max_leases_per_slot": 9}, True),
        (0, 3, {"max_uses": 3, "max_leases_per_slot": 9}, False),
    ],
)
def test_a_slot_takes_as_many_leases_as_are_allowed_and_no_more(
    held: int, uses: int, pool: dict[str, object], has_place: bool
) -> None:
    holders = [a_reservation(f"h{number}", phase="leased", leases=(a_lease(),)) for number in range(held)]
    cycle = CycleState(View([a_slot("linux-1", uses=uses), *holders]), some_rules({"pools": {"linux": pool}}), NOW)
    assert cycle.slot_infos["linux-1"].has_place is has_place


def test_a_claim_and_the_lease_that_it_waits_for_take_one_of_the_allowed_leases() -> None:
    large = {"cpus": 3}
    rows: list[Row] = [
        a_slot("linux-1"),
        a_reservation("h1", phase="revoking", revoke_by=NOW + 60, leases=(a_lease(state="revoking", resources=large),)),
        a_reservation("h2", resources=large, leases=(a_lease(state="claimed", resources=large),)),
        *(a_reservation(f"r{number}", resources={"cpus": 0.5}, sequence=number) for number in (1, 2)),
    ]
    pool = {"max_slots": 1, "max_leases_per_slot": 2, "resources": {"cpus": 4}}
    found = plan(View(rows), some_rules({"pools": {"linux": pool}}), NOW)
    assert [each.reservation for each in found.decisions if isinstance(each, Assign)] == ["r1"]


@pytest.mark.parametrize(
    ("offering", "zone", "drained"),
    [
        # The key of an offering depends on which others have its name, and may have been another one at the launch.
        ("small", None, False),
        ("small/spot", None, False),
        ("small/spot/any", None, False),
        ("small/spot/a", "a", False),
        ("small/spot/any", "a", True),
        ("small/on-demand", None, True),
    ],
)
def test_a_slot_drains_unless_its_offering_is_configured_under_any_of_its_keys(
    offering: str, zone: str | None, drained: bool
) -> None:
    pool = {"offerings": [{"name": "small", "market": "spot", **({"zone": zone} if zone else {})}]}
    found = plan(View([a_slot(offering=offering)]), some_rules({"pools": {"linux": pool}}), NOW)
    assert [each for each in found.decisions if isinstance(each, Drain)] == [
        Drain(slot="linux-1", reason="unconfigured")
    ] * drained


@pytest.mark.parametrize(("state", "drains"), [("claimed", False), ("held", True)])
def test_only_a_lease_that_was_held_leaves_a_slot_unclean(state: Literal["claimed", "held"], drains: bool) -> None:
    """The commit drains no slot for a claim that ends, so the plan must not either."""
    phase = "pending" if state == "claimed" else "leased"
    row = a_reservation("r1", phase=phase, expires_at=NOW, leases=(a_lease(state=state),))
    found = plan(View([a_slot("linux-1"), row]), some_rules({"pools": {"linux": {"recycle_unclean": True}}}), NOW + 1)
    assert [each.reason for each in found.decisions if isinstance(each, Drain)] == (["unclean"] if drains else [])
