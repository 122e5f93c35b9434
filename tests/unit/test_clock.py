"""The clock of a process: carried by the monotonic clock, corrected by the reference, never put back by little."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.protocol.clock import FIRST_LOOKS, LARGEST_STEP, ClusterClock, read_monotonic


class World:
    """A reference that answers after a delay, and a host with a monotonic and a wall clock."""

    def __init__(self) -> None:
        self.time, self.monotonic, self.wall = 5000.0, 100.0, 5000.0
        self.delay = 0.0
        self.looks = 0

    def pass_time(self, seconds: float) -> None:
        self.time += seconds
        self.monotonic += seconds
        self.wall += seconds

    def look(self) -> float:
        self.looks += 1
        self.pass_time(self.delay)
        found = self.time
        self.pass_time(self.delay)
        return found

    def make_clock(self) -> ClusterClock:
        return ClusterClock(self.look, lambda: self.monotonic, lambda: self.wall)


def test_between_looks_the_monotonic_clock_carries_the_time() -> None:
    world = World()
    clock = world.make_clock()
    assert clock.now() == 5000
    world.pass_time(7)
    world.wall += 600
    assert (clock.now(), world.looks) == (5007, 1)
    assert clock.offset == -600


def test_a_first_look_that_opens_a_connection_is_repeated_for_an_exact_time() -> None:
    """Otherwise half of the 0.6 s that the connection took would be the error of the clock."""
    world = World()

    def connect_and_look() -> float:
        world.pass_time(0.0 if world.looks else 0.6)
        return world.look()

    clock = ClusterClock(connect_and_look, lambda: world.monotonic, lambda: world.wall)
    assert clock.now() == world.time
    assert world.looks == 2
    world.delay = 1.0
    slow = world.make_clock()
    assert abs(slow.now() - world.time) <= 1
    assert world.looks == 2 + FIRST_LOOKS


def test_a_slow_answer_corrects_no_more_than_it_proves() -> None:
    world = World()
    clock = world.make_clock()
    clock.now()
    world.delay = 4.0
    assert clock.look() == 5008
    assert clock.now() == world.time


def test_a_look_that_fails_leaves_the_carried_time() -> None:
    world = World()

    def fail() -> float:
        raise ConnectionError

    clock = ClusterClock(fail, lambda: world.monotonic)
    with pytest.raises(ConnectionError):
        clock.now()
    assert not clock.has_looked
    clock = world.make_clock()
    clock.now()
    clock._ask = fail
    world.pass_time(3)
    with pytest.raises(ConnectionError):
        clock.look()
    assert clock.now() == 5003


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(-0.4, 0.4), st.floats(-1000, 1000), st.booleans()), max_size=50))
def test_it_never_goes_back_while_the_reference_drifts(steps: list[tuple[float, float, float, bool]]) -> None:
    world = World()
    clock = world.make_clock()
    last, behind = clock.now(), 0.0
    for seconds, wanted, jump, looks in steps:
        world.pass_time(seconds)
        # All drift together stays below what counts as a jump.
        drift = max(wanted, behind - 0.9 * LARGEST_STEP)
        behind = max(behind - drift, 0.0)
        world.time += drift
        world.wall += jump
        now = clock.look() if looks else clock.now()
        assert now >= last
        last = now


def test_a_reference_that_is_behind_by_more_than_a_step_is_followed() -> None:
    world = World()
    clock = world.make_clock()
    clock.now()
    world.time -= 2 * LARGEST_STEP
    assert clock.look() == 5000 - 2 * LARGEST_STEP


def test_all_processes_of_a_host_have_one_monotonic_clock() -> None:
    command = [sys.executable, "-c", "from scheduler.protocol.clock import read_monotonic; print(read_monotonic())"]
    before = read_monotonic()
    theirs = float(subprocess.run(command, capture_output=True, text=True, check=True, env=dict(os.environ)).stdout)
    assert before <= theirs <= read_monotonic()
