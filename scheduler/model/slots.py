"""The rows of slots. A slot has at most one machine at a time. The slot is reused: each launch on a slot begins a new
epoch.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from scheduler.model.events import Event
from scheduler.model.transitions import HOLDING, SLOT_MOVES, Cause, SlotState, check_move

Market = Literal["spot", "on-demand"]
CostKind = Literal["used", "booting", "idle", "draining", "interrupted", "stopped", "unbound", "adjusted"]
"""What a machine did: `used` = it had a lease; `booting` = it was not ready yet; `idle` = it was ready without a lease;
`draining` = it took no more leases, until the cloud reported its end; `interrupted` = after the notice of an
interruption, with or without leases; `stopped` = it was stopped, and only its storage costs something; `unbound` = it
had no slot. `adjusted` has no time: it is what EC2 bills more (positive) or less (negative) than the price of all this
time.
"""
ADOPTED = "adopted"
"""The `launch_reason` of a slot whose machine this cluster did not launch, but found by its tags."""
TRIAL = "doctor-"
"""The begin of the launch id of a machine that `leasehold doctor` launches. Such a machine belongs to no slot."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as the cloud reports it: a copy of the state and the tags of an EC2 instance."""

    id: str
    state: Literal["pending", "running", "stopping", "stopped", "terminated"]
    address: str | None = None
    """The address unless the pool's rules choose another one of `addresses`."""
    addresses: Mapping[str, str] = {}
    """Kind (private, public, ipv6, dns) -> address."""
    type: str | None = None
    zone: str | None = None
    subnet: str | None = None
    market: Market | None = None
    launched_at: float | None = None
    healthy: bool | None = None
    """Result of EC2's status checks; None while it is unknown."""
    interrupted: bool = False
    """Whether the cloud is ending this spot machine, or has ended it, to take its capacity back."""
    reason: str = ""
    """Why the machine was stopped or ended, as `CODE: message` with the cloud's own words; "": it was not, or the cloud
    gives no reason.
    """
    category: str | None = None
    scope: str | None = None
    """`Category` and `Scope` of `reason` as of a refused launch; None: the reason concerns this machine only."""
    slot: str | None = None
    pool: str | None = None
    launch_id: str | None = None
    offering: str | None = None
    cluster_id: str | None = None
    """Identity of the cluster that launched the machine. None: an older version of Leasehold launched it without this
    tag.
    """
    alive: str = ""
    """The last sign of life of an installation of the cluster: its name, a space, and cluster time; "": none."""
    batch: str | None = None
    """Id of the batch of launches that the machine belongs to; None for a machine that was launched alone."""
    highest_term: int = 0
    highest_token: int = 0
    """Highest fencing token when the machine was launched. This field and the seven before it are read from the
    machine's tags.
    """

    @property
    def is_trial(self) -> bool:
        """Whether `leasehold doctor` launched the machine. No slot may adopt it."""
        return (self.launch_id or "").startswith(TRIAL)


class Meter(msgspec.Struct, frozen=True, gc=False):
    """The open interval of the cost ledger for a slot's machine: what the machine does, and its price. `since`: the
    begin of the interval, in seconds since the epoch.
    """

    since: float
    kind: CostKind
    offering: str = ""
    account: str = ""
    """The account whose demand caused the launch; "": no account did."""
    price: float | None = None
    """Price of the machine in dollars per hour; None or 0: the price is unknown."""
    phase: Literal["pending", "running", "ending"] = "running"
    """`pending`: EC2 starts the machine. `ending`: EC2 shuts it down. Both are free."""
    ran: float = 0.0
    paid: float = 0.0
    """Seconds and dollars that EC2 has billed since the machine was started last, without this interval."""
    spot: float | None = None
    """The spot price that EC2 bills now, in dollars per hour, if it changed since the launch; None: `price`."""
    volume: float = 0.0
    address: float = 0.0
    """Prices of the machine's volume and of its public IPv4 address in dollars per hour; 0: there is none, or its price
    is unknown. The volume exists in each phase; the address is billed while the machine runs.
    """


