"""What is kept of the cluster outside its database: whose Redis this is, and the highest numbers that were seen."""

from typing import Protocol

import msgspec


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """What Redis remembers of the cluster; an empty Redis remembers nothing."""

    identity: str | None = None
    """The cluster that this Redis belongs to."""
    term: int = 0
    token: int = 0
    is_restoring: bool = False
    """Whether a restore is under way, or was cut off."""


class ClusterRecord(Protocol):
    """The record of the cluster in Redis. Every method raises ViewUnavailableError when Redis cannot be reached."""

    def read(self) -> Remembered:
        """What is remembered. Contents that cannot be read count as missing."""

    def keep(self, identity: str, term: int, token: int) -> str:
        """Write the identity where none is kept, and raise term and token to these values; the identity that is kept.

        Nothing is raised when the kept identity is another one.
        """

    def begin_restore(self) -> None:
        """Mark that a restore is under way: no process of the cluster works until it is over."""

    def end_restore(self, identity: str, term: int, token: int) -> None:
        """Replace everything that was remembered by these values, and take the mark away."""
