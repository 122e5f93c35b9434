"""Completion of shells with live ids: read from the view within a moment. Without a stack there are none, silently."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from leasehold.client.discovery import Address

SECONDS: Final = 0.6
"""How long a completion may look for ids."""
CONNECT_SECONDS: Final = 0.3
MOST: Final = 200
PHASES: Final = ("pending", "leased", "revoking", "released", "cancelled", "expired", "failed")
SLOT_STATES: Final = ("empty", "launching", "booting", "binding", "ready", "draining", "terminating", "error")
_HELD: Final = frozenset({"leased", "revoking"})
_ROWS_A_CALL: Final = 1000
_LIVE: Final = frozenset({"pending", *_HELD})
Found = list[tuple[str, str]]
"""Values, each with a word about it, which some shells show."""
Row = dict[str, Any]
Read = Callable[[str, Row], tuple[str, str] | None]
"""(id, row) -> what is offered for it, and a word about that; None: nothing."""


def complete_reservations(incomplete: str) -> Found:
    """Every reservation of the view, with its phase."""
    return _find("reservations", incomplete, lambda name, row: (name, row["phase"]))


def complete_live_reservations(incomplete: str) -> Found:
    """Those that have not ended."""
    return _find("reservations", incomplete, lambda name, row: _in(_LIVE, name, row))


def complete_held_reservations(incomplete: str) -> Found:
    """Those that hold a lease."""
    return _find("reservations", incomplete, lambda name, row: _in(_HELD, name, row))


def complete_slots(incomplete: str) -> Found:
    """Every slot of the view, with its state."""
    return _find("slots", incomplete, lambda name, row: (name, row.get("state", "empty")))


def complete_accounts(incomplete: str) -> Found:
    """The quota accounts, with their descriptions."""
    return _find("accounts", incomplete, _describe_account)


def complete_pools(incomplete: str) -> Found:
    """The pools of the slots of the view."""
    return [each for each in _find("slots", "", lambda _, row: (row["pool"], "")) if each[0].startswith(incomplete)]


def complete_phases(incomplete: str) -> list[str]:
    """Phases of reservations, and `ended` for any end."""
    return _starting(incomplete, (*PHASES, "ended"))


def complete_states(incomplete: str) -> list[str]:
    """States of slots."""
    return _starting(incomplete, SLOT_STATES)


def complete_formats(incomplete: str) -> list[str]:
    """What --output may name."""
    return _starting(incomplete, ("table", "wide", "json", "yaml", "csv"))


def _starting(incomplete: str, words: tuple[str, ...]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def _in(phases: frozenset[str], name: str, row: Row) -> tuple[str, str] | None:
    return (name, row["phase"]) if row["phase"] in phases else None


def _describe_account(name: str, row: Row) -> tuple[str, str] | None:
    return None if row.get("forgotten") else (name, row.get("description", ""))


def _find(table: str, incomplete: str, read: Read) -> Found:
    """What is found until time is over; a connection that hangs is left behind. Imports do not count."""
    from leasehold.client.discovery import find_address
    from leasehold.errors import NoStack, UntrustedFolder

    try:
        address = find_address()
    except (NoStack, UntrustedFolder):
        return []
    import leasehold.client.view_reader  # noqa: F401 - half of a second's work, for `_scan`

    found: dict[str, str] = {}
    looking = threading.Thread(target=_collect, args=(found, read, _scan(address, table, incomplete)), daemon=True)
    looking.start()
    looking.join(SECONDS)
    return sorted(found.copy().items())


def _collect(found: dict[str, str], read: Read, rows: Iterator[tuple[str, Row]]) -> None:
    """Whatever goes wrong, a shell that completes a word prints nothing about it."""
    with contextlib.suppress(Exception):
        for name, row in rows:
            about = read(name, row)
            if about is not None:
                found[about[0]] = about[1]
            if len(found) >= MOST:
                return


def _scan(address: "Address", table: str, incomplete: str) -> Iterator[tuple[str, Row]]:
    """The rows of one table of the view whose ids start so. Raises what Redis raises."""
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from leasehold.client.view_reader import ViewKeys

    client = redis.Redis.from_url(
        address.view_url,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=CONNECT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    # Letters that mean something in a pattern stand for themselves here.
    pattern = "".join(f"\\{letter}" if letter in "\\*?[]^" else letter for letter in incomplete) + "*"
    for name, body in client.hscan_iter(getattr(ViewKeys(address.prefix), table), match=pattern, count=_ROWS_A_CALL):
        yield name.decode(), json.loads(body)
