"""The change set: what one transaction changed, for the announcement that follows its commit."""

from dataclasses import dataclass, field
from typing import Final

from scheduler.model.accounts import Levels
from scheduler.model.events import Event
from scheduler.model.slots import Slot
from scheduler.model.view import Gone, Row
from scheduler.ports import OutboxMessage

STOP_DONE: Final = "slot_stop_done"
"""Name of the event that the machine of a stopped slot has stopped, as the cloud reports. The state of the slot stays
`stopped`; from now on its machine may be started.
"""


@dataclass
class ChangeSet:
    """What a transaction changed: the new rows, the deleted rows (`gone`), the events, and the callbacks (tasks for
    producers) to send (`outgoing`).
    """

    rows: list[Row] = field(default_factory=list)
    gone: list[Gone] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    outgoing: list[OutboxMessage] = field(default_factory=list)
    slots: dict[str, Slot] = field(default_factory=dict)
    """By id: all slots that the transaction loaded, changed or not."""
    hosts: list[Slot] = field(default_factory=list)
    """The changed slots of static hosts. A slot of which only time marks such as `last_seen` changed is not among
    them.
    """
    spent: dict[str, Levels] = field(default_factory=dict)
    """Account id -> what the account paid in this transaction for the use of leases, by level."""
    at: float = 0.0
    """Cluster time of the transaction."""
    is_change: bool = False
    """Whether the transaction wrote more than time marks such as `last_seen`. Then a tick should run."""

    @property
    def turned_slots(self) -> bool:
        """Return whether a slot became ready, empty or stopped in this transaction. Then a tick should run at once."""
        return any(event.name in {"slot_ready", "slot_empty", "slot_stopped", STOP_DONE} for event in self.events)
