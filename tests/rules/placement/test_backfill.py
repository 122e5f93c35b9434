"""Queues without backfill: capacity in flight is kept for the reservations behind one that cannot be placed."""

from scheduler.model.decisions import Launch
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from tests.builders import NOW, a_lease, a_reservation, a_slot, some_rules


def test_behind_a_single_reservation_that_waits_a_later_one_keeps_capacity_in_flight() -> None:
    """`r2` keeps a part of linux-1, so that the interrupted `r9` needs a machine of its own. A gang would end that."""
    sizes = [
        {"name": "small", "price": 1, "resources": {"cpus": 1}},
        {"name": "large", "price": 4, "resources": {"cpus": 4}},
    ]
    rules = some_rules(
        {
            "scheduler": {"backfill": False, "interruption_grace": 60, "starvation_guard": 0},
            "pools": {
                "linux": {"offerings": sizes},
                "arm": {"system": "aarch64-linux", "max_slots": 1, "resources": {"cpus": 1}},
            },
        }
    )
    lease = a_lease("linux-2", resources={"cpus": 4})
    rows: list[Row] = [
        a_slot("linux-1", state="booting", offering="large", resources={"cpus": 4}),
        a_slot("linux-2", offering="large", resources={"cpus": 4}, interrupted_at=NOW),
        *(a_slot(f"linux-{number}", state="empty") for number in (3, 4)),
        a_slot("arm-1", resources={"cpus": 1}),
        a_reservation("r8", system="aarch64-linux", phase="leased", leases=(a_lease("arm-1", resources={"cpus": 1}),)),
        a_reservation("r9", resources={"cpus": 4}, phase="leased", confirmed_at=NOW, leases=(lease,), sequence=1),
        a_reservation("r1", system="aarch64-linux", resources={"cpus": 1}, sequence=2),
        a_reservation("r2", resources={"cpus": 1}, sequence=3),
    ]
    found = plan(View(rows), rules, NOW)
    assert [each.offering for each in found.decisions if isinstance(each, Launch)] == ["large"]
    assert {each.reservation: each.code for each in found.waiting} == {"r1": "at_max_slots", "r2": "behind_queue"}
