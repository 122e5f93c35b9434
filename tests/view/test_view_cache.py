"""The Board's contract, in memory and on Redis."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.model.slots import Slot
from scheduler.model.view import Change, Gone, Row
from scheduler.ports import ViewCache, ViewUnavailableError
from tests.builders import NOW, a_lease
from tests.view.conftest import MakeBoard
from tests.view.rows import content, hold_at, newest, reservation_at, slot_at


@dataclass
class Cluster:
    """A view that was built empty, the process that built it, and one that publishes."""

    make: MakeBoard
    leader: ViewCache
    writer: ViewCache


@pytest.fixture
def cluster(make_board: MakeBoard) -> Cluster:
    leader = make_board()
    leader.rebuild([])
    return Cluster(make_board, leader, make_board())


def test_before_it_is_built_there_is_nothing_to_lay_changes_over_or_to_copy(make_board: MakeBoard) -> None:
    view_cache = make_board()
    assert view_cache.publish([slot_at(1)]) is False
    assert view_cache.catch_up() is None
    assert view_cache.load() is None
    with pytest.raises(ViewUnavailableError):
        view_cache.read_slots(["linux-1"])


def test_a_rebuild_holds_every_row_of_the_truth_and_any_process_can_copy_it(make_board: MakeBoard) -> None:
    rows: list[Row] = [slot_at(3), reservation_at(2, leases=(a_lease(),)), hold_at(1)]
    built = make_board().rebuild(rows)
    assert content(built) == content(newest([*rows]))
    assert content(make_board().load()) == content(built)


def test_a_process_that_never_copied_the_view_cannot_catch_up(cluster: Cluster) -> None:
    assert cluster.writer.catch_up() is None


def test_the_warm_copy_is_the_same_object_with_the_changes_laid_over_it(cluster: Cluster) -> None:
    view = cluster.leader.catch_up()
    assert cluster.writer.publish([slot_at(1), reservation_at(1, leases=(a_lease(),)), hold_at(1)])
    assert cluster.leader.catch_up() is view
    assert content(view) == content(newest([slot_at(1), reservation_at(1, leases=(a_lease(),)), hold_at(1)]))


def test_ones_own_publish_reaches_the_warm_copy_with_the_next_catch_up(cluster: Cluster) -> None:
    cluster.leader.publish([slot_at(1)])
    assert content(cluster.leader.catch_up())["slots"] == {"linux-1": slot_at(1)}


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        # a greater version is newer, whatever its mark of time
        (slot_at(1), slot_at(2, marked_at=NOW - 99), slot_at(2, marked_at=NOW - 99)),
        (slot_at(2), slot_at(1), slot_at(2)),
        # as great: the later mark of time
        (slot_at(1), slot_at(1, marked_at=NOW + 1.5), slot_at(1, marked_at=NOW + 1.5)),
        (slot_at(1, marked_at=NOW + 1.5), slot_at(1), slot_at(1, marked_at=NOW + 1.5)),
        # not by letters: 10 is more than 9
        (slot_at(9), slot_at(10), slot_at(10)),
        (slot_at(10), slot_at(9), slot_at(10)),
        # a row of the same version survives, an older one does not
        (Gone("slots", "linux-1", 2), slot_at(1), None),
        (slot_at(1), Gone("slots", "linux-1", 2), None),
        (Gone("slots", "linux-1", 2), slot_at(2), slot_at(2)),
        (slot_at(2), Gone("slots", "linux-1", 2), slot_at(2)),
        # an earlier deletion does not forget a later one
        (Gone("slots", "linux-1", 3), Gone("slots", "linux-1", 2), None),
    ],
)
def test_of_two_copies_the_newer_stays(cluster: Cluster, first: Change, second: Change, stays: Slot | None) -> None:
    cluster.writer.publish([first])
    cluster.leader.catch_up()
    cluster.writer.publish([second])
    expected = {} if stays is None else {"linux-1": stays}
    assert content(cluster.leader.catch_up())["slots"] == expected
    assert content(cluster.make().load())["slots"] == expected
    assert cluster.writer.read_slots(["linux-1"]) == expected


def test_a_deleted_row_does_not_come_back_with_an_old_copy_a_newer_one_does(cluster: Cluster) -> None:
    cluster.writer.publish([slot_at(1), Gone("slots", "linux-1", 5), slot_at(4)])
    assert content(cluster.leader.catch_up())["slots"] == {}
    cluster.writer.publish([slot_at(6), Gone("slots", "linux-1", 5)])
    assert content(cluster.leader.catch_up())["slots"] == {"linux-1": slot_at(6)}


def test_a_row_that_comes_and_goes_in_one_publish_is_gone(cluster: Cluster) -> None:
    view = cluster.leader.catch_up()
    cluster.writer.publish([slot_at(1), hold_at(1), Gone("slots", "linux-1", 2), Gone("holds", hold_at(1).id, 2)])
    cluster.leader.catch_up()
    assert content(view) == content(newest([]))


def test_a_row_with_any_id_is_kept_under_it(cluster: Cluster) -> None:
    odd = reservation_at(1, 'a/b "c"\n\x00é')
    cluster.writer.publish([odd, hold_at(1, "linux//"), Gone("holds", "*/auth/", 3)])
    view = cluster.leader.catch_up()
    assert content(view)["reservations"] == {odd.id: odd}
    assert content(view)["holds"] == {"linux//": hold_at(1, "linux//")}


def test_an_ended_reservation_stays_readable_and_leaves_the_view(cluster: Cluster) -> None:
    ended = reservation_at(2, phase="released", finished_at=NOW)
    cluster.writer.publish([reservation_at(1, leases=(a_lease(),))])
    cluster.leader.catch_up()
    cluster.writer.publish([ended])
    assert content(cluster.leader.catch_up()) == content(newest([]))
    assert content(cluster.make().load()) == content(newest([]))
    assert cluster.writer.read_reservations(["r1", "unknown"]) == {"r1": ended}


def test_rows_are_read_by_id_without_copying_the_view(cluster: Cluster) -> None:
    names = [f"r{number}" for number in range(1500)]
    cluster.writer.publish([reservation_at(1, name) for name in names])
    assert list(cluster.writer.read_reservations([*names, "none"])) == names
    assert cluster.writer.read_reservations([]) == {}


def test_a_rebuild_forgets_what_the_truth_does_not_know(cluster: Cluster) -> None:
    cluster.writer.publish([slot_at(9, "linux-1"), slot_at(9, "linux-2"), Gone("holds", "h", 9)])
    expected = content(newest([slot_at(1, "linux-2"), hold_at(1, "h")]))
    # Even versions that went back: another database, or one restored from a backup.
    assert content(cluster.leader.rebuild([slot_at(1, "linux-2"), hold_at(1, "h")])) == expected
    assert content(cluster.make().load()) == expected


def test_after_a_rebuild_by_another_process_a_copy_is_not_continued(cluster: Cluster) -> None:
    cluster.make().rebuild([slot_at(1)])
    assert cluster.leader.catch_up() is None
    assert content(cluster.leader.load())["slots"] == {"linux-1": slot_at(1)}


def test_what_is_published_while_a_rebuild_reads_the_truth_is_in_it(cluster: Cluster) -> None:
    def read_slowly() -> Iterator[Row]:
        yield slot_at(1, "linux-1")
        cluster.writer.publish([slot_at(2, "linux-1"), slot_at(1, "linux-3"), Gone("slots", "linux-2", 2)])
        yield slot_at(1, "linux-2")

    expected = {"linux-1": slot_at(2, "linux-1"), "linux-3": slot_at(1, "linux-3")}
    assert content(cluster.leader.rebuild(read_slowly()))["slots"] == expected
    assert content(cluster.make().load())["slots"] == expected


def test_a_copy_matches_what_is_stored_whatever_came_ended_and_went(cluster: Cluster) -> None:
    assert not cluster.writer.matches_copy(), "it has none"
    assert cluster.leader.matches_copy()
    cluster.writer.publish([slot_at(1), slot_at(1, "linux-2"), reservation_at(1), reservation_at(1, "r2"), hold_at(1)])
    assert cluster.leader.matches_copy()
    cluster.writer.publish([reservation_at(2, phase="released"), Gone("slots", "linux-2", 2), Gone("slots", "x", 2)])
    assert cluster.leader.matches_copy()
    cluster.writer.publish([slot_at(3, "x"), Gone("reservations", "r1", 3), Gone("reservations", "r2", 2)])
    assert cluster.leader.matches_copy()
    cluster.make().rebuild([slot_at(1)])
    assert not cluster.leader.matches_copy(), "it is another view"


def test_the_report_is_what_was_written_last(cluster: Cluster) -> None:
    assert cluster.leader.read_report() == {}
    cluster.leader.write_report({"term": 1})
    cluster.leader.write_report({"term": 2, "waiting": {"r1": "no_room"}, "wake_at": None})
    assert cluster.writer.read_report() == {"term": 2, "waiting": {"r1": "no_room"}, "wake_at": None}


def _histories() -> list[Change]:
    slots: list[Change] = [slot_at(1), slot_at(2), slot_at(2, marked_at=NOW + 2.5), slot_at(3)]
    returning: list[Change] = [slot_at(1, "x"), Gone("slots", "x", 2), slot_at(3, "x"), Gone("slots", "x", 4)]
    reservations: list[Change] = [
        reservation_at(1),
        reservation_at(2, phase="leased", leases=(a_lease(),)),
        reservation_at(3, phase="leased", leases=(a_lease("x"), a_lease(component="more"))),
        reservation_at(4, phase="released", finished_at=NOW),
        reservation_at(1, "r2"),
        Gone("reservations", "r2", 2),
    ]
    return [*slots, *returning, *reservations, hold_at(1), hold_at(2)]


@given(
    order=st.permutations([*_histories(), *_histories()]),
    size=st.integers(1, 7),
    reads=st.sets(st.integers(0, 28)),
)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_and_repetition_of_publishes_gives_the_same_view(
    make_board: MakeBoard, order: list[Change], size: int, reads: set[int]
) -> None:
    writer, reader = make_board(), make_board()
    writer.rebuild([])
    warm = reader.load()
    for start in range(0, len(order), size):
        assert writer.publish(order[start : start + size])
        if start in reads:
            assert reader.catch_up() is warm
    expected = content(newest(_histories()))
    assert content(reader.catch_up()) == expected
    assert content(make_board().load()) == expected


def test_processes_that_publish_at_once_lose_nothing(cluster: Cluster) -> None:
    def publish(writer: ViewCache, name: str) -> None:
        for version in range(1, 51):
            writer.publish([slot_at(version, name), slot_at(version, "shared"), slot_at(1, f"{name}-{version}")])

    threads = [threading.Thread(target=publish, args=(cluster.make(), name)) for name in ("one", "two", "three")]
    view = cluster.leader.catch_up()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert cluster.leader.catch_up() is view
        assert cluster.make().load() is not None
    assert cluster.leader.catch_up() is view
    assert view is not None
    assert len(view.slots) == 3 * 51 + 1
    assert {view.slots[name].version for name in ("one", "two", "three", "shared")} == {50}
    assert content(cluster.make().load()) == content(view)
