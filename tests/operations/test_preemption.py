"""A preemption is tested on the rows as they are, and written with its assignment, or not at all."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from scheduler.model.accounts import add
from scheduler.model.decisions import Assign, Decision, Expire, Placement, Preempt, Relevel
from scheduler.operations.ports import announce
from scheduler.operations.tick import commit as committing
from scheduler.operations.tick.commit import commit
from scheduler.operations.tick.heartbeat_intake import describe_host
from scheduler.operations.tick.tick import carry_out, decide, take_leader_term, tick
from tests.operations.harness import NOW, Killed, Saboteur
from tests.operations.quota import QuotaHarness

PLACE = (Placement(component="main", slot="lab-1", epoch=1, resources={}),)
TAKE: tuple[Decision, Decision] = (
    Preempt(reservation="new", slot="lab-1", victims=("old",), level=0, leases=PLACE),
    Assign(reservation="new", leases=PLACE, level=0),
)


def a_rig(grace: float = 0, **fields: Any) -> QuotaHarness:
    """`old` runs at the free level without an account, `new` of account A waits."""
    harness = QuotaHarness(grace=grace).give("old", **fields)
    harness.submit("new", account="A")
    return harness


def write(harness: QuotaHarness, *decisions: Decision, charged: tuple[str, ...] = ()) -> list[str]:
    """Commit them; why some of them lost."""
    leader_term = take_leader_term(harness.ports, harness.leader)
    done = commit(
        harness.store, decisions, harness.ports.rules(), leader_term, harness.ports.new_id, harness.store.now(), charged
    )
    return [each.reason for skipped, _ in done for each in skipped]


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
    "the victim let go": (
        lambda harness: harness.ask("release", reservation="old", token=harness.token("old")),
        "old is not on lab-1",
    ),
    "the victim was cancelled": (ask("cancel", reservation="old"), "old is not on lab-1"),
    "the victim is on another machine": (change_host(epoch=2), "old is not on lab-1"),
    "the victim runs at an equal level": (change_lease(level=0), "old runs at no worse level"),
    "the victim costs as much": (
        change_lease(level=5, cost=(100.0, 0.0, 0.0, 0.0, 0.0)),
        "A has too little left for old",
    ),
    "the balance fell": (ask("account", account="A", balance=[0]), "A has too little left for old"),
    "the account was forgotten": (ask("forget_account", account="A"), "its account is gone"),
    "the newcomer was cancelled": (ask("cancel", reservation="new"), "it is cancelled"),
    "the newcomer is on hold": (ask("priority", reservation="new", priority=0), "it is on hold"),
    "the newcomer is suspended": (ask("suspend", reservation="new"), "it is on hold"),
    "the host is cordoned": (ask("cordon", slot="lab-1"), "lab-1 takes no leases"),
    "the host drains": (ask("drain", slot="lab-1"), "lab-1 is draining"),
    "an unknown occupant is there": (change_host(stranger="ghost"), "lab-1 takes no leases"),
    "the host was removed": (ask("remove", slot="lab-1"), "old is not on lab-1"),
}


@pytest.mark.parametrize("grace", [0, 30])
@pytest.mark.parametrize("case", MEANWHILE)
def test_what_no_longer_holds_is_skipped_as_a_whole_and_changes_nothing(case: str, grace: float) -> None:
    change, reason = MEANWHILE[case]
    harness = a_rig(grace)
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


def test_a_victim_that_may_not_be_preempted_is_none() -> None:
    harness = a_rig(preemptible=False)
    assert write(harness, *TAKE) == ["old may not be preempted"] * 2


def test_a_victim_that_has_not_run_for_its_time_is_none() -> None:
    harness = QuotaHarness(min_run_time=60).give("old")
    harness.submit("new", account="A")
    harness.now += 59
    assert write(harness, *TAKE) == ["old may not be preempted"] * 2
    harness.now += 1
    assert write(harness, *TAKE) == []


def test_no_reservation_preempts_work_of_its_own_account() -> None:
    harness = QuotaHarness(accounts={"A": {"balance": [0]}}).give("old", account="A")
    harness.submit("new", account="A")
    harness.ask("account", account="A", balance=[9])
    assert write(harness, *TAKE) == ["old is work of its own account"] * 2


def test_work_from_before_an_account_was_forgotten_does_not_belong_to_the_new_account() -> None:
    """qscheduler: its leases continue unpaid; an account that is created again starts from zero."""
    harness = QuotaHarness(accounts={"A": {"balance": [0]}}).give("old", account="A")
    harness.ask("forget_account", account="A")
    harness.ask("account", account="A", balance=[9])
    harness.submit("new", account="A")
    assert write(harness, *TAKE) == []
    assert (harness.phase("old"), harness.phase("new")) == ("pending", "leased")


def test_a_preemption_without_its_assignment_is_none() -> None:
    harness = a_rig()
    assert write(harness, TAKE[0]) == ["no assignment follows the preemption"]
    assert harness.phase("old") == "leased"


@pytest.mark.parametrize("before", [committing.CHUNK - 1, committing.CHUNK])
def test_no_chunk_ends_between_a_preemption_and_its_assignment(before: int) -> None:
    harness = a_rig()
    others = [Expire(reservation=f"gone-{number}") for number in range(before)]
    leader_term = take_leader_term(harness.ports, harness.leader)
    phases = [
        (harness.phase("old"), harness.phase("new"))
        for _ in commit(
            harness.store, [*others, *TAKE], harness.ports.rules(), leader_term, harness.ports.new_id, harness.now
        )
    ]
    assert phases[-1] == ("pending", "leased")
    assert set(phases) <= {("leased", "pending"), ("pending", "leased")}
    assert len(phases) == 1 + (before == committing.CHUNK)


def test_at_once_the_victim_waits_again_with_its_time_and_the_newcomer_has_another_token() -> None:
    harness = a_rig()
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
    harness = a_rig()
    tick(harness.ports, harness.leader)
    told = {
        event.name: event.detail for event in harness.events if event.name.startswith("reservation_") and event.detail
    }
    assert {key: told["reservation_pending"][key] for key in ("reason", "by", "level", "slot")} == {
        "reason": "preempted",
        "by": "new",
        "level": 0,
        "slot": "lab-1",
    }
    assert (told["reservation_leased"]["preempted"], told["reservation_leased"]["level"]) == (["old"], 0)


class TestWithAGrace:
    """The victim has until the deadline. The newcomer's claim keeps the slot from others."""

    def a_claim(self) -> QuotaHarness:
        harness = a_rig(30)
        tick(harness.ports, harness.leader)
        assert (harness.phase("old"), harness.phase("new")) == ("revoking", "pending")
        return harness

    def test_the_newcomer_claims_the_place_without_a_token_and_pays_from_then_on(self) -> None:
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

    def test_a_free_place_goes_to_others_than_who_has_a_claim(self) -> None:
        harness = self.a_claim()
        harness.ask("register", slot="lab-2", pool="lab", machine="m2")
        harness.submit("third")
        tick(harness.ports, harness.leader)
        assert harness.holders() == {"lab-1": ["old"], "lab-2": ["third"]}

    def test_the_victim_uses_nothing_up_after_the_notice(self) -> None:
        harness = QuotaHarness(grace=30, accounts={"A": {"balance": [100]}, "B": {"balance": [0, 50]}}).give(
            "old", account="B"
        )
        harness.now += 10
        harness.submit("new", account="A")
        tick(harness.ports, harness.leader)
        # B paid 10 and got them back; A has paid them.
        assert (harness.balance("A"), harness.balance("B")) == ((100, -10, 0, 0, 0), (0, 50, 0, 0, 0))
        assert harness.row("new").leases[0].cost == (0, 10, 0, 0, 0)
        harness.now += 20
        tick(harness.ports, harness.leader)
        assert (harness.balance("A"), harness.balance("B")) == ((80, -10, 0, 0, 0), (0, 50, 0, 0, 0))

    @pytest.mark.parametrize(
        ("verb", "phase"), [("cancel", "cancelled"), ("suspend", "pending"), ("priority", "pending")]
    )
    def test_a_newcomer_that_goes_leaves_its_claim(self, verb: str, phase: str) -> None:
        harness = self.a_claim()
        harness.now += 5
        harness.ask(verb, reservation="new", **({"priority": 0} if verb == "priority" else {}))
        assert (harness.phase("new"), harness.row("new").leases) == (phase, ())
        harness.now += 25
        tick(harness.ports, harness.leader)
        assert harness.balance("A") == (95, 0, 0, 0, 0)
        assert harness.holders() == {"lab-1": ["old"]}

    def test_a_claim_on_a_host_that_drains_is_dropped_and_nothing_refunded(self) -> None:
        harness = self.a_claim()
        harness.ask("drain", slot="lab-1")
        harness.ask("register", slot="lab-2", pool="lab", machine="m2")
        tick(harness.ports, harness.leader)
        assert "reservation_unclaimed" in [event.name for event in harness.events]
        tick(harness.ports, harness.leader)
        assert harness.holders() == {"lab-1": ["old"], "lab-2": ["new"]}

    def test_a_claim_is_not_dropped_while_its_place_is_there(self) -> None:
        from scheduler.model.decisions import Requeue

        harness = self.a_claim()
        assert write(harness, Requeue(reservation="new", reason="slot_gone")) == ["the slot that it claims is there"]
        assert harness.row("new").leases[0].state == "claimed"

    def test_the_host_reads_leases_and_no_claims(self) -> None:
        harness = self.a_claim()
        told = describe_host(harness.ports, "lab-1", "m1")["leases"]
        assert [(each["reservation"], each["state"]) for each in told] == [("old", "revoking")]

    def test_events_name_the_claim_its_victim_and_the_deadline(self) -> None:
        harness = self.a_claim()
        (told,) = [event.detail for event in harness.events if event.name == "reservation_revoking"]
        assert (told["by"], told["level"], told["deadline"]) == ("new", 0, NOW + 30)
        (claimed,) = [event.detail for event in harness.events if event.name == "reservation_claimed"]
        assert (claimed["preempted"], claimed["deadline"]) == (["old"], NOW + 30)


