"""The commit step of a tick: each decision of the plan is tested again on the current rows, then written or skipped.

Decisions are committed in chunks of about 1,000. Each chunk is one transaction, which first checks that this process
still has the leader's term; the first chunk charges the accounts before anything else. Decisions that are written
together or not at all form a unit, for example a preemption and the assignment that it makes capacity for. A decision
that no longer holds changes nothing and is returned as `Skipped(reason)`; the rest of the chunk continues.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Final, NamedTuple, assert_never

from scheduler.model.command_schemas import MOST_INSTANCES
from scheduler.model.decisions import (
    Assign,
    Claim,
    Cores,
    Decision,
    Drain,
    Expire,
    Fail,
    Grant,
    Launch,
    PlanStart,
    Preempt,
    Relevel,
    Requeue,
    Reset,
    Restart,
    Revoke,
    Skipped,
    Start,
    Stop,
    Terminate,
)
from scheduler.model.reservations import LIMIT
from scheduler.model.rules import Rules
from scheduler.model.slots import Slot
from scheduler.model.transitions import IllegalMoveError
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.machines.holds import end_quota_holds, list_quota_holds_of
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.operations.writers.leases import LeaseWriter
from scheduler.operations.writers.quota import QuotaWriter, charge_accounts
from scheduler.operations.writers.reservations import ReservationWriter
from scheduler.operations.writers.slots import SlotWriter
from scheduler.ports import LeaderTerm, Store

CHUNK = 1000
NOTHING_SEEN: Final[Mapping[str, Slot]] = MappingProxyType({})
Done = tuple[list[Skipped], ChangeSet, int]
"""The result of one chunk of decisions, which one transaction writes: its skipped decisions, its changes, and the
number of decisions in the chunks after it.
"""
Part = Grant | Revoke | Cores
"""A decision that changes one lease of a reservation. The reservation's leases on other slots do not change."""
_PARTS: Final = (Grant, Revoke, Cores)
"""The types of `Part` as a tuple: testing against a tuple takes a tenth of the time of testing against a union."""
_OF_SLOTS: Final = (Launch, Start, Stop, Drain, Terminate, Reset)
"""The types of the decisions that name no reservation."""
Unit = tuple[Decision, ...]
"""Decisions of one plan that are written together or not at all.

Exception: several grants, revokes or CPU limits of one reservation are also a unit, but only for speed; each of them is
written or skipped by itself.
"""


class PlannedRules(NamedTuple):
    """The rules under which a plan was made. `rules`: with the values of schedules and budgets; `version`: the version
    of the stored rules.
    """

    rules: Rules
    version: int


