"""The ports to the cloud: `Fleet` launches and terminates machines, `Probe` checks a machine, and `NoticeFeed` delivers
the cloud's notices about machines.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from scheduler.model.launch_backoff import describe_error
from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot

Category = Literal[
    "capacity",
    "quota",
    "throttled",
    "transient",
    "auth",
    "misconfigured",
    "token",
    "gone",
    "state",
    "not_found",
    "unknown",
]
"""What an error of the cloud means, see CloudError."""
Scope = Literal["offering", "place", "class", "pool", "market", "caller", "machine"]
"""What a refusal concerns, and so what rests after it. offering: an offering in a place (type, market, zone or subnet).
place: a zone or subnet, for all offerings. class: a quota class of a market in the pool. pool: the pool. market: a
market of the whole account. caller: every call with these credentials. machine: one machine.
"""
UNCLEAR: Final[frozenset[Category]] = frozenset({"transient", "unknown"})
"""The categories of errors after which the request may or may not have been carried out."""
UNHEARD: Final[frozenset[Category]] = frozenset({"throttled", "auth"})
"""The categories of errors that EC2 returns before it looks at the request. If a request is sent again and gets such an
error, it is still unknown whether EC2 carried out the first one.
"""


class CloudError(Exception):
    """Raised when the cloud refused a request, or when no answer arrived. `code` is the cloud's own error code.

    `category` decides what the caller does. capacity, quota, throttled, auth, misconfigured: the cloud refused, and
    nothing was launched. transient, unknown: the request may or may not have been carried out; send exactly the same
    request again. not_found: the machine does not exist. token: the client token was used for another request; search
    the machines of the request by their tag. gone: the machine of this request has ended. state: the cloud refused
    because of the state or a protection of one machine.

    `place`: the subnet or zone that the refusal concerns; "": all places of the request. `is_after_unclear`: an earlier
    attempt of the same call may have been carried out. Then a refusal does not show that the request had no effect.
    """

    def __init__(
        self,
        category: Category,
        code: str,
        message: str,
        scope: Scope = "offering",
        *,
        place: str = "",
        is_after_unclear: bool = False,
    ) -> None:
        self.category, self.code, self.message, self.scope = category, code, message, scope
        self.place, self.is_after_unclear = place, is_after_unclear
        super().__init__(f"the call of the cloud failed ({category}: {code}): {message}")

    def refuse(self, offering: str | None) -> "Refusal":
        """Return this error as the refusal of an offering, given by its key."""
        return Refusal(
            offering=offering,
            category=self.category,
            code=self.code,
            message=self.message[:MOST_MESSAGE],
            scope=self.scope,
            place=self.place,
        )

    @property
    def may_concern_one(self) -> bool:
        """Whether a call about several machines may be refused because of only one of them. A throttled call, an
        unclear answer and refused credentials concern every machine of the call.
        """
        return self.category not in {"throttled", *UNCLEAR} and self.scope != "caller"

    @property
    def answer(self) -> str:
        """The cloud's answer as one text: `CODE: message`. The message is cut after MOST_MESSAGE characters."""
        return describe_error(self.code, self.message[:MOST_MESSAGE])


MOST_MESSAGE: Final = 500
"""The most characters of a cloud's message that are kept with a refusal."""


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where a machine may be launched: a subnet, or without one a zone. `subnet` None: the default subnet of the zone.
    `zone` None: the zone of the subnet is unknown. `free`: number of addresses that the subnet has left; None: unknown.
    """

    subnet: str | None = None
    zone: str | None = None
    free: int | None = None


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What one launch request is made of: the slots or the batch, the pool, the offerings and the identity of the
    cluster. A request asks for the machine of one slot (`slot`) or for those of a batch of slots (`batch`).
    """

    slot: str = ""
    launch_id: str = ""
    generation: int = 0
    """The slot's epoch. The client token of the request contains it (EC2 launches once for requests with equal tokens).
    A repeated request has the same epoch, so it launches no second machine. The epoch increases only with the slot's
    next launch, when the earlier one is over, for example refused. So EC2 does not take the new request for a
    repetition.
    """
    batch: str | None = None
    """Id of the batch; None: the request is for `slot`. The client token is made from this id alone, because a batch
    has one request.
    """
    pool: str
    count: int = 1
    """How many machines to launch."""
    offerings: tuple[str, ...] = ()
    """Keys of the offerings (instance type, market and price) of one market among which the cloud may choose, best
    first; () in a pool that lists no offerings.
    """
    is_gang: bool = False
    """Whether the machines are of use only together. Then the cloud is to launch all or none of them, where it can."""
    cluster_id: str = ""
    """Identity of the cluster, for a tag of the machine; "" if it is not known."""
    highest: str = ""
    """The highest leader term and fencing token when the launch request was stored, as `TERM.TOKEN`; "" if they are not
    known.
    """
    places: tuple[Place, ...] = ()
    """The subnets of the pool as `Fleet.find_places` returned them; (): as the rules write them."""
    held_places: Collection[str] = ()
    """Subnets and zones that a back-off holds. The request names none of them, unless no other place is left."""

    @property
    def offering(self) -> str | None:
        """The first offering; None in a pool that lists none."""
        return self.offerings[0] if self.offerings else None


