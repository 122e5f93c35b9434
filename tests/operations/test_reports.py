"""Observed-state reports and commands about accounts, as requests: allowed senders and answers."""

from functools import partial
from typing import Any

import pytest

from scheduler.operations.commands.intake import accept
from tests.operations.harness import NOW
from tests.operations.quota import QuotaHarness
from tests.operations.test_races import Open, Rivals, ask, assign, lead, leases_on, open_one, race, write

__all__ = ["open_one"]
UNKNOWN_ANSWER = {
    "ok": True,
    "reservation": "ghost",
    "phase": None,
    "expires_at": None,
    "token": None,
    "deadline": None,
}


class TestConfirm:
    def test_a_holder_needs_the_token_to_report_another_slot_and_gets_a_new_token(self) -> None:
        harness = QuotaHarness(2).with_leased("r1")
        token = harness.token("r1")
        assert harness.ask("confirm", reservation="r1", slot="lab-2")["errors"][0]["path"] == "token"
        answer = harness.ask("confirm", reservation="r1", slot="lab-2", token=token)
        assert (answer["ok"], answer["phase"], answer["token"] > token) == (True, "leased", True)
        assert not harness.ask("renew", reservation="r1", token=token)["ok"]
        assert harness.holders() == {"lab-2": ["r1"]}

    def test_an_operator_and_a_report_about_a_pending_reservation_need_no_token(self) -> None:
        harness = QuotaHarness(2).with_leased("r1")
        report = {"request": "q", "reservation": "r1", "slot": "lab-2"}
        assert accept(harness.ports, "confirm", report, operator=True)["ok"]
        harness.submit("r2")
        assert harness.ask("confirm", reservation="r2", slot="lab-1")["phase"] == "leased"
        assert harness.holders() == {"lab-2": ["r1"], "lab-1": ["r2"]}

    def test_a_contradicted_reservation_is_published_and_requests_a_tick(self) -> None:
        harness = QuotaHarness().with_leased("r1")
        harness.submit("r2")
        harness.notifier.hear()
        harness.ask("confirm", reservation="r2", slot="lab-1")
        assert harness.notifier.is_rung
        view = harness.ports.view_cache.load()
        assert view is not None
        assert {row.id: row.phase for row in view.reservations.values()} == {"r1": "pending", "r2": "leased"}

    def test_a_report_whose_transaction_began_before_the_assignment_that_it_contradicts_is_no_old_report(self) -> None:
        """A transaction reads its time before it waits for the rows that the assignment has locked."""
        harness = QuotaHarness().with_leased("r1")
        harness.submit("r2")
        harness.now -= 0.25
        assert harness.ask("confirm", reservation="r2", slot="lab-1")["phase"] == "leased"
        assert (harness.holders(), harness.phase("r1")) == ({"lab-1": ["r2"]}, "pending")
        assert harness.row("r2").confirmed_at == harness.now + 0.25

    def test_the_answer_for_an_unknown_reservation_names_no_phase(self) -> None:
        harness = QuotaHarness().with_leased("r1")
        assert harness.ask("confirm", reservation="ghost", slot="lab-1") == UNKNOWN_ANSWER
        assert (harness.phase("r1"), harness.host().stranger) == ("pending", "ghost")

    def test_the_cost_of_a_contradicted_lease_is_paid(self) -> None:
        harness = QuotaHarness().with_leased("r1", account="A")
        harness.submit("r2")
        harness.now += 8
        harness.ask("confirm", reservation="r2", slot="lab-1")
        harness.now += 8
        harness.tick()
        assert harness.balance("A") == (92, 0, 0, 0, 0)

    def test_an_outdated_confirmation_is_answered_and_changes_nothing(self) -> None:
        harness = QuotaHarness().with_leased("r1")
        before = harness.row("r1")
        answer = harness.ask("confirm", reservation="r1", slot="lab-1", token=before.token, as_of=NOW - 1)
        assert (answer["ok"], harness.row("r1")) == (True, before)

    def test_a_gang_cannot_be_reported_on_another_slot(self) -> None:
        """The report does not name an instance."""
        harness = QuotaHarness(3).with_leased("r1", components=[{"name": "node", "count": 2}])
        answer = harness.ask("confirm", reservation="r1", slot="lab-3", token=harness.token("r1"))
        assert answer["errors"][0]["path"] == "slot"
        assert harness.holders() == {"lab-1": ["r1"], "lab-2": ["r1"]}


