"""The schemas of the requests that producers, holders, operators and hosts send. Workers check each request against the
schema of its verb before they carry it out.

Fields have the names that scenario files use. The message around a request also has `request` (the request's id) and
may have `reply_to` (the address for the answer).
"""

import json
import re
from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar

from scheduler.model.reservations import Callback, Component, Request
from scheduler.model.rules import AccountKeys
from scheduler.model.runs import Why
from scheduler.model.validation import (
    MOST_NAME,
    After,
    Amount,
    Before,
    Count,
    Document,
    ExpectedError,
    Key,
    KeyHash,
    LabelMap,
    Name,
    Nonce,
    Positive,
    PositiveSeconds,
    ResourceMap,
    Seconds,
    Signed,
    SignedLevels,
    Text,
    accept_if,
    expected,
    is_text_like,
    is_whole_text,
    read_document,
)
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.protocol.verbs import VERBS

MOST_INSTANCES = 10_000


RESERVED_QUEUES = frozenset({*QUEUE_NAMES, "unacked", "unacked_index", "unacked_mutex"})
"""Queue names that a callback must not use: Leasehold's queues, and kombu's lists of unacknowledged messages. Names
with a colon are refused too, because keys of the view, such as the leader lock, have such names.
"""


class CallbackDocument(Document):
    """A callback: the name of a Celery task of the producer, and the queue to which Leasehold sends the task when a
    lease begins (`on_lease`) or a reservation ends (`on_end`).
    """

    task: Name
    queue: Annotated[
        Name,
        After(
            accept_if(
                lambda name: name not in RESERVED_QUEUES and ":" not in name,
                "a queue of the producer's own (a name without colons that is none of Leasehold's)",
            )
        ),
    ]


class ComponentDocument(Document):
    """One entry of `components` in the document of a `submit` request."""

    name: Name
    count: Positive = 1
    kind: Literal["essential", "elastic"] = "essential"
    resources: ResourceMap = {}
    labels: LabelMap = {}


def _is_instance(name: str, counts: dict[str, int]) -> bool:
    """Return whether `name` is that of an instance of a component with several instances, like `w.0` of a component `w`
    with the count 2. `counts`: name of a component -> its count.
    """
    component, _, index = name.rpartition(".")
    count = counts.get(component, 1)
    return count > 1 and index.isdecimal() and str(int(index)) == index and int(index) < count


MOST_ARGUMENTS: Final = 1000
MOST_RUN_BYTES: Final = 65_536
MOST_TAIL: Final = 8192
"""The most characters of the end of an output."""
_HIDDEN: Final = "***"
"""What a fault shows in place of a value of a command, which may be a secret."""
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_OWN_PREFIX: Final = "LEASEHOLD_"


_plain_text = accept_if(
    lambda value: (
        isinstance(value, str) and "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
    ),
    "a text of whole characters, without NUL",
    got=_HIDDEN,
)


def _arguments(value: object) -> object:
    if not isinstance(value, list | tuple) or not 0 < len(value) <= MOST_ARGUMENTS:
        got = f"{len(value)} of them" if isinstance(value, list | tuple) else _HIDDEN
        raise expected(f"a list of 1 to {MOST_ARGUMENTS} texts", got=got)
    if value[0] == "":
        raise expected("a program as the first text", got="an empty text")
    return value


def _environment(value: object) -> object:
    if not isinstance(value, dict):
        raise expected("a table of texts", got=_HIDDEN)
    for name in value:
        if not isinstance(name, str) or not _VARIABLE.fullmatch(name):
            # The name may be a misplaced value.
            raise expected("names of letters, digits and _, of which the first is no digit", got=_HIDDEN)
        if name.startswith(_OWN_PREFIX):
            raise expected(f"no name that begins with {_OWN_PREFIX}", got=name)
    return value


def _folder(value: object) -> str:
    if not isinstance(value, str) or not value.startswith("/") or len(value) > MOST_PATH:
        raise expected(f"an absolute path of at most {MOST_PATH} characters")
    return str(_plain_text(value))


