"""A preemption is checked on fresh rows and committed together with its assignment, or not at all."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.model.decisions import Assign, Decision, Expire, Placement, Preempt, Relevel, Requeue
from scheduler.operations.ports import announce
from scheduler.operations.tick import commit as committing
from scheduler.operations.tick.commit import commit
from scheduler.operations.tick.heartbeat_intake import describe_host
from scheduler.operations.tick.leader import take_leader_term
from scheduler.operations.tick.tick import carry_out, decide, tick
from tests.operations.harness import NOW
from tests.operations.quota import QuotaHarness

LEASES = (Placement(component="main", slot="lab-1", epoch=1, resources={}),)
TAKE: tuple[Decision, Decision] = (
    Preempt(reservation="new", slot="lab-1", victims=("old",), level=0, leases=LEASES),
    Assign(reservation="new", leases=LEASES, level=0),
)


def a_harness(grace: float = 0, **fields: Any) -> QuotaHarness:
    """Return a harness where `old` runs at the free level without an account and `new` of account A is pending."""
    harness = QuotaHarness(grace=grace).with_leased("old", **fields)
    harness.submit("new", account="A")
    return harness


def write(harness: QuotaHarness, *decisions: Decision, charged: tuple[str, ...] = ()) -> list[str]:
    """Commit the decisions; return the reasons of the skipped ones."""
    leader_term = take_leader_term(harness.ports, harness.leader)
    done = commit(
        harness.store, decisions, harness.planned_rules, leader_term, harness.ports.new_id, harness.store.now(), charged
    )
    return [each.reason for skipped, *_ in done for each in skipped]


def change_host(**changes: Any) -> Callable[[QuotaHarness], object]:
    return lambda harness: harness.put(msgspec.structs.replace(harness.host(), **changes))


def change_lease(**changes: Any) -> Callable[[QuotaHarness], object]:
    def act(harness: QuotaHarness) -> None:
        row = harness.row("old")
        (lease,) = row.leases
        harness.put(msgspec.structs.replace(row, leases=(msgspec.structs.replace(lease, **changes),)))

    return act


def ask(verb: str, **fields: Any) -> Callable[[QuotaHarness], object]:
    return lambda harness: harness.ask(verb, **fields)


MEANWHILE: dict[str, tuple[Callable[[QuotaHarness], object], str]] = {
    "the victim was released": (
        lambda harness: harness.ask("release", reservation="old", token=harness.token("old")),
        "old has no lease on lab-1",
    ),
    "the victim was cancelled": (ask("cancel", reservation="old"), "old has no lease on lab-1"),
    "the victim is on another machine": (change_host(epoch=2), "old has no lease on lab-1"),
    "the victim runs at the same level": (change_lease(level=0), "old is not leased at a worse level"),
    "the victim has cost more than the balance": (
        change_lease(level=5, cost=(100.0, 0.0, 0.0, 0.0, 0.0)),
        "account A has too little balance to preempt old",
    ),
    "the balance fell": (ask("account", account="A", balance=[0]), "account A has too little balance to preempt old"),
    "the account was forgotten": (ask("forget_account", account="A"), "the reservation's account does not exist"),
    "the preempting reservation was cancelled": (ask("cancel", reservation="new"), "the reservation is cancelled"),
    "the preempting reservation is on hold": (
        ask("priority", reservation="new", priority=0),
        "the reservation is on hold",
    ),
    "the preempting reservation is suspended": (ask("suspend", reservation="new"), "the reservation is on hold"),
    "the host is cordoned": (ask("cordon", slot="lab-1"), "lab-1 takes no leases"),
    "the host drains": (ask("drain", slot="lab-1"), "lab-1 is draining"),
    "the host is to be drained": (change_host(drain_reason="requested"), "lab-1 takes no leases"),
    "the host is silent": (change_host(last_seen=NOW - 2e9), "lab-1 takes no leases"),
    "an unknown occupant is there": (change_host(stranger="ghost"), "lab-1 takes no leases"),
    "the host was removed": (ask("remove", slot="lab-1"), "old has no lease on lab-1"),
}


@pytest.mark.parametrize("grace", [0, 30])
@pytest.mark.parametrize("case", MEANWHILE)
def test_a_preemption_that_no_longer_holds_is_skipped_with_its_assignment(case: str, grace: float) -> None:
    change, reason = MEANWHILE[case]
    harness = a_harness(grace)
    harness.now += 1
    leader_term = take_leader_term(harness.ports, harness.leader)
    ticked = decide(harness.ports, harness.leader, leader_term)
    count = 1 if grace else 2
    assert [type(each) for each in ticked.plan.decisions] == [Preempt, Assign][:count]
    change(harness)
    before = (harness.row("old"), harness.row("new"), harness.balance("A"))
    harness.notifier.hear()
    carry_out(harness.ports, harness.leader, leader_term, ticked)
    assert [each.reason for each in ticked.skipped] == [reason] * count
    assert (harness.row("old"), harness.row("new"), harness.balance("A")) == before
    assert harness.notifier.is_rung


def test_a_reservation_that_is_not_preemptible_is_not_preempted() -> None:
    harness = a_harness(preemptible=False)
    assert write(harness, *TAKE) == ["old is not preemptible, or its min_run_time is not over"] * 2


def test_a_reservation_below_min_run_time_is_not_preempted() -> None:
    harness = QuotaHarness(min_run_time=60).with_leased("old")
    harness.submit("new", account="A")
    harness.now += 59
    assert write(harness, *TAKE) == ["old is not preemptible, or its min_run_time is not over"] * 2
    harness.now += 1
    assert write(harness, *TAKE) == []


def test_a_reservation_of_the_same_account_is_not_preempted() -> None:
    harness = QuotaHarness(accounts={"A": {"balance": [0]}}).with_leased("old", account="A")
    harness.submit("new", account="A")
    harness.ask("account", account="A", balance=[9])
    assert write(harness, *TAKE) == ["old belongs to the same account"] * 2


def test_work_from_before_an_account_was_forgotten_does_not_belong_to_the_new_account() -> None:
    """qscheduler: its leases continue unpaid; an account that is created again starts from zero."""
    harness = QuotaHarness(accounts={"A": {"balance": [0]}}).with_leased("old", account="A")
    harness.ask("forget_account", account="A")
    harness.ask("account", account="A", balance=[9])
    harness.submit("new", account="A")
    assert write(harness, *TAKE) == []
    assert (harness.phase("old"), harness.phase("new")) == ("pending", "leased")


def test_a_preemption_without_its_assignment_is_skipped() -> None:
    harness = a_harness()
    assert write(harness, TAKE[0]) == ["no assignment follows the preemption"]
    assert harness.phase("old") == "leased"


@pytest.mark.parametrize("before", [committing.CHUNK - 1, committing.CHUNK])
def test_no_chunk_ends_between_a_preemption_and_its_assignment(before: int) -> None:
    harness = a_harness()
    others = [Expire(reservation=f"gone-{number}") for number in range(before)]
    leader_term = take_leader_term(harness.ports, harness.leader)
    phases = [
        (harness.phase("old"), harness.phase("new"))
        for _ in commit(
            harness.store, [*others, *TAKE], harness.planned_rules, leader_term, harness.ports.new_id, harness.now
        )
    ]
    assert phases[-1] == ("pending", "leased")
    assert set(phases) <= {("leased", "pending"), ("pending", "leased")}
    assert len(phases) == 1 + (before == committing.CHUNK)


def test_without_a_grace_the_victim_is_pending_and_the_slot_has_a_new_token_at_once() -> None:
    harness = a_harness()
    token = harness.token("old")
    harness.now += 10
    tick(harness.ports, harness.leader)
    old, new = harness.row("old"), harness.row("new")
    assert (old.phase, old.reason, old.created_at, old.leases) == ("pending", "preempted", NOW, ())
    assert (new.phase, new.leases[0].level, new.leases[0].charged_at) == ("leased", 0, harness.now)
    assert new.token > token
    assert not harness.ask("renew", reservation="new", token=token)["ok"]
    assert harness.ask("renew", reservation="new", token=new.token)["ok"]


def test_events_name_the_preempting_and_the_preempted_reservation_and_the_level() -> None:
    harness = a_harness()
    tick(harness.ports, harness.leader)
    details = {
        event.name: event.detail for event in harness.events if event.name.startswith("reservation_") and event.detail
    }
    assert {key: details["reservation_pending"][key] for key in ("reason", "by", "level", "slot")} == {
        "reason": "preempted",
        "by": "new",
        "level": 0,
        "slot": "lab-1",
    }
    assert (details["reservation_leased"]["preempted"], details["reservation_leased"]["level"]) == (["old"], 0)


class TestWithAGrace:
    """The victim may run until the deadline. The claim of the preempting reservation keeps the slot for it."""

    def a_claim(self) -> QuotaHarness:
        harness = a_harness(30)
        tick(harness.ports, harness.leader)
        assert (harness.phase("old"), harness.phase("new")) == ("revoking", "pending")
        return harness

    def test_the_preempting_reservation_claims_the_slot_without_a_token_and_pays_from_then_on(self) -> None:
        harness = self.a_claim()
        old, (claim,) = harness.row("old"), harness.row("new").leases
        assert (old.revoke_reason, old.revoke_by) == ("preempted", harness.now + 30)
        assert (claim.state, claim.token, claim.level, claim.charged_at) == ("claimed", 0, 0, harness.now)
        harness.now += 4
        tick(harness.ports, harness.leader)
        assert harness.balance("A") == (96, 0, 0, 0, 0)

    def test_a_victim_that_surrenders_frees_the_slot_at_once(self) -> None:
        harness = self.a_claim()
        harness.now += 5
        assert harness.ask("surrender", reservation="old", token=harness.token("old"))["phase"] == "pending"
        assert harness.notifier.is_rung
        tick(harness.ports, harness.leader)
        (lease,) = harness.row("new").leases
        assert (lease.state, lease.level, lease.token) == ("held", 0, harness.token("new"))
        assert (lease.charged_at, lease.assigned_at) == (NOW, NOW + 5)
        assert harness.holders() == {"lab-1": ["new"]}

    def test_a_victim_that_renews_and_ignores_the_deadline_loses_the_lease_in_the_tick(self) -> None:
        harness = self.a_claim()
        token = harness.token("old")
        for _ in range(29):
            harness.now += 1
            answer = harness.ask("renew", reservation="old", token=token)
            assert (answer["phase"], answer["deadline"]) == ("revoking", NOW + 30)
            tick(harness.ports, harness.leader)
            assert harness.holders() == {"lab-1": ["old"]}
        harness.now += 1
        tick(harness.ports, harness.leader)
        assert (harness.row("old").phase, harness.row("old").reason) == ("pending", "preempted")
        assert harness.holders() == {"lab-1": ["new"]}
        assert not harness.ask("renew", reservation="new", token=token)["ok"]

    def test_a_free_slot_is_not_given_to_a_reservation_with_a_claim(self) -> None:
        harness = self.a_claim()
        harness.ask("register", slot="lab-2", pool="lab", machine="m2")
        harness.submit("third")
        tick(harness.ports, harness.leader)
        assert harness.holders() == {"lab-1": ["old"], "lab-2": ["third"]}

    def test_the_victim_is_not_charged_after_the_notice(self) -> None:
        harness = QuotaHarness(grace=30, accounts={"A": {"balance": [100]}, "B": {"balance": [0, 50]}}).with_leased(
            "old", account="B"
        )
        harness.now += 10
        harness.submit("new", account="A")
        tick(harness.ports, harness.leader)
        # B had paid 10 and gets them back; A pays them instead.
        assert (harness.balance("A"), harness.balance("B")) == ((100, -10, 0, 0, 0), (0, 50, 0, 0, 0))
        assert harness.row("new").leases[0].cost == (0, 10, 0, 0, 0)
        harness.now += 20
        tick(harness.ports, harness.leader)
        assert (harness.balance("A"), harness.balance("B")) == ((80, -10, 0, 0, 0), (0, 50, 0, 0, 0))

    @pytest.mark.parametrize(
        ("verb", "phase"), [("cancel", "cancelled"), ("suspend", "pending"), ("priority", "pending")]
    )
    def test_a_preempting_reservation_that_is_withdrawn_drops_its_claim(self, verb: str, phase: str) -> None:
        harness = self.a_claim()
        harness.now += 5
        harness.ask(verb, reservation="new", **({"priority": 0} if verb == "priority" else {}))
        assert (harness.phase("new"), harness.row("new").leases) == (phase, ())
        harness.now += 25
        tick(harness.ports, harness.leader)
        assert harness.balance("A") == (95, 0, 0, 0, 0)
        assert harness.holders() == {"lab-1": ["old"]}

    def test_a_claim_on_a_draining_host_is_dropped(self) -> None:
        harness = self.a_claim()
        harness.ask("drain", slot="lab-1")
        harness.ask("register", slot="lab-2", pool="lab", machine="m2")
        tick(harness.ports, harness.leader)
        assert "reservation_unclaimed" in [event.name for event in harness.events]
        tick(harness.ports, harness.leader)
        assert harness.holders() == {"lab-1": ["old"], "lab-2": ["new"]}

    @pytest.mark.parametrize("changes", [{}, {"cordoned": True}, {"stranger": "ghost"}], ids=str)
    def test_a_claim_is_not_dropped_while_its_slot_stays_in_service(self, changes: dict[str, Any]) -> None:
        harness = self.a_claim()
        change_host(**changes)(harness)
        assert write(harness, Requeue(reservation="new", reason="slot_gone")) == ["the claimed slot is not lost"]
        assert harness.row("new").leases[0].state == "claimed"

    @pytest.mark.parametrize(
        "changes",
        [{"state": "draining"}, {"drain_reason": "requested"}, {"interrupted_at": NOW}, {"last_seen": NOW - 2e9}],
        ids=str,
    )
    def test_a_claim_is_dropped_when_its_slot_leaves_service(self, changes: dict[str, Any]) -> None:
        harness = self.a_claim()
        change_host(**changes)(harness)
        assert write(harness, Requeue(reservation="new", reason="slot_gone")) == []
        assert harness.row("new").leases == ()

    def test_the_host_reads_leases_and_no_claims(self) -> None:
        harness = self.a_claim()
        leases = describe_host(harness.ports, "lab-1", "m1")["leases"]
        assert [(each["reservation"], each["state"]) for each in leases] == [("old", "revoking")]

    def test_events_name_the_claim_its_victim_and_the_deadline(self) -> None:
        harness = self.a_claim()
        (revoking,) = [event.detail for event in harness.events if event.name == "reservation_revoking"]
        assert (revoking["by"], revoking["level"], revoking["deadline"]) == ("new", 0, NOW + 30)
        (claimed,) = [event.detail for event in harness.events if event.name == "reservation_claimed"]
        assert (claimed["preempted"], claimed["deadline"]) == (["old"], NOW + 30)


class TestNotices:
    """The notices to the channels of reservations."""

    def published(self, harness: QuotaHarness, *decisions: Decision) -> list[tuple[str, str]]:
        leader_term = take_leader_term(harness.ports, harness.leader)
        harness.notifier.notices.clear()
        for skipped, change_set, _ in commit(
            harness.store, decisions, harness.planned_rules, leader_term, harness.ports.new_id, harness.now
        ):
            assert skipped == []
            announce(harness.ports, change_set, kick=False)
        return [(name, notice["event"]) for name, notice in harness.notifier.notices]

    def test_a_lease_is_published_although_its_level_changed_at_once(self) -> None:
        harness = QuotaHarness()
        harness.submit("r1", account="A")
        decisions = (Assign(reservation="r1", leases=LEASES, level=4), Relevel(reservation="r1", source=4, to=1))
        assert self.published(harness, *decisions) == [("r1", "leased")]
        assert harness.row("r1").leases[0].level == 1

    def test_a_claim_is_published_only_to_its_victim(self) -> None:
        preemption = msgspec.structs.replace(TAKE[0], revoke_by=NOW + 30)
        assert self.published(a_harness(30), preemption) == [("old", "revoking")]


class TestRelevel:
    def run(self, harness: QuotaHarness, source: int, to: int) -> list[str]:
        return write(harness, Relevel(reservation="old", source=source, to=to))

    def test_use_before_is_paid_at_the_old_level_and_use_after_at_the_new_one(self) -> None:
        harness = QuotaHarness().with_leased("old", account="A")
        harness.now += 10
        assert self.run(harness, 0, 1) == []
        harness.now += 5
        assert write(harness, charged=("A",)) == []
        (lease,) = harness.row("old").leases
        assert (lease.level, lease.cost) == (1, (10, 0, 0, 0, 0))
        assert harness.balance("A") == (90, -5, 0, 0, 0)

    def test_a_relevel_is_skipped_when_the_level_has_changed(self) -> None:
        harness = QuotaHarness().with_leased("old", account="A")
        assert self.run(harness, 1, 0) == ["the leases are at another level than planned"]

    def test_a_relevel_is_skipped_without_an_account(self) -> None:
        harness = QuotaHarness().with_leased("old", account="A")
        harness.ask("forget_account", account="A")
        assert self.run(harness, 0, 1) == ["the reservation's account does not exist"]

    def test_a_relevel_of_an_ended_reservation_is_skipped(self) -> None:
        harness = QuotaHarness().with_leased("old", account="A")
        harness.ask("cancel", reservation="old")
        assert self.run(harness, 0, 1) == ["the reservation is not leased"]
