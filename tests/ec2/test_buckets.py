"""The arithmetic of token buckets."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from leasehold_emulator.calls import Call
from leasehold_emulator.faults import Throttle, TokenBucket, find_costs
from leasehold_emulator.settings import Bucket, Throttling

from tests.ec2.test_emulator import a_call


def admitted(throttle: Throttle, throttling: Throttling, call: Call, times: Sequence[float]) -> list[bool]:
    return [throttle.admits(call, throttling, now) for now in times]


def test_a_bucket_is_full_at_first_and_fills_up_to_its_size() -> None:
    bucket = TokenBucket(Bucket(size=10, refill=2), now=100)
    assert bucket.level(1000) == 10
    bucket.take(10, 100)
    assert [bucket.level(now) for now in (100, 100.5, 103, 105, 999)] == [0, 1, 6, 10, 10]


def test_a_clock_that_goes_back_adds_nothing() -> None:
    bucket = TokenBucket(Bucket(size=10, refill=2), now=100)
    bucket.take(10, 100)
    bucket.take(0, 50)
    assert (bucket.level(50), bucket.level(101)) == (0, 2)


def test_launches_burst_to_the_size_of_their_bucket_and_then_go_at_its_rate() -> None:
    throttling = Throttling(launch=Bucket(size=3, refill=2))
    asked = [0.0, 0.0, 0.0, 0.0, 0.4, 0.5, 0.6, 1.0]
    call = a_call("RunInstances", MinCount="1", MaxCount="1")
    assert admitted(Throttle(), throttling, call, asked) == [True, True, True, False, False, True, False, True]


def test_a_refused_launch_takes_nothing_of_any_bucket() -> None:
    throttling = Throttling(launch=Bucket(size=2, refill=0), launched_instances=Bucket(size=10, refill=0))
    throttle = Throttle()
    many, few = a_call(MinCount="1", MaxCount="11"), a_call(MinCount="1", MaxCount="5")
    assert admitted(throttle, throttling, many, [0, 1, 2]) == [False] * 3
    assert admitted(throttle, throttling, few, [3, 4]) == [True, True]


def test_kinds_of_calls_and_regions_have_buckets_of_their_own() -> None:
    one = Bucket(size=1, refill=0)
    throttling = Throttling(describe=one, launch=one, terminate=one, mutate=one)
    throttle = Throttle()
    calls = [a_call(action) for action in ("DescribeInstances", "RunInstances", "TerminateInstances", "CreateTags")]
    assert [throttle.admits(call, throttling, 0) for call in calls * 2] == [True] * 4 + [False] * 4
    # Other kinds of calls, and another region.
    others = [a_call(action) for action in ("DescribeInstanceStatus", "CreateFleet", "CreateVpc")]
    assert [throttle.admits(call, throttling, 0) for call in others] == [False] * 3
    assert throttle.admits(a_call("RunInstances", region="us-west-2"), throttling, 0)


def test_without_a_table_nothing_is_throttled() -> None:
    throttle = Throttle()
    assert all(throttle.admits(a_call(), None, 0) for _ in range(2000))


@pytest.mark.parametrize(
    ("call", "costs"),
    [
        (a_call("DescribeInstances"), {"describe": 1}),
        (a_call("GetConsoleOutput"), {"describe": 1}),
        (a_call("CreateTags"), {"mutate": 1}),
        (a_call("RunInstances", MinCount="2", MaxCount="7"), {"launch": 1, "launched_instances": 7}),
        (a_call("RunInstances", MinCount="2", MaxCount="7", DryRun="true"), {"launch": 1, "launched_instances": 0}),
        (
            a_call("CreateFleet", **{"TargetCapacitySpecification.TotalTargetCapacity": "4"}),
            {"launch": 1, "launched_instances": 4},
        ),
        (
            a_call("TerminateInstances", **{"InstanceId.1": "i-1", "InstanceId.2": "i-2"}),
            {"terminate": 1, "terminated_instances": 2},
        ),
    ],
)
def test_a_call_costs_a_token_of_its_kind_and_one_for_each_instance(call: Call, costs: dict[str, int]) -> None:
    assert find_costs(call) == costs


@given(
    size=st.integers(1, 50),
    refill=st.integers(0, 20),
    steps=st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60)), max_size=60),
)
def test_never_more_is_admitted_than_size_and_refill_allow(
    size: int, refill: int, steps: list[tuple[int, int]]
) -> None:
    """In every interval at most `size` and the gain are admitted; a call that finds enough tokens is admitted."""
    throttling = Throttling(launch=Bucket(size=1000, refill=0), launched_instances=Bucket(size=size, refill=refill))
    throttle, now, level = Throttle(), 0.0, float(size)
    taken: list[tuple[float, int]] = []
    for wait, wanted in steps:
        # Quarters of a second, whose sums are exact.
        now += wait / 4
        level = min(float(size), level + refill * wait / 4)
        admits = throttle.admits(a_call(MinCount="1", MaxCount=str(wanted)), throttling, now)
        assert admits == (wanted <= level)
        if admits:
            level -= wanted
            taken.append((now, wanted))
    for place, (begin, _) in enumerate(taken):
        for end in range(place + 1, len(taken) + 1):
            stretch = taken[place:end]
            assert sum(wanted for _, wanted in stretch) <= size + refill * (stretch[-1][0] - begin)
