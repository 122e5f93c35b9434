"""Whether it happened: each decision of a plan is looked at again on fresh rows, and written or skipped.

Chunks of about 1,000 decisions, each one transaction that checks the term first. A decision is a unit: its
rule is tested on the *current* rows, and only then are they changed; a loser changes nothing, is given back as
`Skipped(reason)`, and the rest of the chunk goes on.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import assert_never

from scheduler.model.decisions import (
    Assign,
    Decision,
    Drain,
    Expire,
    Fail,
    Launch,
    Requeue,
    Reset,
    Restart,
    Skipped,
    Terminate,
)
from scheduler.model.moves import IllegalMoveError
from scheduler.model.rules import Rules
from scheduler.operations.ledger import Ledger, Outcome
from scheduler.operations.write_reservations import ReservationWriter
from scheduler.operations.write_slots import SlotWriter
from scheduler.ports import Store, Tenure

CHUNK = 1000
Done = tuple[list[Skipped], Outcome]


def commit(
    store: Store,
    decisions: Sequence[Decision],
    rules: Rules,
    tenure: Tenure,
    new_id: Callable[[], str],
    planned_at: float,
) -> Iterator[Done]:
    """Write the decisions chunk by chunk; after each: who lost, and what changed. Each chunk notes the tick.

    Raises DeposedError as soon as the term is another leader's; chunks that were written before stay written.
    """
    remaining = iter(decisions)
    while chunk := list(islice(remaining, CHUNK)):
        with store.transaction() as transaction:
            transaction.check_term(tenure)
            transaction.note_tick(tenure, planned_at)
            ledger = Ledger(transaction, "tick", tenure.term)
            ledger.load(
                reservations=[name for each in chunk if (name := getattr(each, "reservation", None))],
                slots=[name for each in chunk for name in slots_of(each)],
            )
            writer = _Writer(ledger, rules, new_id)
            skipped = [Skipped(each, reason) for each in chunk if (reason := writer.write(each)) is not None]
            outcome = ledger.flush()
        yield skipped, outcome


def slots_of(decision: Decision) -> list[str]:
    """The slots whose rows a decision is tested on."""
    if isinstance(decision, Assign):
        return [placement.slot for placement in decision.leases]
    return [decision.slot] if isinstance(decision, Launch | Drain | Terminate | Reset) else []


class _Writer:
    """Gives each decision to the writer of its kind."""

    def __init__(self, ledger: Ledger, rules: Rules, new_id: Callable[[], str]) -> None:
        self._reservations, self._slots = ReservationWriter(ledger, rules), SlotWriter(ledger, rules, new_id)

    def write(self, decision: Decision) -> str | None:
        """None when it was written, else why it no longer holds.

        A move that no table allows is a fault of ours, found before anything of it was staged: it is confined to
        its decision, so that one row never stops the whole fleet.
        """
        try:
            match decision:
                case Expire() | Fail() | Requeue() | Restart() | Assign():
                    return self._reservations.write(decision)
                case Launch() | Drain() | Terminate() | Reset():
                    return self._slots.write(decision)
                case _:
                    assert_never(decision)
        except IllegalMoveError as error:
            return str(error)
