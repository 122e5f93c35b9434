"""Stores refused messages as events, so that `leasehold events` shows messages that were refused without an answer."""

from scheduler.model.events import Event
from scheduler.operations.ports import Ports
from scheduler.ports import RefusedMessage, StoreUnavailableError

MESSAGE_REFUSED = "message_refused"
"""The event of a refused message: no change of state. Its cause is `holder`, as for every message from a queue."""


def record_refused(ports: Ports) -> int:
    """Append an event for each refused message that was kept since the last call. Return their number.

    Messages that cannot be written are kept again. Raises StoreUnavailableError.
    """
    refused = ports.meter.take_refused()
    if not refused:
        return 0
    try:
        with ports.store.transaction() as transaction:
            transaction.append_events([_describe(each) for each in refused])
    except StoreUnavailableError:
        ports.meter.put_back_refused(refused)
        raise
    return len(refused)


def _describe(refused: RefusedMessage) -> Event:
    detail: dict[str, str | int | float | bool | list[str | float] | None] = {
        "queue": refused.queue,
        "task": refused.task,
        "message": refused.message,
        "defect": refused.defect,
        "path": refused.path,
        "expected": refused.expected,
        "got": refused.got,
    }
    if refused.more_faults:
        detail["more_faults"] = refused.more_faults
    return Event(at=refused.at, name=MESSAGE_REFUSED, cause="holder", detail=detail)
