"""Scenarios: the files that `leasehold simulate` runs. The whole file is read and checked before anything runs.

The steps of a timeline are read in order. A step may only name what was declared before it.

A field of the initial state (slots, reservations and launch back-offs, written by users or by `leasehold snapshot`)
that is missing gets its default; a field that is null stays null. Times are seconds from the start of the scenario; a
negative time is before the start.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec

from scheduler.model.accounts import NOTHING
from scheduler.model.command_schemas import SCHEMAS, AbsentDocument, IdleDocument, RegisterDocument, ReservationDocument
from scheduler.model.documents import make_reader
from scheduler.model.input_texts import parse_json, parse_toml
from scheduler.model.launch_backoff import Kind
from scheduler.model.pools import find_pool_of_number
from scheduler.model.reservations import list_instances
from scheduler.model.rules import AccountKeys, Rules, merge_rules, read_rules
from scheduler.model.run_times import find_size, name_class
from scheduler.model.slots import Market
from scheduler.model.transitions import SlotState
from scheduler.model.validation import (
    Amount,
    Before,
    Count,
    Declined,
    Document,
    ExpectedError,
    InvalidInputError,
    LabelMap,
    Levels,
    Name,
    ResourceMap,
    Seconds,
    Signed,
    SignedLevels,
    Text,
    expected,
    fault,
    format_path,
    is_number,
    read_document,
    suggest,
)
from scheduler.protocol.input_files import read_input_text
from scheduler.protocol.verbs import VERBS
from scheduler.simulation.cloud_documents import (
    CloudDocument,
    FoundDocument,
    OutageDocument,
    check_offering,
    read_simulated_cloud,
)


class InterruptAction(Document):
    """Timeline action `interrupt`: EC2 announces that it ends the machine of this spot slot in `deadline` seconds."""

    slot: Name
    deadline: Seconds = 120.0


class MaintainAction(Document):
    """Timeline action `maintain`: AWS Health announces a change of this slot's machine that begins in `begins_in`
    seconds.
    """

    slot: Name
    begins_in: Seconds = 14 * 86_400.0
    code: Name = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
    """The name of the change at AWS. With RETIREMENT in it, the machine ends when the change begins."""


class PartAction(Document):
    """The value of the timeline action `fail`: a reservation, or one component of it, failed. `component` None: the
    whole reservation.
    """

    reservation: Name
    component: Name | None = None


class SurrenderAction(PartAction):
    """The value of the timeline action `surrender`: the holder gives leases back. `component` None: all that is being
    revoked. `want`: the most instances of the component that the holder wants from now on.
    """

    want: Count | None = None


class PriorityAction(Document):
    """Timeline action `priority`: give a reservation a new priority."""

    reservation: Name
    priority: Amount


class ConfirmAction(Document):
    """Timeline action `confirm`: the holder confirms that the reservation runs on the slot."""

    reservation: Name
    slot: Name
    as_of: Signed | None = None
    """When the holder observed that the reservation runs, in seconds from the start of the scenario; default: now."""


class AccountAction(AccountKeys):
    """Timeline action `account`: create an account, or change the given settings of an existing one. The balance stays
    unless `balance` is given.
    """

    id: Name
    balance: SignedLevels | None = None


MAY_BE_UNKNOWN = frozenset({"release", "cancel", "renew", "confirm", "absent", "idle", "seen"})
"""Timeline actions whose ids of slots or reservations need not be declared earlier in the scenario."""

_OF_HOLDERS = [name for name, each in VERBS.items() if each.document == "HolderDocument"]
_OF_SLOTS = [name for name, each in VERBS.items() if each.document == "SlotDocument"]
ABOUT_SLOTS = frozenset({"seen", "rebalance", "lose", *_OF_SLOTS})
"""Timeline actions whose value is the id of a slot. An id in another action is that of a reservation or account."""

ACTIONS: dict[str, type[Document] | None] = {
    **dict.fromkeys((*_OF_HOLDERS, *_OF_SLOTS)),
    "tick": None,
    "submit": None,
    "slot": None,
    "rules": None,
    "cancel": None,
    "surrender": SurrenderAction,
    "confirm": ConfirmAction,
    "absent": AbsentDocument,
    "idle": IdleDocument,
    "account": AccountAction,
    "forget_account": None,
    "reset_account": None,
    "fail": PartAction,
    "priority": PriorityAction,
    "register": None,
    "seen": None,
    "found": FoundDocument,
    "interrupt": InterruptAction,
    "rebalance": None,
    "maintain": MaintainAction,
    "lose": None,
    "outage": OutageDocument,
}
"""The name of each timeline action -> the document that checks its value. None: the value is an id, or a method of
StepReader checks the value.
"""


def make_document(action: str, value: Any) -> Document:
    """Return the command document that a client would send for this timeline action. `value`: the checked value of the
    action.
    """
    schema = SCHEMAS[action]
    match value:
        case AccountAction():
            return schema(account=value.id, **value.model_dump(mode="json", exclude_unset=True, exclude={"id"}))
        case Document():
            return schema(**value.model_dump())
    if action in ABOUT_SLOTS:
        return schema(slot=value)
    return schema(account=value) if action.endswith("_account") else schema(reservation=value)


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
    principal: Name | None = None
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
    planned_start: Signed | None = None


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


class RunTimesRecord(Document):
    """The run times of one class of work that are known at the start of a scenario. The fields that are given state the
    class: `instances` and `cpus` that of one size, else `job` and `system` that of a job, else `account` and
    `principal` that of a sender, else that of all work.
    """

    account: Name | None = None
    principal: Name | None = None
    job: Text | None = None
    system: Name | None = None
    instances: Count = 1
    cpus: Amount = 0.0
    seconds: tuple[Seconds, ...]
    """The run times of the last released leases, the oldest first."""
    ratios: tuple[Amount, ...] = ()
    """Run time / `expected_runtime` of those that had one."""

    @property
    def name(self) -> str:
        """Return the id of the class."""
        keys = ("account", "principal", "job", "system", "instances", "cpus")
        last = max((at for at, key in enumerate(keys, 1) if key in self.model_fields_set), default=0)
        parts = (self.account, self.principal, self.job, self.system, *find_size(self.instances, self.cpus))
        return name_class(parts[: last + last % 2])


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


_read_name = make_reader(Name)
MOST_NEAR: Final = 1000
"""The most slot ids of the form POOL-NUMBER with which an unknown id is compared, to propose a similar id in the
error.
"""
MOST_INSTANT: Final = 4e9
"""Seconds since the epoch (the year 2096) before which a scenario has to start."""


MOST_BYTES: Final = 256 * 1024 * 1024
"""The most bytes of a scenario. A snapshot of 100,000 reservations has about a third."""


class Step(msgspec.Struct, frozen=True):
    """One item of a scenario's timeline: the time, the name of the action, and the checked value."""

    at: float
    action: str
    value: Any
    path: str


