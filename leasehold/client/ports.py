"""What a client needs of a stack: a transport for requests, a reader of rows, and hints that report changes of rows.
One implementation uses Redis and the broker, the other the HTTP API. Both belong to one event loop.
"""

from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from leasehold.client.models import Account, Explanation, LastWait, LeaseKey, Reservation, RunTimes, Slot
from leasehold.errors import Fault

if TYPE_CHECKING:
    from leasehold.canaries import Probe


class Joined(NamedTuple):
    """The row of a reservation with the machines of its leases. `row` None: the view does not have the reservation.
    `missing`: the ids of the leased slots whose machine is unknown, because the view does not have the slot, or has
    another epoch of the slot, or has a row of the slot from before the lease.

    A machine without an address is known; its `address` is None.
    """

    row: Reservation | None
    missing: frozenset[str] = frozenset()


class Answered(NamedTuple):
    """The answer to a request. `joined`: the row of the request's reservation as it was after the answer; its `row` is
    None if the view does not have the reservation. `joined` None: the row was not read.
    """

    answer: dict[str, Any]
    joined: Joined | None = None


class Clock(Protocol):
    """The clock of a client, which shows cluster time."""

    def now(self) -> float:
        """Return cluster time in seconds since the epoch."""


class Hints(Protocol):
    """A subscription to hints, for one thread. A hint reports that a row has changed. Hints may be lost."""

    @property
    def expected(self) -> frozenset[str]:
        """The slots on which the reservation had leases when the newest hint was sent; empty if that is not known."""

    @property
    def commands(self) -> Sequence[LeaseKey]:
        """In hints for a host: the leases whose commands are new by the newest hint, if that is known."""
        return ()

    def listen(self) -> None:
        """Begin the subscription. If the stack does not answer, do nothing; `wait` begins the subscription later."""

    def wait(self, seconds: float) -> bool:
        """Wait for a hint, for `seconds` at most. Return whether a hint arrived."""

    def note(self, seen: Joined) -> None:
        """Record the row that was read last (`seen`). A transport that compares versions of rows then reports every
        later change; other transports ignore the row.
        """

    def forget(self) -> None:
        """Drop the hints that have arrived so far. Call this before a read, because the read shows the changes that
        these hints report.
        """

    def close(self) -> None:
        """End the subscription."""


class Flag(Protocol):
    """What a notice sets: an `asyncio.Event`, or another object with this method."""

    def set(self) -> None:
        """Record that a notice has arrived."""


class Notices(Protocol):
    """The receiver of notices for all watches of one event loop. A notice reports that the row of a reservation, or of
    a slot, has changed.
    """

    def add(self, name: str, flag: Flag) -> None:
        """Set `flag` at each notice about the reservation (or slot) `name`, until `remove` is called."""

    async def listen(self, name: str) -> None:
        """Return when every later change of `name` will be reported. If the stack does not answer soon, return all the
        same: the subscription begins later, and sets the flags then.
        """

    def remove(self, name: str, flag: Flag) -> None:
        """No longer set `flag` at notices about the reservation (or slot) `name`."""

    def find_expected(self, name: str) -> Collection[str]:
        """Return the slots on which the reservation had leases when its newest notice was sent, if that is known."""

    def find_commands(self, name: str) -> Sequence[LeaseKey]:  # noqa: ARG002 - of the port
        """Return the leases on the slot `name` whose commands are new by its newest hint, if that is known."""
        return ()

    def note(self, name: str, seen: Joined) -> None:
        """Record the row of the reservation `name` that was read last (`seen`). A transport that compares versions of
        rows then reports every later change; other transports ignore the row.
        """


