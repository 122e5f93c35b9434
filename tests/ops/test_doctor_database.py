"""Findings of the doctor about a database that answers but accepts no writes."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from sqlalchemy import create_engine, make_url

from leasehold.doctor import examination
from leasehold.doctor.examination import WRITES, look_at_database
from leasehold.doctor.rules import Finding, judge_ticks
from scheduler.store.opening import PROBE_CHARACTERS, try_write
from testbed.guarding import Guarded
from testbed.postgresql_server import PostgresServer
from testbed.stack import ROOT
from workers.configuration import read_configuration

Findings = Mapping[str, Mapping[str, Any]]
Look = Callable[[str], dict[str, Finding]]
FULL_AT: Final = PROBE_CHARACTERS
"""Size limit for files of the doctor: the kernel refuses writes beyond it, as on a full disk."""


def fill_disk() -> None:
    """Set the limit, in the doctor's process before it starts."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (FULL_AT, FULL_AT))


def examine_on_full_disk(folder: Path, database_url: str) -> tuple[int, Findings]:
    """Return status and findings of a doctor that runs as a process without a configured Redis."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    environment = {**kept, "PYTHONPATH": str(ROOT), "LEASEHOLD_DATABASE__URL": database_url}
    command = [sys.executable, "-m", "leasehold.cli", "doctor", "--no-aws", "--json", "--timeout", "15"]
    process = Guarded(command, cwd=folder, env=environment, stdout=subprocess.PIPE, preexec_fn=fill_disk)
    assert process.stdout is not None
    with process.stdout as output:
        document = json.load(output)
    return process.wait(), {finding["check"]: finding for finding in document["findings"]}


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Return a function that examines the database of a URL."""

    def look_at(url: str) -> dict[str, Finding]:
        monkeypatch.chdir(tmp_path)
        monkeypatch.delenv("LEASEHOLD_CONFIG", raising=False)
        monkeypatch.setenv("LEASEHOLD_DATABASE__URL", url)
        return {finding.check: finding for finding in look_at_database(read_configuration())}

    return look_at


def count_answers(url: str) -> int:
    ports = create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with ports.connect() as connection:
        found: int = connection.exec_driver_sql("SELECT count(*) FROM requests").scalar_one()
    ports.dispose()
    return found


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest) -> str:
    url: str = request.getfixturevalue(f"{request.param}_url")
    return url


def test_a_write_is_tried_and_nothing_of_it_stays(database_url: str, look: Look) -> None:
    findings = look(database_url)
    assert (findings["database"].outcome, findings[WRITES].outcome) == ("ok", "ok")
    assert count_answers(database_url) == 0


def test_a_full_disk_is_found_and_the_remedy_of_late_ticks_does_not_name_beat(sqlite_url: str, tmp_path: Path) -> None:
    status, findings = examine_on_full_disk(tmp_path, sqlite_url)
    assert status == 1
    assert findings["database"]["outcome"] == "ok"
    assert findings[WRITES]["outcome"] == "failure"
    assert "Free space on the database's disk" in findings[WRITES]["remedy"]
    assert findings["ticks"]["outcome"] == "failure"
    assert "beat" not in findings["ticks"]["remedy"]
    assert count_answers(sqlite_url) == 0


def test_a_database_that_is_read_only_is_found(postgresql_url: str, look: Look) -> None:
    findings = look(f"{postgresql_url}?options=-c%20default_transaction_read_only%3Don")
    assert (findings["database"].outcome, findings[WRITES].outcome) == ("ok", "failure")
    assert "the database is read-only" in findings[WRITES].text


@pytest.fixture(scope="module")
def standby(postgresql_server: PostgresServer, postgresql_template: str) -> Iterator[str]:
    """Yield the URL of an empty migrated database on a standby."""
    server = postgresql_server.start_standby()
    yield server.url(postgresql_template)
    server.remove()


@pytest.mark.parametrize(
    ("query", "check", "other"), [("", "database", "skipped"), ("?target_session_attrs=any", WRITES, "ok")]
)
def test_a_standby_is_named_instead_of_beat(
    query: str, check: str, other: str, standby: str, look: Look, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = look(standby + query)
    assert findings[check].outcome == "failure"
    assert "the server is a standby" in findings[check].text
    assert "Promote the standby" in findings[check].remedy
    assert findings["schema"].outcome == other

    def look_at_late_ticks(*_: object, can_write: bool) -> Iterator[Finding]:
        yield judge_ticks(1000, 5, can_write=can_write)

    monkeypatch.setattr(examination, "look_at_ticks", look_at_late_ticks)
    examined = {finding.check: finding for finding in examination.examine(read_configuration(), 5, ())}
    assert "beat" not in examined["ticks"].remedy


@pytest.fixture
def reader_url(postgresql_server: PostgresServer, postgresql_url: str) -> Iterator[str]:
    """Yield the URL of the same database for a user that can only read."""
    name = make_url(postgresql_url).database
    url = make_url(postgresql_url).set(username="onlooker", password="looks")
    assert name is not None
    with postgresql_server.connect(name) as connection:
        connection.execute("CREATE ROLE onlooker LOGIN PASSWORD 'looks'")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO onlooker")
    yield url.render_as_string(hide_password=False)
    with postgresql_server.connect(name) as connection:
        connection.execute("DROP OWNED BY onlooker")
        connection.execute("DROP ROLE onlooker")


def test_a_user_that_may_only_read_causes_a_warning_and_no_failure(reader_url: str, look: Look) -> None:
    findings = look(reader_url)
    assert (findings["database"].outcome, findings[WRITES].outcome) == ("ok", "warning")
    assert "could not be tried as this user" in findings[WRITES].text


def test_a_store_in_memory_takes_writes() -> None:
    try_write("memory://")