def commit(
    store: Store,
    decisions: Sequence[Decision],
    planned_under: PlannedRules,
    leader_term: LeaderTerm,
    new_id: Callable[[], str],
    planned_at: float,
    charged: Sequence[str] = (),
    seen: Mapping[str, Slot] = NOTHING_SEEN,
) -> Iterator[Done]:
    """Charge the accounts in `charged` up to `planned_at`, then write a plan's decisions in chunks, one transaction
    each.

    Yield after each chunk its skipped decisions, its changes, and the number of decisions that are left. If the caller
    stops there, the rest is not written. Each chunk stores `planned_at` as the time of the last tick. `seen`: the slots
    by id, as the plan saw them. `new_id`: a function that returns the id of a new launch. If other rules came into
    force since the plan, nothing further is written, because the decisions may break them. Raises DeposedError as soon
    as another process has taken over as leader; chunks that were committed before stay written.
    """
    rules, left = planned_under.rules, len(decisions)
    for chunk in _cut(decisions) or ([[]] if charged else []):
        each = [decision for unit in chunk for decision in unit]
        left -= len(each)
        # Speed: most decisions of a large plan are assignments.
        assigns = [decision for decision in each if type(decision) is Assign]
        others = [decision for decision in each if type(decision) is not Assign] if len(assigns) < len(each) else []
        with store.transaction() as transaction:
            transaction.note_tick(leader_term, planned_at)  # promise: term-checked
            if transaction.rules_version() != planned_under.version:  # promise: rules-of-the-plan
                return
            work = UnitOfWork(transaction, "tick", leader_term.term, tick=leader_term.tick)
            work.load(
                reservations=[
                    *(decision.reservation for decision in assigns),
                    *(
                        name
                        for decision in others
                        if not isinstance(decision, _PARTS)
                        for name in reservations_of(decision)
                    ),
                ],
                parts=[decision.reservation for decision in others if isinstance(decision, _PARTS)],
                slots=[
                    *(placement.slot for decision in assigns for placement in decision.leases),
                    *(name for decision in others for name in slots_of(decision)),
                ],
                accounts=charged,
                payers=rules.has_quota or any(type(each) is Expire and each.reason == LIMIT for each in others),
            )
            # Slots whose resources or labels changed since the plan chose them get no lease in this transaction.
            # Source: Orchard.
            work.altered = {
                name
                for name, slot in work.slots.items()
                if (known := seen.get(name)) is not None
                and (known.resources, known.labels) != (slot.resources, slot.labels)
            }
            if charged:
                charge_accounts(work, charged, planned_at)
            writer = _Writer(work, rules, new_id, len(assigns))
            launched = {decision.pool for decision in others if isinstance(decision, Launch)}
            # The success of a start ends a quota's back-off as that of a launch does.
            if asked := launched | {decision.pool for decision in others if isinstance(decision, Start)}:
                end_quota_holds(work, transaction.load_holds(list_quota_holds_of(rules, asked)))
            # promise: decision-rechecked
            skipped = [Skipped(lost, reason) for unit in chunk for lost, reason in writer.write_unit(unit)]
            if launched:
                writer.slots.form_batches()
            change_set = work.flush()
        charged = ()
        yield skipped, change_set, left


def _cut(decisions: Iterable[Decision]) -> list[list[Unit]]:
    """Group consecutive decisions of a plan into units (see Unit), and the units into chunks of about CHUNK decisions.
    Return the chunks.

    A preemption without a grace period, and revokes of elastic instances that make capacity for a reservation, form a
    unit with the assignment or claim that follows them. All preemptions for one gang are in one unit, with the revokes
    of preempted elastic instances. Other grants, revokes or CPU limits of one reservation form a unit by kind, because
    copying and reading all leases of a reservation once for each decision would be slow. Every other decision is a unit
    of its own.
    """
    units: list[list[Decision]] = []
    for decision in decisions:
        if units and _goes_on(units[-1], decision):
            units[-1].append(decision)
        else:
            units.append([decision])
    chunks: list[list[Unit]] = []
    left = 0
    for unit in units:
        if left <= 0:
            chunks.append([])
            left = CHUNK
        chunks[-1].append(tuple(unit))
        left -= len(unit)
    return chunks


def _goes_on(unit: Sequence[Decision], decision: Decision) -> bool:
    """Return whether `decision` belongs to the same unit (see Unit) as `unit`, the decisions just before it."""
    last = unit[-1]
    if type(last) is Assign:  # speed: most decisions of a large plan
        return False
    if isinstance(last, _PARTS) and _find_beneficiary(last) is None:
        is_more = isinstance(decision, type(last)) and decision.reservation == last.reservation
        return is_more and _find_beneficiary(decision) is None and len(unit) < MOST_INSTANCES
    if isinstance(last, Preempt) and isinstance(decision, Preempt):
        return decision.reservation == last.reservation  # of one gang, on several slots
    awaited = _find_beneficiary(last)
    if isinstance(last, Revoke) and isinstance(decision, Preempt):
        return last.reason == "preempted" and awaited == decision.reservation  # of one gang, on several slots
    return awaited is not None and awaited == _find_newcomer(decision)  # promise: unit-whole


def _find_beneficiary(decision: Decision) -> str | None:
    """Return the reservation for which this decision makes capacity, if its assignment or claim must be in the same
    unit. Such decisions are (1) a preemption without a grace period or of elastic instances, which revokes follow, and
    (2) a revoke with `room_for`. Return None for other decisions.
    """
    match decision:
        case Preempt() if decision.revoke_by is None or decision.partial:
            return decision.reservation
        case Revoke():
            return decision.room_for
        case _:
            return None


