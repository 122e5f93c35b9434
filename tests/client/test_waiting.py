"""When a wait ends because no slot and no launch could serve its reservation: by the reports of ticks."""

import pytest

from leasehold import CannotBeServed, Ended, LeaseholdError, NotAnswered, Unavailable
from leasehold.client.models import LastWait, Reservation, Wait
from leasehold.client.ports import Joined
from leasehold.client.waiting import STANDS_SECONDS, Explain, Look, Pause, PhaseWait
from scheduler.model.transitions import Phase

NEVER, NO_POOL, FULL = "never_fits", "no_pool", "at_max_slots"
LATER = 100.0 + STANDS_SECONDS
PENDING = Reservation(id="r1", phase="pending")
NO_TICK = LastWait()
NO_WAIT = LastWait(None, 100.0)


@pytest.fixture(autouse=True)
def _reads_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("waiting.FIRST_CODE_SECONDS", "waiting.POLL_SECONDS"):
        monkeypatch.setattr(f"leasehold.client.{name}", 0.0)


def reported(code: str, at: float) -> LastWait:
    return LastWait(Wait(code=code, detail=f"detail at {at:g}"), at)


def play(
    *reports: LastWait | LeaseholdError, phase: Phase = "pending", wait_anyway: bool = False
) -> LeaseholdError | None:
    """Carry out a wait that finds one of these reports at each read of the waiting code, and the row in `phase` after
    the last one. Return the error that ends the wait; None if it goes on.
    """
    left = list(reports)
    last = Reservation(id="r1", phase=phase)
    wait = PhaseWait("r1", frozenset({"leased"}), None, renew=False, wait_anyway=wait_anyway, now=lambda: 0.0)
    steps = wait.steps()
    try:
        step = next(steps)
        for _ in range(3 * len(reports) + 3):
            match step:
                case Look():
                    step = steps.send(Joined(PENDING if left else last))
                case Explain():
                    found = left.pop(0) if left else NO_TICK
                    step = steps.throw(found) if isinstance(found, LeaseholdError) else steps.send(found)
                case Pause():
                    step = steps.send(None)
    except LeaseholdError as error:
        return error
    return None


@pytest.mark.parametrize(
    "reports",
    [
        [reported(NEVER, 100), reported(NEVER, LATER)],
        [reported(NO_POOL, 100), reported(NO_POOL, LATER + 60)],
        # Both codes have the same consequence.
        [reported(NO_POOL, 100), reported(NEVER, LATER)],
        # The same tick is read several times, and ticks follow each other quickly.
        [reported(NEVER, 100), reported(NEVER, 100), reported(NEVER, 101), reported(NEVER, LATER)],
        # The reservation could be served once.
        [reported(NEVER, 90), reported(FULL, 95), reported(NEVER, 100), reported(NEVER, LATER)],
    ],
)
def test_a_wait_that_two_ticks_find_in_vain_ends_with_the_newest_reason(reports: list[LastWait]) -> None:
    error = play(*reports)
    assert isinstance(error, CannotBeServed)
    why = reports[-1].why
    assert why is not None
    assert (error.reservation, error.code, error.reason) == ("r1", why.code, why.detail)
    assert str(error) == f"r1 cannot be served: {why}"


@pytest.mark.parametrize(
    "reports",
    [
        # No tick has looked at the reservation, or none runs any more.
        [NO_TICK] * 3,
        [NO_WAIT] * 3,
        [reported(NEVER, 100)] * 9,
        # Rules that were applied, or hosts that joined, come into force.
        [reported(NEVER, 100), reported(NEVER, LATER - 0.1)],
        [reported(NEVER, 100), NO_WAIT],
        [reported(NEVER, 100), reported(FULL, LATER), reported(NEVER, LATER + 1)],
        # A report that cannot be read is no evidence.
        [reported(NEVER, 100), Unavailable("away"), reported(NEVER, LATER)],
        # After a restore cluster time may be earlier.
        [reported(NEVER, 5000), reported(NEVER, 100), reported(NEVER, 101)],
        # Other codes change by themselves.
        [reported(FULL, 100), reported(FULL, LATER + 60)],
    ],
)
def test_a_wait_goes_on_unless_two_ticks_find_it_in_vain(reports: list[LastWait | LeaseholdError]) -> None:
    assert play(*reports) is None


def test_a_wait_may_go_on_in_vain() -> None:
    assert play(reported(NEVER, 100), reported(NEVER, LATER), wait_anyway=True) is None


def test_the_end_of_a_reservation_has_the_code_that_was_read_before() -> None:
    error = play(reported(FULL, 100), phase="cancelled")
    assert isinstance(error, Ended)
    assert (error.phase, error.code, str(error)) == ("cancelled", FULL, f"r1 is cancelled (it waited with {FULL})")
    unread = play(phase="cancelled")
    assert isinstance(unread, Ended)
    assert (unread.code, str(unread)) == (None, "r1 is cancelled")


def test_the_code_is_read_seldom_while_the_reservation_could_be_served(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("leasehold.client.waiting.time.monotonic", lambda: now)
    monkeypatch.setattr("leasehold.client.waiting.FIRST_CODE_SECONDS", 1.0)
    monkeypatch.setattr("leasehold.client.waiting.POLL_SECONDS", 2.0)
    steps = PhaseWait("r1", frozenset({"leased"}), None, renew=False, wait_anyway=False, now=lambda: 0.0).steps()
    step, read_at = next(steps), []
    while now < 120:
        match step:
            case Look():
                step = steps.send(Joined(PENDING))
            case Explain():
                read_at.append(now)
                step = steps.send(reported(FULL, now))
            case Pause(seconds):
                now += seconds
                step = steps.send(None)
    assert read_at == [1, 3, 7, 15, 31, 61, 91]


def test_a_timeout_has_no_reason_if_the_report_cannot_be_read() -> None:
    steps = PhaseWait("r1", frozenset({"leased"}), 0.0, renew=False, wait_anyway=True, now=lambda: 0.0).steps()
    assert next(steps) == Look()
    assert steps.send(Joined(PENDING)) == Explain()
    with pytest.raises(NotAnswered, match=r"r1 is still pending after \d+\.\d s$") as caught:
        steps.throw(Unavailable("away"))
    assert (caught.value.code, caught.value.reason) == (None, "")
