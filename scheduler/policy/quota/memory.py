"""Facts that the placing by quota keeps between cycles. They are valid while the rules and the paying accounts are the
same.

All of them follow from the rows of the view. A cycle updates them by the slots that changed.
"""

from scheduler.model.rules import Rules
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.quota.group_table import KnownRequests
from scheduler.policy.quota.idle_slots import IdleSlots
from scheduler.policy.quota.running import RunningIndex


class QuotaMemory:
    """The running work, the idle slots and the pending requests of one view."""

    running: RunningIndex
    idle: IdleSlots
    requests: KnownRequests

    def __init__(self) -> None:
        self._rules: Rules | None = None
        self._payers: dict[str, tuple[bool, int]] = {}
        """By account: the fields that decide for which reservations it pays."""

    def begin(self, cycle: CycleState) -> None:
        """Update the facts by the changes of the view, and by the decisions of this cycle so far."""
        accounts = cycle.view.accounts
        payers = {name: (account.forgotten, account.forgotten_upto) for name, account in accounts.items()}
        if cycle.rules is not self._rules:
            self.idle, self.requests = IdleSlots(), KnownRequests()
        if cycle.rules is not self._rules or payers != self._payers:
            self.running = RunningIndex()
        self._rules, self._payers = cycle.rules, payers
        self.running.begin(cycle)
