"""`list`, `slots` and `explain` for people: contents, filters, order and formats."""

import csv
import io
import json
import time
from typing import Any

import pytest
import redis
import yaml
from hypothesis import given
from hypothesis import strategies as some

from leasehold.cli.output import Cell, Column, _list_lines, fit
from scheduler.model import transitions
from scheduler.model.waits import Reason, Waits
from scheduler.protocol.states import PHASES, SLOT_STATES
from tests.builders import a_lease, a_slot
from tests.cli.conftest import Run
from tests.cli.terminal import run_on_terminal, strip_colours
from tests.client.intake import FakeIntake, a_row

HOUR = 3600.0


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    """Return a stand-in with a lease on each of two slots, a claim, a pending and an ended reservation."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    intake.handler = lambda _verb, _document: {"ok": True}
    now = time.time()
    intake.publish(
        a_slot(
            "linux-1", version=1, since=now - HOUR, resources={"cpus": 4, "memory_mib": 2048}, labels={"ssd": "yes"},
        ),
        a_slot("linux-2", version=1, since=now - 60, state="draining", resources={"cpus": 2}),
        a_slot("linux-3", version=1, state="empty"),
        a_row(
            "build-7", sequence=1, phase="leased", token=7, created_at=now - HOUR, leased_at=now - 1800,
            expires_at=now + 900, account="ci", tags={"run": "7"},
            leases=(
                a_lease("linux-1", token=7, resources={"cpus": 2, "memory_mib": 512}),
                a_lease("linux-1", component="more.0", kind="elastic", resources={"cpus": 1}),
            ),
        ),
        a_row(
            "build-8", sequence=2, phase="revoking", token=8, created_at=now - 600, revoke_reason="preempted",
            revoke_by=now + 60, account="lab", labels={"ssd": "yes"},
            leases=(a_lease("linux-2", token=8, state="revoking", resources={"cpus": 2}),),
        ),
        a_row(
            "build-9", sequence=3, created_at=now - 60, priority=9, account="ci",
            leases=(a_lease("linux-2", token=9, state="claimed", resources={"cpus": 2}),),
        ),
        a_row("build-10", sequence=4, created_at=now - 10, tags={"run": "7", "by": "nightly"}),
        a_row("build-0", sequence=0, phase="failed", reason="slot_gone", created_at=now - HOUR, finished_at=now - 30),
    )  # fmt: skip
    reasons: list[Reason] = [("no_capacity", "waits for build-8"), ("at_max_slots", "pool linux has 3 slots")]
    intake.view_cache.write_report({"at": now}, Waits(["build-9", "build-10"], reasons))
    return intake


def read(text: str) -> list[str]:
    """Return the lines of a table without spacing and header."""
    return [" ".join(line.split()) for line in text.splitlines()[2:]]


def ids(text: str) -> list[str]:
    return [row["id"] for row in json.loads(text)]


def test_slots_are_shown_with_their_reservations_and_use(stack: FakeIntake, run: Run) -> None:
    first, second = read(run("slots").out)
    assert "cpus 3/4 memory 512/2048 MiB build-7" in first
    assert "cpus 2/2 build-8 (revoking) build-9 (claimed)" in second


def test_each_waiting_reservation_is_shown_with_its_reason(stack: FakeIntake, run: Run) -> None:
    lines = read(run("list").out)
    assert lines[2].startswith("build-9 pending no_capacity: waits for build-8")
    assert lines[3].startswith("build-10 pending at_max_slots: pool linux has 3 slots")
    assert lines[1].startswith("build-8 revoking preempted, due in ")


def test_ended_ones_are_in_the_table_only_when_asked_for_and_always_in_documents(stack: FakeIntake, run: Run) -> None:
    plain = run("list").out
    assert "build-0" not in plain
    assert plain.splitlines()[-1] == "not shown: 1 ended (--all)"
    for words in (("--all",), ("--phase", "ended"), ("-o", "csv"), ("-o", "yaml"), ("--json",)):
        assert "build-0" in run("list", *words).out
    assert "slot_gone" in run("list", "--all").out


def test_json_has_the_rows_and_fields_of_the_client(stack: FakeIntake, run: Run) -> None:
    rows = json.loads(run("list", "--json").out)
    assert [row["id"] for row in rows] == ["build-0", "build-7", "build-8", "build-9", "build-10"]
    assert run("list", "-o", "json").out == run("list", "--json").out
    assert run("slots", "-o", "json").out == run("slots", "--json").out
    assert run("get", "build-7", "-o", "json").out == run("get", "build-7", "--json").out


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("--account ci", ["build-7", "build-9"]),
        ("--tag run=7", ["build-7", "build-10"]),
        ("--tag run=7 --tag by=nightly", ["build-10"]),
        ("--label ssd=yes", ["build-8"]),
        ("--older-than 5m", ["build-7", "build-8"]),
        ("--newer-than 5m", ["build-9", "build-10"]),
        ("--older-than 30 --newer-than 30m", ["build-8", "build-9"]),
        ("--sort -priority --limit 1", ["build-9"]),
        ("--sort age", ["build-10", "build-9", "build-8", "build-7"]),
        ("--sort -age", ["build-7", "build-8", "build-9", "build-10"]),
        ("--sort expires --limit 1", ["build-7"]),
        ("--sort position --limit 2", ["build-9", "build-10"]),
        ("--limit 1", ["build-10"]),
    ],
)
def test_reservations_are_filtered_and_sorted(words: str, wanted: list[str], stack: FakeIntake, run: Run) -> None:
    phases = ("--phase", "pending", "--phase", "leased", "--phase", "revoking")
    assert ids(run("list", *words.split(), *phases, "--json").out) == wanted


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("", ["linux-1", "linux-2"]),
        ("--all", ["linux-1", "linux-2", "linux-3"]),
        ("--state empty", ["linux-3"]),
        ("--account lab", ["linux-2"]),
        ("--tag run=7", ["linux-1"]),
        ("--label ssd=yes", ["linux-1"]),
        ("--older-than 30m", ["linux-1"]),
        ("--newer-than 30m", ["linux-2"]),
        ("--sort -id", ["linux-2", "linux-1"]),
        ("--sort age", ["linux-2", "linux-1"]),
    ],
)
def test_slots_are_filtered_and_sorted(words: str, wanted: list[str], stack: FakeIntake, run: Run) -> None:
    assert ids(run("slots", *words.split(), "--json").out) == wanted


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (
            "list --phase leesed",
            "expected one of pending, leased, revoking, released, cancelled, expired, failed, ended",
        ),
        (
            "list --sort prioritty",
            "expected one of id, phase, account, priority, age, expires, position, got 'prioritty'",
        ),
        ("list -o yml", "expected one of table, wide, json, yaml, csv, got 'yml' (did you mean yaml?)"),
        ("list --tag run", "expected name=value, got 'run'"),
        ("list --older-than soon", "expected a duration like 90, 30m or 6h, got 'soon'"),
        ("list --json -o yaml", "expected no other --output, got yaml"),
        ("slots --state reddy", "draining, terminating, error, stopped, got 'reddy' (did you mean ready?)"),
        ("slots --sort size", "expected one of id, pool, state, age, leases, zone, got 'size'"),
        ("get build-7 -o csv", "expected one of table, json, yaml, got 'csv'"),
    ],
)
def test_an_impossible_filter_is_refused(words: str, complaint: str, stack: FakeIntake, run: Run) -> None:
    found = run(*words.split())
    assert (found.status, found.out, len(found.complaints)) == (2, "", 1)
    assert complaint in found.err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("list --pool lunix", 'pool: expected one of empty, linux (did you mean "linux"?), got "lunix"'),
        ("list --system sparc", 'system: expected one of x86_64-linux, got "sparc"'),
        ("list --account shop", 'account: expected no name, because there is none yet, got "shop"'),
        ("slots --pool lunix", 'pool: expected one of empty, linux (did you mean "linux"?), got "lunix"'),
        ("slots --account shop", 'account: expected no name, because there is none yet, got "shop"'),
        ("events --name slot_reddy", "slot_ready, slot_draining"),
    ],
)
@pytest.mark.usefixtures("database")
def test_a_filter_by_a_name_that_does_not_exist_is_refused_with_those_that_do(
    words: str, complaint: str, stack: FakeIntake, run: Run
) -> None:
    pools = {"linux": {"system": "x86_64-linux"}, "empty": {"system": "x86_64-linux"}}
    stack.handler = lambda verb, _: (
        {"ok": True} | ({"version": 1, "document": {"pools": pools}} if verb == "rules" else {})
    )
    found = run(*words.split())
    assert (found.status, found.out, len(found.complaints)) == (2, "", 1)
    assert complaint in found.err
    # A pool of the rules without a slot, and an account of a reservation alone, are no mistakes.
    assert (run("slots", "--pool", "empty").out, run("list", "--account", "ci").status) == ("no slots\n", 0)


def test_tables_of_slots_have_a_limit(stack: FakeIntake, run: Run) -> None:
    assert "not shown: 2 more (--limit 1)" in run("slots", "--all", "--limit", "1").out
    assert ids(run("slots", "--limit", "1", "--json").out) == ["linux-1"]
    stack.publish(*(a_slot(f"more-{number}", version=1) for number in range(300)))
    assert run("slots").out.endswith("not shown: 102 more (--limit 200)\n")
    assert len(ids(run("slots", "--json").out)) == 302


def test_filters_know_the_phases_and_states_of_the_model() -> None:
    assert (PHASES, SLOT_STATES) == (transitions.PHASES, transitions.SLOT_STATES)


def test_csv_has_a_header_and_instants_with_their_zone(stack: FakeIntake, run: Run) -> None:
    rows = {row["id"]: row for row in csv.DictReader(io.StringIO(run("list", "-o", "csv").out))}
    assert rows["build-10"]["why"] == "at_max_slots: pool linux has 3 slots"
    assert (rows["build-7"]["slots"], rows["build-8"]["why"]) == ("linux-1", "preempted")
    assert rows["build-7"]["created_at"].endswith("Z")
    slots = {row["slot"]: row for row in csv.DictReader(io.StringIO(run("slots", "-o", "csv").out))}
    assert slots["linux-2"]["held_by"] == "build-8 (revoking) build-9 (claimed)"


def test_yaml_and_json_have_the_same_content(stack: FakeIntake, run: Run) -> None:
    for words in (("list",), ("slots",), ("get", "build-7")):
        shown = run(*words, "-o", "yaml").out
        assert yaml.safe_load(shown) == json.loads(run(*words, "--json").out)
        assert "[{" not in shown


SCALARS = some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text()
DOCUMENTS = some.recursive(
    SCALARS,
    lambda inner: some.lists(inner, max_size=3) | some.dictionaries(some.text(), inner, max_size=3),
    max_leaves=8,
)


@given(DOCUMENTS)
def test_every_document_is_read_back_from_its_yaml(document: Any) -> None:
    assert yaml.safe_load("\n".join(_list_lines(document))) == document


def test_wide_has_every_column_in_full(stack: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    narrow, wide = (strip_colours(run_on_terminal(monkeypatch, 60, "slots", *words)) for words in ((), ("-o", "wide")))
    assert "i-linux-1" not in narrow
    assert "build-8 (revoking) build-9 (claimed)" in wide
    assert {"machine", "address", "labels", "pool"} <= set(wide.splitlines()[0].split())


def test_states_are_coloured_on_a_terminal_only(stack: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b[32mleased" in run_on_terminal(monkeypatch, 120, "list")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in run_on_terminal(monkeypatch, 120, "list")
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" not in run("list").out


def test_less_important_columns_are_hidden_first() -> None:
    columns = [Column("id"), Column("why", "cut", 1), Column("slots", rank=2), Column("age", rank=3)]
    rows: list[list[Cell]] = [["a" * 10, "because " * 5, ("one-1", "two-2"), "10 min"]]
    assert fit(columns, rows, None) == ({0: 10, 1: 40, 2: 11, 3: 6}, False)
    assert fit(columns, rows, 60) == ({0: 10, 1: 27, 2: 11, 3: 6}, False)
    assert fit(columns, rows, 40) == ({0: 10, 1: 13, 2: 5, 3: 6}, True)
    assert fit(columns, rows, 33) == ({0: 10, 1: 14, 2: 5}, True)
    assert fit(columns, rows, 20) == ({0: 10}, False)
    long = [Column("id"), Column("why", "cut", 1, least=20), Column("slots", rank=2), Column("age", rank=3)]
    assert fit(long, rows, 43) == ({0: 10, 1: 24, 2: 5}, True)
    assert fit(long, rows, 24) == ({0: 10, 1: 12}, False)
    assert fit(columns, rows, 5) == ({0: 10}, True)


def test_explain_prints_slot_start_and_expiry_of_a_leased_reservation(stack: FakeIntake, run: Run) -> None:
    lines = run("explain", "build-7").out.splitlines()
    assert lines[0] == "build-7 is leased"
    assert lines[1] == "main: on linux-1 i-linux-1 10.0.0.1, with cpus=2 memory_mib=512"
    assert lines[2] == "more.0: on linux-1 i-linux-1 10.0.0.1, with cpus=1"
    assert lines[3].startswith("leased: 20")
    assert lines[3].endswith("Z (30 min ago), token 7")
    assert lines[4].endswith(", unless it is renewed")


def test_explain_prints_the_deadline_of_a_revoked_lease(stack: FakeIntake, run: Run) -> None:
    last = run("explain", "build-8").out.splitlines()[-1]
    assert last.startswith("to be given back: 20")
    assert last.endswith(", preempted")


def test_explain_prints_time_and_reason_of_an_end(stack: FakeIntake, run: Run) -> None:
    lines = run("explain", "build-0").out.splitlines()
    assert lines[0] == "build-0 is failed (slot_gone)"
    assert lines[1].startswith("ended: 20")
    assert lines[1].endswith("ago), slot_gone")


@pytest.mark.parametrize(
    ("words", "shown", "missing"),
    [
        (["slots"], "linux-1", "conditions are not shown"),
        (["explain", "build-10"], "pool linux has 3 slots", "this is the result of the last tick"),
    ],
)
def test_a_redis_that_takes_no_message_is_read_all_the_same(
    stack: FakeIntake, run: Run, redis_client: redis.Redis, words: list[str], shown: str, missing: str
) -> None:
    redis_client.config_set("maxmemory", 1)
    try:
        found = run(*words)
    finally:
        redis_client.config_set("maxmemory", 0)
    assert (found.status, shown in found.out) == (0, True)
    (line,) = found.complaints
    assert line.startswith("leasehold: no worker was asked (Redis at ")
    assert missing in line


def test_explain_reads_a_reservation_that_left_the_view_by_a_worker(stack: FakeIntake, run: Run) -> None:
    old = {"id": "r0", "phase": "released", "request": {"components": []}, "finished_at": 1_800_000_000.0}

    def answer(verb: str, _document: Any) -> Any:
        return {"ok": True, "reservations": [old]} if verb == "query" else {"ok": True, **old, "reservation": "r0"}

    stack.handler = answer
    found = run("explain", "r0")
    assert (found.status, found.out.splitlines()[0]) == (0, "r0 is released")
    assert "ended: 2027-01-15T08:00:00Z" in found.out
