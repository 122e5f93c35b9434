"""What a tick costs in SQL statements, Redis round trips and bytes: counts, which no slow machine changes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.tick import Fleet, Meters
from tests.servers import start_own_redis

LEASES = 1000
MOST_FOR_A_CHUNK = 60
"""SQL statements and Redis round trips together for a tick that leases 1,000."""
MOST_FOR_A_FURTHER_CHUNK = 25
"""The same for a further 1,000 leases in a tick."""
MOST_FOR_A_TICK = 40
"""The same for a tick that leases one reservation or none."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    server = start_own_redis(tmp_path / "redis")
    yield Fleet(f"sqlite:///{tmp_path / 'tick.db'}", server.url)
    server.stop()


def test_statements_and_round_trips_do_not_grow_with_the_leases(fleet: Fleet) -> None:
    fleet.prepare(LEASES)
    fleet.tick()
    meters = Meters(fleet.client)
    costs = []
    for count in (1, LEASES, 3 * LEASES - 1):
        fleet.submit(count)
        before = meters.read()
        assert len(fleet.tick().plan.decisions) == count
        after = meters.read()
        costs.append(sum(after[key] - before[key] for key in ("statements", "round_trips")))
    assert fleet.dispatcher.messages == 0
    one, chunk, three_chunks = costs
    assert one <= MOST_FOR_A_TICK
    assert chunk <= MOST_FOR_A_CHUNK
    assert three_chunks <= chunk + 2 * MOST_FOR_A_FURTHER_CHUNK


def test_a_tick_over_a_long_queue_sends_what_changed(fleet: Fleet) -> None:
    fleet.prepare(1)
    fleet.submit(5000)
    fleet.tick()
    meters = Meters(fleet.client)
    sent = []
    for arrivals in (0, 1):
        fleet.submit(arrivals)
        before = meters.read()
        assert len(fleet.tick().plan.waiting) == 5000 - 4 + arrivals
        sent.append(meters.read()["bytes"] - before["bytes"])
    assert max(sent) < 20_000


def test_a_look_for_unpublished_rows_reads_only_versions(fleet: Fleet) -> None:
    fleet.prepare(LEASES)
    fleet.submit(LEASES)
    fleet.tick()
    meters = Meters(fleet.client)
    before = meters.read()
    fleet.leader.interval = 0.0
    assert [each.repairs for each in fleet.tick().mended] == [0]
    after = meters.read()
    assert after["statements"] - before["statements"] <= MOST_FOR_A_TICK
