"""Limit the cores of the leases on a host: find the processes of each lease, and limit them to the cores that the
scheduler decided.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from leasehold.agent.cpu_limits import Limits
from leasehold.agent.processes import list_tree, read_notes
from leasehold.client.models import Hosted

UNKNOWN_SECONDS: Final = 10.0
"""Seconds after which the agent reports a lease as unlimited because none of its processes is known."""
Key = tuple[str, str, int]
"""Identity of a lease: (reservation, component, fencing token)."""


class Enforcer:
    """Limits the processes of each lease on one host to the number of cores that the lease has. `report` is called once
    each time the limit of a lease changes, and once for each failure to set a limit.
    """

    def __init__(
        self,
        folder: Path,
        limits: Limits | None,
        report: Callable[[Mapping[str, Any]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Make the enforcer of one host. `folder` has the notes in which `leasehold host exec` records the processes of
        each lease. `limits`: the way in which the cores are limited; None: this system cannot limit cores.
        """
        self._folder, self._limits, self._report, self._clock = folder, limits, report, clock
        self._applied: dict[Key, tuple[tuple[int, ...], float, float]] = {}
        """Lease -> the limit that was applied, as (1) the known processes of the lease, (2) its number of cores, (3)
        the sum of the cores of the leases before it, which decides which cores the lease gets.
        """
        self._seen: dict[Key, float] = {}
        self._reported: dict[Key, object] = {}

    def start(self) -> None:
        """Report in which way this host limits the cores of leases: the name of `limits`, or "nothing"."""
        self._report({"event": "limits", "by": "nothing" if self._limits is None else self._limits.name})

    def enforce(self, held: Sequence[Hosted], *, is_thorough: bool = False) -> None:
        """Limit the leases `held` that are new or whose number of cores changed, and remove the limits of leases that
        have ended.

        `is_thorough`: apply the limit of every lease again, because a process that was started during an earlier change
        may have no limit.
        """
        notes, before = read_notes(self._folder), 0.0
        present = {(each.reservation, each.component, each.token): each for each in held if each.cores is not None}
        for key in [key for key in self._applied if key not in present]:
            self._lift(key)
        for key, lease in sorted(present.items(), key=lambda each: (each[1].assigned_at, each[0])):
            roots = tuple(note.pid for note in notes if (note.reservation, note.component) == key[:2])
            wanted = (roots, lease.cores or 0.0, before)
            before += lease.cores or 0.0
            if not roots:
                if self._clock() - self._seen.setdefault(key, self._clock()) >= UNKNOWN_SECONDS:
                    why = "no process of this lease is known here: start its processes with `leasehold host exec`"
                    self._report_once(key, "unlimited", why=why)
            elif is_thorough or self._applied.get(key) != wanted:
                self._apply(key, *wanted)
        self._seen = {key: at for key, at in self._seen.items() if key in present}
        self._reported = {key: last for key, last in self._reported.items() if key in present}

    def lift_all(self) -> None:
        """Remove the limits of cores of all leases on this host."""
        for key in list(self._applied):
            self._lift(key)

    def _apply(self, key: Key, roots: tuple[int, ...], cores: float, before: float) -> None:
        if self._limits is None:
            self._report_once(key, "unlimited", why="this system has neither cgroups nor affinity")
            return
        try:
            self._limits.apply(_name(key), list_tree(roots), cores, before)
        except OSError as error:
            self._report_once(key, "unlimited", why=f"the system refused the limit by {self._limits.name}: {error}")
            return
        self._applied[key] = (roots, cores, before)
        self._report_once(key, "limited", cores=cores, by=self._limits.name)

    def _lift(self, key: Key) -> None:
        roots, _, _ = self._applied.pop(key)
        if self._limits is None:
            return
        try:
            self._limits.lift(_name(key), list_tree(roots))
        except OSError as error:
            self._report({"event": "unlifted", "reservation": key[0], "component": key[1], "why": str(error)})

    def _report_once(self, key: Key, event: str, **detail: object) -> None:
        if self._reported.get(key) != (event, detail):
            self._reported[key] = (event, detail)
            self._report({"event": event, "reservation": key[0], "component": key[1], **detail})


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}/{key[2]}"
