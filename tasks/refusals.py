"""Count refused messages and record them for the events.

The record is made in Redis, because a worker's main process, which checks all messages, opens no database. The task
`recover` writes the events (`operations/refused.py`).
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from redis import RedisError

from leasehold.common.masking import MASK, mask_urls
from scheduler.model.validation import Fault, InvalidInputError
from scheduler.ports import Defect, RefusedMessage
from workers.logs import mask_secrets, mask_text

_HIDDEN: Final = frozenset({"token", "reply_to", "key", "key_hash"})
"""Fields of documents whose values are never shown."""
_TYPES: Final = {'"': "a text", "{": "a table", "[": "a list"}


def report_refused(queue: str, defect: Defect, faults: Sequence[Fault], *, task: str, message: str) -> None:
    """Count and record a message that was refused without an answer. Never raises: the message is refused anyway."""
    from tasks.app import services  # noqa: PLC0415 - the app imports what calls this

    first = faults[0]
    # Invalid settings were reported at the start.
    with suppress(InvalidInputError, RedisError):
        services.meter.note_refused(
            RefusedMessage(
                at=services.clock.now(),
                queue=queue,
                task=task,
                message=message,
                defect=defect,
                path=mask_text(first.path),
                expected=mask_text(first.expected),
                got=conceal(first),
                more_faults=len(faults) - 1,
            )
        )


def conceal(fault: Fault) -> str:
    """Return the value of a fault without secrets. Of a message's body only type and size are shown."""
    field = re.split(r"[.\[\]]", fault.path.rstrip("]"))[-1]
    if field in _HIDDEN:
        return MASK
    if fault.path == "." or fault.path.startswith("body"):
        size = re.search(r" \(\d+ characters\)$", fault.got)
        return _TYPES.get(fault.got[:1], fault.got) + (size[0] if size else "")
    return str(mask_secrets(None, "", {field: mask_urls(fault.got)})[field])
