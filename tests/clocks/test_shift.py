"""The harness itself: a shifted process sees another wall clock, however it asks, and no other monotonic clock."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Final

import pytest

from testbed.clocks.shift import Shifts
from testbed.postgresql_server import PostgresServer
from tests.clocks.postgresql import shift_server_clock

ROOT: Final = Path(__file__).parents[2]
NEAR: Final = 30.0
"""Far more than a look takes on a busy machine, far less than the shifts here."""
MONOTONIC: Final = ("monotonic", "boottime")
SHIFTS: Final = (600.0, -600.0, 3600.5)


class Looker:
    """A process that can be asked for its time; it ends when its input ends, as it does with the tests."""

    def __init__(self, environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.clocks.looker"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def look(self, how: str = "look") -> dict[str, float]:
        """By how much each of its clocks is ahead of ours."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{how}\n")
        self._process.stdin.flush()
        found: dict[str, float] = json.loads(self._process.stdout.readline())
        ours = {
            "monotonic": time.monotonic(),
            "boottime": time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)),
        }
        return {name: value - ours.get(name, time.time()) for name, value in found.items()}

    def close(self) -> None:
        """Let it end."""
        self._process.communicate(timeout=30)


@contextmanager
def open_looker(environment: dict[str, str]) -> Iterator[Looker]:
    looker = Looker(environment)
    try:
        yield looker
    finally:
        looker.close()


def base() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


@pytest.fixture
def shifts(tmp_path: Path) -> Shifts:
    return Shifts(tmp_path / "clocks")


def test_every_wall_clock_of_a_shifted_process_is_off_and_follows_the_file_while_monotonic_clocks_stay_right(
    shifts: Shifts,
) -> None:
    with open_looker(shifts.environment("one", base())) as looker:
        for how, seconds in product(("look", "thread", "fork"), SHIFTS):
            shifts.set("one", seconds)
            seen = looker.look(how)
            wanted = {name: 0.0 if name in MONOTONIC else seconds for name in seen}
            assert seen == pytest.approx(wanted, abs=NEAR), how


def test_a_program_that_a_shifted_process_starts_has_the_same_shift(shifts: Shifts) -> None:
    shifts.set("one", -600.0)
    with open_looker(shifts.environment("one", base())) as looker:
        assert looker.look("child")["time.time"] == pytest.approx(-600.0, abs=NEAR)


def test_processes_of_other_names_and_processes_without_the_hook_keep_the_right_time(shifts: Shifts) -> None:
    shifts.set("one", 600.0)
    for environment in (shifts.environment("other", base()), base()):
        with open_looker(environment) as looker:
            seen = looker.look()
            assert seen == pytest.approx(dict.fromkeys(seen, 0.0), abs=NEAR)


def test_the_clock_of_one_database_of_a_postgresql_server_is_shifted_while_connections_are_open(
    postgresql_server: PostgresServer,
) -> None:
    name, other = postgresql_server.create_database(), postgresql_server.create_database()
    query = "SELECT extract(epoch FROM clock_timestamp())::float8, extract(epoch FROM now())::float8"
    try:
        shift_server_clock(postgresql_server, name, 0.0)
        with postgresql_server.connect(name) as shifted, postgresql_server.connect(other) as right:
            for seconds in SHIFTS:
                shift_server_clock(postgresql_server, name, seconds)
                for connection, wanted in ((shifted, seconds), (right, 0.0)):
                    found = connection.execute(query).fetchone()
                    assert found is not None
                    assert [value - time.time() for value in found] == pytest.approx([wanted, wanted], abs=NEAR)
    finally:
        postgresql_server.drop_database(name)
        postgresql_server.drop_database(other)
