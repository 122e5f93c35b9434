"""Reality: the cloud that launches machines and ends them, and the question whether one is ready to serve."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol

import msgspec

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot

Category = Literal["capacity", "quota", "throttled", "transient", "auth", "misconfigured", "not_found", "unknown"]


class CloudError(Exception):
    """The cloud said no, or nothing. `category` tells what to do about it, `code` is the cloud's own word.

    capacity, quota, throttled, auth, misconfigured: a definite refusal, nothing was launched.
    transient, unknown: nobody knows whether it happened; replay exactly the same request.
    not_found: no such machine.
    """

    def __init__(self, category: Category, code: str, message: str) -> None:
        self.category, self.code, self.message = category, code, message
        super().__init__(f"{category}: {code}: {message}")


class LaunchOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a launch is made of: everything that the frozen request is built from."""

    slot: str
    pool: str
    launch_id: str
    generation: int
    """Goes up only after a definite refusal of the earlier one: a new client token."""
    offering: str | None
    """Key of the offering; None in a pool that lists none."""
    cluster_id: str = ""
    """Identity of the cluster; "" = not known."""
    highest: str = ""
    """Highest term and token when the launch was frozen, as `TERM.TOKEN`; "" = not known."""


class Fleet(Protocol):
    """Reality: the machines. Every method but `freeze` talks to the cloud and may raise CloudError."""

    def freeze(self, order: LaunchOrder, rules: Rules) -> dict[str, Any]:
        """The whole request to the cloud, as JSON values, with a client token derived from the launch id and
        its generation. No I/O; the same order and rules give the same request. Raises CloudError
        (misconfigured) when the pool's rules do not suffice for a launch.
        """

    def launch(self, request: Mapping[str, Any]) -> Machine:
        """Carry out a frozen request. The same request again gives the same machine, not another one."""

    def describe(self, machines: Sequence[str]) -> dict[str, Machine]:
        """What is known of these ids; an id that the cloud does not (yet, or any more) know is left out."""

    def find_launch(self, launch_id: str) -> list[Machine]:
        """The machines that bear this launch id, terminated ones left out."""

    def sweep(self) -> Iterator[Machine]:
        """Every machine under our tags, terminated ones left out, page by page."""

    def claim(self, machines: Sequence[str], cluster_id: str) -> None:
        """Write the cluster's identity on these machines; ids that the cloud does not know are no error."""

    def terminate(self, machines: Sequence[str]) -> None:
        """Ask for the end of these machines; idempotent; ids that the cloud does not know are no error."""


class Probe(Protocol):
    """Asks a machine whether it is ready to serve."""

    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        """Whether the machine of this slot answers its pool's probe; bounded in time, never raises."""
