"""Shell completion with the ids of reservations, slots and accounts in the view (the copy of the state in Redis).
Without a running stack it offers nothing and prints no error.
"""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from leasehold.cli.output import starting
from scheduler.protocol.states import PHASES, SLOT_STATES

if TYPE_CHECKING:
    from leasehold.client.discovery import Address
    from leasehold.client.rules import RulesInForce

SECONDS: Final = 0.6
"""Time limit of one shell completion, in seconds."""
CONNECT_SECONDS: Final = 0.3
MOST: Final = 200
MOST_VERSIONS: Final = 100
_HELD: Final = frozenset({"leased", "revoking"})
_LIVE: Final = frozenset({"pending", *_HELD})
Found = list[tuple[str, str]]
"""Offers of a shell completion: pairs of a value and a description, which some shells show."""
Row = dict[str, Any]
Read = Callable[[str, Row], tuple[str, str] | None]
"""A function that gets the id and the row of an entry in Redis. It returns (the value that a shell completion offers, a
description of the value), or None if the entry is not offered.
"""


def complete_reservations(incomplete: str) -> Found:
    return _find("reservations", incomplete, lambda name, row: (name, row["phase"]))


def complete_live_reservations(incomplete: str) -> Found:
    return _find("reservations", incomplete, lambda name, row: _offer_if(_LIVE, name, row))


def complete_held_reservations(incomplete: str) -> Found:
    return _find("reservations", incomplete, lambda name, row: _offer_if(_HELD, name, row))


def complete_slots(incomplete: str) -> Found:
    return _find("slots", incomplete, lambda name, row: (name, row.get("state", "empty")))


def complete_accounts(incomplete: str) -> Found:
    return _find(
        "accounts",
        incomplete,
        lambda name, row: None if row.get("forgotten") else (name, row.get("description", "")),
    )


def complete_pools(incomplete: str) -> Found:
    return [each for each in _find("slots", "", lambda _, row: (row["pool"], "")) if each[0].startswith(incomplete)]


def complete_phases(incomplete: str) -> list[str]:
    """Complete a phase of reservations in a shell: offer the matching phases, and `ended` for any end."""
    return starting((*PHASES, "ended"), incomplete)


def complete_states(incomplete: str) -> list[str]:
    return starting(SLOT_STATES, incomplete)


def complete_systems(incomplete: str) -> list[str]:
    """Complete a system of the rules in force in a shell. A worker is asked: Redis does not have the rules."""
    rules = _ask_rules()
    pools = {} if rules is None else rules.document.get("pools", {})
    return starting(sorted({pool["system"] for pool in pools.values() if "system" in pool}), incomplete)


def complete_versions(incomplete: str) -> Found:
    """Complete the number of a version of the rules in a shell: offer the newest ones, each with its source."""
    found = [(str(each.version), each.source or "") for each in reversed(getattr(_ask_rules(), "history", ()))]
    return [each for each in found if each[0].startswith(incomplete)]


def complete_processes(incomplete: str) -> list[str]:
    from leasehold.liveness import PROCESSES

    return starting(PROCESSES, incomplete)


def complete_logs(incomplete: str) -> list[str]:
    from leasehold.cli.connecting import find_log_folder
    from leasehold.cli.output import CommandError
    from leasehold.errors import UntrustedFolder
    from leasehold.stack.process_logs import list_logs

    with contextlib.suppress(CommandError, UntrustedFolder, OSError):
        return starting(list_logs(find_log_folder()), incomplete)
    return []


def complete_events(incomplete: str) -> list[str]:
    from scheduler.model.events import EVENT_NAMES

    return starting(EVENT_NAMES, incomplete)


def _offer_if(phases: frozenset[str], name: str, row: Row) -> tuple[str, str] | None:
    return (name, row["phase"]) if row["phase"] in phases else None


def _ask_rules() -> "RulesInForce | None":
    """Return the rules in force with their newest versions, as a worker answers within SECONDS; else None."""
    # The import takes long, so it is made before the time limit of the thread begins.
    from leasehold.client.client import Client

    found: list[RulesInForce] = []

    def ask() -> None:
        # An error would garble the input line of the shell.
        with contextlib.suppress(Exception), Client(timeout=SECONDS) as client:
            found.append(client.rules(MOST_VERSIONS))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(SECONDS)
    return found[0] if found else None


def _find(table: str, incomplete: str, read: Read) -> Found:
    """Return the offers of a shell completion from `table` of the view in Redis, for example `slots`. `read` makes an
    offer from a row. A thread reads the rows; after SECONDS, the offers that the thread has found until then are
    returned.
    """
    from leasehold.client.discovery import find_address
    from leasehold.errors import NoStack, UntrustedFolder

    try:
        address = find_address()
    except (NoStack, UntrustedFolder):
        return []
    # The import takes long, so it is made before the time limit of the thread begins.
    import leasehold.client.redis.reader  # noqa: F401 - see above

    found: dict[str, str] = {}
    looking = threading.Thread(target=_collect, args=(found, read, _scan(address, table, incomplete)), daemon=True)
    looking.start()
    looking.join(SECONDS)
    return sorted(found.copy().items())


def _collect(found: dict[str, str], read: Read, rows: Iterator[tuple[str, Row]]) -> None:
    """Call `read` with each entry of `rows`, and store the returned offers in `found` (value -> description), at most
    MOST of them.

    Errors are ignored, because their message would garble the input line of the shell.
    """
    with contextlib.suppress(Exception):
        for name, row in rows:
            about = read(name, row)
            if about is not None:
                found[about[0]] = about[1]
            if len(found) >= MOST:
                return


def _scan(address: "Address", table: str, incomplete: str) -> Iterator[tuple[str, Row]]:
    """Yield id and row of each entry in one table of the view in Redis, if the id begins with `incomplete`. Raises
    RedisError if Redis cannot be read.
    """
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    from scheduler.protocol.names import RedisNames

    client = redis.Redis.from_url(
        address.view_url,
        socket_connect_timeout=CONNECT_SECONDS,
        socket_timeout=CONNECT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    # Escape the letters that have a meaning in a Redis pattern.
    pattern = "".join(f"\\{letter}" if letter in "\\*?[]^" else letter for letter in incomplete) + "*"
    for name, body in client.hscan_iter(RedisNames(address.prefix).rows(table), match=pattern, count=1000):
        yield name.decode(), json.loads(body)
