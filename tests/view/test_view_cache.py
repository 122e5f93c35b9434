"""The contract of the port `ViewCache`, in memory and on Redis."""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model.history import SAMPLE_SECONDS, SAMPLES, Sample
from scheduler.model.slots import Slot
from scheduler.model.view import Change, Gone, Row
from scheduler.model.waits import Waits
from scheduler.ports import ViewCache
from tests.builders import NOW, a_lease
from tests.view.conftest import MakeViewCache
from tests.view.rows import LAUNCH_REQUESTS, content, hold_at, newest, reservation_at, run_times_at, slot_at


@dataclass
class Cluster:
    """An empty view, the process that built it, and one that publishes."""

    make: MakeViewCache
    leader: ViewCache
    writer: ViewCache


@pytest.fixture
def cluster(make_view_cache: MakeViewCache) -> Cluster:
    leader = make_view_cache()
    leader.rebuild([])
    return Cluster(make_view_cache, leader, make_view_cache())


def test_a_view_that_is_not_built_yet_accepts_no_publish_and_cannot_be_copied(make_view_cache: MakeViewCache) -> None:
    view_cache = make_view_cache()
    assert view_cache.publish([slot_at(1)]) is False
    assert view_cache.catch_up() is None
    assert view_cache.load() is None


def test_a_rebuilt_view_contains_every_row_and_any_process_can_copy_it(make_view_cache: MakeViewCache) -> None:
    rows: list[Row] = [slot_at(3), reservation_at(2, leases=(a_lease(),)), hold_at(1), run_times_at(2)]
    built = make_view_cache().rebuild(rows)
    assert content(built) == content(newest([*rows]))
    assert content(make_view_cache().load()) == content(built)


@pytest.mark.parametrize("kind", LAUNCH_REQUESTS)
def test_of_a_launch_request_the_view_has_only_the_image(cluster: Cluster, kind: str) -> None:
    request, kept = LAUNCH_REQUESTS[kind]
    old, new = (msgspec.structs.replace(slot_at(1, name), launch_request=request) for name in ("linux-1", "linux-2"))
    cluster.leader.rebuild([old])
    reader = cluster.make()
    assert reader.load() is not None
    assert cluster.writer.publish([new])
    copies = [reader.catch_up(), cluster.make().load()]
    found = [copy.slots for copy in copies if copy is not None]
    for slots in found:
        assert slots == {slot.id: msgspec.structs.replace(slot, launch_request=kept) for slot in (old, new)}
    assert len(found) == 2
    assert cluster.leader.matches_copy()


def test_the_view_does_not_have_the_hosts_of_senders(cluster: Cluster) -> None:
    old, new = (reservation_at(1, name, sender="web-1") for name in ("r1", "r2"))
    cluster.leader.rebuild([old])
    reader = cluster.make()
    assert reader.load() is not None
    assert cluster.writer.publish([new])
    copies = [reader.catch_up(), cluster.make().load()]
    found = [copy.reservations for copy in copies if copy is not None]
    assert found == [{name: reservation_at(1, name) for name in ("r1", "r2")}] * 2
    assert cluster.leader.matches_copy()


def test_a_process_that_never_copied_the_view_cannot_catch_up(cluster: Cluster) -> None:
    assert cluster.writer.catch_up() is None


def test_a_warm_copy_stays_the_same_object_and_gets_the_changes(cluster: Cluster) -> None:
    view = cluster.leader.catch_up()
    rows: list[Row] = [slot_at(1), reservation_at(1, leases=(a_lease(),)), hold_at(1), run_times_at(1)]
    assert cluster.writer.publish(rows)
    assert cluster.leader.catch_up() is view
    assert content(view) == content(newest([*rows]))


def test_a_process_sees_its_own_publish_after_the_next_catch_up(cluster: Cluster) -> None:
    cluster.leader.publish([slot_at(1)])
    assert content(cluster.leader.catch_up())["slots"] == {"linux-1": slot_at(1)}


