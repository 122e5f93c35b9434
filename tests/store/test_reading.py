"""The contract of Store's reads: what is found, in which order, and what is forgotten."""

import msgspec
import pytest

from scheduler.model.reservations import Reservation
from scheduler.model.run_times import RunTimes
from scheduler.model.transitions import PHASES
from scheduler.model.view import KINDS
from scheduler.ports import EventFilter, RowVersion, Store, StoredAnswer
from scheduler.store.shapes import LEAST_COPIED
from tests.builders import NOW, a_lease, a_reservation, a_slot
from tests.store.conftest import Clock
from tests.store.test_contract import LATER, a_hold, all_rows, an_event, insert, save

TEN_MINUTES = 600.0


def put_in_phase(store: Store, name: str, phase: str, **changes: object) -> Reservation:
    wishes = {key: changes.pop(key) for key in ("restart_policy",) if key in changes}
    (row,) = insert(store, a_reservation(name, **wishes))
    document = msgspec.to_builtins(row) | {"phase": phase} | changes
    (saved,) = save(store, msgspec.convert(document, Reservation))
    assert isinstance(saved, Reservation)
    return saved


class TestRows:
    def test_what_ended_ten_minutes_ago_is_left_out(self, store: Store, clock: Clock) -> None:
        slot, hold, learned = save(store, a_slot(), a_hold(), RunTimes(id="[]", seconds=(1.0, 2.5)))
        alive = [put_in_phase(store, phase, phase, changed_at=0.0) for phase in ("pending", "leased", "revoking")]
        put_in_phase(store, "over", "released", changed_at=NOW)
        put_in_phase(store, "failed", "failed", changed_at=NOW)
        restarting = put_in_phase(store, "restarts", "failed", changed_at=NOW, restart_policy="on_failure")
        put_in_phase(store, "never", "cancelled", changed_at=NOW, restart_policy="on_failure")
        recent = [
            put_in_phase(store, phase, phase, changed_at=NOW + 0.5) for phase in ("released", "cancelled", "expired")
        ]
        clock.now = NOW + TEN_MINUTES
        expected = [slot, hold, learned, *alive, restarting, *recent]
        assert all_rows(store) == {row.id: row for row in expected}
        assert len(list(store.read_rows())) == len(expected)

    def test_many_rows_are_read_as_each_of_them_alone(self, store: Store) -> None:
        """Values that all rows have are read once. Zeros of both signs, texts, JSON and NULL are those of the row."""
        names = [f"linux-{number}" for number in range(2 * LEAST_COPIED)]
        save(
            store,
            *(
                a_slot(
                    name,
                    price=(0.0, -0.0)[number % 2],
                    labels={"rack": "1"},
                    resources=None if number else {"cpus": 1.0},
                    instance_type="large",
                    cordoned=number == 3,
                )
                for number, name in enumerate(names)
            ),
        )
        assert repr(sorted(store.find_slots(), key=lambda row: row.id)) == repr(
            sorted((store.find_slots(ids=[name])[0] for name in names), key=lambda row: row.id)
        )

    def test_rows_are_as_of_the_first_that_is_asked_for(self, store: Store) -> None:
        rows = store.read_rows()
        (slot,) = save(store, a_slot("linux-1"))
        first = next(rows)
        save(store, a_slot("linux-2"), slot)
        assert [first, *rows] == [slot]

    def test_stamps_name_the_copy_in_force_of_all_that_is_not_over(self, store: Store, clock: Clock) -> None:
        slot, hold, learned = save(store, a_slot(), a_hold(), RunTimes(id="[]"))
        alive = [put_in_phase(store, phase, phase) for phase in ("pending", "leased", "revoking")]
        restarting = put_in_phase(store, "restarts", "failed", restart_policy="on_failure")
        for phase in ("released", "cancelled", "expired", "failed"):
            put_in_phase(store, f"over-{phase}", phase)
        clock.now = LATER
        with store.transaction() as transaction:
            (marked,) = transaction.mark([slot])
        expected = {(row.id, row.version, row.marked_at) for row in (marked, hold, learned, *alive, restarting)}
        stamps = list(store.read_stamps())
        assert {(each.id, each.version, each.marked_at) for each in stamps} == expected
        assert len(stamps) == len(expected)
        assert {each.kind for each in stamps if each.id == hold.id} == {"holds"}
        assert {each.kind for each in stamps if each.id == learned.id} == {"run_times"}

    def test_changes_since_are_found_in_every_kind_and_phase(self, store: Store, clock: Clock) -> None:
        save(store, a_slot("linux-1"), a_hold("old"))
        insert(store, a_reservation("old"))
        renewed, seen = insert(store, a_reservation("renewed")) + save(store, a_slot("linux-3"))
        clock.now = LATER
        with store.transaction() as transaction:
            marked = transaction.mark([renewed, seen])
        new = save(store, a_slot("linux-2"), a_hold("new"), RunTimes(id='["ci","ann"]'))
        ended = put_in_phase(store, "ended", "released", leases=[msgspec.to_builtins(a_lease())])
        failed = put_in_phase(store, "again", "failed", restart_policy="on_failure")
        expected = {
            RowVersion(KINDS[type(row)], row.id, row.version, row.marked_at, row is ended)
            for row in [*marked, *new, ended, failed]
        }
        changed = store.read_versions_since(LATER)
        assert set(changed) == expected
        assert len(changed) == len(expected)
        assert store.read_versions_since(LATER + 1) == []
        assert len(store.read_versions_since(0)) == 10

    def test_changes_are_found_after_the_clock_was_put_back(self, store: Store, clock: Clock) -> None:
        save(store, a_slot("linux-1"))
        clock.now = NOW - 10
        save(store, a_slot("linux-2"))
        assert [row.id for row in store.read_versions_since(NOW)] == ["linux-1"]
        assert {row.id for row in store.read_versions_since(NOW - 10)} == {"linux-1", "linux-2"}

    def test_a_deleted_row_is_no_change(self, store: Store) -> None:
        (slot,) = save(store, a_slot())
        with store.transaction() as transaction:
            transaction.delete([slot])
        assert store.read_versions_since(0) == []


