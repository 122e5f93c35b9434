"""`cordon --wait` and `drain --wait`: until the slots hold no lease any more, or are gone. Orchard's `pause --wait`."""

import math
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from leasehold.cli.failures import INTERRUPTED, CommandError
from leasehold.cli.output import show_seconds
from leasehold.common.visible import make_visible

if TYPE_CHECKING:
    from leasehold.client.client import Client
    from leasehold.client.models import Slot

Wait = Annotated[
    float | None,
    typer.Option(metavar="[SECONDS]", help="Wait until nothing is held there: so long, or without an end.", min=0),
]
Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", help="Wait at most so long; means --wait.", min=0)]
NO_END: Final = str(math.inf)
_LOOK_SECONDS: Final = 0.2
_MOST_NAMED: Final = 5


class WaitingCommand(TyperCommand):
    """A command whose `--wait` may stand without its number: then there is no end to the wait."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """See its base: options and arguments are read here."""
        return super().parse_args(
            ctx, [each for place, word in enumerate(args) for each in _complete(args, place, word)]
        )


def _complete(args: list[str], place: int, word: str) -> list[str]:
    """A `--wait` gets its number, unless what follows is one, or can only be meant as one: no slot was named yet."""
    following = args[place + 1 : place + 2]
    is_named = any(not each.startswith("-") for each in args[:place])
    has_value = bool(following) and not following[0].startswith("-") and (is_named or _is_number(following[0]))
    return [word, NO_END] if word == "--wait" and not has_value else [word]


def _is_number(word: str) -> bool:
    try:
        return not math.isnan(float(word))
    except ValueError:
        return False


def find_patience(wait: float | None, timeout: float | None) -> float | None:
    """For how many seconds to wait at most; None: not at all. The shorter one of two that are given."""
    given = [each for each in (wait, timeout) if each is not None]
    return min(given) if given else None


@contextmanager
def said_on_interrupt(what_stays: str, slots: list[str]) -> Iterator[None]:
    """Ctrl-C ends the command with status 130 and says what it leaves as it is: the slots that are in the list then."""
    try:
        yield
    except KeyboardInterrupt:
        kept = f"{' '.join(slots)} {what_stays}" if slots else "nothing was changed, as far as is known"
        raise CommandError(f"interrupted: {kept}", INTERRUPTED) from None


def await_free(client: "Client", names: list[str], seconds: float) -> None:
    """Return when none of these slots holds a lease. Raises CommandError when some do after so many seconds."""
    _await(_Leases(client, set(names)).describe, seconds, late="not free")


def await_gone(client: "Client", names: list[str], machines: dict[str, int], seconds: float) -> None:
    """Return when the machines that these slots had (by epoch) are gone. Raises as `await_free` does."""
    leases = _Leases(client, set(names))

    def describe() -> str:
        held = leases.describe()
        return held or _describe_present(map(client.slot, names), machines)

    _await(describe, seconds, late="not drained")


def _describe_present(slots: Iterable["Slot | None"], machines: dict[str, int]) -> str:
    present = [
        slot
        for slot in slots
        if slot is not None and slot.state not in {"empty", "error"} and slot.epoch == machines.get(slot.id)
    ]
    return ", ".join(f"{slot.id} is {slot.state}" for slot in present)


class _Leases:
    """Who holds what on some slots. All reservations are looked through once at the start and once at the end; in
    between only those that were found.
    """

    def __init__(self, client: "Client", names: set[str]) -> None:
        self._client, self._names = client, names
        self._holders: dict[str, list[str]] = {}

    def describe(self) -> str:
        """What is still held, in words; "" = nothing."""
        known = {id_ for ids in self._holders.values() for id_ in ids}
        self._sort(row for id_ in sorted(known) if (row := self._client.get(id_)) is not None)
        if not self._holders:
            self._sort(self._client.list(["leased", "revoking"]))
        return ", ".join(f"{slot} holds {_name(ids)}" for slot, ids in sorted(self._holders.items()))

    def _sort(self, rows: Iterable[Any]) -> None:
        self._holders = {}
        for row in rows:
            for slot in {lease.slot for lease in row.leases} & self._names:
                self._holders.setdefault(slot, []).append(row.id)


def _name(ids: list[str]) -> str:
    more = f" and {len(ids) - _MOST_NAMED} more" if len(ids) > _MOST_NAMED else ""
    return " ".join(ids[:_MOST_NAMED]) + more


def _await(describe: Callable[[], str], seconds: float, *, late: str) -> None:
    began = time.monotonic()
    try:
        while left := describe():
            waited = time.monotonic() - began
            if waited >= seconds:
                raise CommandError(f"{late} after {seconds:g} s: {left}")
            show_progress(f"{left} ({show_seconds(waited)})")
            # The view tells nobody of its changes: it is read again.
            time.sleep(min(_LOOK_SECONDS, seconds - waited))
    finally:
        show_progress("")


def show_progress(line: str) -> None:
    """One line that is written over, on a terminal only; what is wider than the terminal is cut off."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{make_visible(line)[: shutil.get_terminal_size().columns - 1]}")
        sys.stderr.flush()
