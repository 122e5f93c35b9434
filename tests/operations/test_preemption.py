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
from tests.operations.quota import QuotaRig

PLACE = (Placement(component="main", slot="lab-1", epoch=1, resources={}),)
TAKE: tuple[Decision, Decision] = (
    Preempt(reservation="new", slot="lab-1", victims=("old",), level=0, leases=PLACE),
    Assign(reservation="new", leases=PLACE, level=0),
)


def a_rig(grace: float = 0, **fields: Any) -> QuotaRig:
    """`old` runs at the free level for nobody, `new` of account A waits."""
    rig = QuotaRig(grace=grace).give("old", **fields)
    rig.submit("new", account="A")
    return rig


def write(rig: QuotaRig, *decisions: Decision, charged: tuple[str, ...] = ()) -> list[str]:
    """Commit them; why some of them lost."""
    leader_term = take_leader_term(rig.ports, rig.leader)
    done = commit(rig.store, decisions, rig.ports.rules(), leader_term, rig.ports.new_id, rig.store.now(), charged)
    return [each.reason for skipped, _ in done for each in skipped]


def change_host(**changes: Any) -> Callable[[QuotaRig], object]:
    return lambda rig: rig.put(msgspec.structs.replace(rig.host(), **changes))


def change_lease(**changes: Any) -> Callable[[QuotaRig], object]:
    def act(rig: QuotaRig) -> None:
        row = rig.row("old")
        (lease,) = row.leases
        rig.put(msgspec.structs.replace(row, leases=(msgspec.structs.replace(lease, **changes),)))

    return act


def ask(verb: str, **fields: Any) -> Callable[[QuotaRig], object]:
    return lambda rig: rig.ask(verb, **fields)


