"""The copy of the cluster's principals (the senders that have keys) that a process reads from the database."""

from collections.abc import Callable
from typing import Final

import msgspec

from scheduler.ports import ClusterRow, Store, StoredPrincipal

LOOK_SECONDS: Final = 1.0
"""Seconds after which a process compares its copy of the principals with the database again. A key that was removed is
refused after this time at the latest.
"""


class KnownPrincipals(msgspec.Struct, frozen=True):
    """A copy of the row about the cluster (`state`) and of the principals (name -> principal), which was read when the
    monotonic clock of this process was at `looked_at`.
    """

    looked_at: float
    state: ClusterRow
    principals: dict[str, StoredPrincipal]

    def now(self, monotonic: float) -> float:
        """Return the cluster time at which the monotonic clock of this process is at `monotonic`."""
        return self.state.now + monotonic - self.looked_at


def read_principals(store: Store, known: KnownPrincipals | None, monotonic: Callable[[], float]) -> KnownPrincipals:
    """Return an up-to-date copy of the row about the cluster and of the principals. The principals are read only if
    they changed since the copy `known` (None: there is no copy yet). Raises StoreUnavailableError if the database is
    unavailable.
    """
    state = store.read_cluster()
    before = known and (known.state.identity, known.state.principals_version)
    if known is not None and before == (state.identity, state.principals_version):
        rows = known.principals
    else:
        # Principals that change after `state` was read have another version, so the next read finds them.
        rows = {row.name: row for row in store.find_principals()}
    return KnownPrincipals(monotonic(), state, rows)
