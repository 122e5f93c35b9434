"""What a reservation asks for, as the list shows and sorts it."""

from leasehold.console.reservation_list import COLUMNS, Listing, describe_wish
from scheduler.model.reservations import Component, Request
from tests.builders import a_reservation


def test_memory_has_its_unit_and_sorts_behind_cpus() -> None:
    small, large = (
        Request(system="x86", components=(Component(name="main", resources={"cpus": 2.0, "memory_mib": most}),))
        for most in (1024.0, 4096.0)
    )
    assert describe_wish(small) == "2 cpus, 1,024 MiB memory"
    rows = [a_reservation("large", request=large), a_reservation("small", request=small)]
    assert [each.id for each in sorted(rows, key=lambda row: COLUMNS["asks"].key(row, Listing({}, 0.0)))] == [
        "small",
        "large",
    ]
