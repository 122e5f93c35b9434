"""The cascade looks for elastic instances to reclaim only where these could help."""

from typing import Any

from scheduler.model.decisions import Grant, Revoke
from scheduler.model.reservations import Lease, Reservation
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from tests.builders import NOW, SYSTEM, a_component, a_lease, a_reservation, a_slot, some_rules

ARM = "aarch64-linux"


def an_application(number: int, leases: tuple[Lease, ...], system: str = SYSTEM, **changes: Any) -> Reservation:
    """One essential and one elastic instance, each of one core; it is leased."""
    components = (
        a_component("main", resources={"cpus": 1}),
        a_component("more", kind="elastic", resources={"cpus": 1}),
    )
    fields: dict[str, Any] = {"sequence": number, "system": system, "components": components, **changes}
    return a_reservation(f"r{number}", phase="leased", leased_at=NOW, leases=leases, **fields)


def a_part(slot: str, component: str = "main", **changes: object) -> Lease:
    kind = "elastic" if component == "more" else "essential"
    return a_lease(slot, component=component, kind=kind, resources={"cpus": 1}, confirmed_at=NOW, **changes)


def decide(*rows: Row, size: float = 2, **scheduler: object) -> list[str]:
    """`ACTION RESERVATION SLOT` of the decisions on elastic instances; linux-N and arm-N have `size` cores."""
    sized = {"max_slots": 9, "resources": {"cpus": size}}
    rules = some_rules(
        {
            "scheduler": {"elastic": "yielding", "preemption_grace": 0, **scheduler},
            "pools": {"linux": sized, "arm": {"system": ARM, **sized}},
        }
    )
    found = plan(View(rows), rules, NOW)
    return [
        f"{'grant' if isinstance(each, Grant) else 'revoke'} {each.reservation} {each.slot}"
        for each in found.decisions
        if isinstance(each, Grant | Revoke)
    ]


def test_an_elastic_instance_on_another_system_is_not_reclaimed() -> None:
    lacking = an_application(1, (a_part("linux-1"),))
    standing = an_application(2, (a_part("arm-1"), a_part("arm-1", "more")), ARM)
    essential = an_application(3, (a_part("linux-1"),), components=(a_component(resources={"cpus": 1}),))
    assert decide(a_slot("linux-1"), a_slot("arm-1"), lacking, standing, essential) == []


def test_an_elastic_instance_of_a_later_reservation_is_reclaimed_for_an_earlier_one() -> None:
    lacking = an_application(1, (a_part("linux-1"),))
    standing = an_application(2, (a_part("linux-1"), a_part("linux-1", "more")))
    assert decide(a_slot("linux-1"), lacking, standing, size=3) == ["revoke r2 linux-1", "grant r1 linux-1"]
