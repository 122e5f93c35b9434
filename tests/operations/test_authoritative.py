"""Authoritative words and words about accounts, as requests: who may say them, and what is answered."""

from functools import partial
from typing import Any

import pytest

from scheduler.operations.commands.intake import accept
from tests.operations.harness import NOW
from tests.operations.quota import QuotaRig
from tests.operations.test_races import Open, Rivals, ask, assign, lead, leases_on, open_one, race, write

__all__ = ["open_one"]
NOBODY = {"ok": True, "reservation": "ghost", "phase": None, "expires_at": None, "token": None, "deadline": None}


class TestConfirm:
    def test_a_holder_needs_the_token_to_move_what_is_leased_and_gets_another(self) -> None:
        rig = QuotaRig(2).give("r1")
        token = rig.token("r1")
        assert rig.ask("confirm", reservation="r1", slot="lab-2")["errors"][0]["path"] == "token"
        answer = rig.ask("confirm", reservation="r1", slot="lab-2", token=token)
        assert (answer["ok"], answer["phase"], answer["token"] > token) == (True, "leased", True)
        assert not rig.ask("renew", reservation="r1", token=token)["ok"]
        assert rig.holders() == {"lab-2": ["r1"]}

    def test_neither_an_operator_nor_one_about_a_pending_reservation_needs_one(self) -> None:
        rig = QuotaRig(2).give("r1")
        word = {"request": "q", "reservation": "r1", "slot": "lab-2"}
        assert accept(rig.ports, "confirm", word, operator=True)["ok"]
        rig.submit("r2")
        assert rig.ask("confirm", reservation="r2", slot="lab-1")["phase"] == "leased"
        assert rig.holders() == {"lab-2": ["r1"], "lab-1": ["r2"]}

    def test_whom_it_contradicts_is_published_and_asks_for_a_tick(self) -> None:
        rig = QuotaRig().give("r1")
        rig.submit("r2")
        rig.notifier.hear()
        rig.ask("confirm", reservation="r2", slot="lab-1")
        assert rig.notifier.is_rung
        view = rig.ports.view_cache.load()
        assert view is not None
        assert {row.id: row.phase for row in view.reservations.values()} == {"r1": "pending", "r2": "leased"}

    def test_of_one_that_nobody_knows_the_answer_names_no_phase(self) -> None:
        rig = QuotaRig().give("r1")
        assert rig.ask("confirm", reservation="ghost", slot="lab-1") == NOBODY
        assert (rig.phase("r1"), rig.host().stranger) == ("pending", "ghost")

    def test_the_cost_of_whom_it_contradicts_is_paid_for(self) -> None:
        rig = QuotaRig().give("r1", account="A")
        rig.submit("r2")
        rig.now += 8
        rig.ask("confirm", reservation="r2", slot="lab-1")
        rig.now += 8
        rig.tick()
        assert rig.balance("A") == (92, 0, 0, 0, 0)

    def test_a_confirmation_that_is_older_is_answered_and_changes_nothing(self) -> None:
        rig = QuotaRig().give("r1")
        before = rig.row("r1")
        answer = rig.ask("confirm", reservation="r1", slot="lab-1", token=before.token, as_of=NOW - 1)
        assert (answer["ok"], rig.row("r1")) == (True, before)

    def test_a_gang_is_moved_nowhere(self) -> None:
        """Nobody could tell which of its instances is meant."""
        rig = QuotaRig(3).give("r1", components=[{"name": "node", "count": 2}])
        answer = rig.ask("confirm", reservation="r1", slot="lab-3", token=rig.token("r1"))
        assert answer["errors"][0]["path"] == "slot"
        assert rig.holders() == {"lab-1": ["r1"], "lab-2": ["r1"]}


