"""Slot info: the number of leases that a slot takes, apart from its resources."""

import pytest

from scheduler.model.view import View
from scheduler.policy.cycle.state import CycleState
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