class Refusal(msgspec.Struct, frozen=True, kw_only=True):
    """A reason for which the cloud launched fewer machines than a request asked for. `category` and `code`: as in
    CloudError.
    """

    offering: str | None
    """Key of the offering that is refused; None in a pool that lists no offerings."""
    category: Category
    code: str
    message: str = ""
    """The cloud's own sentence, at most `MOST_MESSAGE` characters."""
    scope: Scope = "offering"
    place: str = ""
    """The only subnet or zone in which the offering is refused; "": it is refused wherever it may be launched."""

    def to_error(self, *, is_after_unclear: bool) -> CloudError:
        """Return this refusal of a whole request as an error."""
        return CloudError(
            self.category,
            self.code,
            self.message,
            self.scope,
            place=self.place,
            is_after_unclear=is_after_unclear,
        )


class LaunchAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of the cloud to a launch request: the launched machines, and the reasons for missing ones. Each
    machine has the key of its offering.
    """

    machines: tuple[Machine, ...]
    refusals: tuple[Refusal, ...] = ()
    """The refusal to show comes last."""
    is_after_unclear: bool = False
    """As in CloudError: an answer without machines does not show then that the request launched none."""


JOIN_TOKEN: Final = "join_token"  # noqa: S105 - the name of a key
"""Key in a launch request that is sent, and not stored: the join token of the launch, which takes the place of
`join_tokens.TOKEN_PLACE` in the user data. A request without it is sent as it is.
"""


class Fleet(Protocol):
    """The port through which operations launch, list, tag, stop, start and terminate the machines of the cloud account.
    Every method except `find_places` and `freeze` calls the cloud and may raise CloudError.
    """

    def find_places(self, pool: str, rules: Rules) -> tuple[Place, ...]:
        """Return the subnets of a pool with their zones and free addresses, in the order of the rules; () for a pool
        without subnets. Call it before `freeze`, whose order contains the result.

        The cloud is called at most once in some minutes. What it does not return is as the rules write it: this method
        raises no CloudError.
        """

    def freeze(self, order: LaunchOrder, rules: Rules) -> dict[str, Any]:
        """Return the complete launch request for this order as JSON values, without calling the cloud.

        Equal orders and rules give equal requests. Raises CloudError (misconfigured) if the pool's rules lack something
        that a launch needs.
        """

    def launch(self, request: Mapping[str, Any]) -> LaunchAnswer:
        """Send a launch request that `freeze` returned, with JOIN_TOKEN if there is one. The cloud may launch fewer
        machines than requested. The same request sent again returns the same answer. Raises CloudError if nothing was
        launched for an unclear reason.
        """

    def describe(self, machines: Sequence[str], *, checked: Collection[str] | None = None) -> dict[str, Machine]:
        """Return machines by id. Ids that the cloud does not know, or does not know yet, are missing in the result.

        `checked`: the ids of the machines for which the result of the cloud's own status checks is needed; None: all.
        Every other machine has None as `healthy`.
        """

    def find_launched(self, request: Mapping[str, Any]) -> list[Machine]:
        """Return the machines that a launch request has made, by the tag of its launch or batch, except terminated
        ones.
        """

    def sweep(self) -> Iterator[Machine]:
        """Yield every machine with the cluster's tags once, except terminated ones. The cloud is read page by page."""

    def claim(self, machines: Sequence[str], cluster_id: str) -> dict[str, CloudError]:
        """Tag these machines with the cluster's identity. Result and errors: as of `terminate`."""

    def show_life(self, machines: Sequence[str], sign: str) -> dict[str, CloudError]:
        """Tag these machines with a sign of life (`Machine.alive`). Result and errors: as of `terminate`."""

    def terminate(self, machines: Sequence[str]) -> dict[str, CloudError]:
        """Terminate the machines with these ids. Return machine id -> error for each machine that the cloud did not
        accept; all others are accepted. Repeating the call is harmless; unknown ids are ignored.

        A refusal that may concern one machine (`CloudError.may_concern_one`) is in the result and does not prevent the
        end of the other machines. If very many machines are refused in a row, the cloud is not called for the rest:
        they are in the result with the same error. Any other error is raised as CloudError if nothing is known of any
        machine yet; else the machines for which the cloud was not called are in the result with it.
        """

    def stop(self, machines: Sequence[str]) -> dict[str, CloudError]:
        """Stop the machines with these ids; their storage is kept. Result and errors: as of `terminate`."""

    def start(self, machines: Sequence[str]) -> dict[str, CloudError]:
        """Start the stopped machines with these ids. Result and errors: as of `terminate`. If the cloud lacks capacity
        or quota for one machine, it is not called for the rest of the machines.
        """

    def resize(self, machine: str, instance_type: str) -> None:
        """Change the instance type of a stopped machine. Repeating the call is harmless."""


