"""Records EC2's notices that it will take back or replace a machine on the machine's slot. Holders then can use the two
minutes before an interruption.

A message is deleted from the queue only after its effect is committed. So a message may arrive twice, and two processes
may read the queue at once.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, assert_never

from scheduler.model.rules import Rules
from scheduler.model.slots import list_batches
from scheduler.operations.commands.lease_commands import interrupt, rebalance
from scheduler.operations.ports import Ports, announce
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError, Message, Notice, NoticeFeed

MOST_BATCHES = 50
"""The most batches of messages that one call reads, so that the task ends however long the queue is."""


@dataclass
class HandledNotices:
    """The result of reading EC2's notices: the number of notices that changed a slot, and of messages that stay in the
    queue.
    """

    changed: int = 0
    left: int = 0


class _Meant(NamedTuple):
    """A notice and the slot of its machine. `launch_id`: the launch by which the slot was found, if the row of the slot
    has no machine id yet; else None.
    """

    notice: Notice
    slot: str
    launch_id: str | None = None


@dataclass
class _Sorted:
    """The messages of a batch, divided by whether the slot of their machine is known. Messages whose slot cannot be
    found yet stay in the queue.
    """

    meant: list[_Meant] = field(default_factory=list)
    unplaced: list[Message] = field(default_factory=list)
    error: CloudError | None = None


def handle_notices(ports: Ports, feed: NoticeFeed, wait_seconds: float = 0.0) -> HandledNotices:
    """Read EC2's notices from `feed` until it is empty, and record them on the slots of their machines. Return how many
    changed a slot and how many stay in the queue.

    `wait_seconds`: how long to wait for the first message. Raises CloudError if the feed cannot be read, or if EC2
    cannot be asked about an unknown machine. Messages that were not handled are delivered again.
    """
    handled = HandledNotices()
    for number in range(MOST_BATCHES):
        batch = feed.receive(0.0 if number else wait_seconds)
        if not batch:
            break
        found = _sort(ports, [each for each in batch if each.notice is not None])
        handled.changed += _handle(ports, found.meant)
        kept = {each.receipt for each in found.unplaced}
        handled.left += len(kept)
        feed.delete([each.receipt for each in batch if each.receipt not in kept])  # promise: notice-kept
        if found.error is not None:
            raise found.error
    return handled


def _sort(ports: Ports, messages: Sequence[Message]) -> _Sorted:
    """Find the slot of each machine that a notice names, by its instance id, else by the launch id in its tags.
    Machines without a slot are ignored.

    The launch id is needed while the answer to a launch has not arrived and the slot has no instance id.
    """
    # Launching slots are read before slots with machines: if a launch is answered in between, both queries find it.
    launching = ports.store.find_slots(states=["launching"])
    coming = {slot.launch_id: slot.id for slot in launching}
    notices = {message.notice.machine for message in messages if message.notice}
    slots = {slot.instance_id: slot.id for slot in ports.store.find_slots_of_machines(sorted(notices))}
    found, unknown = _Sorted(), []
    for message in messages:
        if message.notice and message.notice.machine in slots:
            found.meant.append(_Meant(message.notice, slots[message.notice.machine]))
        elif message.notice:
            unknown.append(message)
    if coming and unknown:
        _sort_by_launch(ports, unknown, coming, set(list_batches(launching)), found)
    return found


def _sort_by_launch(
    ports: Ports,
    messages: Iterable[Message],
    coming: Mapping[str | None, str],
    batches: Collection[str],
    found: _Sorted,
) -> None:
    """Ask EC2 about the machines that no slot has, and find their launching slots by the launch ids.

    A machine that EC2 does not list yet may belong to a launching slot, and a machine of one of `batches` has no slot
    before the answer to the launch is recorded. Their messages stay in the queue until the time of the interruption,
    and are delivered again.
    """
    notices = {each: each.notice for each in messages if each.notice}
    try:
        machines = ports.fleet.describe(sorted({notice.machine for notice in notices.values()}))
    except CloudError as error:
        found.unplaced, found.error = list(notices), error
        return
    now = ports.store.now()
    for message, notice in notices.items():
        machine = machines.get(notice.machine)
        if (machine is None or machine.batch in batches) and now < notice.gone_at:
            found.unplaced.append(message)
        elif machine is not None and machine.launch_id in coming:
            found.meant.append(_Meant(notice, coming[machine.launch_id], machine.launch_id))


def _handle(ports: Ports, meant: Sequence[_Meant]) -> int:
    """Record notices on their slots in one transaction, announce the changes, and count the notices. Return the number
    of notices that changed a slot.
    """
    if not meant:
        return 0
    rules = ports.rules()
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        work.slots = transaction.load_slots({each.slot for each in meant})
        counted = [(work.slots[each.slot].pool, each.notice.kind) for each in meant if _write(work, rules, each)]
        change_set = work.flush()
    announce(ports, change_set, kick=change_set.is_change)
    for pool, kind in counted:
        ports.meter.count("leasehold_interruptions_total", {"pool": pool, "kind": kind})
    return len(counted)


def _write(work: UnitOfWork, rules: Rules, meant: _Meant) -> bool:
    """Stage an interruption or rebalance notice on the row of its slot. Return whether the slot changed. It does not
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
        case _:
            assert_never(notice.kind)
    return changed != current
