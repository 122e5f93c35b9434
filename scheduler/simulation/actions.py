"""The actions of a timeline: their names, and the documents of those whose value is more than an id."""

from scheduler.model.rules import AccountKeys
from scheduler.model.validation import Amount, Document, LabelMap, Name, Seconds, Signed, SignedLevels
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
    """When that was observed, in seconds from the start; default: now. The next two documents have it, too."""


class AbsentAction(Document):
    """The holder reports that the reservation neither runs nor waits."""

    reservation: Name
    as_of: Signed | None = None


class IdleAction(Document):
    """The holder reports that nothing runs on the slot."""

    slot: Name
    labels: LabelMap | None = None
    as_of: Signed | None = None


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
    "absent": AbsentAction,
    "idle": IdleAction,
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
