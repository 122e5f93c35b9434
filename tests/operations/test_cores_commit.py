"""The commit computes limits of cores again on fresh rows and publishes them."""

from typing import Any

import pytest

from scheduler.model.decisions import Assign, Cores, Decision, Placement
from scheduler.model.view import Row
from scheduler.operations.tick.commit import CHUNK
from scheduler.operations.tick.heartbeat_intake import describe_host
from tests.builders import a_lease
from tests.operations.harness import Harness
from tests.operations.test_commit import a_leased, a_pending, a_small_lease, slot, write_all

ALONE = Cores(reservation="r1", component="main", slot="linux-1", cpus=4.0, epoch=1)
HALF = Cores(reservation="r1", component="main", slot="linux-1", cpus=2.0, epoch=1)
ASSIGN_R2 = Assign(reservation="r2", leases=(Placement("main", "linux-1", 1, {"cpus": 2.0}),))


def a_claiming(name: str = "r2") -> Any:
    return a_pending(name, leases=(a_small_lease(state="claimed", token=0),))


LOST: list[tuple[str, list[Row], str]] = [
    ("it was deleted", [slot()], "the reservation does not have this lease any more"),
    ("it waits again", [slot(), a_pending()], "the reservation does not have this lease any more"),
    (
        "it is on another slot",
        [slot(), a_leased(leases=(a_small_lease("linux-2"),))],
        "the reservation does not have this lease any more",
    ),
    ("another machine", [slot(epoch=2), a_leased()], "the spare CPUs of linux-1 have changed"),
    ("there is another lease", [slot(), a_leased(), a_leased("r2")], "the spare CPUs of linux-1 have changed"),
    ("the host has other cpus", [slot(resources={"cpus": 6}), a_leased()], "the spare CPUs of linux-1 have changed"),
    (
        "the slot does not count cpus",
        [slot(resources={"vms": 1}), a_leased()],
        "the spare CPUs of linux-1 have changed",
    ),
    ("the slot holds nothing", [slot("terminating"), a_leased()], "the spare CPUs of linux-1 have changed"),
    ("it only has a claim", [slot(), a_claiming("r1")], "the spare CPUs of linux-1 have changed"),
]


@pytest.mark.parametrize(("rows", "reason"), [each[1:] for each in LOST], ids=[each[0] for each in LOST])
def test_a_limit_that_no_longer_holds_changes_nothing(rows: list[Row], reason: str) -> None:
    reasons, is_change, _ = write_all(rows, [ALONE])
    assert (reasons, is_change) == ([reason], False)


def cores_of(harness: Harness) -> dict[str, float | None]:
    return {row.id: lease.cores for row in harness.store.find_reservations() for lease in row.leases}


def test_a_limit_is_written_with_its_event_and_a_claim_does_not_count() -> None:
    reasons, _, harness = write_all([slot(), a_leased(), a_claiming()], [ALONE])
    assert (reasons, cores_of(harness)) == ([], {"r1": 4.0, "r2": None})
    details = [each.detail for each in harness.events if each.name == "reservation_cores"]
    assert [(each["component"], each["slot"], each["cpus"]) for each in details] == [("main", "linux-1", 4.0)]


def test_a_revoked_lease_counts_until_it_has_ended() -> None:
    leaving = a_leased("r2", phase="revoking", leases=(a_small_lease(state="revoking", revoke_by=9e9),))
    reasons, _, harness = write_all([slot(resources={"cpus": 8}), a_leased(), leaving], [ALONE])
    assert (reasons, cores_of(harness)["r1"]) == ([], 4.0)


def test_earlier_decisions_of_the_same_plan_count() -> None:
    """r2 is assigned first, so a limit computed without r2 is skipped and one computed with it is committed."""
    reasons, _, harness = write_all(
        [slot(), a_leased(leases=(a_small_lease(cores=4.0),)), a_pending("r2")], [ASSIGN_R2, ALONE]
    )
    assert (reasons, cores_of(harness)) == (["the spare CPUs of linux-1 have changed"], {"r1": 4.0, "r2": None})
    _, _, harness = write_all(
        [slot(), a_leased(leases=(a_small_lease(cores=4.0),)), a_pending("r2")], [ASSIGN_R2, HALF]
    )
    assert cores_of(harness) == {"r1": 2.0, "r2": None}


def test_the_last_of_two_limits_counts() -> None:
    stale = a_leased(leases=(a_small_lease(cores=2.0),))
    lost: list[Decision] = [HALF, ALONE]
    reasons, _, harness = write_all([slot(), stale], lost)
    assert (reasons, cores_of(harness)) == (["the spare CPUs of linux-1 have changed"], {"r1": 4.0})


def test_the_channel_and_the_host_get_a_changed_limit_and_a_new_lease_has_its_own() -> None:
    config = {"pools": {"lab": {"system": "s", "provider": "static", "max_leases_per_slot": 9, "lease_ttl": 0}}}
    harness = Harness(config)
    harness.ask("register", slot="lab-1", pool="lab", machine="m", resources={"cpus": 8})
    harness.ask("submit", id="r1", system="s", resources={"cpus": 1})
    harness.tick()
    harness.ask("submit", id="r2", system="s", resources={"cpus": 2})
    pushed = len(harness.ports.notifier.news)  # type: ignore[attr-defined]
    harness.tick()
    notices = harness.ports.notifier.notices  # type: ignore[attr-defined]
    assert [(name, each["event"], each["leases"][0]["cores"]) for name, each in notices] == [
        ("r1", "leased", 8.0),
        ("r1", "cores", 3.5),
        ("r2", "leased", 4.5),
    ]
    assert len(harness.ports.notifier.news) > pushed  # type: ignore[attr-defined]
    [row] = harness.store.find_reservations(ids=["r2"])
    assert harness.ask("renew", reservation="r2", token=row.token)["cores"] == {"main": 4.5}
    assert [each["cores"] for each in describe_host(harness.ports, "lab-1", "m")["leases"]] == [3.5, 4.5]


def test_limits_of_one_reservation_are_committed_together_and_checked_each() -> None:
    parts = (a_small_lease(), a_small_lease("linux-2", component="b"))
    other = Cores(reservation="r1", component="b", slot="linux-2", cpus=3.0, epoch=1)
    reasons, _, harness = write_all([slot(), slot(name="linux-2"), a_leased(leases=parts)], [ALONE, other])
    [row] = harness.store.find_reservations()
    assert (reasons, [lease.cores for lease in row.leases]) == (["the spare CPUs of linux-2 have changed"], [4.0, None])


def test_all_limits_of_one_reservation_are_one_transaction() -> None:
    """Each transaction writes all leases of its reservation, so several transactions would write them several times."""
    count = 2 * CHUNK + 1
    names = [f"rank.{number}" for number in range(count)]
    leases = tuple(a_lease(component=name, resources={"cpus": 1 / count}) for name in names)
    limits: list[Decision] = [
        Cores(reservation="r1", component=name, slot="linux-1", cpus=4 / count, epoch=1) for name in names
    ]
    # `write_all` accepts one transaction only.
    reasons, _, harness = write_all([slot(), a_leased(leases=leases)], limits)
    (row,) = harness.store.find_reservations()
    assert (reasons, {lease.cores for lease in row.leases}) == ([], {4 / count})
