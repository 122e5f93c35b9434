"""The values that the client returns: reservations, slots, accounts and answers, read from JSON.

Rows have the fields of `scheduler.model`, with a repr for a shell and a table for a notebook. Fields that a newer
server adds are ignored. Times are seconds since the epoch, None where it never happened.
"""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import msgspec

from leasehold.client.display import Shown, join_words
from leasehold.errors import Fault
from scheduler.model import reservations
from scheduler.model.accounts import Levels, PublicAccount, find_account, level_of
from scheduler.model.reservations import Lease, PublicRequest, PublicReservation, is_over, usable_cores
from scheduler.model.slots import PublicSlot
from scheduler.model.transitions import ENDED, Phase


class Component(Shown, reservations.Component, frozen=True, kw_only=True):
    """`count` equal instances that were requested."""


class Request(Shown, PublicRequest, frozen=True, kw_only=True):
    """What was requested."""

    components: tuple[Component, ...] = ()


class Placement(Shown, Lease, frozen=True, kw_only=True):
    """One component's lease, and the machine of its slot."""

    _cells_shown: ClassVar[str] = (
        "component kind state slot instance_id address type zone token resources usable_cores assigned_at revoke_by"
    )

    epoch: int = 0
    token: int = 0
    assigned_at: float = 0.0
    instance_id: str | None = None
    address: str | None = None
    type: str | None = None
    zone: str | None = None

    @property
    def usable_cores(self) -> float | None:
        """The cpus of its slot that it may use at present, its part of the spare ones included. The number changes
        as other leases come and go. None: it requested none and none were reported.
        """
        return usable_cores(self)

    def _line(self) -> str:
        token = f"token {self.token}" if self.token else None
        machine = self.address or self.instance_id
        return join_words([self.component, self.state, "on", self.slot, machine and f"({machine})", token])


class Account(Shown, PublicAccount, frozen=True, kw_only=True):
    """A quota account as the view has it. Amounts in worker-seconds (or what `charge_by` counts), by paid level."""

    _cells_shown: ClassVar[str] = "id level balance charged_at charge_rate max_charge_seconds max_fanout description"

    @property
    def level(self) -> int:
        """The best level that it can pay for; 5: none, so its work runs at the free level or waits."""
        return level_of(self.balance)

    def owns(self, row: "Reservation") -> bool:
        """Whether it pays for this reservation."""
        return find_account({self.id: self}, row.request.account, row.sequence) is not None

    def _line(self) -> str:
        return f"{self.id} level {self.level}, balance {' '.join(f'{each:g}' for each in self.balance)}"


class Wait(Shown, frozen=True, kw_only=True):
    """Why one waits: a stable code, and a sentence."""

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"

    def _line(self) -> str:
        return str(self)


class Note(Shown, frozen=True, kw_only=True):
    """What an accepted request does not do: the field of the request, and a sentence about it."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Reservation(Shown, PublicReservation, frozen=True, kw_only=True):
    """A reservation as the view has it. `token` is 0 until it was leased for the first time."""

    _cells_shown: ClassVar[str] = (
        "id phase reason account priority slots token created_at leased_at expires_at finished_at"
    )

    request: Request = Request()
    created_at: float = 0.0
    leases: tuple[Placement, ...] = ()
    waiting: Wait | None = None
    """Of a new one, as `reserve` gives it: no slot or offering could ever hold it as things are. It is accepted and
    waits for a change. None in every row that is read later: `Client.explain` reports why each of them waits.
    """
    notes: tuple[Note, ...] = ()
    """As `reserve` returns it: fields of the request that have no effect. Empty in every row that is read later."""

    @property
    def is_over(self) -> bool:
        """Whether it has ended: a failed one may still be restarted by its own policy."""
        return is_over(self)

    @property
    def slots(self) -> tuple[str, ...]:
        """The slots of its leases."""
        return tuple(each.slot for each in self.leases)

    @property
    def account(self) -> str | None:
        """The account that was asked for."""
        return self.request.account

    def _line(self) -> str:
        held = f"on {', '.join(self.slots)}, token {self.token}" if self.leases else None
        return join_words([self.id, self.phase, self.reason and f"({self.reason})", held])


class Slot(Shown, PublicSlot, frozen=True, kw_only=True):
    """A slot as the view has it."""

    _cells_shown: ClassVar[str] = (
        "id pool state cordoned offering market price instance_id address instance_type zone machine uses "
        "resources labels error"
    )

    def _line(self) -> str:
        cordoned = "cordoned" if self.cordoned else None
        return join_words(
            [self.id, self.state, cordoned, self.instance_type, self.instance_id, self.address, self.error]
        )


class Hosted(Shown, frozen=True, kw_only=True):
    """One lease as it is reported to the host."""

    reservation: str
    component: str
    token: int
    resources: dict[str, float] = {}
    cores: float | None = None
    """The cpus that it may use at present."""
    assigned_at: float = 0.0
    state: str = "held"
    revoke_by: float | None = None

    def _line(self) -> str:
        return f"{self.reservation} {self.component} {self.state}, token {self.token}"


class Host(Shown, frozen=True, kw_only=True):
    """A host's slot as the database has it, with the leases on it."""

    slot: str
    state: str
    cordoned: bool = False
    offline_timeout: float | None = None
    version: str | None = None
    """Changes whenever anything else here does; the host's heartbeats carry it. None: the workers know no versions."""
    leases: tuple[Hosted, ...] = ()

    def _line(self) -> str:
        return join_words([self.slot, self.state, "cordoned" if self.cordoned else None, f"{len(self.leases)} leases"])


