"""Quota accounts as the client hands them out, and what a lease has used of one."""

from typing import TYPE_CHECKING, ClassVar, Final

from leasehold.client.display import Shown

if TYPE_CHECKING:
    from leasehold.client.models import Placement, Reservation

Levels = tuple[float, float, float, float, float]
"""A number for each paid level, best first."""
FREE: Final = 5
"""The level of what is not paid for."""


class Account(Shown, frozen=True, kw_only=True):
    """A quota account as the view has it. Amounts in worker-seconds (or what `charge_by` counts), by paid level."""

    _cells_shown: ClassVar[str] = "id level balance charged_at charge_rate max_charge_seconds max_fanout description"

    id: str
    balance: Levels = (0.0, 0.0, 0.0, 0.0, 0.0)
    """What it had at `charged_at`."""
    charged_at: float = 0.0
    charge_rate: Levels = (0.0, 0.0, 0.0, 0.0, 0.0)
    max_charge_seconds: float = 0.0
    max_fanout: int = 0
    per_label_task_limits: dict[str, int] = {}
    disable_free_tasks: bool = False
    description: str = ""
    forgotten: bool = False
    forgotten_upto: int = 0
    """Reservations up to this `sequence` have no account: it was forgotten after them."""

    @property
    def level(self) -> int:
        """The best level that it can pay for; 5 = none, so its work runs at the free level or waits."""
        return next((level for level, amount in enumerate(self.balance) if amount > 0), FREE)

    def owns(self, row: "Reservation") -> bool:
        """Whether it pays for this reservation."""
        return not self.forgotten and row.request.account == self.id and row.sequence > self.forgotten_upto

    def _line(self) -> str:
        return f"{self.id} level {self.level}, balance {' '.join(f'{each:g}' for each in self.balance)}"


def cost_until(lease: "Placement", now: float) -> Levels:
    """What a lease has used by level up to `now`."""
    if lease.charged_at is None or lease.level >= FREE:
        return lease.cost
    used = list(lease.cost)
    used[lease.level] += lease.weight * max(0.0, now - lease.charged_at)
    return (used[0], used[1], used[2], used[3], used[4])
