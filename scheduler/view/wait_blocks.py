"""Computes which blocks of waiting reservations a tick's report adds to Redis and deletes there. See
leasehold/common/report.py for the format of a block.

Names and reasons are compared with those of the last report in whole slices, because a step of Python for each name
would be slow.
"""

import secrets
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Final, NamedTuple

import msgspec

from scheduler.model.decisions import Reason, Waits

MOST_NAMES: Final = 128
"""The most reservations in one block."""
MOST_MISSES: Final = 32
"""The most blocks in a row that may have changed. After them, the rest of the queue is divided into new blocks."""


class _Block(NamedTuple):
    field: str
    names: tuple[str, ...]
    reasons: tuple[Reason, ...]


class BlockChange(NamedTuple):
    """How a report changes the blocks in Redis. `fields`: the names of all blocks after the change, in queue order."""

    fields: list[str]
    added: dict[str, bytes]
    removed: list[str]
    is_whole: bool
    """Whether all blocks are written again, because it is not known which blocks Redis has."""


class WaitBlocks:
    """The blocks of waiting reservations that this process has written to Redis with its last report."""

    def __init__(self) -> None:
        self._blocks: list[_Block] | None = None
        self._numbers = count()
        self._name = secrets.token_hex(4)

    def forget(self) -> None:
        """Assume that Redis has no blocks, so that the next report writes all of them."""
        self._blocks = None

    def follow(self, waits: Waits) -> BlockChange:
        """Return the change after which the blocks in Redis contain exactly these waiting reservations."""
        known = self._blocks
        blocks = list(self._align(known or [], waits))
        if known is not None and len(blocks) > 8 + 4 * len(waits) // MOST_NAMES:
            # Changes in the middle of the queue have left many small blocks: cut the queue again.
            blocks = list(self._cut(waits.names, waits.reasons))
        before, after = {each.field for each in known or ()}, {each.field for each in blocks}
        added = {each.field: _encode(each) for each in blocks if each.field not in before}
        self._blocks = blocks
        return BlockChange([each.field for each in blocks], added, sorted(before - after), is_whole=known is None)

    def _align(self, known: Sequence[_Block], waits: Waits) -> Iterator[_Block]:
        """Yield the blocks for these waiting reservations, in queue order: known blocks where the queue has not
        changed, new blocks in between.
        """
        names, reasons = waits.names, waits.reasons
        done, misses = 0, 0
        for block in known:
            if misses > MOST_MISSES:
                break
            try:
                start = names.index(block.names[0], done, done + (misses + 2) * MOST_NAMES)
            except ValueError:
                start = len(names)
            end = start + len(block.names)
            if names[start:end] != block.names or reasons[start:end] != block.reasons:
                misses += 1
                continue
            yield from self._cut(names[done:start], reasons[done:start])
            yield block
            done, misses = end, 0
        yield from self._cut(names[done:], reasons[done:])

    def _cut(self, names: Sequence[str], reasons: Sequence[Reason]) -> Iterator[_Block]:
        for start in range(0, len(names), MOST_NAMES):
            end = start + MOST_NAMES
            yield _Block(f"{self._name}-{next(self._numbers)}", tuple(names[start:end]), tuple(reasons[start:end]))


def _encode(block: _Block) -> bytes:
    different = list(dict.fromkeys(block.reasons))
    numbers = {reason: number for number, reason in enumerate(different)}
    of_each = [numbers[reason] for reason in block.reasons] if len(different) > 1 else []
    return msgspec.json.encode((block.names, different, of_each))