class TestFind:
    def test_reservations_come_in_order_of_submission(self, store: Store) -> None:
        names = ["c", "a", "b", "d"]
        phases = ["leased", "pending", "leased", "released"]
        rows = {name: put_in_phase(store, name, phase) for name, phase in zip(names, phases, strict=True)}

        def found(**which: object) -> list[str]:
            return [row.id for row in store.find_reservations(**which)]  # type: ignore[arg-type]

        assert found() == names
        assert found(limit=2) == ["c", "a"]
        assert found(ids=["d", "a", "unknown", "a"]) == ["a", "d"]
        assert found(ids=["d", "a", "c"], limit=2) == ["c", "a"]
        assert found(phases=["pending", "leased"]) == ["c", "a", "b"]
        assert found(phases=["pending", "leased", "leased"], limit=2) == ["c", "a"]
        assert found(ids=["a", "b"], phases=["leased"]) == ["b"]
        assert found(ids=[]) == found(phases=[]) == found(phases=["nonsense"]) == []
        assert store.find_reservations(ids=["b"]) == [rows["b"]]

    def test_slots_are_found_by_id_and_state(self, store: Store) -> None:
        save(store, a_slot("linux-1"), a_slot("linux-2", state="empty"), a_slot("linux-3", state="booting"))

        def found(**which: object) -> set[str]:
            return {slot.id for slot in store.find_slots(**which)}  # type: ignore[arg-type]

        assert found() == {"linux-1", "linux-2", "linux-3"}
        assert found(states=["ready", "booting"]) == {"linux-1", "linux-3"}
        assert found(ids=["linux-1", "linux-2", "linux-9"], states=["empty"]) == {"linux-2"}
        assert found(ids=["linux-1", "linux-1"]) == {"linux-1"}
        assert found(ids=[]) == found(states=[]) == set()

    def test_slots_are_found_by_their_machines(self, store: Store) -> None:
        saved = save(store, a_slot("linux-1"), a_slot("linux-2"), a_slot("linux-3", state="empty"))
        assert store.find_slots_of_machines(["i-linux-2", "i-linux-9", "i-linux-2"]) == [saved[1]]
        assert {slot.id for slot in store.find_slots_of_machines(["i-linux-1", "i-linux-2"])} == {"linux-1", "linux-2"}
        assert store.find_slots_of_machines([]) == []

    def test_every_phase_is_counted_zeros_too(self, store: Store) -> None:
        assert store.count_phases() == dict.fromkeys(PHASES, 0)
        put_in_phase(store, "a", "leased")
        put_in_phase(store, "b", "leased")
        put_in_phase(store, "c", "expired")
        assert store.count_phases() == dict.fromkeys(PHASES, 0) | {"leased": 2, "expired": 1}


