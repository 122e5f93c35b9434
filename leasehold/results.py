"""The classes of the values that the client returns. They are defined in `leasehold.client.models`; this module keeps
the name `leasehold.results`, under which programs imported them from earlier versions.
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
