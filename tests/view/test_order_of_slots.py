"""The slots of a pool stand in their order, in whatever order they came and whoever left meanwhile."""

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.ordered_slots import OrderedSlots
from scheduler.model.slots import Slot, slot_order
from tests.builders import a_slot

NAMES = st.sampled_from([f"linux-{number}" for number in range(1, 13)] + ["lab", "lab-b"])


@given(st.lists(st.tuples(NAMES, st.sampled_from(["comes", "comes", "leaves", "is asked for"]))))
def test_they_are_listed_in_their_order(story: list[tuple[str, str]]) -> None:
    line_up, there = OrderedSlots(), dict[str, Slot]()
    for version, (name, what) in enumerate(story):
        match what:
            case "comes":
                there[name] = a_slot(name, version=version)
                line_up.put(there[name])
            case "leaves" if name in there:
                line_up.remove(there.pop(name))
            case _:
                assert line_up.list() == [there[each] for each in sorted(there, key=slot_order)]
    assert line_up.list() == [there[each] for each in sorted(there, key=slot_order)]
    assert bool(line_up) == bool(there)
