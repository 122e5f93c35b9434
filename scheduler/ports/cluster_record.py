"""The cluster record in Redis: the identity of the cluster, and the highest numbers that were used."""

from typing import Protocol

import msgspec


class Remembered(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the cluster record. An empty Redis gives the default values."""

    identity: str | None = None
    """The id of the cluster that this Redis belongs to."""
    term: int = 0
    token: int = 0
    is_restoring: bool = False
    """Whether a restore is under way, or was interrupted."""


class ClusterRecord(Protocol):
    """The record of the cluster in Redis. Every method raises ViewUnavailableError when Redis cannot be reached."""

    def read(self) -> Remembered:
        """Return the contents of the record. Contents that cannot be read count as missing."""

    def keep(self, identity: str, term: int, token: int) -> str:
        """Write the identity if none is stored, and raise the stored term and token to these values. Return the stored
        identity, which may be another one: then nothing is raised.
        """

    def begin_restore(self) -> None:
        """Mark that a restore is under way. No process of the cluster works until `end_restore`."""

    def end_restore(self, identity: str, term: int, token: int) -> None:
        """Replace the contents of the record by these values and remove the mark of `begin_restore`."""
