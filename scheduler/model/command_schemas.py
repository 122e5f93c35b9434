"""The schemas of the requests that producers, holders, operators and hosts send. Workers check each request against the
schema of its verb before they carry it out.

Fields have the names that scenario files use. The message around a request also has `request` (the request's id) and
may have `reply_to` (the address for the answer).
"""

from contextlib import suppress
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeVar

from scheduler.model.reservations import Callback, Component, Request
from scheduler.model.rules import AccountKeys
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
    Positive,
    PositiveSeconds,
    ResourceMap,
    Seconds,
    Signed,
    SignedLevels,
    Text,
    expected,
    is_whole_text,
    read_document,
)
from scheduler.protocol.names import QUEUE_NAMES
from scheduler.protocol.verbs import VERBS

MOST_INSTANCES = 10_000


def _own_queue(name: str) -> str:
    if name in RESERVED_QUEUES or ":" in name:
        raise expected("a queue of the producer's own (a name without colons that is none of Leasehold's)")
    return name


RESERVED_QUEUES = frozenset({*QUEUE_NAMES, "unacked", "unacked_index", "unacked_mutex"})
"""Queue names that a callback must not use: Leasehold's queues, and kombu's lists of unacknowledged messages. Names
with a colon are refused too, because keys of the view, such as the leader lock, have such names.
"""


class CallbackDocument(Document):
    """A callback: the name of a Celery task of the producer, and the queue to which Leasehold sends the task when a
    lease begins (`on_lease`) or a reservation ends (`on_end`).
    """

    task: Name
    queue: Annotated[Name, After(_own_queue)]


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
                return self._copy(known, own)
        found = read_document(ReservationDocument, item, most=most)
        _ = found.request  # computed here, so that all copies share it
        self._known[key] = found
        return found

    @staticmethod
    def _copy(known: ReservationDocument, own: dict[str, object]) -> ReservationDocument:
        """Return a copy of the document `known` with the values in `own` (field -> value), each checked by the reader
        of its field. Raises ExpectedError if a value is wrong.
        """
        fields = ReservationDocument.model_fields
        alike = object.__new__(ReservationDocument)
        values = vars(alike)
        values.update(vars(known))
        for name, value in own.items():
            values[name] = fields[name].read(value)
        return alike


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


def _table(value: object) -> object:
    if not isinstance(value, dict):
        raise expected("a table")
    return value


RulesTable = Annotated[Any, Before(_table)]
"""A table of rules. Only its type is checked here: the receiver reads and checks it with `read_rules`."""


def _request_id(value: object) -> str:
    if not is_whole_text(value, MOST_NAME):
        raise expected(f"an id of 1 to {MOST_NAME} whole characters")
    return value


class ApplyDocument(Document):
    """A request of an operator that puts rules in force. `expected`: the version of the rules that the sender saw; the
    request is refused if another version is in force. `source`: name of the program or page that applies the rules,
    which the history shows.
    """

    request: Annotated[str, Before(_request_id)]
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


class ConditionsDocument(Question):
    """The document of a request for the unusual conditions of the pool `pool` and its slots; None: of all pools and
    slots.
    """

    pool: Name | None = None


def _few_versions(count: int) -> int:
    if count > MOST_VERSIONS:
        raise expected(f"at most {MOST_VERSIONS} versions")
    return count


class RulesDocument(Question):
    """The document of a request for the rules in force, and for the newest `history` versions of the rules."""

    history: Annotated[Count, After(_few_versions)] = 0


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
