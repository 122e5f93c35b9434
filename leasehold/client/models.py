"""The values that the client returns, such as reservations, slots, accounts and answers, read from JSON.

Reservations, slots and accounts have the fields of the rows in `scheduler.model`, with a repr for shells and a table
for notebooks. Fields that this version does not know are ignored. Times are seconds since the epoch; a time is None if
it has not come yet.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import msgspec
from msgspec.structs import force_setattr

from leasehold.client.display import Shown, join_words
from leasehold.errors import Fault
from scheduler.model import reservations, run_times, runs
from scheduler.model.accounts import Levels, PublicAccount, find_account, level_of
from scheduler.model.reservations import Lease, PublicRequest, PublicReservation, is_over, split_declined, usable_cores
from scheduler.model.run_times import find_quantile, read_class
from scheduler.model.runs import describe_end
from scheduler.model.slots import PublicSlot
from scheduler.model.transitions import ENDED, Phase
from scheduler.protocol.forecasts import describe_eta

NOT_PLANNED: Final = "no tick has looked at it yet"
"""Why a reservation waits that is not in the report of the last tick."""


class Component(Shown, reservations.Component, frozen=True, kw_only=True):
    """A component in the request of a reservation, with `count` equal instances."""


class Request(Shown, PublicRequest, frozen=True, kw_only=True):
    """What the producer requested in a reservation."""

    components: tuple[Component, ...] = ()


class Placement(Shown, Lease, frozen=True, kw_only=True):
    """The lease of one component instance, with the machine of its slot."""

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
        """The number of CPUs of its slot that the instance may use at present. This includes its part of the spare
        CPUs, which no lease on the slot has requested. None: the instance requested no CPUs and no number was reported.

        The number changes when other leases on the slot begin or end.
        """
        return usable_cores(self)

    def _line(self) -> str:
        token = f"token {self.token}" if self.token else None
        machine = self.address or self.instance_id
        return join_words([self.component, self.state, "on", self.slot, machine and f"({machine})", token])


class Account(Shown, PublicAccount, frozen=True, kw_only=True):
    """A quota account in the view. Amounts are in worker-seconds (or in the unit of `charge_by`) for
    each paid level.
    """

    _cells_shown: ClassVar[str] = "id level balance charged_at charge_rate max_charge_seconds max_fanout description"

    @property
    def level(self) -> int:
        """The best level for which the account has a balance; 5 if the account has no balance at any level.
        Reservations of an account with the level 5 run at the free level or wait.
        """
        return level_of(self.balance)

    def owns(self, row: "Reservation") -> bool:
        """Return whether the account pays for this reservation."""
        return find_account({self.id: self}, row.request.account, row.sequence) is not None

    def _line(self) -> str:
        return f"{self.id} level {self.level}, balance {' '.join(f'{each:g}' for each in self.balance)}"


class RunTimes(Shown, run_times.RunTimes, frozen=True, kw_only=True):
    """How long the last released leases of one class of work ran (`seconds`, the oldest first). A class is the work of
    one account, principal, job, system and size, or has fewer of these parts: then it has more work, which is less
    similar.
    """

    _cells_shown: ClassVar[str] = "account principal job system size number median p80 p90 released_at"

    @property
    def parts(self) -> int:
        """How many parts the class has: 6 (with the two of its size), 4, 2 (account and principal), or 0: all work."""
        return len(read_class(self.id))

    @property
    def account(self) -> str | None:
        """The account of the work; None: it has none, or any (see `parts`)."""
        return self._find_text(0)

    @property
    def principal(self) -> str | None:
        """The principal that submitted the work; None: it was not signed, or any."""
        return self._find_text(1)

    @property
    def job(self) -> str | None:
        """The tag `job` of the work, else its tag `name`."""
        return self._find_text(2)

    @property
    def system(self) -> str | None:
        """The system of the work; None: it has none, or any."""
        return self._find_text(3)

    @property
    def instances(self) -> tuple[int, int] | None:
        """The least and the greatest number of instances of the work; None: any."""
        return self._find_range(4)

    @property
    def cpus(self) -> tuple[int, int] | None:
        """The least and the greatest number of cpus, rounded up, of the work; None: any."""
        return self._find_range(5)

    @property
    def size(self) -> str:
        """The size as text, for example "1 x, 4-7 cpus" for one instance; "": any."""
        if self.instances is None or self.cpus is None:
            return ""
        return f"{_show_range(self.instances)} x, {_show_range(self.cpus)} cpus"

    @property
    def number(self) -> int:
        """The number of run times that are known."""
        return len(self.seconds)

    @property
    def median(self) -> float | None:
        """The run time that half of the known ones do not exceed, in seconds."""
        return self.quantile(0.5)

    @property
    def p80(self) -> float | None:
        """The run time that 80 % of the known ones do not exceed, in seconds."""
        return self.quantile(0.8)

    @property
    def p90(self) -> float | None:
        """The run time that 90 % of the known ones do not exceed, in seconds."""
        return self.quantile(0.9)

    def quantile(self, share: float) -> float | None:
        """Return the run time that this share (0 to 1) of the known run times does not exceed."""
        return find_quantile(self.seconds, share)

    def _find_text(self, place: int) -> str | None:
        found = read_class(self.id)[place : place + 1]
        return str(found[0]) if found and found[0] is not None else None

    def _find_range(self, place: int) -> tuple[int, int] | None:
        found = read_class(self.id)[place : place + 1]
        return None if not found else ((1 << int(found[0] or 0)) >> 1, (1 << int(found[0] or 0)) - 1)

    def _line(self) -> str:
        return f"{self.id} {self.number} run times, median {self.median} s, 90 % {self.p90} s"


def _show_range(ends: tuple[int, int]) -> str:
    return str(ends[0]) if ends[0] == ends[1] else f"{ends[0]}-{ends[1]}"


class Wait(Shown, frozen=True, kw_only=True):
    """The reason why a reservation waits: a waiting code and a sentence for people."""

    code: str
    detail: str

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}"

    def _line(self) -> str:
        return str(self)


class LastWait(NamedTuple):
    """What the report of the last tick contains about one reservation. `why`: why the reservation waits; None: it was
    not among the reservations that wait. `as_of`: the time of that tick in cluster time; None: there was no tick yet.
    """

    why: Wait | None = None
    as_of: float | None = None


class Note(Shown, frozen=True, kw_only=True):
    """A remark in the answer to an accepted request: a field that has no effect, and a sentence about it."""

    path: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}: {self.text}"


class Reservation(Shown, PublicReservation, frozen=True, kw_only=True):
    """The row of a reservation in the view. `token` is 0 until the reservation is leased for the first time."""

    _cells_shown: ClassVar[str] = (
        "id phase reason account priority slots token created_at leased_at expires_at finished_at"
    )

    request: Request = Request()
    created_at: float = 0.0
    leases: tuple[Placement, ...] = ()
    declined: tuple[str, ...] = ()
    """What the holder declined. While the reservation is pending: slots that its next lease must not be on. While it is
    leased: elastic instances that the holder gave back and that are not granted again.
    """
    want: dict[str, int] = {}
    """Elastic component -> most instances that the holder wants from now on (`surrender` with `want`). A component that
    is missing may have all its instances.
    """
    waiting: Wait | None = None
    """Why no slot or offering could hold the reservation when it was submitted; None if one could. The reservation was
    accepted, and waits until pools change.

    Only `Client.reserve` sets it; None in rows that are read later. `Client.explain` returns why a reservation waits.
    """
    eta: dict[str, Any] | None = None
    """When it is expected to start, as in Explanation. Only `Client.reserve` sets it."""
    notes: tuple[Note, ...] = ()
    """The fields of the request that have no effect. Only `Client.reserve` sets it; empty in rows that
    are read later.
    """

    def __post_init__(self) -> None:
        # A stored row has `NAME=N` among what was declined (scheduler/policy/elastic/wanted.py).
        if self.declined:
            declined, want = split_declined(self.phase, self.declined)
            if want:
                force_setattr(self, "declined", declined)
                force_setattr(self, "want", want)

    @property
    def is_over(self) -> bool:
        """Whether the reservation has ended. If it has failed, its restart policy may still restart it."""
        return is_over(self)

    @property
    def slots(self) -> tuple[str, ...]:
        """The ids of the slots on which the reservation has leases."""
        return tuple(each.slot for each in self.leases)

    @property
    def account(self) -> str | None:
        """The quota account that the request names; None if it names none."""
        return self.request.account

    def _line(self) -> str:
        held = f"on {', '.join(self.slots)}, token {self.token}" if self.leases else None
        return join_words([self.id, self.phase, self.reason and f"({self.reason})", held])


class Slot(Shown, PublicSlot, frozen=True, kw_only=True):
    """The row of a slot in the view."""

    _cells_shown: ClassVar[str] = (
        "id pool state cordoned offering market price instance_id address instance_type zone machine uses "
        "resources labels error refusal"
    )

    @property
    def _problems(self) -> tuple[str | None, str | None]:
        return self.error, self.refusal

    def _line(self) -> str:
        cordoned = "cordoned" if self.cordoned else None
        return join_words(
            [self.id, self.state, cordoned, self.instance_type, self.instance_id, self.address, *self._problems]
        )


class LeaseKey(NamedTuple):
    """The lease of one component of a reservation on the slot of a host. `token`: its fencing token."""

    reservation: str
    component: str
    token: int


class _NewCommand(msgspec.Struct):
    reservation: str
    component: str
    token: int


class HostHint(msgspec.Struct):
    """A hint for a host that its slot has changed, as far as it is read: the leases whose commands are new."""

    commands: list[_NewCommand] = []
    changed: bool = True

    def list_commands(self) -> Sequence[LeaseKey]:
        """Return the leases whose commands are new."""
        return [LeaseKey(each.reservation, each.component, each.token) for each in self.commands]


class Hosted(Shown, frozen=True, kw_only=True):
    """A lease on the slot of a static host, with the fields that the host needs (see `Host.leases`)."""

    reservation: str
    component: str
    token: int
    resources: dict[str, float] = {}
    cores: float | None = None
    """The number of CPUs of the host that the lease may use at present."""
    assigned_at: float = 0.0
    state: str = "held"
    revoke_by: float | None = None
    has_command: bool = False
    """Whether the host has to run a command on the lease (`Hosts.take`)."""

    def _line(self) -> str:
        return f"{self.reservation} {self.component} {self.state}, token {self.token}"


class Host(Shown, frozen=True, kw_only=True):
    """The slot of a static host, read from the database, with the leases on it."""

    slot: str
    state: str
    cordoned: bool = False
    offline_timeout: float | None = None
    version: str | None = None
    """Version of the slot and its leases, a text that changes whenever another field changes. A host sends it in its
    heartbeats, to show which leases it knows. None: the workers run an older release, which has no versions.
    """
    run: str | None = None
    """Id of the run of the host's agent that has registered last; None: it sent none."""
    leases: tuple[Hosted, ...] = ()

    def _line(self) -> str:
        return join_words([self.slot, self.state, "cordoned" if self.cordoned else None, f"{len(self.leases)} leases"])


