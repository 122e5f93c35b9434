"""Principals: the senders of messages, each with a role that permits commands."""

from typing import Final, Literal, get_args

import msgspec

Role = Literal["producer", "operator", "host", "reader", "worker"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""`worker` is the cluster's own: messages that its processes send to each other. Users create the other four."""

WORKER: Final = "leasehold"
"""Name of the only principal of the role `worker`. `leasehold migrate` makes it, and it cannot be removed."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A sender that proved itself by its signature.

    `accounts`: the quota accounts that a producer may submit for. A host speaks for the slot of its own name.
    """

    name: str
    role: Role
    accounts: tuple[str, ...] = ()
