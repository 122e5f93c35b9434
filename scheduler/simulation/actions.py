"""The actions of a scenario's timeline: their names, the documents that check their values, and the commands that carry
them out.
"""

from typing import Any

from scheduler.model.command_schemas import SCHEMAS, AbsentDocument, IdleDocument
from scheduler.model.rules import AccountKeys
from scheduler.model.validation import Amount, Count, Document, Name, Seconds, Signed, SignedLevels
from scheduler.protocol.verbs import VERBS
from scheduler.simulation.cloud_documents import FoundDocument, OutageDocument


class InterruptAction(Document):
    """Timeline action `interrupt`: EC2 announces that it ends the machine of this spot slot in `deadline` seconds."""

    slot: Name
    deadline: Seconds = 120.0


class MaintainAction(Document):
    """Timeline action `maintain`: AWS Health announces a change of this slot's machine that begins in `begins_in`
    seconds.
    """

    slot: Name
    begins_in: Seconds = 14 * 86_400.0
    code: Name = "AWS_EC2_INSTANCE_RETIREMENT_SCHEDULED"
    """The name of the change at AWS. With RETIREMENT in it, the machine ends when the change begins."""


class PartAction(Document):
    """The value of the timeline action `fail`: a reservation, or one component of it, failed. `component` None: the
    whole reservation.
    """

    reservation: Name
    component: Name | None = None


class SurrenderAction(PartAction):
    """The value of the timeline action `surrender`: the holder gives leases back. `component` None: all that is being
    revoked. `want`: the most instances of the component that the holder wants from now on.
    """

    want: Count | None = None


class PriorityAction(Document):
    """Timeline action `priority`: give a reservation a new priority."""

    reservation: Name
    priority: Amount


class ConfirmAction(Document):
    """Timeline action `confirm`: the holder confirms that the reservation runs on the slot."""

    reservation: Name
    slot: Name
    as_of: Signed | None = None
    """When the holder observed that the reservation runs, in seconds from the start of the scenario; default: now."""


class AccountAction(AccountKeys):
    """Timeline action `account`: create an account, or change the given settings of an existing one. The balance stays
    unless `balance` is given.
    """

    id: Name
    balance: SignedLevels | None = None


MAY_BE_UNKNOWN = frozenset({"release", "cancel", "renew", "confirm", "absent", "idle", "seen"})
"""Timeline actions whose ids of slots or reservations need not be declared earlier in the scenario."""

_OF_HOLDERS = [name for name, each in VERBS.items() if each.document == "HolderDocument"]
_OF_SLOTS = [name for name, each in VERBS.items() if each.document == "SlotDocument"]
ABOUT_SLOTS = frozenset({"seen", "rebalance", "lose", *_OF_SLOTS})
"""Timeline actions whose value is the id of a slot. An id in another action is that of a reservation or account."""

ACTIONS: dict[str, type[Document] | None] = {
    **dict.fromkeys((*_OF_HOLDERS, *_OF_SLOTS)),
    "tick": None,
    "submit": None,
    "slot": None,
    "rules": None,
    "cancel": None,
    "surrender": SurrenderAction,
    "confirm": ConfirmAction,
    "absent": AbsentDocument,
    "idle": IdleDocument,
    "account": AccountAction,
    "forget_account": None,
    "reset_account": None,
    "fail": PartAction,
    "priority": PriorityAction,
    "register": None,
    "seen": None,
    "found": FoundDocument,
    "interrupt": InterruptAction,
    "rebalance": None,
    "maintain": MaintainAction,
    "lose": None,
    "outage": OutageDocument,
}
"""The name of each timeline action -> the document that checks its value. None: the value is an id, or a method of
StepReader checks the value.
"""


def make_document(action: str, value: Any) -> Document:
    """Return the command document that a client would send for this timeline action. `value`: the checked value of the
    action.
    """
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
