"""The verbs: for each request that workers answer, one entry with all that depends on the verb. Rights, routes, tasks,
schemas, the order in which requests are put off, and the actions of scenarios derive from it.

A new verb is an entry here, the function that carries it out (`scheduler/operations/commands`), and a method of the
client (`leasehold/client/core/commands.py`). This module imports only the standard library, because the client uses it.
"""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

Role = Literal["producer", "operator", "host", "reader", "worker"]
_PRODUCER: Final = frozenset[Role]({"producer", "operator"})
_OPERATOR: Final = frozenset[Role]({"operator"})
_HOST: Final = frozenset[Role]({"host", "operator"})
_ONLY_HOST: Final = frozenset[Role]({"host"})
_HOLDER: Final = frozenset[Role]({"producer", "operator", "host"})
_READER: Final = frozenset[Role]({"producer", "operator", "reader"})


class Route(NamedTuple):
    """The resource of the HTTP API for the requests of one verb. `path` is relative to API. `field`: the field of the
    document whose value is a part of the path; None if the path has no such part.
    """

    method: str
    path: str
    field: str | None = None

    @property
    def has_body(self) -> bool:
        """Whether the fields of the document are sent as the JSON body; otherwise they are sent in the query of the
        URL.
        """
        return self.method not in {"GET", "DELETE"}


class Verb(NamedTuple):
    """What depends on a verb."""

    task: str
    """The queue and the verb. The Celery task has this name behind `leasehold.`."""
    document: str
    """Name of the class in `scheduler/model/command_schemas.py` that checks the fields of a request."""
    roles: frozenset[Role]
    """The roles of principals that may send the requests."""
    where: Route | Literal["reservation", "slot"]
    """The resource of the HTTP API. A kind of rows: the requests are about one row of this kind, and many of them may
    be sent as a list.
    """
    changes: Literal["rows", "rules", "nothing"] = "rows"
    put_off: Literal["first", "later", "last"] = "later"
    """When requests are refused with "retry later", while more wait than can be answered in time."""
    needs_key: bool = False
    """Whether the sender needs the key of the reservation, if the producer submitted it with a `key_hash`."""
    is_gathered: bool = False
    """Whether a worker carries out the requests together in one transaction if several of them wait. Requests with
    other verbs are rare, or lock other rows.
    """
    is_report: bool = False
    """Whether a host sends the requests about a command on a lease that it holds. Without a signature they are refused
    in every mode.
    """
    keeps_answer: bool = True
    """Whether the answer is stored, and a copy of the request gets it again. Otherwise a copy is carried out again.
    """
    is_search: bool = False
    """Whether a worker reads all rows and plans on a copy of them, and so may take seconds. It leaves a process of its
    pool to other requests meanwhile.
    """

    @property
    def name(self) -> str:
        """The verb, without the queue."""
        return self.task.rpartition(".")[2]

    @property
    def route(self) -> Route:
        """The resource for a request with one document."""
        if isinstance(self.where, Route):
            return self.where
        return Route("POST", f"/{self.where}s/{{{self.where}}}/{self.name}", self.where)

    @property
    def list_route(self) -> Route | None:
        """The resource for a request with a list of documents; None: a request has one document."""
        if isinstance(self.where, Route):
            return self.where if self.name == "submit" else None
        return Route("POST", f"/{self.where}s/{self.name}")


