"""Heartbeats of hosts that are not launched."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from leasehold.common.heartbeats import Heartbeat


class Heard(msgspec.Struct, frozen=True):
    """What heartbeats say. `ages`: for how many seconds each slot's machine has been silent; who was never heard of
    is left out. `kept_for`: for how many seconds heartbeats have been kept where they are read. `versions`: the version
    (`operations.hosts.name_version`) that each host knows; a host whose heartbeat names none is left out. `signed`: the
    heartbeats that have a counter and a MAC. The pulse does not check them: `operations.heartbeats` does.
    """

    ages: dict[str, float]
    kept_for: float
    versions: dict[str, str] = {}
    signed: dict[str, Heartbeat] = {}


class Heartbeats(Protocol):
    """The heartbeats of static hosts, on a path that waits behind no queue. Losing them fails nobody."""

    def listen(self, hosts: Mapping[str, str]) -> Heard:
        """What is known of these slots, each given with the machine that it belongs to: no other is heard.

        Ages are counted by the keeper's clock, not by any host's; a heartbeat from the future is none. Looking
        changes nothing, so any number of processes may. Raises ViewUnavailableError.
        """