class Images(Protocol):
    """The port that looks up images which the rules name not by id but by a source: an SSM parameter, or a pattern for
    the newest image of an owner (see `model.images`). It also finds the root devices of images.
    """

    def find(self, source: str) -> str:
        """Return the id of the image that `source` names now; the name of the root device if it is `root:IMAGE`. Raises
        CloudError; its category is `not_found` if there is no such image.
        """


class Probe(Protocol):
    """The port that checks whether a launched machine is ready to serve leases."""

    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        """Return whether the machine of this slot passes the readiness probe of its pool. The check has a time limit
        and never raises an error.
        """


INTERRUPTION_SECONDS = 120.0


NoticeKind = Literal["interruption", "rebalance", "maintenance", "state"]
"""What the cloud announces about a machine. interruption: it will take the spot machine back. rebalance: the risk of an
interruption has risen. maintenance: it will stop, restart or retire the machine at a known time. state: the machine
changed its state.
"""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """What the cloud announces about one machine. The notices on the channels of reservations are other messages."""

    machine: str
    kind: NoticeKind
    at: float
    """Time at which the cloud sent the notice, in seconds since the epoch by the cloud's clock."""
    state: str | None = None
    """The new state of the machine, as the cloud names it, in a notice of the kind `state`; else None."""
    code: str | None = None
    """What the cloud will do, as the cloud names it, in a notice of the kind `maintenance`; else None."""
    begins_at: float | None = None
    """When the maintenance begins, in seconds since the epoch, in a notice of the kind `maintenance`; None: unknown."""
    ends_at: float | None = None
    """When the maintenance is over, in seconds since the epoch, in a notice of the kind `maintenance`; None:
    unknown.
    """

    @property
    def gone_at(self) -> float:
        """The time at which an interrupted machine will be gone: two minutes after the notice. Source: EC2, "Spot
        interruption notices".
        """
        return self.at + INTERRUPTION_SECONDS


class Message(msgspec.Struct, frozen=True):
    """One message from the queue in which the cloud's notices arrive: the notices in it, and the receipt with which the
    message is deleted.

    `notices` is empty if the scheduler does not handle this kind of message.
    """

    receipt: str
    notices: tuple[Notice, ...] = ()


class NoticeFeed(Protocol):
    """The port that delivers the cloud's notices about machines, from a queue that delivers each notice at least once
    and in any order. Both methods may raise CloudError.
    """

    def receive(self, wait_seconds: float = 0.0) -> list[Message]:
        """Return a batch of messages as soon as one has arrived; [] if none arrives within `wait_seconds`. A message
        that is not deleted is delivered again after some time.
        """

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete the messages with these receipts from the queue. Receipts that are not valid any more are ignored."""
