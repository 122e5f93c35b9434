"""The contract of Transaction: what is written stays whole or not at all, guarded by versions."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest

from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.reservations import Callback, Reservation
from scheduler.model.run_times import RunTimes
from scheduler.model.slots import Slot
from scheduler.model.view import Gone, Row
from scheduler.ports import EventFilter, OutboxMessage, StaleWriteError, Store, StoredAnswer, Transaction
from scheduler.store.shared_rules import take_marks
from tests.builders import NOW, a_lease, a_reservation, a_slot
from tests.store.conftest import Clock

LATER = NOW + 60


def a_hold(subject: str = "m5.large", version: int = 0) -> Hold:
    return Hold(
        version=version,
        id=hold_id("linux", "capacity", subject),
        pool="linux",
        kind="capacity",
        subject=subject,
        refused_at=NOW,
        until=NOW + 60,
    )


@contextmanager
def losing(store: Store, error: type[Exception]) -> Iterator[Transaction]:
    """A transaction that is to end in this error, and so without a trace."""
    with pytest.raises(error), store.transaction() as transaction:
        yield transaction


def fail() -> None:
    raise KeyError("on purpose")


def an_event(**changes: object) -> Event:
    return msgspec.convert({"at": NOW, "name": "slot_ready", "cause": "cloud", **changes}, Event)


def insert(store: Store, *rows: Reservation) -> list[Reservation]:
    with store.transaction() as transaction:
        return transaction.insert_reservations(rows)


def save(store: Store, *rows: Row) -> list[Row]:
    with store.transaction() as transaction:
        return transaction.save(rows)


def all_rows(store: Store) -> dict[str, Row]:
    return {row.id: row for row in store.read_rows()}


def lease_out(store: Store, name: str = "r1", slot: str = "linux-1") -> Reservation:
    """A stored reservation with one lease on `slot`."""
    (row,) = insert(store, a_reservation(name))
    (leased,) = save(store, msgspec.structs.replace(row, phase="leased", token=1, leases=(a_lease(slot),)))
    assert isinstance(leased, Reservation)
    return leased


class TestAtomicity:
    def test_a_block_that_raises_leaves_nothing(self, store: Store) -> None:
        with losing(store, KeyError) as transaction:
            transaction.insert_reservations([a_reservation()])
            transaction.save([a_slot(), a_hold()])
            transaction.append_events([an_event()])
            transaction.save_answers([StoredAnswer("q1", NOW, {})])
            transaction.save_rules({}, 0)
            transaction.take_term("me")
            transaction.next_tokens(3)
            fail()
        assert all_rows(store) == {}
        assert store.read_events(EventFilter()) == []
        assert (store.rules_version(), store.load_leader_term().term) == (0, 0)
        with store.transaction() as transaction:
            assert transaction.find_answers(["q1"]) == {}

    def test_a_stale_write_undoes_the_whole_transaction(self, store: Store) -> None:
        (slot,) = save(store, a_slot())
        with losing(store, StaleWriteError) as transaction:
            transaction.insert_reservations([a_reservation()])
            transaction.save([slot])
            transaction.save([slot])
        assert all_rows(store) == {slot.id: slot}

    def test_a_swallowed_stale_write_comes_again_at_the_end(self, store: Store) -> None:
        (slot,) = save(store, a_slot())
        with losing(store, StaleWriteError) as transaction:
            transaction.insert_reservations([a_reservation()])
            with pytest.raises(StaleWriteError):
                transaction.save([a_slot()])
        assert all_rows(store) == {slot.id: slot}

    def test_uncommitted_changes_are_invisible_to_others(self, store: Store) -> None:
        with store.transaction() as transaction:
            transaction.save([a_slot()])
            assert store.find_slots() == []
        assert [slot.id for slot in store.find_slots()] == ["linux-1"]

    def test_reads_in_a_transaction_see_its_own_writes(self, store: Store) -> None:
        with store.transaction() as transaction:
            (row,) = transaction.insert_reservations([a_reservation()])
            (leased, slot, hold) = transaction.save(
                [msgspec.structs.replace(row, leases=(a_lease(),)), a_slot(), a_hold()]
            )
            transaction.save_answers([StoredAnswer("q1", NOW, {"ok": True})])
            transaction.save_rules({"scheduler": {"queue": "size"}}, 0)
            assert transaction.load_reservations(["r1"]) == {"r1": leased}
            assert transaction.load_slots(["linux-1"]) == {"linux-1": slot}
            assert transaction.load_all_slots() == [slot]
            assert transaction.load_holds([hold.id]) == {hold.id: hold}
            assert transaction.load_leases(["linux-1"]) == {"linux-1": [("r1", a_lease())]}
            assert transaction.find_answers(["q1"])["q1"].answer == {"ok": True}
            assert transaction.load_rules().rules.scheduler.queue == "size"

    def test_its_time_stands_while_it_lasts(self, store: Store, clock: Clock) -> None:
        with store.transaction() as transaction:
            began, clock.now = transaction.now(), LATER
            assert (began, transaction.now()) == (NOW, NOW)
        assert store.now() == LATER


class TestInsert:
    def test_rows_get_a_sequence_in_order_a_version_and_a_mark(self, store: Store) -> None:
        rows = insert(store, a_reservation("b"), a_reservation("a"))
        rows += insert(store, a_reservation("c"))
        assert [(row.id, row.sequence, row.version, row.marked_at) for row in rows] == [
            ("b", 1, 1, NOW),
            ("a", 2, 1, NOW),
            ("c", 3, 1, NOW),
        ]
        assert store.find_reservations() == rows

    def test_a_known_id_is_left_as_it_is(self, store: Store) -> None:
        (first,) = insert(store, a_reservation("a", priority=1))
        rows = insert(store, a_reservation("a", priority=2), a_reservation("b"), a_reservation("b", priority=3))
        assert [(row.id, row.sequence, row.priority) for row in rows] == [("b", 2, 1)]
        assert store.find_reservations() == [first, *rows]

    def test_more_rows_than_one_statement_takes_keep_their_order(self, store: Store) -> None:
        names = [f"r{number}" for number in range(2500)]
        rows = insert(store, *(a_reservation(name, leases=(a_lease(),)) for name in names))
        assert store.find_reservations(limit=3000) == rows
        assert [row.id for row in rows] == names
        assert save(store, *rows) == store.find_reservations(limit=3000)

    def test_nothing_is_fine(self, store: Store) -> None:
        with store.transaction() as transaction:
            assert transaction.insert_reservations([]) == []
            assert (transaction.save([]), transaction.mark([]), transaction.delete([])) == ([], [], [])
            assert (transaction.load_slots([]), transaction.load_leases([])) == ({}, {})
            assert list(transaction.next_tokens(0)) == []
            transaction.append_events([])


class TestSave:
    def test_version_0_inserts_slots_and_holds(self, store: Store) -> None:
        slot, hold = save(store, a_slot(), a_hold())
        assert (slot.version, hold.version) == (1, 1)
        assert all_rows(store) == {slot.id: slot, hold.id: hold}

    def test_a_row_that_comes_back_is_newer_than_its_tombstone(self, store: Store) -> None:
        """The view keeps tombstones for a while; a hold or slot that is made again must not look like an old copy."""
        with store.transaction() as transaction:
            (slot,) = transaction.save([a_slot()])
            (slot,) = transaction.save([slot])
            (gone,) = transaction.delete([slot])
        with store.transaction() as transaction:
            (back,) = transaction.save([a_slot()])
        assert gone.version <= back.version

    def test_the_version_goes_up_by_one_and_the_mark_is_now(self, store: Store, clock: Clock) -> None:
        (slot,), clock.now = save(store, a_slot()), LATER
        (changed,) = save(store, msgspec.structs.replace(slot, cordoned=True))
        assert (changed.version, changed.marked_at) == (2, LATER)
        assert store.find_slots() == [changed]

    @pytest.mark.parametrize(
        "row",
        [
            a_slot(),  # exists already
            a_slot(version=2),  # newer than there is
            a_slot("linux-9", version=1),  # is not there
            a_reservation(),  # inserted by insert_reservations only
            a_reservation("r9", version=1),  # is not there
            a_hold("gone", version=1),  # is not there
        ],
    )
    def test_any_other_version_is_stale(self, store: Store, row: Row) -> None:
        (slot,) = save(store, a_slot())
        with pytest.raises(StaleWriteError):
            save(store, a_slot("linux-2"), row)
        assert all_rows(store) == {slot.id: slot}

    def test_run_times_are_written_by_id(self, store: Store) -> None:
        row = RunTimes(id='["ci","ann","é","x86_64-linux",1,4]', seconds=(0.0, 0.1, 1e-3, 86400.0), ratios=(0.5,))
        (saved,) = save(store, row)
        (again,) = save(store, msgspec.structs.replace(saved, seconds=(7.25,), ratios=(), released_at=NOW))
        assert (saved, again) == (
            msgspec.structs.replace(row, version=1, marked_at=NOW),
            msgspec.structs.replace(row, version=2, marked_at=NOW, seconds=(7.25,), ratios=(), released_at=NOW),
        )
        with store.transaction() as transaction:
            assert transaction.load_run_times([row.id, "[]"]) == {row.id: again}
        with losing(store, StaleWriteError) as transaction:
            transaction.save([saved])

    def test_the_same_row_twice_is_stale(self, store: Store) -> None:
        (slot,) = save(store, a_slot())
        with pytest.raises(StaleWriteError):
            save(store, slot, slot)

    def test_a_reservation_is_written_with_all_its_leases(self, store: Store) -> None:
        (row,) = insert(store, a_reservation())
        leases = (a_lease("linux-2", component="b.0"), a_lease("linux-1", component="a", kind="elastic", token=7))
        (leased,) = save(store, msgspec.structs.replace(row, phase="leased", leases=leases))
        assert store.find_reservations() == [leased]
        assert isinstance(leased, Reservation)
        assert leased.leases == leases
        (ended,) = save(store, msgspec.structs.replace(leased, phase="released", leases=()))
        assert store.find_reservations() == [ended]

    def test_rows_come_back_in_the_order_given(self, store: Store) -> None:
        rows = save(store, a_slot("linux-2"), a_hold(), a_slot("linux-1"))
        assert [row.id for row in rows] == ["linux-2", a_hold().id, "linux-1"]


class TestMark:
    def test_only_marks_are_written_and_no_version_is_bumped(self, store: Store, clock: Clock) -> None:
        (slot,), clock.now = save(store, a_slot()), LATER
        marks = {"last_seen": LATER, "sent_at": 2.0, "not_before": 3.0, "attempts": 4}
        with store.transaction() as transaction:
            marked = transaction.mark([msgspec.structs.replace(slot, state="error", **marks)])
        assert marked == [msgspec.structs.replace(slot, marked_at=LATER, **marks)]
        assert store.find_slots() == marked

    def test_a_renewal_and_a_confirmation_are_marks(self, store: Store, clock: Clock) -> None:
        row, clock.now = lease_out(store), LATER
        wanted = msgspec.structs.replace(
            row,
            expires_at=LATER,
            confirmed_at=LATER,
            leases=(msgspec.structs.replace(row.leases[0], confirmed_at=LATER, level=1),),
        )
        with store.transaction() as transaction:
            marked = transaction.mark([wanted])
        (lease,) = row.leases
        assert marked == [
            msgspec.structs.replace(
                wanted, marked_at=LATER, leases=(msgspec.structs.replace(lease, confirmed_at=LATER),)
            )
        ]
        assert store.find_reservations() == marked

    def test_a_hold_has_the_time_of_the_write_only(self, store: Store, clock: Clock) -> None:
        (hold,), clock.now = save(store, a_hold()), LATER
        with store.transaction() as transaction:
            assert transaction.mark([hold]) == [msgspec.structs.replace(hold, marked_at=LATER)]

    @pytest.mark.parametrize(
        "row", [a_slot(version=2), a_slot("linux-9"), a_slot("linux-9", version=1), a_reservation(version=1)]
    )
    def test_another_version_or_none_is_stale(self, store: Store, row: Row) -> None:
        save(store, a_slot())
        with losing(store, StaleWriteError) as transaction:
            transaction.mark([row])

    def test_a_lease_of_another_token_keeps_its_confirmation(self) -> None:
        held = a_reservation(version=1, leases=(a_lease(token=2),))
        late = a_reservation(version=1, leases=(a_lease(token=1, confirmed_at=LATER),))
        assert take_marks(held, late, LATER) == msgspec.structs.replace(held, marked_at=LATER)


class TestDelete:
    def test_a_deleted_row_is_gone_one_version_later(self, store: Store) -> None:
        slot, hold, learned = save(store, a_slot(), a_hold(), RunTimes(id="[]"))
        row = lease_out(store)
        with store.transaction() as transaction:
            gone = transaction.delete([slot, hold, row, learned])
            assert transaction.load_run_times(["[]"]) == {}
            assert transaction.load_slots([slot.id]) == {}
            assert transaction.load_leases(["linux-1"]) == {"linux-1": []}
        assert gone == [
            Gone("slots", "linux-1", 2),
            Gone("holds", hold.id, 2),
            Gone("reservations", "r1", 3),
            Gone("run_times", "[]", 2),
        ]
        assert all_rows(store) == {}

    @pytest.mark.parametrize("row", [a_slot(), a_slot(version=2), a_slot("linux-9"), a_reservation(version=1)])
    def test_another_version_or_none_is_stale(self, store: Store, row: Row) -> None:
        (slot,) = save(store, a_slot())
        with losing(store, StaleWriteError) as transaction:
            transaction.delete([slot, row])
        assert all_rows(store) == {slot.id: slot}

    def test_a_row_may_come_again(self, store: Store) -> None:
        (slot,) = save(store, a_slot())
        with store.transaction() as transaction:
            transaction.delete([slot])
            (again,) = transaction.save([a_slot(state="empty")])
        assert store.find_slots() == [again]


class TestLeasesOnSlots:
    def test_they_are_in_order_of_id_whatever_the_epoch(self, store: Store) -> None:
        leases = (a_lease("linux-1", component="b", epoch=3), a_lease("linux-1", component="a"), a_lease("linux-3"))
        for name in ("r2", "r10", "R1"):
            (row,) = insert(store, a_reservation(name))
            save(store, msgspec.structs.replace(row, leases=leases))
        with store.transaction() as transaction:
            found = transaction.load_leases(["linux-1", "linux-2"])
        assert found == {
            "linux-1": [(name, lease) for name in ("R1", "r10", "r2") for lease in leases[:2]],
            "linux-2": [],
        }

    def test_those_of_some_reservations_can_be_left_out(self, store: Store) -> None:
        kept, moved, other = (lease_out(store, name, "linux-1") for name in ("r1", "r2", "r3"))
        with store.transaction() as transaction:
            transaction.save([msgspec.structs.replace(row, leases=(a_lease("linux-2"),)) for row in (moved, other)])
            found = transaction.load_leases(["linux-1", "linux-2"], without={kept.id, moved.id})
        assert found == {"linux-1": [], "linux-2": [("r3", a_lease("linux-2"))]}

    def test_a_moved_lease_is_found_only_on_its_new_slot(self, store: Store) -> None:
        row = lease_out(store, "r1", "linux-1")
        with store.transaction() as transaction:
            transaction.save([msgspec.structs.replace(row, leases=(a_lease("linux-2"),))])
            found = transaction.load_leases(["linux-1", "linux-2"])
        assert found == {"linux-1": [], "linux-2": [("r1", a_lease("linux-2"))]}
        with store.transaction() as transaction:
            assert transaction.load_leases(["linux-2"]) == {"linux-2": [("r1", a_lease("linux-2"))]}


class TestKept:
    def test_tokens_never_come_twice(self, store: Store) -> None:
        with store.transaction() as transaction:
            first, second = transaction.next_tokens(3), transaction.next_tokens(2)
        with store.transaction() as transaction:
            third = transaction.next_tokens(1)
        tokens = [*first, *second, *third]
        assert len(tokens) == len({*tokens}) == 6
        assert tokens == sorted(tokens)

    def test_an_answer_is_kept_and_never_replaced(self, store: Store) -> None:
        answered = StoredAnswer("q1", NOW, {"ok": False, "errors": [{"index": 0, "got": None}]})
        with store.transaction() as transaction:
            transaction.save_answers([answered])
        with losing(store, StaleWriteError) as transaction:
            transaction.save_answers([StoredAnswer("q2", NOW, {}), StoredAnswer("q1", NOW, {})])
        with store.transaction() as transaction:
            assert transaction.find_answers(["q1", "q2"]) == {"q1": answered}

    def test_callbacks_wait_until_they_were_taken(self, store: Store) -> None:
        callback = Callback(task="app.done", queue="app")
        rows = [
            OutboxMessage(id=name, callback=callback, payload={"n": [1]}, created_at=NOW + number)
            for number, name in enumerate(("c", "b", "a"))
        ]
        with store.transaction() as transaction:
            transaction.save_outgoing(rows)
        sent = msgspec.structs.replace(rows[0], sent_at=NOW, attempts=1)
        with store.transaction() as transaction:
            transaction.save_outgoing([sent])
            transaction.delete_outgoing(["b", "unknown"])
        assert store.find_outgoing(sent_before=NOW) == [rows[2]]
        assert store.find_outgoing(sent_before=NOW + 1) == [sent, rows[2]]
        assert store.find_outgoing(sent_before=NOW + 1, limit=1) == [sent]

    @pytest.mark.parametrize(
        ("wanted", "found"),
        [
            ({}, ["lab-1", "lab-2", "linux-1"]),
            ({"states": ["ready"]}, ["lab-1", "linux-1"]),
            ({"pools": ["lab"]}, ["lab-1", "lab-2"]),
            ({"pools": ["lab"], "states": ["ready"]}, ["lab-1"]),
            ({"pools": ["lab"], "ids": ["linux-1", "lab-2"]}, ["lab-2"]),
            ({"pools": []}, []),
            ({"ids": []}, []),
        ],
    )
    def test_slots_are_found_by_all_that_is_given(
        self, store: Store, wanted: dict[str, list[str]], found: list[str]
    ) -> None:
        save(store, a_slot("linux-1"), a_slot("lab-1"), a_slot("lab-2", state="draining"))
        assert sorted(slot.id for slot in store.find_slots(**wanted)) == found

    def test_active_slots_are_counted_by_pool(self, store: Store) -> None:
        states = ("empty", "error", "launching", "booting", "binding", "ready", "draining", "terminating")
        save(store, *(a_slot(f"linux-{number}", state=state) for number, state in enumerate(states)))  # type: ignore[arg-type]
        with store.transaction() as transaction:
            transaction.save([a_slot("linux-9"), a_slot("mac-1"), a_slot("mac-2", state="empty")])
            assert (transaction.count_active("linux"), transaction.count_active("mac")) == (7, 1)
            assert transaction.count_active("none") == 0
            assert len(transaction.load_all_slots()) == 11


def test_rows_of_every_kind_are_frozen_values(store: Store) -> None:
    """What was handed out before does not change when the row does."""
    (slot,) = save(store, a_slot())
    seen = store.find_slots()
    assert isinstance(slot, Slot)
    save(store, msgspec.structs.replace(slot, cordoned=True))
    assert seen == [slot]
