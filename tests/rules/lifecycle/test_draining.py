"""Slots that are drained, lost or removed, and slots that come back."""

import pytest
from msgspec.structs import replace

from scheduler.model.decisions import Drain, Launch, Requeue, Revoke, Terminate
from scheduler.model.view import View
from scheduler.policy.plan import plan
from tests.builders import NOW, a_component, a_lease, a_reservation, some_rules
from tests.builders import a_slot as a_slot_row
from tests.rules.playing import (
    ON_ONE,
    Cases,
    a_holder,
    a_pool,
    a_scenario,
    a_slot,
    act,
    play_out,
    reported,
    submit,
    tick,
    ticks,
)

DRAINS: Cases = {
    "without leases: terminated by the next tick": (
        a_scenario(act(0, "drain", "linux-1"), *ticks(0, 5), slots=[a_slot("linux-1")]),
        [["terminate linux-1 drained"], []],
    ),
    "its leases run on until they end": (
        a_scenario(act(0, "drain", "linux-1"), *ticks(0, 9000), act(9001, "release", "r1"), tick(9002), **ON_ONE),
        [[], [], ["terminate linux-1 drained"]],
    ),
    "it takes no new leases": (
        a_scenario(act(0, "drain", "linux-1"), submit(0, "r2"), tick(0), pool={"max_leases_per_slot": 2}, **ON_ONE),
        [["launch linux-2 demand", "r2 waits booting"]],
    ),
    # for at least drain_timeout
    "until drain_timeout": (
        a_scenario(
            act(5, "drain", "linux-1"), *ticks(64, 65, 66), pool={"drain_timeout": 60, "max_slots": 1}, **ON_ONE
        ),
        [
            [],
            ["requeue r1 slot_draining", "terminate linux-1 timeout", "r1 waits at_max_slots"],
            ["launch linux-1 demand", "r1 waits booting"],
        ],
    ),
    "in flight: terminated by the next tick": (
        a_scenario(act(0, "drain", "linux-1"), tick(0), slots=[a_slot("linux-1", "booting")], cloud={"boot": 60}),
        [["terminate linux-1 requested"]],
    ),
    "an empty or terminating slot stays as it is": (
        a_scenario(
            act(0, "drain", "linux-1"),
            act(0, "drain", "linux-2"),
            tick(0),
            slots=[a_slot("linux-2", "terminating")],
            cloud={"terminate": 60},
        ),
        [[]],
    ),
    "an expired lease lets the slot end in the same tick": (
        a_scenario(
            act(0, "drain", "linux-1"),
            *ticks(0, 10),
            slots=[a_slot("linux-1", "ready", "r1")],
            reservations=[a_holder("r1", ttl=10)],
        ),
        [[], ["expire r1 ttl", "terminate linux-1 drained"]],
    ),
    "a static host becomes empty, and nothing is terminated": (
        a_scenario(
            act(0, "drain", "hosts-1"),
            *ticks(0, 5),
            pools={"hosts": {"system": "x86_64-linux", "provider": "static"}},
            slots=[a_slot("hosts-1")],
        ),
        [["reset hosts-1 drained"], []],
    ),
}


@pytest.mark.parametrize("name", DRAINS)
def test_a_drained_slot_ends_according_to_its_leases_and_timeouts(name: str) -> None:
    document, expected = DRAINS[name]
    assert play_out(document).ticks == expected


def test_a_lost_slot_is_empty_at_once_and_its_reservations_fail_in_the_next_tick() -> None:
    played = play_out(a_scenario(act(0, "lose", "linux-1"), *ticks(0, 5), **ON_ONE))
    assert played.ticks == [["fail r1 slot_gone"], []]
    assert played.events == ["0 slot_empty linux-1", "0 reservation_failed r1"]


def test_other_slots_and_their_leases_are_untouched() -> None:
    assert reported(
        act(0, "remove", "linux-1"),
        *ticks(0, 5),
        slots=[a_slot("linux-1", "ready", "r1"), a_slot("linux-2", "ready", "r2")],
        reservations=[a_holder("r1"), a_holder("r2")],
    ) == [["fail r1 slot_gone"], []]


