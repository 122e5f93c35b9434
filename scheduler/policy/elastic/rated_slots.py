"""Slots sorted by a key, for searches that need the slot with the least key. Before a search only changed slots are
examined again.
"""

from collections.abc import Callable, Collection, Sequence
from heapq import heappop, heappush
from typing import Generic, TypeVar

from scheduler.policy.capacity.slot_info import SlotInfo

Key = TypeVar("Key", tuple[int, int, int, int], int)


class RatedSlots(Generic[Key]):
    """The slots that a rule accepts, sorted by the key that the rule gives them, least key first.

    `history` is the list of changed slots. A caller must append a slot to `history` in two cases: (1) its key may have
    become less; (2) the rule may accept it now. A caller need not append a slot on which a lease is placed, or that is
    removed from its `SlotIndex`. The key then only becomes greater, and a search notices this when it reaches the slot.
    """

    def __init__(self, rate: Callable[[SlotInfo], Key | None], history: Sequence[SlotInfo]) -> None:
        """Start without slots. `rate` is the rule: it returns the key of a slot, or None if the slot is not accepted.
        `history`: the list of changed slots, to which the caller appends.
        """
        self._rate: Callable[[SlotInfo], Key | None] = rate
        self._history, self._read = history, len(history)
        self._slot_infos: dict[int, SlotInfo] = {}
        """Position in slot order -> slot, for the slots that were examined."""
        self._keys: dict[int, Key] = {}
        """Position in slot order -> the key that the rule returned last for the slot. Slots that the rule does not
        accept have no entry. `_heap` contains each of these keys.
        """
        self._states: dict[int, tuple[object, int, int, object]] = {}
        """Position in slot order -> the facts about the slot from which its key was last computed, to notice
        changes.
        """
        self._heap: list[tuple[Key, int]] = []
        """A heap of (key, position in slot order) of accepted slots. An entry is outdated once its slot has another
        key.
        """

    def add(self, slot_info: SlotInfo) -> None:
        """Examine a slot and add it if the rule accepts it. Do nothing if the slot was examined before."""
        if slot_info.order not in self._slot_infos:
            self._update(slot_info)

    def find_first(self, declined: Collection[str] = ()) -> tuple[Key, SlotInfo] | None:
        """Return the least key and its slot; None if no slot is accepted. Slots whose ids are in `declined` are
        ignored.
        """
        self._catch_up()
        passed: list[tuple[Key, int]] = []
        found = None
        while self._heap and found is None:
            key, order = entry = self._heap[0]
            slot_info = self._slot_infos[order]
            if self._keys.get(order) != key or (not self._is_as_examined(slot_info) and self._update(slot_info) != key):
                heappop(self._heap)
            elif slot_info.slot.id in declined:
                passed.append(heappop(self._heap))
            else:
                found = key, slot_info
        for entry in passed:
            heappush(self._heap, entry)
        return found

    def starts_before(self, key: Key) -> bool:
        """Return False if it is certain that no examined slot has a key less than this one; else True."""
        return bool(self._heap) and self._heap[0][0] < key

    def _catch_up(self) -> None:
        if self._read != len(self._history):
            for slot_info in dict.fromkeys(self._history[self._read :]):
                self._update(slot_info)
            self._read = len(self._history)

    def _update(self, slot_info: SlotInfo) -> Key | None:
        order, key = slot_info.order, self._rate(slot_info)
        self._slot_infos[order] = slot_info
        self._states[order] = (slot_info.free, slot_info.given, slot_info.lifted, slot_info.slot_class)
        if key is None:
            self._keys.pop(order, None)
        elif self._keys.get(order) != key:
            self._keys[order] = key
            heappush(self._heap, (key, order))
        return key

    def _is_as_examined(self, slot_info: SlotInfo) -> bool:
        """Return whether a slot has not changed since its key was computed: its free amounts, leases and index are the
        same.
        """
        free, given, lifted, slot_class = self._states[slot_info.order]
        is_as_loaded = slot_info.given == given and slot_info.lifted == lifted
        return is_as_loaded and slot_info.free is free and slot_info.slot_class is slot_class
