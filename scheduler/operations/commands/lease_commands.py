"""Handlers of commands about reservations. Their senders are producers, holders and operators.

Each handler changes rows in a unit of work. If a command cannot be carried out, its handler raises `CommandRefused`
before it has changed anything.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from scheduler.model.command_schemas import (
    HolderDocument,
    PriorityDocument,
    ReasonDocument,
    SurrenderDocument,
)
from scheduler.model.faults import FaultCode
from scheduler.model.principals import is_key_of
from scheduler.model.reservations import ComponentKind, Lease, Reservation, list_instances
from scheduler.model.rules import Rules, expiry_when_renewed
from scheduler.model.transitions import ENDED
from scheduler.model.validation import Fault, show
from scheduler.operations.ending_leases import (
    count_restarts,
    drop_claims,
    end_failed,
    end_instances,
    end_reservation,
    note_confirmed,
    return_to_queue,
)
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.policy.elastic.wanted import change_wanted, find_elastic, find_number
from scheduler.policy.lifecycle.timers import may_restart_again


class CommandRefused(Exception):  # noqa: N818 (a refused request is not an error of the scheduler)
    """Raised when a command is not carried out. `fault` is returned to the sender. It has the field, what was expected
    and what was found.
    """

    def __init__(self, path: str, wanted: str, got: object, code: FaultCode | None = None) -> None:
        self.fault = Fault(path, wanted, show(got), code)
        super().__init__(str(self.fault))

    @classmethod
    def of(cls, fault: Fault) -> "CommandRefused":
        """Make the exception from a fault that exists already."""
        refusal = cls(fault.path, fault.expected, None)
        refusal.fault, refusal.args = fault, (str(fault),)
        return refusal


def _refuse_phase(current: Reservation, wanted: str) -> CommandRefused:
    return CommandRefused("reservation", wanted, f"{current.id} is {current.phase}", "conflict")


def _find(work: UnitOfWork, document: HolderDocument) -> Reservation:
    current = work.reservations.get(document.reservation)
    if current is None:
        raise CommandRefused("reservation", "a known reservation", document.reservation, "unknown")
    return current


def find_alive(work: UnitOfWork, document: HolderDocument) -> Reservation:
    """Return the reservation of a command. Raises CommandRefused if the reservation is unknown or has ended, or if the
    command's key or token is wrong.
    """
    current = _find(work, document)
    if current.phase in ENDED:
        raise _refuse_phase(current, "a reservation that has not ended")
    _check_key(work, current, document)  # promise: key-of-submitter
    _check_token(work, current, document)
    return current


def _find_with_parts(work: UnitOfWork, document: ReasonDocument) -> tuple[Reservation, list[Lease]]:
    """Return the reservation of a command, and the elastic leases that the command names by component or instance; []
    if it names none.

    If the command names one instance, the token of its lease and the token of the reservation are both accepted.
    """
    current = _find(work, document)
    named = [each for each in _list_named(current, document.component) if each.kind == "elastic"]
    if len(named) != 1 or current.phase in ENDED or document.token != named[0].token:
        current = find_alive(work, document)
    _check_key(work, current, document)  # promise: key-of-submitter
    return current, named


def _list_named(current: Reservation, name: str | None) -> list[Lease]:
    """Return the leases of the instance with this name, or of all instances of the component with this name; [] if
    there are none, or if `name` is None.
    """
    found = [each for each in current.leases if each.component == name]
    if found or all(each.name != name for each in current.request.components):
        return found
    kinds: tuple[ComponentKind, ...] = ("essential", "elastic")
    instances = (each for kind in kinds for each in list_instances(current.request, kind))
    names = {each.name for each in instances if each.component.name == name}
    return [each for each in current.leases if each.component in names]


def _check_key(work: UnitOfWork, current: Reservation, document: HolderDocument) -> None:
    """Raise CommandRefused if the reservation was submitted with the hash of a key, and the command does not have this
    key.

    An operator needs no key. The key is checked before the token, so that a sender without the key cannot find out the
    token by guessing.
    """
    if work.cause == "operator" or current.key_hash is None or is_key_of(current.key_hash, document.key):
        return
    raise CommandRefused.of(
        Fault("key", f"the key of {current.id}", "nothing" if document.key is None else "another key", "forbidden")
    )


def _check_token(work: UnitOfWork, current: Reservation, document: HolderDocument) -> None:
    """Raise CommandRefused if a command has a stale fencing token, or lacks a token that it needs.

    A holder needs the current token of a leased reservation, and none for a pending one. Operators need none. A stale
    token is refused in all cases.
    """
    if document.token is None and (work.cause != "holder" or current.phase == "pending"):
        return
    if document.token is None:
        raise CommandRefused("token", f"the current token of {current.id}", None, "conflict")
    if document.token != current.token:  # promise: current-token
        raise CommandRefused(
            "token", f"the current token of {current.id} (this one is stale)", document.token, "conflict"
        )


def release(work: UnitOfWork, rules: Rules, document: HolderDocument) -> Reservation:
    """End a reservation because its holder has finished. Return its new row. Releasing it a second time changes
    nothing.
    """
    current = _find(work, document)
    if current.phase == "released":
        return current
    current = find_alive(work, document)
    note_confirmed(work, current)
    return end_reservation(work, rules, current, "released", None)


def cancel(work: UnitOfWork, rules: Rules, document: ReasonDocument) -> Reservation:
    """End a reservation, without a restart, because its producer does not need it any more. Return its new row.

    No token is needed. Cancelling it a second time changes nothing.
    """
    current = _find(work, document)
    if current.phase == "cancelled":
        return current
    _check_not_over(current, rules)
    return end_reservation(work, rules, current, "cancelled", document.reason)


def _check_not_over(current: Reservation, rules: Rules) -> None:
    """Raise CommandRefused if a reservation has ended. A reservation that failed and waits for its restart has not
    ended.
    """
    waits_for_restart = current.phase == "failed" and may_restart_again(current, rules)
    if current.phase in ENDED and not waits_for_restart:
        raise _refuse_phase(current, "a reservation that has not ended")


def renew(work: UnitOfWork, rules: Rules, document: HolderDocument) -> Reservation:
    """Move the expiry of a reservation to now + ttl. The holder's first renewal also counts as a confirmation that the
    use of the lease has begun.
    """
    return renew_lease(work, rules, _find_renewed(work, document))


def _find_renewed(work: UnitOfWork, document: HolderDocument) -> Reservation:
    """Return the reservation to renew. A host that runs its command has the token of the lease on its slot, and needs
    no key.
    """
    principal = work.principal
    if principal is None or principal.role != "host":
        return find_alive(work, document)
    current = _find(work, document)
    if current.phase in ENDED:
        raise _refuse_phase(current, "a reservation that has not ended")
    tokens = {each.token for each in current.leases if each.slot == principal.name and each.state != "claimed"}
    if document.token not in tokens:
        wanted = f"the token of a lease of {current.id} on {principal.name}"
        raise CommandRefused("token", wanted, document.token, "conflict")
    note_alive(work, principal.name)
    return current


def note_alive(work: UnitOfWork, name: str) -> None:
    """Note a request of the host of the slot `name` as a sign of life. With the answer, the host moves the deadlines of
    its commands, so its slot must not count as offline before them.
    """
    slot = work.slots.get(name)
    if slot is not None and slot.last_seen is not None:
        work.mark(msgspec.structs.replace(slot, last_seen=max(slot.last_seen, work.now)))  # promise: answered-is-seen


def renew_lease(work: UnitOfWork, rules: Rules, current: Reservation) -> Reservation:
    """Move the expiry of a reservation, whose holder has just proven itself, to now + ttl, and confirm its lease."""
    confirmed = current.confirmed_at
    if current.phase == "leased" and confirmed is None:
        confirmed = work.now
    expires_at = expiry_when_renewed(current, rules, work.now)
    renewed = work.mark(msgspec.structs.replace(current, expires_at=expires_at, confirmed_at=confirmed))
    note_confirmed(work, renewed)
    return renewed


def fail(work: UnitOfWork, rules: Rules, document: ReasonDocument) -> Reservation:
    """Fail a reservation because an essential instance failed. The restart policy decides whether the reservation is
    restarted.

    If the command names an elastic instance, only that instance ends, and a later tick may grant it a lease again. The
    name of a component with several instances means all of them.
    """
    current, elastic = _find_with_parts(work, document)
    _check_component(current, document)
    reason = document.reason or "component_died"
    if elastic:
        died = [each.component for each in elastic if each.state == "held"]
        current = count_restarts(current, died) if died else current
        return end_instances(work, rules, current, elastic, reason, clean=False)
    named = current.leases if document.component is None else _list_named(current, document.component)
    return end_failed(work, rules, current, reason, [each.component for each in named if each.state != "claimed"])


def _check_component(current: Reservation, document: ReasonDocument) -> None:
    """Raise CommandRefused if the command names a component on which the reservation has no lease.

    If the reservation is pending without claims, the names of essential components of its request are accepted, too.
    """
    if document.component is None or _list_named(current, document.component):
        return
    essential = [] if current.leases else list_instances(current.request, "essential")
    if not any(document.component in {each.name, each.component.name} for each in essential):
        raise CommandRefused("component", f"a component of {current.id} that is leased", document.component)


def surrender(work: UnitOfWork, rules: Rules, document: SurrenderDocument) -> Reservation:
    """Give revoked leases back before their deadline. Return the new row of the reservation.

    The reservation becomes pending again, or stays leased if only elastic instances were revoked. If the command names
    elastic instances, by their own name or that of their component, they are given back even if they are not being
    revoked. While the reservation is leased, an instance that was named is then not granted again, and a component that
    was named gets no instances.

    With `want`, a component has at most this number of instances from now on. If it has more leases, they end: those
    that are being revoked first, then those with the highest index.
    """
    if document.want is not None:
        return _set_most(work, rules, find_alive(work, document), document.component, document.want)
    current, elastic = _find_with_parts(work, document)
    _check_component(current, document)
    if elastic:
        return give_back(work, rules, current, elastic, document.component)
    if current.phase == "revoking":
        return return_to_queue(work, rules, current, current.revoke_reason or "surrendered")
    parts = [each for each in current.leases if each.kind == "elastic" and each.state == "revoking"]
    if not parts or document.component is not None:
        raise _refuse_phase(current, "a reservation that is being revoked")
    return give_back(work, rules, current, parts)


def give_back(
    work: UnitOfWork, rules: Rules, current: Reservation, leases: Sequence[Lease], name: str | None = None
) -> Reservation:
    """End these elastic leases. `name`: the name of the instance or component that the holder gives back; None: only
    what is being revoked.
    """
    component = None if name is None else find_elastic(current, name)
    declined = current.declined
    if name is not None and component is not None and any(each.state != "revoking" for each in leases):
        is_whole = component.count > 1 and component.name == name
        declined = change_wanted(component, declined, 0) if is_whole else (*declined, name)
    return end_instances(work, rules, current, leases, "surrendered", clean=True, declined=declined)


def _set_most(work: UnitOfWork, rules: Rules, current: Reservation, name: str | None, want: int) -> Reservation:
    """Store the most instances of an elastic component that the holder wants, and end the leases beyond. `name`: the
    component, or one of its leased instances, which ends and stays given back; None: the only elastic component.
    """
    if current.phase != "leased":
        raise _refuse_phase(current, "a leased reservation")
    elastic = [each.name for each in current.request.components if each.kind == "elastic"]
    name = elastic[0] if name is None and len(elastic) == 1 else name
    component = None if name is None else find_elastic(current, name)
    if name is None or component is None:
        raise CommandRefused("component", f"an elastic component of {current.id}, because want is given", name)
    leases = [each for each in current.leases if find_number(component, each.component) is not None]
    named = [] if name == component.name else [each for each in leases if each.component == name]
    if name != component.name and not named:
        raise CommandRefused("component", f"a component of {current.id} that is leased", name)
    others = [each for each in leases if each not in named]
    others.sort(key=lambda each: (each.state == "held", -(find_number(component, each.component) or 0)))
    ended = [*named, *others[: max(len(others) - want, 0)]]
    declined = (*change_wanted(component, current.declined, want), *(each.component for each in named))
    return end_instances(work, rules, current, ended, "surrendered", clean=True, declined=declined)


def decline(work: UnitOfWork, rules: Rules, document: HolderDocument) -> Reservation:
    """Give all leases of a reservation back, because the holder cannot use their slots.

    The reservation keeps its position in the queue. Its next assignment does not use these slots.
    """
    current = find_alive(work, document)
    if current.phase != "leased":
        raise _refuse_phase(current, "a leased reservation")
    slots = tuple(dict.fromkeys(lease.slot for lease in current.leases))
    return return_to_queue(work, rules, current, "declined", declined=slots)


def suspend(work: UnitOfWork, rules: Rules, document: HolderDocument) -> Reservation:
    """Give the leases of a reservation back and keep it on hold until it is resumed. The reservation keeps its position
    in the queue.
    """
    current = find_alive(work, document)
    if current.phase == "pending":
        return work.change(drop_claims(work, current) if current.leases else current, suspended=True)
    return return_to_queue(work, rules, current, "suspended", suspended=True)


def resume(work: UnitOfWork, _rules: Rules, document: HolderDocument) -> Reservation:
    """End the suspension of a reservation, so that a tick can place it again. Return its new row."""
    return work.change(find_alive(work, document), suspended=False)


def set_priority(work: UnitOfWork, rules: Rules, document: PriorityDocument) -> Reservation:
    """Change the priority of a reservation from the next tick on. Return its new row.

    Priority 0 puts a pending reservation on hold and does not affect a leased one. A failed reservation that waits for
    its restart has the new priority after the restart.
    """
    current = _find(work, document)
    _check_not_over(current, rules)
    if current.phase == "pending" and current.leases and document.priority == 0:
        current = drop_claims(work, current)
    return work.change(current, priority=document.priority)


LEASE_COMMANDS: dict[str, Callable[[UnitOfWork, Rules, Any], Reservation]] = {
    "release": release,
    "cancel": cancel,
    "renew": renew,
    "fail": fail,
    "surrender": surrender,
    "decline": decline,
    "suspend": suspend,
    "resume": resume,
    "priority": set_priority,
}
"""The verb of each command about a reservation -> the function that carries it out."""