def _find_newcomer(decision: Decision) -> str | None:
    """Return the reservation that gets capacity by this decision: an assignment, a claim, or a revoke that makes
    capacity for a reservation. Return None for other decisions.
    """
    match decision:
        case Assign() | Claim():
            return decision.reservation
        case Revoke():
            return decision.room_for
        case _:
            return None


def reservations_of(decision: Decision) -> list[str]:
    """Return the ids of the reservations whose rows must be loaded to test this decision again before it is written."""
    if isinstance(decision, Preempt):
        return [decision.reservation, *decision.victims]
    return [] if isinstance(decision, _OF_SLOTS) else [decision.reservation]


def slots_of(decision: Decision) -> list[str]:
    """Return the ids of the slots whose rows must be loaded to test this decision again before it is written."""
    match decision:
        case Assign() | Claim():
            return [placement.slot for placement in decision.leases]
        case Preempt():
            return [decision.slot, *(placement.slot for placement in decision.leases)]
        case Launch() | Start() | Stop() | Drain() | Terminate() | Reset() | Grant() | Revoke() | Cores():
            return [decision.slot]
        case _:
            return []


class _Writer:
    """Writes the decisions of one chunk of a plan: passes each decision to the writer of leases, reservations, slots or
    quota accounts. A chunk is a part of about CHUNK decisions, which one transaction writes.

    Most chunks need only the writer of leases. Each other writer is made when a decision needs it. `likely`: how many
    reservations will probably get leases.
    """

    def __init__(self, work: UnitOfWork, rules: Rules, new_id: Callable[[], str], likely: int) -> None:
        self._work, self._rules, self._new_id = work, rules, new_id
        self._leases = LeaseWriter(work, rules, likely)

    @cached_property
    def _reservations(self) -> ReservationWriter:
        return ReservationWriter(self._leases)

    @cached_property
    def slots(self) -> SlotWriter:
        return SlotWriter(self._work, self._rules, self._new_id)

    @cached_property
    def _quota(self) -> QuotaWriter:
        return QuotaWriter(self._leases)

    def write_unit(self, unit: Unit) -> Sequence[tuple[Decision, str]]:
        """Write the decisions of one unit: one decision, or several that belong together (see Unit). Return the
        decisions that were skipped, each with the reason.

        A change of state that the tables of legal moves forbid is a bug of the program. It is found before any row of
        the unit changes, and only this unit is skipped, so that one row never stops the whole fleet.
        """
        try:
            match first := unit[0]:
                case Assign():  # speed: most units of a large plan
                    reason = self._leases.assign(first)
                case Grant():
                    return self._reservations.grant([each for each in unit if isinstance(each, Grant)])
                case Cores():
                    return self._reservations.write_cores([each for each in unit if isinstance(each, Cores)])
                case Revoke(room_for=None):
                    return self._reservations.revoke([each for each in unit if isinstance(each, Revoke)])
                case Revoke():
                    reason = self._reservations.make_way([each for each in unit if isinstance(each, Revoke)], unit[-1])
                case Preempt():
                    assignment = last if isinstance(last := unit[-1], Assign) else None
                    revokes = [each for each in unit if isinstance(each, Revoke)]
                    preempts = [each for each in unit if isinstance(each, Preempt)]
                    reason = self._quota.preempt(preempts, revokes, assignment)
                case _:
                    reason = self._write(first)
        except IllegalMoveError as error:
            reason = str(error)
        return [] if reason is None else [(decision, reason) for decision in unit]

    def _write(self, decision: Decision) -> str | None:
        """Write a decision that is a unit of its own. If it is skipped, return the reason as text, else None."""
        match decision:
            case Claim():
                # Leases that an earlier tick revoked make the capacity.
                return self._reservations.make_way([], decision)
            case Relevel():
                return self._quota.relevel(decision)
            case PlanStart():
                return self._reservations.plan_start(decision)
            case Expire() | Fail() | Requeue() | Restart():
                return self._reservations.write(decision)
            case Launch() | Start() | Stop() | Drain() | Terminate() | Reset():
                return self.slots.write(decision)
            case Assign() | Grant() | Cores() | Revoke() | Preempt():
                raise AssertionError(
                    "assignments, grants, revokes, cpu limits and preemptions are written by write_unit, not by _write"
                )
            case _:
                assert_never(decision)
