"""How long work of one class has run, and how long other work of the class is expected to run.

A class is the work of one account and principal with the same job name (tag `job`, else `name`), system and size. Each
class has parents, which know more run times but less similar ones: without the size, without the job and system, all
work of the size, and all work. The most similar class that can answer is asked. A class answers if it has at least
LEAST run times, and if one of them is longer than the work has run.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil, inf
from typing import Final, NamedTuple

import msgspec

from scheduler.model.reservations import Request, Reservation

KEPT: Final = 30
"""The number of run times that a class keeps: the last ones."""
KEPT_OF_ALL: Final = 300
"""The number of run times that the class of all work keeps."""
LEAST: Final = 5
"""The fewest run times with which a class answers."""
ALL: Final = "[]"
"""The id of the class of all work."""


class RunTimes(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The row of a class: the run times of its last released leases, in seconds, the oldest first. `ratios`: run time /
    `expected_runtime` of the last of them that had one.
    """

    version: int = 0
    marked_at: float = 0.0
    id: str
    seconds: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()
    released_at: float = 0.0
    """When the last of these leases was released."""


class Run(NamedTuple):
    """How long the work of one released lease ran. `classes`: see `list_classes`; `expected`: `expected_runtime`."""

    classes: tuple[str, ...]
    seconds: float
    expected: float | None
    released_at: float


def list_classes(request: Request, principal: str | None) -> tuple[str, ...]:
    """Return the ids of the classes of a request, the most similar first, that of all work last. An id is a JSON list:
    account, principal, job, system, and the sizes of the numbers of instances and cpus as powers of two. Its parents
    have the first four of these, the first two, the sizes alone, and none.
    """
    job = request.tags.get("job") or request.tags.get("name")
    return _list_ids(request.account, principal, job, request.system, *measure_size(request))


def measure_size(request: Request) -> tuple[int, int]:
    """Return the size of a request, see `find_size`."""
    cpus = sum(each.count * each.resources.get("cpus", 0.0) for each in request.components)
    return find_size(request.instances, cpus)


def find_size(instances: int, cpus: float) -> tuple[int, int]:
    """Return the part of a class id that is the size: the lengths of the two numbers in bits."""
    return instances.bit_length(), ceil(cpus).bit_length()


def name_class(parts: Sequence[str | int | None]) -> str:
    """Return the id of the class with these parts, the first 0, 2, 4 or 6 of account, principal, job, system, and the
    two of `find_size`.
    """
    return msgspec.json.encode(parts).decode()


def read_class(name: str) -> list[str | int | None]:
    """Return the parts of the class with this id. See `name_class`."""
    parts: list[str | int | None] = msgspec.json.decode(name)
    return parts


@lru_cache(maxsize=100_000)
def _list_ids(
    account: str | None, principal: str | None, job: str | None, system: str | None, instances: int, cpus: int
) -> tuple[str, ...]:
    parts = (account, principal, job, system, instances, cpus)
    known = (parts, parts[:4], parts[:2], (None,) * 4 + parts[4:])
    return tuple(dict.fromkeys([*map(name_class, known), ALL]))


def is_class_of(name: str, account: str | None = None, job: str | None = None) -> bool:
    """Return whether the class with this id has work of this account only, and of this job only. None: of any."""
    parts = read_class(name)
    has_account = account is None or parts[:1] == [account]
    return has_account and (job is None or parts[2:3] == [job])


def find_quantile(seconds: Iterable[float], quantile: float) -> float | None:
    """Return the run time that a share `quantile` of these run times does not exceed; None if there are none."""
    return _find_quantile(sorted(seconds), -inf, quantile)


def with_run_time(row: RunTimes, seconds: float, expected: float | None, released_at: float) -> RunTimes:
    """Return the row of a class after another lease of it was released. `expected`: its `expected_runtime`."""
    kept = KEPT_OF_ALL if row.id == ALL else KEPT
    ratios = row.ratios if expected is None else (*row.ratios, seconds / expected)[-kept:]
    return msgspec.structs.replace(
        row, seconds=(*row.seconds, seconds)[-kept:], ratios=ratios, released_at=max(row.released_at, released_at)
    )


