"""The comparison of the view with the database, and what a tick does with a wrong view or a stale plan."""

from typing import Any

import msgspec
import pytest

from scheduler.model.decisions import Drain
from scheduler.model.launch_backoff import Hold
from scheduler.model.run_times import RunTimes
from scheduler.model.view import Gone, Row, View
from scheduler.operations.tick.commit import commit
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import LOAD_PAUSES, carry_out, decide, load_view
from scheduler.operations.tick.view_repair import FEW_ROWS, RepairResult, audit, compare
from scheduler.ports import DeposedError, RowVersion, ViewUnavailableError
from scheduler.view.memory import MemoryViewCache
from tests.builders import a_reservation, a_slot
from tests.operations.harness import NOW, Harness
from tests.view.rows import as_in_view

POOL = {"system": "x86_64-linux", "max_slots": 1, "lease_ttl": 20, "idle_scale_down": 10_000}
HOLD = Hold(id="linux/quota/spot", pool="linux", kind="quota", refused_at=NOW, until=NOW + 600)


def a_harness() -> Harness:
    """Return a harness with one lease, right after a tick."""
    harness = Harness().leased()
    harness.tick()
    return harness


def write_unseen(harness: Harness, *rows: Row) -> list[Row]:
    """Write rows without a publish, as a process does that is killed after its commit."""
    with harness.store.transaction() as transaction:
        return transaction.save(rows)


def view_of(harness: Harness) -> View:
    view = harness.ports.view_cache.catch_up()
    assert view is not None
    return view


def repairs(harness: Harness, found: str) -> float:
    return harness.meter.counts["leasehold_view_repairs_total", (("found", found),)]


def equals_database(harness: Harness) -> bool:
    stored = View(as_in_view(harness.store.read_rows()))
    view = view_of(harness)
    kinds = ("slots", "reservations", "holds", "run_times")
    return [view.rows(kind) for kind in kinds] == [stored.rows(kind) for kind in kinds]


def test_a_recently_lost_publish_is_found_by_the_next_periodic_tick() -> None:
    harness = a_harness()
    write_unseen(harness, msgspec.structs.replace(harness.slot(), cordoned=True), HOLD, RunTimes(id="[]"))
    harness.now += 1
    with harness.store.transaction() as transaction:
        row = harness.store.find_reservations(ids=["r1"])[0]
        transaction.mark([msgspec.structs.replace(row, expires_at=harness.now + 999)])
    harness.now += harness.leader.interval
    ticked = harness.tick()
    assert ticked.mended == [RepairResult(repairs=4, lag=harness.leader.interval + 1)]
    assert repairs(harness, "look") == 4
    assert equals_database(harness)
    assert harness.ports.view_cache.read_report()["view_lag"] == harness.leader.interval + 1


def test_a_tick_that_is_not_periodic_does_not_search_for_lost_publishes() -> None:
    harness = a_harness()
    write_unseen(harness, msgspec.structs.replace(harness.slot(), cordoned=True))
    assert harness.tick().mended == []


def test_a_publish_that_may_still_arrive_does_not_count_as_a_repair() -> None:
    harness = a_harness()
    harness.now += harness.leader.interval
    write_unseen(harness, msgspec.structs.replace(harness.slot(), cordoned=True))
    assert harness.tick().mended == [RepairResult()]
    assert repairs(harness, "look") == 0
    assert equals_database(harness)


def test_a_clock_set_back_does_not_stop_the_search() -> None:
    harness = a_harness()
    harness.now -= 1000
    write_unseen(harness, msgspec.structs.replace(harness.slot(), cordoned=True))
    harness.tick()
    assert equals_database(harness)


def lose_long_ago(harness: Harness) -> None:
    """Change a slot, insert a slot and a back-off and end a reservation, all unpublished, and let an hour pass."""
    row = harness.store.find_reservations(ids=["r1"])[0]
    write_unseen(
        harness,
        msgspec.structs.replace(harness.slot(), cordoned=True),
        a_slot("new-1", version=0, pool="linux"),
        HOLD,
        msgspec.structs.replace(row, phase="released", leases=()),
    )
    harness.now += 3600
    harness.leader.looked_at = harness.now


