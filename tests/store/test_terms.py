"""The contract of terms and of races: only the holder of the present term writes, and only one of two writers wins."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import msgspec
import pytest

from scheduler.ports import DeposedError, LeaderTerm, StaleWriteError, Store, StoreUnavailableError
from scheduler.store.postgresql import LIMITS
from tests.builders import NOW, a_reservation, a_slot
from tests.store.conftest import Opener
from tests.store.test_contract import insert, losing, save


def take_term(store: Store, holder: str) -> LeaderTerm:
    with store.transaction() as transaction:
        return transaction.take_term(holder)


def test_the_term_only_grows_and_the_last_tick_is_handed_on(store: Store) -> None:
    assert store.load_leader_term().term == 0
    first = take_term(store, "a")
    assert (first.term, first.holder) == (1, "a")
    with store.transaction() as transaction:
        transaction.note_tick(first, NOW)
    assert take_term(store, "b") == LeaderTerm(2, "b", NOW) == store.load_leader_term()


@pytest.mark.parametrize(
    "mine",
    [
        LeaderTerm(1, "a"),  # over
        LeaderTerm(2, "a"),  # another's
        LeaderTerm(3, "b"),  # not yet
        LeaderTerm(0, ""),  # never led
    ],
)
def test_whoever_is_deposed_writes_nothing(store: Store, mine: LeaderTerm) -> None:
    take_term(store, "a")
    take_term(store, "b")
    with losing(store, DeposedError) as transaction:
        transaction.save([a_slot()])
        transaction.note_tick(mine, NOW)
    assert (store.find_slots(), store.load_leader_term()) == ([], LeaderTerm(2, "b"))


def test_a_swallowed_deposition_comes_again_at_the_end(store: Store) -> None:
    with losing(store, DeposedError) as transaction:
        transaction.save([a_slot()])
        with pytest.raises(DeposedError):
            transaction.note_tick(LeaderTerm(7, "a"), NOW)
    assert store.find_slots() == []


def test_the_time_of_a_tick_does_not_change_the_leader(store: Store) -> None:
    leader_term = take_term(store, "a")
    with store.transaction() as transaction:
        transaction.note_tick(leader_term, NOW)
    assert store.load_leader_term() == LeaderTerm(leader_term.term, "a", NOW)


def test_no_other_rules_come_into_force_after_the_begin_of_a_commit(
    reopen: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick's transaction sees the rules of a change that came before. A later change waits for the end of the
    transaction, here for as long as the database lets it wait for a lock.
    """
    ticking = reopen()
    leader_term = take_term(ticking, "a")
    monkeypatch.setattr("scheduler.store.sqlite.BUSY_SECONDS", 0.01)
    monkeypatch.setitem(LIMITS, "lock_timeout", "50ms")
    applying = reopen()

    def apply() -> None:
        with applying.transaction() as transaction:
            transaction.save_rules({"scheduler": {"queue": "size"}}, transaction.load_rules().version)

    with ticking.transaction() as transaction:
        transaction.note_tick(leader_term, NOW)
        assert transaction.rules_version() == 0
        with pytest.raises(StoreUnavailableError, match="locked"):
            apply()
    apply()
    with ticking.transaction() as transaction:
        transaction.note_tick(leader_term, NOW)
        assert transaction.rules_version() == 1


def test_of_two_writers_with_one_picture_one_wins(reopen: Opener) -> None:
    """Two connections, two threads, the same row as both have read it."""
    rivals = [reopen(), reopen()]
    (slot,) = save(rivals[0], a_slot())
    meeting = Barrier(2)

    def write(store: Store) -> str:
        meeting.wait()
        try:
            save(store, msgspec.structs.replace(slot, cordoned=True))
        except StaleWriteError:
            return "stale"
        return "won"

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(write, rivals)) == ["stale", "won"]
    assert [found.version for found in rivals[0].find_slots()] == [2]


def test_of_two_leaders_the_later_one_stays(reopen: Opener) -> None:
    rivals = {"a": reopen(), "b": reopen()}
    meeting = Barrier(2)

    def lead(holder: str) -> str:
        meeting.wait()
        leader_term = take_term(rivals[holder], holder)
        meeting.wait()
        try:
            with rivals[holder].transaction() as transaction:
                transaction.note_tick(leader_term, NOW)
                transaction.insert_reservations([a_reservation(holder)])
        except DeposedError:
            return "deposed"
        return "leads"

    with ThreadPoolExecutor(2) as threads:
        assert sorted(threads.map(lead, rivals)) == ["deposed", "leads"]
    last = rivals["a"].load_leader_term()
    assert last.term == 2
    assert [row.id for row in rivals["a"].find_reservations()] == [last.holder]


def test_writers_wait_for_each_other_and_lose_no_number(reopen: Opener) -> None:
    stores = [reopen() for _ in range(4)]

    def submit(number: int) -> list[int]:
        store = stores[number]
        rows = [insert(store, a_reservation(f"{number}-{row}")) for row in range(20)]
        with store.transaction() as transaction:
            return [*transaction.next_tokens(20), *(-row.sequence for (row,) in rows)]

    with ThreadPoolExecutor(4) as threads:
        numbers = [number for given in threads.map(submit, range(4)) for number in given]
    assert sorted(numbers) == [*range(-80, 0), *range(1, 81)]
