"""Puts off calls about machines that the cloud refused or did not answer, and records on the slots why it refused."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec

from scheduler.model.events import Event
from scheduler.model.slots import Slot
from scheduler.operations.machines.holds import MOST_DELAY
from scheduler.operations.ports import Ports, announce
from scheduler.operations.retry import repeated_if_overtaken
from scheduler.operations.unit_of_work import UnitOfWork
from scheduler.ports import CloudError

Refused = Mapping[str, CloudError]
"""The errors with which the cloud refused machines: slot id -> error."""
END_REFUSED: Final = "slot_end_refused"
"""Name of the event that the cloud refuses to terminate the machine of a slot, which stays `terminating`."""
STOP_REFUSED: Final = "slot_stop_refused"
"""Name of the event that the cloud refuses to stop the machine of a slot, which stays in the stopped tier."""
_MOST_DOUBLED: Final = 10


@repeated_if_overtaken
def put_off(
    ports: Ports, slots: Iterable[Slot], is_meant: Callable[[Slot | None, Slot], bool], refused: Refused, event: str
) -> None:
    """Delay the next call for each of these slots by 1, 2, 4, … at most 60 s. The periodic task `recover` then sends
    the call. `is_meant`: whether the present row of a slot still wants the call that was made for the earlier row.

    Record on a slot in `refused` what the cloud answered, and append an event with the name `event` if the cloud had
    not refused its machine with this code before.
    """
    meant = {slot.id: slot for slot in slots}
    if not meant:
        return
    with ports.store.transaction() as transaction:
        work = UnitOfWork(transaction, "cloud")
        for name, current in transaction.load_slots(meant).items():
            if not is_meant(current, meant[name]):
                continue
            delay = min(MOST_DELAY, 2.0 ** min(current.attempts, _MOST_DOUBLED))
            late = msgspec.structs.replace(
                current, not_before=work.now + delay, sent_at=0.0, attempts=current.attempts + 1
            )
            error = refused.get(name)
            if error is None or (current.refusal or "").partition(": ")[0] == error.code:
                work.mark(late)
                continue
            refusal = error.answer
            work.put(msgspec.structs.replace(late, refusal=refusal))
            detail: dict[str, Any] = {"epoch": current.epoch, "instance": current.instance_id, "refusal": refusal}
            work.add_event(Event(at=work.now, name=event, cause="cloud", slot=name, detail=detail))
        change_set = work.flush()
    announce(ports, change_set, kick=False)