def test_a_publish_lost_long_ago_is_found_by_the_audit() -> None:
    harness = a_harness()
    lose_long_ago(harness)
    ticked = harness.tick()
    assert ticked.mended == [RepairResult(repairs=4, lag=3600)]
    assert repairs(harness, "audit") == 4
    assert equals_database(harness)
    assert harness.ports.view_cache.read_kept()["r1"].phase == "released"


def test_the_audit_deletes_a_row_that_is_not_in_the_database() -> None:
    harness = a_harness()
    (stored,) = write_unseen(harness, HOLD)
    harness.ports.view_cache.publish([stored, a_slot("gone-1", version=7)])
    with harness.store.transaction() as transaction:
        transaction.delete([stored])
    harness.now += harness.leader.audit_seconds
    harness.tick()
    assert equals_database(harness)
    assert not harness.ports.view_cache.publish([a_slot("gone-1", version=6)]) or equals_database(harness)


def test_the_audit_runs_once_a_minute_and_in_the_first_tick_of_a_process() -> None:
    harness = a_harness()
    found = []
    for _ in range(24):
        harness.now += 5
        found.append(len(harness.tick().mended))
    assert found == [*[1] * 11, 2] * 2
    harness.restart()
    assert len(harness.tick().mended) == 2


@pytest.mark.parametrize("why", ["much", "ahead", "damaged"])
def test_a_view_that_is_wrong_beyond_repair_is_rebuilt(why: str) -> None:
    harness = a_harness()
    match why:
        case "much":
            write_unseen(harness, *[a_slot(f"new-{number}", version=0) for number in range(FEW_ROWS + 1)])
        case "ahead":
            # As after a restore of the database: no newer version of this row follows.
            harness.ports.view_cache.publish([msgspec.structs.replace(harness.slot(), version=99, cordoned=True)])
        case _:
            del harness.redis.rows["slots"]["linux-1"]
    harness.leader.looked_at = harness.now = harness.now + harness.leader.audit_seconds
    (result,) = harness.tick().mended
    assert result.rebuilt
    assert repairs(harness, "rebuild") == 1
    assert equals_database(harness)


def test_an_audit_without_differences_changes_nothing() -> None:
    harness = a_harness()
    sequence = harness.redis.sequence
    view = view_of(harness)
    assert audit(harness.ports, view, harness.now) == (view, RepairResult())
    assert harness.redis.sequence == sequence


def test_differences_are_listed_by_kind() -> None:
    view = View([a_slot("same"), a_slot("older", version=1), a_slot("gone"), a_reservation("r1", version=2)])
    same = view.slots["same"]
    found = compare(
        view,
        [
            RowVersion("slots", "same", same.version, same.marked_at),
            RowVersion("slots", "older", 2, NOW),
            RowVersion("holds", "missing", 1, NOW),
            RowVersion("run_times", "[]", 1, NOW),
            RowVersion("reservations", "r1", 2, view.reservations["r1"].marked_at + 1),
        ],
    )
    assert found.names == {
        "slots": {"older", "gone"},
        "holds": {"missing"},
        "reservations": {"r1"},
        "accounts": set(),
        "run_times": {"[]"},
    }
    assert (found.count, found.is_ahead) == (5, False)


class BrokenViewCache(MemoryViewCache):
    """A view cache whose first reads fail."""

    failures = 0

    def catch_up(self) -> View | None:
        if self.failures:
            self.failures -= 1
            raise ViewUnavailableError("Redis: away")
        return super().catch_up()


def break_view_cache(harness: Harness, failures: int) -> list[float]:
    """Let the next reads fail; return the list of the pauses made."""
    view_cache = BrokenViewCache(harness.redis, harness.clock)
    view_cache.failures = failures
    harness.ports.view_cache = view_cache
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        harness.now += seconds

    harness.leader.pause = pause
    return pauses


def load_failures(harness: Harness) -> float:
    return harness.meter.counts["leasehold_view_load_failures_total", ()]


def test_a_failed_load_is_counted_and_tried_again_with_growing_pauses() -> None:
    harness = a_harness()
    pauses = break_view_cache(harness, failures=2)
    harness.tick()
    assert pauses == list(LOAD_PAUSES[:2])
    assert load_failures(harness) == 2


