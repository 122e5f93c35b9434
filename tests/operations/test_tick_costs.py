"""What a tick costs in SQL statements, Redis round trips and bytes: counts, not times. Now and then a tick has a few
round trips more, for example to publish cluster time. A test that a slow machine may stretch that far counts two
ticks and takes the fewer.
"""

import cProfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.model.rules import Rules
from scheduler.model.view import Gone, View
from scheduler.operations.commands.intake import accept
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from testbed.carrying import carry_out
from testbed.servers import start_own_redis
from testbed.tick_fleet import Fleet, Meters
from tests.builders import NOW, a_reservation, a_slot, some_rules

LEASES = 1000
MOST_FOR_A_CHUNK = 26
"""SQL statements and Redis round trips together for a tick that leases 1,000."""
MOST_FOR_A_FURTHER_CHUNK = 17
"""The same for a further 1,000 leases in a tick."""
MOST_COMMANDS_FOR_A_LEASE = 4
"""The Redis commands for one of 1,000 leases: two for each row that changes, and one for the notice."""
MOST_FOR_A_TICK = 20
"""The same for a tick that leases one reservation or none."""
MOST_FOR_A_SUBMISSION = 11
"""The same for one submission, without its answer."""


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    server = start_own_redis(tmp_path / "redis")
    yield Fleet(f"sqlite:///{tmp_path / 'tick.db'}", server.url)
    server.stop()


def test_statements_and_round_trips_do_not_grow_with_the_leases(fleet: Fleet) -> None:
    fleet.prepare(3 * LEASES)
    fleet.tick()
    fleet.leader.interval = 3600.0  # The looks for unpublished rows have a test of their own.
    meters = Meters(fleet.client)
    costs, commands = dict[int, int](), {}
    for count in (1, 1, LEASES, LEASES, 3 * LEASES - 1, 3 * LEASES - 1):
        fleet.submit(count)
        before = meters.read()
        assert len(fleet.tick().plan.decisions) == count
        after = meters.read()
        cost = sum(after[key] - before[key] for key in ("statements", "round_trips"))
        costs[count] = min(cost, costs.get(count, cost))
        commands[count] = after["commands"] - before["commands"]
    assert fleet.dispatcher.messages == 0
    one, chunk, three_chunks = costs.values()
    assert one <= MOST_FOR_A_TICK
    assert chunk <= MOST_FOR_A_CHUNK
    assert three_chunks <= chunk + 2 * MOST_FOR_A_FURTHER_CHUNK
    assert commands[LEASES] < MOST_COMMANDS_FOR_A_LEASE * LEASES


def test_one_submission_costs_few_statements_and_round_trips(fleet: Fleet) -> None:
    fleet.prepare(1)
    meters = Meters(fleet.client)
    costs = []
    for name in ("r1", "r2"):
        before = meters.read()
        assert accept(fleet.ports, "submit", {"request": name, "id": name, "system": "bench"})["ok"]
        after = meters.read()
        costs.append(sum(after[key] - before[key] for key in ("statements", "round_trips")))
    assert costs[-1] <= MOST_FOR_A_SUBMISSION


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


@pytest.mark.parametrize("queue", ["fifo", "priority", "size"])
def test_a_plan_after_an_arrival_or_a_release_does_not_walk_the_queue(queue: str) -> None:
    """The measure is the number of function calls, which no slow machine changes."""
    calls = {size: count_calls(size, queue) for size in (500, 5000)}
    for few, many in zip(calls[500], calls[5000], strict=True):
        assert many < 1.1 * few + 200


def count_calls(pending: int, queue: str) -> Iterator[int]:
    """Yield the function calls of the plan after an arrival, after a release, and after the release's lease."""
    rules = some_rules({"scheduler": {"queue": queue}, "pools": {"linux": {"max_slots": 300, "min_slots": 300}}})
    view, cache = View(a_slot(f"linux-{number}") for number in range(1, 301)), PlanCache()
    rows = [a_reservation(f"r{number}", sequence=number, created_at=NOW) for number in range(300 + pending)]
    for row in rows:
        view.apply(row)
    carry_out(view, rules, plan(view, rules, NOW, cache), NOW)
    plan(view, rules, NOW, cache)
    cache.prepare()
    for change in (a_reservation("newest", sequence=10**6, created_at=NOW), Gone("reservations", "r7", 9)):
        view.apply(change)
        yield count_plan_calls(view, rules, cache)
    yield count_plan_calls(view, rules, cache)


def count_plan_calls(view: View, rules: Rules, cache: PlanCache) -> int:
    profile = cProfile.Profile()
    outcome = profile.runcall(plan, view, rules, NOW, cache)
    carry_out(view, rules, outcome, NOW)
    cache.prepare()
    return sum(entry.callcount for entry in profile.getstats())


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