class TestAbsentAndIdle:
    def test_absent_needs_no_token_and_is_answered_with_the_phase(self) -> None:
        harness = QuotaHarness().with_leased("r1")
        assert harness.ask("absent", reservation="r1")["phase"] == "released"
        assert harness.ask("absent", reservation="r1")["phase"] == "released"
        assert harness.ask("absent", reservation="ghost") == UNKNOWN_ANSWER

    def test_idle_is_answered_with_the_slot(self) -> None:
        harness = QuotaHarness().with_leased("r1")
        harness.ask("confirm", reservation="r1", token=harness.token("r1"))
        assert harness.ask("idle", slot="lab-1", labels={"img": "2"}) == {
            "ok": True,
            "slot": "lab-1",
            "state": "ready",
            "cordoned": False,
        }
        assert (harness.phase("r1"), harness.host().labels) == ("released", {"img": "2"})

    def test_a_report_about_an_unknown_slot_is_refused(self) -> None:
        assert QuotaHarness().ask("idle", slot="lab-9")["errors"][0]["path"] == "slot"

    @pytest.mark.parametrize("verb", ["confirm", "idle"])
    def test_a_report_of_the_known_state_changes_only_times_and_requests_no_tick(self, verb: str) -> None:
        harness = QuotaHarness(2).with_leased("r1")
        report: dict[str, Any] = (
            {"reservation": "r1", "token": harness.token("r1")} if verb == "confirm" else {"slot": "lab-2"}
        )
        versions = harness.row("r1").version, harness.host("lab-2").version
        harness.notifier.hear()
        assert harness.ask(verb, **report)["ok"]
        assert (harness.row("r1").version, harness.host("lab-2").version) == versions
        assert not harness.notifier.is_rung
        assert verb == "confirm" or harness.host("lab-2").noted_at == NOW


class TestAccounts:
    def test_an_account_is_created_changed_reset_and_forgotten_and_each_answer_has_its_balance(self) -> None:
        harness = QuotaHarness()
        answers = [
            harness.ask("account", account="C", balance=[5], charge_rate=[1, 2]),
            harness.ask("account", account="C", max_fanout=3),
            harness.ask("reset_account", account="C"),
            harness.ask("forget_account", account="C"),
        ]
        assert [(each["account"], each["balance"][0]) for each in answers] == [("C", 5), ("C", 5), ("C", 0), ("C", 0)]
        assert [event.name for event in harness.events if event.detail.get("account") == "C"] == [
            "account_set",
            "account_set",
            "account_reset",
            "account_forgotten",
        ]

    @pytest.mark.parametrize("verb", ["reset_account", "forget_account"])
    def test_an_unknown_reservation_is_refused(self, verb: str) -> None:
        assert QuotaHarness().ask(verb, account="Z")["errors"][0]["path"] == "account"

    def test_a_repeat_is_answered_and_published_again(self) -> None:
        harness = QuotaHarness()
        first = harness.ask("account", request="q", account="C", balance=[5])
        harness.ports.view_cache.rebuild([])
        assert harness.ask("account", request="q", account="C", balance=[5]) == first
        view = harness.ports.view_cache.load()
        assert view is not None
        assert list(view.accounts) == ["C"]

    def test_each_item_of_a_list_is_applied_or_refused_by_itself(self) -> None:
        harness = QuotaHarness()
        answer = harness.ask("account", items=[{"account": "C"}, {"account": "D", "balance": ["x"]}, {"account": "A"}])
        assert [each["ok"] for each in answer["results"]] == [True, False, True]

    def test_a_change_of_an_account_requests_a_tick(self) -> None:
        harness = QuotaHarness()
        harness.notifier.hear()
        harness.ask("account", account="C")
        assert harness.notifier.is_rung


def test_a_confirmation_and_an_assignment_at_once_leave_only_the_confirmed_lease(open_one: Open) -> None:
    """In any order of commits, the slot has only the confirmed lease."""
    rivals = Rivals(open_one)
    lead(rivals.first)
    for number in range(3):
        slot = rivals.make_ready(f"linux-{number + 1}")
        for side in "ab":
            rivals.first.submit(f"{side}{number}")
        report = {"request": f"q{number}", "reservation": f"b{number}", "slot": slot.id}
        lost, answer = race(
            partial(write, rivals.first, assign(f"a{number}", slot)),
            partial(ask, rivals.second.ports, "confirm", **report),
        )
        assert isinstance(answer, dict)
        assert answer["ok"]
        assert leases_on(rivals.store, slot.id) == [f"b{number}"]
        assert (lost, rivals.first.phase(f"a{number}")) in (
            ([], "pending"),
            ([f"{slot.id} has its maximum number of leases"], "pending"),
        )