class Answer(Shown, frozen=True, kw_only=True):
    """What became of one request: `ok`, or the errors for which it was refused."""

    _cells_shown: ClassVar[str] = "ok reservation phase token deadline slot state account balance waiting errors"

    ok: bool
    reservation: str | None = None
    phase: Phase | None = None
    expires_at: float | None = None
    token: int | None = None
    deadline: float | None = None
    ttl: float | None = None
    """Of `renew` and `confirm`: for how many seconds, counted from when they were sent, the lease is its holder's;
    None = until it is revoked.
    """
    cores: dict[str, float] | None = None
    """Of `renew` and `confirm`: by component, the cpus of its slot that it may use; None where they are not counted."""
    slot: str | None = None
    state: str | None = None
    cordoned: bool | None = None
    offline_timeout: float | None = None
    """Of `register`: the host has to be heard of at least so often, in seconds."""
    heartbeat: int | None = None
    """To `register`: the counter of a signed heartbeat has to be higher."""
    waiting: Wait | None = None
    """Of `submit`: it is accepted, and no slot or offering could ever hold it as things are."""
    notes: tuple[Note, ...] = ()
    """Fields of the request that have no effect, although it was accepted."""
    account: str | None = None
    balance: Levels | None = None
    """Of a word about a quota account: what it has now."""
    errors: tuple[Fault, ...] = ()

    def _line(self) -> str:
        if not self.ok:
            return join_words(["refused:", "; ".join(map(str, self.errors))])
        token = f"token {self.token}" if self.token else None
        return join_words(["ok", self.reservation or self.slot or self.account, self.phase or self.state, token])


class SmallestChange(Shown, frozen=True, kw_only=True):
    """The smallest change that would end a wait: a sentence, and the actions (as in a scenario's timeline) that make
    it; `wait_seconds`: for how long there is nothing to do but wait.
    """

    kind: str
    text: str
    wait_seconds: float = 0.0
    actions: tuple[dict[str, Any], ...] = ()

    def _line(self) -> str:
        return self.text


class Explanation(Shown, frozen=True, kw_only=True):
    """Why a reservation is where it is. `code` and `detail`: why a pending one waits.

    `position` is its place among those that wait, from 1 on; None while no tick has looked at it yet.
    """

    _cells_shown: ClassVar[str] = "reservation phase reason code detail position waiting as_of change account"

    reservation: str
    phase: Phase
    reason: str | None = None
    code: str | None = None
    detail: str | None = None
    position: int | None = None
    waiting: int = 0
    """How many wait in all."""
    as_of: float | None = None
    """The time of the tick that reported this."""
    change: SmallestChange | None = None
    """The smallest change that would end the wait.

    None if none was searched for, or if no two changes together would do.
    """
    served: bool = False
    """Whether the next tick serves it as things are."""
    is_complete: bool = True
    """Whether the search for it came to its end in time."""
    pools: dict[str, tuple[str, ...]] = {}
    """What holds back launches of the pools that may serve it, in words."""
    account: str | None = None
    """What its account has and when it can pay again, in words; None where accounts do not count."""

    def __str__(self) -> str:
        return "\n".join([self._describe(), *self._describe_more()])

    def _line(self) -> str:
        return self._describe()

    def _describe_more(self) -> list[str]:
        lines = [] if self.account is None else [self.account]
        lines += [f"pool {name}: {text}" for name, texts in self.pools.items() for text in texts]
        if self.change is not None:
            lines.append(f"smallest change: {self.change.text}")
        elif not self.is_complete:
            lines.append("no smallest change was found in time")
        return lines

    def _describe(self) -> str:
        text = f"{self.reservation} is {self.phase}"
        text += f" ({self.reason})" if self.reason else ""
        if self.phase != "pending":
            return text
        if self.code is None:
            return f"{text}: " + ("the next tick serves it" if self.served else "no tick has looked at it yet")
        return f"{text}, {self.position} of {self.waiting} in the queue: {self.code}: {self.detail}"


class Conditions(Shown, frozen=True, kw_only=True):
    """The conditions of slots and pools, by their ids; slots and pools without a condition are left out."""

    as_of: float | None = None
    slots: dict[str, tuple[str, ...]] = {}
    pools: dict[str, tuple[str, ...]] = {}


def read_explanation(document: Mapping[str, Any]) -> Explanation:
    """An explanation as a worker answers it."""
    waiting = document.get("waiting") or {}
    shared = {
        name: document[name] for name in ("phase", "reason", "as_of", "change", "pools", "account") if name in document
    }
    fields = {
        **shared,
        "reservation": document.get("reservation", ""),
        "code": waiting.get("code"),
        "detail": waiting.get("detail"),
        "position": document.get("position"),
        "waiting": document.get("of", 0),
        "is_complete": document.get("is_complete", True),
        "served": document.get("served", False),
    }
    return msgspec.convert(fields, Explanation)


def read_answer(document: Mapping[str, Any]) -> Answer:
    """An answer as it came over the wire, single or one of `results`."""
    return msgspec.convert(document, Answer)


def list_phases(phase: str | Iterable[str] | None) -> frozenset[str] | None:
    """A phase, several of them, or `ended` for all four in which a reservation ends; None for any."""
    if phase is None:
        return None
    named = {phase} if isinstance(phase, str) else set(phase)
    return frozenset(named - {"ended"} | (ENDED if "ended" in named else set()))
