"""The reason for which a tick runs changes nothing of what it decides."""

import pytest

from tests.rules import test_cases
from tests.rules.playing import Cases, play_out
from tests.rules.scaling import test_warm_pool_and_scale_in as test_keeping_and_shrinking

AT_ONCE: Cases = {
    name: (document, expected)
    for name, (document, expected) in (test_cases.CASES | test_keeping_and_shrinking.CASES).items()
    if expected[0] and all(item["at"] == 0 for item in document["timeline"])
}


@pytest.mark.parametrize("name", AT_ONCE)
def test_with_kicks_and_wakes_the_first_tick_decides_the_same(name: str) -> None:
    document, expected = AT_ONCE[name]
    assert play_out({**document, "kicks": True, "wakes": True}).ticks[0] == expected[0]
