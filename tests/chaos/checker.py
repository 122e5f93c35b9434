"""The checker: report which promises of Leasehold a chaos run broke. It knows nothing of the faults."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from scheduler.model.transitions import ENDED
from tests.chaos.evidence import Evidence, Line, Restoration
from tests.chaos.machine_checks import find_machine_violations

CPUS: Final = {"shared": 4.0}
"""Pool whose machines are shared -> cpus of a machine. A machine of another pool takes one lease."""


def find_violations(evidence: Evidence) -> list[str]:
    """Return a line for each broken promise; [] if every promise was kept."""
    uses = list(_drop_lost(evidence))
    return [
        *_lost(evidence),
        *_badly_restored(evidence),
        *_used_after_restores(evidence),
        *_overlapping_holders(uses, evidence.restores),
        *_repeated_tokens(evidence.uses),
        *find_machine_violations(evidence, uses),
        *_returning_terms(evidence),
        *evidence.hostile,
    ]


def _lost(evidence: Evidence) -> Iterator[str]:
    """Yield accepted reservations that have not ended. One that ended before a restore may be unknown after it."""
    for name in sorted(evidence.accepted):
        phase = evidence.phases.get(name, "unknown")
        if phase not in ENDED and not (phase == "unknown" and evidence.restores and name in evidence.ended):
            yield f"{name} was accepted and is {phase}"


def _badly_restored(evidence: Evidence) -> Iterator[str]:
    """Yield failed restores, lost reservations that Redis remembered, and cancelled ones that the backup contained."""
    yield from (f"the restore failed: {each.fault}" for each in evidence.restores if each.fault is not None)
    remembered = {name for each in evidence.restores for name in each.remembered}
    for name in sorted(evidence.resubmitted & remembered):
        yield f"{name} was lost by the restore, and Redis remembered it"
    backup = min((each.backup for each in evidence.restores), default=float("inf"))
    for name, at in sorted(evidence.restored.items()):
        if at < backup:
            yield f"{name} was cancelled by the restore, and its backup contained it"


def _drop_lost(evidence: Evidence) -> Iterator[Line]:
    """Yield the uses of leases that no restore lost.

    The holder of a lost lease stops at a notice, or when its last renewal expires (`_used_after_restores`).
    """
    for use in evidence.uses:
        if not any(each.has_lost(use) for each in evidence.restores):
            yield use


def _used_after_restores(evidence: Evidence) -> Iterator[str]:
    """Yield leases that a restore lost and that were used after their last renewal expired."""
    for each in evidence.restores:
        late = {
            (use["reservation"], use["token"])
            for use in evidence.uses
            if use["at"] > each.trusted_until and each.has_lost(use)
        }
        for reservation, token in sorted(late):
            yield f"{reservation}/{token} was used after its expiry, and the restore had lost it"


def _overlapping_holders(uses: Sequence[Line], restores: Sequence[Restoration]) -> Iterator[str]:
    """Yield machines whose holders used more than the machine's capacity at one time.

    A lease is held from its first to its last use. If a restore undoes the release of a lease, the holder uses it again
    under the same token. So if a holder did not use a lease in the last second before a restore, the uses since the
    mark of the restore count as those of another lease. They may begin before the end of the restore: the command ends
    only after the view is rebuilt, and holders read the restored leases before that.
    """
    times: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for use in uses:
        times[use["reservation"], use["token"], use["component"]].append(use["at"])

    def was_idle(lease: tuple[str, int, str], restore: Restoration) -> bool:
        return not any(restore.marked - 1 <= at <= restore.marked for at in times[lease])

    spans: dict[str, dict[tuple[str, int, str, int], list[Line]]] = defaultdict(lambda: defaultdict(list))
    for use in uses:
        lease = use["reservation"], use["token"], use["component"]
        earlier = sum(use["at"] > each.marked and was_idle(lease, each) for each in restores)
        spans[use["machine"]][*lease, earlier].append(use)
    for machine, holders in spans.items():
        yield from _overfull(machine, holders)


def _overfull(machine: str, holders: Mapping[tuple[str, int, str, int], Sequence[Line]]) -> Iterator[str]:
    changes: list[tuple[float, float, str]] = []
    pool = ""
    for (reservation, token, _, _), uses in holders.items():
        pool = uses[0]["slot"].rpartition("-")[0]
        amount = uses[0]["cpus"] if pool in CPUS else 1.0
        times = [use["at"] for use in uses]
        changes += [(min(times), amount, f"{reservation}/{token}"), (max(times), -amount, f"{reservation}/{token}")]
    held, present = 0.0, set[str]()
    # At equal times the end of a use sorts before a begin, so that successive holders do not overlap.
    for at, amount, holder in sorted(changes, key=lambda change: change[:2]):
        held += amount
        (present.add if amount > 0 else present.discard)(holder)
        if held > CPUS.get(pool, 1.0) + 1e-9:
            yield f"{machine} was held by {', '.join(sorted(present))} at {at:.3f}"
            return


def _repeated_tokens(uses: Sequence[Line]) -> Iterator[str]:
    """Yield tokens that belong to several reservations."""
    owners: dict[int, set[str]] = defaultdict(set)
    for use in uses:
        owners[use["token"]].add(use["reservation"])
    for token, names in sorted(owners.items()):
        if len(names) > 1:
            yield f"token {token} belongs to {', '.join(sorted(names))}"


def _returning_terms(evidence: Evidence) -> Iterator[str]:
    """Yield a term or a time of the last tick that is lower than one before: a deposed leader has written.

    During a restore SQL shows the numbers of the backup; after it every number is higher than all before.
    """
    for before, after in pairwise(evidence.terms):
        if after < before:
            yield f"a leader of term {after} wrote after one of term {before}"
            break
    for earlier, later in pairwise(evidence.ticks):
        if (later["term"], later["at"]) < (earlier["term"], earlier["at"]) or later["at"] < earlier["at"]:
            if any(earlier["seen"] <= each.ended and each.marked <= later["seen"] for each in evidence.restores):
                continue
            yield f"the last tick went back from {earlier} to {later}"
            break
    for each in evidence.restores:
        highest = max((tick["term"] for tick in evidence.ticks if tick["seen"] < each.marked), default=0)
        later_terms = [tick["term"] for tick in evidence.ticks if tick["seen"] > each.ended]
        if each.fault is None and min(later_terms, default=highest + 1) <= highest:
            yield f"after the restore term {min(later_terms)} is used again: {highest} was the highest before"
