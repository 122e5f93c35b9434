"""The actions of a timeline: their names, the documents of those whose value is more than an id, and their commands."""

from typing import Any

from scheduler.model.command_schemas import SCHEMAS, AbsentDocument, IdleDocument
from scheduler.model.rules import AccountKeys
from scheduler.model.validation import Amount, Document, Name, Seconds, Signed, SignedLevels
from scheduler.simulation.cloud_documents import FoundDocument, OutageDocument


class InterruptAction(Document):
    """A spot interruption notice: the slot's machine is gone in `deadline` seconds."""

    slot: Name
    deadline: Seconds = 120.0


class PartAction(Document):
    """A reservation or one of its components died (`fail`), or its holder gives it back (`surrender`)."""

    reservation: Name
    component: Name | None = None


class PriorityAction(Document):
    """A new priority."""

    reservation: Name
    priority: Amount


class ConfirmAction(Document):
    """The holder confirms that the reservation runs on the slot."""

    reservation: Name
    slot: Name
    as_of: Signed | None = None
    """When that was observed, in seconds from the start; default: now. `absent` and `idle` have it, too."""


class AccountAction(AccountKeys):
    """Create an account, or change the given settings of it. The balance stays unless one is given."""

    id: Name
    balance: SignedLevels | None = None


MAY_BE_UNKNOWN = frozenset({"release", "cancel", "renew", "confirm", "absent", "idle", "seen"})
"""Actions whose ids need not be known."""

ABOUT_SLOTS = frozenset({"remove", "seen", "rebalance", "lose", "cordon", "uncordon", "drain"})
"""Actions whose value is the id of a slot. Other ids are those of reservations or accounts."""

ACTIONS: dict[str, type[Document] | None] = {
    "tick": None,
    "submit": None,
    "slot": None,
    "rules": None,
    "release": None,
    "cancel": None,
    "renew": None,
    "surrender": PartAction,
    "confirm": ConfirmAction,
    "absent": AbsentDocument,
    "idle": IdleDocument,
    "account": AccountAction,
    "forget_account": None,
    "reset_account": None,
    "fail": PartAction,
    "priority": PriorityAction,
    "decline": None,
    "suspend": None,
    "resume": None,
    "register": None,
    "remove": None,
    "seen": None,
    "found": FoundDocument,
    "interrupt": InterruptAction,
    "rebalance": None,
    "lose": None,
    "cordon": None,
    "uncordon": None,
    "drain": None,
    "outage": OutageDocument,
}
"""The actions, and the document of each; None = an id, or a special method reads it."""


def make_document(action: str, value: Any) -> Document:
    """Return the command document that a client would send for this action with this checked value."""
    schema = SCHEMAS[action]
    match value:
        case AccountAction():
            given = value.model_dump(mode="json", exclude_unset=True, exclude={"id"})
            return schema(account=value.id, **given)
        case Document():
            return schema(**value.model_dump())
    if action in ABOUT_SLOTS:
        return schema(slot=value)
    return schema(account=value) if action.endswith("_account") else schema(reservation=value)
