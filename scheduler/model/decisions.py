"""Decisions: the entries of a plan. The commit tests each decision again on fresh rows and writes it.

Classes and fields have the names that `leasehold simulate` prints: `do` is the tag of the class, and the printed fields
come first. A plan may have one decision for each reservation. Decisions cannot form reference cycles, so `gc=False`
keeps the garbage collector from scanning them.
"""

from typing import Any, Literal

import msgspec

from scheduler.model.waits import Waits


class Placement(msgspec.Struct, frozen=True, gc=False):
    """The slot that one component instance gets, the epoch of the slot, and the amounts that the instance gets of the
    slot's resources.
    """

    component: str
    slot: str
    epoch: int = 0
    resources: dict[str, float] = {}


class Expire(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="expire", tag_field="do"):
    """Decision to end a reservation because its ttl is over (`ttl`) or its leases have lasted for its `max_runtime`
    (`limit`). `revoke_by`: time until which the holder may keep the leases; None: the leases end in the same tick.
    """

    reservation: str
    reason: Literal["ttl", "limit"] = "ttl"
    revoke_by: float | None = None


class Fail(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="fail", tag_field="do"):
    """Decision to fail a reservation because an essential instance died or lost its slot. All its leases end."""

    reservation: str
    reason: str


class Requeue(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="requeue", tag_field="do"):
    """Decision to return a leased reservation to the queue. `revoke_by`: time until which the holder may keep the
    leases; None: the leases end at once.
    """

    reservation: str
    reason: str
    revoke_by: float | None = None


class Restart(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="restart", tag_field="do"):
    """Decision to make a failed reservation pending again, because its restart policy requires a restart."""

    reservation: str
    reason: str = "restart_due"


class Assign(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="assign", tag_field="do"):
    """Decision to lease slots to all essential instances of a pending reservation. `level`: the level at which its
    account pays; None: its queue is not `quota`.
    """

    reservation: str
    leases: tuple[Placement, ...]
    level: int | None = None


class Preempt(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="preempt", tag_field="do"):
    """Decision to end running work of other reservations (the victims) on one slot, so that a pending reservation of a
    better level gets it. Victims end as a whole, except those in `partial`: only elastic leases of these end on this
    slot, each by a `Revoke` that follows this decision.

    The account of the pending reservation pays what the victims have cost so far, and the victims' accounts get it
    back. The new lease starts with that cost. `revoke_by` None: the victims become pending at once; the `Assign` of the
    reservation follows. With a `revoke_by`, the victims are `revoking` until that time, and the leases of the
    reservation are `claimed`. A gang on several slots has a decision for each slot with victims; all of them have all
    leases of the gang. All these decisions for one reservation are written together or not at all.
    """

    reservation: str
    slot: str
    victims: tuple[str, ...]
    level: int
    """Level at which the account of the pending reservation will pay for it."""
    leases: tuple[Placement, ...] = ()
    """Placements of the essential instances of the pending reservation."""
    revoke_by: float | None = None
    partial: tuple[str, ...] = ()
    """The victims that stay leased."""


class Relevel(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="relevel", tag_field="do", rename={"source": "from"}
):
    """Decision to change the level at which the account of a running reservation pays for it, from `source` to `to`."""

    reservation: str
    source: int
    to: int


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="claim", tag_field="do"):
    """Decision to promise slots to a pending reservation until the elastic instances that are revoked for it have
    ended.

    No other reservation gets these slots meanwhile. `leasehold simulate` does not print claims; it prints the `Revoke`
    decisions. `level`: the level at which the reservation's account pays; None: its queue is not `quota`.
    """

    reservation: str
    leases: tuple[Placement, ...]
    level: int | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="grant", tag_field="do"):
    """Decision to give a leased reservation one more of its elastic instances."""

    reservation: str
    component: str
    slot: str
    reason: Literal["room"] = "room"
    epoch: int = 0
    resources: dict[str, float] = {}


RevokeReason = Literal["reclaimed", "preempted", "slot_gone", "slot_offline", "slot_interrupted", "slot_draining"]


class Revoke(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="revoke", tag_field="do"):
    """Decision to take one elastic instance back from its reservation, which stays leased.

    `revoke_by`: time until which the holder may keep the instance; None: the instance ends now. `room_for`: id of the
    reservation whose essential instances need the capacity. The `Revoke` decisions for that reservation, and its
    `Assign` or `Claim` after them, are written together or not at all; so are those with the reason `preempted` and the
    `Preempt` before them.
    """

    reservation: str
    component: str
    slot: str
    reason: RevokeReason
    epoch: int = 0
    revoke_by: float | None = None
    room_for: str | None = None


