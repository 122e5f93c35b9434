"""What becomes of the parts of a lease while it is held: granted, to be given back, gone, with more or fewer cores."""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from leasehold.client.display import Shown
from leasehold.client.models import Placement


class Change(Shown, frozen=True, kw_only=True):
    """One elastic instance was `granted`, is `revoking` (surrender it by `deadline`), or was `revoked`: it is gone.
    Or the `cores` changed that an instance, essential or elastic, may use.
    """

    kind: Literal["granted", "revoking", "revoked", "cores"]
    placement: Placement

    @property
    def component(self) -> str:
        """The name of the instance."""
        return self.placement.component

    @property
    def deadline(self) -> float | None:
        """When it is taken at the latest, in seconds since the epoch; None while it is not being revoked."""
        return self.placement.revoke_by

    @property
    def cores(self) -> float | None:
        """The cpus of its slot that it may use from then on."""
        return self.placement.usable_cores

    def _line(self) -> str:
        return str(self)

    def __str__(self) -> str:
        told = self.kind if self.kind != "cores" else f"may use {self.cores:g} cores"
        return f"{self.component} on {self.placement.slot} {told}"


class Changes:
    """All changes of one lease so far. Each reader gets all of them from the beginning, in any thread."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], Placement] = {}
        """Under (component, token): an instance that is granted again is another one."""
        self._cores: dict[tuple[str, int], float | None] = {}
        """The same for all instances: what they may use, as it was reported last."""
        self._told: list[Change] = []
        self._is_over = False
        self._news = threading.Condition()

    def take(self, placements: Sequence[Placement]) -> None:
        """Take over what is held now; no change is reported twice."""
        present = {(each.component, each.token): each for each in placements if each.kind == "elastic"}
        with self._news:
            known, self._held = self._held, present
            self._told += [Change(kind="revoked", placement=each) for key, each in known.items() if key not in present]
            for key, placement in present.items():
                if key not in known:
                    self._told.append(Change(kind="granted", placement=placement))
                if placement.state == "revoking" and (key not in known or known[key].state != "revoking"):
                    self._told.append(Change(kind="revoking", placement=placement))
            self._take_cores(placements)
            self._news.notify_all()

    def _take_cores(self, placements: Sequence[Placement]) -> None:
        """Each instance starts at its own cpus."""
        known, self._cores = self._cores, {(each.component, each.token): each.usable_cores for each in placements}
        for each in placements:
            if known.get((each.component, each.token), each.resources.get("cpus")) != each.usable_cores:
                self._told.append(Change(kind="cores", placement=each))

    def end(self) -> None:
        """No more changes follow: readers get the rest, and end."""
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def since(self, number: int) -> tuple[list[Change], bool]:
        """The changes after the first `number`, and whether no more will come."""
        with self._news:
            return self._told[number:], self._is_over

    def read(self, seconds_left: Callable[[], float | None]) -> Iterator[Change]:
        """Everything in its order, as it comes, until the end or until no time is left (None: there is no limit)."""
        number = 0
        while True:
            with self._news:
                while number == len(self._told) and not self._is_over:
                    left = seconds_left()
                    if left is not None and left <= 0:
                        return
                    self._news.wait(left)
                if number == len(self._told):
                    return
                change = self._told[number]
            number += 1
            yield change
