"""The registry of commands: each verb of a request or a scenario, except `submit`, with its handler and the rows that
it needs.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

from scheduler.model.accounts import Account
from scheduler.model.command_schemas import ConfirmDocument, HostDocument, RegisterDocument
from scheduler.model.principals import Principal
from scheduler.model.reservations import Reservation
from scheduler.model.rights import find_host_fault, find_owner_fault, find_place_fault, find_role_fault
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.validation import Document
from scheduler.operations.commands.accounts import ACCOUNT_WORDS
from scheduler.operations.commands.hosts import HOST_WORDS
from scheduler.operations.commands.lease_commands import WORDS, raise_first
from scheduler.operations.commands.reports import NOTICE_WORDS, Nobody
from scheduler.operations.unit_of_work import UnitOfWork

Subject = Reservation | Slot | Account | Nobody
"""The row that a command is about, in its state after the command."""
VERBS: Final[dict[str, Callable[[UnitOfWork, Rules, Any], Subject]]] = {
    **WORDS,
    **NOTICE_WORDS,
    **HOST_WORDS,
    **ACCOUNT_WORDS,
}


def load_rows(work: UnitOfWork, rules: Rules, verb: str, words: Iterable[Document]) -> None:
    """Load the rows that commands with this verb are about. To be called once in a transaction."""
    said = list(words)
    if verb == "forget_account":
        work.count_submitted()
    work.load(
        reservations=_list_named(said, "reservation"),
        slots=_list_named(said, "slot"),
        accounts=_list_named(said, "account"),
        holders=verb in NOTICE_WORDS,
        payers=rules.has_quota and verb in NOTICE_WORDS,
    )


def _list_named(words: Iterable[Document], field: str) -> list[str]:
    return [name for word in words if (name := getattr(word, field, None))]


def check_rights(work: UnitOfWork, word: Document) -> None:
    """Raise CommandRefused unless the sender may act on the reservation or slot of the command. The role of the sender
    was checked before the transaction.
    """
    principal, name = work.principal, getattr(word, "reservation", None)
    if principal is None:
        return
    faults = []
    if name is not None:
        current = work.reservations.get(name)
        faults = [find_owner_fault(principal, name, current)]
        if isinstance(word, ConfirmDocument) and current is not None:
            faults.append(find_place_fault(principal, current, word.slot))
    elif isinstance(word, HostDocument | RegisterDocument):
        faults = [find_host_fault(principal, word.slot)]
    raise_first(faults)


def check_question(principal: Principal | None, verb: str, *, slot: str | None = None) -> None:
    """Raise CommandRefused unless this principal may use the verb of a query, and ask about `slot` if it is given."""
    raise_first([find_role_fault(principal, verb), None if slot is None else find_host_fault(principal, slot)])


def say(work: UnitOfWork, rules: Rules, verb: str, word: Document) -> Subject:
    """Carry out one command whose rows are loaded. Raise CommandRefused, without any change, if the sender may not do
    so.
    """
    check_rights(work, word)  # promise: rights-of-principal
    return VERBS[verb](work, rules, word)
