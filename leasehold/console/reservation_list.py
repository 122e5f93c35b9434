"""The list of reservations as a page shows it: filters from the address, and one page of rows from the feed's view.

Filters come from people who edit addresses, so a wrong one is a message beside the list and no error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from heapq import nsmallest
from typing import Final
from urllib.parse import urlencode

from starlette.datastructures import QueryParams

from leasehold.client.models import list_phases
from leasehold.web.followed_view import FollowedView
from leasehold.web.reservation_match import ReservationMatch
from scheduler.model.reservations import Reservation
from scheduler.model.transitions import PHASES

ROWS_A_PAGE: Final = 50
MOST_SELECTED: Final = 1000
"""The most reservations that one bulk change may concern."""
PHASE_CHOICES: Final = (*PHASES, "ended")
_TEXTS: Final = ("account", "pool", "system", "slot", "id")


@dataclass(frozen=True)
class ReservationFilter:
    """The conditions of a list; a reservation must match all. `id` is the beginning of an id, `tag` and `label` are
    `KEY=VALUE`.

    `after` is the position of the last row of the page before. `faults` has a sentence for each part of the address
    that could not be used; the list is filtered by the other parts.
    """

    phase: str = ""
    texts: Mapping[str, str] = field(default_factory=dict)
    tag: str = ""
    label: str = ""
    after: int | None = None
    faults: tuple[str, ...] = ()

    @cached_property
    def match(self) -> ReservationMatch:
        """The conditions of this filter on one reservation, except those on its phase and its position in the list."""
        return ReservationMatch(
            fields={name: value for name, value in self.texts.items() if name not in {"id", "slot"}},
            slot=self.texts.get("slot"),
            id_start=self.texts.get("id"),
            tags=_read_pair(self.tag),
            labels=_read_pair(self.label),
        )

    def address(self, **changes: object) -> str:
        """Return the query string of a URL for this filter with `changes` (field -> new value), without the position
        `after`; "" if the filter is empty.
        """
        known = {"phase": self.phase, **self.texts, "tag": self.tag, "label": self.label, **changes}
        found = {name: value for name, value in known.items() if value not in {None, ""}}
        return f"?{urlencode(found)}" if found else ""


def read_filter(query: QueryParams) -> ReservationFilter:
    """Return the filter that the query string of a URL describes. A part that cannot be used is ignored, and `faults`
    explains it.
    """
    unknown = sorted(set(query) - {"phase", "tag", "label", "after", *_TEXTS})
    faults = [f"{name}: this filter is not known" for name in unknown]
    phase = query.get("phase", "")
    if phase and phase not in PHASE_CHOICES:
        faults.append(f"phase: expected one of {', '.join(PHASE_CHOICES)}, got {phase[:80]}")
        phase = ""
    pairs = {}
    for name in ("tag", "label"):
        pairs[name] = query.get(name, "")
        if pairs[name] and "=" not in pairs[name]:
            faults.append(f"{name}: expected KEY=VALUE, got {pairs[name][:80]}")
            pairs[name] = ""
    after = query.get("after", "")
    if after and not (after.isascii() and after.isdigit() and len(after) <= 18):  # noqa: PLR2004 - a row's number
        faults.append(f"after: expected the number of a row, got {after[:80]}")
        after = ""
    texts = {name: query[name] for name in _TEXTS if query.get(name)}
    return ReservationFilter(phase, texts, pairs["tag"], pairs["label"], int(after) if after else None, tuple(faults))


@dataclass(frozen=True)
class ReservationPage:
    """One page of a list. `following`: the value of `after` for the next page; None: this page is the last one."""

    rows: tuple[Reservation, ...]
    following: int | None


def list_page(view: FollowedView, wanted: ReservationFilter, most: int = ROWS_A_PAGE) -> ReservationPage:
    """Return up to `most` reservations that match `wanted`. The view must not change meanwhile.

    Pending reservations come in order of submission, like the queue. In every other list the newest come first.
    """
    is_oldest_first = wanted.phase == "pending"
    sign = 1 if is_oldest_first else -1
    found = _find(view, wanted)
    if wanted.after is not None:
        found = [row for row in found if sign * row.sequence > sign * wanted.after]
    rows = nsmallest(most + 1, found, key=lambda row: sign * row.sequence)
    return ReservationPage(tuple(rows[:most]), rows[most - 1].sequence if len(rows) > most else None)


def _find(view: FollowedView, wanted: ReservationFilter) -> Iterable[Reservation]:
    phases = list_phases(wanted.phase or None)
    rows: list[Reservation] = []
    for phase, known in view.by_phase.items():
        if phases is None or phase in phases:
            rows += known.values()
    rows += [row for row in view.ended.values() if phases is None or row.phase in phases]
    return rows if wanted.match.is_empty else [row for row in rows if wanted.match.matches(row)]


def _read_pair(text: str) -> dict[str, str]:
    key, _, value = text.partition("=")
    return {key: value} if text else {}
