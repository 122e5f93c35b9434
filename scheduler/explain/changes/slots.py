"""The change of a slot that may end a reservation's wait: to uncordon it. A host with more resources, or with other
labels, is another host, so no change invents one (`explain/needs.py`).
"""

from collections.abc import Iterator
from itertools import islice

import msgspec

from scheduler.explain.search import MOST_CANDIDATES, Search, Suggestion, list_slots


def list_uncordoned(search: Search) -> Iterator[Suggestion]:
    """Yield changes that each uncordon one slot: a cordoned ready slot of a pool that may serve the reservation."""
    cordoned = (slot for slot, _ in list_slots(search) if slot.cordoned)
    for slot in islice(cordoned, MOST_CANDIDATES):
        yield Suggestion(
            kind="cordon",
            text=f"slot {slot.id} would do and is cordoned",
            rows=(msgspec.structs.replace(slot, cordoned=False),),
        )
