"""The reasons of one cycle for which reservations wait."""

from collections.abc import Iterable, Sequence
from itertools import compress

from scheduler.model.decisions import WAITING_CODES
from scheduler.model.waits import Reason, Waits

_RANK_OF_CODE = {code: rank for rank, code in enumerate(WAITING_CODES)}


class WaitReasons:
    """Why each reservation waits. If it has several waiting codes, the first one in WAITING_CODES is reported."""

    def __init__(self) -> None:
        self._known: dict[str, Reason] = {}
        self._ordered: tuple[Sequence[str], Iterable[Reason]] = ((), ())
        """The ids and reasons of `add_in_order`, as long as no other reason was added.

        Speed: in most cycles with many waiting reservations these are all reasons, and `list` needs no look-up for any
        reservation.
        """

    def _open(self) -> dict[str, Reason]:
        ids, reasons = self._ordered
        if ids:
            self._known = dict(zip(ids, reasons, strict=True))
            self._ordered = ((), ())
        return self._known

    def find(self, name: str) -> Reason | None:
        """Return why the reservation `name` waits; None if no reason was added."""
        return self._open().get(name)

    def add(self, name: str, code: str, detail: str) -> None:
        """Add a reason of the reservation `name`."""
        reasons = self._open()
        known = reasons.get(name)
        if known is None or _RANK_OF_CODE[code] <= _RANK_OF_CODE[known[0]]:
            reasons[name] = (code, detail)

    def add_all(self, ids: Sequence[str], reasons: Iterable[Reason]) -> None:
        """Add a reason for each of many reservations: `reasons` has one for each of `ids`, or more."""
        if not ids:
            return
        known = self._open()
        if not known or known.keys().isdisjoint(ids):
            known.update(zip(ids, reasons, strict=False))
        else:
            for name, reason in zip(ids, reasons, strict=False):
                self.add(name, *reason)

    def add_in_order(self, ids: Sequence[str], reasons: Sequence[Reason]) -> None:
        """Add reasons as `add_all` does. `ids` is in the order of the queue."""
        if not self._open():
            self._ordered = (ids, reasons)
        else:
            self.add_all(ids, reasons)

    def list(self, ids: Sequence[str], *, are_all_in: bool) -> Waits:
        """Return the waiting reservations among `ids`, in that order, each with its reason.

        `are_all_in`: whether the ids of `add_in_order` are part of `ids` and in the same order.
        """
        if are_all_in and self._ordered[0]:
            return Waits(*self._ordered)
        known = self._open()
        reasons = list(map(known.get, ids)) if known else []
        return Waits(compress(ids, reasons), filter(None, reasons))