class Scenario(msgspec.Struct, frozen=True):
    """A checked scenario. `config`: the rules at its start, as a document. `rules`: these rules, checked. A step with
    the action `rules` has the whole rules that are in force after it.
    """

    name: str
    config: dict[str, Any]
    rules: Rules
    cloud: CloudDocument
    slots: tuple[SlotRecord, ...]
    reservations: tuple[ReservationRecord, ...]
    holds: tuple[HoldRecord, ...]
    run_times: tuple[RunTimesRecord, ...]
    timeline: tuple[Step, ...]
    tick_every: float | None
    kicks: bool
    wakes: bool
    until: float
    starts_at: float
    """The time, in seconds since the epoch, at which the scenario's time is 0."""


def _instant(value: object) -> float:
    """Return an instant in seconds since the epoch. `value`: a number of seconds since the epoch, or a date and time
    with its offset from UTC. Raises ExpectedError for anything else.
    """
    if is_number(value) and 0 <= value < MOST_INSTANT:
        return value
    with suppress(ValueError):
        at = datetime.fromisoformat(value) if isinstance(value, str) else value
        if isinstance(at, datetime) and at.tzinfo is not None and 0 <= at.timestamp() < MOST_INSTANT:
            return at.timestamp()
    raise expected("a date and time with an offset, like 2027-03-28T00:00:00+01:00")


