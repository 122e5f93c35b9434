"""The NoticeFeed in memory, for tests of the handling of notices."""

from collections.abc import Callable, Sequence
from itertools import count

from scheduler.ports import Message, Notice

MOST_AT_ONCE = 10


class MemoryFeed:
    """The NoticeFeed in memory. A message that was received is delivered again after `hidden_seconds`."""

    def __init__(self, clock: Callable[[], float], hidden_seconds: float = 30.0) -> None:
        self._clock, self._hidden_seconds = clock, hidden_seconds
        self._messages: dict[str, tuple[float, tuple[Notice, ...]]] = {}
        self._numbers = count(1)

    def put(self, *notices: Notice | None) -> None:
        """Add a message with these notices. None: a message that is no notice."""
        self._messages[str(next(self._numbers))] = (self._clock(), tuple(each for each in notices if each is not None))

    def receive(self, wait_seconds: float = 0.0) -> list[Message]:
        now = self._clock()
        due = [receipt for receipt, (due, _) in self._messages.items() if due <= now][:MOST_AT_ONCE]
        for receipt in due:
            self._messages[receipt] = (now + self._hidden_seconds, self._messages[receipt][1])
        return [Message(receipt, self._messages[receipt][1]) for receipt in due]

    def delete(self, receipts: Sequence[str]) -> None:
        for receipt in receipts:
            self._messages.pop(receipt, None)
