"""Cases from Orchard: hosts that may not take leases, failures and restarts, decisions that the commit skips."""

from typing import Any

import pytest

from tests.rules.orchard import A, B, a_case, ask, held, host
from tests.rules.playing import Cases, Document, a_scenario, a_slot, act, play_out, submit, tick, ticks

ON_FAILURE: dict[str, Any] = {"restart_policy": "on_failure"}

CASES: Cases = {
    # ---- slots that may not take leases
    "cordoned": (
        a_case(
            ask(0, "r1"),
            tick(0),
            act(1, "seen", A),
            tick(1),
            act(2, "uncordon", A),
            tick(2),
            slots=[host(A, "h", cordoned=True)],
            reservations=[held("h")],
        ),
        [["r1 waits cordoned"], ["r1 waits cordoned"], ["assign r1 lab-1"]],
    ),
    "exactly the timeout is online": (
        a_case(ask(180, "r1"), tick(180), slots=[host(A, last_seen=0)]),
        [["assign r1 lab-1"]],
    ),
    "longer is offline": (
        a_case(ask(180, "r1"), tick(180.001), slots=[host(A, last_seen=0)]),
        [["r1 waits no_capacity"]],
    ),
    "heard again: from then on it may be used": (
        a_case(ask(180, "r1"), tick(181), act(182, "seen", A), tick(182), tick(362), tick(362.5), slots=[host(A)]),
        [["r1 waits no_capacity"], ["assign r1 lab-1"], [], ["fail r1 slot_offline"]],
    ),
    "a confirm counts as a heartbeat": (
        a_case(
            act(170, "confirm", {"reservation": "h", "slot": A}),
            *ticks(190, 350, 350.5),
            slots=[host(A, "h")],
            reservations=[held("h")],
        ),
        [[], [], ["fail h slot_offline"]],
    ),
    "a slot record and a registration count as heartbeats": (
        a_case(
            act(170, "slot", host(A, "h", machine="m")),
            tick(350),
            act(350, "register", host(A, machine="m")),
            *ticks(530, 530.5),
            slots=[host(A, "h", machine="m")],
            reservations=[held("h")],
        ),
        [[], [], ["fail h slot_offline"]],
    ),
    "a host that is away may come back: no reservation waits with never_fits": (
        a_case(
            act(1, "drain", A),
            tick(1),
            ask(2, "r1", labels={"disk": "ssd"}),
            ask(2, "r2", resources={"vms": 4}),
            tick(2),
            act(3, "register", host(A, machine="m", labels={"disk": "ssd"})),
            tick(3),
            slots=[host(A, machine="m", labels={"disk": "ssd"})],
        ),
        [
            ["reset lab-1 drained"],
            ["r1 waits no_capacity", "r2 waits never_fits"],
            ["assign r1 lab-1", "r2 waits never_fits"],
        ],
    ),
    "a lost one too, a removed one not": (
        a_case(act(1, "lose", A), ask(1, "r1"), tick(1), act(2, "remove", A), tick(2), slots=[host(A)]),
        [["r1 waits no_capacity"], ["r1 waits never_fits"]],
    ),
    "only static slots go offline": (
        a_scenario(submit(0, "r1"), *ticks(0, 9999), slots=[a_slot("linux-1", last_seen=-9999)]),
        [["assign r1 linux-1"], []],
    ),
    # ---- failure and restart
    "never; remove": (
        a_case(
            act(1, "remove", A),
            *ticks(1, 2),
            slots=[host(A, "h", resources={"special": 1}), host(B, "other")],
            reservations=[held("h", resources={"special": 1}), held("other")],
        ),
        [["fail h slot_gone"], []],
    ),
    "what a removed slot or a lost machine held fails, though a slot record comes before the next tick": (
        a_case(
            *(act(1, "remove", A), act(1, "slot", host(A))),
            *(act(1, "lose", B), act(1, "slot", host(B))),
            *ticks(1, 2),
            slots=[host(A, "h"), host(B, "g")],
            reservations=[held("h"), held("g", **ON_FAILURE)],
        ),
        [["fail h slot_gone", "fail g slot_gone"], ["restart g restart_due", "assign g lab-1"]],
    ),
    "a slot record of a removed slot may contain the lease": (
        a_case(
            act(1, "remove", A),
            act(1, "slot", host(A, "h")),
            *ticks(1, 2),
            slots=[host(A, "h")],
            reservations=[held("h")],
        ),
        [[], []],
    ),
    "never, silent for longer than the timeout: its capacity is free": (
        a_case(
            ask(0, "r1", resources={"vms": 3}),
            tick(180),
            act(181, "seen", A),
            tick(181),
            slots=[host(A, "h", last_seen=-1)],
            reservations=[held("h", 3)],
        ),
        [["fail h slot_offline", "r1 waits no_capacity"], ["assign r1 lab-1"]],
    ),
    "other reservations are placed in the tick of the failure": (
        a_case(
            act(0, "remove", A),
            ask(0, "r1", resources={"vms": 3}),
            tick(0),
            slots=[host(A, "g"), host(B, "g2")],
            reservations=[
                {
                    "id": "g",
                    "system": "x86_64-linux",
                    "phase": "leased",
                    "components": [{"name": "main", "resources": {"vms": 1}}],
                },
                held("g2", 0),
            ],
        ),
        [["fail g slot_gone", "assign r1 lab-2"]],
    ),
    "on_failure, fails for the first time at 10": (
        a_case(ask(0, "r1", **ON_FAILURE), tick(0), act(10, "fail", {"reservation": "r1"}), tick(10), slots=[host(A)]),
        [["assign r1 lab-1"], ["restart r1 restart_due", "assign r1 lab-1"]],
    ),
    "restarted at 10, fails at 30": (
        a_case(
            ask(0, "r1", **ON_FAILURE),
            tick(0),
            act(10, "fail", {"reservation": "r1"}),
            tick(10),
            act(30, "fail", {"reservation": "r1"}),
            tick(30),
            slots=[host(A)],
        ),
        [["assign r1 lab-1"], *[["restart r1 restart_due", "assign r1 lab-1"]] * 2],
    ),
    # strictly greater than 15 s, and no hole: the first tick after it restarts
    "fails again within the delay": (
        a_case(
            ask(0, "r1", **ON_FAILURE),
            tick(0),
            act(10, "fail", {"reservation": "r1"}),
            tick(10),
            act(12, "fail", {"reservation": "r1"}),
            *ticks(12, 20, 25, 25.001, 26),
            slots=[host(A)],
        ),
        [
            ["assign r1 lab-1"],
            ["restart r1 restart_due", "assign r1 lab-1"],
            [],
            [],
            [],
            ["restart r1 restart_due", "assign r1 lab-1"],
            [],
        ],
    ),
    "failed because a slot is gone: the following tick restarts it": (
        a_case(
            act(5, "remove", A), *ticks(5, 5, 6), slots=[host(A, "h"), host(B)], reservations=[held("h", **ON_FAILURE)]
        ),
        [["fail h slot_gone"], ["restart h restart_due", "assign h lab-2"], []],
    ),
    "a restart keeps the position in the queue": (
        a_case(
            ask(1, "young"),
            act(5, "fail", {"reservation": "old"}),
            tick(5),
            slots=[host(A, "old", resources={"vms": 1})],
            reservations=[held("old", created_at=-5, **ON_FAILURE)],
        ),
        [["restart old restart_due", "assign old lab-1", "young waits no_capacity"]],
    ),
    "while it waits for its restart it blocks no other reservation": (
        a_case(
            act(5, "fail", {"reservation": "old"}),
            tick(5),
            act(6, "fail", {"reservation": "old"}),
            ask(6, "young"),
            tick(6),
            slots=[host(A, "old", resources={"vms": 1})],
            reservations=[held("old", **ON_FAILURE)],
        ),
        [["restart old restart_due", "assign old lab-1"], ["assign young lab-1"]],
    ),
    "never: release, renew and priority do not change that it failed": (
        a_case(
            act(5, "fail", {"reservation": "h"}),
            act(6, "release", "h"),
            act(6, "renew", "h"),
            act(6, "priority", {"reservation": "h", "priority": 9}),
            tick(99),
            slots=[host(A, "h")],
            reservations=[held("h")],
        ),
        [[]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_hosts_and_restarts_follow_orchards_rules(name: str) -> None:
    document, expected = CASES[name]
    assert play_out(document).ticks == expected


def test_the_count_of_restarts_is_kept() -> None:
    played = play_out(CASES["restarted at 10, fails at 30"][0])
    assert played.reservation("r1")["restarts"] == 2
    assert played.reservation("r1")["restarted_at"] == 30


SKIPPED: dict[str, tuple[tuple[Document, ...], str]] = {
    # what happens between the plan and its commit, and how the reason begins
    "cordoned": ((act(0, "cordon", A),), "lab-1 takes no leases"),
    "gone": ((act(0, "remove", A),), "the slot does not exist any more"),
    "other labels": ((act(0, "slot", host(A, labels={})),), "lab-1 does not have the required labels"),
    "less room": (
        (act(0, "slot", host(A, resources={"vms": 0}, labels={"role": "test"})),),
        "lab-1 has too few resources left",
    ),
    "another machine": (
        (act(0, "slot", host(A, machine="m2", labels={"role": "test"})),),
        "lab-1 has another machine than planned",
    ),
    "cancelled": ((act(0, "cancel", "r1"),), "the reservation is cancelled"),
    "on hold": ((act(0, "priority", {"reservation": "r1", "priority": 0}),), "the reservation is on hold"),
}


@pytest.mark.parametrize("name", SKIPPED)
def test_an_assignment_is_checked_against_the_fresh_rows(name: str) -> None:
    """A decision that no longer holds is skipped with its reason; the rest of the tick continues."""
    between, reason = SKIPPED[name]
    steps = [{key: value for key, value in step.items() if key != "at"} for step in between]
    played = play_out(
        a_case(
            ask(0, "r1", labels={"role": "test"}),
            ask(0, "r2"),
            tick(0, *steps),
            slots=[host(A, machine="m1", labels={"role": "test"}), host(B)],
        )
    )
    assert played.ticks[0] == [f"assign r1 lab-1 (skipped: {reason})", "assign r2 lab-2"]
