"""Pauses between attempts."""

from leasehold.client.backoff import JITTER, Backoff, lengthen, shorten


def test_each_pause_is_twice_as_long_up_to_a_limit() -> None:
    backoff = Backoff(2.0, 15.0, draw=lambda: 0.0)
    assert [backoff.take() for _ in range(5)] == [2.0, 4.0, 8.0, 15.0, 15.0]
    backoff.reset()
    assert backoff.take() == 2.0


def test_randomness_makes_a_pause_shorter_and_never_longer() -> None:
    """So a limit that is derived from the nominal pauses holds."""
    backoff = Backoff(2.0, 15.0, draw=lambda: 1.0)
    assert [backoff.take() for _ in range(2)] == [2.0 * (1 - JITTER), 4.0 * (1 - JITTER)]
    assert all(10 * (1 - JITTER) <= shorten(10) <= 10 for _ in range(100))


def test_a_pause_that_the_server_requests_is_never_shortened() -> None:
    assert all(10 <= lengthen(10) <= 15 for _ in range(100))
