"""Watch one reservation. A notice on the reservation's channel is a hint to read its row again. Notices may be lost, so
only the row is reliable.
"""

from types import TracebackType
from typing import Final, Self

from leasehold.client.models import Reservation
from leasehold.client.ports import Hints, Joined, Reader

POLL_SECONDS: Final = 2.0
"""Seconds between two reads of a watched row if no notice arrives."""


class Watch:
    """A watch that reports the present row of one reservation. Use it as a context manager in one thread."""

    def __init__(self, hints: Hints, reader: Reader, reservation: str) -> None:
        self._hints, self._reader, self.reservation = hints, reader, reservation

    def __enter__(self) -> Self:
        self._hints.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hints.close()

    def read(self) -> Reservation | None:
        """Return the present row of the reservation, or None if the view does not have it. Raise Unavailable if the
        view is not valid.
        """
        return self.read_joined().row

    def read_joined(self) -> Joined:
        """Return a Joined with two fields: (1) `row`: the present row of the reservation; None if the view does not
        have it. (2) `missing`: the ids of the leased slots whose machine is unknown, because the view does not have the
        slot or has a row of another machine. Raise Unavailable if the view is not valid.
        """
        found = self._reader.find_joined([self.reservation], self._hints.expected)[0]
        self._hints.note(found)
        return found

    def wait_for_hint(self, seconds: float) -> None:
        """Return when a notice that the reservation's row has changed arrives, or when `seconds` have passed."""
        self._hints.wait(seconds)
