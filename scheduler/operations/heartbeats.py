"""Decides which heartbeats of static hosts count. See docs/reference/protocol.md, "Hosts".

A signed heartbeat is signed with the key of the principal that has the name of the slot and the role `host`. It has a
counter that increases, and the row of the slot has the highest counter so far. A heartbeat with a counter that is not
higher is a copy and does not count.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import msgspec

from scheduler.model.slots import Slot
from scheduler.ports import Heard, Meter, Store, StoredPrincipal
from scheduler.protocol.heartbeats import Heartbeat, is_heartbeat_of
from scheduler.protocol.signing import read_key

AccessMode = Literal["open", "warn", "signed"]
SAME_BEAT_SECONDS = 0.25
"""The most seconds by which the computed times of arrival of one heartbeat differ when it is read twice. A larger
difference shows two heartbeats.
"""
REFUSED = "leasehold_heartbeats_refused_total"


@dataclass
class HostKeys:
    """The principals of hosts with their keys, as this process has read them last. `mode`: the access mode of the
    cluster; in `signed`, unsigned heartbeats do not count. `version`: the version of the principals that were read.
    """

    mode: AccessMode = "open"
    at: float = 0.0
    cluster: str = ""
    version: int = -1
    principals: Mapping[str, StoredPrincipal] = field(default_factory=dict)

    def refresh(self, store: Store) -> None:
        """Read the principals of hosts from the database again, if any principal has changed."""
        state = store.read_cluster()
        if (state.identity, state.principals_version) != (self.cluster, self.version):
            hosts = (row for row in store.find_principals() if row.role == "host")
            self.principals = {row.name: row for row in hosts}
        self.at, self.cluster, self.version = state.now, state.identity, state.principals_version


def judge_heartbeats(keys: HostKeys, store: Store, meter: Meter, hosts: Sequence[Slot], heard: Heard) -> Heard:
    """Return `heard` without the heartbeats that do not count, because they are unsigned, wrongly signed or copied. The
    heartbeats that do not count are counted in the metrics by reason.
    """
    if heard.signed:
        keys.refresh(store)
    refused: dict[str, str] = {}
    now = store.now()
    for slot in hosts:
        if slot.id in heard.ages:
            reason = _find_reason(keys, slot, heard.signed.get(slot.id), now - heard.ages[slot.id])
            if reason is not None:
                refused[slot.id] = reason
    for reason in refused.values():
        meter.count(REFUSED, {"reason": reason})
    for reason, number in heard.ignored.items():
        meter.count(REFUSED, {"reason": reason}, number)
    return msgspec.structs.replace(
        heard,
        ages={name: age for name, age in heard.ages.items() if name not in refused},
        versions={name: version for name, version in heard.versions.items() if name not in refused},
        signed={name: beat for name, beat in heard.signed.items() if name not in refused},
    )


def _find_reason(keys: HostKeys, slot: Slot, beat: Heartbeat | None, at: float) -> str | None:
    """Return why the heartbeat of a slot, which arrived at the time `at`, does not count: `unsigned`, `signature` or
    `copy`. Return None if it counts. `beat` None: the heartbeat has no counter and signature.
    """
    if beat is None or beat.counter is None:
        return "unsigned" if keys.mode == "signed" else None
    row = keys.principals.get(slot.id)
    valid = [] if row is None else row.list_keys(keys.at)
    if not any(is_heartbeat_of(read_key(key), keys.cluster, slot.id, beat) for key in valid):
        return "signature"
    is_later = slot.last_seen is None or at > slot.last_seen + SAME_BEAT_SECONDS
    is_copy = beat.counter < slot.heartbeat or (beat.counter == slot.heartbeat and is_later)
    return "copy" if is_copy else None
