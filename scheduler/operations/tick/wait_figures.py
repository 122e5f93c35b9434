"""Numbers about the waiting reservations of a plan, for the report of a tick. They are counted for each `WaitBlock`:
some reservations that follow each other in the queue. A block never changes; if a reservation leaves the queue, another
block takes its place. So only blocks that are new since the last plan are examined.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final

from scheduler.model.accounts import FREE, find_account, level_of
from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.transitions import INACTIVE
from scheduler.model.view import View
from scheduler.model.waiting_codes import NOT_A_WAIT
from scheduler.model.waits import WaitBlock

LEVELS: Final = range(FREE + 1)
"""All levels of service of a quota account: the paid ones and the free one."""


@dataclass(slots=True)
class _BlockFigures:
    """What was counted for the reservations of one `WaitBlock` (a part of the queue). The report contains the sums of
    all blocks. `codes`: waiting code -> number of reservations.
    """

    codes: Counter[str]
    oldest: float
    """The earliest submission of a reservation that counts for the longest wait; infinity if none counts."""
    accounts: Counter[str] | None
    """Account -> number of its reservations in this `WaitBlock`. None if no account exists at all."""


@dataclass
class WaitFigures:
    """Counts the waiting reservations of the last plan by waiting code and by account. The counts are kept for each
    `WaitBlock` (a part of the queue), so that only new blocks are examined. One process keeps this object between its
    ticks.
    """

    _known: dict[WaitBlock, _BlockFigures] = field(default_factory=dict)
    """For each part of the last plan's queue (`WaitBlock`): the figures of its reservations. The parts stand in the
    order of the queue. Two blocks are equal only if they are the same object.
    """
    _codes: Counter[str] = field(default_factory=Counter)
    _accounts: Counter[str] = field(default_factory=Counter)
    _payers: Mapping[str, tuple[bool, int]] = field(default_factory=dict)
    """Id of each existing account -> (whether the account was forgotten, its `forgotten_upto`). An account pays only
    for reservations whose `sequence` is above its `forgotten_upto`.
    """

    def describe(self, plan: Plan, view: View, rules: Rules, now: float) -> dict[str, Any]:
        """Return numbers about the waiting reservations of a plan.

        `codes`: the number of reservations by waiting code. `longest_wait`: seconds since the oldest submission,
        without reservations whose code is in NOT_A_WAIT. `at_quota`: pools whose launches an EC2 quota holds back.
        `accounts`: for each account the number of its waiting reservations by level of service, the free level last.
        All are counted at the level that the account could pay now, by its present balance. Accounts without waiting
        reservations are missing.
        """
        self._follow(plan, view)
        levels = {name: level_of(view.accounts[name].balance) for name in self._accounts}
        return {
            "codes": dict(self._codes),
            "longest_wait": self.find_longest_wait(now),
            "at_quota": [name for name in rules.pools if _is_at_quota(view, name, now)],
            "accounts": {
                name: [count if level == levels[name] else 0 for level in LEVELS]
                for name, count in self._accounts.items()
            },
        }

    def find_longest_wait(self, now: float) -> float:
        """Return the longest wait in seconds at the last plan, as the report has it; 0 if no reservation waits."""
        return max(0.0, now - min((each.oldest for each in self._known.values()), default=inf))

    def _follow(self, plan: Plan, view: View) -> None:
        """Update `_codes` and `_accounts`, the sums of all blocks: add the counts of each block that is new in this
        plan, and subtract the counts of each block that the plan no longer has. If the accounts changed (`_payers`),
        count all blocks again.
        """
        payers = {name: (each.forgotten, each.forgotten_upto) for name, each in view.accounts.items()}
        if payers != self._payers:
            self._known, self._payers = {}, payers
            self._codes, self._accounts = Counter(), Counter()
        before, self._known = self._known, {}
        for block in plan.waiting.cut(tuple(before)):
            figures = before.pop(block, None)
            if figures is None:
                figures = _examine(block, view)
                self._codes.update(figures.codes)
                self._accounts.update(figures.accounts or ())
            self._known[block] = figures
        for figures in before.values():
            self._codes.subtract(figures.codes)
            self._accounts.subtract(figures.accounts or ())
        self._codes, self._accounts = +self._codes, +self._accounts


def _examine(block: WaitBlock, view: View) -> _BlockFigures:
    rows = [view.reservations.get(name) for name in block.names]
    counted = (
        row.created_at
        for row, (code, _) in zip(rows, block.reasons, strict=True)
        if row is not None and code not in NOT_A_WAIT
    )
    accounts = None
    if view.accounts:
        payers = (find_account(view.accounts, row.request.account, row.sequence) for row in rows if row is not None)
        accounts = Counter(payer.id for payer in payers if payer is not None)
    return _BlockFigures(Counter(code for code, _ in block.reasons), min(counted, default=inf), accounts)


def _is_at_quota(view: View, pool: str, now: float) -> bool:
    """Return whether EC2's quota pauses the launches of a pool at present."""
    holds = [each for each in view.holds.values() if each.pool == pool and each.kind == "quota" and now < each.until]
    if not holds:
        return False
    active = sum(slot.pool == pool and slot.state not in INACTIVE for slot in view.slots.values())
    return any(not each.active or active >= each.active for each in holds)
