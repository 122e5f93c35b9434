"""Which blocks of waiting reservations the report of a tick adds and deletes in Redis. A block has the waiting codes of
some reservations that follow each other in the queue; scheduler/protocol/report.py defines its form.
"""

import secrets
from itertools import count
from typing import NamedTuple

import msgspec

from scheduler.model.waits import WaitBlock, Waits


class BlockChange(NamedTuple):
    """How a report changes the blocks in Redis. `fields`: the names of all blocks after the change, in queue order.
    `added`: name -> contents of each block to write. `removed`: the names of the blocks to delete.
    """

    fields: list[str]
    added: dict[str, bytes]
    removed: list[str]
    is_whole: bool
    """Whether `added` has all blocks of waiting reservations, because this process does not know the blocks in Redis.
    """


class WaitBlocks:
    """The blocks of waiting reservations that this process has written to Redis with its last report."""

    def __init__(self) -> None:
        self._fields: dict[WaitBlock, str] | None = None
        """Block -> the name under which Redis has it (a field of a hash), in queue order. Blocks that are not
        in Redis are not in the table. Blocks are compared by identity. None: it is not known which blocks Redis has.
        """
        self._numbers = count()
        self._name = secrets.token_hex(4)

    def forget(self) -> None:
        """Forget which blocks Redis has: the next report contains all of them."""
        self._fields = None

    def follow(self, waits: Waits) -> BlockChange:
        """Return the change to the stored blocks after which they contain exactly these waiting reservations."""
        is_whole, before = self._fields is None, self._fields or {}
        blocks = waits.cut(tuple(before))
        added = {block: f"{self._name}-{next(self._numbers)}" for block in blocks if block not in before}
        self._fields = {block: added.get(block) or before[block] for block in blocks}
        removed = [] if is_whole else sorted(field for block, field in before.items() if block not in self._fields)
        bodies = {field: _encode(block) for block, field in added.items()}
        return BlockChange(list(self._fields.values()), bodies, removed, is_whole)


def _encode(block: WaitBlock) -> bytes:
    different = list(dict.fromkeys(block.reasons))
    numbers = {reason: number for number, reason in enumerate(different)}
    of_each = [numbers[reason] for reason in block.reasons] if len(different) > 1 else []
    return msgspec.json.encode((block.names, different, of_each))
