"""The waiting reservations of the last plan in queue order, in blocks. Later plans use unchanged blocks again.

A block (WaitBlock) is an immutable list of reservations with the reason why each of them waits. A section keeps the
same reservations in lists that can be changed, and makes the block from them.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import compress
from typing import Any, Final

from scheduler.model.waits import MOST_NAMES, Reason, WaitBlock

Key = tuple[Any, float, int, str]
"""The position of a reservation in the queue: (its rank, its time of creation, its sequence number, its id). The
smallest is first.
"""
FEWEST_NAMES: Final = MOST_NAMES // 4
"""A block with fewer reservations than this is joined with the next block, if the next block is small too."""
MOST_STALE: Final = 1000
"""A heap removes the keys of reservations that have left the queue when it contains more keys than twice the number of
waiting reservations plus this number.
"""


class _Section:
    """A part of the queue: reservations in queue order, from which `make_block` makes one WaitBlock. A change of the
    section makes its block invalid, and the next call of `make_block` makes a new block.

    Speed: a reservation that leaves stays in the lists `keys`, `names` and `reasons`, and is only marked in `stays`. So
    the new block and the old one share the lists of names and reasons, until a reservation is added to the section.
    """

    __slots__ = ("ages", "block", "count", "keys", "names", "reasons", "stays")

    def __init__(
        self, keys: list[Key], names: Sequence[str], reasons: Sequence[Reason], block: WaitBlock | None = None
    ) -> None:
        self.keys, self.names, self.reasons, self.block = keys, names, reasons, block
        self.count, self.stays = len(keys), bytearray(b"\1" * len(keys))
        """`count`: the number of reservations. `stays`: one byte for each entry of the lists; 0 if its reservation has
        left.
        """
        self.ages: array[float] | None = None
        """The times of creation in `keys`, for a fast search. None: `find` has to search in `keys`, because the keys
        have different ranks, and so their times need not ascend; or because the lists were changed by `_insert` or
        `_join`.

        Speed: the times lie together in memory, while each key lies in another place.
        """
        self.note_ages()

    def make_block(self) -> WaitBlock:
        """Return the block of this section. The same block is returned until the section changes."""
        if self.block is None:
            if not isinstance(self.names, tuple):
                self.names, self.reasons = tuple(self.names), tuple(self.reasons)
            stays = bytes(self.stays) if self.count < len(self.keys) else None
            self.block = WaitBlock(self.names, self.reasons, stays)
        return self.block

    def find(self, key: Key, begin: int = 0) -> int:
        """Return the index of a reservation in the section's lists. `key`: its position in the queue. It must be in the
        section, at the index `begin` or later.
        """
        keys, ages = self.keys, self.ages
        place = begin if ages is None else bisect_left(ages, key[1], begin)
        if keys[place] is not key:
            place = bisect_left(keys, key, place)
            assert keys[place] == key and self.stays[place], "only reservations of the queue are looked up"  # noqa: S101, PT018
        return place

    def open(self) -> tuple[list[Key], list[str], list[Reason]]:
        """Return the lists `keys`, `names` and `reasons`, without the reservations that have left. The caller may add
        or remove entries, the same ones in all three lists, and then calls `note_change`.
        """
        if self.count < len(self.keys):
            self.keys = list(compress(self.keys, self.stays))
        if self.count < len(self.names) or not (isinstance(self.names, list) and isinstance(self.reasons, list)):
            self.names = list(compress(self.names, self.stays))
            self.reasons = list(compress(self.reasons, self.stays))
        return self.keys, self.names, self.reasons

    def note_change(self) -> None:
        """Record that the lists have changed: the section's block and its `ages` are not valid any more."""
        self.count, self.stays, self.block = len(self.keys), bytearray(b"\1" * len(self.keys)), None
        self.ages = None

    def note_ages(self) -> None:
        """Set `ages` to the times of creation in `keys`. Set it to None if the keys do not all have the same rank, or
        if there are no keys.
        """
        keys = self.keys
        is_level = bool(keys) and keys[0][0] == keys[-1][0]
        self.ages = array("d", [key[1] for key in keys]) if is_level else None


