"""Restore: after a backup of the database was put in place, increase terms and fencing tokens, and correct what has
changed since the backup, as Redis and EC2 show it.

The steps may be interrupted anywhere and repeated: terms and tokens are increased once more, and everything else is
compared again.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal

import msgspec

from scheduler.model.events import Event
from scheduler.model.reservations import Reservation, is_over
from scheduler.model.rules import expiry_of_pending
from scheduler.model.slots import Machine
from scheduler.model.transitions import ENDED, PHASES
from scheduler.operations.change_set import describe_notice
from scheduler.operations.ending_leases import end_reservation, return_to_queue
from scheduler.operations.machines.check import check
from scheduler.operations.machines.reconcile import Reconciled, reconcile
from scheduler.operations.membership import RESTORED, jump, list_terms, list_tokens, split_foreign
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError, ForeignMachineError, Remembered

CHUNK: Final = 500
"""The most reservations that a restore changes in one transaction."""

Progress = Callable[[str], object]


class LostReservation(msgspec.Struct, frozen=True, kw_only=True):
    """A reservation that Redis has and the restored database does not have. `outcome`: whether the restore stored it as
    cancelled, or as pending again.
    """

    id: str
    phase: str
    """The last phase of the reservation, according to Redis."""
    account: str | None
    principal: str | None
    token: int
    slots: list[str]
    """Ids of the slots on which the reservation had leases, according to Redis."""
    outcome: Literal["cancelled", "resubmitted"]


class Restored(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a restore: the new numbers, and the reservations and machines that it changed. `lost`: the
    reservations that only Redis had.
    """

    identity: str
    restores: int
    term: int
    token: int
    lost: list[LostReservation]
    ended: list[str]
    """Ids of reservations that were active in the database and had ended according to Redis. They have been ended."""
    requeued: list[str]
    """Ids of reservations whose lease in the database had been replaced by a later one. They are pending again."""
    notified: list[str]
    """Ids of reservations whose holders got a notice that their lease is over."""
    machines: Reconciled | None
    """What was done with EC2 machines that did not fit the database. None: EC2 could not be reached, or has machines of
    another cluster.
    """
    cloud_fault: str | None
    """Why EC2 could not be reached, or which other cluster's machines were found; None if neither happened."""


def list_machines(ports: Ports) -> tuple[list[Machine], str | None]:
    """List the EC2 machines with the cluster's tags. Return two things: the machines and None; or, if EC2 cannot list
    them, [] and the text of the error.
    """
    try:
        return list(ports.fleet.sweep()), None
    except CloudError as error:
        return [], str(error)


def restore(
    ports: Ports,
    remembered: Remembered,
    kept: Mapping[str, Reservation],
    *,
    resubmit: bool = False,
    progress: Progress = lambda _: None,
) -> Restored:
    """Make a database usable after a backup was put in place. See docs/how-to/back-up-and-restore.md.

    `remembered`, `kept`: the cluster record and the reservations in Redis. `resubmit`: reservations that only Redis
    has, and that have no leases there and no command, become pending again; otherwise all reservations that only Redis
    has are cancelled. `progress` is called with a sentence after each step.
    """
    machines, fault = list_machines(ports)
    progress(f"EC2 cannot be reached: {fault}" if fault else f"{len(machines)} machines run under the cluster's tag")
    _jump(ports, remembered, machines)
    row = ports.store.read_cluster()
    ports.store.accept_restores(row.restores)
    progress(f"the leader's term is now {row.term}, the highest fencing token {row.token}")
    lost = _settle_lost(ports, kept, resubmit=resubmit)
    ended, requeued, notified = _settle_known(ports, kept)
    reconciled, fault = _settle_machines(ports, fault)
    ports.view_cache.rebuild(ports.store.read_rows())
    progress("the view in Redis is rebuilt")
    if ports.record is not None:
        ports.record.end_restore(row.identity, row.term, row.token)
    return Restored(
        identity=row.identity,
        restores=row.restores,
        term=row.term,
        token=row.token,
        lost=lost,
        ended=ended,
        requeued=requeued,
        notified=notified,
        machines=reconciled,
        cloud_fault=fault,
    )


def _jump(ports: Ports, remembered: Remembered, machines: Sequence[Machine]) -> None:
    ours, _ = split_foreign(machines, ports.store.read_cluster().identity)
    jump(ports, (remembered.term, *list_terms(ours)), (remembered.token, *list_tokens(ours)))


