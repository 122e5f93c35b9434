"""The doctor and the metrics name the machines that EC2 refuses to end."""

from typing import Any

import pytest

from leasehold.doctor.rules import judge_hosts, judge_machines
from scheduler.model.events import Event
from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.store.memory import MemoryStore
from tests.builders import NOW, a_slot, some_rules
from workers.gauges import measure_store

PROTECTED = "OperationNotPermitted: The machine is protected."
STATES: dict[str, tuple[dict[str, Any], bool, int]] = {
    # state -> fields of a slot, whether the doctor names it, and the value of the gauge
    "its end is refused": ({"state": "terminating", "refusal": PROTECTED}, True, 1),
    "it ends": ({"state": "terminating"}, False, 0),
    "its stop is not permitted": ({"state": "stopped", "power": "stop", "refusal": PROTECTED}, True, 0),
    "its start was refused": ({"state": "stopped", "refusal": PROTECTED}, False, 0),
    "its last machine died": ({"state": "empty", "refusal": PROTECTED}, False, 0),
}


def orphans(**fields: Any) -> Hold:
    name = hold_id("linux", "strangers")
    return Hold(id=name, pool="linux", kind="strangers", refused_at=NOW, until=NOW, active=2, **fields)


def read_gauge(store: MemoryStore) -> dict[str, float]:
    (family,) = [each for each in measure_store(store, some_rules({}), []) if each.name == "leasehold_ends_refused"]
    return {sample.labels["pool"]: sample.value for sample in family.samples}


@pytest.mark.parametrize("name", STATES)
def test_the_doctor_and_the_gauge_know_whether_ec2_refuses_to_end_the_machine_of_a_slot(name: str) -> None:
    fields, is_named, count = STATES[name]
    slot = a_slot("linux-1", instance_id="i-1", **fields)
    finding = judge_machines([slot], [orphans()])
    assert (finding.outcome, PROTECTED in finding.text) == ("failure" if is_named else "ok", is_named)
    store = MemoryStore(lambda: NOW)
    with store.transaction() as transaction:
        transaction.save([slot])
    assert read_gauge(store)["linux"] == count


def test_machines_without_a_slot_are_named_by_their_pool() -> None:
    hold = orphans(code="OperationNotPermitted", message="The machine is protected.")
    finding = judge_machines([], [hold])
    assert finding.text == f"EC2 refuses to end or stop machines of pool linux without a slot: {PROTECTED}"
    store = MemoryStore(lambda: NOW)
    with store.transaction() as transaction:
        transaction.save([hold])
    assert read_gauge(store)["linux"] == 2


def test_a_finding_names_five_machines_at_most() -> None:
    slots = [a_slot(f"linux-{number}", state="terminating", refusal=PROTECTED) for number in range(1, 9)]
    assert judge_machines(slots, []).text.endswith(f"linux-5 (None): {PROTECTED}; and 3 more")


@pytest.mark.parametrize(
    ("ago", "reason", "outcome"),
    [(60.0, "two live agents", "warning"), (4000.0, "two live agents", "ok"), (60.0, None, "ok")],
)
def test_the_doctor_names_hosts_of_which_a_second_live_agent_was_refused(
    ago: float, reason: str | None, outcome: str
) -> None:
    detail: dict[str, Any] = {"pool": "lab", "machine": "m1"} | ({} if reason is None else {"reason": reason})
    event = Event(at=NOW - ago, name="register_refused", cause="cloud", slot="lab-1", detail=detail)
    finding = judge_hosts([event], NOW)
    assert (finding.outcome, "lab-1 (machine m1)" in finding.text) == (outcome, outcome == "warning")


@pytest.mark.parametrize(("ago", "outcome"), [(60.0, "warning"), (4000.0, "ok")])
def test_the_doctor_names_machines_whose_proof_or_token_was_used_twice(ago: float, outcome: str) -> None:
    event = Event(at=NOW - ago, name="host_join_refused", cause="cloud", slot="linux-1", detail={"machine": "i-1"})
    finding = judge_hosts([event], NOW)
    assert (finding.outcome, "linux-1 (machine i-1)" in finding.text) == (outcome, outcome == "warning")
