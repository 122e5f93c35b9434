"""The list of reservations as a page shows it: filters, order and groups from the address, and one page of rows from
the feed's view.

Filters come from people who edit addresses, so a wrong one is a message beside the list and no error.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nlargest, nsmallest
from operator import attrgetter
from typing import Any, Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from leasehold.client.models import list_phases
from leasehold.texts.values import format_amount
from leasehold.web.feed import FollowedView, ReservationMatch
from scheduler.model.reservations import PublicRequest, PublicReservation, Reservation
from scheduler.model.transitions import ENDED, PHASES

ROWS_A_PAGE: Final = 50
MOST_SELECTED: Final = 1000
"""The most reservations that one bulk change may concern."""
MOST_NAMES: Final = 20
"""The most names that complete a filter."""
MOST_GROUPS: Final = 40
ROWS_A_GROUP: Final = 5
PHASE_CHOICES: Final = (*PHASES, "ended")
_TEXTS: Final = ("account", "pool", "system", "slot", "id", "why", "text")
_PAIRS: Final = ("tag", "label")
COMPLETED: Final = ("account", "pool", "system", "slot", "why", *_PAIRS)
"""The filters whose values the page completes."""
GROUPS: Final = ("why", "account")
"""What a list is grouped by. Another group is `tag:KEY`"""
_COUNT: Final = re.compile(r"[0-9]{1,9}")
_UNITS: Final = {"memory_mib": "MiB memory"}

Wait = tuple[str, str]
"""The waiting code and the sentence of a reservation."""


class SearchTexts:
    """The texts in which a search looks for words, in lower case. They are kept, because a person types one letter
    after the other, and the texts of 10,000 rows take 60 ms.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Reservation, str]] = {}

    def find(self, row: Reservation) -> str:
        """Return id, phase, account, pool, system, principal, slots, tags and labels of a reservation."""
        known = self._known.get(row.id)
        if known is None or known[0] is not row:
            request = row.request
            parts = [
                row.id,
                row.phase,
                request.account or "",
                request.pool or "",
                request.system or "",
                row.principal or "",
            ]
            parts += [lease.slot for lease in row.leases]
            for pairs in (request.tags, request.labels):
                parts += [f"{key}={value}" for key, value in pairs.items()]
            known = self._known[row.id] = row, " ".join(parts).lower()
        return known[1]

    def forget(self, rows: Container[str]) -> None:
        self._known = {name: known for name, known in self._known.items() if name in rows}

    def __len__(self) -> int:
        return len(self._known)


@dataclass(frozen=True)
class Listing:
    """What the rows of a list need in addition to their fields. `waits`: reservation id -> (waiting code, sentence) of
    the last tick. `now`: cluster time.
    """

    waits: Mapping[str, Wait]
    now: float
    texts: SearchTexts = field(default_factory=SearchTexts)

    def find_code(self, row: PublicReservation) -> str:
        """Return the waiting code of a pending reservation, "" if no tick has reported one; the phase of another."""
        return self.waits.get(row.id, ("", ""))[0] if row.phase == "pending" else row.phase


def find_span(row: PublicReservation, now: float) -> tuple[str, float]:
    """Return (`waits`, `runs`, `waited` or `ran`; the seconds) of a reservation."""
    if row.phase == "pending":
        return "waits", max(0.0, now - max(row.created_at, row.changed_at))
    if row.phase not in ENDED:
        return "runs", max(0.0, now - (row.leased_at or row.changed_at))
    end = row.finished_at or row.changed_at
    return ("ran", max(0.0, end - row.leased_at)) if row.leased_at else ("waited", max(0.0, end - row.created_at))


def describe_resources(resources: Mapping[str, float]) -> str:
    """Return amounts of resources as text, like `4 cpus, 1,024 MiB memory`."""
    return ", ".join(f"{format_amount(amount)} {_UNITS.get(name, name)}" for name, amount in resources.items())


