"""Scenarios: the files that `leasehold simulate` plays, read and checked before anything is played."""

import json
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from pydantic import Field

from scheduler.model.reservations import list_instances
from scheduler.model.rules import AccountKeys, Rules, merge_rules, read_rules, slot_ids
from scheduler.model.validation import (
    Amount,
    Count,
    Document,
    LabelMap,
    Name,
    Seconds,
    Signed,
    SignedLevels,
    Text,
    fault,
    format_path,
    read_document,
    suggest,
)
from scheduler.model.wishes import RegisterDocument, ReservationDocument
from scheduler.simulation.given import GivenHold, GivenLease, GivenReservation, GivenSlot


class InterruptDocument(Document):
    """A spot notice: the slot's machine is gone in `deadline` seconds."""

    slot: Name
    deadline: Seconds = 120.0


class FailDocument(Document):
    """A component died, or the whole."""

    reservation: Name
    component: Name | None = None


class PriorityAction(Document):
    """A new priority."""

    reservation: Name
    priority: Amount


class ConfirmAction(Document):
    """It runs there."""

    reservation: Name
    slot: Name
    as_of: Signed | None = None
    """When that was, in seconds from the start; left out = now. So with the next two."""


class AbsentAction(Document):
    """It neither runs nor waits."""

    reservation: Name
    as_of: Signed | None = None


class IdleAction(Document):
    """Nothing runs there."""

    slot: Name
    labels: LabelMap | None = None
    as_of: Signed | None = None


class AccountAction(AccountKeys):
    """Create an account, or change what is named of it; the balance stays unless one is given."""

    id: Name
    balance: SignedLevels | None = None


class OutageDocument(Document):
    """Launches of this pool (or only of one offering) fail until then."""

    pool: Name
    offering: Name | None = None
    error: Literal["capacity", "quota", "throttled", "misconfigured"]
    until: Amount


class PlannedOutage(OutageDocument):
    """An outage that is known from the start; `at` and `until` count from there."""

    pool: Name
    """The pool."""
    offering: Name | None = None
    """The offering; left out = all of the pool's."""
    error: Literal["capacity", "quota", "throttled", "misconfigured"] = "capacity"
    """What EC2 answers."""
    at: Seconds = 0.0
    """When it begins."""
    until: Seconds
    """When it ends."""


class CloudDocument(Document):
    """The simulated cloud: seconds that a slot spends in each state, what EC2 refuses, and what it takes back."""

    launch: Seconds = 0.0
    """Until EC2 answers a launch."""
    boot: Seconds = 0.0
    """Until a machine runs."""
    bind: Seconds = 0.0
    """Until it serves."""
    terminate: Seconds = 0.0
    """Until a machine that is terminated is gone."""
    quota: Count | None = None
    """EC2 refuses what would make more machines than this."""
    outages: Annotated[tuple[PlannedOutage, ...], Field(strict=False)] = ()
    """When launches of a pool, or of one of its offerings, fail."""
    interruption_rate: Amount = 0.0
    """Spot notices per slot and hour, at random; in traces only."""
    seed: Signed = 0
    """What the random choices start from: the same seed, the same notices."""


class FoundDocument(Document):
    """A machine under our tags that SQL does not know."""

    pool: Name
    slot: Name
    offering: Name | None = None


class Step(msgspec.Struct, frozen=True):
    """One timeline item: its time, its action's name, and the value, checked."""

    at: float
    action: str
    value: Any
    path: str


class Scenario(msgspec.Struct, frozen=True):
    """A checked scenario. `config` is the rules as a document, for later partial changes."""

    name: str
    config: dict[str, Any]
    rules: Rules
    cloud: CloudDocument
    slots: tuple[GivenSlot, ...]
    reservations: tuple[GivenReservation, ...]
    holds: tuple[GivenHold, ...]
    timeline: tuple[Step, ...]
    tick_every: float | None
    kicks: bool
    wakes: bool
    until: float


class _TopDocument(Document):
    """The keys of a scenario, each checked in detail by its own reader."""

    name: Text = "scenario"
    config: dict[str, Any] = {}
    cloud: dict[str, Any] = {}
    slots: Annotated[list[Any], Field(strict=True)] = []
    reservations: Annotated[list[Any], Field(strict=True)] = []
    holds: Annotated[list[Any], Field(strict=True)] = []
    timeline: Annotated[list[Any], Field(strict=True)] = []
    tick_every: Seconds | None = None
    kicks: bool = False
    wakes: bool = False
    until: Amount = 0.0