RunState = runs.RunState
"""The state of the command of a reservation."""


class Taken(msgspec.Struct, frozen=True):
    """The command of a lease, as a host gets it: a JSON text, and its signature (docs/reference/protocol.md, "The
    signature of a command"). The host verifies the signature before it reads the text.
    """

    command: str
    signature: str

    def __repr__(self) -> str:
        """Return a text without the command, which may have secrets."""
        return f"Taken({len(self.command)} characters)"


class Execution(Shown, frozen=True, kw_only=True):
    """The run of a command on one lease."""

    _cells_shown: ClassVar[str] = "component slot token state exit_code signal why error started_at ended_at bytes"

    component: str
    slot: str
    token: int
    state: str = "taken"
    """`taken`, `started` or `ended`."""
    taken_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    exit_code: int | None = None
    signal: int | None = None
    """The number of the signal that ended it."""
    why: str | None = None
    """How it ended: see `Command.why`."""
    error: str | None = None
    """Why it did not start, or was lost."""
    tail: str = ""
    """The end of its output."""
    bytes: int = 0
    """How much output there has been in all."""

    def _line(self) -> str:
        ended = describe_end(self.why, self.exit_code, self.signal)
        return join_words([self.component, f"on {self.slot}", ended or self.state])


class Command(Shown, frozen=True, kw_only=True):
    """The command of a reservation, its state, and its runs on leases."""

    _cells_shown: ClassVar[str] = "reservation phase reason state exit_code signal why executions"

    reservation: str
    phase: Phase
    reason: str | None = None
    state: str = "waiting"
    """`waiting`, `running` or `ended`."""
    exit_code: int | None = None
    signal: int | None = None
    why: str | None = None
    """How it ended: `exited`, `signal`, `not_started`, `out_of_memory`, `revoked`, `fenced`, `limit` or `lost`. None:
    it has not ended, or its host has not reported yet. Of several instances: that of the first one that failed, else of
    the first one that ended.
    """
    run: dict[str, Any] = {}
    """The command as it was submitted, with hidden values of the environment."""
    executions: tuple[Execution, ...] = ()
    """Its runs, the earliest first. Each new lease has a new run."""

    @property
    def last(self) -> Execution | None:
        """The last run; None: no host has taken the command yet."""
        return self.executions[-1] if self.executions else None

    def _line(self) -> str:
        return join_words([self.reservation, describe_end(self.why, self.exit_code, self.signal) or self.state])


