"""The smallest change of a wait as commands."""

from leasehold.texts.change_commands import format_commands
from scheduler.explain.search import describe_amounts


def test_a_command_has_all_digits_of_a_number() -> None:
    account = {"account": {"id": "ci", "balance": [1234567.5, 0.1, 0, 0, 0]}}
    assert format_commands([{"priority": {"reservation": "r1", "priority": 1234567.25}}, account]) == [
        "leasehold priority r1 1234567.25",
        "leasehold accounts set ci --balance=1234567.5,0.1,0,0,0",
    ]


def test_large_amounts_are_no_powers_of_ten() -> None:
    assert describe_amounts({"memory_mib": 1048576.0, "cpus": 0.5}) == "0.5 cpus, 1048576 memory_mib"