class TestNotices:
    """The notices to the channels of reservations."""

    def told(self, harness: QuotaHarness, *decisions: Decision) -> list[tuple[str, str]]:
        leader_term = take_leader_term(harness.ports, harness.leader)
        harness.notifier.notices.clear()
        for skipped, change_set in commit(
            harness.store, decisions, harness.ports.rules(), leader_term, harness.ports.new_id, harness.now
        ):
            assert skipped == []
            announce(harness.ports, change_set, kick=False)
        return [(name, notice["event"]) for name, notice in harness.notifier.notices]

    def test_a_lease_is_published_although_its_level_changed_at_once(self) -> None:
        harness = QuotaHarness()
        harness.submit("r1", account="A")
        decisions = (Assign(reservation="r1", leases=PLACE, level=4), Relevel(reservation="r1", source=4, to=1))
        assert self.told(harness, *decisions) == [("r1", "leased")]
        assert harness.row("r1").leases[0].level == 1

    def test_a_claim_is_published_only_to_its_victim(self) -> None:
        preemption = msgspec.structs.replace(TAKE[0], revoke_by=NOW + 30)
        assert self.told(a_rig(30), preemption) == [("old", "revoking")]


class TestRelevel:
    def run(self, harness: QuotaHarness, source: int, to: int) -> list[str]:
        return write(harness, Relevel(reservation="old", source=source, to=to))

    def test_use_before_is_paid_at_the_old_level_and_use_after_at_the_new_one(self) -> None:
        harness = QuotaHarness().give("old", account="A")
        harness.now += 10
        assert self.run(harness, 0, 1) == []
        harness.now += 5
        assert write(harness, charged=("A",)) == []
        (lease,) = harness.row("old").leases
        assert (lease.level, lease.cost) == (1, (10, 0, 0, 0, 0))
        assert harness.balance("A") == (90, -5, 0, 0, 0)

    def test_another_level_than_was_seen_is_skipped(self) -> None:
        harness = QuotaHarness().give("old", account="A")
        assert self.run(harness, 1, 0) == ["it runs at another level"]

    def test_without_its_account_it_is_skipped(self) -> None:
        harness = QuotaHarness().give("old", account="A")
        harness.ask("forget_account", account="A")
        assert self.run(harness, 0, 1) == ["its account is gone"]

    def test_what_has_ended_is_skipped(self) -> None:
        harness = QuotaHarness().give("old", account="A")
        harness.ask("cancel", reservation="old")
        assert self.run(harness, 0, 1) == ["it does not run"]


