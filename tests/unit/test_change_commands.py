"""The smallest change of a wait as commands."""

from leasehold.client.models import SmallestChange
from leasehold.texts.change_commands import describe_loss, format_commands, list_undo_commands
from scheduler.explain.search import describe_amounts


def test_a_command_has_all_digits_of_a_number() -> None:
    account = {"account": {"id": "ci", "balance": [1234567.5, 0.1, 0, 0, 0]}}
    assert format_commands([{"priority": {"reservation": "r1", "priority": 1234567.25}}, account]) == [
        "leasehold priority r1 1234567.25",
        "leasehold accounts set ci --balance=1234567.5,0.1,0,0,0",
    ]


def test_large_amounts_are_no_powers_of_ten() -> None:
    assert describe_amounts({"memory_mib": 1048576.0, "cpus": 0.5}) == "0.5 cpus, 1048576 memory_mib"


def test_an_undo_restores_the_version_before_the_change_and_an_ended_lease_has_none() -> None:
    rules = {"rules": {"pools": {"linux": {"max_slots": 2}}}}
    change = SmallestChange(kind="", text="", actions=(rules, {"uncordon": "linux-1"}), undo=({"cordon": "linux-1"},))
    assert list_undo_commands(change, 4) == ["leasehold cordon linux-1", "leasehold rules rollback 4"]
    assert list_undo_commands(SmallestChange(kind="", text="", actions=(rules, {"release": "r1"})), 4) == []


def test_the_undo_of_a_balance_states_what_it_loses() -> None:
    assert describe_loss([{"account": {"id": "ci", "max_fanout": 2}}, {"cordon": "linux-1"}]) == ""
    found = describe_loss([{"account": {"id": "ci", "balance": [0, 0, 0, 0, 0]}}])
    assert found == "The undo sets the balance of ci to its former value: what it earns and pays until then is lost."
