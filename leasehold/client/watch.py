"""Watch one reservation. A notice on the reservation's channel is a hint to read its row again. Notices may be lost, so
only the row is reliable.
"""

from types import TracebackType
from typing import Self

from leasehold.client.blocking import Run, blocks
from leasehold.client.core.watch import AsyncWatch


class Watch:
    """A watch that reports the present row of one reservation. Use it as a context manager in one thread."""

    def __init__(self, core: AsyncWatch, run: Run) -> None:
        self._core, self._run = core, run
        self.reservation = core.reservation

    def __enter__(self) -> Self:
        self._run(self._core.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._core.__aexit__(kind, error, trace))

    read = blocks(AsyncWatch.read)
    read_joined = blocks(AsyncWatch.read_joined)
    wait_for_hint = blocks(AsyncWatch.wait_for_hint)