_ENTRIES: Final = (
    Verb("reservations.submit", "ReservationDocument", _PRODUCER, Route("POST", "/reservations"), is_gathered=True),
    Verb(
        "reservations.release",
        "HolderDocument",
        _PRODUCER,
        "reservation",
        put_off="last",
        needs_key=True,
        is_gathered=True,
    ),
    Verb("reservations.cancel", "ReasonDocument", _PRODUCER, "reservation", is_gathered=True),
    Verb(
        "reservations.renew",
        "HolderDocument",
        _HOLDER,
        "reservation",
        put_off="last",
        needs_key=True,
        is_gathered=True,
    ),
    Verb(
        "reservations.confirm",
        "ConfirmDocument",
        _PRODUCER,
        "reservation",
        put_off="last",
        needs_key=True,
        is_gathered=True,
    ),
    Verb("reservations.fail", "ReasonDocument", _PRODUCER, "reservation", put_off="last", needs_key=True),
    Verb("reservations.surrender", "SurrenderDocument", _PRODUCER, "reservation", put_off="last", needs_key=True),
    Verb("reservations.decline", "HolderDocument", _PRODUCER, "reservation", put_off="last", needs_key=True),
    Verb("reservations.suspend", "HolderDocument", _PRODUCER, "reservation", put_off="last", needs_key=True),
    Verb("reservations.resume", "HolderDocument", _PRODUCER, "reservation", needs_key=True),
    Verb("reservations.priority", "PriorityDocument", _PRODUCER, "reservation"),
    Verb(
        "reservations.rerun",
        "RerunDocument",
        _PRODUCER,
        Route("POST", "/reservations/{reservation}/rerun", "reservation"),
    ),
    Verb("reservations.absent", "AbsentDocument", _OPERATOR, "reservation", put_off="last"),
    Verb("reservations.cordon", "SlotDocument", _OPERATOR, "slot", put_off="last"),
    Verb("reservations.uncordon", "SlotDocument", _OPERATOR, "slot", put_off="last"),
    Verb("reservations.drain", "SlotDocument", _OPERATOR, "slot", put_off="last"),
    Verb("reservations.remove", "SlotDocument", _OPERATOR, "slot", put_off="last"),
    Verb("reservations.idle", "IdleDocument", _OPERATOR, "slot", put_off="last"),
    # Hosts repeat registrations.
    Verb("reservations.register", "RegisterDocument", _HOST, "slot", put_off="first"),
    Verb("reservations.leave", "HostDocument", _HOST, "slot", put_off="last"),
    # The answer has the command, and the lease is checked again for each copy.
    Verb(
        "reservations.take",
        "TakeDocument",
        _ONLY_HOST,
        "slot",
        is_report=True,
        keeps_answer=False,
        is_gathered=True,
    ),
    Verb(
        "reservations.started",
        "ExecutionDocument",
        _HOST,
        "slot",
        put_off="last",
        is_report=True,
        is_gathered=True,
    ),
    # Hosts repeat these reports.
    Verb(
        "reservations.output",
        "OutputDocument",
        _HOST,
        "slot",
        put_off="first",
        is_report=True,
        keeps_answer=False,
        is_gathered=True,
    ),
    Verb("reservations.exited", "ExitedDocument", _HOST, "slot", put_off="last", is_report=True, is_gathered=True),
    Verb(
        "reservations.account",
        "AccountDocument",
        _OPERATOR,
        Route("PUT", "/accounts/{account}", "account"),
        put_off="last",
    ),
    Verb(
        "reservations.reset_account",
        "AccountNameDocument",
        _OPERATOR,
        Route("POST", "/accounts/{account}/reset", "account"),
        put_off="last",
    ),
    Verb(
        "reservations.forget_account",
        "AccountNameDocument",
        _OPERATOR,
        Route("DELETE", "/accounts/{account}", "account"),
        put_off="last",
    ),
    # An answer to a question is useless after its sender has stopped waiting.
    Verb(
        "reservations.leases",
        "LeasesDocument",
        _HOST,
        Route("GET", "/slots/{slot}/leases", "slot"),
        changes="nothing",
        put_off="first",
    ),
    Verb(
        "reservations.query",
        "QueryDocument",
        _READER,
        Route("POST", "/reservations/query"),
        changes="nothing",
        put_off="first",
    ),
    Verb(
        "reservations.command",
        "CommandDocument",
        _PRODUCER,
        Route("GET", "/reservations/{reservation}/command", "reservation"),
        changes="nothing",
        put_off="first",
    ),
    Verb(
        "reservations.explain",
        "ExplainDocument",
        _READER,
        Route("GET", "/reservations/{reservation}/explanation", "reservation"),
        changes="nothing",
        put_off="first",
        is_search=True,
    ),
    Verb(
        "reservations.conditions",
        "ConditionsDocument",
        _READER,
        Route("GET", "/conditions"),
        changes="nothing",
        put_off="first",
        is_search=True,
    ),
    Verb("reservations.rules", "RulesDocument", _READER, Route("GET", "/rules"), changes="nothing", put_off="first"),
    Verb(
        "reservations.preview",
        "PreviewDocument",
        _OPERATOR,
        Route("POST", "/rules/preview"),
        changes="nothing",
        put_off="first",
        is_search=True,
    ),
    Verb("reservations.apply", "ApplyDocument", _OPERATOR, Route("PUT", "/rules"), changes="rules", put_off="last"),
)
VERBS: Final[Mapping[str, Verb]] = MappingProxyType({each.name: each for each in _ENTRIES})


def _list_verbs(has: Callable[[Verb], bool]) -> frozenset[str]:
    return frozenset(each.name for each in _ENTRIES if has(each))


GATHERED: Final = _list_verbs(lambda each: each.is_gathered)
KEY_VERBS: Final = _list_verbs(lambda each: each.needs_key)
QUESTIONS: Final = _list_verbs(lambda each: each.changes == "nothing")
OPERATOR_VERBS: Final = _list_verbs(lambda each: each.roles == _OPERATOR and each.changes != "nothing")
"""Verbs of changes that only operators may make."""
HOST_VERBS: Final = _list_verbs(lambda each: each.roles == _HOST and each.changes != "nothing" and not each.is_report)
"""Verbs of changes that hosts of static pools make to their slots."""
REPORT_VERBS: Final = _list_verbs(lambda each: each.is_report)
"""Verbs with which hosts take commands and report about them."""
