"""Sessions of the console that were logged out, in every store."""

from scheduler.ports import Store
from tests.builders import NOW
from tests.store.conftest import Clock, Opener


def end(store: Store, session: str, until: float) -> None:
    with store.transaction() as transaction:
        transaction.end_session(session, until)


def test_an_ended_session_is_known_to_every_process(reopen: Opener) -> None:
    end(reopen(), "s1", NOW + 60)
    end(reopen(), "s1", NOW + 60)
    assert [reopen().is_session_ended(each) for each in ("s1", "s2", "")] == [True, False, False]


def test_a_session_is_forgotten_after_its_cookie_became_too_old(store: Store, clock: Clock) -> None:
    end(store, "s1", NOW + 60)
    end(store, "s2", NOW + 600)
    clock.now += 120
    end(store, "s3", NOW + 600)
    assert [store.is_session_ended(each) for each in ("s1", "s2", "s3")] == [False, True, True]