def describe_wish(request: PublicRequest) -> str:
    """Return what a request asks for, like `4 cpus · disk=ssd` or `main 2 cpus + 3 × worker 8 cpus`."""
    is_single = len(request.components) == 1
    parts = []
    for each in request.components:
        name = "" if is_single and each.name == "main" else each.name
        count = f"{each.count} ×" if each.count != 1 else ""
        amounts = describe_resources(each.resources) or ("" if name else "a slot")
        labels = " ".join(f"{key}={value}" for key, value in each.labels.items())
        parts.append(" ".join(filter(None, (count, name, amounts, labels))))
    labels = " ".join(f"{key}={value}" for key, value in request.labels.items())
    return " · ".join(filter(None, (" + ".join(parts), labels)))


def _weigh(request: PublicRequest) -> tuple[float, float, int]:
    cpus, memory, count = (0.0, 0.0, 0)
    for each in request.components:
        cpus += each.count * each.resources.get("cpus", 0.0)
        memory += each.count * each.resources.get("memory_mib", 0.0)
        count += each.count
    return cpus, memory, count


@dataclass(frozen=True)
class Column:
    """A column of the list: its title, and the value by which rows are sorted."""

    title: str
    key: Callable[[Reservation, Listing], Any]
    is_number: bool = False


COLUMNS: Final[Mapping[str, Column]] = {
    "id": Column("Id", lambda row, _: row.id),
    "phase": Column("Phase", lambda row, _: PHASES.index(row.phase)),
    "asks": Column("Asks for", lambda row, _: _weigh(row.request)),
    "time": Column("Waits or runs", lambda row, listing: find_span(row, listing.now)[1]),
    "why": Column("Why, or where", lambda row, listing: row.leases[0].slot if row.leases else listing.find_code(row)),
    "account": Column("Account", lambda row, _: row.request.account or ""),
    "place": Column("System or pool", lambda row, _: row.request.pool or row.request.system or ""),
    "priority": Column("Priority", lambda row, _: row.priority, is_number=True),
}


@dataclass(frozen=True)
class ReservationFilter:
    """The conditions of a list; a reservation must match all. `id` is the beginning of an id, `tag` and `label` are
    `KEY=VALUE`, `why` is a waiting code, and each word of `text` must occur in the names, the code or the sentence of a
    reservation.

    `sort`: a name of COLUMNS, with `-` before it for the reverse order; "": the usual order. `group`: `why`, `account`
    or `tag:KEY`; "": no groups. `after`: the number of rows before this page of the list. `faults` has a sentence for
    each part of the address that could not be used; the list is filtered by the other parts.
    """

    phase: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""
    label: str = ""
    sort: str = ""
    group: str = ""
    after: int | None = None
    faults: tuple[str, ...] = ()

    @cached_property
    def match(self) -> ReservationMatch:
        """The conditions on the fields of one reservation, without its phase."""
        return ReservationMatch(
            fields={name: self.texts[name] for name in ("account", "pool", "system") if name in self.texts},
            slot=self.texts.get("slot"),
            id_start=self.texts.get("id"),
            tags=_read_pair(self.tag),
            labels=_read_pair(self.label),
        )

    @property
    def folded(self) -> int:
        """The number of conditions without the phase and the search."""
        return sum(bool(each) for each in (*self.texts.values(), self.tag, self.label)) - ("text" in self.texts)

    @property
    def is_empty(self) -> bool:
        return not self.phase and not self.texts and not self.tag and not self.label

    def address(self, **changes: object) -> str:
        """Return the query string of a URL for this filter with `changes` (field -> new value), without the position
        `after`; "" if the filter is empty.
        """
        known: dict[str, object] = {"phase": self.phase, **self.texts, "tag": self.tag, "label": self.label}
        known |= {"sort": self.sort, "group": self.group, **changes}
        found = {name: value for name, value in known.items() if value not in {None, ""}}
        return f"?{urlencode(found)}" if found else ""

    def toggle(self, column: str) -> str:
        """Return the query string for the list that is sorted by `column`, in the reverse order if it is already."""
        return self.address(sort=f"-{column}" if self.sort == column else column)

    def direction(self, column: str) -> str | None:
        """Return how the list is sorted by `column`, as `aria-sort` names it; None: it is not."""
        return {column: "ascending", f"-{column}": "descending"}.get(self.sort)


