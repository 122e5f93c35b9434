"""The rows of reservations and of their leases, with the functions that read and change them.

A view may contain a million reservations. Their rows cannot form reference cycles, so `gc=False` keeps the garbage
collector from scanning them.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, overload

import msgspec

from scheduler.model.accounts import FREE, NOTHING, Levels, add, at_level
from scheduler.model.events import Event
from scheduler.model.resources import Labels, shape_of
from scheduler.model.runs import WAITING, RunState
from scheduler.model.transitions import ENDED, RESERVATION_MOVES, Cause, Phase, check_move

ComponentKind = Literal["essential", "elastic"]
LeaseState = Literal["held", "revoking", "claimed"]


class Component(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A component of a reservation: `count` equal instances, each of which gets a slot. The essential instances of a
    reservation are all placed together, or none is.
    """

    name: str
    count: int = 1
    kind: ComponentKind = "essential"
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}


class Instance(msgspec.Struct, frozen=True, gc=False):
    """One instance of a component. Its name is that of the component if `count` is 1, else `NAME.0`, `NAME.1` and so
    on.
    """

    name: str
    component: Component


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """The parts of a request that decide where it can run.

    The view keeps one object for all equal requests, so that a tick computes facts about them once. Two shapes are
    equal only if they are the same object.
    """

    system: str | None
    pool: str | None
    components: tuple[Component, ...]
    labels: Labels
    prefers: Labels
    needs_agent: bool
    """Whether only hosts with agents may serve it, because it has a command."""
    essential: "Instances"
    """The essential instances, in the order in which they are placed."""
    elastic: "Instances"
    """The elastic instances, in the order in which they are granted. They are reclaimed in the reverse order."""


class Instances(Sequence[Instance]):
    """The instances of some components of a request. The `Instance` objects are created when the first one is read.

    For most waiting gangs, a tick needs only the number of instances. Creating 10,000 instances would take as long as
    the rest of the tick.
    """

    __slots__ = ("_components", "_found")

    def __init__(self, components: Iterable[Component]) -> None:
        self._components = tuple(components)
        self._found: tuple[Instance, ...] | None = None

    def __bool__(self) -> bool:
        return bool(self._components)

    def __len__(self) -> int:
        return sum(component.count for component in self._components)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._all())

    @overload
    def __getitem__(self, index: int) -> Instance: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Instance, ...]: ...

    def __getitem__(self, index: int | slice) -> Instance | tuple[Instance, ...]:
        return self._all()[index]

    def _all(self) -> tuple[Instance, ...]:
        if self._found is None:
            self._found = tuple(
                Instance(component.name if component.count == 1 else f"{component.name}.{index}", component)
                for component in self._components
                for index in range(component.count)
            )
        return self._found


