"""The ports to the cloud: the fleet launches and terminates machines, and a feed reports notices about machines."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot

Category = Literal["capacity", "quota", "throttled", "transient", "auth", "misconfigured", "not_found", "unknown"]


class CloudError(Exception):
    """The cloud refused a request, or its answer did not arrive. `code` is the cloud's own error code.

    `category` decides what the caller does:
    capacity, quota, throttled, auth, misconfigured: a definite refusal, nothing was launched.
    transient, unknown: the request may or may not have been carried out; send exactly the same request again.
    not_found: the machine does not exist.
    """

    def __init__(self, category: Category, code: str, message: str) -> None:
        self.category, self.code, self.message = category, code, message
        super().__init__(f"{category}: {code}: {message}")


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The slot, pool, offering and ids from which the request to launch one machine is built."""

    slot: str
    pool: str
    launch_id: str
    generation: int
    """Increases only after the cloud definitely refused the slot's earlier launch request. Each value gives a new
    client token.
    """
    offering: str | None
    """Key of the offering (instance type, market and price) to launch; None in a pool that lists no offerings."""
    cluster_id: str = ""
    """Identity of the cluster, for the tags of the machine; "" = not known."""
    highest: str = ""
    """The highest leader term and fencing token when the launch request was stored, as `TERM.TOKEN`; "" = not known."""


class Fleet(Protocol):
    """The machines of the cloud account. Every method except `freeze` calls the cloud and may raise CloudError."""

    def freeze(self, order: LaunchOrder, rules: Rules) -> dict[str, Any]:
        """Return the complete launch request for this order as JSON values, without any I/O.

        The client token is derived from the launch id and the generation, so the same order and rules give the same
        request. Raises CloudError (misconfigured) if the pool's rules lack something that a launch needs.
        """

    def launch(self, request: Mapping[str, Any]) -> Machine:
        """Send a launch request that `freeze` returned, and return the machine. The same request again returns the same
        machine.
        """

    def describe(self, machines: Sequence[str]) -> dict[str, Machine]:
        """Return the machines with these ids. Ids that the cloud does not know (yet, or any more) are missing in the
        result.
        """

    def find_launch(self, launch_id: str) -> list[Machine]:
        """Return the machines whose tag has this launch id, except terminated ones."""

    def sweep(self) -> Iterator[Machine]:
        """Yield every machine with the cluster's tags, except terminated ones; the cloud is read page by page."""

    def claim(self, machines: Sequence[str], cluster_id: str) -> None:
        """Write the cluster's identity as a tag on these machines. Ids that the cloud does not know are ignored."""

    def terminate(self, machines: Sequence[str]) -> None:
        """Terminate these machines. May be repeated; ids that the cloud does not know are ignored."""


class Probe(Protocol):
    """The check whether a launched machine is ready to serve leases."""

    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        """Return whether the machine of this slot passes the readiness probe of its pool. Bounded in time; never
        raises.
        """


INTERRUPTION_SECONDS = 120.0


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A notice about one machine: the cloud will interrupt it, or its risk of interruption has risen."""

    machine: str
    kind: Literal["interruption", "rebalance"]
    at: float
    """When the cloud sent the notice, in seconds since the epoch by the cloud's clock."""

    @property
    def gone_at(self) -> float:
        """Return when an interrupted machine is gone: two minutes after its notice.

        Source: EC2, "Spot interruption notices".
        """
        return self.at + INTERRUPTION_SECONDS


class Message(msgspec.Struct, frozen=True):
    """One message of the notice feed: the receipt with which it is deleted, and the notice in it. `notice` is None if
    the message is of a kind that the scheduler does not handle.
    """

    receipt: str
    notice: Notice | None


class NoticeFeed(Protocol):
    """Interruption and rebalance notices of machines, from a queue that delivers each at least once, in any order.

    Both methods may raise CloudError.
    """

    def receive(self, wait_seconds: float = 0.0) -> list[Message]:
        """Return up to one batch of messages as soon as one has arrived; [] when none arrived within `wait_seconds`.

        A message that is not deleted is delivered again after a while.
        """

    def delete(self, receipts: Sequence[str]) -> None:
        """Delete the messages with these receipts from the queue. Receipts that are not valid any more are ignored."""
