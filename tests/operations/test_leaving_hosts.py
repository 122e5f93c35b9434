"""A static host that leaves: its slot drains, takes no new lease, and is empty after its last lease."""

import pytest

from scheduler.explain.conditions import describe_slot
from scheduler.ports import EventFilter
from tests.operations.test_hosts import a_lab, register


def test_a_host_that_leaves_drains_and_is_empty_after_its_last_lease() -> None:
    harness = a_lab()
    assert harness.ask("leave", slot="lab-1", machine="m1")["state"] == "draining"
    harness.tick()
    assert (harness.phase(), harness.slot("lab-1").state) == ("leased", "draining")
    harness.ask("release", reservation="r1", token=harness.token())
    harness.tick()
    assert harness.slot("lab-1").state == "empty"
    assert harness.ask("leave", slot="lab-1", machine="m1")["state"] == "empty"
    assert register(harness)["state"] == "ready"


@pytest.mark.parametrize(("slot", "machine", "path"), [("lab-2", "m1", "slot"), ("lab-1", "m2", "machine")])
def test_a_host_cannot_leave_for_another_host(slot: str, machine: str, path: str) -> None:
    harness = a_lab()
    refused = harness.ask("leave", slot=slot, machine=machine)
    assert [error["path"] for error in refused["errors"]] == [path]
    assert harness.slot("lab-1").state == "ready"


@pytest.mark.parametrize(
    ("verb", "fields", "reason", "cause", "described"),
    [
        # Ctrl-C of the agent, or `leasehold host leave`.
        ("leave", {"machine": "m1"}, "leaving", "cloud", "leaves service: the host leaves"),
        ("drain", {}, "requested", "operator", "leaves service: an operator drains it"),
    ],
)
def test_a_host_that_leaves_differs_from_one_that_an_operator_drains(
    verb: str, fields: dict[str, str], reason: str, cause: str, described: str
) -> None:
    harness = a_lab()
    assert harness.ask(verb, slot="lab-1", **fields)["state"] == "draining"
    slot = harness.slot("lab-1")
    assert slot.drain_reason == reason
    [event] = [each for each in harness.store.read_events(EventFilter(slot="lab-1")) if each.name == "slot_draining"]
    assert (event.cause, event.detail["reason"]) == (cause, reason)
    assert describe_slot(slot, harness.ports.rules().pools["lab"], harness.store.now()) == [described]
