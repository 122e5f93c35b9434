"""The lists that a view keeps up to date with each row are equal to lists that are made again."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.pending_queue import MOST_SINGLE_CHANGES, PendingQueue
from scheduler.model.reservations import Reservation, Shape
from scheduler.model.view import ExpiryQueue, Gone, View
from tests.builders import NOW, a_reservation
from tests.rules.fleets import QUICKLY

MANY = MOST_SINGLE_CHANGES + 30
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.integers(0, MANY), st.integers(0, 3)),
        st.tuples(st.just("come"), st.integers(0, MANY), st.integers(0, 3)),
        st.tuples(st.just("go"), st.integers(0, MANY), st.just(0)),
        st.tuples(st.just("fill"), st.integers(0, MANY), st.integers(0, 3)),
        st.tuples(st.just("read"), st.integers(0, 2), st.just(0)),
    ),
    max_size=40,
)


@QUICKLY
@given(STEPS)
def test_rows_and_groups_are_those_of_a_new_queue(steps: list[tuple[str, int, int]]) -> None:
    view, followed = View(), dict[str, Reservation]()
    position = view.waiters.follow()
    for version, (step, number, kind) in enumerate(steps, 1):
        match step:
            case "come":
                view.apply(_make(number, kind, version))
            case "fill":
                for each in range(number):
                    view.apply(_make(each * 7 % MANY, (kind + each) % 4, version))
            case "go":
                view.apply(Gone("reservations", f"r{number}", version))
            case _:
                _compare(view)
                position = _follow(view.waiters, position, followed)
    _compare(view)
    _follow(view.waiters, position, followed)
    assert followed == view.by_phase["pending"]


def _make(number: int, kind: int, version: int) -> Reservation:
    return a_reservation(
        f"r{number}",
        version=version,
        sequence=number,
        created_at=NOW + kind,
        account=[None, "A"][kind % 2],
        labels=[{}, {"zone": "a"}][number % 2],
    )


def _compare(view: View) -> None:
    rows, ids, shapes = view.waiters.list()
    assert rows == sorted(view.by_phase["pending"].values(), key=lambda each: (each.created_at, each.sequence))
    assert ids == [each.id for each in rows]
    assert shapes == [view.shapes[each] for each in ids]
    assert len(view.waiters) == len(rows)
    groups, numbers = view.waiters.group()
    expected: dict[tuple[str | None, Shape], list[Reservation]] = {}
    for row, shape in zip(rows, shapes, strict=True):
        expected.setdefault((row.request.account, shape), []).append(row)
    assert groups == list(expected.values())
    assert [groups[number][0].request.account for number in numbers] == [row.request.account for row in rows]
    assert {key: list(group.rows) for key, group in view.waiters.groups().items()} == expected


def _follow(waiters: PendingQueue, position: int, followed: dict[str, Reservation]) -> int:
    changes = waiters.changes_since(position)
    assert changes is not None
    for row, shape, has_come in changes:
        assert shape.labels == row.request.labels
        if has_come:
            followed[row.id] = row
        else:
            assert followed.pop(row.id) is row
    return waiters.follow()


def test_a_log_that_is_too_long_loses_its_oldest_changes(monkeypatch: Any) -> None:
    monkeypatch.setattr("scheduler.model.pending_queue.LEAST_LOG", 10)
    view = View()
    assert view.waiters.follow() == 0
    for version in range(1, 50):
        view.apply(_make(1, 0, version))
    waiters = view.waiters
    assert waiters.changes_since(0) is None
    found = waiters.changes_since(waiters.follow() - 3)
    assert found is not None
    assert [has_come for _, _, has_come in found] == [True, False, True]
    assert waiters.changes_since(waiters.follow()) == []


EXPIRY = st.lists(
    st.tuples(st.integers(0, 8), st.sampled_from([None, 1.0, 2.0, 3.0, 4.0]), st.sampled_from([0.0, 1.0, 2.0, 9.0])),
    max_size=60,
)


@QUICKLY
@given(EXPIRY, st.sampled_from([0, 3, 1000]))
def test_due_reservations_are_those_of_a_walk(steps: list[tuple[int, float | None, float]], stale: int) -> None:
    queue, rows = ExpiryQueue(stale), dict[str, Reservation]()
    for number, expires_at, now in steps:
        row = a_reservation(f"r{number}", expires_at=expires_at)
        if row.id in rows:
            queue.remove(rows[row.id])
        rows[row.id] = row
        queue.add(row)
        mortal = [each for each in rows.values() if each.expires_at is not None]
        due, following = queue.find_due(now)
        assert sorted(each.id for each in due) == sorted(each.id for each in mortal if (each.expires_at or 0) <= now)
        assert following == min((each.expires_at or 0 for each in mortal if (each.expires_at or 0) > now), default=None)
