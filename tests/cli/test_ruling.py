"""Rules on the command line: preview, confirmation before anything is taken away, earlier versions."""

import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from leasehold.cli import ruling
from scheduler.model.slots import Slot
from scheduler.store.opening import open_store
from tests.builders import a_lease, a_reservation
from tests.cli.conftest import Run
from tests.cli.test_accounts import Terminal
from tests.client.intake import FakeIntake

LARGE = '\n[[pools.linux.offerings]]\nname = "large"\nprice = 4\nresources = { cpus = 8 }\n'
RULES = '[pools.linux]\nsystem = "x86_64-linux"\nmax_slots = 2\n\n[[pools.linux.offerings]]\nname = "small"\n'
RULES += "price = 1\nresources = { cpus = 2 }\n" + LARGE
TAKING = RULES.replace(LARGE, "").replace("max_slots = 2", "max_slots = 3")
SUM = "1 machine goes"
DRAINS = "linux-1: drains, its leases continue until they end (unconfigured): build-1"


@pytest.fixture
def database(intake: FakeIntake, run: Run, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """Return a database with RULES in force (version 1), where `build-1` runs on a large machine."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", sqlite_url)
    (tmp_path / "rules.toml").write_text(RULES)
    (tmp_path / "taking.toml").write_text(TAKING)
    (tmp_path / "more.toml").write_text(RULES.replace("max_slots = 2", "max_slots = 4"))
    assert run("apply", "rules.toml").status == 0
    with closing(open_store(sqlite_url)) as store, store.transaction() as transaction:
        (empty,) = transaction.load_slots(["linux-1"]).values()
        now = transaction.now()
        machine: dict[str, Any] = {
            "state": "ready",
            "epoch": 1,
            "offering": "large",
            "market": "spot",
            "instance_id": "i-1",
        }
        slot = Slot(version=empty.version, id="linux-1", pool="linux", since=now, last_seen=now, **machine)
        transaction.save([slot])
        lease = a_lease("linux-1", resources={"cpus": 8.0}, assigned_at=now, confirmed_at=now)
        row = a_reservation("build-1", phase="leased", token=1, leases=(lease,), created_at=now, changed_at=now)
        transaction.insert_reservations([row])
    return sqlite_url


def version(database: str) -> int:
    with closing(open_store(database)) as store:
        return store.rules_version()


def test_a_dry_run_prints_changes_and_consequences_and_applies_nothing(database: str, run: Run) -> None:
    found = run("apply", "--dry-run", "taking.toml")
    assert (found.status, found.complaints) == (0, [])
    assert found.out.splitlines() == [
        "changes to rules version 1:",
        "  pools.linux.max_slots: 2 -> 3",
        "  pools.linux.offerings.large/spot: removed",
        "consequences:",
        f"  {DRAINS}",
    ]
    document = json.loads(run("apply", "--dry-run", "taking.toml", "--json").out)
    assert (document["version"], document["changed"], document["dry_run"], document["takes_away"]) == (1, *(True,) * 3)
    assert [change["path"] for change in document["changes"]] == [
        "pools.linux.max_slots",
        "pools.linux.offerings.large/spot",
    ]
    (departure,) = document["departures"]
    assert departure == {"slot": "linux-1", "action": "drain", "reason": "unconfigured", "reservations": ["build-1"]}
    assert run("apply", "--dry-run", "rules.toml").out == "rules version 1, unchanged\n"
    assert run("apply", "--dry-run", "more.toml").out.splitlines()[-1] == "consequences: none in the next tick"
    assert version(database) == 1


def test_without_a_terminal_a_change_that_takes_something_away_needs_yes(database: str, run: Run) -> None:
    found = run("apply", "taking.toml")
    line = f"leasehold: {SUM}: nothing was changed; --dry-run shows the details, --yes applies the rules"
    assert (found.status, found.out, found.complaints) == (1, "", [line])
    assert version(database) == 1
    assert run("apply", "more.toml").out == "rules version 2\n"
    found = run("apply", "taking.toml", "--yes", "--json")
    document = json.loads(found.out)
    assert (found.status, document["version"], document["changed"], len(document["departures"])) == (0, 3, True, 1)


def test_on_a_terminal_the_command_asks(database: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer, status, in_force in (("n", 1, 1), ("y", 0, 2)):
        monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
        found = run("apply", "taking.toml")
        assert (found.status, version(database)) == (status, in_force)
        assert DRAINS in found.err
        assert f"{SUM}: apply it?" in found.err
    monkeypatch.setattr("sys.stdin", Terminal(""))
    assert run("apply", "rules.toml").status == 0


def test_earlier_rules_are_kept_shown_and_applied_again(database: str, run: Run) -> None:
    run("apply", "more.toml")
    run("apply", "taking.toml", "--yes")
    found = json.loads(run("rules", "history", "--json").out)
    assert [(each["version"], each["source"], each["changes"]) for each in found] == [
        (1, "leasehold apply rules.toml", ["pools.linux: added"]),
        (2, "leasehold apply more.toml", ["pools.linux.max_slots: 2 -> 4"]),
        (
            3,
            "leasehold apply taking.toml",
            ["pools.linux.max_slots: 4 -> 3", "pools.linux.offerings.large/spot: removed"],
        ),
    ]
    assert "leasehold apply more.toml" in run("rules", "history", "--limit", "2").out
    assert len(json.loads(run("rules", "history", "--limit", "2", "--json").out)) == 2
    first = json.loads(run("rules", "show", "--version", "1", "--json").out)
    assert (first["version"], first["rules"]["pools"]["linux"]["max_slots"]) == (1, 2)
    assert "pools.linux.max_slots: 3 -> 2" in run("rules", "rollback", "1", "--dry-run").out
    assert run("rules", "rollback", "1").out == "rules version 4\n"
    assert run("rules", "rollback", "1").out == "rules version 4, unchanged\n"
    assert json.loads(run("rules", "show", "--json").out) == {"version": 4, "rules": first["rules"]}
    # Apply the rules without the offering again, which takes the machine away again.
    assert run("rules", "rollback", "3").status == 1
    assert run("rules", "rollback", "3", "--yes").out == "rules version 5\n"
    assert json.loads(run("rules", "history", "--json").out)[-1]["source"] == "leasehold rules rollback 3"


def test_a_change_is_never_broken_within_its_values(
    database: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = ", ".join(f'"sg-{number:017}"' for number in range(9))
    (tmp_path / "long.toml").write_text(
        f'[pools.linux]\nsystem = "x"\nmax_slots = 2\nec2 = {{ security_groups = [{groups}] }}\n'
    )
    (tmp_path / "short.toml").write_text('[pools.linux]\nsystem = "x"\nmax_slots = 2\n')
    assert [run("apply", name, "--yes").status for name in ("short.toml", "long.toml")] == [0, 0]
    changes = json.loads(run("rules", "history", "--json").out)[-1]["changes"]
    assert [f"  {each}" for each in changes[:3]] == run("rules", "history", "--limit", "1").out.splitlines()[1:4]
    monkeypatch.setattr(ruling, "find_width", lambda: 40)
    lines = run("rules", "history").out.splitlines()
    assert lines[0].startswith("version 1, 20")
    assert max(len(line) for line in lines if not line.startswith("version")) <= 40
    begins = ("version ", "  pools.", "    ", "  and ")
    assert [line for line in lines if not line.startswith(begins)] == []


def test_single_keys_of_the_rules_are_set_as_a_new_version(database: str, run: Run) -> None:
    assert run("rules", "set", "pools.linux.max_slots=7", "--dry-run").out.count("pools.linux.max_slots: 2 -> 7") == 1
    assert run("rules", "set", "pools.linux.max_slots=7", "pools.linux.labels.disk='ssd'").out == "rules version 2\n"
    pool = json.loads(run("rules", "show", "--json").out)["rules"]["pools"]["linux"]
    assert (pool["max_slots"], pool["labels"]) == (7, {"disk": "ssd"})
    source = "leasehold rules set pools.linux.max_slots=7 pools.linux.labels.disk='ssd'"
    assert json.loads(run("rules", "history", "--json").out)[-1]["source"] == source


@pytest.mark.parametrize("text", ["pools.linux.max_slots", "pools.linux.max_slots=", "=5", "pools.linux.max_slotz=5"])
def test_a_value_that_is_none_changes_nothing(database: str, run: Run, text: str) -> None:
    found = run("rules", "set", text)
    assert (found.status, len(found.complaints)) == (2, 1)
    assert json.loads(run("rules", "show", "--json").out)["version"] == 1


@pytest.mark.parametrize("words", [("rules", "show", "--version", "9"), ("rules", "rollback", "9")])
def test_an_unknown_version_is_one_line(database: str, run: Run, words: tuple[str, ...]) -> None:
    found = run(*words)
    line = "leasehold: there is no version 9 of the rules: `leasehold rules history` lists them"
    assert (found.status, found.complaints) == (1, [line])
    assert version(database) == 1


def test_a_dry_run_needs_the_database_alone(database: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEHOLD_BROKER__URL")
    assert "pools.linux.max_slots: 2 -> 4" in run("apply", "--dry-run", "more.toml").out
    found = run("apply", "more.toml")
    assert (found.status, len(found.complaints), version(database)) == (1, 1, 1)


def test_without_redis_a_change_is_reported_as_applied(
    database: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", "redis://127.0.0.1:1/0")
    found = run("apply", "more.toml")
    assert (found.status, found.out, version(database)) == (1, "", 2)
    (line,) = found.complaints
    assert line.startswith("leasehold: the rules are in force and are announced once Redis is back: Redis: ")


@pytest.mark.parametrize("variable", ["slot", "launch_id"])
def test_apply_prints_which_pools_launch_their_machines_one_by_one(
    database: str, run: Run, tmp_path: Path, variable: str
) -> None:
    named = RULES.replace("max_slots = 2", f"max_slots = 2\nec2.user_data = 'echo ${{{variable}}}'")
    (tmp_path / "named.toml").write_text(named)
    found = run("apply", "named.toml", "--yes")
    assert (found.status, found.out) == (0, "rules version 2\n")
    (note,) = found.complaints
    assert note.startswith("leasehold: note: config.pools.linux.ec2.user_data names ${slot} or ${launch_id}")
    assert run("apply", "rules.toml", "--yes").complaints == []


def test_commands_on_the_database_alone_import_no_service(database: str, run: Run) -> None:
    """Each of these libraries takes as long to import as the rest of the command."""
    assert run("apply", "rules.toml").status == 0
    commands = [["costs"], ["costs", "--budgets"], ["offers"], ["apply", "--dry-run", "more.toml"]]
    heavy = {"redis", "boto3", "structlog", "alembic", "celery", "kombu", "pydantic", "prometheus_client"}
    code = (
        "import sys; from leasehold.cli.program import run_safely\n"
        f"print([run_safely(words) for words in {commands}], sorted({heavy} & {{*sys.modules}}), file=sys.stderr)\n"
        "import leasehold.doctor.examination\n"
        "print(sorted({'alembic', 'mako'} & {*sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.splitlines() == ["[0, 0, 0, 0] []", "[]"]
