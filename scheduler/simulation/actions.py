"""The actions of a timeline: their names, and the documents of those that say more than an id."""

from scheduler.model.rules import AccountKeys
from scheduler.model.validation import Amount, Document, LabelMap, Name, Seconds, Signed, SignedLevels
from scheduler.simulation.cloud_documents import FoundDocument, OutageDocument


class InterruptAction(Document):
    """A spot notice: the slot's machine is gone in `deadline` seconds."""

    slot: Name
    deadline: Seconds = 120.0


class PartAction(Document):
    """Of one component, or of the whole: it died (`fail`), or its holder gives it back (`surrender`)."""

    reservation: Name
    component: Name | None = None


class PriorityAction(Document):
    """A new priority."""

    reservation: Name
    priority: Amount


class ConfirmAction(Document):
    """It runs there."""

    reservation: Name
    slot: Name
    as_of: Signed | None = None
    """When that was, in seconds from the start; left out = now. So with the next two."""


class AbsentAction(Document):
    """It neither runs nor waits."""

    reservation: Name
    as_of: Signed | None = None


class IdleAction(Document):
    """Nothing runs there."""

    slot: Name
    labels: LabelMap | None = None
    as_of: Signed | None = None


class AccountAction(AccountKeys):
    """Create an account, or change what is named of it; the balance stays unless one is given."""

    id: Name
    balance: SignedLevels | None = None


MAY_BE_UNKNOWN = frozenset({"release", "cancel", "renew", "confirm", "absent", "idle", "seen"})
"""Actions whose ids need not be known."""

ABOUT_SLOTS = frozenset({"remove", "seen", "rebalance", "lose", "cordon", "uncordon", "drain"})
"""Actions whose value is the id of a slot; where another's value is an id, it is a reservation's or an account's."""

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
"""The actions, and the document of each; None = an id, or read by a method of its own."""