class PublicSlot(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row of a slot, as clients read it. Times are seconds since the epoch; a time is None if it has not come yet.

    `version` counts the writes that changed more than a time stamp; `marked_at` is the time of the last write of any
    kind. Of two copies of a row, the one with the greater (`version`, `marked_at`) is newer. These two must stay the
    first fields, because the Lua code of the view cache reads them from the start of the JSON.
    """

    version: int = 0
    marked_at: float = 0.0
    id: str
    pool: str
    state: SlotState = "empty"
    epoch: int = 0
    """Number of machines that the slot has had. A lease or a termination belongs to one epoch."""
    since: float = 0.0
    """Time at which the slot entered its present state."""
    idle_since: float | None = None
    """Time at which the slot became ready or its last lease ended; None while it has a lease."""
    offering: str | None = None
    """Key of the offering from which the machine was launched: `name`, or `name/market` if the name is not unique."""
    market: Market | None = None
    price: float | None = None
    resources: dict[str, float] | None = None
    """Resource name -> amount that the slot has. None: only the number of leases on the slot is limited."""
    labels: dict[str, str] = {}
    cordoned: bool = False
    last_seen: float | None = None
    interrupted_by: float | None = None
    """Time at which the interrupted machine will be gone."""
    drain_reason: str | None = None
    """Why the slot is draining, or why the next tick must drain it: `requested`, `leaving`, `interrupted`, `idle` or
    another reason.
    """
    error: str | None = None
    """Category of the error of the failed launch, in the state `error`."""
    refusal: str | None = None
    """Why the cloud refused or ended the slot's last machine, or refuses to terminate it, as `CODE: message`; None: it
    did not. The text is kept until the next launch of the slot.
    """
    instance_id: str | None = None
    address: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    subnet: str | None = None
    machine: str | None = None
    """Id of the machine, as the agent on it registered it: for a launched machine the instance id. The id of a static
    host is kept while the host is away, so that no other host gets the slot.
    """
    uses: int = 0
    """Number of leases that the slot's present machine has had."""
    launched_at: float | None = None
    """Time at which the launch of the slot's present machine was decided. The age of the machine counts from here."""


class Slot(PublicSlot, frozen=True, kw_only=True, gc=False):
    """The row of a slot as the database and the view hold it, with internal fields."""

    @property
    def free_since(self) -> float:
        """When the slot's last lease ended, else when the slot entered its state."""
        return self.since if self.idle_since is None else self.idle_since

    @property
    def is_host(self) -> bool:
        """Whether the machine of the slot is a host that registered itself, and was not launched."""
        return self.machine is not None and self.launch_id is None

    interrupted_at: float | None = None
    """Time at which the interruption notice arrived; None without a notice."""
    launch_id: str | None = None
    launch_reason: str | None = None
    batch: str | None = None
    """Id of the batch of launches that the slot belongs to: one request to the cloud asks for the machines of all its
    slots. None: the slot is launched alone.
    """
    gang: str | None = None
    """Id of the reservation that needs the machines of the whole batch at the same time; None: each of them is of use
    alone.
    """
    launch_request: dict[str, Any] | None = None
    """The complete launch request to the cloud. It is stored before it is sent, so that a repetition is
    exactly equal. The request of a batch is stored on the first of its slots, until the cloud has answered. The view
    has only the image of it (`without_user_data`).
    """
    attempts: int = 0
    """Number of attempts so far at the launch or termination that is under way."""
    not_before: float = 0.0
    """Earliest time of the next attempt at the launch or termination that is under way."""
    sent_at: float = 0.0
    """Time at which a task for the launch or termination that is under way was last sent to its queue."""
    missed: int = 0
    """How many checks in a row did not find the slot's machine in the cloud."""
    failed_probes: int = 0
    """Number of probes in a row that failed after the machine was ready."""
    unconfirmed: int = 0
    """Number of leases in a row on this machine that no holder confirmed."""
    stranger: str | None = None
    """Id of a reservation that is unknown here and was reported to run on the slot (`confirm`). The slot takes no
    leases until it is reported as idle.
    """
    noted_at: float | None = None
    """Time of the newest report about what runs on the slot (`confirm`, `idle`). Older reports are ignored."""
    launch_digest: str | None = None
    """Hashes of the template, image, user data, network and tags that the machine was launched from: see
    `model.lives.digest_launch`. None: not known.
    """
    heartbeat: int = 0
    """Counter of the host's newest signed heartbeat. A heartbeat with the same or a lower counter is a copy, and is
    ignored.
    """
    run: str | None = None
    """Id of the run of the host's agent that has registered last; None: it sent none."""
    launched_for: str | None = None
    """The account whose demand caused the launch; None: no account did, or the machine was not launched for demand."""
    power: Literal["start", "stop"] | None = None
    """The decision about the machine that the cloud has not confirmed yet: `stop` in the state `stopped`, `start` in
    the state `booting`. It is stored before the cloud is called. None: nothing is to be confirmed.
    """
    storage_price: float | None = None
    """Price of the storage of a stopped machine in dollars per hour; None: it is unknown."""
    meter: Meter | None = None
    """The open interval of the cost ledger; None: the slot has no machine. Only the unit of work changes it."""


_DIGITS = "0123456789"


def has_machine_of(slot: PublicSlot, epoch: int) -> bool:
    """Return whether a slot still has the machine of a lease that was granted in this epoch of the slot: the slot has
    this epoch, and is in a state in which slots have leases. A slot keeps its epoch when its machine is gone.
    """
    return slot.epoch == epoch and slot.state in HOLDING


def slot_order(slot_id: str) -> tuple[str, int, str]:
    """Return a key that sorts the slots of a pool by their number: `linux-2` before `linux-10`. An id without a number
    is sorted as text.
    """
    name = slot_id.rstrip(_DIGITS)
    return (name, int(slot_id[len(name) :]), slot_id) if len(name) < len(slot_id) else (slot_id, -1, slot_id)


def list_batches(slots: Iterable[Slot]) -> list[str]:
    """Return the ids of the batches of launches to which these slots belong, each once, in the order of the slots."""
    return list(dict.fromkeys(slot.batch for slot in slots if slot.batch is not None))


def find_requested_image(request: Mapping[str, Any] | None) -> str | None:
    """Return the id of the image in a launch request; None if there is no request, or if the request names none."""
    parameters = (request or {}).get("parameters", {})
    if image := parameters.get("ImageId"):
        return str(image)
    overrides = (each for part in parameters.get("LaunchTemplateConfigs", ()) for each in part.get("Overrides", ()))
    return next((str(image) for each in overrides if (image := each.get("ImageId"))), None)


def without_user_data(slot: Slot) -> Slot:
    """Return a slot as the view has it. Of the launch request, which contains the user data of the pool, it keeps only
    the image: every reader of the view can read all of it.
    """
    if slot.launch_request is None:
        return slot
    image = find_requested_image(slot.launch_request)
    kept = None if image is None else {"parameters": {"ImageId": image}}
    return slot if slot.launch_request == kept else msgspec.structs.replace(slot, launch_request=kept)


def move_slot(slot: Slot, to: SlotState, cause: Cause, now: float, **changes: Any) -> tuple[Slot, Event]:
    """Return the slot after a change of its state, and the event about the change.

    `changes` are new values of fields. Two keys are special: `reason` goes into the event; `event` replaces the event's
    name. A new `refusal` goes into both. Raises IllegalMoveError if SLOT_MOVES does not permit the change for this
    cause.
    """
    check_move(SLOT_MOVES, "slot", slot.id, (slot.state, to), cause)
    name, reason = changes.pop("event", f"slot_{to}"), changes.pop("reason", None)
    moved = msgspec.structs.replace(slot, state=to, since=now, **changes)
    detail: dict[str, Any] = {"from": slot.state, "epoch": moved.epoch} | ({"reason": reason} if reason else {})
    if refusal := changes.get("refusal"):
        detail["refusal"] = refusal
    return moved, Event(at=now, name=name, cause=cause, slot=slot.id, detail=detail)


def without_machine(slot: Slot) -> dict[str, Any]:
    """Return the field values that remove everything about its machine from a slot. The slot keeps its epoch and the id
    of its host.

    The slot of a static host (one that was never launched) also keeps its resources and labels, because the host may
    come back. So reservations that it could serve do not wait with `never_fits`.
    """
    is_host = slot.launch_id is None
    return {
        "idle_since": None,
        "offering": None,
        "market": None,
        "price": None,
        "resources": slot.resources if is_host else None,
        "labels": slot.labels if is_host else {},
        "machine": slot.machine if is_host else None,
        "run": slot.run if is_host else None,
        "last_seen": None,
        "interrupted_at": None,
        "interrupted_by": None,
        "drain_reason": None,
        "error": None,
        "launch_id": None,
        "launch_reason": None,
        "batch": None,
        "gang": None,
        "launched_for": None,
        "launch_request": None,
        "attempts": 0,
        "not_before": 0.0,
        "sent_at": 0.0,
        "instance_id": None,
        "address": None,
        "instance_type": None,
        "zone": None,
        "subnet": None,
        "missed": 0,
        "uses": 0,
        "launched_at": None,
        "launch_digest": None,
        "power": None,
        "storage_price": None,
        "failed_probes": 0,
        "unconfirmed": 0,
        "stranger": None,
        "noted_at": None,
    }