class Answer(Shown, frozen=True, kw_only=True):
    """The answer to one request. `ok`: whether it was carried out; otherwise `errors` has the faults for which it was
    refused.
    """

    _cells_shown: ClassVar[str] = "ok reservation phase token deadline slot state account balance waiting errors"

    ok: bool
    reservation: str | None = None
    phase: Phase | None = None
    expires_at: float | None = None
    token: int | None = None
    deadline: float | None = None
    ttl: float | None = None
    """In answers to `renew` and `confirm`: seconds, from the sending of the request, for which the holder has the
    lease. None: until the lease is revoked.
    """
    cores: dict[str, float] | None = None
    """In answers to `renew` and `confirm`: component -> number of CPUs of its slot that the component may use. None:
    the CPUs are not limited.
    """
    slot: str | None = None
    state: str | None = None
    cordoned: bool | None = None
    offline_timeout: float | None = None
    """In answers to `register`: seconds without a heartbeat after which the host counts as offline."""
    heartbeat: int | None = None
    """In answers to `register`: the counter of the next signed heartbeat must be higher than this."""
    run: str | None = None
    """In answers to `register`: the run of the agent to which the slot belongs now. None: the host sent none, or the
    workers run an older release.
    """
    waiting: Wait | None = None
    """In answers to `submit`: why no slot or offering could hold the accepted reservation at present; None if one
    could.
    """
    eta: dict[str, Any] | None = None
    """In answers to `submit`: when the accepted reservation is expected to start, as in Explanation; None: there is no
    forecast for its kind.
    """
    notes: tuple[Note, ...] = ()
    """The fields of the accepted request that have no effect."""
    account: str | None = None
    balance: Levels | None = None
    """In answers to commands about a quota account: the present balance of the account, by paid level."""
    errors: tuple[Fault, ...] = ()

    def _line(self) -> str:
        if not self.ok:
            return join_words(["refused:", "; ".join(map(str, self.errors))])
        token = f"token {self.token}" if self.token else None
        return join_words(["ok", self.reservation or self.slot or self.account, self.phase or self.state, token])


