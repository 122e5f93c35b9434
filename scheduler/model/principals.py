"""Principals: the senders of messages. Each has a name, a role that permits certain commands, and keys to sign with."""

from typing import Final, get_args

import msgspec

from scheduler.protocol.verbs import Role

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""All roles of principals. The cluster's own processes have the role `worker`. Users create principals of the other
roles.
"""

WORKER: Final = "leasehold"
"""Name of the only principal with the role `worker`. `leasehold migrate` creates it, and it cannot be removed."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a message, as its signature proves.

    `accounts`: the quota accounts for which a producer may submit reservations. A principal of the role `host` may act
    for the slot that has the principal's name.
    """

    name: str
    role: Role
    accounts: tuple[str, ...] = ()
