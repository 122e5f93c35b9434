"""Each state of a slot has a timeout and a clock of its own."""

import pytest

from tests.rules.playing import a_scenario, a_slot, play_out, reported, tick, ticks

TIMEOUTS = {
    # state: (the key, the delay that makes it last)
    "launching": ("launch_timeout", "launch"),
    "booting": ("boot_timeout", "boot"),
    "binding": ("binding_timeout", "bind"),
    "terminating": ("terminating_timeout", "terminate"),
}


@pytest.mark.parametrize("state", TIMEOUTS)
@pytest.mark.parametrize(("age", "is_due"), [(29.999, False), (30, True), (31, True)])
def test_a_slot_times_out_when_its_age_in_the_state_is_the_timeout_or_more(
    state: str, age: float, is_due: bool
) -> None:
    key, delay = TIMEOUTS[state]
    assert reported(
        tick(age - 10), pool={key: 30, "min_slots": 0}, slots=[a_slot("linux-1", state, since=-10)], cloud={delay: 9999}
    ) == [["terminate linux-1 timeout"] if is_due else []]


def test_each_state_has_a_clock_of_its_own() -> None:
    assert reported(
        *ticks(0, 80, 119, 120),
        pool={"min_slots": 1, "max_slots": 1, "launch_timeout": 50, "boot_timeout": 50, "binding_timeout": 40},
        cloud={"launch": 40, "boot": 40, "bind": 9999, "terminate": 60},
    ) == [["launch linux-1 minimum"], [], [], ["terminate linux-1 timeout"]]


def test_a_termination_that_takes_too_long_is_requested_again_and_its_clock_starts_again() -> None:
    played = play_out(
        a_scenario(
            *ticks(29, 30, 59, 60, 61),
            pool={"terminating_timeout": 30},
            slots=[a_slot("linux-1", "terminating")],
            cloud={"terminate": 200},
        )
    )
    assert played.ticks == [[], ["terminate linux-1 timeout"], [], ["terminate linux-1 timeout"], []]
    assert played.events == []