class Callback(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A Celery task of the producer's application, and its queue. Leasehold sends the task when a lease is assigned or
    a reservation ends.
    """

    task: str
    queue: str


class PublicRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What the producer requested in a reservation, as clients read it. It never changes after the submission."""

    system: str | None = None
    pool: str | None = None
    components: tuple[Component, ...] = ()
    labels: dict[str, str] = {}
    prefers: dict[str, str] = {}
    account: str | None = None
    size: float = 0
    ttl: float | None = None
    """Time to live of the reservation in seconds; 0: the reservation never expires; None: the rules of
    the pool decide.
    """
    restart_policy: Literal["never", "on_failure"] = "never"
    on_interruption: Literal["requeue", "fail"] = "requeue"
    preemptible: bool = True
    runtime: float | None = None
    """How long a simulated holder works, in seconds. No decision reads it."""
    expected_runtime: float | None = None
    """How long the work will probably take from the assignment on, in seconds; None: not known."""
    max_runtime: float | None = None
    """How long the work takes at most from the assignment on, in seconds; None: not known. If its account has
    `enforce_max_runtime`, its leases end then.
    """
    tags: dict[str, str] = {}


class Request(PublicRequest, frozen=True, kw_only=True, gc=False):
    """What the producer requested in a reservation, as it is stored: with the callbacks."""

    on_lease: Callback | None = None
    on_end: Callback | None = None

    @property
    def instances(self) -> int:
        return sum(component.count for component in self.components)


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The lease of one component instance on one slot, for one epoch of the slot.

    `resources`: the amounts that the lease takes of the slot. `token`: the fencing token; all essential leases of a
    reservation have the reservation's token, each elastic lease has its own. A lease in state `revoking` must be
    released by `revoke_by`. A lease in state `claimed` promises the slot to a pending reservation until the present
    leases there have ended; its token is 0.
    """

    component: str
    kind: ComponentKind = "essential"
    slot: str
    epoch: int
    token: int
    resources: dict[str, float] = {}
    level: int = FREE
    """Level at which the account pays for the lease."""
    cost: Levels = NOTHING
    """Cost of the lease by level up to `charged_at`, in worker-seconds. It includes the cost taken over from preempted
    leases.
    """
    charged_at: float | None = None
    """Time up to which the use of the lease is included in `cost`; None: the use is not charged."""
    weight: float = 1.0
    """Cost of one second of the lease, by the rule `charge_by`: 1 for each lease, a share of the slot, or dollars."""
    cores: float | None = None
    """Number of CPUs of its slot that the lease may use at present, including a part of the spare CPUs. None: as many
    as its resources have.
    """
    assigned_at: float
    confirmed_at: float | None = None
    state: LeaseState = "held"
    revoke_by: float | None = None
    revoke_reason: str | None = None
    """Why an elastic lease is being revoked alone; None: it is not, or an older version revoked it."""


class PublicReservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row of a reservation, as clients read it. Times are seconds since the epoch.

    Of two copies of a row, the one with the greater (`version`, `marked_at`) is newer. These two must stay the first
    fields, because Lua code reads them from the start of the JSON.
    """

    version: int = 0
    marked_at: float = 0.0
    """Time of the last write of the row."""
    id: str
    sequence: int = 0
    """Number of the reservation in the order of submission."""
    phase: Phase = "pending"
    reason: str | None = None
    """Reason of the last change of the phase."""
    changed_at: float = 0.0
    """Time of the last change of the phase."""
    priority: float = 1
    request: PublicRequest
    created_at: float
    expires_at: float | None = None
    """Time at which the reservation expires; None = never."""
    leased_at: float | None = None
    confirmed_at: float | None = None
    finished_at: float | None = None
    restarts: int = 0
    component_restarts: dict[str, int] | None = None
    """Instance name -> number of its failures that were followed by a restart; None: no restarts.

    An essential instance restarts together with its reservation, by the restart policy. An elastic instance restarts
    alone, when it is granted again.
    """
    interruptions: int = 0
    token: int = 0
    """The fencing token of the present essential leases. It changes when they are assigned or moved to other slots; 0
    before the first lease.
    """
    revoke_reason: str | None = None
    revoke_by: float | None = None
    """Time by which all leases must be given back, in the phase `revoking`. `revoke_reason` is the reason."""
    leases: tuple[Lease, ...] = ()
    principal: str | None = None
    """Name of the principal that submitted the reservation; None: the request was not signed."""
    run: RunState | None = None
    """The state of the command that the hosts of the leases run; None: the reservation has no command."""


class Reservation(PublicReservation, frozen=True, kw_only=True, gc=False):
    """The row of a reservation as the database and the view hold it, with its leases and internal fields."""

    request: Request
    failed_at: float | None = None
    restarted_at: float | None = None
    unconfirmed: int = 0
    """Number of assignments in a row that no holder confirmed."""
    suspended: bool = False
    declined: tuple[str, ...] = ()
    """What the holder declined. While the reservation is pending: slots that its next assignment must not use. While it
    is leased: elastic instances that the holder gave back and that are not granted again, and for elastic components
    `NAME=N`: the holder wants at most N instances. See `policy/elastic/wanted.py`.
    """
    key_hash: str | None = None
    """SHA-256, in hexadecimal, of the key that a holder must present; None: a holder needs only the token."""
    instances: int | None = None
    """Number of instances of the request; None in a row that an older version stored."""
    planned_start: float | None = None
    """The first start that the starvation guard has planned for the reservation while it waits (seconds since the
    epoch); None: it has planned none.
    """
    sender: str | None = None
    """Host that sent an unsigned submission, for the limits on pending reservations. It is set while the row is
    inserted; the database only counts by it, and no row that is read or published has it.
    """


def list_wants(declined: Sequence[str]) -> dict[str, int]:
    """Return the most instances that the holder of a leased reservation wants of its elastic components, by component.
    A component that is missing may have all its instances. `declined`: the field of the reservation.
    """
    entries = (entry.partition("=") for entry in declined)
    return {name: int(digits) for name, is_number, digits in entries if is_number}


def split_declined(phase: Phase, declined: Sequence[str]) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the field `declined` of a reservation in two parts, as clients read it: the slots or elastic instances,
    and what `list_wants` returns.
    """
    if not declined or phase not in {"leased", "revoking"}:
        return tuple(declined), {}
    return tuple(entry for entry in declined if "=" not in entry), list_wants(declined)


def list_instances(request: Request, kind: ComponentKind) -> Instances:
    """Return the instances of all components of one kind, in the order in which they are placed."""
    return Instances(component for component in request.components if component.kind == kind)


def name_components(request: Request, kind: ComponentKind) -> dict[str, Component]:
    """Return name of an instance -> its component, for the instances of all components of one kind."""
    return {each.name: each.component for each in list_instances(request, kind)}


def shape_key(request: Request, *, needs_agent: bool = False) -> Hashable:
    """Return a key by which a dict finds the shape of a request. The keys of two requests are equal if both can be
    placed on the same slots.
    """
    components = tuple(
        (each.name, each.count, each.kind, shape_of(each.resources), shape_of(each.labels))
        for each in request.components
    )
    labels, prefers = shape_of(request.labels), shape_of(request.prefers)
    return (request.system, request.pool, components, labels, prefers, needs_agent)


def make_shape(request: Request, *, needs_agent: bool = False) -> Shape:
    """Return the shape of a request: a new object with the parts of the request that decide where it can run."""
    return Shape(
        system=request.system,
        pool=request.pool,
        components=request.components,
        labels=request.labels,
        prefers=request.prefers,
        needs_agent=needs_agent,
        essential=list_instances(request, "essential"),
        elastic=list_instances(request, "elastic"),
    )


def usable_cores(lease: Lease) -> float | None:
    """Return the number of CPUs of its slot that a lease may use at present: `cores` if it is set, else the CPUs that
    the lease requested, else None.
    """
    return lease.resources.get("cpus") if lease.cores is None else lease.cores


def cost_until(lease: Lease, now: float) -> Levels:
    """Return the cost of a lease by paid level up to `now`."""
    if lease.charged_at is None or now <= lease.charged_at:
        return lease.cost
    return add(lease.cost, at_level(lease.level, lease.weight * (now - lease.charged_at)))


LIMIT: Final = "limit"
"""Why a reservation has ended or has to give its leases back: the leases have lasted for its `max_runtime`."""


def find_limit(reservation: PublicReservation) -> float | None:
    """Return when the leases of a reservation have lasted for its `max_runtime`; None: never, or it is not leased."""
    most, since = reservation.request.max_runtime, reservation.leased_at
    return None if most is None or since is None or reservation.phase != "leased" else since + most


def is_at_limit(reservation: PublicReservation) -> bool:
    """Return whether a reservation has reached its limit and is in its grace period. It does not run again."""
    return reservation.phase == "revoking" and reservation.revoke_reason == LIMIT


def is_over(reservation: PublicReservation) -> bool:
    """Return whether a reservation has ended and will not be restarted by its restart policy."""
    return reservation.phase in ENDED and not may_restart(reservation)


def is_on_hold(reservation: Reservation) -> bool:
    """Return whether a pending reservation is kept out of the queue: it is suspended or has the priority 0."""
    return reservation.suspended or reservation.priority == 0


def is_special(reservation: Reservation) -> bool:
    """Return whether a reservation must be placed individually, and not together with all others of its shape: it is on
    hold, declined slots, was interrupted or has a claim.
    """
    # Speed: the view tests each row. This is `is_on_hold` and `is_claimant` without their calls.
    return bool(
        reservation.suspended
        or reservation.priority == 0
        or reservation.declined
        or reservation.interruptions
        or (reservation.leases and reservation.phase == "pending")
    )


def is_claimant(reservation: Reservation) -> bool:
    """Return whether a reservation has a claim: it is pending, and slots are promised to it that still have other
    leases.
    """
    return reservation.phase == "pending" and bool(reservation.leases)


def may_restart(reservation: PublicReservation) -> bool:
    """Return whether a reservation has failed and its restart policy allows a restart. `max_restarts` is not tested
    here.
    """
    return reservation.phase == "failed" and reservation.request.restart_policy == "on_failure"


NO_DETAILS: Final[Mapping[str, Any]] = MappingProxyType({})
"""An empty table, for an event without further details."""


def move_reservation(
    reservation: Reservation,
    to: Phase,
    cause: Cause,
    now: float,
    details: Mapping[str, Any] = NO_DETAILS,
    *,
    reason: str | None = None,
    **changes: Any,
) -> tuple[Reservation, Event]:
    """Return the reservation after a change of its phase, and the event about the change.

    `details`: further details for the event. `reason` is stored in the row and, if it is not None, in the event.
    `changes` are new values of fields. Raises IllegalMoveError if RESERVATION_MOVES does not permit the change for this
    cause.
    """
    check_move(RESERVATION_MOVES, "reservation", reservation.id, (reservation.phase, to), cause)
    if to in ENDED:
        changes.setdefault("finished_at", now)
    elif to == "pending":
        changes.setdefault("planned_start", None)
    if reservation.run is not None and (to in ENDED or to == "pending"):
        changes.setdefault("run", WAITING if to == "pending" else _ended(reservation.run))
    moved = msgspec.structs.replace(reservation, phase=to, changed_at=now, reason=reason, **changes)
    detail: dict[str, Any] = {"from": reservation.phase}
    if reason:
        detail["reason"] = reason
    if to == "leased" and not reservation.token:
        # Only for the first lease: a reservation that was leased before has a token.
        detail["waited"] = max(0.0, now - reservation.created_at)
    if moved.leases:
        detail["slots"] = [lease.slot for lease in moved.leases]
    detail.update(details)
    return moved, Event(at=now, name=f"reservation_{to}", cause=cause, reservation=reservation.id, detail=detail)


def _ended(run: RunState) -> RunState:
    """Return the state of a command whose reservation has ended. A host may report later how the command ended."""
    return run if run.state == "ended" else RunState("ended")
