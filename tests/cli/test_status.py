"""`leasehold status`: its output for a stack, and its exit codes for probes."""

import json
import sqlite3
import time
from contextlib import closing

import pytest

from scheduler.model.waits import Waits
from tests.builders import a_slot
from tests.cli.conftest import Run
from tests.client.intake import FakeIntake, a_row


def test_status_has_codes_for_probes(stack: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    degraded = run("status", "--json")
    assert (degraded.status, json.loads(degraded.out)["problems"]) == (1, ["there was no tick yet"])
    stack.view_cache.write_report({"at": time.time(), "term": 3, "seconds": 0.01}, Waits(["r2"], [("booting", "x")]))
    stack.publish(a_row("r2"))
    well = run("status", "--json")
    found = json.loads(well.out)
    assert (well.status, found["state"], found["term"], found["waiting"]) == (0, "ok", 3, ["r2"])
    assert (found["reservations"], found["queues"]["launch"]) == ({"pending": 1}, 0)
    assert run("status").out.startswith("ok\n")
    stack.view_cache.write_report({"at": time.time() - 100, "term": 3, "seconds": 0.01})
    assert run("status").status == 1
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", "redis://127.0.0.1:1/0")
    down = run("status")
    assert (down.status, len(down.complaints)) == (2, 1)


def test_status_shows_the_leader_the_lag_of_the_view_and_addresses_without_passwords(
    stack: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    unknown = json.loads(run("status", "--json").out)
    assert (unknown["leader"], unknown["view_lag_seconds"]) == (None, None)
    reported = {"at": time.time(), "term": 3, "seconds": 0.01}
    stack.view_cache.write_report({**reported, "leader": "alpha:4711", "view_lag": 2.5})
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", stack.url.replace("redis://", "redis://default:guess@"))
    found = json.loads(run("status", "--json").out)
    assert (found["leader"], found["view_lag_seconds"]) == ("alpha:4711", 2.5)
    assert found["urls"] == {"broker": stack.url}
    shown = " ".join(run("status").out.split())
    assert "leader alpha:4711" in shown
    assert "view lag 2.5 s" in shown
    assert f"broker {found['urls']['broker']}" in shown


def test_status_names_processes_whose_wall_clock_is_off_and_stays_ok(stack: FakeIntake, run: Run) -> None:
    stack.view_cache.write_report({"at": time.time(), "term": 3, "seconds": 0.01})
    stack.publish()
    assert json.loads(run("status", "--json").out)["clocks"] == []
    now = time.time()
    written = {"launch beta": [21.0, now], "beat alpha": [0.2, now], "ticks gone": [600.0, now - 300]}
    stack._redis.hset("leasehold:clocks", mapping={name: json.dumps(value) for name, value in written.items()})
    found = run("status", "--json")
    assert (found.status, json.loads(found.out)["state"]) == (0, "ok")
    assert json.loads(found.out)["clocks"] == [{"process": "launch", "host": "beta", "seconds": 21.0}]
    assert "wrong clocks launch on beta 21 s ahead" in " ".join(run("status").out.split())


@pytest.mark.parametrize(("revision", "relation"), [("0001", "older"), ("0999", "newer")])
def test_status_names_a_schema_that_is_not_this_program_s(
    revision: str, relation: str, stack: FakeIntake, database: str, run: Run
) -> None:
    stack.view_cache.write_report({"at": time.time(), "term": 3, "seconds": 0.01})
    stack.publish()
    assert run("status").status == 0
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"), isolation_level=None)) as connection:
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    found = run("status", "--json")
    (problem,) = json.loads(found.out)["problems"]
    assert found.status == 1
    assert f"schema is {relation} than this program (revision {revision}" in problem


def test_status_names_a_database_url_that_is_none(stack: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    stack.view_cache.write_report({"at": time.time(), "term": 3, "seconds": 0.01})
    stack.publish()
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", "mysql://user:hunter2@host/db")
    found = run("status", "--json")
    (problem,) = json.loads(found.out)["problems"]
    assert found.status == 1
    assert problem.startswith("database.url: expected sqlite:///PATH")
    assert "hunter2" not in problem


def test_status_names_the_slots_whose_machines_ec2_refuses_to_end(stack: FakeIntake, run: Run) -> None:
    stack.view_cache.write_report({"at": time.time(), "term": 3, "seconds": 0.01})
    answer = "OperationNotPermitted: The machine is protected."
    stack.publish(
        a_slot("linux-1", state="terminating", refusal=answer),
        a_slot("linux-2", state="terminating"),
        a_slot("linux-3", state="empty", refusal=answer),
    )
    assert json.loads(run("status", "--json").out)["refused_ends"] == {"linux-1": answer}
    shown = " ".join(run("status").out.split())
    assert "EC2 refuses to end linux-1 OperationNotPermitted (remedy: leasehold doctor)" in shown