class _TopDocument(Document):
    """The top-level keys of a scenario file. The values of the lists and tables (`slots`, `config`, ...) are checked in
    detail later.
    """

    name: Text = "scenario"
    config: dict[str, Any] = {}
    cloud: dict[str, Any] = {}
    slots: list[Any] = []
    reservations: list[Any] = []
    holds: list[Any] = []
    run_times: list[Any] = []
    timeline: list[Any] = []
    tick_every: Seconds | None = None
    kicks: bool = False
    wakes: bool = False
    until: Amount = 0.0
    starts_at: Annotated[float, Before(_instant)] = 0.0


class _At(Document):
    at: Amount


def load_scenario(path: Path) -> Scenario:
    """Read and check a scenario file, JSON or TOML. Raises InvalidInputError with one line for the first fault."""
    try:
        text = read_input_text(path, MOST_BYTES)
        document = parse_toml(text) if path.suffix.lower() == ".toml" else parse_json(text)
    except OSError as error:
        raise fault(str(path), "a file that can be read", error.strerror or "nothing") from None
    except ValueError as error:  # no JSON, no TOML, no UTF-8, a number of thousands of digits
        raise fault(str(path), "JSON (or TOML in a .toml file)", str(error)) from None
    return read_scenario(document)


def read_scenario(document: object) -> Scenario:
    """Check a whole scenario and return it. Raises InvalidInputError with the first fault only, so that bad input gives
    one line.
    """
    try:
        top = read_document(_TopDocument, document)
        rules = read_rules(top.config, "config")
        reader = StepReader(rules, top.config)
        reservations = tuple(
            read_document(ReservationRecord, each, f"reservations[{index}]")
            for index, each in enumerate(top.reservations)
        )
        reader.declare(reservations)
        slots = tuple(reader.read_slot(each, f"slots[{index}]") for index, each in enumerate(top.slots))
        timeline = tuple(reader.read_step(each, f"timeline[{index}]") for index, each in enumerate(top.timeline))
        if top.tick_every == 0:
            raise fault("tick_every", "a duration > 0", 0)
        return Scenario(
            name=top.name,
            config=top.config,
            rules=rules,
            cloud=read_simulated_cloud(top.cloud, rules),
            slots=slots,
            reservations=reservations,
            holds=tuple(reader.read_hold(each, f"holds[{index}]") for index, each in enumerate(top.holds)),
            run_times=_read_run_times(top.run_times),
            timeline=timeline,
            tick_every=top.tick_every,
            kicks=top.kicks,
            wakes=top.wakes,
            until=top.until,
            starts_at=top.starts_at,
        )
    except InvalidInputError as error:
        raise InvalidInputError(error.faults[:1]) from None


def _read_run_times(values: list[Any]) -> tuple[RunTimesRecord, ...]:
    found: dict[str, RunTimesRecord] = {}
    for index, value in enumerate(values):
        path = f"run_times[{index}]"
        record = read_document(RunTimesRecord, value, path)
        if not record.seconds:
            raise fault(f"{path}.seconds", "at least one run time", [])
        if record.name in found:
            raise fault(path, "each class once", record.name)
        found[record.name] = record
    return tuple(found.values())


