"""The changes of the instances of a held lease: an instance was granted, must be given back, has ended, or may use
another number of CPUs.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from leasehold.client.display import Shown
from leasehold.client.models import Placement


class Change(Shown, frozen=True, kw_only=True):
    """One change of one instance of a lease. `kind` is one of four words: `granted` (an elastic instance was added),
    `revoking` (an elastic instance must be surrendered by `deadline`), `revoked` (an elastic instance has ended),
    `cores` (an instance of any component has a new number of CPUs).
    """

    kind: Literal["granted", "revoking", "revoked", "cores"]
    placement: Placement

    @property
    def component(self) -> str:
        """The name of the component instance whose lease changed, such as `worker.2`."""
        return self.placement.component

    @property
    def deadline(self) -> float | None:
        """Time at which the lease of the instance ends, in seconds since the epoch; None if it is not being revoked."""
        return self.placement.revoke_by

    @property
    def cores(self) -> float | None:
        """The number of CPUs of its slot that the instance may use from now on."""
        return self.placement.usable_cores

    def _line(self) -> str:
        return str(self)

    def __str__(self) -> str:
        event = self.kind if self.kind != "cores" else f"may use {self.cores:g} cores"
        return f"{self.component} on {self.placement.slot} {event}"


class Changes:
    """The record of all changes of one lease so far. Each reader gets all changes, beginning with the first.
    Thread-safe.
    """

    def __init__(self) -> None:
        self._held: dict[tuple[str, int], Placement] = {}
        """The elastic instances that the lease had at the last `take`: (component, token) -> lease. An instance that is
        granted again has another token.
        """
        self._cores: dict[tuple[str, int], float | None] = {}
        """(component, token) -> number of usable CPUs that was last recorded for the instance."""
        self._changes: list[Change] = []
        self._is_over = False
        self._news = threading.Condition()

    def take(self, placements: Sequence[Placement]) -> None:
        """Compare the present instances of the lease with those of the last call, and record the differences. No change
        is recorded twice.
        """
        present = {(each.component, each.token): each for each in placements if each.kind == "elastic"}
        with self._news:
            known, self._held = self._held, present
            self._changes += [
                Change(kind="revoked", placement=each) for key, each in known.items() if key not in present
            ]
            for key, placement in present.items():
                if key not in known:
                    self._changes.append(Change(kind="granted", placement=placement))
                if placement.state == "revoking" and (key not in known or known[key].revoke_by != placement.revoke_by):
                    self._changes.append(Change(kind="revoking", placement=placement))
            # For a new instance, a change of its CPUs is recorded if they are not those that it requested.
            cores, self._cores = self._cores, {(each.component, each.token): each.usable_cores for each in placements}
            self._changes += [
                Change(kind="cores", placement=each)
                for each in placements
                if cores.get((each.component, each.token), each.resources.get("cpus")) != each.usable_cores
            ]
            self._news.notify_all()

    def end(self) -> None:
        """Record that there will be no more changes. Readers then get the remaining changes and end."""
        with self._news:
            self._is_over = True
            self._news.notify_all()

    def since(self, number: int) -> tuple[list[Change], bool]:
        """Return the recorded changes after the first `number` ones, and whether no further change will follow."""
        with self._news:
            return self._changes[number:], self._is_over

    def read(self, seconds_left: Callable[[], float | None]) -> Iterator[Change]:
        """Yield all changes of the lease in order, as they arrive. End when the lease ends, or when the function
        `seconds_left` returns 0 (None: no limit).
        """
        number = 0
        while True:
            with self._news:
                while number == len(self._changes) and not self._is_over:
                    left = seconds_left()
                    if left is not None and left <= 0:
                        return
                    self._news.wait(left)
                if number == len(self._changes):
                    return
                change = self._changes[number]
            number += 1
            yield change
