"""The fleet as compact JSON: a document with every slot, and deltas with the slots that changed.

In the JSON, each name of a pool, zone, state or account is replaced by its position in a table of names. The table only
grows while this process runs, so a number keeps its meaning. The row of a slot is `[id, pool, zone, state, flags,
account, share, account, share, ...]`: `flags` is a sum of CORDONED, INTERRUPTED and OVERFULL, and each lease on the
slot has the account of its reservation and the share of the slot that it fills (`find_share`).
"""

import gzip
import threading
from typing import Any, Final

import msgspec

from leasehold.web.feed import Changed, Feed
from leasehold.web.followed_view import FollowedView
from leasehold.web.server_sent import encode_event
from scheduler.model import history
from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot
from scheduler.protocol.visible import escape_json_bytes

TOPIC: Final = "fleet"
CORDONED, INTERRUPTED, OVERFULL = 1, 2, 4
REVOKING, CLAIMED = 1000, 2000
"""The number that a slot's row has for a lease is its share of the slot in percent (1 to 100). One of these numbers is
added if the lease is revoking or claimed, so that the page can read the state from the same number: 1050 is a revoking
lease with 50 %.
"""
MOST_SHOWN: Final = 12
"""The most leases that the row of a slot contains, because a box of the page cannot show more parts. If a slot has more
leases, the flag OVERFULL is set in its row.
"""
_LEVEL: Final = 4
_ENCODER: Final = msgspec.json.Encoder()


class FleetDocument:
    """Makes the document and the deltas from the view of a feed. Safe for threads.

    A row is encoded again only if its slot changed, and the document is compressed once for each revision.
    """

    def __init__(self, feed: Feed) -> None:
        self._feed, self._guard, self._packing = feed, threading.Lock(), threading.Lock()
        self._names: dict[str, int] = {}
        self._rows: dict[str, msgspec.Raw] = {}
        self._stale: set[str] | None = None
        """Ids of slots whose row must be encoded again; None: all."""
        self._sent_names = 0
        self._kept: tuple[int, bytes] = (-1, b"")
        feed.watch(self._note)
        feed.topic(TOPIC, self.encode)

    def read(self) -> tuple[int, bytes]:
        """Return the revision of the view and the document of all slots, compressed by gzip."""
        with self._packing:
            with self._guard, self._feed.lock:
                revision = self._feed.revision
                if revision == self._kept[0]:
                    return self._kept
                self._refresh(self._feed.view)
                body = {"revision": revision, "names": list(self._names), "slots": list(self._rows.values())}
            # The feed needs the other locks, and compressing takes tens of milliseconds.
            self._kept = revision, gzip.compress(escape_json_bytes(_ENCODER.encode(body)), _LEVEL, mtime=0)
            return self._kept

    def encode(self, changed: Changed) -> bytes | None:
        """Return the server-sent event with the changed slots, or None if no slot changed. If the whole view was read
        again, the event has no slots, and a page loads the document.
        """
        if changed.is_reset:
            return encode_event(TOPIC, {"revision": changed.revision, "reset": True})
        ids = changed.of("slots")
        if not ids:
            return None
        with self._guard:
            with self._feed.lock:
                self._refresh(self._feed.view)
            names, begin = list(self._names), self._sent_names
            self._sent_names = len(names)
            document = {
                "since": changed.since,
                "revision": changed.revision,
                "first_name": begin,
                "names": names[begin:],
                "slots": [self._rows[name] for name in ids if name in self._rows],
                "gone": [name for name in ids if name not in self._rows],
            }
        return encode_event(TOPIC, document)

    def _note(self, changed: Changed) -> None:
        with self._guard:
            if changed.is_reset:
                self._stale = None
            elif self._stale is not None:
                self._stale |= changed.of("slots")

    def _refresh(self, view: FollowedView) -> None:
        if self._stale is None:
            self._rows = {}
        for name in view.slots if self._stale is None else self._stale:
            slot = view.slots.get(name)
            if slot is None:
                self._rows.pop(name, None)
            else:
                self._rows[name] = msgspec.Raw(_ENCODER.encode(self._make_row(slot, view)))
        self._stale = set()

    def _make_row(self, slot: Slot, view: FollowedView) -> list[Any]:
        leases = view.leases_of(slot.id)
        flags = CORDONED * slot.cordoned | INTERRUPTED * (slot.interrupted_by is not None)
        flags |= OVERFULL * (len(leases) > MOST_SHOWN)
        row: list[Any] = [slot.id, *map(self._number, (slot.pool, slot.zone or "", slot.state)), flags]
        for owner, lease in leases[:MOST_SHOWN]:
            reservation = view.reservations.get(owner)
            account = reservation.request.account if reservation is not None else None
            row += [self._number(account or ""), find_share(slot, lease, len(leases))]
        return row

    def _number(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


def find_share(slot: Slot, lease: Lease, count: int) -> int:
    """Return the share of the slot that a lease fills, in percent (at least 1), see `scheduler.model.history`. For a
    lease that is being revoked or claimed, the number REVOKING or CLAIMED is added to the percentage.
    """
    share = history.find_share(slot, lease, count)
    extra = {"held": 0, "revoking": REVOKING, "claimed": CLAIMED}[lease.state]
    return max(1, min(100, round(100 * share))) + extra
