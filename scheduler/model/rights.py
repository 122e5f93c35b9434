"""Rights: which verbs each role may use, and on which reservations, accounts and slots a principal may act.

Each `find_…_fault` function returns a fault, or None if the request is allowed. `principal` is None for a message that
was not signed; where such messages are accepted, they are allowed everything. A producer gets the same fault for a
reservation of another principal and for one that does not exist, so that the fault does not reveal which ids are in
use.
"""

import hashlib
import hmac
from collections.abc import Mapping
from typing import Final

from scheduler.model.principals import Principal, Role
from scheduler.model.reservations import Reservation
from scheduler.model.validation import Fault, show

_PRODUCER: Final = frozenset[Role]({"producer", "operator"})
_OPERATOR: Final = frozenset[Role]({"operator"})
_HOST: Final = frozenset[Role]({"host", "operator"})
_READER: Final = frozenset[Role]({"producer", "operator", "reader"})

ROLES_BY_VERB: Final[Mapping[str, frozenset[Role]]] = {
    **dict.fromkeys(("submit", "release", "cancel", "renew", "confirm", "fail"), _PRODUCER),
    **dict.fromkeys(("surrender", "decline", "suspend", "resume", "priority"), _PRODUCER),
    **dict.fromkeys(("cordon", "uncordon", "drain", "remove", "absent", "idle"), _OPERATOR),
    **dict.fromkeys(("account", "reset_account", "forget_account"), _OPERATOR),
    **dict.fromkeys(("register", "leave", "leases"), _HOST),
    **dict.fromkeys(("query", "explain", "conditions"), _READER),
}
"""The roles that may use each verb of the queue `reservations`. `leases`, `query`, `explain` and `conditions` only
read.
"""


def find_role_fault(principal: Principal | None, verb: str) -> Fault | None:
    """Return a fault unless the role of this principal may use the verb."""
    return _compare_role(principal, ROLES_BY_VERB.get(verb, _OPERATOR))


def _compare_role(principal: Principal | None, roles: frozenset[Role]) -> Fault | None:
    if principal is None or principal.role in roles:
        return None
    wanted = f"a principal with the role {' or '.join(sorted(roles))}"
    return Fault("principal", wanted, f"{principal.name} ({principal.role})")


def find_account_fault(principal: Principal | None, account: str | None) -> Fault | None:
    """Return a fault unless this principal may submit reservations for the account. No account (None) is always
    allowed.
    """
    if principal is None or principal.role == "operator" or account is None or account in principal.accounts:
        return None
    wanted = f"one of the accounts of {principal.name}: {', '.join(principal.accounts) or 'it has none'}"
    return Fault("account", wanted, show(account))


def owns(principal: Principal | None, reservation: Reservation) -> bool:
    """Return whether this principal may act on the reservation: it submitted it, or the submission was not signed."""
    return principal is None or principal.role == "operator" or reservation.principal in {None, principal.name}


def find_owner_fault(principal: Principal | None, name: str, current: Reservation | None) -> Fault | None:
    """Return a fault unless this principal may act on the reservation `name`. `current` is its row, or None if there is
    none.
    """
    if principal is None or principal.role == "operator" or (current is not None and owns(principal, current)):
        return None
    return Fault("reservation", f"a reservation that {principal.name} may act on", show(name))


def find_place_fault(principal: Principal | None, current: Reservation, slot: str | None) -> Fault | None:
    """Return a fault unless this principal may confirm that the reservation runs on the slot.

    A confirmation on a slot where the reservation has no lease takes leases from other reservations. Only an operator
    may send it.
    """
    held = {lease.slot for lease in current.leases if lease.state != "claimed"}
    if principal is None or principal.role == "operator" or slot is None or slot in held:
        return None
    return Fault("slot", f"a slot that {current.id} is leased on", show(slot))


def find_host_fault(principal: Principal | None, slot: str) -> Fault | None:
    """Return a fault unless this principal may act for the host of the slot. A host may act for the slot that has its
    name.
    """
    if principal is None or principal.role != "host" or slot == principal.name:
        return None
    return Fault("slot", f"{principal.name}, the slot of this principal", show(slot))


def is_key_of(key_hash: str, key: str | None) -> bool:
    """Return whether the SHA-256 of this key, in hexadecimal, equals `key_hash`, which the reservation's submitter
    sent.
    """
    return key is not None and hmac.compare_digest(hashlib.sha256(key.encode()).hexdigest(), key_hash)
