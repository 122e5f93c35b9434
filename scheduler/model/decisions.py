"""Decisions: the entries of a plan, which the commit checks again and writes.

The class and field names are those that `leasehold simulate` prints: `do` is the tag of the class, and the printed
fields come first. A plan can hold one decision for each reservation, and decisions cannot form reference cycles.
`gc=False` therefore keeps the garbage collector from scanning them.
"""

from typing import Any, Literal

import msgspec

from scheduler.model.waits import Waits


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The slot that one component instance gets, and the resources that the instance receives there."""

    component: str
    slot: str
    epoch: int = 0
    resources: dict[str, float] = {}


class Expire(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="expire", tag_field="do"):
    """End a reservation whose time is over. Its leases end in the same tick."""

    reservation: str
    reason: str = "ttl"


class Fail(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="fail", tag_field="do"):
    """Fail a reservation because an essential component died or lost its slot. All its leases end."""

    reservation: str
    reason: str


class Requeue(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="requeue", tag_field="do"):
    """Return a reservation to the queue. With `revoke_by`, its holder may keep the leases until that time."""

    reservation: str
    reason: str
    revoke_by: float | None = None


class Restart(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="restart", tag_field="do"):
    """Make a failed reservation pending again."""

    reservation: str
    reason: str = "restart_due"


class Assign(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="assign", tag_field="do"):
    """Give all essential components of a pending reservation their slots."""

    reservation: str
    leases: tuple[Placement, ...]
    level: int | None = None


class Preempt(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="preempt", tag_field="do"):
    """Replace running work on one slot by a reservation of a better level.

    The reservation's account pays the cost of the victims, which becomes the initial cost of the new lease. The
    victims' accounts get that cost back. Without `revoke_by`, the victims become pending at once. The next decision is
    then the `Assign` of the reservation, and both are written together or not at all. With `revoke_by`, the victims are
    `revoking` until that time, and the leases of the reservation are `claimed`.
    """

    reservation: str
    slot: str
    victims: tuple[str, ...]
    level: int
    """Level at which the preempting reservation runs."""
    leases: tuple[Placement, ...] = ()
    """Slots of the essential instances of the preempting reservation."""
    revoke_by: float | None = None


class Relevel(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="relevel", tag_field="do", rename={"source": "from"}
):
    """Change the level at which the account pays for a running reservation."""

    reservation: str
    source: int
    to: int


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="claim", tag_field="do"):
    """Promise slots to a pending reservation until the elastic instances that are revoked for it have ended.

    No other reservation gets these slots meanwhile. `leasehold simulate` does not print claims; it prints the revokes.
    """

    reservation: str
    leases: tuple[Placement, ...]
    level: int | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="grant", tag_field="do"):
    """Give a leased reservation one more of its elastic instances."""

    reservation: str
    component: str
    slot: str
    reason: Literal["room"] = "room"
    epoch: int = 0
    resources: dict[str, float] = {}


RevokeReason = Literal["reclaimed", "slot_gone", "slot_offline", "slot_interrupted", "slot_draining"]


class Revoke(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="revoke", tag_field="do"):
    """Take one elastic instance back. Its reservation stays leased.

    With `revoke_by`, the holder may keep the instance until that time; without it, the instance ends now. `room_for` is
    the id of the reservation whose essential instances need the capacity. The `Revoke` decisions for it and the
    `Assign` or `Claim` that follows are written together or not at all.
    """

    reservation: str
    component: str
    slot: str
    reason: RevokeReason
    epoch: int = 0
    revoke_by: float | None = None
    room_for: str | None = None


class Cores(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="cores", tag_field="do"):
    """Set the number of CPUs of its slot that one lease may use. This is an upper limit and reserves nothing."""

    reservation: str
    component: str
    slot: str
    cpus: float
    epoch: int = 0


class Launch(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="launch", tag_field="do"):
    """Launch a machine for an empty slot."""

    slot: str
    pool: str
    offering: str | None
    reason: Literal["demand", "minimum", "warm"]


SlotReason = Literal[
    "idle",
    "interrupted",
    "rebalance",
    "at_quota",
    "requested",
    "leaving",
    "unconfigured",
    "unhealthy",
    "unclean",
    "used_up",
    "drained",
    "timeout",
    "lost",
    "cooled_down",
]


class Drain(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="drain", tag_field="do"):
    """Drain a ready slot: it takes no new leases and is terminated when its leases have ended."""

    slot: str
    reason: SlotReason


class Terminate(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="terminate", tag_field="do"):
    """Terminate the machine of a slot."""

    slot: str
    reason: SlotReason


class Reset(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="reset", tag_field="do"):
    """Make a slot empty that has no machine to terminate."""

    slot: str
    reason: SlotReason


Decision = (
    Expire
    | Fail
    | Requeue
    | Restart
    | Assign
    | Preempt
    | Relevel
    | Claim
    | Grant
    | Revoke
    | Launch
    | Drain
    | Terminate
    | Reset
    | Cores
)

WAITING_CODES = (
    "on_hold",
    "no_pool",
    "never_fits",
    "no_quota",
    "account_limit",
    "behind_queue",
    "booting",
    "at_max_slots",
    "at_quota",
    "capacity",
    "throttled",
    "misconfigured",
    "gang_incomplete",
    "cordoned",
    "no_capacity",
)
"""The codes for why a reservation waits. The first code in this order that applies is reported."""


class Plan(msgspec.Struct, frozen=True):
    """The result of one tick: the decisions, the reservations that wait, and the next time at which something is due.

    `wake_at` is that time in seconds since the epoch, or None. `charged` names the accounts that earn and pay up to the
    time of the plan. They are charged before the decisions are written, and the commit computes the amounts again from
    the current rows.
    """

    decisions: tuple[Decision, ...]
    waiting: Waits
    wake_at: float | None
    charged: tuple[str, ...] = ()


class Skipped(msgspec.Struct, frozen=True):
    """A decision that the commit did not write because it no longer held. `reason` is a sentence for people."""

    decision: Decision
    reason: str


def describe_decision(decision: Decision) -> dict[str, Any]:
    """Return a decision as `leasehold simulate` prints it: without internal fields such as `epoch` and `revoke_by`."""
    document: dict[str, Any] = msgspec.to_builtins(decision)
    for mark in ("revoke_by", "room_for", "epoch", "resources"):
        document.pop(mark, None)
    if isinstance(decision, Preempt):
        del document["leases"]
    if "leases" in document:
        document["leases"] = [{"component": lease["component"], "slot": lease["slot"]} for lease in document["leases"]]
    if document.get("level", 0) is None:
        del document["level"]
    return document
