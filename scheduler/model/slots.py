"""Slots: rows that each hold at most one machine at a time. A slot is reused, and each launch on it starts a
new epoch.
"""

from typing import Any, Literal

import msgspec

from scheduler.model.events import Event
from scheduler.model.transitions import SLOT_MOVES, Cause, SlotState, check_move

Market = Literal["spot", "on-demand"]
ADOPTED = "adopted"
"""The `launch_reason` of a machine that this cluster did not launch but found by its tags."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as the cloud reports it: a copy of the state of an EC2 instance."""

    id: str
    state: Literal["pending", "running", "stopping", "terminated"]
    address: str | None = None
    type: str | None = None
    zone: str | None = None
    market: Market | None = None
    launched_at: float | None = None
    healthy: bool | None = None
    """Result of EC2's status checks; None while it is unknown."""
    interrupted: bool = False
    """Whether the cloud is ending this machine to take its spot capacity back."""
    slot: str | None = None
    pool: str | None = None
    launch_id: str | None = None
    offering: str | None = None
    cluster_id: str | None = None
    """Identity of the cluster that launched the machine. None: an earlier version launched it and stored no
    identity.
    """
    highest_term: int = 0
    highest_token: int = 0
    """Highest fencing token at the launch. This field and the six before it are read from the machine's tags."""


class PublicSlot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A slot as clients read it. Times are seconds since the epoch; None if the event has not happened.

    `version` counts the writes that changed more than a time stamp; `marked_at` is the time of the last write of any
    kind. The copy of a row with the greater (version, marked_at) is the newer one. These two stay the first fields,
    because the Lua code of the view cache reads them from the start of the JSON.
    """

    version: int = 0
    marked_at: float = 0.0
    id: str
    pool: str
    state: SlotState = "empty"
    epoch: int = 0
    """Number of machines that this slot has had. A lease or a termination is valid for one epoch."""
    since: float = 0.0
    """Time at which the slot entered its present state."""
    idle_since: float | None = None
    """Time when the last lease of the slot ended, or when the slot became ready; None while it holds a lease."""
    offering: str | None = None
    """Key of the offering from which the machine was launched: `name`, or `name/market` if the name is not unique."""
    market: Market | None = None
    price: float | None = None
    resources: dict[str, float] | None = None
    """Resources of the slot. None: only the number of leases is limited."""
    labels: dict[str, str] = {}
    cordoned: bool = False
    last_seen: float | None = None
    interrupted_by: float | None = None
    """Time at which the interrupted machine will be gone."""
    drain_reason: str | None = None
    """Why the slot drains, or why the next tick must drain it (`requested`, `leaving`, `interrupted`, `idle`, …)."""
    error: str | None = None
    """Category of the failed launch while the slot is in the state `error`."""
    instance_id: str | None = None
    address: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    machine: str | None = None
    """Machine id that a static host reported. It is kept while the host is away, so that no other host takes
    the slot.
    """
    uses: int = 0
    """Number of leases that this machine has had."""


class Slot(PublicSlot, frozen=True, kw_only=True, gc=False):
    """A slot as the database and the view hold it."""

    interrupted_at: float | None = None
    """Time at which the interruption notice arrived; None without a notice."""
    launch_id: str | None = None
    launch_reason: str | None = None
    launch_request: dict[str, Any] | None = None
    """The complete launch request to the cloud. It is stored before it is sent, and repeated unchanged."""
    attempts: int = 0
    """Number of attempts at the present slow work on the slot (launch or termination)."""
    not_before: float = 0.0
    """Earliest time of the next attempt at the present slow work on the slot (launch or termination)."""
    sent_at: float = 0.0
    """Time at which a task for the present slow work on the slot (launch or termination) was last sent."""
    missed: int = 0
    """How many times in a row the cloud did not know this machine."""
    failed_probes: int = 0
    """Number of probes in a row that failed after the machine was ready."""
    unconfirmed: int = 0
    """Number of leases in a row on this machine that their holders did not confirm."""
    stranger: str | None = None
    """Id of an unknown reservation that was confirmed to run on the slot. The slot takes no lease until it is reported
    as `idle`.
    """
    noted_at: float | None = None
    """Time of the newest report about the slot (`confirm`, `idle`). Older reports are ignored."""
    heartbeat: int = 0
    """Counter of the host's newest signed heartbeat. A heartbeat with a lower or equal counter is a copy and is
    ignored.
    """


_DIGITS = "0123456789"


def slot_order(slot_id: str) -> tuple[str, int, str]:
    """Return the sort key of a slot within its pool: by number (`linux-2` before `linux-10`), or by id without a
    number.
    """
    name = slot_id.rstrip(_DIGITS)
    return (name, int(slot_id[len(name) :]), slot_id) if len(name) < len(slot_id) else (slot_id, -1, slot_id)


def move_slot(slot: Slot, to: SlotState, cause: Cause, now: float, **changes: Any) -> tuple[Slot, Event]:
    """Return the slot after a change of state, and the event of the change. `reason` in `changes` goes into the event.

    Raise IllegalMoveError for a change that SLOT_MOVES does not permit for this cause.
    """
    check_move(SLOT_MOVES, "slot", slot.id, (slot.state, to), cause)
    name, reason = changes.pop("event", f"slot_{to}"), changes.pop("reason", None)
    moved = msgspec.structs.replace(slot, state=to, since=now, **changes)
    detail = {"from": slot.state, "epoch": moved.epoch} | ({"reason": reason} if reason else {})
    return moved, Event(at=now, name=name, cause=cause, slot=slot.id, detail=detail)


def without_machine(slot: Slot) -> dict[str, Any]:
    """Return the field changes that clear everything about the machine of a slot, except for its epoch and its host's
    id.

    A slot that was never launched belongs to a static host, which may come back. Its resources and labels are kept, so
    that reservations that it could serve do not wait with `never_fits`.
    """
    is_host = slot.launch_id is None
    return {
        "idle_since": None,
        "offering": None,
        "market": None,
        "price": None,
        "resources": slot.resources if is_host else None,
        "labels": slot.labels if is_host else {},
        "last_seen": None,
        "interrupted_at": None,
        "interrupted_by": None,
        "drain_reason": None,
        "error": None,
        "launch_id": None,
        "launch_reason": None,
        "launch_request": None,
        "attempts": 0,
        "not_before": 0.0,
        "sent_at": 0.0,
        "instance_id": None,
        "address": None,
        "instance_type": None,
        "zone": None,
        "missed": 0,
        "uses": 0,
        "failed_probes": 0,
        "unconfirmed": 0,
        "stranger": None,
        "noted_at": None,
    }
