"""Decisions: the lines of a plan. Each names what it saw (`seen`), so that the commit can check it.

The names are those that `leasehold simulate` prints: `do` is the tag, the fields that it shows come first. There are as
many as there are reservations, and they cannot form cycles: the garbage collector is spared looking at them
(`gc=False`).
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

import msgspec


class Placement(msgspec.Struct, frozen=True, gc=False):
    """One component instance and the slot that it gets; `resources` is what it is given."""

    component: str
    slot: str
    epoch: int = 0
    resources: dict[str, float] = {}


class Expire(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="expire", tag_field="do"):
    """Its time is over: the leases end in the same tick."""

    reservation: str
    reason: str = "ttl"


class Fail(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="fail", tag_field="do"):
    """An essential component lost its slot or died: all its leases end."""

    reservation: str
    reason: str


class Requeue(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="requeue", tag_field="do"):
    """Taken back into the queue; with `revoke_by` its holder keeps the leases until then, at most."""

    reservation: str
    reason: str
    revoke_by: float | None = None


class Restart(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="restart", tag_field="do"):
    """A failed one is pending again."""

    reservation: str
    reason: str = "restart_due"


class Assign(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="assign", tag_field="do"):
    """All essential components of a pending reservation get their slots."""

    reservation: str
    leases: tuple[Placement, ...]
    level: int | None = None


class Preempt(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="preempt", tag_field="do"):
    """A reservation takes the place of worse work on one slot. Its account pays the victims' cost, which its lease
    starts with, and the victims' accounts get it back.

    Without `revoke_by` the victims are pending again at once and the next decision is its `Assign`: the two are written
    together or not at all. With it they are `revoking` until then, and the leases of the reservation are `claimed`.
    """

    reservation: str
    slot: str
    victims: tuple[str, ...]
    level: int
    """The level at which the reservation runs."""
    leases: tuple[Placement, ...] = ()
    """What it gets there: its essential instances."""
    revoke_by: float | None = None


class Relevel(
    msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="relevel", tag_field="do", rename={"source": "from"}
):
    """Running work pays at another level from now on."""

    reservation: str
    source: int
    to: int


class Claim(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="claim", tag_field="do"):
    """The places that a pending reservation gets as soon as those elastic instances that are revoked for it are gone:
    no other reservation gets them meanwhile. It is never printed; its revokes are.
    """

    reservation: str
    leases: tuple[Placement, ...]
    level: int | None = None


class Grant(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="grant", tag_field="do"):
    """A leased reservation gets one of its elastic instances."""

    reservation: str
    component: str
    slot: str
    reason: Literal["room"] = "room"
    epoch: int = 0
    resources: dict[str, float] = {}


RevokeReason = Literal["reclaimed", "slot_gone", "slot_offline", "slot_interrupted", "slot_draining"]


class Revoke(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="revoke", tag_field="do"):
    """One elastic instance is taken back; its reservation stays leased. With `revoke_by` its holder keeps it until
    then, at most; without, it ends now.

    `room_for`: the reservation whose essential instances need its room. Its revokes and the `Assign` (or `Claim`) that
    follows them are written together or not at all.
    """

    reservation: str
    component: str
    slot: str
    reason: RevokeReason
    epoch: int = 0
    revoke_by: float | None = None
    room_for: str | None = None


class Cores(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="cores", tag_field="do"):
    """One lease may use this number of cpus of its slot from now on: a limit, not a reservation."""

    reservation: str
    component: str
    slot: str
    cpus: float
    epoch: int = 0


class Launch(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="launch", tag_field="do"):
    """A machine is wanted on an empty slot."""

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
    """A ready slot takes no new leases and goes when it is free."""

    slot: str
    reason: SlotReason


class Terminate(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="terminate", tag_field="do"):
    """The machine of that slot, in that epoch, has to go."""

    slot: str
    reason: SlotReason


class Reset(msgspec.Struct, frozen=True, kw_only=True, gc=False, tag="reset", tag_field="do"):
    """A slot is empty again without a machine to terminate."""

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
"""Why a reservation waits; the first code that applies is reported."""


Reason = tuple[str, str]
"""Why one waits: a code, and prose."""


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """One reservation that the plan leaves unplaced: a stable code, and prose."""

    reservation: str
    code: str
    detail: str


class Waits:
    """The reservations that a plan leaves unplaced, in the order of the queue; iterating yields each of them.

    Many wait for the same reason, which is kept once: (code, detail).
    """

    __slots__ = ("names", "reasons")

    def __init__(self, names: Iterable[str] = (), reasons: Iterable[Reason] = ()) -> None:
        self.names, self.reasons = tuple(names), tuple(reasons)

    def __iter__(self) -> Iterator[Waiting]:
        return (Waiting(name, *reason) for name, reason in self.items())

    def __len__(self) -> int:
        return len(self.names)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Waits):
            return NotImplemented
        return self.names == other.names and self.reasons == other.reasons

    __hash__ = None  # type: ignore[assignment]  # compared in tests, never a key

    def __repr__(self) -> str:
        return f"Waits({list(self)})"

    def items(self) -> Iterator[tuple[str, Reason]]:
        """(reservation, reason) of each."""
        return zip(self.names, self.reasons, strict=True)


class Plan(msgspec.Struct, frozen=True):
    """The outcome of one tick. `wake_at`: the next instant at which something falls due, or None.

    `charged`: the accounts that earn and pay up to the time of the plan, before anything else is carried out. What they
    pay is counted again on the rows as they are then.
    """

    decisions: tuple[Decision, ...]
    waiting: Waits
    wake_at: float | None
    charged: tuple[str, ...] = ()


class Skipped(msgspec.Struct, frozen=True):
    """A decision that no longer held when it was written; `reason` is a sentence for people."""

    decision: Decision
    reason: str


def describe_decision(decision: Decision) -> dict[str, Any]:
    """The decision as the contract of `leasehold simulate` prints it: its fields, without our own marks."""
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