def read_filter(query: QueryParams) -> ReservationFilter:
    """Return the filter that the query string of a URL describes. A part that cannot be used is ignored, and `faults`
    explains it.
    """
    unknown = sorted(set(query) - {"phase", "sort", "group", "after", *_PAIRS, *_TEXTS})
    faults = [f"{name}: this filter is not known" for name in unknown]

    def read(name: str, wanted: str, *, is_good: Callable[[str], object]) -> str:
        text = query.get(name, "").strip()
        if not text or is_good(text):
            return text
        faults.append(f"{name}: expected {wanted}, got {text[:80]}")
        return ""

    phase = read("phase", f"one of {', '.join(PHASE_CHOICES)}", is_good=PHASE_CHOICES.__contains__)
    tag, label = (read(name, "KEY=VALUE", is_good=lambda text: "=" in text) for name in _PAIRS)
    sort = read(
        "sort", f"a column, one of {', '.join(COLUMNS)}", is_good=lambda text: text.removeprefix("-") in COLUMNS
    )
    group = read("group", "why, account or tag:KEY", is_good=lambda text: text in GROUPS or text.startswith("tag:"))
    after = read("after", "the number of a row", is_good=_COUNT.fullmatch)
    texts = {name: text for name in _TEXTS if (text := query.get(name, "").strip())}
    return ReservationFilter(phase, texts, tag, label, sort, group, int(after) if after else None, tuple(faults))


@dataclass(frozen=True)
class Group:
    """The reservations of a list that have one value in common. `address`: the query string for the list of them all;
    None: no filter selects them. `rows`: the first ROWS_A_GROUP.
    """

    name: str
    count: int
    rows: tuple[Reservation, ...]
    address: str | None


@dataclass(frozen=True)
class ReservationPage:
    """One page of a list. `following`: the value of `after` for the next page; None: this page is the last one.
    `count`: the number of all reservations that match. `groups`: None if the list is not grouped, and then `rows` has
    the rows; `groups_left_out` counts the groups beyond MOST_GROUPS.
    """

    rows: tuple[Reservation, ...]
    following: int | None
    count: int
    groups: tuple[Group, ...] | None = None
    groups_left_out: int = 0


def list_page(
    view: FollowedView, wanted: ReservationFilter, listing: Listing, most: int = ROWS_A_PAGE
) -> ReservationPage:
    """Return up to `most` reservations that match `wanted`. The view must not change meanwhile.

    In the usual order pending reservations come in order of submission, like the queue, if the list has only these. In
    every other list active ones come before ended ones, and the newest first.
    """
    found = _find(view, wanted, listing)
    if wanted.group:
        return _group(_sort(found, wanted, listing, len(found)), wanted, listing)
    begin = wanted.after or 0
    rows = _sort(found, wanted, listing, begin + most)[begin : begin + most]
    return ReservationPage(tuple(rows), begin + most if begin + most < len(found) else None, len(found))


def _sort(rows: list[Reservation], wanted: ReservationFilter, listing: Listing, most: int) -> list[Reservation]:
    # Speed: no sort of all rows and a key in C, since most lists show 50 of thousands of rows.
    take, sequence = nsmallest if wanted.phase == "pending" else nlargest, attrgetter("sequence")
    count = len(rows) if wanted.sort else most
    found = take(count, [row for row in rows if row.phase not in ENDED], key=sequence)
    if len(found) < count:
        found += nlargest(count - len(found), [row for row in rows if row.phase in ENDED], key=sequence)
    if wanted.sort:
        key = COLUMNS[wanted.sort.removeprefix("-")].key
        # A sort is stable: rows with the same value stay in the usual order.
        found.sort(key=lambda row: key(row, listing), reverse=wanted.sort.startswith("-"))
    return found[:most]


