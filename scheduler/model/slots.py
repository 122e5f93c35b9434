"""Slots: places for one machine each, recycled; every launch on one is a new epoch."""

from typing import Any, Literal

import msgspec

from scheduler.model.events import Event
from scheduler.model.transitions import SLOT_MOVES, Cause, SlotState, check_move

Market = Literal["spot", "on-demand"]
ADOPTED = "adopted"
"""The `launch_reason` of a machine that this cluster did not launch: it was found under its tags."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """One machine as the cloud reports it: the mirror of an EC2 instance."""

    id: str
    state: Literal["pending", "running", "stopping", "terminated"]
    address: str | None = None
    type: str | None = None
    zone: str | None = None
    market: Market | None = None
    launched_at: float | None = None
    healthy: bool | None = None
    """EC2's status checks: None while they are not known."""
    interrupted: bool = False
    """The cloud ends it to take its spot capacity back."""
    slot: str | None = None
    pool: str | None = None
    launch_id: str | None = None
    offering: str | None = None
    cluster_id: str | None = None
    """Identity of the cluster that launched it; None: launched by a version that wrote none."""
    highest_term: int = 0
    highest_token: int = 0
    """Highest term and token when it was launched. This and the five fields before come from the machine's tags."""


class PublicSlot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A slot as clients read it. Times are seconds since the epoch, None where it never happened.

    `version` counts the writes that changed more than a mark of time; `marked_at` is the time of the last
    write of any kind. Of two copies of a row the one with the greater (version, marked_at) is the newer.
    These two stay the first fields: the Lua that keeps the view reads them from the start of the JSON.
    """

    version: int = 0
    marked_at: float = 0.0
    id: str
    pool: str
    state: SlotState = "empty"
    epoch: int = 0
    """Counts the machines that this slot has had; a lease or a termination names the epoch that it means."""
    since: float = 0.0
    """Time of the last change of state."""
    idle_since: float | None = None
    """When its last lease ended, else when it became ready; None while it holds a lease."""
    offering: str | None = None
    """Key of the offering that it was launched from (`name`, or `name/market` where a name stands twice)."""
    market: Market | None = None
    price: float | None = None
    resources: dict[str, float] | None = None
    """None: this slot counts leases only."""
    labels: dict[str, str] = {}
    cordoned: bool = False
    last_seen: float | None = None
    interrupted_by: float | None = None
    """When the interrupted machine will be gone."""
    drain_reason: str | None = None
    """Why it drains, or has to go as soon as a tick sees it (`requested`, `leaving`, `interrupted`, `idle`, …)."""
    error: str | None = None
    """Category of the failed launch while the state is `error`."""
    instance_id: str | None = None
    address: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    machine: str | None = None
    """The id that a static host reports; kept while it is away, so that no other host takes its slot."""
    uses: int = 0
    """Leases that this machine has had."""


class Slot(PublicSlot, frozen=True, kw_only=True, gc=False):
    """A slot as stored and viewed."""

    interrupted_at: float | None = None
    """When the notice of an interruption came; None without one."""
    launch_id: str | None = None
    launch_reason: str | None = None
    launch_request: dict[str, Any] | None = None
    """The frozen request to the cloud; stored before it is sent, replayed as it is."""
    attempts: int = 0
    """Times that the present slow work (launch or terminate) was tried."""
    not_before: float = 0.0
    """The present slow work is not tried before this time."""
    sent_at: float = 0.0
    """When a task for the present slow work was last sent."""
    missed: int = 0
    """Times in a row that the cloud did not know this machine."""
    failed_probes: int = 0
    """Probes of this machine that failed in a row after it was ready."""
    unconfirmed: int = 0
    """Leases on this machine in a row that their holders did not confirm."""
    stranger: str | None = None
    """An unknown reservation was confirmed to run here: the slot takes no lease until it is reported as `idle`."""
    noted_at: float | None = None
    """Time of the newest authoritative notice about it (`confirm`, `idle`). An older notice is ignored."""
    heartbeat: int = 0
    """Counter of the newest signed heartbeat of its host: a heartbeat with a lower or equal counter is a copy."""


_DIGITS = "0123456789"


def slot_order(slot_id: str) -> tuple[str, int, str]:
    """The fixed order of a pool's slots: by number (`linux-2` before `linux-10`), else by id."""
    name = slot_id.rstrip(_DIGITS)
    return (name, int(slot_id[len(name) :]), slot_id) if len(name) < len(slot_id) else (slot_id, -1, slot_id)


def move_slot(slot: Slot, to: SlotState, cause: Cause, now: float, **changes: Any) -> tuple[Slot, Event]:
    """Return the slot after a legal move, and the event of it; `reason` in `changes` goes to the event.

    Raises IllegalMoveError for a move that SLOT_MOVES does not have for this cause.
    """
    check_move(SLOT_MOVES, "slot", slot.id, (slot.state, to), cause)
    name, reason = changes.pop("event", f"slot_{to}"), changes.pop("reason", None)
    moved = msgspec.structs.replace(slot, state=to, since=now, **changes)
    detail = {"from": slot.state, "epoch": moved.epoch} | ({"reason": reason} if reason else {})
    return moved, Event(at=now, name=name, cause=cause, slot=slot.id, detail=detail)


def without_machine(slot: Slot) -> dict[str, Any]:
    """The changes that clear all that belonged to the machine which a slot had; its epoch and its host's id stay.

    What was never launched is a host that is away and may come back: what it holds stays known, so that a
    reservation that it could serve does not wait with `never_fits`.
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