def load_scenario(path: Path) -> Scenario:
    """Read a JSON or TOML file; raises InvalidInputError with one line for the first thing that is wrong."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except OSError as error:
        raise fault(str(path), "a file that can be read", error.strerror or "nothing") from None
    except (ValueError, RecursionError) as error:  # no JSON, no TOML, no UTF-8, a number of thousands of digits
        raise fault(str(path), "JSON (or TOML in a .toml file)", str(error)) from None
    return read_scenario(document)


def read_scenario(document: object) -> Scenario:
    """Check a whole scenario; nothing is played of one that is wrong anywhere."""
    top = read_document(_TopDocument, document)
    rules = read_rules(top.config, "config")
    reader = _Reader(rules, top.config)
    reservations = tuple(
        read_document(GivenReservation, each, f"reservations[{index}]") for index, each in enumerate(top.reservations)
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
        timeline=timeline,
        tick_every=top.tick_every,
        kicks=top.kicks,
        wakes=top.wakes,
        until=top.until,
    )


def read_simulated_cloud(document: object, rules: Rules) -> CloudDocument:
    """The simulated cloud of these rules' pools; raises InvalidInputError."""
    cloud = read_document(CloudDocument, document, "cloud")
    for number, outage in enumerate(cloud.outages):
        _check_offering(outage, rules, f"cloud.outages[{number}]")
    return cloud


class _Reader:
    """Reads timeline steps in order and knows what has been declared so far."""

    def __init__(self, rules: Rules, config: dict[str, Any]) -> None:
        self._at = 0.0
        self._config = config
        self._slots: set[str] = set()
        self._reservations: dict[str, ReservationDocument] = {}
        self._accounts: set[str] = set()
        self._take_rules(rules)

    def _take_rules(self, rules: Rules) -> None:
        self._rules = rules
        self._accounts.update(rules.accounts)
        for name, pool in rules.pools.items():
            self._slots.update(slot_ids(name, pool))

    def declare(self, words: Iterable[ReservationDocument]) -> None:
        """From now on these reservations may be spoken of; of two with one id the first counts."""
        for word in words:
            self._reservations.setdefault(word.id, word)

    def read_slot(self, value: object, path: str) -> GivenSlot:
        """A slot record of a pool that is configured."""
        slot = read_document(GivenSlot, value, path)
        if slot.pool not in self._rules.pools:
            raise fault(f"{path}.pool", f"a pool of config{suggest(slot.pool, self._rules.pools)}", slot.pool)
        offerings = self._rules.pools[slot.pool].offering_by_key
        if slot.offering is not None and offerings and slot.offering not in offerings:
            raise fault(f"{path}.offering", f"one of {', '.join(offerings)}", slot.offering)
        for number, lease in enumerate(slot.leases):
            self._check_lease(lease, f"{path}.leases[{number}]")
        self._slots.add(slot.id)
        return slot

    def read_hold(self, value: object, path: str) -> GivenHold:
        """A hold on a pool that is configured, or on all of them (`*`)."""
        hold = read_document(GivenHold, value, path)
        if hold.pool != "*" and hold.pool not in self._rules.pools:
            raise fault(f"{path}.pool", f"a pool of config, or *{suggest(hold.pool, self._rules.pools)}", hold.pool)
        return hold

    def _read_registration(self, value: object, path: str) -> RegisterDocument:
        """A slot record of a static pool with the machine that says so."""
        given = self.read_slot(value, path)
        if self._rules.pools[given.pool].is_elastic:
            raise fault(f"{path}.pool", "a pool of static hosts", given.pool)
        if not given.machine:
            raise fault(f"{path}.machine", "the id of a machine", given.machine)
        said = given.model_dump(include={"pool", "machine", "resources", "labels"})
        return RegisterDocument(slot=given.id, **said)

    def _check_lease(self, lease: GivenLease, path: str) -> None:
        """Leases of slot records are of components of reservations that the file has declared."""
        self._check_reservation(lease.reservation, f"{path}.reservation")
        request = self._reservations[lease.reservation].to_request()
        names = [each.name for kind in ("essential", "elastic") for each in list_instances(request, kind)]
        if lease.component not in names:
            raise fault(f"{path}.component", f"one of {', '.join(names[:10])}", lease.component)

    def _check_reservation(self, name: str, path: str) -> None:
        if name not in self._reservations:
            near = suggest(name, self._reservations)
            raise fault(path, f"a reservation that was declared{near}", name)

    def read_step(self, value: object, path: str) -> Step:
        """One timeline item: `at`, and exactly one action."""
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
                checked = read_document(
                    AbsentAction, {"reservation": value} if isinstance(value, str) else value, where
                )
            case "account":
                checked = read_document(AccountAction, value, where)
                self._accounts.add(checked.id)
            case "forget_account" | "reset_account":
                checked = self._read_account_name(value, where)
            case _:
                checked = self._read_plain(name, value, where)
        return Step(at, name, checked, where)

    def _read_account_name(self, value: object, path: str) -> str:
        """The id of an account that was declared: it may have been forgotten since."""
        if not isinstance(value, str) or value not in self._accounts:
            near = suggest(value, self._accounts) if isinstance(value, str) else ""
            raise fault(path, f"an account that was declared{near}", value)
        return value

    def _read_tick(self, at: float, value: object, path: str) -> tuple[Step, ...]:
        """true, or actions to be played between the plan and the commit."""
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
        """A partial config; what it makes of the rules is checked now."""
        if not isinstance(value, dict):
            raise fault(path, "a table", value)
        merged = merge_rules(self._config, value)
        self._take_rules(read_rules(merged, path))
        self._config = merged
        return merged

    def _read_plain(self, name: str, value: object, path: str) -> Any:
        model, is_about_slot = ACTIONS[name]
        if model is None:
            checked: Any = read_document(_Named, {"name": value}, path).name if isinstance(value, str) else None
            if checked is None:
                raise fault(path, "an id", value)
            slot = checked if is_about_slot else None
        else:
            checked = read_document(model, value, path)
            slot = getattr(checked, "slot", None)
        if slot is not None and name not in MAY_BE_UNKNOWN and slot not in self._slots:
            where = path if model is None else f"{path}.slot"
            raise fault(where, f"a slot that was declared{suggest(slot, self._slots)}", slot)
        if name not in MAY_BE_UNKNOWN:
            self._check_named_reservation(name, checked, path)
        if isinstance(checked, OutageDocument | FoundDocument):
            _check_offering(checked, self._rules, path)
        return checked

    def _check_named_reservation(self, name: str, checked: Any, path: str) -> None:
        model, is_about_slot = ACTIONS[name]
        if model is None and not is_about_slot:
            self._check_reservation(checked, path)
        elif (reservation := getattr(checked, "reservation", None)) is not None:
            self._check_reservation(reservation, f"{path}.reservation")


