"""The cached facts of a slot: its leases, and whether all leases that name it belong to its present machine."""

import pytest

from scheduler.model.transitions import SlotState
from scheduler.model.view import View
from scheduler.policy.capacity.slot_info import open_slots
from tests.builders import a_lease, a_reservation, a_slot, some_rules


@pytest.mark.parametrize(
    ("state", "epochs", "found", "is_sound"),
    [
        ("ready", [], [], True),
        ("ready", [2, 2], ["r0", "r1"], True),
        ("ready", [1, 2], ["r1"], False),
        ("ready", [1, 1], [], False),
        ("draining", [2], ["r0"], True),
        # A slot in these states holds no lease, although a reservation that lost it still names it.
        ("terminating", [2], [], False),
        ("empty", [2], [], False),
    ],
)
def test_a_slot_has_the_leases_of_its_present_machine(
    state: SlotState, epochs: list[int], found: list[str], is_sound: bool
) -> None:
    holders = [
        a_reservation(f"r{number}", phase="leased", leases=(a_lease(epoch=epoch),))
        for number, epoch in enumerate(epochs)
    ]
    view = View([a_slot(state=state, epoch=2), *holders])
    [opened] = open_slots(view, "linux", some_rules().pools["linux"], {})
    assert [owner for owner, _ in opened.slot_info.leases] == found
    assert opened.is_sound is is_sound
