"""Handles EC2's notices about machines. If EC2 will take back, replace or maintain a machine, this is recorded on the
machine's slot. If the state of a machine changed, its slot is checked.

A message is deleted from the queue only after its effect is committed, or after the task that checks the slot was sent.
So a message may arrive twice, and two processes may read the queue at once.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, assert_never

from scheduler.model.rules import Rules
from scheduler.model.slots import list_batches
from scheduler.model.transitions import SlotState
from scheduler.operations.commands.slot_commands import interrupt, maintain, rebalance
from scheduler.operations.machines.check import send_checks
from scheduler.operations.machines.work import BATCH
from scheduler.operations.ports import Ports, announce, cloud_work
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError, Message, Notice, NoticeFeed

MOST_BATCHES = 200
"""The most batches of messages that one call reads, so that the task ends however long the queue is."""
ENDING: Final = frozenset({"stopping", "stopped", "shutting-down"})


@dataclass
class HandledNotices:
    """The result of reading EC2's notices about machines. `changed`: number of notices that changed a slot. `checked`:
    number of slots for which a task that checks the machine was sent. `left`: number of messages that stay in the
    queue.
    """

    changed: int = 0
    checked: int = 0
    left: int = 0


class _Meant(NamedTuple):
    """One of EC2's notices, and the slot whose machine it is about. `launch_id`: the launch by which the slot was
    found, if the row of the slot has no machine id yet; else None.
    """

    notice: Notice
    slot: str
    launch_id: str | None = None


@dataclass
class _Sorted:
    """EC2's notices in a batch of messages, divided into notices with a known slot and notices without one. `meant`:
    the notices whose slot is known. `unplaced`: the receipts (ids for deletion) of messages with a notice whose slot
    cannot be found yet; these messages stay in the queue. `error`: the error with which EC2 refused to describe
    machines, so that their slots could not be found; None: there was no error.
    """

    meant: list[_Meant] = field(default_factory=list)
    unplaced: set[str] = field(default_factory=set)
    """The receipts of the messages that stay in the queue."""
    error: CloudError | None = None


@dataclass
class _Changes:
    """Changes of machine states that were read from the queue and that `_check` has not handled yet. `states`: machine
    id -> the new states of the machine. `receipts`: the receipts of the messages that reported these changes, by which
    `_check` deletes the messages.
    """

    states: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    receipts: list[str] = field(default_factory=list)


def handle_notices(
    ports: Ports, feed: NoticeFeed, wait_seconds: float = 0.0, clock: Callable[[], float] = time.monotonic
) -> HandledNotices:
    """Read EC2's notices about machines from `feed` until it is empty and `wait_seconds` are over. Record them on the
    slots of the machines, and send tasks that check the machines whose state changed. Return the numbers of what was
    done.

    Changes of state are gathered while messages are waiting, so that a burst of them causes one task for up to `BATCH`
    slots. The task does not rely on the state in the notice, but reads it from EC2. Raises CloudError if the feed
    cannot be read, or if EC2 cannot be asked about an unknown machine. Messages that were not handled are delivered
    again. `clock`: a monotonic clock.
    """
    handled, changes, end = HandledNotices(), _Changes(), clock() + wait_seconds
    for _ in range(MOST_BATCHES):
        batch = feed.receive(0.0 if changes.receipts else max(0.0, end - clock()))
        if not batch and not changes.receipts:
            break
        if not batch or len(changes.states) >= BATCH:
            handled.checked += _check(ports, feed, changes)
            changes = _Changes()
        error = _handle_batch(ports, feed, batch, handled, changes)
        if error is not None:
            handled.checked += _check(ports, feed, changes)
            raise error
    handled.checked += _check(ports, feed, changes)
    return handled


def _handle_batch(
    ports: Ports, feed: NoticeFeed, batch: Sequence[Message], handled: HandledNotices, changes: _Changes
) -> CloudError | None:
    """Handle a batch of messages. A message with a change of a machine's state is added to `changes`, and stays in the
    queue until `_check` deletes it. The notices of other messages are recorded on the slots, and these messages are
    deleted. A message with a notice whose slot cannot be found yet stays in the queue. Return the error of EC2 if a
    machine could not be looked up, else None.
    """
    for message in batch:
        states = [(notice.machine, notice.state) for notice in message.notices if notice.kind == "state"]
        for machine, state in states:
            changes.states[machine].add(state or "")
        changes.receipts += [message.receipt] if states else []
    others = [message for message in batch if message.receipt not in set(changes.receipts)]
    if not others:
        return None
    found = _sort(ports, others)
    handled.changed += _handle(ports, found.meant)
    handled.left += len(found.unplaced)
    feed.delete([each.receipt for each in others if each.receipt not in found.unplaced])  # promise: notice-kept
    return found.error


def _check(ports: Ports, feed: NoticeFeed, changes: _Changes) -> int:
    """Send tasks that check the slots whose machines changed their state in a way that matters, and delete the
    messages. Return the number of slots. Machines without a slot are ignored: when the answer to their launch is
    recorded, their slot is checked anyway.
    """
    if not changes.receipts:
        return 0
    slots = ports.store.find_slots_of_machines(sorted(changes.states))
    wanted = []
    for slot in slots:
        states = {state for state in changes.states[slot.instance_id or ""] if _matters(state, slot.state)}
        if states:
            wanted.append(slot)
        for state in sorted(states):
            ports.meter.count("leasehold_state_changes_total", {"pool": slot.pool, "state": state})
    sent = send_checks(ports, wanted)
    feed.delete(changes.receipts)
    return sent


def _matters(state: str, slot: SlotState) -> bool:
    """Return whether a slot in the state `slot` may have to change because its machine is in `state` now."""
    if state == "running":
        return slot not in {"binding", "ready", "draining", "terminating"}
    return state not in ENDING or slot != "terminating"


def _sort(ports: Ports, messages: Sequence[Message]) -> _Sorted:
    """Find the slot of each machine that a notice names, by its instance id, else by the launch id in its tags. Notices
    about machines without a slot are ignored.

    The launch id is needed while the answer to a launch has not arrived and the slot has no instance id.
    """
    # Launching slots are read before slots with machines: if a launch is answered in between, both queries find it.
    launching = ports.store.find_slots(states=["launching"])
    coming = {slot.launch_id: slot.id for slot in launching}
    notices = [(message.receipt, notice) for message in messages for notice in message.notices]
    machines = {notice.machine for _, notice in notices}
    slots = {slot.instance_id: slot.id for slot in ports.store.find_slots_of_machines(sorted(machines))}
    found, unknown = _Sorted(), []
    for receipt, notice in notices:
        if notice.machine in slots:
            found.meant.append(_Meant(notice, slots[notice.machine]))
        else:
            unknown.append((receipt, notice))
    if coming and unknown:
        _sort_by_launch(ports, unknown, coming, set(list_batches(launching)), found)
    return found


def _sort_by_launch(
    ports: Ports,
    notices: Iterable[tuple[str, Notice]],
    coming: Mapping[str | None, str],
    batches: Collection[str],
    found: _Sorted,
) -> None:
    """Find the slots of notices about machines whose ids no slot has: read these machines from EC2, and find their
    launching slots by the launch ids. Add the result to `found`. `notices`: pairs of (receipt of the message, notice in
    the message). `coming`: launch id -> launching slot. `batches`: the batches whose launches are under way.

    A slot cannot be found yet in two cases: (1) EC2 does not list the machine yet, so it may belong to a launching
    slot; (2) the machine is of one of `batches`, and gets its slot when the answer to the launch is recorded. In both
    cases the message stays in the queue and is delivered again, until two minutes after the notice (`Notice.gone_at`).
    """
    notices = list(notices)
    try:
        machines = ports.fleet.describe(sorted({notice.machine for _, notice in notices}))
    except CloudError as error:
        found.unplaced, found.error = {receipt for receipt, _ in notices}, error
        return
    now = ports.store.now()
    for receipt, notice in notices:
        machine = machines.get(notice.machine)
        if (machine is None or machine.batch in batches) and now < notice.gone_at:
            found.unplaced.add(receipt)
        elif machine is not None and machine.launch_id in coming:
            found.meant.append(_Meant(notice, coming[machine.launch_id], machine.launch_id))


def _handle(ports: Ports, meant: Sequence[_Meant]) -> int:
    """Record notices on their slots in one transaction, announce the changes, and count the notices. Return the number
    of notices that changed a slot.
    """
    if not meant:
        return 0
    rules = ports.rules()
    with cloud_work(ports) as work:
        work.slots = work.transaction.load_slots({each.slot for each in meant})
        counted = [(work.slots[each.slot].pool, each.notice.kind) for each in meant if _write(work, rules, each)]
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.is_change)
    for pool, kind in counted:
        ports.meter.count("leasehold_interruptions_total", {"pool": pool, "kind": kind})
    return len(counted)


def _write(work: UnitOfWork, rules: Rules, meant: _Meant) -> bool:
    """Stage the effect of one of EC2's notices on the row of its slot. Return whether the slot changed. It does not
    change if the slot was deleted or has another machine now.
    """
    current, notice = work.slots.get(meant.slot), meant.notice
    if current is None or not (
        current.instance_id == notice.machine or (meant.launch_id and current.launch_id == meant.launch_id)
    ):
        return False
    match notice.kind:
        case "interruption":
            changed = interrupt(work, meant.slot, notice.gone_at)
        case "rebalance":
            changed = rebalance(work, rules, meant.slot)
        case "maintenance":
            is_over = notice.ends_at is not None and notice.ends_at <= work.now
            changed = current if is_over else maintain(work, rules, meant.slot, notice.code or "", notice.begins_at)
        case "state":
            changed = current
        case _:
            assert_never(notice.kind)
    return changed != current
