"""The actions of a timeline: their names, and the documents of those that say more than an id."""

from scheduler.model.rules import AccountKeys
from scheduler.model.validation import Amount, Document, LabelMap, Name, Seconds, Signed, SignedLevels
from scheduler.simulation.cloud_documents import FoundDocument, OutageDocument


class InterruptDocument(Document):
    """A spot notice: the slot's machine is gone in `deadline` seconds."""

    slot: Name
    deadline: Seconds = 120.0


class FailDocument(Document):
    """A component died, or the whole."""

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

ACTIONS: dict[str, tuple[type[Document] | None, bool]] = {
    "tick": (None, False),
    "submit": (None, False),
    "slot": (None, False),
    "rules": (None, False),
    "release": (None, False),
    "cancel": (None, False),
    "renew": (None, False),
    "surrender": (FailDocument, False),
    "confirm": (ConfirmAction, True),
    "absent": (AbsentAction, False),
    "idle": (IdleAction, True),
    "account": (AccountAction, False),
    "forget_account": (None, False),
    "reset_account": (None, False),
    "fail": (FailDocument, False),
    "priority": (PriorityAction, False),
    "decline": (None, False),
    "suspend": (None, False),
    "resume": (None, False),
    "register": (None, True),
    "remove": (None, True),
    "seen": (None, True),
    "found": (FoundDocument, True),
    "interrupt": (InterruptDocument, True),
    "rebalance": (None, True),
    "lose": (None, True),
    "cordon": (None, True),
    "uncordon": (None, True),
    "drain": (None, True),
    "outage": (OutageDocument, False),
}
"""The actions: the document of each (None = an id, or read by a method of its own), and whether the id is a slot's."""
