"""The slots of a pool are listed in their order after any sequence of insertions and removals."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.slots import Slot, slot_order
from scheduler.model.view import OrderedSlots
from tests.builders import a_slot

NAMES = st.sampled_from([f"linux-{number}" for number in range(1, 13)] + ["lab", "lab-b"])


@given(st.lists(st.tuples(NAMES, st.sampled_from(["insert", "insert", "remove", "list"]))))
def test_slots_are_listed_in_their_order(history: list[tuple[str, str]]) -> None:
    ordered, expected = OrderedSlots(), dict[str, Slot]()
    for version, (name, step) in enumerate(history):
        match step:
            case "insert":
                expected[name] = a_slot(name, version=version)
                ordered.put(expected[name])
            case "remove" if name in expected:
                ordered.remove(expected.pop(name))
            case _:
                assert ordered.list() == [expected[each] for each in sorted(expected, key=slot_order)]
    assert ordered.list() == [expected[each] for each in sorted(expected, key=slot_order)]
    assert bool(ordered) == bool(expected)
