"""Principals, the senders of messages, and their rights.

A principal has a name, a role that permits certain verbs, and keys to sign with. Each `find_…_fault` function returns a
fault, or None if the request is allowed. `principal` None stands for a request that was not signed. Such a request is
allowed everything in clusters that accept unsigned requests. A producer gets the same fault for an unknown reservation
as for one of another principal, so that it cannot find out which ids are in use.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

from scheduler.model.reservations import Reservation
from scheduler.model.validation import Fault, show
from scheduler.protocol.verbs import VERBS, Role

ROLES: Final[tuple[Role, ...]] = get_args(Role)
"""All roles of principals. The cluster's own processes have the role `worker`. Users create principals of the other
roles.
"""

WORKER: Final = "leasehold"
"""Name of the only principal with the role `worker`. `leasehold migrate` creates it, and it cannot be removed."""


Right = Literal["run"]
"""What a principal may do only if it was granted. `run`: submit reservations whose hosts run a command."""
RIGHTS: Final[tuple[Right, ...]] = get_args(Right)


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """The sender of a message, as its signature proves.

    `accounts`: the quota accounts for which a producer may submit reservations. A principal of the role `host` may act
    for the slot that has the principal's name. `key`: the key that signed the message, with which a command for its
    host is signed; None outside a message.
    """

    name: str
    role: Role
    accounts: tuple[str, ...] = ()
    rights: tuple[Right, ...] = ()
    key: bytes | None = None
    machine: str | None = None
    """The only machine for which a host may act, because it has proved its identity; None: any."""

    def __repr__(self) -> str:
        """Return the principal as text without its key."""
        return f"Principal(name={self.name!r}, role={self.role!r}, accounts={self.accounts!r}, rights={self.rights!r})"


_OPERATOR: Final = frozenset[Role]({"operator"})

ROLES_BY_VERB: Final[Mapping[str, frozenset[Role]]] = {name: each.roles for name, each in VERBS.items()}
"""Verb of the queue `reservations` -> the roles that may use it."""


def find_role_fault(principal: Principal | None, verb: str) -> Fault | None:
    """Return a fault if the role of this principal may not use the verb. Return None if it may."""
    roles = ROLES_BY_VERB.get(verb, _OPERATOR)
    if principal is None or principal.role in roles:
        return None
    wanted = f"a principal with the role {' or '.join(sorted(roles))} (`leasehold principals add` adds one)"
    return Fault("principal", wanted, f"{principal.name} ({principal.role})", "forbidden")


def find_account_fault(principal: Principal | None, account: str | None) -> Fault | None:
    """Return a fault if this principal may not submit reservations for this quota account. Return None if it may, and
    always for a reservation without an account (None).
    """
    if principal is None or principal.role == "operator" or account is None or account in principal.accounts:
        return None
    wanted = f"one of the accounts of {principal.name}: {', '.join(principal.accounts) or 'it has none'}"
    return Fault("account", wanted, show(account), "forbidden")


def find_run_fault(principal: Principal | None, *, trusts_unsigned: bool) -> Fault | None:
    """Return a fault if this sender may not submit a command (`run`). Return None if it may.

    `trusts_unsigned`: whether this is a local stack, whose Redis only its owner can reach. Only there an unsigned
    request may have a command, whatever `access.mode` is.
    """
    if principal is None:
        wanted = "a request that a principal with the right run has signed (`leasehold principals add --may run`)"
        return None if trusts_unsigned else Fault("run", wanted, "an unsigned request", "forbidden")
    if "run" in principal.rights:
        return None
    wanted = f"a principal with the right run (`leasehold principals may {principal.name} run` grants it)"
    return Fault("run", wanted, f"{principal.name} without it", "forbidden")


def find_reader_fault(principal: Principal | None, *, trusts_unsigned: bool) -> Fault | None:
    """Return a fault if this sender may not read any command. Return None if it may read those that it owns. Unsigned
    requests may only where they may submit commands, too.
    """
    if principal is not None or trusts_unsigned:
        return None
    return Fault("principal", "a request that a principal has signed", "an unsigned request", "forbidden")


def owns(principal: Principal | None, reservation: Reservation) -> bool:
    """Return whether this principal may act on the reservation: the principal is None or an operator, or it submitted
    the reservation, or the submission was not signed.
    """
    return principal is None or principal.role == "operator" or reservation.principal in {None, principal.name}


def find_owner_fault(principal: Principal | None, name: str, current: Reservation | None) -> Fault | None:
    """Return a fault if this principal may not act on the reservation `name`. Return None if it may. `current`: the row
    of the reservation, or None if there is none.
    """
    if principal is None or principal.role == "operator" or (current is not None and owns(principal, current)):
        return None
    return Fault("reservation", f"a reservation that {principal.name} may act on", show(name), "unknown")


def find_place_fault(principal: Principal | None, current: Reservation, slot: str | None) -> Fault | None:
    """Return a fault if this principal may not confirm that the reservation runs on the slot. Return None if it may.

    A confirmation on a slot where the reservation has no lease ends leases of other reservations. Only an operator may
    send such a confirmation.
    """
    held = {lease.slot for lease in current.leases if lease.state != "claimed"}
    if principal is None or principal.role == "operator" or slot is None or slot in held:
        return None
    return Fault("slot", f"a slot that {current.id} is leased on", show(slot), "conflict")


def find_host_fault(principal: Principal | None, slot: str, machine: str) -> Fault | None:
    """Return a fault if this principal may not act for the machine as the host of the slot. Return None if it may. A
    host may act for the slot that has the name of its principal, and with a key that it got for its proof (`join`), for
    its own machine only: the slot may have another machine later.
    """
    if principal is None or principal.role != "host":
        return None
    if slot != principal.name:
        return Fault("slot", f"{principal.name}, the slot of this principal", show(slot), "forbidden")
    if principal.machine not in {None, machine}:
        return Fault("machine", f"{principal.machine}, the machine of this principal", show(machine), "forbidden")
    return None


def find_report_fault(principal: Principal | None, slot: str, machine: str) -> Fault | None:
    """Return a fault if this sender may not report about commands on the slot. Return None if it may.

    Unsigned requests may not, in every mode: a report ends a lease, and its sender gets commands.
    """
    if principal is None:
        wanted = f"a request that the principal {slot} with the role host has signed"
        return Fault("principal", wanted, "an unsigned request", "forbidden")
    return find_host_fault(principal, slot, machine)


def find_renewal_fault(principal: Principal, name: str, current: Reservation | None) -> Fault | None:
    """Return a fault if this host may not renew the reservation. Return None if it may: the reservation has a command,
    and a lease on the slot of the host.
    """
    leases = current.leases if current is not None and current.run is not None else ()
    if any(lease.slot == principal.name and lease.state != "claimed" for lease in leases):
        return None
    return Fault("reservation", f"a reservation with a command on {principal.name}", show(name), "unknown")


def is_key_of(key_hash: str, key: str | None) -> bool:
    """Return whether `key` is the secret key of a reservation: the SHA-256 of `key` in hexadecimal is `key_hash`, which
    the producer submitted. Return False for None.
    """
    return key is not None and hmac.compare_digest(hashlib.sha256(key.encode()).hexdigest(), key_hash)
