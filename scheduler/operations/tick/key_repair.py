"""Repairs Redis keys before a tick: unusable keys are renamed, and each renamed key is recorded as an event."""

from scheduler.model.events import Event
from scheduler.operations.ports import Ports
from scheduler.ports import SetAside

SET_ASIDE = "key_set_aside"
"""The event of a key that had a wrong type or unreadable contents: it was renamed, and is written again."""
SET_ASIDE_KEYS = "leasehold_set_aside_keys_total"


def repair_keys(ports: Ports) -> list[SetAside]:
    """Rename the keys of the view that cannot be used. Record and count all keys that were renamed since the last call.

    Other processes rename keys, too. Each event is committed at least once, because the list in Redis is shortened
    after the commit.
    """
    ports.view_cache.set_aside_wrong_keys()
    found = ports.view_cache.list_set_aside()
    if not found:
        return found
    with ports.store.transaction() as transaction:
        now = transaction.now()
        transaction.append_events(
            [
                Event(at=now, name=SET_ASIDE, cause="tick", detail={"key": each.key, "found": each.found})
                for each in found
            ]
        )
    ports.view_cache.forget_set_aside(found)
    for each in found:
        ports.meter.count(SET_ASIDE_KEYS, {"key": each.key})
    return found