def _settle_lost(ports: Ports, kept: Mapping[str, Reservation], *, resubmit: bool) -> list[LostReservation]:
    """Insert the reservations that Redis has (`kept`), that have not ended, and that the database does not have. Return
    them. With `resubmit`, a reservation without leases in Redis and without a command becomes pending; every other one
    is stored as cancelled.

    Because these reservations are stored again, programs that wait for one of them get an answer, and its token stays
    known.
    """
    alive = sorted((row for row in kept.values() if not is_over(row)), key=lambda row: row.sequence)
    found: list[LostReservation] = []
    for start in range(0, len(alive), CHUNK):
        rows = alive[start : start + CHUNK]
        rules = ports.rules()
        by_id = {row.id: row for row in rows}
        with ports.store.transaction() as transaction:
            work = UnitOfWork(transaction, "operator")
            inserted = transaction.insert_reservations(
                [
                    msgspec.structs.replace(
                        row,
                        phase="pending",
                        reason=RESTORED,
                        leases=(),
                        leased_at=None,
                        confirmed_at=None,
                        revoke_by=None,
                        revoke_reason=None,
                        expires_at=expiry_of_pending(row.request, rules, work.now),
                    )
                    for row in rows
                ]
            )
            # The command of a reservation is lost: only the database had it.
            waits = {row.id for row in inserted if resubmit and not by_id[row.id].leases and row.run is None}
            for row in inserted:
                work.reservations[row.id] = row
                work.note("reservation_restored", cause="operator", reservation=row.id)
                if row.id not in waits:
                    end_reservation(work, rules, row, "cancelled", RESTORED)
            outcome = work.flush()
            outcome.rows += [row for row in inserted if row.id in waits]
        announce(ports, outcome, kick=False)
        found += [
            LostReservation(
                id=row.id,
                phase=row.phase,
                account=row.request.account,
                principal=row.principal,
                token=row.token,
                slots=[lease.slot for lease in row.leases],
                outcome="resubmitted" if row.id in waits else "cancelled",
            )
            for row in (by_id[each.id] for each in inserted)
        ]
    return found


def _settle_known(ports: Ports, kept: Mapping[str, Reservation]) -> tuple[list[str], list[str], list[str]]:
    """Correct the active reservations of the database for which Redis (`kept`) has a later state. Return three lists of
    ids: (1) reservations that were ended, (2) reservations that were returned to the queue, (3) reservations whose
    holders were notified that their lease is over.
    """
    ended: list[str] = []
    requeued: list[str] = []
    notified: list[str] = []
    phases = [phase for phase in PHASES if phase not in ENDED]
    present = [row.id for row in ports.store.find_reservations(phases=phases, limit=10**9)]
    newer = [name for name in present if (row := kept.get(name)) is not None and (is_over(row) or row.token)]
    for start in range(0, len(newer), CHUNK):
        chunk = newer[start : start + CHUNK]
        with ports.store.transaction() as transaction:
            work = UnitOfWork(transaction, "operator")
            work.load(reservations=chunk)
            for name in chunk:
                _settle_one(work, ports, kept[name], (ended, requeued, notified))
            outcome = work.flush()
        announce(ports, outcome, kick=False)
    # Reservations with a lease in Redis that the database lacks get a notice with their present row.
    notices = {}
    for row in ports.store.find_reservations(ids=notified, limit=len(notified)) if notified else ():
        event = Event(at=row.changed_at, name=f"reservation_{row.phase}", cause="operator", reservation=row.id)
        notices[row.id] = describe_notice(event, row, {})
    if notices:
        ports.notifier.notify(notices)
    return ended, requeued, notified


def _settle_one(
    work: UnitOfWork, ports: Ports, kept: Reservation, found: tuple[list[str], list[str], list[str]]
) -> None:
    ended, requeued, notified = found
    current = work.reservations.get(kept.id)
    if current is None or current.phase in ENDED:
        return
    rules = ports.rules()
    if is_over(kept):
        # Only a tick may move a reservation to `expired`, and the cause of a restore is an operator.
        phase = "cancelled" if kept.phase == "expired" else kept.phase
        end_reservation(work, rules, current, phase, kept.reason or RESTORED, run=kept.run)
        ended.append(kept.id)
    elif kept.token > current.token:
        if current.phase != "pending":
            return_to_queue(work, rules, current, RESTORED)
            requeued.append(kept.id)
        if kept.leases:
            notified.append(kept.id)


def _settle_machines(ports: Ports, fault: str | None) -> tuple[Reconciled | None, str | None]:
    """Empty the slots whose EC2 machines are gone. Adopt or terminate the machines that no slot has, whatever their
    age. Return two things: the numbers of what was done (None: an error prevented it), and the text of the error (None:
    there was none).

    `fault`: why EC2 cannot be reached; then nothing is done. None: it can be reached.
    """
    if fault is not None:
        return None, fault
    try:
        check(ports, sorted(slot.id for slot in ports.store.find_slots() if slot.instance_id))
        return reconcile(ports, orphan_seconds=0.0), None
    except (CloudError, ForeignMachineError) as error:
        return None, str(error)