def test_a_load_that_fails_repeatedly_raises_and_releases_the_lock() -> None:
    harness = a_harness()
    break_view_cache(harness, failures=99)
    with pytest.raises(ViewUnavailableError):
        harness.tick()
    assert harness.lock_holder.holder is None


def test_a_failed_load_is_not_repeated_when_the_lock_may_have_expired() -> None:
    harness = a_harness()
    pauses = break_view_cache(harness, failures=1)
    harness.ports.lock.take()
    harness.now += harness.leader.lock_seconds * 0.61
    with pytest.raises(ViewUnavailableError):
        load_view(harness.ports, harness.leader)
    assert pauses == []


def commit_stale_plan(harness: Harness, change: Any) -> None:
    """Commit a plan that drains the slot, after `change` has changed its row."""
    leader_term = take_leader_term(harness.ports, harness.leader)
    ticked = decide(harness.ports, harness.leader, leader_term)
    plan = msgspec.structs.replace(ticked.plan, decisions=(Drain(slot="linux-1", reason="requested"),))
    ticked.plan = plan
    change()
    carry_out(harness.ports, harness.leader, leader_term, ticked)
    assert len(ticked.skipped) == 1


def test_a_skipped_decision_publishes_the_fresh_row_and_kicks_once_for_the_same_versions() -> None:
    harness = a_harness()
    kicks = harness.notifier.kicks

    def drain() -> None:
        write_unseen(harness, msgspec.structs.replace(harness.slot(), state="draining"))

    commit_stale_plan(harness, drain)
    assert harness.notifier.kicks == kicks + 1
    assert equals_database(harness)
    commit_stale_plan(harness, lambda: None)
    assert harness.notifier.kicks == kicks + 1, "no second kick for the same versions"
    commit_stale_plan(harness, drain)
    assert harness.notifier.kicks == kicks + 2


def test_a_skipped_decision_about_a_deleted_row_deletes_it_from_the_view() -> None:
    harness = Harness({"pools": {"linux": POOL}})
    harness.tick()
    kicks = harness.notifier.kicks

    def delete() -> None:
        with harness.store.transaction() as transaction:
            transaction.delete([harness.slot()])

    commit_stale_plan(harness, delete)
    assert "linux-1" not in view_of(harness).slots
    assert harness.notifier.kicks == kicks + 1


def test_an_outage_is_forgiven_once_also_when_the_next_plan_fails() -> None:
    harness = Harness({"pools": {"linux": POOL}, "scheduler": {"confirm_timeout": 0}}).leased()
    harness.now += 200
    decide(harness.ports, harness.leader, take_leader_term(harness.ports, harness.leader))
    assert harness.store.load_leader_term().ticked_at == harness.now
    harness.now += POOL["lease_ttl"]  # type: ignore[operator]
    harness.tick()
    assert harness.phase() == "expired"


def test_a_deposed_leader_forgives_no_outage() -> None:
    harness = Harness({"pools": {"linux": POOL}, "scheduler": {"confirm_timeout": 0}}).leased()
    before = harness.store.find_reservations(ids=["r1"])
    leader_term = take_leader_term(harness.ports, harness.leader)
    with harness.store.transaction() as transaction:
        transaction.take_term("another")
    harness.now += 200
    with pytest.raises(DeposedError):
        decide(harness.ports, harness.leader, leader_term)
    assert harness.store.find_reservations(ids=["r1"]) == before


def test_a_deleted_row_that_the_view_never_had_is_not_published() -> None:
    harness = a_harness()
    sequence = harness.redis.sequence
    drain = Drain(slot="nowhere-1", reason="requested")
    leader_term = take_leader_term(harness.ports, harness.leader)
    ((skipped, *_),) = commit(harness.store, [drain], harness.planned_rules, leader_term, lambda: "x", harness.now)
    assert [each.decision for each in skipped] == [drain]
    assert harness.redis.sequence == sequence
    assert Gone("slots", "nowhere-1", 1) not in harness.redis.deltas_after(0)  # type: ignore[operator]