MEANWHILE: dict[str, tuple[Callable[[QuotaRig], object], str]] = {
    "the victim let go": (
        lambda rig: rig.ask("release", reservation="old", token=rig.token("old")),
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
    "somebody whom nobody knows is there": (change_host(stranger="ghost"), "lab-1 takes no leases"),
    "the host was removed": (ask("remove", slot="lab-1"), "old is not on lab-1"),
}


@pytest.mark.parametrize("grace", [0, 30])
@pytest.mark.parametrize("case", MEANWHILE)
def test_what_no_longer_holds_is_skipped_as_a_whole_and_changes_nothing(case: str, grace: float) -> None:
    change, reason = MEANWHILE[case]
    rig = a_rig(grace)
    rig.now += 1
    leader_term = take_leader_term(rig.ports, rig.leader)
    ticked = decide(rig.ports, rig.leader, leader_term)
    count = 1 if grace else 2
    assert [type(each) for each in ticked.plan.decisions] == [Preempt, Assign][:count]
    change(rig)
    before = (rig.row("old"), rig.row("new"), rig.balance("A"))
    rig.notifier.hear()
    carry_out(rig.ports, rig.leader, leader_term, ticked)
    assert [each.reason for each in ticked.skipped] == [reason] * count
    assert (rig.row("old"), rig.row("new"), rig.balance("A")) == before
    assert rig.notifier.is_rung


def test_a_victim_that_may_not_be_preempted_is_none() -> None:
    rig = a_rig(preemptible=False)
    assert write(rig, *TAKE) == ["old may not be preempted"] * 2


def test_a_victim_that_has_not_run_for_its_time_is_none() -> None:
    rig = QuotaRig(min_run_time=60).give("old")
    rig.submit("new", account="A")
    rig.now += 59
    assert write(rig, *TAKE) == ["old may not be preempted"] * 2
    rig.now += 1
    assert write(rig, *TAKE) == []


def test_nobody_preempts_work_of_his_own_account() -> None:
    rig = QuotaRig(accounts={"A": {"balance": [0]}}).give("old", account="A")
    rig.submit("new", account="A")
    rig.ask("account", account="A", balance=[9])
    assert write(rig, *TAKE) == ["old is work of its own account"] * 2


def test_work_from_before_an_account_was_forgotten_is_nobody_s_to_the_new_one() -> None:
    """qscheduler: its leases run on unpaid; created again, the account starts anew."""
    rig = QuotaRig(accounts={"A": {"balance": [0]}}).give("old", account="A")
    rig.ask("forget_account", account="A")
    rig.ask("account", account="A", balance=[9])
    rig.submit("new", account="A")
    assert write(rig, *TAKE) == []
    assert (rig.phase("old"), rig.phase("new")) == ("pending", "leased")


def test_a_preemption_without_its_assignment_is_none() -> None:
    rig = a_rig()
    assert write(rig, TAKE[0]) == ["no assignment follows the preemption"]
    assert rig.phase("old") == "leased"


@pytest.mark.parametrize("before", [committing.CHUNK - 1, committing.CHUNK])
def test_no_chunk_ends_between_a_preemption_and_its_assignment(before: int) -> None:
    rig = a_rig()
    others = [Expire(reservation=f"gone-{number}") for number in range(before)]
    leader_term = take_leader_term(rig.ports, rig.leader)
    phases = [
        (rig.phase("old"), rig.phase("new"))
        for _ in commit(rig.store, [*others, *TAKE], rig.ports.rules(), leader_term, rig.ports.new_id, rig.now)
    ]
    assert phases[-1] == ("pending", "leased")
    assert set(phases) <= {("leased", "pending"), ("pending", "leased")}
    assert len(phases) == 1 + (before == committing.CHUNK)


def test_at_once_the_victim_waits_again_with_its_time_and_the_newcomer_has_another_token() -> None:
    rig = a_rig()
    token = rig.token("old")
    rig.now += 10
    tick(rig.ports, rig.leader)
    old, new = rig.row("old"), rig.row("new")
    assert (old.phase, old.reason, old.created_at, old.leases) == ("pending", "preempted", NOW, ())
    assert (new.phase, new.leases[0].level, new.leases[0].charged_at) == ("leased", 0, rig.now)
    assert new.token > token
    assert not rig.ask("renew", reservation="new", token=token)["ok"]
    assert rig.ask("renew", reservation="new", token=new.token)["ok"]


def test_events_say_who_took_whose_place_and_at_what_level() -> None:
    rig = a_rig()
    tick(rig.ports, rig.leader)
    told = {event.name: event.detail for event in rig.events if event.name.startswith("reservation_") and event.detail}
    assert {key: told["reservation_pending"][key] for key in ("reason", "by", "level", "slot")} == {
        "reason": "preempted",
        "by": "new",
        "level": 0,
        "slot": "lab-1",
    }
    assert (told["reservation_leased"]["preempted"], told["reservation_leased"]["level"]) == (["old"], 0)


class TestWithAGrace:
    """The victim has until the deadline; the newcomer keeps the place, and nobody else gets it."""

    def a_claim(self) -> QuotaRig:
        rig = a_rig(30)
        tick(rig.ports, rig.leader)
        assert (rig.phase("old"), rig.phase("new")) == ("revoking", "pending")
        return rig

    def test_the_newcomer_claims_the_place_without_a_token_and_pays_from_then_on(self) -> None:
        rig = self.a_claim()
        old, (claim,) = rig.row("old"), rig.row("new").leases
        assert (old.revoke_reason, old.revoke_by) == ("preempted", rig.now + 30)
        assert (claim.state, claim.token, claim.level, claim.charged_at) == ("claimed", 0, 0, rig.now)
        rig.now += 4
        tick(rig.ports, rig.leader)
        assert rig.balance("A") == (96, 0, 0, 0, 0)

    def test_who_lets_go_makes_room_at_once(self) -> None:
        rig = self.a_claim()
        rig.now += 5
        assert rig.ask("surrender", reservation="old", token=rig.token("old"))["phase"] == "pending"
        assert rig.notifier.is_rung
        tick(rig.ports, rig.leader)
        (lease,) = rig.row("new").leases
        assert (lease.state, lease.level, lease.token) == ("held", 0, rig.token("new"))
        assert (lease.charged_at, lease.assigned_at) == (NOW, NOW + 5)
        assert rig.holders() == {"lab-1": ["new"]}

    def test_who_renews_and_ignores_the_deadline_loses_the_lease_in_the_tick(self) -> None:
        rig = self.a_claim()
        token = rig.token("old")
        for _ in range(29):
            rig.now += 1
            answer = rig.ask("renew", reservation="old", token=token)
            assert (answer["phase"], answer["deadline"]) == ("revoking", NOW + 30)
            tick(rig.ports, rig.leader)
            assert rig.holders() == {"lab-1": ["old"]}
        rig.now += 1
        tick(rig.ports, rig.leader)
        assert (rig.row("old").phase, rig.row("old").reason) == ("pending", "preempted")
        assert rig.holders() == {"lab-1": ["new"]}
        assert not rig.ask("renew", reservation="new", token=token)["ok"]

    def test_a_free_place_goes_to_others_than_who_has_a_claim(self) -> None:
        rig = self.a_claim()
        rig.ask("register", slot="lab-2", pool="lab", machine="m2")
        rig.submit("third")
        tick(rig.ports, rig.leader)
        assert rig.holders() == {"lab-1": ["old"], "lab-2": ["third"]}

    def test_the_victim_uses_nothing_up_after_the_notice(self) -> None:
        rig = QuotaRig(grace=30, accounts={"A": {"balance": [100]}, "B": {"balance": [0, 50]}}).give("old", account="B")
        rig.now += 10
        rig.submit("new", account="A")
        tick(rig.ports, rig.leader)
        # B paid 10 and got them back; A has paid them.
        assert (rig.balance("A"), rig.balance("B")) == ((100, -10, 0, 0, 0), (0, 50, 0, 0, 0))
        assert rig.row("new").leases[0].cost == (0, 10, 0, 0, 0)
        rig.now += 20
        tick(rig.ports, rig.leader)
        assert (rig.balance("A"), rig.balance("B")) == ((80, -10, 0, 0, 0), (0, 50, 0, 0, 0))

    @pytest.mark.parametrize(
        ("verb", "phase"), [("cancel", "cancelled"), ("suspend", "pending"), ("priority", "pending")]
    )
    def test_a_newcomer_that_goes_leaves_its_claim(self, verb: str, phase: str) -> None:
        rig = self.a_claim()
        rig.now += 5
        rig.ask(verb, reservation="new", **({"priority": 0} if verb == "priority" else {}))
        assert (rig.phase("new"), rig.row("new").leases) == (phase, ())
        rig.now += 25
        tick(rig.ports, rig.leader)
        assert rig.balance("A") == (95, 0, 0, 0, 0)
        assert rig.holders() == {"lab-1": ["old"]}

    def test_a_claim_on_a_host_that_drains_is_dropped_and_nothing_refunded(self) -> None:
        rig = self.a_claim()
        rig.ask("drain", slot="lab-1")
        rig.ask("register", slot="lab-2", pool="lab", machine="m2")
        tick(rig.ports, rig.leader)
        assert "reservation_unclaimed" in [event.name for event in rig.events]
        tick(rig.ports, rig.leader)
        assert rig.holders() == {"lab-1": ["old"], "lab-2": ["new"]}

    def test_a_claim_is_not_dropped_while_its_place_is_there(self) -> None:
        from scheduler.model.decisions import Requeue

        rig = self.a_claim()
        assert write(rig, Requeue(reservation="new", reason="slot_gone")) == ["the slot that it claims is there"]
        assert rig.row("new").leases[0].state == "claimed"

    def test_the_host_hears_of_who_is_there_and_not_of_who_waits_for_it(self) -> None:
        rig = self.a_claim()
        told = describe_host(rig.ports, "lab-1", "m1")["leases"]
        assert [(each["reservation"], each["state"]) for each in told] == [("old", "revoking")]

    def test_events_tell_who_claims_the_place_of_whom_until_when(self) -> None:
        rig = self.a_claim()
        (told,) = [event.detail for event in rig.events if event.name == "reservation_revoking"]
        assert (told["by"], told["level"], told["deadline"]) == ("new", 0, NOW + 30)
        (claimed,) = [event.detail for event in rig.events if event.name == "reservation_claimed"]
        assert (claimed["preempted"], claimed["deadline"]) == (["old"], NOW + 30)


class TestNotices:
    """What waiters are told, as hints."""

    def told(self, rig: QuotaRig, *decisions: Decision) -> list[tuple[str, str]]:
        leader_term = take_leader_term(rig.ports, rig.leader)
        rig.notifier.notices.clear()
        for skipped, change_set in commit(
            rig.store, decisions, rig.ports.rules(), leader_term, rig.ports.new_id, rig.now
        ):
            assert skipped == []
            announce(rig.ports, change_set, kick=False)
        return [(name, notice["event"]) for name, notice in rig.notifier.notices]

    def test_a_lease_is_told_of_though_its_level_changed_at_once(self) -> None:
        rig = QuotaRig()
        rig.submit("r1", account="A")
        decisions = (Assign(reservation="r1", leases=PLACE, level=4), Relevel(reservation="r1", source=4, to=1))
        assert self.told(rig, *decisions) == [("r1", "leased")]
        assert rig.row("r1").leases[0].level == 1

    def test_a_claim_is_no_news_but_for_who_has_to_go(self) -> None:
        preemption = msgspec.structs.replace(TAKE[0], revoke_by=NOW + 30)
        assert self.told(a_rig(30), preemption) == [("old", "revoking")]


class TestRelevel:
    def run(self, rig: QuotaRig, source: int, to: int) -> list[str]:
        return write(rig, Relevel(reservation="old", source=source, to=to))

    def test_use_before_is_paid_at_the_old_level_and_use_after_at_the_new_one(self) -> None:
        rig = QuotaRig().give("old", account="A")
        rig.now += 10
        assert self.run(rig, 0, 1) == []
        rig.now += 5
        assert write(rig, charged=("A",)) == []
        (lease,) = rig.row("old").leases
        assert (lease.level, lease.cost) == (1, (10, 0, 0, 0, 0))
        assert rig.balance("A") == (90, -5, 0, 0, 0)

    def test_another_level_than_was_seen_is_skipped(self) -> None:
        rig = QuotaRig().give("old", account="A")
        assert self.run(rig, 1, 0) == ["it runs at another level"]

    def test_without_its_account_it_is_skipped(self) -> None:
        rig = QuotaRig().give("old", account="A")
        rig.ask("forget_account", account="A")
        assert self.run(rig, 0, 1) == ["its account is gone"]

    def test_what_has_ended_is_skipped(self) -> None:
        rig = QuotaRig().give("old", account="A")
        rig.ask("cancel", reservation="old")
        assert self.run(rig, 0, 1) == ["it does not run"]


class Fight:
    """Two accounts on one full fleet; the saver preempts; with deaths on the way."""

    def __init__(self, saboteur: Saboteur, grace: float) -> None:
        self.rig, self.saboteur = QuotaRig(2, grace=grace).give("b1", account="B").give("b2", account="B"), saboteur
        self.rig.ask("account", account="B", balance=[0, 5])
        for name in ("b1", "b2"):
            row = self.rig.row(name)
            self.rig.put(msgspec.structs.replace(row, leases=(msgspec.structs.replace(row.leases[0], level=1),)))
        self.rig.submit("a1", account="A")
        self.sum = add(self.rig.balance("A"), self.rig.balance("B"))
        self.sabotage()

    def sabotage(self) -> None:
        ports, wrap = self.rig.ports, self.saboteur.wrap
        ports.store, ports.view_cache = wrap(ports.store, "store"), wrap(ports.view_cache, "board")

    def step(self, seconds: float) -> None:
        rig = self.rig
        rig.now += seconds
        try:
            tick(rig.ports, rig.leader)
        except Killed:
            rig.restart()
            rig.now += 16  # its lock ends
        self.look()

    def look(self) -> None:
        """Nothing is lost, and there are no two valid leases on one place, whatever was just written."""
        rows = self.rig.store.find_reservations(limit=10)
        assert {row.phase for row in rows} <= {"pending", "leased", "revoking"}
        assert all(len(names) == 1 for names in self.rig.holders().values())
        tokens = [row.token for row in rows if row.phase in {"leased", "revoking"}]
        assert len(set(tokens)) == len(tokens)

    def tell(self) -> "Fight":
        for _ in range(8):
            self.step(5)
        return self

    def ends_well(self) -> None:
        """One was preempted, once, and nothing of what was saved is lost but for what was used."""
        rig = self.rig
        assert rig.phase("a1") == "leased"
        assert sorted([rig.phase("b1"), rig.phase("b2")]) == ["leased", "pending"]
        events = [event.name for event in rig.events]
        assert events.count("reservation_leased") == 3
        assert sum("by" in event.detail for event in rig.events) == 1


@pytest.mark.parametrize("grace", [0, 12])
@pytest.mark.parametrize("afterwards", [False, True])
def test_the_fight_ends_the_same_wherever_the_leader_dies(grace: float, afterwards: bool) -> None:
    calm = Saboteur(0, afterwards=False)
    Fight(calm, grace).tell().ends_well()
    assert calm.calls > 60
    for at in range(1, calm.calls + 1, 2):
        Fight(Saboteur(at, afterwards=afterwards), grace).tell().ends_well()
