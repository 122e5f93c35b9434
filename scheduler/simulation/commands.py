"""Converts a scenario's action into the command document that a client would send."""

from typing import Any

from scheduler.model.command_schemas import (
    AbsentDocument,
    AccountDocument,
    AccountNameDocument,
    ConfirmDocument,
    HolderDocument,
    IdleDocument,
    PriorityDocument,
    ReasonDocument,
    SlotDocument,
)
from scheduler.model.validation import Document


def make_document(action: str, value: Any) -> Document:
    """Return the document for this action with this checked value."""
    match action:
        case "cancel":
            return ReasonDocument(reservation=value)
        case "fail" | "surrender":
            return ReasonDocument(reservation=value.reservation, component=value.component)
        case "priority":
            return PriorityDocument(reservation=value.reservation, priority=value.priority)
        case "confirm":
            return ConfirmDocument(reservation=value.reservation, slot=value.slot, as_of=value.as_of)
        case "absent":
            return AbsentDocument(reservation=value.reservation, as_of=value.as_of)
        case "idle":
            return IdleDocument(slot=value.slot, labels=value.labels, as_of=value.as_of)
        case "cordon" | "uncordon" | "drain":
            return SlotDocument(slot=value)
        case "account":
            return AccountDocument(
                account=value.id, **value.model_dump(mode="json", exclude_unset=True, exclude={"id"})
            )
        case "forget_account" | "reset_account":
            return AccountNameDocument(account=value)
        case _:
            return HolderDocument(reservation=value)