class Cores(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="cores", tag_field="do"):
    """Decision to set the number of CPUs of its slot that one lease may use. The number is an upper limit and reserves
    nothing.
    """

    reservation: str
    component: str
    slot: str
    cpus: float
    epoch: int = 0


class PlanStart(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="plan_start", tag_field="do"):
    """Decision to note the first start that the starvation guard has planned for a reservation that it protects. `at`:
    the time of the start (seconds since the epoch).
    """

    reservation: str
    at: float


class Launch(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="launch", tag_field="do"):
    """Decision to launch a machine for an empty slot. `account`: the account whose demand causes the launch; None: no
    account's demand does.

    `gang`: the reservation that needs this machine and others at the same time; None: the machine is useful by itself.
    """

    slot: str
    pool: str
    offering: str | None
    reason: Literal["demand", "minimum", "warm", "stopped"]
    account: str | None = None
    gang: str | None = None


class Start(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="start", tag_field="do"):
    """Decision to start the machine of a stopped slot. `offering`: the offering with which it is started, which may
    differ from the slot's offering. `account`: the account whose demand causes the start; None: no account's demand
    does.
    """

    slot: str
    pool: str
    offering: str | None
    reason: Literal["demand", "minimum", "warm"]
    account: str | None = None


class Stop(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="stop", tag_field="do"):
    """Decision to stop the machine of a ready slot without leases, and to keep it in the stopped tier of its pool.

    `reason`: `idle` (the slot was idle for longer than `idle_scale_down`) or `booted` (it was launched for the tier).
    """

    slot: str
    reason: Literal["idle", "booted"]


SlotReason = Literal[
    "idle",
    "interrupted",
    "rebalance",
    "maintenance",
    "at_quota",
    "over_budget",
    "requested",
    "leaving",
    "unconfigured",
    "unhealthy",
    "silent",
    "unclean",
    "used_up",
    "aged",
    "drifted",
    "consolidated",
    "drained",
    "timeout",
    "lost",
    "cooled_down",
    "surplus",
]


class Drain(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="drain", tag_field="do"):
    """Decision to drain a ready slot: it takes no new leases, and its machine is terminated when its
    leases have ended.
    """

    slot: str
    reason: SlotReason


class Terminate(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="terminate", tag_field="do"):
    """Decision to terminate the machine of a slot."""

    slot: str
    reason: SlotReason


class Reset(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="reset", tag_field="do"):
    """Decision that a slot without a machine to terminate becomes `empty`."""

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
    | Start
    | Stop
    | Drain
    | Terminate
    | Reset
    | Cores
    | PlanStart
)


class Plan(msgspec.Struct, frozen=True):
    """The result of planning one tick: the decisions, the reservations that stay pending, and the time of the next
    planned tick.

    `wake_at`: the next time at which something is due, in seconds since the epoch; None: nothing is due. `charged`: the
    ids of the accounts that earn and pay up to the time of the plan. The commit charges them before it writes the
    decisions, with amounts that it computes from the current rows.
    """

    decisions: tuple[Decision, ...]
    waiting: Waits
    wake_at: float | None
    charged: tuple[str, ...] = ()


class Skipped(msgspec.Struct, frozen=True):
    """A decision that the commit did not write, because it did not fit the current rows. `reason` is a sentence for
    people.
    """

    decision: Decision
    reason: str


def describe_decision(decision: Decision) -> dict[str, Any]:
    """Return a decision as the table that `leasehold simulate` prints, without internal fields such as `epoch` and
    `revoke_by`.
    """
    document: dict[str, Any] = msgspec.to_builtins(decision)
    for mark in ("revoke_by", "room_for", "epoch", "resources"):
        document.pop(mark, None)
    if isinstance(decision, Preempt):
        del document["leases"], document["partial"]
    if "leases" in document:
        document["leases"] = [{"component": lease["component"], "slot": lease["slot"]} for lease in document["leases"]]
    if document.get("level", 0) is None:
        del document["level"]
    if isinstance(decision, Launch | Start):
        del document["account"]
    if isinstance(decision, Launch):
        del document["gang"]
    return document