def _check_offering(named: OutageDocument | FoundDocument, rules: Rules, path: str) -> None:
    """The pool is configured, and so is its offering, if one is named. An outage may mean all of one name."""
    pool = rules.pools.get(named.pool)
    if pool is None:
        raise fault(f"{path}.pool", f"a pool of config{suggest(named.pool, rules.pools)}", named.pool)
    names = set(pool.offering_by_key)
    if isinstance(named, OutageDocument):
        names |= {offering.name for offering in pool.offerings}
    if named.offering is not None and named.offering not in names:
        raise fault(f"{path}.offering", f"an offering of {named.pool}", named.offering)


MAY_BE_UNKNOWN = frozenset({"release", "cancel", "renew", "confirm", "absent", "idle", "seen"})
"""Actions whose ids need not be known."""


class _At(Document):
    at: Amount


class _Named(Document):
    name: Name


def _read_submit(value: object, path: str) -> tuple[ReservationDocument, ...]:
    """One reservation, or a list of them."""
    if isinstance(value, list):
        return tuple(
            read_document(ReservationDocument, each, format_path([index], path)) for index, each in enumerate(value)
        )
    return (read_document(ReservationDocument, value, path),)


ACTIONS: dict[str, tuple[type[Document] | None, bool]] = {
    "tick": (None, False),
    "submit": (None, False),
    "slot": (None, False),
    "rules": (None, False),
    "release": (None, False),
    "cancel": (None, False),
    "renew": (None, False),
    "surrender": (FailDocument, False),
    "confirm": (ConfirmAction, True),
    "absent": (AbsentAction, False),
    "idle": (IdleAction, True),
    "account": (AccountAction, False),
    "forget_account": (None, False),
    "reset_account": (None, False),
    "fail": (FailDocument, False),
    "priority": (PriorityAction, False),
    "decline": (None, False),
    "suspend": (None, False),
    "resume": (None, False),
    "register": (None, True),
    "remove": (None, True),
    "seen": (None, True),
    "found": (FoundDocument, True),
    "interrupt": (InterruptDocument, True),
    "rebalance": (None, True),
    "lose": (None, True),
    "cordon": (None, True),
    "uncordon": (None, True),
    "drain": (None, True),
    "outage": (OutageDocument, False),
}
"""The actions: the document of each (None = an id, or read by a method of its own), and whether the id is a slot's."""