class TestAbsentAndIdle:
    def test_absent_needs_no_token_and_is_answered_with_what_became_of_it(self) -> None:
        rig = QuotaRig().give("r1")
        assert rig.ask("absent", reservation="r1")["phase"] == "released"
        assert rig.ask("absent", reservation="r1")["phase"] == "released"
        assert rig.ask("absent", reservation="ghost") == NOBODY

    def test_idle_is_answered_with_the_slot(self) -> None:
        rig = QuotaRig().give("r1")
        rig.ask("confirm", reservation="r1", token=rig.token("r1"))
        assert rig.ask("idle", slot="lab-1", labels={"img": "2"}) == {
            "ok": True,
            "slot": "lab-1",
            "state": "ready",
            "cordoned": False,
        }
        assert (rig.phase("r1"), rig.host().labels) == ("released", {"img": "2"})

    def test_of_a_slot_that_nobody_knows_it_is_refused(self) -> None:
        assert QuotaRig().ask("idle", slot="lab-9")["errors"][0]["path"] == "slot"

    @pytest.mark.parametrize("verb", ["confirm", "idle"])
    def test_what_is_as_believed_changes_only_times_and_asks_for_no_tick(self, verb: str) -> None:
        rig = QuotaRig(2).give("r1")
        word: dict[str, Any] = (
            {"reservation": "r1", "token": rig.token("r1")} if verb == "confirm" else {"slot": "lab-2"}
        )
        versions = rig.row("r1").version, rig.host("lab-2").version
        rig.notifier.hear()
        assert rig.ask(verb, **word)["ok"]
        assert (rig.row("r1").version, rig.host("lab-2").version) == versions
        assert not rig.notifier.is_rung
        assert verb == "confirm" or rig.host("lab-2").noted_at == NOW


class TestAccounts:
    def test_one_is_created_changed_reset_and_forgotten_and_answers_with_its_balance(self) -> None:
        rig = QuotaRig()
        said = [
            rig.ask("account", account="C", balance=[5], charge_rate=[1, 2]),
            rig.ask("account", account="C", max_fanout=3),
            rig.ask("reset_account", account="C"),
            rig.ask("forget_account", account="C"),
        ]
        assert [(each["account"], each["balance"][0]) for each in said] == [("C", 5), ("C", 5), ("C", 0), ("C", 0)]
        assert [event.name for event in rig.events if event.detail.get("account") == "C"] == [
            "account_set",
            "account_set",
            "account_reset",
            "account_forgotten",
        ]

    @pytest.mark.parametrize("verb", ["reset_account", "forget_account"])
    def test_one_that_nobody_knows_is_refused(self, verb: str) -> None:
        assert QuotaRig().ask(verb, account="Z")["errors"][0]["path"] == "account"

    def test_a_repeat_is_answered_and_published_again(self) -> None:
        rig = QuotaRig()
        first = rig.ask("account", request="q", account="C", balance=[5])
        rig.ports.view_cache.rebuild([])
        assert rig.ask("account", request="q", account="C", balance=[5]) == first
        view = rig.ports.view_cache.load()
        assert view is not None
        assert list(view.accounts) == ["C"]

    def test_of_a_list_each_is_heeded_or_refused_by_itself(self) -> None:
        rig = QuotaRig()
        answer = rig.ask("account", items=[{"account": "C"}, {"account": "D", "balance": ["x"]}, {"account": "A"}])
        assert [each["ok"] for each in answer["results"]] == [True, False, True]

    def test_a_change_asks_for_a_tick(self) -> None:
        rig = QuotaRig()
        rig.notifier.hear()
        rig.ask("account", account="C")
        assert rig.notifier.is_rung


def test_a_confirmation_against_an_assignment(open_one: Open) -> None:
    """Whoever comes first: the slot holds what was confirmed there, and nobody else."""
    rivals = Rivals(open_one)
    lead(rivals.first)
    for number in range(3):
        slot = rivals.make_ready(f"linux-{number + 1}")
        for side in "ab":
            rivals.first.submit(f"{side}{number}")
        word = {"request": f"q{number}", "reservation": f"b{number}", "slot": slot.id}
        lost, answer = race(
            partial(write, rivals.first, assign(f"a{number}", slot)),
            partial(ask, rivals.second.ports, "confirm", **word),
        )
        assert isinstance(answer, dict)
        assert answer["ok"]
        assert leases_on(rivals.store, slot.id) == [f"b{number}"]
        assert (lost, rivals.first.phase(f"a{number}")) in (
            ([], "pending"),
            ([f"{slot.id} is taken"], "pending"),
        )
