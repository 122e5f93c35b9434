"""The reservations that a plan leaves pending, in queue order, in blocks that a later plan uses again where nothing
changed.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, compress
from typing import Final

import msgspec

from scheduler.model.waiting_codes import WaitingCode

Reason = tuple[WaitingCode, str]
"""The reason why a reservation waits: a waiting code and a sentence for people."""
MOST_NAMES: Final = 128
"""The largest number of reservations in one `WaitBlock`, which is a part of the queue of waiting reservations."""
MOST_MISSES: Final = 32
"""A limit for `Waits.cut`, which looks up each block of an earlier plan in the present queue. If more than this number
of consecutive blocks are not found unchanged, the rest of the queue is cut into new blocks.
"""


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """A reservation that the plan leaves pending: its id, a stable waiting code and a sentence for people."""

    reservation: str
    code: WaitingCode
    detail: str


class WaitBlock:
    """A part of the waiting reservations: at most MOST_NAMES, in queue order. A block never changes, so that a reader
    may keep what it computed for a block while the object is the same.

    If few reservations leave a block, the new block shares the names and reasons of the old one, and marks the
    reservations that stay. Speed: a copy of 128 names would be slower, because making and freeing it writes into the
    memory of each name.
    """

    __slots__ = ("_names", "_reasons", "_stays")

    def __init__(self, names: Sequence[str], reasons: Sequence[Reason], stays: bytes | None = None) -> None:
        """Make a block of the reservations in `names` that `stays` marks. `reasons`: the reason of each reservation in
        `names`, in the same order. `stays`: one byte for each of `names`; the byte is 0 if this reservation does not
        belong to the block. None: all of `names` belong to the block.
        """
        self._names, self._reasons, self._stays = tuple(names), tuple(reasons), stays

    @property
    def names(self) -> tuple[str, ...]:
        return self._names if self._stays is None else tuple(compress(self._names, self._stays))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why each reservation waits, in the order of `names`."""
        return self._reasons if self._stays is None else tuple(compress(self._reasons, self._stays))

    def __len__(self) -> int:
        return len(self._names) - (0 if self._stays is None else self._stays.count(0))


class Waits:
    """The reservations that a plan leaves pending, in queue order. Iteration yields a `Waiting` for each.

    Many reservations share one (code, detail) tuple, because they wait for the same reason.
    """

    __slots__ = ("_blocks", "_names", "_reasons")

    def __init__(self, names: Iterable[str] = (), reasons: Iterable[Reason] = ()) -> None:
        self._names: tuple[str, ...] | None = tuple(names)
        self._reasons: tuple[Reason, ...] | None = tuple(reasons)
        self._blocks: tuple[WaitBlock, ...] | None = None

    @classmethod
    def of_blocks(cls, blocks: Iterable[WaitBlock]) -> "Waits":
        """Return the waiting reservations of these blocks, which follow each other in the queue."""
        waits = cls()
        waits._names = waits._reasons = None
        waits._blocks = tuple(blocks)
        return waits

    @property
    def names(self) -> tuple[str, ...]:
        if self._names is None:
            self._names = tuple(chain.from_iterable(each.names for each in self._blocks or ()))
        return self._names

    @property
    def reasons(self) -> tuple[Reason, ...]:
        """Why each reservation waits, in the order of `names`."""
        if self._reasons is None:
            self._reasons = tuple(chain.from_iterable(each.reasons for each in self._blocks or ()))
        return self._reasons

    def __iter__(self) -> Iterator[Waiting]:
        return (Waiting(name, *reason) for name, reason in self.items())

    def __len__(self) -> int:
        return len(self._names) if self._names is not None else sum(map(len, self._blocks or ()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Waits):
            return NotImplemented
        return self.names == other.names and self.reasons == other.reasons

    __hash__ = None  # type: ignore[assignment]  # compared in tests, never a key

    def __repr__(self) -> str:
        return f"Waits({list(self)})"

    def items(self) -> Iterator[tuple[str, Reason]]:
        """Return an iterator over pairs (reservation id, reason)."""
        return zip(self.names, self.reasons, strict=True)

    def cut(self, known: Sequence[WaitBlock] = ()) -> tuple[WaitBlock, ...]:
        """Return the waiting reservations as blocks. `known`: the blocks of an earlier plan. Those of them whose
        reservations still wait for the same reasons are used again.

        The queue is cut once; later calls return the same blocks and do not use `known`.

        Speed: names and reasons are compared by slices, without a step of Python for each name.
        """
        if self._blocks is None:
            blocks = tuple(self._align(known))
            if known and len(blocks) > 8 + 4 * len(self) // MOST_NAMES:
                # Changes in the middle of the queue have left many small blocks: cut the queue again.
                blocks = tuple(self._cut(0, len(self)))
            self._blocks = blocks
            self._names = self._reasons = None  # the blocks contain them
        return self._blocks

    def _align(self, known: Sequence[WaitBlock]) -> Iterator[WaitBlock]:
        """Yield the blocks of the queue: those blocks of `known` that the queue still contains unchanged, and new
        blocks for the reservations between them.
        """
        names, reasons = self.names, self.reasons
        done, misses = 0, 0
        for block in known:
            if misses > MOST_MISSES:
                break
            known_names = block.names
            try:
                start = names.index(known_names[0], done, done + (misses + 2) * MOST_NAMES)
            except ValueError:
                start = len(names)
            end = start + len(known_names)
            if names[start:end] != known_names or reasons[start:end] != block.reasons:
                misses += 1
                continue
            yield from self._cut(done, start)
            yield block
            done, misses = end, 0
        yield from self._cut(done, len(names))

    def _cut(self, begin: int, end: int) -> Iterator[WaitBlock]:
        for start in range(begin, end, MOST_NAMES):
            stop = min(start + MOST_NAMES, end)
            yield WaitBlock(self.names[start:stop], self.reasons[start:stop])


NO_WAITS: Final = Waits()
"""The empty `Waits`: no reservation waits."""
