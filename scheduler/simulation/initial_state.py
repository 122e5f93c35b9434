"""The initial state of a scenario: slots, reservations and launch back-offs (holds), written by users or by `leasehold
snapshot`.

A field that is missing gets its default; a field that is null stays null. Times are seconds from the start of the
scenario; a negative time is before the start.
"""

from collections.abc import Iterable
from typing import Any, Final, Literal

from scheduler.model.accounts import NOTHING
from scheduler.model.command_schemas import ReservationDocument
from scheduler.model.launch_backoff import Kind
from scheduler.model.slots import Market
from scheduler.model.transitions import SlotState
from scheduler.model.validation import (
    Amount,
    Count,
    Declined,
    Document,
    LabelMap,
    Levels,
    Name,
    ResourceMap,
    Seconds,
    Signed,
    Text,
)


class LeaseRecord(Document):
    """A lease in a slot record of a scenario. It counts as confirmed, and accumulates cost from the start."""

    reservation: Name
    component: Name = "main"
    resources: ResourceMap | None = None
    """The resources that the lease uses; default: those that its reservation requests."""
    level: Literal[0, 1, 2, 3, 4, 5] = 5
    cost: Levels = NOTHING
    state: Literal["held", "revoking", "claimed"] = "held"
    """State of the lease. `claimed`: its reservation is still pending and waits for this slot."""
    revoke_by: Signed | None = None
    revoke_reason: Literal["preempted", "reclaimed", "slot_interrupted"] | None = None
    """Why an elastic lease is being revoked alone."""
    assigned_at: Signed | None = None
    cores: Amount | None = None
    """The number of cpus of its slot that the lease may use; default: the cpus in its resources."""


class SlotRecord(Document):
    """A slot of a scenario. In the initial state and in the timeline, the record creates the slot or replaces the slot
    with this id.
    """

    id: Name
    pool: Name
    state: SlotState = "ready"
    resources: ResourceMap | None = None
    labels: LabelMap | None = None
    leases: tuple[LeaseRecord, ...] = ()
    offering: Name | None = None
    market: Market | None = None
    """The market (`spot` or `on-demand`) of the slot's machine. With a market, the slot's offering need not be in the
    rules.
    """
    price: Amount | None = None
    """The price of the slot's machine in dollars per hour; default: the price of its offering."""
    machine: Text | None = None
    cordoned: bool = False
    last_seen: Signed | None = None
    since: Signed | None = None
    idle_since: Signed | None = None
    launched_at: Signed | None = None
    """Time at which the slot's machine was launched; default: `since`."""
    drifted: bool = False
    """Whether the machine was launched from another template, image, user data, network or tags than those that the
    pool has now.
    """
    drain_reason: Name | None = None
    error: Name | None = None
    interrupted_at: Signed | None = None
    interrupted_by: Signed | None = None
    uses: Count | None = None
    unconfirmed: Count = 0
    failed_probes: Count = 0
    stranger: Name | None = None
    noted_at: Signed | None = None
    launched_for: Name | None = None
    """The account for whose demand the slot's machine was launched."""


class ReservationRecord(ReservationDocument):
    """A reservation that exists at the start of a scenario, in any phase."""

    phase: Literal["pending", "leased", "revoking", "released", "cancelled", "expired", "failed"] = "pending"
    created_at: Signed = 0.0
    reason: Text | None = None
    changed_at: Signed | None = None
    expires_at: Signed | None = None
    leased_at: Signed | None = None
    confirmed_at: Signed | None = None
    failed_at: Signed | None = None
    restarted_at: Signed | None = None
    finished_at: Signed | None = None
    restarts: Count = 0
    component_restarts: dict[Name, Count] | None = None
    unconfirmed: Count = 0
    interruptions: Count = 0
    suspended: bool = False
    declined: tuple[Declined, ...] = ()
    revoke_reason: Name | None = None
    revoke_by: Signed | None = None


class HoldRecord(Document):
    """A launch back-off (hold) that exists at the start of a scenario: a pause of launches after refused launches. Its
    fields are those of `model.launch_backoff.Hold`.
    """

    pool: Text
    """The pool whose launches pause. `*`: all pools."""
    kind: Kind
    subject: Text = ""
    refused_at: Signed = 0.0
    until: Signed
    delay: Seconds = 0.0
    active: Count = 0
    decided_at: Signed = 0.0
    streak: Count = 1


RESERVATION_HISTORY: Final = tuple(
    name
    for name in ReservationRecord.model_fields
    if name not in ReservationDocument.model_fields and name not in {"phase", "created_at"}
)
"""The fields about a reservation's past that its record in a scenario may contain. They have the names of the
reservation's row in the database.
"""
SLOT_HISTORY: Final = (
    *("resources", "last_seen", "drain_reason", "error", "interrupted_at", "interrupted_by", "uses"),
    *("unconfirmed", "failed_probes", "stranger", "noted_at", "launched_for", "launched_at"),
)
"""The fields about a slot's past that its record in a scenario may contain. They have the names of the slot's row in
the database.
"""


def list_history(record: Document, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of this record of a scenario whose names are in `names`, as name -> value. Missing are fields
    that the record does not contain; a null in `uses` counts as not contained.
    """
    given = {name: getattr(record, name) for name in names if name in record.model_fields_set}
    return {name: value for name, value in given.items() if (name, value) != ("uses", None)}