class KeptQueue:
    """The waiting reservations in queue order, each with the reason why it waits."""

    def __init__(self, keys: Sequence[Key], blocks: Iterable[WaitBlock]) -> None:
        """Start with the reservations of these blocks. `keys`: the positions of all these reservations, smallest
        first.
        """
        self._sections: list[_Section] = []
        start = 0
        for block in blocks:
            end = start + len(block)
            self._sections.append(_Section(list(keys[start:end]), block.names, block.reasons, block))
            start = end
        self._lasts = [each.keys[-1] for each in self._sections]
        """The last key of each section. A key belongs to the first section whose last key is not less than the key.
        The reservation of a last key may have left the queue.
        """

    def cut(self) -> list[WaitBlock]:
        """Return the blocks of the queue. A block that has not changed since the last call is the same object."""
        return [each.block or each.make_block() for each in self._sections]

    def insert_all(self, keys: Sequence[Key], reasons: Sequence[Reason]) -> None:
        """Add reservations at their positions. `keys`: the positions, smallest first; `reasons`: why each of these
        reservations waits.
        """
        at = bisect_left(keys, self._lasts[-1]) if self._lasts else 0
        for key, reason in zip(keys[:at], reasons, strict=False):
            self._insert(key, reason)
        while at < len(keys):  # speed: most new reservations are the last ones
            if not self._sections or self._sections[-1].count >= MOST_NAMES:
                self._sections.append(_Section([], [], []))
                self._lasts.append(keys[at])
            section = self._sections[-1]
            known_keys, names, known_reasons = section.open()
            end = at + MOST_NAMES - len(known_keys)
            known_keys += keys[at:end]
            names += [key[3] for key in keys[at:end]]
            known_reasons += reasons[at:end]
            section.note_change()
            section.note_ages()
            self._lasts[-1], at = known_keys[-1], end

    def _insert(self, key: Key, reason: Reason) -> None:
        """Add one reservation at the position `key`. The caller makes sure that the last key of the queue is not less
        than `key`, so that a section for `key` exists.
        """
        at = bisect_left(self._lasts, key)
        section = self._sections[at]
        keys, names, reasons = section.open()
        place = bisect_left(keys, key)
        keys.insert(place, key)
        names.insert(place, key[3])
        reasons.insert(place, reason)
        section.note_change()
        if section.count > MOST_NAMES:
            self._split(at)

    def renew(self, known: Key, key: Key, reason: Reason) -> bool:
        """Replace the key `known` of a reservation by the equal object `key`, and return True. Return False, and change
        nothing, if the keys differ or the reservation has another reason than `reason`.
        """
        if known != key:
            return False
        section = self._sections[bisect_left(self._lasts, key)]
        place = section.find(key)
        if section.reasons[place] != reason:
            return False
        section.keys[place] = key
        return True

    def remove_all(self, keys: list[Key]) -> None:
        """Remove the reservations with these positions from the queue. The list `keys` is sorted by this call."""
        keys.sort()  # speed: a section is looked up once for all of its keys
        lasts, changed = self._lasts, list[int]()
        at, place, section = -1, 0, None
        for key in keys:
            if section is None or lasts[at] < key:
                at += 1  # speed: often it is the next section
                if lasts[at] < key:
                    at = bisect_left(lasts, key, at)
                section = self._sections[at]
                section.block = None
                changed.append(at)
                place = 0
            place = section.find(key, place)
            section.stays[place] = 0
            section.count -= 1
        for at in reversed(changed):
            count = self._sections[at].count
            if not count:
                del self._sections[at], self._lasts[at]
            elif count < FEWEST_NAMES and at + 1 < len(self._sections):
                self._join(at)

    def _split(self, at: int) -> None:
        section, middle = self._sections[at], MOST_NAMES // 2
        keys, names, reasons = section.open()
        parts = [_Section(keys[part], names[part], reasons[part]) for part in (slice(middle), slice(middle, None))]
        self._sections[at : at + 1] = parts
        self._lasts[at : at + 1] = [each.keys[-1] for each in parts]

    def _join(self, at: int) -> None:
        section, following = self._sections[at : at + 2]
        if following.count < MOST_NAMES // 2:
            keys, names, reasons = section.open()
            more_keys, more_names, more_reasons = following.open()
            keys += more_keys
            names += more_names
            reasons += more_reasons
            section.note_change()
            del self._sections[at + 1], self._lasts[at]


class KeyHeap:
    """The keys of the waiting reservations of one demand, smallest first. The key of a reservation that has left the
    queue is removed when it becomes the first one.

    Speed: almost every new key is the largest one. It is appended to a sorted list, which is read from its beginning,
    so that few keys go through a heap.
    """

    __slots__ = ("_begin", "_early", "_keys", "_present")

    def __init__(self, present: dict[str, Key]) -> None:
        """Start without keys. `present`: reservation id -> its key, for all reservations in the queue. A key that is
        not in this table any more is outdated.
        """
        self._keys: list[Key] = []
        """Keys, smallest first. The keys before the index `_begin` are removed."""
        self._begin = 0
        self._early: list[Key] = []
        """A heap of the keys that were less than the last one of `_keys` when they were added, and so could not be
        appended to `_keys`.
        """
        self._present = present

    def push_all(self, keys: list[Key]) -> None:
        """Add these keys. The list `keys` is sorted by this call."""
        keys.sort()
        at = bisect_left(keys, self._keys[-1]) if self._keys else 0
        for key in keys[:at]:
            heappush(self._early, key)
        self._keys += keys[at:]
        if len(self._keys) + len(self._early) > 2 * len(self._present) + MOST_STALE:
            self._keys = sorted(each for each in self._keys + self._early if self._present.get(each[3]) is each)
            self._begin, self._early = 0, []

    @property
    def first(self) -> Key | None:
        """The smallest key of a reservation that is in the queue; None if no such key was added."""
        keys, begin = self._keys, self._begin
        if begin < len(keys) and not self._early and self._present.get((key := keys[begin])[3]) is key:
            return key  # speed: almost always the first key is that of a reservation that waits
        return self._find_first(keys, self._early, self._present, begin)

    def find_next(self, first: Key) -> Key | None:
        """Return the key that follows `first`; None if there is none. `first` was the smallest key until its
        reservation left the queue.
        """
        keys, begin = self._keys, self._begin
        if begin < len(keys) and keys[begin] is first:
            begin = self._begin = begin + 1  # speed: it is not looked up once more
        if begin < len(keys) and not self._early and self._present.get((key := keys[begin])[3]) is key:
            return key
        return self._find_first(keys, self._early, self._present, begin)

    def _find_first(self, keys: list[Key], early: list[Key], present: dict[str, Key], begin: int) -> Key | None:
        while begin < len(keys) and present.get(keys[begin][3]) is not keys[begin]:
            begin += 1
        if begin > MOST_STALE:
            del keys[:begin]
            begin = 0
        self._begin = begin
        while early and present.get(early[0][3]) is not early[0]:
            heappop(early)
        if early and (begin == len(keys) or early[0] < keys[begin]):
            return early[0]
        return keys[begin] if begin < len(keys) else None
