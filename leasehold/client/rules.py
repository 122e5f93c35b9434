"""Requests of a client about the scheduling rules, and their results: read the rules, preview other rules, apply rules.

Workers answer these requests. A long list in an answer is cut. The field `lengths` of a result maps the name of each
list that was cut to its full length.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec

from leasehold.client.display import Shown, join_words


class RulesVersion(Shown, frozen=True, kw_only=True):
    """One version of the rules in their history."""

    version: int
    applied_at: float
    """When the version was applied, in seconds since the epoch."""
    source: str | None = None
    """The text that was passed as `source` when the version was applied; None if that is not known any more."""
    changes: tuple[str, ...] = ()
    """The differences from the previous version, as texts."""
    lengths: dict[str, int] = {}

    def _line(self) -> str:
        return join_words([f"version {self.version}", self.source and f"by {self.source}:", "; ".join(self.changes)])


class RulesInForce(Shown, frozen=True, kw_only=True):
    """The scheduling rules in force. `version` counts the changes of the rules; 0: no rules were ever applied."""

    _cells_shown: ClassVar[str] = "version hidden history"

    version: int
    document: dict[str, Any] = {}
    """The rules as they were applied. Missing keys have their default values."""
    hidden: tuple[str, ...] = ()
    """Paths of keys that the document lacks because this principal may not read their values."""
    history: tuple[RulesVersion, ...] = ()
    """The newest versions, oldest first, if they were requested."""

    def _line(self) -> str:
        return f"version {self.version}"


class RuleChange(Shown, frozen=True, kw_only=True):
    """One key of the rules whose value would change. `before`: the value of the key under the present rules. `after`:
    its value under the proposed rules. None: these rules do not have the key.
    """

    path: str
    before: Any = None
    after: Any = None
    kind: str = "changed"
    """What would happen to the key: `changed`. A whole pool, account, offering or table of a system may also be `added`
    or `removed`.
    """


class Departure(Shown, frozen=True, kw_only=True):
    """A slot that would lose its machine: it would drain, or its machine would be terminated (`action`)."""

    slot: str
    action: str
    reason: str
    reservations: tuple[str, ...] = ()
    """Ids of reservations that have a lease on the slot."""
    lengths: dict[str, int] = {}


class Ending(Shown, frozen=True, kw_only=True):
    """A reservation that would lose leases. `action`: the name of the decision that would end them."""

    reservation: str
    action: str
    reason: str


class AccountLoss(Shown, frozen=True, kw_only=True):
    """A quota account that would lose balance. `before` and `after`: the balance by paid level; `after` None: the
    account would be deleted (forgotten).
    """

    account: str
    before: tuple[float, ...]
    after: tuple[float, ...] | None = None


class Unservable(Shown, frozen=True, kw_only=True):
    """A pending reservation that no slot or offering could hold under the proposed rules. `code` and `detail`: the
    waiting code and its sentence.
    """

    reservation: str
    code: str
    detail: str


class AccountWait(Shown, frozen=True, kw_only=True):
    """How long the work of an account that waits now would still wait under the rules in force and under the proposed
    ones: the median of its reservations in seconds; None: beyond the time over which plays look ahead. `waiting`: how
    many there are. `account` "": the work without an account.
    """

    account: str
    waiting: int
    before: float | None = None
    after: float | None = None


class TwoCounts(Shown, frozen=True, kw_only=True):
    """Counts under the present rules and under the proposed rules: name of what is counted -> number."""

    present: dict[str, int] = {}
    proposed: dict[str, int] = {}


class NextTick(Shown, frozen=True, kw_only=True):
    """What the next tick would decide under the present and under the proposed rules."""

    _cells_shown: ClassVar[str] = "totals waiting"

    present: tuple[dict[str, Any], ...] = ()
    """The first decisions under the present rules, in the format of `leasehold simulate`."""
    proposed: tuple[dict[str, Any], ...] = ()
    totals: TwoCounts = TwoCounts()
    """Number of decisions by their kind (`do`), including the decisions that were cut from the lists."""
    waiting: TwoCounts = TwoCounts()
    """How many reservations would wait after the next tick, by waiting code."""


class RulesPreview(Shown, frozen=True, kw_only=True):
    """What would happen if other rules were applied. Nothing was changed."""

    _cells_shown: ClassVar[str] = (
        "version changed takes_away changes departures endings accounts unservable launches next_tick"
    )

    version: int
    """The version of the rules in force. Pass it to `apply_rules` as `expected`."""
    changed: bool
    """Whether the rules differ from those in force."""
    changes: tuple[RuleChange, ...] = ()
    departures: tuple[Departure, ...] = ()
    endings: tuple[Ending, ...] = ()
    accounts: tuple[AccountLoss, ...] = ()
    unservable: tuple[Unservable, ...] = ()
    waits: tuple[AccountWait, ...] = ()
    """The accounts whose waiting reservations would start earlier or later."""
    launches: dict[str, int] = {}
    """Pool -> number of machines that the next tick would launch in addition."""
    takes_away: bool = False
    """Whether machines or leases would end, or accounts would lose balance."""
    next_tick: NextTick = NextTick()
    lengths: dict[str, int] = {}

    def _line(self) -> str:
        if not self.changed:
            return f"no change to version {self.version}"
        return f"{len(self.changes)} changes to version {self.version}" + (", takes away" if self.takes_away else "")


class RulesApplied(Shown, frozen=True, kw_only=True):
    """The answer to `apply_rules`: the version in force, and whether the rules changed."""

    version: int
    changed: bool


class RuleRequests(ABC):
    """The requests of a client about the rules. Each raises Refused, NotAnswered (safe to repeat) or Unavailable."""

    @abstractmethod
    async def _ask_worker(self, verb: str, document: Mapping[str, Any], timeout: float | None) -> dict[str, Any]:
        """Send a request with this verb to the workers, and return the answer. Raise Refused if the request was
        refused.
        """

    async def rules(self, history: int = 0, *, timeout: float | None = None) -> RulesInForce:
        """Return the rules in force, and the newest `history` versions of the rules (at most 100)."""
        return msgspec.convert(await self._ask_worker("rules", {"history": history}, timeout), RulesInForce)

    async def preview_rules(self, document: Mapping[str, Any], *, timeout: float | None = None) -> RulesPreview:
        """Return what would happen if `document` became the rules in force (for operators). Raise Refused for wrong
        rules, with all faults.
        """
        return msgspec.convert(await self._ask_worker("preview", {"rules": document}, timeout), RulesPreview)

    async def apply_rules(
        self,
        document: Mapping[str, Any],
        *,
        expected: int,
        source: str | None = None,
        timeout: float | None = None,
    ) -> RulesApplied:
        """Put the rules in `document` in force (for operators). `source`: a text for the history that names what
        applies the rules.

        `expected`: the version of the rules that the change was made for. Raise Refused if another version is in force,
        or if the rules are wrong; then nothing was changed.
        """
        asked = {"rules": document, "expected": expected} | ({} if source is None else {"source": source})
        return msgspec.convert(await self._ask_worker("apply", asked, timeout), RulesApplied)