def test_a_removed_slot_may_be_declared_again_at_once() -> None:
    hosts = {"hosts": {"system": "x86_64-linux", "provider": "static"}}
    assert reported(
        act(1, "remove", "hosts-1"),
        submit(1, "r1"),
        tick(1),
        act(2, "slot", a_slot("hosts-1")),
        tick(2),
        pools=hosts,
        slots=[a_slot("hosts-1")],
    ) == [["r1 waits never_fits"], ["assign r1 hosts-1"]]


def test_slots_come_back_when_the_maximum_is_raised_again() -> None:
    assert reported(
        act(1, "rules", {"pools": {"linux": {"max_slots": 1}}}),
        act(2, "rules", {"pools": {"linux": {"max_slots": 3, "min_slots": 3}}}),
        tick(2),
        pool=a_pool(),
    ) == [["launch linux-1 minimum", "launch linux-2 minimum", "launch linux-3 minimum"]]


def test_a_revoking_reservation_on_a_slot_past_its_drain_timeout_is_an_ordinary_pending_one() -> None:
    """Its grace has not ended; it waits for one slot and not for a second one that replaces the lease."""
    slots = [a_slot_row(state="draining", since=NOW - 60)]
    slots += [a_slot_row(f"linux-{number}", state="empty", epoch=0) for number in (2, 3)]
    leaving = a_reservation("r1", phase="revoking", revoke_by=NOW + 60, leases=(a_lease(state="revoking"),))
    found = plan(View([*slots, leaving]), some_rules({"pools": {"linux": {"drain_timeout": 60}}}), NOW)
    assert [each.reason for each in found.decisions if isinstance(each, Requeue)] == ["slot_draining"]
    assert [each.reason for each in found.decisions if isinstance(each, Launch)] == ["demand"]
    assert dict(found.waiting.items())["r1"][0] == "booting"


def test_at_its_drain_timeout_a_slot_ends_elastic_leases_alone_if_their_reservation_goes_on() -> None:
    """`r1` and `r3` have their essential leases elsewhere. `r2` is requeued as a whole, without a decision for each
    lease. The leases of `r3` are being revoked already.
    """
    parts = (a_component(), a_component("more", kind="elastic"))
    more = a_lease(component="more", kind="elastic")
    holders = [
        a_reservation(name, phase="leased", components=parts, leases=(a_lease(slot), more), sequence=number)
        for number, (name, slot) in enumerate([("r1", "linux-2"), ("r2", "linux-1"), ("r3", "linux-2")])
    ]
    holders[2] = replace(holders[2], phase="revoking", revoke_by=NOW + 60)
    slots = [a_slot_row(state="draining", since=NOW - 60), a_slot_row("linux-2")]
    rules = some_rules({"pools": {"linux": {"drain_timeout": 60, "max_slots": 2, "max_leases_per_slot": 3}}})
    ends = (Requeue, Revoke, Terminate)
    found = [each for each in plan(View([*slots, *holders]), rules, NOW).decisions if isinstance(each, ends)]
    assert found == [
        Requeue(reservation="r2", reason="slot_draining"),
        Revoke(reservation="r1", component="more", slot="linux-1", reason="slot_draining", epoch=1),
        Terminate(slot="linux-1", reason="timeout"),
    ]


def test_a_draining_slot_with_nothing_but_a_claim_ends_in_the_tick_that_ends_the_claim() -> None:
    claimant = a_reservation(leases=(a_lease(state="claimed", token=0),))
    found = plan(View([a_slot_row(state="draining"), claimant]), some_rules(), NOW)
    assert found.decisions[:2] == (
        Requeue(reservation="r1", reason="slot_draining"),
        Terminate(slot="linux-1", reason="drained"),
    )


def test_of_a_pool_that_is_no_longer_configured_machines_end_and_hosts_stay() -> None:
    rows = [a_slot_row("old-1"), a_slot_row("old-2", state="empty"), a_slot_row("old-3", launch_id=None, machine="m-3")]
    found = plan(View(rows), some_rules(), NOW)
    assert found.decisions == (Drain(slot="old-1", reason="unconfigured"),)
