"""The slow work of slots: its names, whether it is lost, that two tasks do not carry it out at once, and its pause
after the cloud refused it or did not answer.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from scheduler.model.slots import Slot
from scheduler.operations.machines.holds import MOST_DELAY
from scheduler.operations.ports import Ports, announce, cloud_work
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError, Waiting, Work
from scheduler.protocol.names import HEALTH, LAUNCH, TERMINATE

UNDER_WAY: Final = "under_way"
"""The outcome of a task that changed nothing, because another task carries the same work out."""

Refused = Mapping[str, CloudError]
"""The errors with which the cloud refused machines: slot id -> error."""
END_REFUSED: Final = "slot_end_refused"
"""Name of the event that the cloud refuses to terminate the machine of a slot, which stays `terminating`."""
STOP_REFUSED: Final = "slot_stop_refused"
"""Name of the event that the cloud refuses to stop the machine of a slot, which stays in the stopped tier."""
_MOST_DOUBLED: Final = 10

Verb = Literal["launch", "terminate", "start", "stop"]
_QUEUES: Final[Mapping[Verb, str]] = {
    "launch": LAUNCH,
    "start": LAUNCH,
    "terminate": TERMINATE,
    "stop": TERMINATE,
}


BATCH: Final = 500
"""The most slots whose machines one task checks."""
MOST_CHECKED: Final = 2000
"""The most slots whose checks may wait or be under way at once, unless EC2's notices request more. A task needs more
than a second of CPU time to read 500 machines, and other tasks of the queue must not wait for all machines of a large
cluster.
"""


def name_check(slot: str) -> str:
    return f"check:{slot}"


def is_lost(slot: Slot, work: Work, resend_seconds: float, now: float) -> bool:
    """Return whether the task for the slot's launch, termination, start or stop has to be sent again: it was not sent
    in the last `resend_seconds`, no worker carries it out, and its message does not wait. `work`: what waits or is
    under way.

    A message was sent a moment after the `sent_at` of its slot, so it counts as waiting for up to `resend_seconds` more
    than it may. If `sent_at` is in the future, the clock was set back after the write, so the slot's work counts as
    lost.
    """
    if 0 <= now - slot.sent_at < resend_seconds:  # promise: lost-work-sent-again
        return False
    verb, name = _name_work(slot)
    waiting = work.waiting.get(_QUEUES[verb])
    since = None if waiting is None else waiting.since
    waits = since is not None and since - resend_seconds <= slot.sent_at <= now
    return not waits and name not in work.under_way


def _name_work(slot: Slot) -> tuple[Verb, str]:
    """Return (1) what a task has to do for this slot, and (2) the name of this work."""
    if slot.power is not None:
        return slot.power, _name(slot.power, slot.id, slot.epoch)
    if slot.state == "launching":
        return "launch", f"launch:{slot.batch or slot.launch_id}"
    return "terminate", _name("terminate", slot.id, slot.epoch)


def _name(verb: Verb, slot: str, epoch: int) -> str:
    return f"{verb}:{slot}:{epoch}"


def launch_once(ports: Ports, launch_id: str, act: Callable[[], str]) -> str:
    """Carry out `act`, which launches the machines of this launch or batch, unless another task does so now. Return the
    outcome as one word.

    A copy would ask EC2 for the same machines, and count as one more attempt at the launch.
    """
    with ports.work_watch.begin([f"launch:{launch_id}"]) as begun:
        return act() if begun else UNDER_WAY


def act_once(
    ports: Ports,
    verb: Verb,
    wanted: Sequence[tuple[str, int]],
    act: Callable[[Ports, Sequence[tuple[str, int]]], dict[str, str]],
) -> dict[str, str]:
    """Carry out `act` for those of these slots, given as (slot, epoch), for which no other task does so now. Return the
    outcome by slot.
    """
    names = {_name(verb, slot, epoch): (slot, epoch) for slot, epoch in wanted}
    with ports.work_watch.begin(names) as begun:
        others = {slot: UNDER_WAY for name, (slot, _) in names.items() if name not in begun}
        mine = [pair for name, pair in names.items() if name in begun]
        return others | (act(ports, mine) if mine else {})


def count_room(work: Work) -> int:
    """Return for how many further slots a check may be sent now. `work`: what is under way, or waits in the queue
    `health`. Each waiting message counts as a check of BATCH slots.
    """
    under_way = sum(name.startswith(name_check("")) for name in work.under_way)
    return max(0, MOST_CHECKED - under_way - BATCH * work.waiting.get(HEALTH, Waiting()).count)


def check_soon(ports: Ports, slots: Sequence[str]) -> None:
    """Send a task that checks the machines of these slots, which sweeps check, too. If there is no room for it, leave
    them to the next sweep.
    """
    if len(slots) <= count_room(ports.work_watch.read([HEALTH])):
        ports.dispatcher.send_checks(slots)


def lock_meant(
    work: UnitOfWork, slots: Iterable[Slot], is_meant: Callable[[Slot | None, Slot], bool]
) -> Iterator[Slot]:
    """Lock these slots, and yield the present rows that still want the call that was made for the earlier rows
    `slots`, by the function `is_meant(present row, earlier row)`.
    """
    earlier = {slot.id: slot for slot in slots}
    for name, current in work.transaction.load_slots(earlier).items():
        if is_meant(current, earlier[name]):
            yield current


@repeated_if_overtaken
def put_off(
    ports: Ports, slots: Sequence[Slot], is_meant: Callable[[Slot | None, Slot], bool], refused: Refused, event: str
) -> None:
    """Delay the next call for each of these slots by 1, 2, 4, … at most 60 s. The periodic task `recover` then sends
    the call. `is_meant`: see `lock_meant`.

    Record on a slot in `refused` what the cloud answered, and append an event with the name `event` if the cloud had
    not refused its machine with this code before.
    """
    if not slots:
        return
    with cloud_work(ports) as work:
        for current in lock_meant(work, slots, is_meant):
            delay = min(MOST_DELAY, 2.0 ** min(current.attempts, _MOST_DOUBLED))
            late = msgspec.structs.replace(
                current, not_before=work.now + delay, sent_at=0.0, attempts=current.attempts + 1
            )
            error = refused.get(current.id)
            if error is None or (current.refusal or "").partition(": ")[0] == error.code:
                work.mark(late)
                continue
            work.put(msgspec.structs.replace(late, refusal=error.answer))
            detail = {"epoch": current.epoch, "instance": current.instance_id, "refusal": error.answer}
            work.note(event, detail, cause="cloud", slot=current.id)
        change_set = work.flush()
    announce(ports, change_set, kick=False)
