"""The rows of reservations, and their leases of slots.

A view may have a million of them. They cannot form reference cycles, so the garbage collector leaves them out
(`gc=False`).
"""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import msgspec

from scheduler.model.accounts import FREE, NOTHING, Levels, add, at_level
from scheduler.model.events import Event
from scheduler.model.labels import Labels
from scheduler.model.labels import shape_of as shape_of_labels
from scheduler.model.resources import shape_of as shape_of_resources
from scheduler.model.transitions import ENDED, RESERVATION_MOVES, Cause, Phase, check_move

ComponentKind = Literal["essential", "elastic"]
LeaseState = Literal["held", "revoking", "claimed"]


class Component(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """`count` equal instances, each on one slot. The essential ones of a reservation are placed all at once or not at
    all.
    """

    name: str
    count: int = 1
    kind: ComponentKind = "essential"
    resources: dict[str, float] = {}
    labels: dict[str, str] = {}


class Instance(msgspec.Struct, frozen=True, gc=False):
    """One instance of a component: `name` if its count is 1, else `name.0`, `name.1`, …"""

    name: str
    component: Component


@dataclass(frozen=True, eq=False, slots=True)
class Shape:
    """The parts of a request that decide where it can run. The view keeps one object for all equal requests, so that a
    tick computes once what holds for all of them. Compare shapes by identity.
    """

    system: str | None
    pool: str | None
    components: tuple[Component, ...]
    labels: Labels
    prefers: Labels
    essential: "Instances"
    """The essential instances, in the order in which they are placed."""
    elastic: "Instances"
    """The elastic instances, in the order in which they are granted. They are reclaimed in the reverse order."""


class Instances(Sequence[Instance]):
    """The instances of some components, created when the first one is read. Most large gangs that wait are only
    counted, and creating 10,000 instances takes as long as the rest of a tick.
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
    """A Celery task of the producer's application, sent when a lease is assigned or a reservation ends."""

    task: str
    queue: str


class PublicRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What was requested, as clients read it. It never changes."""

    system: str | None = None
    pool: str | None = None
    components: tuple[Component, ...] = ()
    labels: dict[str, str] = {}
    prefers: dict[str, str] = {}
    account: str | None = None
    size: float = 0
    ttl: float | None = None
    """Seconds; 0: it never expires; None: the pool's rule."""
    restart_policy: Literal["never", "on_failure"] = "never"
    on_interruption: Literal["requeue", "fail"] = "requeue"
    preemptible: bool = True
    runtime: float | None = None
    tags: dict[str, str] = {}


class Request(PublicRequest, frozen=True, kw_only=True, gc=False):
    """A request as it is stored, with the producer's callbacks."""

    on_lease: Callback | None = None
    on_end: Callback | None = None

    @property
    def instances(self) -> int:
        """Return how many instances its components have together."""
        return sum(component.count for component in self.components)


class Lease(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The lease of one component instance on one slot, in one epoch of that slot.

    `token` is the fencing token: essential leases have that of their reservation, each elastic lease has its own.
    `resources` are the amounts that it holds. A lease in state `revoking` has to be released by `revoke_by`. A lease
    in state `claimed` nominates the slot for a pending reservation until the leases that it preempts have ended; its
    token is 0.
    """

    component: str
    kind: ComponentKind = "essential"
    slot: str
    epoch: int
    token: int
    resources: dict[str, float] = {}
    level: int = FREE
    """Quota level at which it runs."""
    cost: Levels = NOTHING
    """Worker-seconds by level that it has used up to `charged_at`, and those that it took over from leases that it
    preempted.
    """
    charged_at: float | None = None
    """`cost` contains its use up to this instant; None: its use is not charged."""
    weight: float = 1.0
    """What a second of it costs: 1 for one worker, a share of the slot, or dollars (`charge_by`)."""
    cores: float | None = None
    """Cpus of its slot that it may use at present, including its share of the spare ones; None: those that it holds."""
    assigned_at: float
    confirmed_at: float | None = None
    state: LeaseState = "held"
    revoke_by: float | None = None


class PublicReservation(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A reservation as clients read it. Times are seconds since the epoch.

    `version` and `marked_at` order the copies of a row as they do for slots, and stay the first fields.
    """

    version: int = 0
    marked_at: float = 0.0
    """When the row was written last."""
    id: str
    sequence: int = 0
    """Order of submission."""
    phase: Phase = "pending"
    reason: str | None = None
    """Why the phase is what it is: the reason of the last change."""
    changed_at: float = 0.0
    """When the phase changed last."""
    priority: float = 1
    request: PublicRequest
    created_at: float
    expires_at: float | None = None
    """It expires when now >= this; None = never."""
    leased_at: float | None = None
    confirmed_at: float | None = None
    finished_at: float | None = None
    restarts: int = 0
    component_restarts: dict[str, int] | None = None
    """By instance: how often it failed and was to be started again. An essential one restarts with its reservation, by
    the restart policy; an elastic one alone, by the next grant. None: no instance ever did.
    """
    interruptions: int = 0
    token: int = 0
    """The current fencing token; it changes whenever the essential leases are assigned or moved."""
    revoke_reason: str | None = None
    revoke_by: float | None = None
    """While `revoking`: why, and when its leases are taken at the latest."""
    leases: tuple[Lease, ...] = ()
    principal: str | None = None
    """The principal that submitted it; None: the message was not signed."""


class Reservation(PublicReservation, frozen=True, kw_only=True, gc=False):
    """A reservation as stored and viewed, with its leases."""

    request: Request
    failed_at: float | None = None
    restarted_at: float | None = None
    unconfirmed: int = 0
    """Assignments in a row that were not confirmed."""
    suspended: bool = False
    declined: tuple[str, ...] = ()
    """While it waits: slots that its next assignment leaves out. While it is leased: elastic instances that its holder
    gave back, whose components get no further grant.
    """
    key_hash: str | None = None
    """SHA-256, in hexadecimal, of the key that its holder proves itself by; None: its token is enough."""
    instances: int | None = None
    """How many instances its request has; None: an older version stored it."""


def list_instances(request: Request, kind: ComponentKind) -> Instances:
    """Return the component instances of one kind, in the order in which they are placed."""
    return Instances(component for component in request.components if component.kind == kind)


def shape_key(request: Request) -> Hashable:
    """Return a key that is equal for requests of the same shape."""
    components = tuple(
        (each.name, each.count, each.kind, shape_of_resources(each.resources), shape_of_labels(each.labels))
        for each in request.components
    )
    return (request.system, request.pool, components, shape_of_labels(request.labels), shape_of_labels(request.prefers))


def make_shape(request: Request) -> Shape:
    """Return the shape of a request."""
    return Shape(
        system=request.system,
        pool=request.pool,
        components=request.components,
        labels=request.labels,
        prefers=request.prefers,
        essential=list_instances(request, "essential"),
        elastic=list_instances(request, "elastic"),
    )


def usable_cores(lease: Lease) -> float | None:
    """Return the cpus of its slot that a lease may use at present; None if it requested none and none were reported."""
    return lease.resources.get("cpus") if lease.cores is None else lease.cores


def cost_until(lease: Lease, now: float) -> Levels:
    """Return what a lease has used by paid level up to `now`."""
    if lease.charged_at is None or now <= lease.charged_at:
        return lease.cost
    return add(lease.cost, at_level(lease.level, lease.weight * (now - lease.charged_at)))


def is_over(reservation: PublicReservation) -> bool:
    """Return whether a reservation has ended and its policy does not restart it."""
    return reservation.phase in ENDED and not may_restart(reservation)


def is_on_hold(reservation: Reservation) -> bool:
    """Return whether it is suspended or has priority 0, so that it is not served while it waits."""
    return reservation.suspended or reservation.priority == 0


def is_special(reservation: Reservation) -> bool:
    """Return whether it is placed otherwise than its shape: it is on hold, declined slots, was interrupted or has a
    claim.
    """
    odd = is_on_hold(reservation) or reservation.declined or reservation.interruptions or is_claimant(reservation)
    return bool(odd)


def is_claimant(reservation: Reservation) -> bool:
    """Return whether it has a claim: it waits for slots that other reservations still have to release."""
    return reservation.phase == "pending" and bool(reservation.leases)


def may_restart(reservation: PublicReservation) -> bool:
    """Return whether it failed and its policy restarts it. Whether a restart is left is decided by `max_restarts`."""
    return reservation.phase == "failed" and reservation.request.restart_policy == "on_failure"


def move_reservation(
    reservation: Reservation, to: Phase, cause: Cause, now: float, **changes: Any
) -> tuple[Reservation, Event]:
    """Return the reservation after a legal transition, and the event of it. `reason` in `changes` is kept in both;
    `told` has further fields of the event.

    Raises IllegalMoveError for a transition that RESERVATION_MOVES does not have for this cause.
    """
    check_move(RESERVATION_MOVES, "reservation", reservation.id, (reservation.phase, to), cause)
    told: dict[str, Any] = changes.pop("told", {})
    changes.setdefault("reason", None)
    if to in ENDED:
        changes.setdefault("finished_at", now)
    moved = msgspec.structs.replace(reservation, phase=to, changed_at=now, **changes)
    detail: dict[str, Any] = {"from": reservation.phase}
    if moved.reason:
        detail["reason"] = moved.reason
    if to == "leased" and not reservation.token:
        # Its first lease: whoever was leased before keeps the token of that.
        detail["waited"] = max(0.0, now - reservation.created_at)
    if moved.leases:
        detail["slots"] = [lease.slot for lease in moved.leases]
    event = Event(at=now, name=f"reservation_{to}", cause=cause, reservation=reservation.id, detail=detail | told)
    return moved, event
