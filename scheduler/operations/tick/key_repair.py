"""Self-repair: keys of Redis that nothing can use are set aside before a tick, and what was set aside is recorded."""

from scheduler.model.events import Event
from scheduler.operations.ports import Ports
from scheduler.ports import SetAside

SET_ASIDE = "key_set_aside"
"""The event of a key that had a wrong type or unreadable contents: it was renamed, and is made again."""
SET_ASIDE_KEYS = "leasehold_set_aside_keys_total"


def repair_keys(ports: Ports) -> list[SetAside]:
    """Set aside the keys of the view that nothing can use. Record and count these, and those that other processes have
    set aside since: each event is committed at least once, because the list in Redis is shortened after the commit.
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