class SmallestChange(Shown, frozen=True, kw_only=True):
    """The smallest change that would end a wait: a sentence for people, and the actions that make it, in the format of
    a scenario's timeline.

    `wait_seconds`: time after which the wait ends without any action; 0 if actions are needed at once. `undo`: the
    actions that reverse those on rows; a balance gets its former value, so what the account earns and pays meanwhile is
    lost. A change of the rules is reversed by `leasehold rules rollback`.
    """

    kind: str
    text: str
    wait_seconds: float = 0.0
    actions: tuple[dict[str, Any], ...] = ()
    undo: tuple[dict[str, Any], ...] = ()

    def _line(self) -> str:
        return self.text


class Condition(Shown, frozen=True, kw_only=True):
    """One condition that must be met before a pending reservation is leased. `met` None: the condition does not apply,
    or it cannot be tested before an earlier condition is met.
    """

    name: str
    met: bool | None = None
    evidence: str = ""
    """A sentence with the facts that decide whether the condition is met."""

    def _line(self) -> str:
        return f"{self.name} {'unknown' if self.met is None else 'met' if self.met else 'not met'}: {self.evidence}"


class Explanation(Shown, frozen=True, kw_only=True):
    """The state of a reservation, and the reason why it waits if it is pending: a waiting code and a sentence
    (`detail`).

    `position`: its position among all waiting reservations, from 1; None before a tick has planned it.
    """

    _cells_shown: ClassVar[str] = "reservation phase reason code detail position waiting as_of change account"

    reservation: str
    phase: Phase
    reason: str | None = None
    code: str | None = None
    detail: str | None = None
    position: int | None = None
    waiting: int = 0
    """Number of all reservations that wait."""
    as_of: float | None = None
    """Time of the tick that reported this, in seconds since the epoch."""
    headline: str | None = None
    """What does not fit, as a sentence. Only `Client.suggest` finds it."""
    change: SmallestChange | None = None
    """The smallest change that would end the wait. None if no change was searched (`Client.explain` searches none), or
    if no combination of at most two changes would end the wait.
    """
    rules_version: int | None = None
    """The version of the rules for which `change` was found, which `leasehold rules rollback` restores."""
    needs: tuple[str, ...] = ()
    """What would have to be true for a lease, if there is no change that makes it so, or only the end of another
    lease.
    """
    served: bool = False
    """Whether the next tick will serve the reservation without a change."""
    is_complete: bool = True
    """Whether the search for a change tried all possible changes within its time limit."""
    pools: dict[str, tuple[str, ...]] = {}
    """Pool name -> sentences about what pauses the launches of the pool, for pools that may serve the reservation."""
    conditions: tuple[Condition, ...] = ()
    """The conditions for the lease of a pending reservation, in the order in which a tick tests them. Only
    `Client.suggest` finds them.
    """
    eta: dict[str, Any] | None = None
    """When it is expected to start: `low`, `median`, `high`, `late` (10, 50, 90, 95 %) and `as_of`, times in seconds
    since the epoch; or `unknown`, the reason why that is not known. None: there is no forecast.
    """
    ended: str | None = None
    """How the command of the reservation ended, as a sentence; None: it has none, or it has not ended."""
    account: str | None = None
    """A sentence about the balance of the reservation's quota account and when the account can pay again; None if
    accounts do not decide when this reservation is leased.
    """

    def __str__(self) -> str:
        return "\n".join([self._describe(), *self._describe_more()])

    def _line(self) -> str:
        return self._describe()

    def _describe_more(self) -> list[str]:
        lines = [] if self.eta is None else [describe_eta(self.eta, max(self.as_of or 0.0, self.eta["as_of"]))]
        lines += [each for each in (self.ended, self.account) if each is not None]
        lines += [f"pool {name}: {text}" for name, texts in self.pools.items() for text in texts]
        return [*lines, *self.describe_advice()]

    def describe_advice(self) -> list[str]:
        """Return what would end the wait, as sentences: the smallest change, or what would have to be true."""
        lines = []
        if self.change is not None:
            lines.append(f"smallest change: {self.change.text}")
        elif not self.is_complete:
            lines.append("no smallest change was found in time")
        return lines + [f"{'or ' if self.change else ''}it would need: {each}" for each in self.needs]

    def _describe(self) -> str:
        text = f"{self.reservation} is {self.phase}"
        text += f" ({self.reason})" if self.reason else ""
        if self.phase != "pending":
            return text
        if self.code is None:
            return f"{text}: " + ("the next tick serves it" if self.served else NOT_PLANNED)
        return f"{text}, {self.position} of {self.waiting} in the queue: {self.code}: {self.headline or self.detail}"