def _group(rows: list[Reservation], wanted: ReservationFilter, listing: Listing) -> ReservationPage:
    groups: dict[str, list[Reservation]] = {}
    tag = wanted.group.removeprefix("tag:")
    for row in rows:
        match wanted.group:
            case "why":
                value = listing.find_code(row)
            case "account":
                value = row.request.account or ""
            case _:
                value = row.request.tags.get(tag, "")
        groups.setdefault(value, []).append(row)
    largest = sorted(groups.items(), key=lambda item: (-len(item[1]), item[0]))
    found = (
        Group(name, len(each), tuple(each[:ROWS_A_GROUP]), _address_group(wanted, name, each[0], tag))
        for name, each in largest[:MOST_GROUPS]
    )
    return ReservationPage((), None, len(rows), tuple(found), max(0, len(largest) - MOST_GROUPS))


def _address_group(wanted: ReservationFilter, name: str, first: Reservation, tag: str) -> str | None:
    if not name:
        return None
    if wanted.group == "why":
        return wanted.address(group="", **({"why": name} if first.phase == "pending" else {"phase": name}))
    return wanted.address(group="", **({"account": name} if wanted.group == "account" else {"tag": f"{tag}={name}"}))


def _find(view: FollowedView, wanted: ReservationFilter, listing: Listing) -> list[Reservation]:
    phases = list_phases(wanted.phase or None)
    rows: list[Reservation] = []
    for phase, known in view.by_phase.items():
        if phases is None or phase in phases:
            rows += known.values()
    rows += [row for row in view.ended.values() if phases is None or row.phase in phases]
    if why := wanted.texts.get("why"):
        rows = [row for row in rows if row.phase == "pending" and listing.find_code(row) == why]
    if not wanted.match.is_empty:
        rows = [row for row in rows if wanted.match.matches(row)]
    if words := wanted.texts.get("text", "").lower().split():
        rows = _search(rows, words, listing)
        if len(listing.texts) > 2 * (len(view.reservations) + len(view.ended)):
            listing.texts.forget({*view.reservations, *view.ended})
    return rows


def _search(rows: Iterable[Reservation], words: Sequence[str], listing: Listing) -> list[Reservation]:
    waits, find = listing.waits, listing.texts.find
    # Many reservations share one code and sentence. JSON makes lists of the pairs.
    missing: dict[str, list[str]] = {}
    found = []
    for row in rows:
        reason = " ".join(waits.get(row.id, ())) if row.phase == "pending" else ""
        if reason not in missing:
            missing[reason] = [word for word in words if word not in reason.lower()]
        text = find(row)
        for word in missing[reason]:
            if word not in text:
                break
        else:
            found.append(row)
    return found


def complete(view: FollowedView, waits: Mapping[str, Wait], name: str, text: str) -> list[str]:
    """Return up to MOST_NAMES values of the filter `name` (of COMPLETED) that contain `text`, those that begin with it
    first. The view must not change meanwhile.
    """
    wanted = text.strip().lower()
    found = {each for each in _list_values(view, waits, name) if wanted in each.lower()}
    return nsmallest(MOST_NAMES, found, key=lambda each: (not each.lower().startswith(wanted), each))


def _list_values(view: FollowedView, waits: Mapping[str, Wait], name: str) -> Iterable[str]:
    requests = [row.request for row in (*view.reservations.values(), *view.ended.values())]
    match name:
        case "slot":
            return view.slots
        case "why":
            return {code for code, _ in waits.values()}
        case "tag":
            return {f"{key}={value}" for each in requests for key, value in each.tags.items()}
        case "label":
            return {f"{key}={value}" for each in requests for key, value in each.labels.items()}
        case "account":
            return {*view.accounts, *(each.account for each in requests if each.account)}
        case "pool":
            return {*view.pools, *(each.pool for each in requests if each.pool)}
    return {each.system for each in requests if each.system}


def _read_pair(text: str) -> dict[str, str]:
    key, _, value = text.partition("=")
    return {key: value} if text else {}
