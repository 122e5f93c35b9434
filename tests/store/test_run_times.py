"""The contract of counting released leases: which are found, in which order, and how far they are counted."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import msgspec
import pytest

from scheduler.model.reservations import Reservation
from scheduler.model.run_times import ALL, RunTimes, list_classes
from scheduler.model.transitions import PHASES
from scheduler.operations.ports import Ports
from scheduler.operations.run_times import ROWS_A_BATCH, learn_run_times, record_runs
from scheduler.operations.tick.view_repair import LOOK_BACK_SECONDS
from scheduler.ports import Counted, Store
from scheduler.store.statements import ENDED_AFTER
from tests.builders import NOW, a_reservation
from tests.operations.harness import Harness
from tests.store.conftest import Clock, Opener
from tests.store.test_contract import fail, insert, losing, save
from tests.store.test_sqlite import explain_plan, opened, path, sqlite

__all__ = ["opened", "path", "sqlite"]

SETTLED = LOOK_BACK_SECONDS + 1


def release(store: Store, *names: str, seconds: float = 60.0, **fields: Any) -> list[Reservation]:
    """Store reservations whose leases were released now, after this run time."""
    now = store.now()
    rows = insert(store, *(a_reservation(name, account="ci", principal="ann", **fields) for name in names))
    ended = {"phase": "released", "leased_at": now - seconds, "finished_at": now, "changed_at": now}
    saved = save(store, *(msgspec.structs.replace(row, **ended) for row in rows))
    return [row for row in saved if isinstance(row, Reservation)]


def ports_on(store: Store) -> Ports:
    ports = Harness(store=store).ports
    ports.view_cache.rebuild([])
    return ports


def read_all(store: Store) -> RunTimes:
    (row,) = store.find_run_times([ALL])
    return row


class TestEnded:
    def test_they_are_found_in_the_order_of_their_ends_and_after_a_place(self, store: Store, clock: Clock) -> None:
        late, early, other = insert(store, a_reservation("late"), a_reservation("early"), a_reservation("other"))
        times = [(late, 9.0), (early, 3.0), (other, 3.0)]
        saved = save(store, *(msgspec.structs.replace(row, phase="released", changed_at=at) for row, at in times))
        rows = {row.id: row for row in saved}

        def found(after: Counted, before: float = 10.0, limit: int = 10) -> list[Any]:
            with store.transaction() as transaction:
                return transaction.find_ended(after, before, limit)

        assert found(Counted()) == [rows["early"], rows["other"], rows["late"]]
        assert found(Counted(), limit=2) == [rows["early"], rows["other"]]
        assert found(Counted(3.0, early.sequence)) == [rows["other"], rows["late"]]
        assert found(Counted(3.0, other.sequence)) == found(Counted(8.0, 99)) == [rows["late"]]
        assert found(Counted(9.0, late.sequence)) == found(Counted(), before=3.0) == []

    def test_they_are_in_every_phase_that_ends(self, store: Store) -> None:
        for phase in PHASES:
            (row,) = insert(store, a_reservation(phase))
            save(store, msgspec.structs.replace(row, phase=phase, changed_at=1.0))
        with store.transaction() as transaction:
            found = {row.id for row in transaction.find_ended(Counted(), 2.0, 10)}
        assert found == {"released", "cancelled", "expired", "failed"}

    def test_their_index_finds_them_in_order(self, sqlite: Any) -> None:
        plan = explain_plan(sqlite, ENDED_AFTER)
        assert plan == ["SEARCH reservations USING INDEX reservations_ended (ended_at>? AND ended_at<?)"]


class TestRows:
    def test_how_far_is_counted_is_kept_if_the_transaction_ends_well(self, store: Store) -> None:
        with store.transaction() as transaction:
            assert transaction.load_counted() == Counted(0.0, 0)
            transaction.save_counted(Counted(NOW, 7))
        with losing(store, KeyError) as transaction:
            transaction.save_counted(Counted(NOW + 1, 8))
            fail()
        with store.transaction() as transaction:
            assert transaction.load_counted() == Counted(NOW, 7)

    def test_they_are_found_by_id_in_order(self, store: Store) -> None:
        second, first = save(store, RunTimes(id="b"), RunTimes(id="a"))
        assert store.find_run_times() == [first, second]
        assert store.find_run_times(["b", "none"]) == [second]
        assert store.find_run_times([]) == []

    def test_the_surplus_is_what_was_released_longest_ago(self, store: Store) -> None:
        rows = save(store, *(RunTimes(id=name, released_at=at) for name, at in (("c", 5.0), ("b", 1.0), ("a", 1.0))))
        with store.transaction() as transaction:
            assert transaction.find_surplus_run_times(1) == [rows[2], rows[1]]
            assert transaction.find_surplus_run_times(3) == transaction.find_surplus_run_times(9) == []
            transaction.delete([rows[1]])
            assert transaction.find_surplus_run_times(1) == [rows[2]]


class TestLearning:
    def test_a_release_counts_in_all_its_classes_once(self, store: Store, clock: Clock) -> None:
        ports = ports_on(store)
        (row,) = release(store, "r1", seconds=12.5, tags={"job": "build"}, expected_runtime=25.0)
        ended_at, clock.now = clock.now, clock.now + SETTLED
        assert [learn_run_times(ports) for _ in range(2)] == [1, 0]
        found = {each.id: each for each in store.find_run_times()}
        assert set(found) == set(list_classes(row.request, "ann"))
        assert {(each.seconds, each.ratios, each.released_at) for each in found.values()} == {
            ((12.5,), (0.5,), ended_at)
        }

    def test_a_restarted_process_goes_on_where_the_last_one_ended(self, reopen: Opener, clock: Clock) -> None:
        for number in range(3):
            store = reopen()
            release(store, f"r{number}", seconds=float(number))
            clock.now += SETTLED
            learn_run_times(ports_on(store))
        assert read_all(reopen()).seconds == (0.0, 1.0, 2.0)

    def test_a_release_that_is_committed_late_is_counted(self, reopen: Opener, clock: Clock) -> None:
        """It carries the time at which its transaction began. On SQLite nothing else is written meanwhile."""
        store, other = reopen(), reopen()
        (row,) = insert(store, a_reservation("late"))
        release(store, "early", seconds=1.0)
        clock.now += 1
        with store.transaction() as transaction:
            began = transaction.now()
            clock.now += LOOK_BACK_SECONDS - 2
            if store._dialect.has_one_writer is False:  # type: ignore[attr-defined]
                release(other, "later", seconds=3.0)
                assert learn_run_times(ports_on(other)) == 0
            ended = {"phase": "released", "leased_at": began - 2, "finished_at": began, "changed_at": began}
            transaction.save([msgspec.structs.replace(row, **ended)])
        clock.now += SETTLED
        learn_run_times(ports_on(other))
        assert read_all(store).seconds[:2] == (1.0, 2.0)
        clock.now += SETTLED
        assert learn_run_times(ports_on(store)) == 0

    def test_of_two_at_once_each_release_is_counted_by_one(self, reopen: Opener, clock: Clock) -> None:
        rivals = [reopen(), reopen()]
        count = 2 * ROWS_A_BATCH + 7
        release(rivals[0], *(f"r{number}" for number in range(count)), tags={"job": "many"})
        clock.now += SETTLED
        meeting, ports = Barrier(2), [ports_on(store) for store in rivals]

        def learn(number: int) -> int:
            meeting.wait()
            return learn_run_times(ports[number])

        with ThreadPoolExecutor(2) as threads:
            assert sum(threads.map(learn, range(2))) == count
        # Each batch has written each class once.
        assert [row.version for row in rivals[0].find_run_times()] == [3, 3, 3, 3, 3]

    def test_a_worker_that_dies_in_a_batch_counts_nothing_of_it(self, store: Store, clock: Clock) -> None:
        release(store, "r1")
        clock.now += SETTLED
        with losing(store, KeyError) as transaction:
            rows = transaction.find_ended(transaction.load_counted(), clock.now, 10)
            record_runs(transaction, rows)
            transaction.save_counted(Counted(clock.now, 9))
            fail()
        assert store.find_run_times() == []
        assert learn_run_times(ports_on(store)) == 1
        assert read_all(store).seconds == (60.0,)

    @pytest.mark.parametrize(
        "fields",
        [
            {"phase": "cancelled"},
            {"phase": "failed"},
            {"leased_at": None},  # released while it waited
            {"reason": "absent"},  # a host reports that it runs no more
        ],
    )
    def test_what_was_not_released_by_its_holder_counts_in_no_class(
        self, store: Store, clock: Clock, fields: dict[str, Any]
    ) -> None:
        (row,) = release(store, "r1")
        save(store, msgspec.structs.replace(row, **fields))
        clock.now += SETTLED
        assert (learn_run_times(ports_on(store)), store.find_run_times()) == (1, [])

    def test_a_clock_that_was_set_back_stops_nothing(self, store: Store, clock: Clock) -> None:
        ports = ports_on(store)
        release(store, "r1", seconds=1.0)
        clock.now += SETTLED
        learn_run_times(ports)
        clock.now -= 1_000_000
        assert learn_run_times(ports) == 0
        clock.now += 1
        release(store, "r2", seconds=2.0)
        clock.now += SETTLED
        learn_run_times(ports)
        assert read_all(store).seconds == (1.0, 2.0)
        assert read_all(store).released_at == NOW

    def test_run_times_of_zero_and_below_are_zero(self, store: Store, clock: Clock) -> None:
        release(store, "r1", seconds=0.0)
        release(store, "r2", seconds=-5.0)  # the clock was set back while it ran
        clock.now += SETTLED
        learn_run_times(ports_on(store))
        assert read_all(store).seconds == (0.0, 0.0)

    def test_the_classes_released_longest_ago_are_forgotten(self, store: Store, clock: Clock) -> None:
        ports, rows = ports_on(store), list[Reservation]()
        for number in range(4):
            rows = release(store, f"r{number}", tags={"job": f"job-{number}"})
            clock.now += 1
            with store.transaction() as transaction:
                change_set = record_runs(transaction, rows, most_classes=6)
            ports.view_cache.publish([*change_set.rows, *change_set.gone])
        kept = {*list_classes(rows[0].request, "ann")}
        found = {row.id: row for row in store.find_run_times()}
        assert len(found) == 6
        assert kept < set(found)
        view = ports.view_cache.load()
        assert view is not None
        assert view.run_times == found

    def test_the_view_has_what_the_database_has(self, store: Store, clock: Clock) -> None:
        ports = ports_on(store)
        for number in range(3):
            release(store, f"r{number}", tags={"job": f"job-{number}"})
        clock.now += SETTLED
        learn_run_times(ports)
        view = ports.view_cache.load()
        assert view is not None
        assert list(map(view.run_times.get, sorted(view.run_times))) == store.find_run_times()