_account_name = accept_if(is_text_like("[A-Za-z0-9_][A-Za-z0-9_.@-]{0,99}"), "the name of a user of the host")
MOST_PATH: Final = 4096
StopSignal = Literal["TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "KILL"]


class RunDocument(Document):
    """The command of a reservation, which the hosts of its leases run. `cwd`: the working directory; `user`: the user
    of the host for its processes; None: the host decides. `grace`: seconds from `stop_signal` to KILL when it has to
    end; None: the `preemption_grace` of the rules. `on_exit`: which exit codes release the reservation: 0 (`fail`) or
    all (`release`). `image`: the container image; None: no container.
    """

    argv: Annotated[tuple[Annotated[str, Before(_plain_text)], ...], Before(_arguments)]
    env: Annotated[dict[str, Annotated[str, Before(_plain_text)]], Before(_environment)] = {}
    cwd: Annotated[str, Before(_folder)] | None = None
    user: Annotated[str, Before(_account_name)] | None = None
    stop_signal: StopSignal = "TERM"
    grace: Seconds | None = None
    on_exit: Literal["fail", "release"] = "fail"
    image: Text | None = None

    def check_fields(self) -> None:
        """Raise ExpectedError if the command is too long."""
        if (size := len(self.text.encode())) > MOST_RUN_BYTES:
            raise expected(f"at most {MOST_RUN_BYTES} bytes as JSON", got=f"{size} bytes")

    @cached_property
    def text(self) -> str:
        """The command as JSON, in the form that is stored."""
        return json.dumps(self.model_dump(mode="json"), ensure_ascii=False, separators=(",", ":"))


RunTable = Annotated[
    RunDocument, Before(accept_if(lambda value: isinstance(value, dict | RunDocument), "a table", got=_HIDDEN))
]


class ReservationDocument(Document):
    """The document of a `submit` request: the reservation that a producer wants."""

    id: Name
    system: Name | None = None
    pool: Name | None = None
    resources: ResourceMap = {}
    labels: LabelMap = {}
    prefers: LabelMap = {}
    account: Name | None = None
    priority: Amount = 1
    size: Amount = 0
    ttl: Seconds | None = None
    restart_policy: Literal["never", "on_failure"] = "never"
    on_interruption: Literal["requeue", "fail"] = "requeue"
    preemptible: bool = True
    tags: LabelMap = {}
    runtime: Seconds | None = None
    expected_runtime: PositiveSeconds | None = None
    max_runtime: PositiveSeconds | None = None
    components: tuple[ComponentDocument, ...] = ()
    on_lease: CallbackDocument | None = None
    on_end: CallbackDocument | None = None
    key_hash: KeyHash | None = None
    run: RunTable | None = None

    def check_fields(self) -> None:
        """Raise ExpectedError if fields contradict each other. A reservation needs a system or a pool, not both. If it
        has components, it has no `resources` of its own, at least one component is essential, and the components have
        at most MOST_INSTANCES instances together, each with another name.
        """
        if (self.system is None) == (self.pool is None):
            raise expected("a system or a pool (one of them)", key="system", got=self.system)
        if self.components and self.resources:
            raise expected("no resources beside components, which have their own", key="resources", got=self.resources)
        names = [component.name for component in self.components]
        if self.components and not any(component.kind == "essential" for component in self.components):
            raise expected("at least one essential component", key="components", got=names)
        counts = {component.name: component.count for component in self.components}
        singles = (component.name for component in self.components if component.count == 1)
        if len(counts) < len(names) or any(_is_instance(name, counts) for name in singles):
            raise expected("components whose instances have different names", key="components", got=names)
        if sum(component.count for component in self.components) > MOST_INSTANCES:
            raise expected(f"at most {MOST_INSTANCES} instances in all", key="components", got=names)

    @cached_property
    def request(self) -> Request:
        """The request in the form that is stored. A reservation without components gets one component, `main`, with the
        reservation's `resources`.
        """
        stored: dict[str, Any] = {
            "components": tuple(_copy(each, Component) for each in self.components)
            or (Component(name="main", resources=self.resources),)
        }
        for name in ("on_lease", "on_end"):
            callback = getattr(self, name)
            stored[name] = callback and _copy(callback, Callback)
        return _copy(self, Request, **stored)


class ReservationReader:
    """Reads and checks the reservations of one `submit` request. Speed: reservations that differ only in their ids and
    keys (the fields OWN) are checked once, and their documents share the values of all other fields and the stored
    `request`.
    """

    OWN = ("id", "key_hash")

    def __init__(self) -> None:
        self._known: dict[str, ReservationDocument] = {}
        """The input without the fields OWN, as text -> the document that was made of the first such input."""

    def read(self, item: object, most: int) -> ReservationDocument:
        """Return `item`, a table from outside, as a document. Raises InvalidInputError as `read_document` does."""
        if type(item) is not dict or len(self._known) >= MOST_SHARED:
            return read_document(ReservationDocument, item, most=most)
        rest = item.copy()
        own = {name: rest.pop(name) for name in self.OWN if name in rest}
        # As text: 1, 1.0 and True are equal as values, but not all of them are valid.
        key = f"{[*own]}{rest}"
        known = self._known.get(key)
        if known is not None:
            with suppress(ExpectedError):
                alike = object.__new__(ReservationDocument)
                values = vars(alike)
                values.update(vars(known))
                for name, value in own.items():
                    values[name] = ReservationDocument.model_fields[name].read(value)
                return alike
        found = read_document(ReservationDocument, item, most=most)
        _ = found.request  # computed here, so that all copies share it
        self._known[key] = found
        return found


MOST_SHARED = 100
"""The most different reservations that a ReservationReader keeps for comparison. After them it checks every reservation
by itself, because few reservations of such a list are alike.
"""

Row = TypeVar("Row", Component, Callback, Request)


def _copy(document: Document, row: type[Row], **changes: Any) -> Row:
    """Return an instance of the class `row` whose fields have the values of the document's fields of the same names.
    `changes`: field -> value that replaces the document's value.
    """
    given = vars(document)
    return row(**{name: given[name] for name in row.__struct_fields__} | changes)


class HolderDocument(Document):
    """A request of a holder about one reservation. `token` and `key` prove that the sender is the present holder."""

    reservation: Name
    token: Count | None = None
    key: Key | None = None


class ReasonDocument(HolderDocument):
    """A request to end a reservation or one component of it (`component` None: the whole reservation). `reason` is a
    text for people.
    """

    component: Name | None = None
    reason: Text | None = None


class SurrenderDocument(ReasonDocument):
    """A request to give leases back before their deadline: what is being revoked, or the elastic `component` (an
    instance, or all of a component). `want`: the most instances of that component that the holder wants from now on.
    """

    want: Count | None = None


class PriorityDocument(HolderDocument):
    """A request that changes the priority of a reservation."""

    priority: Amount


class ConfirmDocument(HolderDocument):
    """A report that a reservation is running. `slot`: the slot on which it runs, if the sender knows it. `as_of`: time
    of the report, in seconds since the epoch (default: now).
    """

    slot: Name | None = None
    as_of: Signed | None = None


class AbsentDocument(Document):
    """A report that a reservation neither runs nor waits any more. `as_of`: time of the report, in seconds since the
    epoch (default: now).
    """

    reservation: Name
    as_of: Signed | None = None


class IdleDocument(Document):
    """A report that nothing runs on a slot. `as_of`: time of the report, in seconds since the epoch (default: now);
    `labels`: the new labels of the slot (default: no change).
    """

    slot: Name
    labels: LabelMap | None = None
    as_of: Signed | None = None


class AccountDocument(AccountKeys):
    """A request to create a quota account, or to change those of its fields that the request contains. Without
    `balance` the balance of an existing account stays.
    """

    account: Name
    balance: SignedLevels | None = None


class AccountNameDocument(Document):
    """A request to reset or delete one quota account."""

    account: Name


class SlotDocument(Document):
    """A request of an operator to cordon, uncordon, drain or remove one slot."""

    slot: Name


class RegisterDocument(Document):
    """A request of a host of a static pool to register as a slot. `machine`: an id of the machine. A machine sends the
    same id each time that it registers, and no other machine has the id. `run`: an id of this run of the host's agent;
    another run of the same machine is refused while this one sends heartbeats. `waited`: seconds since the agent's
    first attempt at this registration.
    """

    slot: Name
    pool: Name
    machine: Name
    resources: ResourceMap | None = None
    labels: LabelMap | None = None
    address: Name | None = None
    run: Name | None = None
    waited: Amount = 0


class HostDocument(Document):
    """A request of a host about its slot. `machine`: the id with which the host registered. It proves that the slot
    belongs to this host. `run`: the id of the run of its agent, which proves that no other agent has taken its place.
    """

    slot: Name
    machine: Name
    run: Name | None = None


class ExecutionDocument(HostDocument):
    """A report of a host about the command of a lease on its slot. `run`: the run of its agent. `token`: the fencing
    token of the lease.
    """

    run: Name
    reservation: Name
    component: Name
    token: Count


class TakeDocument(ExecutionDocument):
    """A request of a host for the command of a lease on its slot. `nonce`: a random text for this request, for which
    the answer is signed.
    """

    nonce: Nonce


def _tail(value: object) -> str:
    if not isinstance(value, str) or len(value) > MOST_TAIL:
        raise expected(f"a text of at most {MOST_TAIL} characters", got=_HIDDEN)
    # A host decodes bytes with replacement; what a database cannot store is replaced here.
    return "".join("\ufffd" if char == "\0" or "\ud800" <= char <= "\udfff" else char for char in value)


class OutputDocument(ExecutionDocument):
    """A report about the output of a running command. `tail`: the end of the output; `bytes`: how much there was."""

    tail: Annotated[str, Before(_tail)] = ""
    bytes: Count = 0


MOST_EXIT_CODE: Final = 255
MOST_SIGNAL: Final = 64
_exit_code = accept_if(
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST_EXIT_CODE,
    f"an exit code of 0 to {MOST_EXIT_CODE}",
)
_signal = accept_if(
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST_SIGNAL,
    f"the number of a signal, 1 to {MOST_SIGNAL}",
)


class ExitedDocument(OutputDocument):
    """A report that the run of a command on one lease has ended. `error`: one line about a command that did not start
    or was lost.
    """

    why: Why
    exit_code: Annotated[int, Before(_exit_code)] | None = None
    signal: Annotated[int, Before(_signal)] | None = None
    error: Text | None = None

    def check_fields(self) -> None:
        """Raise ExpectedError if the outcome contradicts itself."""
        if self.exit_code is not None and self.signal is not None:
            raise expected("an exit code or a signal", key="signal", got=self.signal)
        if self.why == "exited" and self.exit_code is None:
            raise expected("an exit code, because why is exited", key="exit_code", got=None)
        if self.why == "signal" and self.signal is None:
            raise expected("the number of a signal, because why is signal", key="signal", got=None)


RulesTable = Annotated[Any, Before(accept_if(lambda value: isinstance(value, dict), "a table"))]
"""A table of rules. Only its type is checked here: the receiver reads and checks it with `read_rules`."""


class ApplyDocument(Document):
    """A request of an operator that puts rules in force. `expected`: the version of the rules that the sender saw; the
    request is refused if another version is in force. `source`: name of the program or page that applies the rules,
    which the history shows.
    """

    request: Annotated[
        str,
        Before(accept_if(lambda value: is_whole_text(value, MOST_NAME), f"an id of 1 to {MOST_NAME} whole characters")),
    ]
    reply_to: Text | None = None
    rules: RulesTable
    expected: Count
    source: Text | None = None


MOST_QUERIED: Final = 1000
MOST_VERSIONS: Final = 100
"""The most versions of the rules in one answer."""


def _few(ids: list[str]) -> list[str]:
    if len(ids) > MOST_QUERIED:
        raise expected(f"at most {MOST_QUERIED} ids", got=len(ids))
    return ids


class Question(Document):
    """Base class of the documents of requests that only read and change nothing. A document is the JSON object with the
    fields of a request.
    """

    request: Text
    reply_to: Text


class QueryDocument(Question):
    """The document of a request for the rows of the reservations `ids` from the database, also of ended ones."""

    ids: Annotated[list[Name], After(_few)]


class ExplainDocument(Question):
    """The document of a request for the reason why a reservation waits, and for the change that would end the wait."""

    reservation: Name


class RerunDocument(Document):
    """The document of a request for a new reservation like an earlier one, with the same command. `id`: the id of the
    new one.
    """

    reservation: Name
    id: Name


class CommandDocument(Question):
    """The document of a request for the command of a reservation, with its runs and the end of their output."""

    reservation: Name


class ConditionsDocument(Question):
    """The document of a request for the unusual conditions of the pool `pool` and its slots; None: of all pools and
    slots.
    """

    pool: Name | None = None


class RulesDocument(Question):
    """The document of a request for the rules in force, and for the newest `history` versions of the rules."""

    history: Annotated[
        Count, After(accept_if(lambda count: count <= MOST_VERSIONS, f"at most {MOST_VERSIONS} versions"))
    ] = 0


class PreviewDocument(Question):
    """The document of a request for a preview: what would happen if `rules` became the rules in force."""

    rules: RulesTable


class LeasesDocument(Question):
    """The document of a request in which the host `machine` asks for its slot `slot` and the leases on this slot. The
    answer is read from the database.
    """

    slot: Name
    machine: Name
    run: Name | None = None


def _find_documents(changes: str) -> dict[str, type[Document]]:
    return {name: globals()[verb.document] for name, verb in VERBS.items() if verb.changes == changes}


SCHEMAS: Final = _find_documents("rows")
"""Verb -> schema of its requests, for the verbs that change reservations, slots or accounts. `apply` is missing: it
changes the rules, and its message has no `items`.
"""
QUESTION_SCHEMAS: Final = _find_documents("nothing")
"""Verb -> schema of its requests, for the verbs that only read."""