class TestEvents:
    @pytest.fixture
    def filled(self, store: Store) -> Store:
        with store.transaction() as transaction:
            transaction.append_events(
                [
                    an_event(name="slot_ready", slot="linux-1", detail={"epoch": 1}),
                    an_event(name="reservation_pending", reservation="r1", cause="holder"),
                ]
            )
            transaction.append_events([an_event(name="reservation_leased", reservation="r1")])
        with store.transaction() as transaction:
            transaction.append_events([an_event(name="slot_ready", slot="linux-2", at=NOW - 5)])
        return store

    @pytest.mark.parametrize(
        ("which", "numbers"),
        [
            (EventFilter(), [1, 2, 3, 4]),
            (EventFilter(after=2), [3, 4]),
            (EventFilter(after=9), []),
            (EventFilter(limit=2), [1, 2]),
            (EventFilter(newest=True, limit=2), [3, 4]),
            (EventFilter(newest=True, after=3), [4]),
            (EventFilter(reservation="r1"), [2, 3]),
            (EventFilter(reservation="r1", newest=True, limit=1), [3]),
            (EventFilter(slot="linux-2"), [4]),
            (EventFilter(name="slot_ready"), [1, 4]),
            (EventFilter(name="slot_ready", slot="linux-1"), [1]),
            (EventFilter(slot="linux-1", reservation="r1"), []),
            (EventFilter(without="slot_ready"), [2, 3]),
            (EventFilter(without="slot_ready", newest=True, limit=1), [3]),
        ],
    )
    def test_they_match_every_field_given_in_order(self, filled: Store, which: EventFilter, numbers: list[int]) -> None:
        assert [event.number for event in filled.read_events(which)] == numbers

    def test_they_are_read_as_they_were_written(self, filled: Store) -> None:
        detail = {"text": "ü\"'\\", "number": 1.5, "flag": True, "none": None, "list": ["a", "b"]}
        event = an_event(name="slot_lost", cause="tick", slot="s", reservation="r", detail=detail)
        with filled.transaction() as transaction:
            transaction.append_events([event])
        assert filled.read_events(EventFilter(after=4)) == [msgspec.structs.replace(event, number=5)]


class TestPrune:
    def test_what_is_older_goes_and_is_counted(self, store: Store) -> None:
        with store.transaction() as transaction:
            transaction.append_events([an_event(at=1.0), an_event(at=3.0), an_event(at=2.0)])
            transaction.save_answers([StoredAnswer("q1", 1.0, {}), StoredAnswer("q2", 2.0, {})])
        put_in_phase(store, "old", "released", changed_at=1.0, leases=[msgspec.to_builtins(a_lease())])
        put_in_phase(store, "failed", "failed", changed_at=1.0)
        put_in_phase(store, "newer", "cancelled", changed_at=2.0)
        put_in_phase(store, "held", "leased", changed_at=1.0)
        put_in_phase(store, "pending", "pending", changed_at=1.0)
        assert store.prune(events_before=2.0, requests_before=2.0, ended_before=2.0) == 4
        assert [event.at for event in store.read_events(EventFilter())] == [3.0, 2.0]
        assert [row.id for row in store.find_reservations()] == ["newer", "held", "pending"]
        assert store.prune(events_before=2.0, requests_before=2.0, ended_before=2.0) == 0
        with store.transaction() as transaction:
            assert set(transaction.find_answers(["q1", "q2"])) == {"q2"}
            assert transaction.load_leases(["linux-1"]) == {"linux-1": []}

    def test_more_than_one_bite_goes_at_once(self, store: Store) -> None:
        rows = insert(store, *(a_reservation(f"r{number}") for number in range(2100)))
        save(store, *(msgspec.structs.replace(row, phase="expired", changed_at=1.0) for row in rows))
        with store.transaction() as transaction:
            transaction.append_events([an_event(at=1.0)] * 20_100)
        assert store.prune(events_before=2.0, requests_before=0.0, ended_before=2.0) == 22_200
        assert (store.read_events(EventFilter()), store.find_reservations()) == ([], [])

    def test_numbers_of_events_are_not_given_out_again(self, store: Store) -> None:
        for at in (1.0, 1.0):
            with store.transaction() as transaction:
                transaction.append_events([an_event(at=at)])
            store.prune(events_before=2.0, requests_before=0.0, ended_before=0.0)
        with store.transaction() as transaction:
            transaction.append_events([an_event(at=3.0)])
        assert [event.number for event in store.read_events(EventFilter())] == [3]