class Fight:
    """Two accounts on one full fleet; the saver preempts; with deaths on the way."""

    def __init__(self, saboteur: Saboteur, grace: float) -> None:
        self.harness, self.saboteur = (
            QuotaHarness(2, grace=grace).give("b1", account="B").give("b2", account="B"),
            saboteur,
        )
        self.harness.ask("account", account="B", balance=[0, 5])
        for name in ("b1", "b2"):
            row = self.harness.row(name)
            self.harness.put(msgspec.structs.replace(row, leases=(msgspec.structs.replace(row.leases[0], level=1),)))
        self.harness.submit("a1", account="A")
        self.sum = add(self.harness.balance("A"), self.harness.balance("B"))
        self.sabotage()

    def sabotage(self) -> None:
        ports, wrap = self.harness.ports, self.saboteur.wrap
        ports.store, ports.view_cache = wrap(ports.store, "store"), wrap(ports.view_cache, "board")

    def step(self, seconds: float) -> None:
        harness = self.harness
        harness.now += seconds
        try:
            tick(harness.ports, harness.leader)
        except Killed:
            harness.restart()
            harness.now += 16  # its lock ends
        self.look()

    def look(self) -> None:
        """Nothing is lost, and there are no two valid leases on one place, whatever was just written."""
        rows = self.harness.store.find_reservations(limit=10)
        assert {row.phase for row in rows} <= {"pending", "leased", "revoking"}
        assert all(len(names) == 1 for names in self.harness.holders().values())
        tokens = [row.token for row in rows if row.phase in {"leased", "revoking"}]
        assert len(set(tokens)) == len(tokens)

    def tell(self) -> "Fight":
        for _ in range(8):
            self.step(5)
        return self

    def ends_well(self) -> None:
        """One was preempted, once, and the account loses only what was used."""
        harness = self.harness
        assert harness.phase("a1") == "leased"
        assert sorted([harness.phase("b1"), harness.phase("b2")]) == ["leased", "pending"]
        events = [event.name for event in harness.events]
        assert events.count("reservation_leased") == 3
        assert sum("by" in event.detail for event in harness.events) == 1


@pytest.mark.parametrize("grace", [0, 12])
@pytest.mark.parametrize("afterwards", [False, True])
def test_the_fight_ends_the_same_wherever_the_leader_dies(grace: float, afterwards: bool) -> None:
    calm = Saboteur(0, afterwards=False)
    Fight(calm, grace).tell().ends_well()
    assert calm.calls > 60
    for at in range(1, calm.calls + 1, 2):
        Fight(Saboteur(at, afterwards=afterwards), grace).tell().ends_well()