class StepReader:
    """Reads the steps of a timeline in order. It records the ids of declared slots, reservations and accounts, because
    a step may only name what was declared before it.
    """

    def __init__(self, rules: Rules, config: dict[str, Any]) -> None:
        self._at = 0.0
        self._config = config
        self._slots: set[str] = set()
        self._most: dict[str, int] = {}
        """Pool -> the highest number of its slots. A slot POOL-NUMBER up to this number counts as declared."""
        self._reservations: dict[str, ReservationDocument] = {}
        self._accounts: set[str] = set()
        self._take_rules(rules)

    def _take_rules(self, rules: Rules) -> None:
        self._rules = rules
        self._accounts.update(rules.accounts)
        for name, pool in rules.pools.items():
            self._most[name] = max(pool.most_slots, self._most.get(name, 0))

    def declare(self, documents: Iterable[ReservationDocument]) -> None:
        """Record the ids of these reservations, so that later steps may name them. If two have the same id, the first
        counts.
        """
        for document in documents:
            self._reservations.setdefault(document.id, document)

    def read_slot(self, value: object, path: str) -> SlotRecord:
        """Read a slot record, and record its id. Raises InvalidInputError unless the rules have the slot's pool."""
        slot = read_document(SlotRecord, value, path)
        if slot.pool not in self._rules.pools:
            raise fault(f"{path}.pool", f"a pool of config{suggest(slot.pool, self._rules.pools)}", slot.pool)
        offerings = self._rules.pools[slot.pool].offering_by_key
        is_open = any(each.require is not None for each in offerings.values())
        is_known = slot.market is not None or is_open or not offerings or slot.offering in offerings
        if slot.offering is not None and not is_known:
            raise fault(f"{path}.offering", f"one of {', '.join(offerings)}", slot.offering)
        for number, lease in enumerate(slot.leases):
            self._check_lease(lease, f"{path}.leases[{number}]")
        self._slots.add(slot.id)
        return slot

    def read_hold(self, value: object, path: str) -> HoldRecord:
        """Read a launch back-off (hold). Raises InvalidInputError if its pool is neither `*` nor in the rules."""
        hold = read_document(HoldRecord, value, path)
        if hold.pool != "*" and hold.pool not in self._rules.pools:
            raise fault(f"{path}.pool", f"a pool of config, or *{suggest(hold.pool, self._rules.pools)}", hold.pool)
        return hold

    def _read_registration(self, value: object, path: str) -> RegisterDocument:
        """Read the slot record of a `register` action: a slot of a static pool, and the machine that registers."""
        given = self.read_slot(value, path)
        if self._rules.pools[given.pool].is_elastic:
            raise fault(f"{path}.pool", "a pool of static hosts", given.pool)
        if not given.machine:
            raise fault(f"{path}.machine", "the id of a machine", given.machine)
        return RegisterDocument(slot=given.id, **given.model_dump(include={"pool", "machine", "resources", "labels"}))

    def _check_lease(self, lease: LeaseRecord, path: str) -> None:
        """Raise InvalidInputError unless a lease names a reservation that was declared before, and one of its
        components.
        """
        self._check_reservation(lease.reservation, f"{path}.reservation")
        request = self._reservations[lease.reservation].request
        names = [each.name for kind in ("essential", "elastic") for each in list_instances(request, kind)]
        if lease.component not in names:
            raise fault(f"{path}.component", f"one of {', '.join(names[:10])}", lease.component)

    def _check_reservation(self, name: str, path: str) -> None:
        if name not in self._reservations:
            near = suggest(name, self._reservations)
            raise fault(path, f"a reservation that was declared{near}", name)

    def read_step(self, value: object, path: str) -> Step:
        """Read one item of the timeline: `at`, and exactly one action."""
        if not isinstance(value, Mapping):
            raise fault(path, "a table with `at` and one action", value)
        names = [name for name in value if name != "at"]
        if len(names) != 1:
            raise fault(path, "`at` and exactly one action", names)
        at = read_document(_At, {"at": value.get("at")} if "at" in value else {}, path).at
        if at < self._at:
            raise fault(f"{path}.at", f"a number >= {self._at:g} (times never decrease)", at)
        self._at = at
        return self._read_action(at, names[0], value[names[0]], path)

    def _read_action(self, at: float, name: str, value: object, path: str) -> Step:
        if name not in ACTIONS:
            raise fault(path, f"a known action{suggest(name, ACTIONS)}", name)
        where = f"{path}.{name}"
        match name:
            case "tick":
                checked: Any = self._read_tick(at, value, where)
            case "submit":
                checked = _read_submit(value, where)
                self.declare(checked)
            case "slot":
                checked = self.read_slot(value, where)
            case "register":
                checked = self._read_registration(value, where)
            case "rules":
                checked = self._read_rules(value, where)
            case "absent":
                given = {"reservation": value} if isinstance(value, str) else value
                checked = read_document(AbsentDocument, given, where)
            case "account":
                checked = read_document(AccountAction, value, where)
                self._accounts.add(checked.id)
            case "forget_account" | "reset_account":
                checked = self._read_account_name(value, where)
            case _:
                checked = self._read_plain(name, value, where)
        return Step(at, name, checked, where)

    def _read_account_name(self, value: object, path: str) -> str:
        """Read the id of an account that was declared before. The account may have been forgotten (deleted) since."""
        if not isinstance(value, str) or value not in self._accounts:
            near = suggest(value, self._accounts) if isinstance(value, str) else ""
            raise fault(path, f"an account that was declared{near}", value)
        return value

    def _read_tick(self, at: float, value: object, path: str) -> tuple[Step, ...]:
        """Read the value of a `tick` action: `true`, or actions that run between the decisions and the commit of the
        tick.
        """
        if value is True:
            return ()
        if not isinstance(value, Mapping) or list(value) != ["between"] or not isinstance(value["between"], list):
            raise fault(path, 'true or {"between": [actions]}', value)
        steps = []
        for index, each in enumerate(value["between"]):
            where = f"{path}.between[{index}]"
            names = [key for key in each if key != "at"] if isinstance(each, Mapping) else []
            if len(names) != 1 or names[0] == "tick":
                raise fault(where, "exactly one action other than tick", each)
            steps.append(self._read_action(at, names[0], each[names[0]], where))
        return tuple(steps)

    def _read_rules(self, value: object, path: str) -> dict[str, Any]:
        """Read the value of a `rules` action: a partial config, which is merged into the present one. Check and return
        the merged config.
        """
        if not isinstance(value, dict):
            raise fault(path, "a table", value)
        merged = merge_rules(self._config, value)
        self._take_rules(read_rules(merged, path))
        self._config = merged
        return merged

    def _read_plain(self, name: str, value: object, path: str) -> Any:
        """Read the value of an action whose value is one id or one document, and return it. The scenario must have
        declared each slot and reservation that the value names, unless the action is in MAY_BE_UNKNOWN.
        """
        model = ACTIONS[name]
        if model is None:
            return self._read_id(name, value, path)
        checked = read_document(model, value, path)
        if name not in MAY_BE_UNKNOWN:
            if (slot := getattr(checked, "slot", None)) is not None:
                self._check_slot(slot, f"{path}.slot")
            if (reservation := getattr(checked, "reservation", None)) is not None:
                self._check_reservation(reservation, f"{path}.reservation")
        if isinstance(checked, OutageDocument | FoundDocument):
            check_offering(checked, self._rules, path)
        return checked

    def _read_id(self, name: str, value: object, path: str) -> str:
        if not isinstance(value, str):
            raise fault(path, "an id", value)
        try:
            checked: str = _read_name(value)
        except ExpectedError as error:
            raise fault(path, error.expected, value) from None
        if name not in MAY_BE_UNKNOWN:
            check = self._check_slot if name in ABOUT_SLOTS else self._check_reservation
            check(checked, path)
        return checked

    def _check_slot(self, name: str, path: str) -> None:
        if name not in self._slots and find_pool_of_number(name, self._most) is None:
            numbered = (f"{pool}-{number}" for pool, most in self._most.items() for number in range(1, most + 1))
            near = suggest(name, [*self._slots, *islice(numbered, MOST_NEAR)])
            raise fault(path, f"a slot that was declared{near}", name)


def _read_submit(value: object, path: str) -> tuple[ReservationDocument, ...]:
    if isinstance(value, list):
        return tuple(
            read_document(ReservationDocument, each, format_path([index], path)) for index, each in enumerate(value)
        )
    return (read_document(ReservationDocument, value, path),)
