"""Fates of instances: repeatable random numbers, and shares that are kept."""

from typing import Literal

import pytest
from leasehold_emulator.lives import Fate, Life, Lives
from leasehold_emulator.settings import EmulatorSettings

from scheduler.model.validation import read_document


def some_lives(**settings: object) -> Lives:
    return Lives(read_document(EmulatorSettings, settings))


def a_life(number: int, **changes: object) -> Life:
    facts: dict[str, object] = {"type": "c5.large", "zone": "us-east-1a", "market": "spot", **changes}
    return Life(id=f"i-{number}", region="us-east-1", launched_at=0.0, **facts)  # type: ignore[arg-type]


def draw(lives: Lives, number: int, **changes: object) -> list[Fate]:
    return [lives.begin(a_life(each, **changes)) for each in range(number)]


def test_the_same_seed_gives_the_same_fates() -> None:
    settings = {"interruption_rate": 10, "boot_failures": [{"kind": "stuck", "share": 0.5}], "random_seed": 5}
    fates = draw(some_lives(**settings), 20)
    assert draw(some_lives(**settings), 20) == fates
    assert draw(some_lives(**{**settings, "random_seed": 6}), 20) != fates


def test_a_setting_does_not_change_the_random_numbers_of_others() -> None:
    alone = draw(some_lives(interruption_rate=10), 20)
    both = draw(some_lives(interruption_rate=10, boot_failures=[{"kind": "stuck", "share": 0.5}]), 20)
    assert [fate.interrupted_after for fate in alone] == [fate.interrupted_after for fate in both]


def test_interruptions_come_at_their_rate_and_to_spot_only() -> None:
    fates = draw(some_lives(interruption_rate=2), 4000)
    mean = sum(fate.interrupted_after or 0 for fate in fates) / len(fates)
    assert 1700 < mean < 1900
    assert {fate.interrupted_after for fate in draw(some_lives(interruption_rate=2), 9, market="on-demand")} == {None}
    assert {fate.interrupted_after for fate in draw(some_lives(), 9)} == {None}


def test_boot_failures_have_their_shares_and_counts() -> None:
    lives = some_lives(boot_failures=[{"kind": "stuck", "share": 0.25}, {"kind": "impaired", "share": 0.5}])
    kinds = [fate.failure for fate in draw(lives, 4000)]
    assert 900 < kinds.count("stuck") < 1100
    assert 1900 < kinds.count("impaired") < 2100
    counted = some_lives(boot_failures=[{"kind": "unreachable", "count": 2}, {"kind": "stuck", "zone": "us-east-1b"}])
    assert [fate.failure for fate in draw(counted, 4)] == ["unreachable", "unreachable", None, None]
    assert [fate.failure for fate in draw(counted, 1, zone="us-east-1b")] == ["stuck"]


@pytest.mark.parametrize("kind", ["notice", "state"])
def test_notices_are_dropped_and_doubled_by_their_shares(kind: Literal["notice", "state"]) -> None:
    lives = some_lives(dropped_notices=0.2, doubled_notices=0.5)
    counts = [lives.count_notices(kind) for _ in range(4000)]
    assert 720 < counts.count(0) < 880
    assert 1480 < counts.count(2) < 1720
