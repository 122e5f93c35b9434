"""Commands for quota accounts and notices: output, requests, status."""

import csv
import json
from datetime import datetime
from io import StringIO
from typing import Any

import pytest
import yaml

from leasehold.cli.accounts import draw_balances
from scheduler.model.accounts import Account, BalanceSample
from scheduler.store.opening import open_store
from tests.builders import a_lease
from tests.cli.conftest import Run
from tests.client.intake import Document, FakeIntake, a_row, accept

CI = Account(
    id="ci",
    version=1,
    balance=(-1.5, 20.0, 0.0, 0.0, 0.0),
    charge_rate=(2.0, 1.0, 0.0, 0.0, 0.0),
    max_charge_seconds=600.0,
    charged_at=1_000.0,
    max_fanout=3,
    per_label_task_limits={"image": 2},
    disable_free_tasks=True,
    description="nightly builds",
)
LAB = Account(id="lab", version=1, forgotten_upto=4)


def answer_word(verb: str, document: Document) -> Document:
    if verb in {"account", "reset_account", "forget_account"}:
        return {"ok": True, "account": document["account"], "balance": [1.5, 0.0, 0.0, 0.0, 0.0]}
    return accept(verb, document)


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    """Return a stand-in with two accounts, and with reservations that run and wait for them."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    intake.handler = answer_word
    intake.publish(
        CI,
        LAB,
        Account(id="gone", version=2, forgotten=True),
        a_row("r1", phase="leased", account="ci", sequence=1, leases=(a_lease("linux-1", level=1),)),
        a_row("r2", phase="leased", account="ci", sequence=2, leases=(a_lease("linux-2", level=5),)),
        a_row("r3", account="ci", sequence=3, leases=(a_lease("linux-1", level=0, state="claimed"),)),
        a_row("r4", account="lab", sequence=4),  # submitted before the account was deleted
        a_row("r5", account="lab", sequence=5),
    )
    return intake


def stated(stack: FakeIntake) -> list[tuple[str, Document]]:
    return [
        (verb, {key: value for key, value in document.items() if key not in {"request", "reply_to"}})
        for verb, document in stack.seen
    ]


def test_accounts_are_listed_with_their_running_and_waiting_reservations(stack: FakeIntake, run: Run) -> None:
    ci, lab = json.loads(run("accounts", "list", "--json").out)
    assert (ci["id"], ci["balance"], ci["level"]) == ("ci", [-1.5, 20.0, 0.0, 0.0, 0.0], 1)
    assert (ci["running"], ci["waiting"]) == ([0, 1, 0, 0, 0, 1], 1)
    assert (lab["id"], lab["level"], lab["running"], lab["waiting"]) == ("lab", 5, [0] * 6, 1)
    rows = list(csv.DictReader(StringIO(run("accounts", "list", "-o", "csv").out)))
    assert [(row["account"], row["description"]) for row in rows] == [("ci", "nightly builds"), ("lab", "")]
    assert yaml.safe_load(run("accounts", "list", "-o", "yaml").out) == [ci, lab]
    shown = run("accounts", "list").out
    assert "-1.5 20 0 0 0" in shown
    assert "nightly builds" in shown
    assert "gone" not in shown


def test_show_prints_all_fields_of_an_account(stack: FakeIntake, run: Run) -> None:
    assert json.loads(run("accounts", "show", "ci", "--json").out)["per_label_task_limits"] == {"image": 2}
    shown = run("accounts", "show", "ci").out
    for text in ("nightly builds", "2 1 0 0 0, for 10 min", "3 alike", "image=2", "1: 1 free: 1", "wait"):
        assert text in shown
    found = run("accounts", "show", "cii")
    assert (found.status, found.complaints) == (1, ["leasehold: there is no account cii (did you mean ci?)"])


def test_the_status_has_the_best_level_of_each(stack: FakeIntake, run: Run) -> None:
    assert json.loads(run("status", "--json").out)["accounts"] == {"ci": 1, "lab": 5}
    assert "ci level 1  lab free" in run("status").out


def test_no_accounts_are_no_empty_table(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    assert run("accounts", "list").out == "no accounts: `leasehold accounts set NAME` creates one\n"
    assert json.loads(run("accounts", "list", "--json").out) == []


def test_set_sends_only_the_given_options(stack: FakeIntake, run: Run) -> None:
    words = "accounts set ci --charge-rate 2,0.5 --max-charge-seconds 10m --balance -5,3 --max-fanout 0 --limit image=2"
    found = run(*words.split(), "--disable-free-tasks", "--description", "")
    assert (found.status, found.out) == (0, "ci 1.5 0 0 0 0\n")
    assert run("accounts", "set", "lab", "--enable-free-tasks", "--json").status == 0
    assert run("accounts", "set", "new").status == 0
    assert stated(stack) == [
        (
            "account",
            {
                "account": "ci",
                "charge_rate": [2, 0.5],
                "max_charge_seconds": "10m",
                "balance": [-5, 3],
                "max_fanout": 0,
                "per_label_task_limits": {"image": 2},
                "disable_free_tasks": True,
                "description": "",
            },
        ),
        ("account", {"account": "lab", "disable_free_tasks": False}),
        ("account", {"account": "new"}),
    ]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("ci", "--charge-rate", "1,two"), 'charge_rate: expected a list of at most 5 numbers >= 0, got [1, "two"]'),
        (
            ("ci", "--charge-rate", "1,2,3,4,5,6"),
            "charge_rate: expected a list of at most 5 numbers >= 0, got [1, 2, 3, 4, 5, 6]",
        ),
        (
            ("ci", "--max-charge-seconds", "long"),
            'max_charge_seconds: expected a duration >= 0 (seconds, or like "30s", "15m", "1h"), got "long"',
        ),
        (("ci", "--balance", "all"), 'balance: expected a list of at most 5 numbers, got ["all"]'),
        (("ci", "--max-fanout", "-1"), "max_fanout: expected a whole number >= 0, got -1"),
        (("ci", "--limit", "image=few"), 'per_label_task_limits.image: expected a whole number >= 0, got "few"'),
        (("ci", "--limit", "image"), "Invalid value for --limit: expected name=value, got 'image' (see --help)"),
        (
            ("", "--max-fanout", "1"),
            'account: expected a name (letters, digits and ._:@/+-, at most 200 characters), got ""',
        ),
    ],
)
def test_values_are_checked_before_a_request_is_sent(words: tuple[str, ...], complaint: str, run: Run) -> None:
    """No stack runs, so a request could not be sent."""
    found = run("accounts", "set", *words)
    assert (found.status, found.complaints) == (2, [f"leasehold: {complaint}"])


def test_a_refusal_of_the_intake_is_printed_with_its_path_and_status_2(stack: FakeIntake, run: Run) -> None:
    faults = [{"index": 0, "path": "balance[1]", "expected": "another number", "got": "7"}]
    stack.handler = lambda _verb, _document: {"ok": False, "errors": faults}
    found = run("accounts", "set", "ci", "--balance", "1,7")
    assert (found.status, found.complaints) == (2, ["leasehold: balance[1]: expected another number, got 7"])


def test_unknown_accounts_are_refused_one_by_one(stack: FakeIntake, run: Run) -> None:
    fault = {"index": 0, "path": "account", "expected": "a known account", "got": '"unknown"', "code": "unknown"}
    stack.handler = lambda verb, document: (
        {"ok": False, "errors": [fault]} if document["account"] == "unknown" else answer_word(verb, document)
    )
    found = run("accounts", "reset", "unknown", "ci")
    assert (found.status, found.out) == (1, "ci 1.5 0 0 0 0\n")
    assert found.complaints == ["leasehold: there is no account unknown"]


class Terminal(StringIO):
    """Standard input that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_deleting_asks_on_a_terminal_only(stack: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("accounts", "delete", "ci").status == 0  # not a terminal
    for answer, status in (("n", 1), ("y", 0)):
        monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
        found = run("accounts", "delete", "ci", "lab")
        assert found.status == status
        assert "delete ci, lab with their balances?" in found.err
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert run("accounts", "delete", "lab", "--yes").status == 0
    assert stated(stack) == [("forget_account", {"account": name}) for name in ("ci", "ci", "lab", "lab")]


def test_balances_over_time_come_from_the_database(
    stack: FakeIntake, database: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.store.sql.SqlStore.now", lambda _store: 1_000.0)
    store = open_store(database)
    kept = [BalanceSample("ci", at, (0.0, at / 100, 0.0, 0.0, 0.0)) for at in (100.0, 820.0, 880.0, 940.0)]
    with store.transaction() as transaction:
        transaction.save_balances([*kept, BalanceSample("lab", 900.0, (7.0,) * 5)])
    store.close()
    found = json.loads(run("accounts", "show", "ci", "--json", "--samples", "--span", "3m").out)["samples"]
    assert [(each["at"], each["balance"][1]) for each in found] == [
        *((at, at / 100) for at in (820.0, 880.0, 940.0)),
        (1_000.0, 20.0),  # the present balance
    ]
    drawn = run("accounts", "show", "ci", "--plot", "--span", "1h").out
    assert "\x1b" not in drawn
    assert drawn.splitlines()[-1] == "balance by level: line of 0s = level 0, line of 1s = level 1"
    assert "20.0" in drawn


def a_sample(at: float, *balance: float) -> dict[str, Any]:
    return {"at": at, "balance": [*balance, *[0.0] * (5 - len(balance))]}


def test_the_higher_balance_is_drawn_higher() -> None:
    drawn = draw_balances([a_sample(at, 10.0, -5.0) for at in (0.0, 60.0)], 60.0, is_terminal=False).splitlines()
    rows = {level: [number for number, line in enumerate(drawn[:-1]) if line.count(level) > 50] for level in "01"}
    assert rows["0"] < rows["1"]
    assert len(rows["0"]) == len(rows["1"]) == 1


@pytest.mark.parametrize(("until", "seconds", "form"), [(60, 60, 8), (7_200, 7_200, 5), (7_200, 90_000, 11)])
def test_times_have_seconds_or_dates_only_if_needed(until: float, seconds: float, form: int) -> None:
    drawn = draw_balances([a_sample(at, 1.0) for at in (0.0, until)], seconds, is_terminal=False).splitlines()
    first = drawn[-2].split("  ")
    assert {len(each.strip()) for each in first if each.strip()} == {form}


def test_a_drawing_names_the_zone_of_its_times() -> None:
    drawn = draw_balances([a_sample(0.0, 1), a_sample(60.0, 2)], 60.0, is_terminal=False)
    assert f"time in {datetime.fromtimestamp(0).astimezone():%Z}" in drawn


@pytest.mark.parametrize(
    ("samples", "last"),
    [
        ([a_sample(0.0)], "the balance was 0 at every level"),
        ([a_sample(0.0, 0, 0, 3)], "balance by level: line of 2s = level 2"),  # a single sample
    ],
)
def test_a_short_history_is_drawn(samples: list[dict[str, Any]], last: str) -> None:
    assert draw_balances(samples, 60.0, is_terminal=True).splitlines()[-1] == last


def test_a_reservation_is_shown_with_what_its_leases_pay(
    stack: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.client.client.Client.now", lambda _client: 1_000.0)
    paying = {"level": 1, "cost": (0.0, 2.5, 0.0, 0.0, 0.0), "charged_at": 990.0, "weight": 0.5}
    stack.publish(
        a_row("r6", phase="leased", sequence=6, confirmed_at=1_000.0, leases=(a_lease("linux-3", **paying),)),
        a_row(
            "r7",
            phase="revoking",
            sequence=7,
            revoke_by=1_030.0,
            revoke_reason="preempted",
            leases=(a_lease("linux-4", state="revoking", level=5),),
        ),
        a_row("r8", sequence=8, leases=(a_lease("linux-4", state="claimed", level=0, charged_at=1_000.0),)),
    )
    shown = {name: " ".join(run("get", name).out.split()) for name in ("r6", "r7", "r8")}
    assert "lease main linux-3, level 1, used 0 7.5 0 0 0" in shown["r6"]
    assert "confirmed 1970-01-01T00:16:40Z (0.0 s ago)" in shown["r6"]
    assert "to be given back 1970-01-01T00:17:10Z (in 30 s): preempted" in shown["r7"]
    assert shown["r7"].endswith("lease main linux-4, revoking")
    assert "lease main linux-4, claimed, level 0, used 0 0 0 0 0" in shown["r8"]
    found = json.loads(run("get", "r6", "--json").out)
    assert (found["confirmed_at"], found["leases"][0]["level"], found["leases"][0]["cost"][1]) == (1_000.0, 1, 2.5)
    listed = [line.split() for line in run("list").out.splitlines()]
    assert [line[-1] for line in listed if line and line[0] in {"r6", "r8"}] == ["linux-3", "(claimed)"]


def test_notices_are_dated(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_row("r6", phase="leased", token=7, sequence=6, leases=(a_lease("linux-3", token=7),)))
    phases = {"r6": "leased"}
    stack.handler = lambda _verb, document: (
        {"ok": True, "slot": document["slot"], "state": "ready", "cordoned": False}
        if "reservation" not in document
        else {"ok": True, "reservation": document["reservation"], "phase": phases.get(document["reservation"])}
    )
    assert run("confirm", "r6", "--slot", "linux-3", "--as-of", "1970-01-01T00:01:40+00:00").out == "r6 leased\n"
    absent = run("absent", "unknown", "--as-of", "100.5")
    assert (absent.status, absent.out) == (0, "there is no reservation unknown\n")
    assert run("idle", "linux-3", "--label", "image=web", "--as-of", "1970-01-01T00:01:40").out == "linux-3 ready\n"
    assert stated(stack) == [
        ("confirm", {"reservation": "r6", "token": 7, "slot": "linux-3", "as_of": 100.0}),
        ("absent", {"reservation": "unknown", "as_of": 100.5}),
        ("idle", {"slot": "linux-3", "labels": {"image": "web"}, "as_of": 100.0}),
    ]


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("absent", "r1", "--as-of", "noon"), "expected seconds since the epoch or a time"),
        (("accounts", "show", "ci", "--span", "long"), "expected a duration like 90, 30m or 6h, got 'long'"),
        (("accounts", "show", "ci", "--span", "0"), "expected a duration"),
        (("accounts", "show"), "Missing argument 'ACCOUNT'"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(words: tuple[str, ...], complaint: str, run: Run) -> None:
    found = run(*words)
    assert (found.status, len(found.complaints)) == (2, 1)
    assert complaint in found.err
