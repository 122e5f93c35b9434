"""Refused messages are counted and noted, so that no message disappears unseen: a metric, and an event.

It is done in Redis alone: a worker's main process, which checks all messages, opens no database. The task `recover`
writes the events (`operations/refused.py`).
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
    """Count and note a message that was refused and gets no answer. Never raises: the message is refused anyway."""
    from tasks.app import services  # noqa: PLC0415 - the app imports what calls this

    first = faults[0]
    # A fault of the settings was reported at the start.
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
    """What came, without secrets and without content of a message's body: of that the type and the size alone."""
    field = re.split(r"[.\[\]]", fault.path.rstrip("]"))[-1]
    if field in _HIDDEN:
        return MASK
    if fault.path == "." or fault.path.startswith("body"):
        size = re.search(r" \(\d+ characters\)$", fault.got)
        return _TYPES.get(fault.got[:1], fault.got) + (size[0] if size else "")
    return str(mask_secrets(None, "", {field: mask_urls(fault.got)})[field])
