"""The sums of a slot's leases, which a transaction keeps with every change, are those of the leases themselves."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot
from scheduler.operations.unit_of_work import LeasesBySlot
from scheduler.policy.capacity.fits import Occupancy, measure

SLOTS = [Slot(id=f"linux-{number}", pool="linux", epoch=1) for number in (1, 2)]
LEASES = st.builds(
    Lease,
    component=st.sampled_from(["a", "b"]),
    slot=st.sampled_from([slot.id for slot in SLOTS]),
    epoch=st.sampled_from([1, 2]),
    token=st.just(1),
    state=st.sampled_from(["held", "revoking", "claimed"]),
    resources=st.dictionaries(st.sampled_from(["cpus", "memory_mib"]), st.integers(0, 8)),
)
STEPS = st.lists(st.tuples(st.sampled_from(["put", "remove", "read"]), st.sampled_from(["r1", "r2"]), LEASES))


@given(STEPS)
def test_the_sums_of_a_slot_are_those_of_its_leases_after_every_change(steps: list[tuple[str, str, Lease]]) -> None:
    table = LeasesBySlot(lambda _slots, _without: {}, ())
    expected: dict[str, dict[tuple[str, str], Lease]] = {slot.id: {} for slot in SLOTS}
    for step, owner, lease in steps:
        if step == "put":
            table.replace(owner, (), [lease])
            expected[lease.slot][owner, lease.component] = lease
        elif step == "remove":
            table.replace(owner, [lease], ())
            expected[lease.slot].pop((owner, lease.component), None)
        for slot in SLOTS if step == "read" else ():
            present = [each for each in expected[slot.id].values() if each.epoch == slot.epoch]
            there = table.sum_on(slot)
            assert table.list_all(slot.id) == expected[slot.id]
            assert there.claims == sum(each.state == "claimed" for each in present)
            assert _drop_zeros(there.sum().amounts) == _drop_zeros(measure(present).amounts)
            assert there.sum().count == measure(present).count == Occupancy(present).sum().count


def _drop_zeros(amounts: dict[str, float]) -> dict[str, float]:
    return {name: amount for name, amount in amounts.items() if amount}
