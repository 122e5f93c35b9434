"""The table of the fleet: its filter, as the address of the page has it, and its rows."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self
from urllib.parse import urlencode

from leasehold.console.page import format_span
from leasehold.console.slot_life import Describe
from leasehold.texts.values import format_amount
from scheduler.model.costs import find_present_price
from scheduler.model.reservations import Lease
from scheduler.model.slots import Slot
from scheduler.model.transitions import SLOT_STATES, WITH_MACHINE
from scheduler.model.view import View

PAGE_ROWS: Final = 50
USES: Final = ("machine", "leased", "free")
"""Filters by use: slots with a running machine, with leases, and with a running machine without leases."""
MOST_CARDS: Final = 40
"""A fleet of at most this number of slots is shown as cards."""
_MOST_TEXT: Final = 200
_MOST_PAGE: Final = 1_000_000


@dataclass(frozen=True)
class SlotFilter:
    """Which slots the table shows; an empty text matches every slot. `use`: one of USES. `text`: a part of the id of a
    slot, of its address, of the id of its machine, or of the id of a reservation on it. `page`: the number of the page,
    from 1. `fault`: a sentence for people about the part of the address that was ignored; "" if all was used.
    """

    pool: str = ""
    zone: str = ""
    state: str = ""
    account: str = ""
    use: str = ""
    text: str = ""
    page: int = 1
    fault: str = ""

    @classmethod
    def read(cls, query: Mapping[str, str]) -> Self:
        """Return the filter that the query of an address describes. A wrong value is ignored, and `fault` names it."""
        texts = {name: query.get(name, "")[:_MOST_TEXT] for name in ("pool", "zone", "state", "account", "use")}
        given, fault = query.get("page", "") or "1", ""
        if not given.isascii() or not given.isdigit() or not 1 <= int(given[:9]) <= _MOST_PAGE:
            given, fault = "1", f"page: expected a number from 1, got {query['page'][:40]!r}"
        if texts["state"] and texts["state"] not in SLOT_STATES:
            fault = f"state: expected one of {', '.join(SLOT_STATES)}, got {texts['state']!r}"
            texts["state"] = ""
        if texts["use"] and texts["use"] not in USES:
            fault = f"use: expected one of {', '.join(USES)}, got {texts['use']!r}"
            texts["use"] = ""
        return cls(**texts, text=query.get("text", "")[:_MOST_TEXT], page=int(given), fault=fault)

    @property
    def is_narrow(self) -> bool:
        """Whether the filter leaves out any slot."""
        return bool(self.pool or self.zone or self.state or self.account or self.use or self.text)

    def query(self, page: int) -> str:
        """Return the query string of the address of the page `page` of the same filter."""
        names = ("pool", "zone", "state", "account", "use", "text")
        values = {name: getattr(self, name) for name in names}
        return urlencode({**{name: value for name, value in values.items() if value}, "page": page})


def find_rows(view: View, wanted: SlotFilter, describe: Describe) -> tuple[list[dict[str, Any]], int]:
    """Return the rows of one page of the table, and the number of all slots that match. Slots are sorted by pool and
    number. If the number of the page is too large, the rows of the last page are returned. `describe` returns what the
    table shows about the age of a slot's machine.
    """
    ordered = (slot for pool in sorted(view.pools) for slot in view.pools[pool].list())
    found = [slot for slot in ordered if _matches(view, slot, wanted)] if wanted.is_narrow else list(ordered)
    last = max(1, -(-len(found) // PAGE_ROWS))
    first = (min(wanted.page, last) - 1) * PAGE_ROWS
    return [_describe(view, slot, describe) for slot in found[first : first + PAGE_ROWS]], len(found)


def find_cards(view: View, describe: Describe) -> list[tuple[str, list[dict[str, Any]]]]:
    """Return the cards of the slots by pool; [] for a fleet that is too large for cards."""
    if len(view.slots) > MOST_CARDS:
        return []
    return [
        (pool, [_make_card(view, slot, describe) for slot in view.pools[pool].list()]) for pool in sorted(view.pools)
    ]


def _make_card(view: View, slot: Slot, describe: Describe) -> dict[str, Any]:
    free = find_free(slot, [lease for _, lease in view.leases_of(slot.id)])
    return {**_describe(view, slot, describe), "free": free, "runs": slot.state in WITH_MACHINE}


def find_free(slot: Slot, leases: Sequence[Lease]) -> list[tuple[str, float, float]]:
    """Return for each resource of a slot (its name, the free amount, the total amount), sorted by name."""
    total = slot.resources or {}
    used = {name: sum(lease.resources.get(name, 0.0) for lease in leases) for name in total}
    return [(name, max(0.0, total[name] - used[name]), total[name]) for name in sorted(total)]


def find_together(view: View, *, reservation: str = "", slot: str = "") -> list[str]:
    """Return the ids of all slots with leases of this reservation, or of the reservations with leases on this slot."""
    rows = map(view.reservations.get, [reservation] if reservation else {owner for owner, _ in view.leases_of(slot)})
    return sorted({lease.slot for row in rows if row is not None for lease in row.leases})


def describe_box(view: View, slot: Slot, describe: Describe) -> list[str]:
    """Return lines about a slot for the tooltip of its box: machine and age, the use of each resource, and holders."""
    age, owners = describe(slot).age, _owners(view, slot)
    machine = " ".join(filter(None, [slot.instance_type or slot.machine, slot.market, slot.zone]))
    free = find_free(slot, [lease for _, lease in view.leases_of(slot.id)])
    return [
        *([machine + (f", {format_span(age)} old" if age is not None else "")] if machine else []),
        *(f"{name}: {format_amount(total - left)} of {format_amount(total)}" for name, left, total in free),
        *([", ".join(owners[:4]) + (f" and {len(owners) - 4} more" if len(owners) > 4 else "")] if owners else []),  # noqa: PLR2004 - as many as a card
    ]


def _matches(view: View, slot: Slot, wanted: SlotFilter) -> bool:
    if wanted.pool not in {"", slot.pool} or wanted.zone not in {"", slot.zone or ""}:
        return False
    if wanted.state not in {"", slot.state}:
        return False
    if wanted.use and not _is_used(view, slot, wanted.use):
        return False
    if wanted.account and wanted.account not in _accounts(view, slot):
        return False
    texts = (slot.id, slot.address or "", slot.instance_id or "")
    return not wanted.text or any(wanted.text in text for text in (*texts, *_owners(view, slot)))


def _is_used(view: View, slot: Slot, use: str) -> bool:
    has_leases = slot.id in view.leases_on
    if use == "leased":
        return has_leases
    return slot.state in WITH_MACHINE and (use == "machine" or not has_leases)


def _owners(view: View, slot: Slot) -> list[str]:
    return [owner for owner, _ in view.leases_of(slot.id)]


def _accounts(view: View, slot: Slot) -> list[str]:
    rows = (view.reservations.get(owner) for owner in _owners(view, slot))
    return sorted({row.request.account or "" for row in rows if row is not None} - {""})


def _describe(view: View, slot: Slot, describe: Describe) -> dict[str, Any]:
    machine = describe(slot)
    return {"slot": slot, "owners": _owners(view, slot), "accounts": _accounts(view, slot), "machine": machine}


def count_fleet(view: View) -> dict[str, Any]:
    """Return the figures that the page shows above its map of slots, and the values that each field of the filter
    offers.
    """
    states = Counter(slot.state for slot in view.slots.values())
    return {
        "states": [(state, states[state]) for state in SLOT_STATES if states[state]],
        "slots": len(view.slots),
        "machines": sum(states[state] for state in WITH_MACHINE),
        "leased": len(view.leases_on),
        "pending": len(view.by_phase["pending"]),
        "price": sum(map(find_present_price, view.slots.values())),
        "pools": sorted(view.pools),
        "zones": sorted({slot.zone for slot in view.slots.values() if slot.zone}),
        "accounts": sorted(view.accounts),
        "all_states": SLOT_STATES,
        "all_uses": USES,
    }