class Wire(Protocol):
    """Sends requests and waits for their answers."""

    rows: Notices
    """Notices about reservations."""
    hosts: Notices
    """Hints for hosts, which report that the slot of a host has changed."""

    @property
    def clock(self) -> Clock:
        """The clock with cluster time."""

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""

    async def ask(
        self,
        verb: str,
        document: Mapping[str, Any],
        timeout: float,
        *,
        request: str | None = None,
        has_row: bool = False,
    ) -> Answered:
        """Send one request and return its answer. Raise NotAnswered if there is no answer within `timeout` seconds, or
        Unavailable if the stack cannot be reached. `request`: the id of the request (default: a random one). `has_row`:
        whether the row of the reservation `id` of the document should come with the answer if that is cheap.
        """

    def ask_each(
        self, verb: str, documents: Iterable[Mapping[str, Any]], timeout: float
    ) -> AsyncIterator[dict[str, Any]]:
        """Send several requests, and yield their answers in the order of the requests. Raise NotAnswered or Unavailable
        if `timeout` seconds pass after the last answer (at first: after the start) without another answer.
        """

    async def send_heartbeat(
        self, slot: str, machine: str, version: str | None, above: int, run: str | None = None
    ) -> int:
        """Send a heartbeat of the host of this slot. A signed heartbeat has a counter, which is greater than `above`.
        `run`: the run of its agent that the slot has; None: it has none.
        Return the value to pass as `above` with the next heartbeat. Raise Unavailable if the stack does not answer.
        """

    def make_probe(self) -> "Probe":
        """Return the checks of the stack's health. Raise Unavailable if this transport cannot make them."""

    async def close(self) -> None:
        """Close all connections. Calls that wait for an answer raise an error, and all flags of notices are set."""


class Reader(Protocol):
    """Reads rows and the report of the last tick. Every method raises Unavailable if the stack does not answer or has
    no valid view.
    """

    checks_names: bool
    """Whether lists raise Refused for a filter by a pool or system that does not exist."""

    async def check(self) -> None:
        """Raise Unavailable unless the stack answers and has a valid view."""

    async def find_joined(self, ids: Sequence[str], expected: Collection[str] = ()) -> list[Joined]:
        """Return the reservations with these ids and their machines, in the given order. `expected`: ids of slots that
        the reservations probably have leases on; a reader may read these slots in the same round trip.
        """

    async def list_reservations(
        self, phases: frozenset[str] | None, wanted: Mapping[str, str | None], tags: Mapping[str, str]
    ) -> list[Reservation]:
        """Return the reservations that match all given conditions, with machines, in order of submission. `phases`: the
        possible phases; None: any phase. `wanted`: field of the request -> its value; None: any value. `tags`: tags
        that a reservation must have.
        """

    async def find_slots(self, ids: Sequence[str]) -> list[Slot | None]:
        """Return the slots with these ids in the given order; None for an unknown id."""

    async def list_slots(self, pool: str | None, state: str | None) -> list[Slot]:
        """Return the slots of this pool and in this state (None: any), sorted by name."""

    async def list_accounts(self) -> list[Account]:
        """Return the quota accounts, sorted by name, without deleted (forgotten) ones."""

    async def find_etas(self, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Return by id when these waiting reservations are expected to start, as tables
        (`scheduler/protocol/forecasts.py`). Reservations without a forecast are missing; all are if Redis does not
        answer, or refuses to read them.
        """

    async def read_foresight(self) -> dict[str, Any]:
        """Return how well forecasts were kept, as a table with the fields of `Foreseen`; {} if there are none."""

    async def list_run_times(self, account: str | None, job: str | None) -> list[RunTimes]:
        """Return the run times of the classes of this account and job (None: any), sorted by id."""

    async def read_report(self) -> dict[str, Any]:
        """Return the report of the last tick, or {} before the first tick."""

    async def explain(self, reservation: str) -> Explanation:
        """Return the state of a reservation and the reason why it waits, as the last tick reported it. Raise Unknown if
        the view does not have the reservation.
        """

    async def find_waits(self, ids: Sequence[str]) -> list[LastWait]:
        """Return why the reservations with these ids wait, as the last tick reported it, in the given order."""


def is_run_unknown(faults: Iterable[Fault]) -> bool:
    """Return whether these faults of a request came from a process of an earlier version, which knows no runs of
    agents. The request is then sent without its `run`.
    """
    return any(each.path == "run" and each.code is None for each in faults)