class Conditions(Shown, frozen=True, kw_only=True):
    """Sentences about slots and pools, by id of the slot or pool, for example that launches are paused. Slots and pools
    without such a sentence are missing.
    """

    as_of: float | None = None
    slots: dict[str, tuple[str, ...]] = {}
    pools: dict[str, tuple[str, ...]] = {}


_SAME_FIELDS: Final = (
    *("phase", "reason", "as_of", "headline", "change", "rules_version"),
    *("needs", "pools", "account", "conditions", "eta", "ended"),
)
"""The fields that an answer and an explanation have in common, with the same names."""


def read_explanation(document: Mapping[str, Any]) -> Explanation:
    """Return the explanation in `document`, the answer of a worker or of the HTTP API."""
    waiting = document.get("waiting") or {}
    shared = {name: document[name] for name in _SAME_FIELDS if name in document}
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


def find_waits(report: Mapping[str, Any], ids: Iterable[str]) -> list[LastWait]:
    """Return why the reservations with these ids wait by `report`, the report of a tick, in the given order."""
    found, as_of = (report.get("waiting", {}).get(name) for name in ids), report.get("at")
    return [LastWait(None if each is None else Wait(code=each[0], detail=each[1]), as_of) for each in found]


def read_answer(document: Mapping[str, Any]) -> Answer:
    """Return the answer in a JSON document: a whole answer, or one element of the `results` of an answer."""
    return msgspec.convert(document, Answer)


def list_phases(phase: str | Iterable[str] | None) -> frozenset[str] | None:
    """Return a set of phases from one name or several. `ended` stands for the four phases in which a reservation has
    ended. Return None if `phase` is None.
    """
    if phase is None:
        return None
    named = {phase} if isinstance(phase, str) else set(phase)
    return frozenset(named - {"ended"} | (ENDED if "ended" in named else set()))