def measure_run_time(row: Reservation) -> float | None:
    """Return how long the work of a released reservation ran since its last lease; None: it had no lease, or was not
    released by its holder's own decision.
    """
    # Another reason: a host reports that the work runs no more (`absent`, `idle`), maybe long after its end.
    if row.phase != "released" or row.reason is not None or row.revoke_reason is not None:
        return None
    return None if row.leased_at is None or row.finished_at is None else max(0.0, row.finished_at - row.leased_at)


def list_runs(rows: Iterable[Reservation]) -> list[Run]:
    """Return the run of each released reservation among `rows`, in their order."""
    found = []
    for row in rows:
        seconds = measure_run_time(row)
        if seconds is not None and row.finished_at is not None:
            classes, expected = list_classes(row.request, row.principal), row.request.expected_runtime
            # Milliseconds are enough, and rows stay short.
            found.append(Run(classes, round(seconds, 3), expected, row.finished_at))
    return found


def count_runs(runs: Iterable[Run], known: Mapping[str, RunTimes]) -> list[RunTimes]:
    """Return the rows of all classes of these runs, with the runs counted in their order. `known`: the present rows by
    id. A class without one gets its first row.
    """
    changed: dict[str, RunTimes] = {}
    for run in runs:
        for name in run.classes:
            row = changed.get(name) or known.get(name) or RunTimes(id=name)
            changed[name] = with_run_time(row, run.seconds, run.expected, run.released_at)
    return list(changed.values())


class Estimates:
    """How long work is expected to run, from the rows of classes and its `expected_runtime`."""

    def __init__(self, rows: Mapping[str, RunTimes]) -> None:
        self._rows = rows
        self._sorted: dict[str, tuple[RunTimes, list[float], list[float]]] = {}
        """Class -> its row, and the run times and ratios of the row in order."""

    def find_run_time(self, request: Request, principal: str | None, elapsed: float, quantile: float) -> float | None:
        """Return the run time that work with this request, which has run for `elapsed` seconds, does not exceed in a
        share `quantile` (0 to 1) of all cases; None: it is not known.

        It is the shorter of two: (1) the quantile of the most similar class that can answer; (2) if the request states
        an `expected_runtime`, this time the quantile of the ratios of its own class. While that class has fewer than
        LEAST run times, (2) is the `expected_runtime` itself.
        """
        classes = list_classes(request, principal)
        found = self._ask_classes(classes, elapsed, quantile)
        stated = request.expected_runtime
        if stated is not None:
            known = self._find(classes[0])
            if known is None:
                ratio = 1.0 if elapsed / stated < 1.0 else None
            else:
                ratio = _find_quantile(known[2], elapsed / stated, quantile) if len(known[2]) >= LEAST else None
            if ratio is not None and (found is None or stated * ratio < found):
                found = stated * ratio
        return found

    def _ask_classes(self, classes: Sequence[str], elapsed: float, quantile: float) -> float | None:
        for name in classes:
            if (known := self._find(name)) is not None:
                found = _find_quantile(known[1], elapsed, quantile)
                if found is not None:
                    return found
        return None

    def _find(self, name: str) -> tuple[RunTimes, list[float], list[float]] | None:
        row = self._rows.get(name)
        if row is None or len(row.seconds) < LEAST:
            return None
        known = self._sorted.get(name)
        if known is None or known[0] is not row:
            known = self._sorted[name] = row, sorted(row.seconds), sorted(row.ratios)
        return known


def _find_quantile(ordered: Sequence[float], elapsed: float, quantile: float) -> float | None:
    """Return this quantile of the values that are greater than `elapsed`; None: there are none."""
    first = bisect_right(ordered, elapsed)
    longer = len(ordered) - first
    return ordered[first + max(0, ceil(quantile * longer) - 1)] if longer else None
