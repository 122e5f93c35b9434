"""Principals: the senders of messages, each with a role that permits commands."""

from typing import Final, Literal, get_args

import msgspec

Role = Literal["producer", "operator", "host", "reader", "worker"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""The roles of principals. `worker` is the role of the cluster's own processes; users create principals of the other
four roles.
"""

WORKER: Final = "leasehold"
"""Name of the only principal with the role `worker`. `leasehold migrate` creates it, and it cannot be removed."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """A sender that is authenticated by its signature.

    `accounts` are the quota accounts for which a producer may submit reservations. A principal of the role `host` may
    act for the slot that has its name.
    """

    name: str
    role: Role
    accounts: tuple[str, ...] = ()
