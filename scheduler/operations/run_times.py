"""Counts released leases into the run times of their classes, each lease once.

A periodic task does this, and neither the release nor the tick. A cursor in the database, the last ended reservation
that was counted, moves in the transaction that writes the run times. So a worker that dies has counted all of a batch
or nothing, and of two workers the second one continues after the first. A reservation that ends and is pruned before
the next run is not counted.
"""

from collections.abc import Sequence
from typing import Final

from scheduler.model.reservations import Reservation
from scheduler.model.run_times import count_runs, list_runs
from scheduler.operations.change_set import ChangeSet
from scheduler.operations.ports import Ports, announce
from scheduler.operations.tick.view_repair import LOOK_BACK_SECONDS
from scheduler.ports import Counted, Transaction

ROWS_A_BATCH: Final = 500
"""The most ended reservations that one transaction counts. It locks none of them, and no row that a tick writes."""
MOST_BATCHES: Final = 20
"""The most batches of one run. Reservations that are left over, such as those of an upgraded database, come next."""
MOST_CLASSES: Final = 100_000
"""The most classes that are kept. Those whose last release is the oldest are forgotten."""


def learn_run_times(ports: Ports) -> int:
    """Count the leases that were released since the last run. Return the number of ended reservations that were looked
    at.
    """
    total = 0
    for _ in range(MOST_BATCHES):
        with ports.store.transaction() as transaction:
            now, counted = transaction.now(), transaction.load_counted()
            if counted.ended_at > now:
                # The clock was set back. What ends from now on would otherwise not be counted until that time.
                counted = Counted(now)
                transaction.save_counted(counted)
            # A row carries the time at which its transaction began. Later than this no such transaction is committed.
            rows = transaction.find_ended(counted, now - LOOK_BACK_SECONDS, ROWS_A_BATCH)  # promise: run-counted-once
            change_set = record_runs(transaction, rows)
            if rows:
                transaction.save_counted(Counted(rows[-1].changed_at, rows[-1].sequence))
        announce(ports, change_set, kick=False)
        count = len(rows)
        total += count
        if count < ROWS_A_BATCH:
            break
    return total


def record_runs(transaction: Transaction, rows: Sequence[Reservation], most_classes: int = MOST_CLASSES) -> ChangeSet:
    """Count those of `rows` that were released into their classes, and forget the oldest classes if there are more than
    `most_classes`. Return the changed and forgotten rows.
    """
    runs = list_runs(rows)
    if not runs:
        return ChangeSet()
    known = transaction.load_run_times({name for run in runs for name in run.classes})
    changed = count_runs(runs, known)
    saved = transaction.save(changed)
    surplus = transaction.find_surplus_run_times(most_classes) if len(changed) > len(known) else []
    return ChangeSet(rows=saved, gone=transaction.delete(surplus))
