"""The waiting reservations of the last plan in queue order, in blocks that later plans use again."""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Any, Final

from scheduler.model.waits import MOST_NAMES, Reason, WaitBlock

Key = tuple[Any, float, int, str]
"""The position of a reservation in the queue: its rank, its time of creation, its sequence number and its id."""
FEWEST_NAMES: Final = MOST_NAMES // 4
"""A block with fewer reservations than this is joined with the next block if that one is small too."""
MOST_STALE: Final = 1000
"""A heap removes the keys of reservations that have left the queue if it has more of them than this number, and more
than reservations wait.
"""


class _Section:
    """The reservations of one block, in queue order. After a change the block is made again when it is read."""

    __slots__ = ("block", "keys", "names", "reasons")

    def __init__(
        self, keys: list[Key], names: list[str], reasons: list[Reason], block: WaitBlock | None = None
    ) -> None:
        self.keys, self.names, self.reasons, self.block = keys, names, reasons, block

    def make_block(self) -> WaitBlock:
        if self.block is None:
            self.block = WaitBlock(self.names, self.reasons)
        return self.block


class KeptQueue:
    """The waiting reservations in queue order, each with the reason why it waits."""

    def __init__(self, keys: Sequence[Key], blocks: Iterable[WaitBlock]) -> None:
        """Start with the reservations of these blocks. `keys`: their positions, smallest first."""
        self._sections: list[_Section] = []
        start = 0
        for block in blocks:
            end = start + len(block.names)
            self._sections.append(_Section(list(keys[start:end]), list(block.names), list(block.reasons), block))
            start = end
        self._lasts = [each.keys[-1] for each in self._sections]
        """The last key of each section."""

    def cut(self) -> list[WaitBlock]:
        """Return the blocks of the queue. Blocks without a change since the last call are the same objects."""
        return [each.block or each.make_block() for each in self._sections]

    def insert(self, key: Key, reason: Reason) -> None:
        """Add a reservation at its position."""
        # Speed: most new reservations are the last ones.
        is_last = not self._lasts or self._lasts[-1] < key
        at = len(self._lasts) if is_last else bisect_left(self._lasts, key)
        if at == len(self._sections) and at and len(self._sections[-1].keys) < MOST_NAMES:
            at -= 1
        if at == len(self._sections):
            self._sections.append(_Section([key], [key[3]], [reason]))
            self._lasts.append(key)
            return
        section = self._sections[at]
        place = len(section.keys) if is_last else bisect_left(section.keys, key)
        section.keys.insert(place, key)
        section.names.insert(place, key[3])
        section.reasons.insert(place, reason)
        section.block = None
        if len(section.keys) > MOST_NAMES:
            self._split(at)
        else:
            self._lasts[at] = section.keys[-1]

    def renew(self, known: Key, key: Key, reason: Reason) -> bool:
        """Replace the key of a reservation by an equal one. Return False, without a change, if position or reason
        differ.
        """
        if known != key:
            return False
        _, section, place = self._find(key)
        if section.reasons[place] != reason:
            return False
        section.keys[place] = key
        return True

    def _find(self, key: Key) -> tuple[int, _Section, int]:
        at = bisect_left(self._lasts, key)
        section = self._sections[at]
        place = bisect_left(section.keys, key)
        assert section.keys[place] == key, "only reservations of the queue are looked up"  # noqa: S101
        return at, section, place

    def remove(self, key: Key) -> None:
        """Remove the reservation at this position."""
        at, section, place = self._find(key)
        del section.keys[place], section.names[place], section.reasons[place]
        section.block = None
        if not section.keys:
            del self._sections[at], self._lasts[at]
            return
        self._lasts[at] = section.keys[-1]
        if len(section.keys) < FEWEST_NAMES and at + 1 < len(self._sections):
            self._join(at)

    def _split(self, at: int) -> None:
        section, middle = self._sections[at], MOST_NAMES // 2
        first = _Section(section.keys[:middle], section.names[:middle], section.reasons[:middle])
        section.keys, section.names = section.keys[middle:], section.names[middle:]
        section.reasons = section.reasons[middle:]
        self._sections.insert(at, first)
        self._lasts[at : at + 1] = [first.keys[-1], section.keys[-1]]

    def _join(self, at: int) -> None:
        section, following = self._sections[at : at + 2]
        if len(following.keys) < MOST_NAMES // 2:
            section.keys += following.keys
            section.names += following.names
            section.reasons += following.reasons
            del self._sections[at + 1], self._lasts[at]


class KeyHeap:
    """The keys of reservations, smallest first. The key of a reservation that has left the queue is removed when it
    would be returned.
    """

    __slots__ = ("_keys", "_present")

    def __init__(self, present: dict[str, Key]) -> None:
        """Start with an empty heap. `present`: by id, the present key of each reservation in the queue. Other keys in
        the heap are outdated.
        """
        self._keys: list[Key] = []
        self._present = present

    def extend(self, keys: Iterable[Key]) -> None:
        """Add many keys, smallest first, to an empty heap."""
        self._keys += keys  # a sorted list is a heap

    def push(self, key: Key) -> None:
        """Add a key."""
        heappush(self._keys, key)
        if len(self._keys) > 2 * len(self._present) + MOST_STALE:
            self._keys = [each for each in self._keys if self._present.get(each[3]) is each]
            heapify(self._keys)

    @property
    def first(self) -> Key | None:
        """The smallest key of a reservation that is in the queue; None if there is none."""
        while self._keys and self._present.get(self._keys[0][3]) is not self._keys[0]:
            heappop(self._keys)
        return self._keys[0] if self._keys else None
