"""Beat fires only while database and Redis belong to one cluster, by the rule of the workers."""

import pytest
from celery.beat import ScheduleEntry
from celery.schedules import schedule

from scheduler.ports import DatabaseWentBackError, ForeignClusterError, StoreUnavailableError
from tasks.app import app
from tasks.beat import PunctualScheduler

FOREIGN = "Redis belongs to cluster a, the database to cluster b"


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the entries that beat sent."""
    sent: list[str] = []
    monkeypatch.setattr(PunctualScheduler, "apply_async", lambda _, entry, **__: sent.append(entry.name))
    monkeypatch.setattr(PunctualScheduler, "refusal", None)
    return sent


def fire(monkeypatch: pytest.MonkeyPatch, found: Exception | None) -> None:
    """One due entry; a check of the membership has this result."""

    def check() -> None:
        if found is not None:
            raise found

    monkeypatch.setattr(app.services, "ensure_membership_of_sender", check)
    beat = PunctualScheduler(app, schedule={}, lazy=True)
    beat.apply_entry(ScheduleEntry(name="a tick", task="a", schedule=schedule(60), app=app))


@pytest.mark.parametrize("found", [None, StoreUnavailableError("it does not answer")])
def test_beat_fires_also_without_a_database(
    monkeypatch: pytest.MonkeyPatch, sent: list[str], found: Exception | None
) -> None:
    """Its messages expire, and the first one that is executed after an outage is a tick."""
    fire(monkeypatch, found)
    assert sent == ["a tick"]


def test_beat_ends_with_the_line_if_redis_belongs_to_another_cluster(
    monkeypatch: pytest.MonkeyPatch, sent: list[str]
) -> None:
    with pytest.raises(SystemExit):
        fire(monkeypatch, ForeignClusterError(FOREIGN))
    assert (sent, PunctualScheduler.refusal) == ([], FOREIGN)


def test_beat_waits_while_the_database_is_an_older_state(monkeypatch: pytest.MonkeyPatch, sent: list[str]) -> None:
    fire(monkeypatch, DatabaseWentBackError("run `leasehold restore`"))
    assert sent == []