@pytest.mark.parametrize(
    ("first", "second", "stays"),
    [
        # the higher version is newer, also with an earlier `marked_at`
        (slot_at(1), slot_at(2, marked_at=NOW - 99), slot_at(2, marked_at=NOW - 99)),
        (slot_at(2), slot_at(1), slot_at(2)),
        # equal versions: the later `marked_at` is newer
        (slot_at(1), slot_at(1, marked_at=NOW + 1.5), slot_at(1, marked_at=NOW + 1.5)),
        (slot_at(1, marked_at=NOW + 1.5), slot_at(1), slot_at(1, marked_at=NOW + 1.5)),
        # versions are compared as numbers: 10 is above 9
        (slot_at(9), slot_at(10), slot_at(10)),
        (slot_at(10), slot_at(9), slot_at(10)),
        # a deletion removes older versions and keeps a row of its own version
        (Gone("slots", "linux-1", 2), slot_at(1), None),
        (slot_at(1), Gone("slots", "linux-1", 2), None),
        (Gone("slots", "linux-1", 2), slot_at(2), slot_at(2)),
        (slot_at(2), Gone("slots", "linux-1", 2), slot_at(2)),
        # an earlier deletion does not replace a later one
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


def test_after_a_deletion_only_a_newer_version_of_the_row_is_accepted(cluster: Cluster) -> None:
    cluster.writer.publish([slot_at(1), Gone("slots", "linux-1", 5), slot_at(4)])
    assert content(cluster.leader.catch_up())["slots"] == {}
    cluster.writer.publish([slot_at(6), Gone("slots", "linux-1", 5)])
    assert content(cluster.leader.catch_up())["slots"] == {"linux-1": slot_at(6)}


def test_a_row_inserted_and_deleted_in_one_publish_is_not_in_the_view(cluster: Cluster) -> None:
    view = cluster.leader.catch_up()
    cluster.writer.publish([slot_at(1), hold_at(1), Gone("slots", "linux-1", 2), Gone("holds", hold_at(1).id, 2)])
    cluster.leader.catch_up()
    assert content(view) == content(newest([]))


def test_a_row_with_any_id_is_kept_under_it(cluster: Cluster) -> None:
    odd = reservation_at(1, 'a/b "c"\n\x00é')
    odd_class = run_times_at(1, '["a/b","é\\n\\u0000\\"",null,"x86_64-linux",1,0]')
    cluster.writer.publish([odd, hold_at(1, "linux//"), Gone("holds", "*/auth/", 3), odd_class])
    view = cluster.leader.catch_up()
    assert content(view)["run_times"] == {odd_class.id: odd_class}
    assert content(view)["reservations"] == {odd.id: odd}
    assert content(view)["holds"] == {"linux//": hold_at(1, "linux//")}


def test_run_times_are_replaced_by_newer_ones_and_forgotten(cluster: Cluster) -> None:
    kept, forgotten = run_times_at(1, "[]"), run_times_at(1)
    cluster.writer.publish([kept, forgotten])
    cluster.writer.publish([run_times_at(3, "[]"), run_times_at(2, "[]"), Gone("run_times", forgotten.id, 2)])
    cluster.writer.publish([forgotten])
    assert content(cluster.leader.catch_up())["run_times"] == {"[]": run_times_at(3, "[]")}
    assert content(cluster.make().load())["run_times"] == {"[]": run_times_at(3, "[]")}
    assert cluster.leader.matches_copy()


def test_an_ended_reservation_leaves_the_view_and_is_kept_for_a_restore(cluster: Cluster) -> None:
    ended = reservation_at(2, phase="released", finished_at=NOW)
    cluster.writer.publish([reservation_at(1, leases=(a_lease(),))])
    cluster.leader.catch_up()
    cluster.writer.publish([ended])
    assert content(cluster.leader.catch_up()) == content(newest([]))
    assert content(cluster.make().load()) == content(newest([]))
    assert cluster.writer.read_kept() == {"r1": ended}


def test_a_rebuild_drops_rows_that_are_not_in_the_database(cluster: Cluster) -> None:
    cluster.writer.publish([slot_at(9, "linux-1"), slot_at(9, "linux-2"), Gone("holds", "h", 9)])
    expected = content(newest([slot_at(1, "linux-2"), hold_at(1, "h")]))
    # This holds for lower versions too: the database may have been restored from a backup.
    assert content(cluster.leader.rebuild([slot_at(1, "linux-2"), hold_at(1, "h")])) == expected
    assert content(cluster.make().load()) == expected


def test_after_a_rebuild_by_another_process_a_copy_is_not_continued(cluster: Cluster) -> None:
    cluster.make().rebuild([slot_at(1)])
    assert cluster.leader.catch_up() is None
    assert content(cluster.leader.load())["slots"] == {"linux-1": slot_at(1)}


def test_a_rebuilt_view_contains_rows_published_during_the_rebuild(cluster: Cluster) -> None:
    def read_slowly() -> Iterator[Row]:
        yield slot_at(1, "linux-1")
        cluster.writer.publish([slot_at(2, "linux-1"), slot_at(1, "linux-3"), Gone("slots", "linux-2", 2)])
        yield slot_at(1, "linux-2")

    expected = {"linux-1": slot_at(2, "linux-1"), "linux-3": slot_at(1, "linux-3")}
    assert content(cluster.leader.rebuild(read_slowly()))["slots"] == expected
    assert content(cluster.make().load())["slots"] == expected


def test_a_copy_matches_the_stored_view_after_inserts_ends_and_deletions(cluster: Cluster) -> None:
    assert not cluster.writer.matches_copy(), "the process has no copy"
    assert cluster.leader.matches_copy()
    cluster.writer.publish([slot_at(1), slot_at(1, "linux-2"), reservation_at(1), reservation_at(1, "r2"), hold_at(1)])
    assert cluster.leader.matches_copy()
    cluster.writer.publish([reservation_at(2, phase="released"), Gone("slots", "linux-2", 2), Gone("slots", "x", 2)])
    assert cluster.leader.matches_copy()
    cluster.writer.publish([slot_at(3, "x"), Gone("reservations", "r1", 3), Gone("reservations", "r2", 2)])
    assert cluster.leader.matches_copy()
    cluster.make().rebuild([slot_at(1)])
    assert not cluster.leader.matches_copy(), "the view was rebuilt"


def test_the_last_written_report_is_returned(cluster: Cluster) -> None:
    assert cluster.leader.read_report() == {}
    cluster.leader.write_report({"term": 1})
    cluster.leader.write_report({"term": 2, "wake_at": None}, Waits(["r1"], [("no_capacity", "no slot is free")]))
    waiting = {"r1": ["no_capacity", "no slot is free"]}
    assert cluster.writer.read_report() == {"term": 2, "waiting": waiting, "wake_at": None}
    cluster.make().write_report({"term": 3}, Waits(["r2"], [("booting", "waits for linux-1")]))
    assert cluster.writer.read_report()["waiting"] == {"r2": ["booting", "waits for linux-1"]}
    cluster.leader.write_report({"term": 4})
    assert cluster.writer.read_report() == {"term": 4, "waiting": {}}


def test_the_history_has_one_sample_for_each_place_of_its_ring(cluster: Cluster) -> None:
    """A process of any time writes to the place of its time, so that the ring never grows."""
    assert cluster.leader.read_history() == []
    begin = NOW // SAMPLE_SECONDS * SAMPLE_SECONDS
    for number in range(2):
        cluster.make().write_sample(Sample(begin + number, number, 1.5, None, 0))
    assert cluster.writer.read_history() == [Sample(begin + 1, 1, 1.5, None, 0)]
    for number in range(SAMPLES + 5):
        cluster.leader.write_sample(Sample(begin + number * SAMPLE_SECONDS, number, 0.0, 0.25, 3))
    found = sorted(cluster.writer.read_history(), key=lambda each: each.at)
    assert [each.waiting for each in found] == list(range(5, SAMPLES + 5))
    cluster.make().rebuild([slot_at(1)])
    assert len(cluster.leader.read_history()) == SAMPLES


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


@given(order=st.permutations([*_histories(), *_histories()]), size=st.integers(1, 7), reads=st.sets(st.integers(0, 28)))
@settings(max_examples=60)
def test_any_order_and_repetition_of_publishes_gives_the_same_view(
    make_view_cache: MakeViewCache, order: list[Change], size: int, reads: set[int]
) -> None:
    writer, reader = make_view_cache(), make_view_cache()
    writer.rebuild([])
    warm = reader.load()
    for start in range(0, len(order), size):
        assert writer.publish(order[start : start + size])
        if start in reads:
            assert reader.catch_up() is warm
    expected = content(newest(_histories()))
    assert content(reader.catch_up()) == expected
    assert content(make_view_cache().load()) == expected


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
