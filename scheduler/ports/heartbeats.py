"""The port that reads the heartbeats of hosts in static pools."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from leasehold.common.heartbeats import Heartbeat


class Heard(msgspec.Struct, frozen=True):
    """The heartbeats that were read.

    `ages`: seconds since the last heartbeat of each slot's machine; slots without a heartbeat are missing.
    `kept_for`: seconds for which the storage has kept heartbeats (short after Redis was flushed).
    `versions`: the version (`heartbeat_intake.name_version`) that each host knows; hosts that sent none are missing.
    `signed`: the heartbeats with a counter and a MAC. The port does not verify them: `operations.heartbeats` does.
    """

    ages: dict[str, float]
    kept_for: float
    versions: dict[str, str] = {}
    signed: dict[str, Heartbeat] = {}


class Heartbeats(Protocol):
    """The heartbeats of static hosts. They do not pass through a queue. Losing them never fails a host."""

    def listen(self, hosts: Mapping[str, str]) -> Heard:
        """Return the heartbeats of these slots, each from the machine that it is given with. Other machines are
        ignored.

        The storage's clock counts the ages, not the clock of a host; a heartbeat from the future is ignored. Reading
        changes nothing, so any number of processes may read. Raises ViewUnavailableError.
        """
