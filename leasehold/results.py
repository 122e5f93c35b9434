"""The values that the client returns, importable under the module name of earlier versions. They are defined in
`leasehold.client.models`.
"""

from leasehold.client.models import (
    Answer,
    Component,
    Conditions,
    Explanation,
    Host,
    Hosted,
    Note,
    Placement,
    Request,
    Reservation,
    Slot,
    SmallestChange,
    Wait,
    read_answer,
    read_explanation,
)

__all__ = [
    "Answer",
    "Component",
    "Conditions",
    "Explanation",
    "Host",
    "Hosted",
    "Note",
    "Placement",
    "Request",
    "Reservation",
    "Slot",
    "SmallestChange",
    "Wait",
    "read_answer",
    "read_explanation",
]
