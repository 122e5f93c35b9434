"""Cases from Arvados: slots that boot, are cordoned, or belong to an offering that changed."""

import pytest

from tests.rules.arvados import EIGHT, SLOW, a_case, c, t, types
from tests.rules.playing import Cases, a_holder, a_slot, act, play_out, tick, ticks

CASES: Cases = {
    # ---- priority
    "c1 waits for a booting slot; c5 comes before it is ready": (
        a_case(c(1), tick(0), c(5, at=5), *ticks(5, 10), pool={"max_slots": 1}, cloud={"boot": 10}),
        [
            ["launch linux-1 t1 demand", "c1 waits booting"],
            ["c5 waits booting", "c1 waits at_max_slots"],
            ["assign c5 linux-1", "c1 waits at_max_slots"],
        ],
    ),
    # ---- cordon
    "idle slot, cordoned": (
        a_case(c(1), tick(0), slots=[t("linux-1", 1, cordoned=True)]),
        [["launch linux-2 t1 demand", "c1 waits booting"]],
    ),
    # ---- changed offerings
    "t8 removed while a t8 slot has a lease": (
        a_case(
            act(1, "rules", {"pools": {"linux": {"offerings": types(1, 2)}}}),
            c(1, at=1),
            tick(1),
            act(2, "release", "h"),
            *ticks(2, 3),
            pool=EIGHT,
            slots=[t("linux-1", 8, "ready", "h")],
            reservations=[a_holder("h", resources={"cpus": 1})],
            cloud=SLOW,
        ),
        [
            ["drain linux-1 unconfigured", "launch linux-2 t1 demand", "c1 waits booting"],
            ["terminate linux-1 drained", "c1 waits booting"],
            ["c1 waits booting"],
        ],
    ),
    "t8 removed while a t8 slot boots": (
        a_case(
            act(1, "rules", {"pools": {"linux": {"offerings": types(1, 2)}}}),
            c(1, at=1),
            tick(1),
            slots=[t("linux-1", 8, "booting")],
            cloud=SLOW,
        ),
        [["terminate linux-1 unconfigured", "launch linux-2 t1 demand", "c1 waits booting"]],
    ),
    "a slot without an offering stays": (
        a_case(
            act(1, "rules", {"pools": {"linux": {"offerings": types(1, 2)}}}),
            tick(1),
            slots=[a_slot("linux-1", resources={"cpus": 8})],
        ),
        [[]],
    ),
    "the same name in another market changes the key of the offering and drains nothing": (
        a_case(
            act(1, "rules", {"pools": {"linux": {"offerings": types(1) + types(1, market="on-demand")}}}),
            tick(1),
            slots=[t("linux-1", 1)],
        ),
        [[]],
    ),
    "the same name in another market alone is another offering": (
        a_case(
            act(1, "rules", {"pools": {"linux": {"offerings": types(1, market="on-demand")}}}),
            tick(1),
            slots=[t("linux-1", 1)],
        ),
        [["drain linux-1 unconfigured"]],
    ),
    "cordoned, and its offering is gone": (
        a_case(
            act(1, "rules", {"pools": {"linux": {"offerings": types(1)}}}),
            tick(1),
            slots=[t("linux-1", 8, cordoned=True)],
        ),
        [["drain linux-1 unconfigured"]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_slot_is_used_according_to_its_state_cordon_and_offering(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected
