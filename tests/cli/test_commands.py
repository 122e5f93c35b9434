"""Commands against a stand-in for the stack: output, requests, status."""

import json
import tomllib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer

from leasehold.cli.doctor import print_finding
from leasehold.cli.output import print_error
from leasehold.cli.program import app
from leasehold.doctor.rules import Finding
from scheduler.model.events import Event
from scheduler.model.waits import Waits
from scheduler.store.opening import open_store
from tests.builders import a_lease, a_slot
from tests.cli.conftest import Run
from tests.cli.terminal import run_on_terminal, strip_colours
from tests.client.intake import Document, FakeIntake, a_row, accept


def list_commands(found: Any = None, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    found = found or typer.main.get_command(app)
    for name, command in found.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, (*path, name))
        else:
            yield (*path, name), command


COMMANDS = [path for path, _ in list_commands()]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_help_of_every_command_has_an_example(path: tuple[str, ...], run: Run) -> None:
    found = run(*path, "--help")
    assert found.status == 0
    assert "Example" in found.out
    assert f"leasehold {' '.join(path)}" in found.out.partition("Example")[2]


def test_every_documented_command_exists() -> None:
    words = """
        up down demo reserve release renew cancel get list status top slots events explain cordon uncordon drain
        apply migrate simulate emulate-ec2
    """
    wanted = words.split()
    assert {(name,) for name in wanted} | {("rules", "show"), ("config", "check"), ("config", "init")} <= set(COMMANDS)


@pytest.mark.parametrize(
    "words",
    [("list",), ("slots",), ("get", "r1"), ("explain", "r1"), ("reserve", "--system", "s"), ("cordon", "linux-1")],
)
def test_without_a_stack_there_is_one_line(words: tuple[str, ...], run: Run) -> None:
    found = run(*words)
    assert found.status == 1
    assert found.complaints == [
        (
            "leasehold: no stack runs here or in a folder above:"
            " start one with `leasehold up`, or set LEASEHOLD_BROKER__URL"
        )
    ]


def test_without_a_redis_there_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", "redis://:hush@127.0.0.1:1/0")
    found = run("list")
    assert (found.status, len(found.complaints)) == (1, 1)
    assert "redis://127.0.0.1:1/0 cannot be reached" in found.err
    assert "hush" not in found.err


def test_without_a_database_there_is_one_line(run: Run) -> None:
    for words in (("events",), ("rules", "show")):
        found = run(*words)
        assert (found.status, len(found.complaints)) == (1, 1)
        assert "leasehold.db" in found.err


def test_a_reservation_is_submitted_with_all_given_options(stack: FakeIntake, run: Run) -> None:
    words = "reserve --system s --id r1 --cpus 2 --memory 512 --resource gpus=1 --label ssd=yes --ttl 15m --restart"
    words += " --expected-runtime 1h30m --max-runtime 7200"
    assert run(*words.split(), "--tag", "run=7", "--priority", "5").out == "r1 pending\n"
    (verb, document), *_ = stack.seen
    assert verb == "submit"
    assert {key: document[key] for key in document if key not in {"request", "reply_to", "key_hash"}} == {
        "id": "r1",
        "system": "s",
        "resources": {"cpus": 2, "memory_mib": 512, "gpus": 1},
        "labels": {"ssd": "yes"},
        "tags": {"run": "7"},
        "priority": 5,
        "ttl": "15m",
        "expected_runtime": "1h30m",
        "max_runtime": 7200,
        "restart_policy": "on_failure",
    }


@pytest.mark.parametrize(
    ("words", "resources"),
    [
        ("--memory 4G", {"memory_mib": 4096}),
        ("--memory 4Gi --cpus 500m", {"cpus": 0.5, "memory_mib": 4096}),
        ("--memory 1.5GiB", {"memory_mib": 1536}),
        ("--memory 512M", {"memory_mib": 512}),
        ("--memory 2t", {"memory_mib": 2 * 1024 * 1024}),
        ("--memory 512K", {"memory_mib": 0.5}),
        # 700 times 0.001 is not 0.7 in binary.
        ("--cpus 700m", {"cpus": 0.7}),
        ("--resource cpus=250m --resource memory_mib=1G", {"cpus": 0.25, "memory_mib": 1024}),
        # The option of a resource has precedence.
        ("--resource cpus=1 --cpus 2", {"cpus": 2}),
    ],
)
def test_amounts_of_cpus_and_memory_have_units(words: str, resources: Document, stack: FakeIntake, run: Run) -> None:
    assert run("reserve", "--system", "s", *words.split()).status == 0
    assert stack.seen[0][1]["resources"] == resources


def test_a_lease_is_printed_with_the_time_until_which_it_holds(stack: FakeIntake, run: Run) -> None:
    lease = a_lease("linux-1", token=7)
    row = a_row("r1", phase="leased", token=7, leases=(lease,), expires_at=4e9)
    stack.publish(a_slot("linux-1", version=1), row)
    shown = run("reserve", "--id", "r1", "--system", "s", "--wait", "5").out
    assert ", token 7, until 2096-10-02T07:06:40Z (in " in shown
    assert shown.endswith(") unless renewed\n")


def test_bad_reservations_are_refused_with_a_line_for_each_fault(stack: FakeIntake, run: Run) -> None:
    faults = [
        {"index": 0, "path": "system", "expected": "a name", "got": "3"},
        {"index": 0, "path": "resources.cpus", "expected": "a number >= 0", "got": '"two"'},
    ]
    stack.handler = lambda _verb, _document: {"ok": False, "errors": faults}
    found = run("reserve", "--system", "s", "--cpus", "2")
    assert found.status == 2
    assert found.complaints == [
        "leasehold: system: expected a name, got 3",
        'leasehold: resources.cpus: expected a number >= 0, got "two"',
    ]


def test_a_reservation_that_no_slot_can_hold_is_accepted_with_a_warning(
    stack: FakeIntake, run: Run, tmp_path: Path
) -> None:
    why = {"code": "never_fits", "detail": "no slot or offering of s could hold main, even empty"}

    def answer(verb: str, document: Document) -> Document:
        many = {"results": [{**each, "waiting": why} for each in accept(verb, document).get("results", ())]}
        return accept(verb, document) | (many if "items" in document else {"waiting": why})

    stack.handler = answer
    found = run("reserve", "--system", "s", "--id", "r1")
    stated = "leasehold: r1 is accepted and waits: never_fits: no slot or offering of s could hold main, even empty"
    assert (found.status, found.out, found.complaints) == (0, "r1 pending\n", [stated])
    found = run("reserve", "--system", "s", "--id", "r1", "--json")
    assert (json.loads(found.out)["waiting"], found.complaints) == (why, [stated])
    (tmp_path / "many.json").write_text(json.dumps([{"id": f"r{n}", "system": "s"} for n in range(2)]))
    found = run("reserve", "--file", "many.json", "--json")
    assert [json.loads(line)["waiting"] for line in found.out.splitlines()] == [why, why]
    assert found.complaints == [stated.replace("r1", "r0"), stated]


def test_a_refused_message_is_an_event_with_its_fault(database: str, run: Run) -> None:
    detail: dict[str, Any] = {
        "queue": "launch",
        "task": "leasehold.launch.slot",
        "message": "m1",
        "defect": "arguments",
    }
    detail |= {"path": "launch_id", "expected": "str", "got": "7"}
    with closing(open_store(database)) as store, store.transaction() as transaction:
        transaction.append_events([Event(at=0, name="message_refused", cause="holder", detail=detail)])
    reported = "leasehold.launch.slot on the queue launch, message m1: launch_id: expected str, got 7"
    assert reported in run("events", "--name", "message_refused").out
    assert json.loads(run("events", "--json").out)["detail"] == detail


def test_the_source_of_an_event_is_a_request_and_no_holder(database: str, run: Run) -> None:
    assert run("events").out == "no events\n"
    with closing(open_store(database)) as store, store.transaction() as transaction:
        unsigned_event = Event(at=0, name="reservation_cancelled", reservation="r1", cause="holder")
        transaction.append_events([unsigned_event, msgspec.structs.replace(unsigned_event, principal="ci")])
    unsigned, signed = run("events").out.splitlines()
    assert (unsigned.endswith(" [request]"), signed.endswith(" [request ci]")) == (True, True)


def test_events_are_wrapped_at_the_width_of_the_terminal(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    detail: dict[str, Any] = {
        "reason": "the machine is retired",
        "slot": "linux-1",
        "pool": "linux",
        "offering": "m7g.large/spot",
    }
    with closing(open_store(database)) as store, store.transaction() as transaction:
        transaction.append_events([Event(at=0, name="slot_maintenance", slot="linux-1", cause="cloud", detail=detail)])
    first, *more = strip_colours(run_on_terminal(monkeypatch, 80, "events")).splitlines()
    assert more
    assert max(map(len, (first, *more))) <= 80
    assert all(each.startswith("    ") for each in more)


def test_errors_and_findings_are_wrapped_at_the_width_of_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("leasehold.cli.output.find_width", lambda _stream: 40)
    monkeypatch.setattr("leasehold.cli.doctor.find_width", lambda: 60)
    print_error("no stack runs here or in a folder above: start one with `leasehold up`")
    text = "no append-only file: a restart costs delays"
    print_finding(Finding(check="redis persistence", outcome="warning", text=text, remedy="`appendonly`"))
    found = capsys.readouterr()
    assert found.err.splitlines() == [
        "leasehold: no stack runs here or in a",
        "  folder above: start one with",
        "  `leasehold up`",
    ]
    indent = " " * 31
    assert found.out.splitlines() == [
        "warning  redis persistence     no append-only file: a",
        f"{indent}restart costs delays",
        f"{indent}→ `appendonly`",
    ]


def test_parts_of_a_request_without_effect_are_notes_on_standard_error(
    stack: FakeIntake, run: Run, tmp_path: Path
) -> None:
    notes = [{"path": "priority", "text": "the queue `fifo` does not read it"}]

    def answer(verb: str, document: Document) -> Document:
        many = {"results": [{**each, "notes": notes} for each in accept(verb, document).get("results", ())]}
        return accept(verb, document) | (many if "items" in document else {"notes": notes})

    stack.handler = answer
    stated = "leasehold: note: priority: the queue `fifo` does not read it"
    found = run("reserve", "--system", "s", "--id", "r1", "--priority", "9")
    assert (found.status, found.out, found.complaints) == (0, "r1 pending\n", [stated])
    found = run("priority", "r1", "9", "--json")
    assert (json.loads(found.out)["notes"], found.complaints) == (notes, [stated])
    (tmp_path / "many.json").write_text(json.dumps([{"id": f"r{n}", "system": "s"} for n in range(2)]))
    assert run("reserve", "--file", "many.json").complaints == [
        stated.replace("note: ", f"note: r{n}: ") for n in (0, 1)
    ]


def test_a_file_of_reservations_is_submitted_in_one_request(stack: FakeIntake, run: Run, tmp_path: Path) -> None:
    (tmp_path / "many.json").write_text(json.dumps([{"id": f"r{n}", "system": "s"} for n in range(3)]))
    assert run("reserve", "--file", "many.json").out == "3 of 3 accepted\n"
    assert len(stack.seen) == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", "expected valid JSON"),
        ('{"system": "x", "system": "y"}', "the key system appears twice in one table"),
        ("[1]", "expected a table or a list of tables, got 1"),
        ('"x"', 'got "x"'),
    ],
)
def test_a_file_without_reservations_is_bad_input(
    text: str, complaint: str, stack: FakeIntake, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text(text)
    found = run("reserve", "--file", "bad.json")
    assert (found.status, len(found.complaints)) == (2, 1)
    assert complaint in found.err


def test_a_command_without_a_token_uses_the_present_one(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_row("r1", phase="leased", token=7, leases=(a_lease("linux-1", token=7),)))
    assert run("release", "r1").status == 0
    assert stack.seen[-1][1]["token"] == 7
    run("release", "r1", "--token", "3")
    assert stack.seen[-1][1]["token"] == 3


def test_a_component_is_surrendered_by_its_name(stack: FakeIntake, run: Run) -> None:
    parts = (a_lease("linux-1", token=7), a_lease("linux-2", component="more.0", kind="elastic", token=9))
    stack.publish(a_row("r1", phase="leased", token=7, leases=parts))
    assert run("surrender", "r1", "--component", "more.0").status == 0
    verb, stated = stack.seen[-1]
    assert (verb, stated["component"], stated["token"]) == ("surrender", "more.0", 7)
    assert run("surrender", "r1", "--component", "more", "--want", "0").status == 0
    assert (stack.seen[-1][1]["component"], stack.seen[-1][1]["want"]) == ("more", 0)
    stack.publish(a_row("r1", version=2, phase="leased", token=7, leases=parts[:1], declined=("more=0", "tail.2")))
    shown = " ".join(run("get", "r1").out.split())
    assert "wanted at most 0 x more given back tail.2" in shown
    assert json.loads(run("get", "r1", "--json").out)["want"] == {"more": 0}


def test_a_stale_token_is_one_line_and_status_1(stack: FakeIntake, run: Run) -> None:
    fault = {"index": 0, "path": "token", "expected": "the current token of r1 (this one is stale)", "got": "3"}
    stack.handler = lambda _verb, _document: {"ok": False, "errors": [fault]}
    found = run("renew", "r1", "--token", "3")
    assert (found.status, found.complaints) == (
        1,
        ["leasehold: token: expected the current token of r1 (this one is stale), got 3"],
    )


def test_reading_shows_the_view(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_slot("linux-1", version=1), a_row("r1", phase="leased", token=7, leases=(a_lease("linux-1"),)))
    assert json.loads(run("get", "r1", "--json").out)["leases"][0]["instance_id"] == "i-linux-1"
    assert "i-linux-1" in run("get", "r1").out
    assert [row["id"] for row in json.loads(run("list", "--json").out)] == ["r1"]
    assert "r1" in run("list").out
    assert [slot["id"] for slot in json.loads(run("slots", "--json").out)] == ["linux-1"]
    assert "ready" in run("slots").out
    assert run("explain", "r1").out.startswith("r1 is leased\n")
    assert "\x1b" not in run("list").out


def test_restarts_are_shown_by_component_too(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_row("r1", restarts=2, component_restarts={"more.0": 3, "core": 2}), a_row("r2"))
    lines = [" ".join(line.split()) for line in run("get", "r1").out.splitlines()]
    assert "restarts 2 (by component: core 2, more.0 3)" in lines
    assert json.loads(run("get", "r1", "--json").out)["component_restarts"] == {"more.0": 3, "core": 2}
    assert "restarts" not in run("get", "r2").out


def test_an_explanation_ends_with_the_command_to_type(stack: FakeIntake, run: Run) -> None:
    """What fails comes first, nothing is printed twice, and the command is the last line."""
    stack.publish(a_row("r1"))
    actions = [{"rules": {"pools": {"linux": {"max_slots": 2}}}}, {"uncordon": "linux-1"}]
    change = {"kind": "max_slots", "text": "2 would do", "wait_seconds": 0, "actions": actions}
    answer = {"ok": True, "reservation": "r1", "phase": "pending", "position": 1, "of": 3, "change": change}
    answer |= {"waiting": {"code": "at_max_slots", "detail": "full"}, "pools": {"linux": ["EC2 asked us to slow down"]}}
    conditions = [("pool", True, "pools: linux"), ("max_slots", False, "1 of 1"), ("free_capacity", False, "full")]
    answer["conditions"] = [{"name": name, "met": met, "evidence": text} for name, met, text in conditions]
    stack.handler = lambda verb, _document: answer | {"headline": "full"} if verb == "explain" else None
    lines = [" ".join(line.split()) for line in run("explain", "r1").out.splitlines()]
    assert [line for line in lines if not line.startswith("─")] == [
        "r1 is pending, 1 of 3 in the queue: at_max_slots: full",
        "pool linux: EC2 asked us to slow down",
        "condition met evidence",
        "max_slots no 1 of 1",
        "pool yes pools: linux",
        "smallest change: 2 would do",
        "leasehold rules set pools.linux.max_slots=2",
        "leasehold uncordon linux-1",
    ]
    assert json.loads(run("explain", "r1", "--json").out)["change"]["actions"] == actions


def test_the_explanation_of_a_wait_names_when_it_ends_without_a_renewal(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_row("r1", expires_at=1_800_000_000.0))
    answer = {"ok": True, "reservation": "r1", "phase": "pending", "position": 1, "of": 1}
    stack.handler = lambda verb, _document: answer if verb == "explain" else None
    assert run("explain", "r1").out.splitlines()[1].startswith("expires: 2027-01-15T08:00:00Z")


def test_without_a_change_an_explanation_ends_with_what_would_have_to_be_true(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_row("r1"))
    answer = {"ok": True, "reservation": "r1", "phase": "pending", "position": 1, "of": 1, "change": None}
    answer |= {"waiting": {"code": "never_fits", "detail": "none could hold it"}, "needs": ["a pool of large machines"]}
    answer["headline"] = "main asks 64 cpus; the largest has 4"
    stack.handler = lambda verb, _document: answer if verb == "explain" else None
    assert run("explain", "r1").out.splitlines() == [
        "r1 is pending, 1 of 1 in the queue: never_fits: main asks 64 cpus; the largest has 4",
        "it would need: a pool of large machines",
    ]


def test_without_a_worker_the_last_tick_explains_a_wait(
    stack: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("leasehold.cli.reading.WORKER_SECONDS", 0.1)
    stack.publish(a_row("r1"))
    stack.view_cache.write_report({"at": 5.0}, Waits(["r1"], [("booting", "soon")]))
    stack.handler = lambda _verb, _document: None
    found = run("explain", "r1")
    assert (found.status, found.out) == (0, "r1 is pending, 1 of 1 in the queue: booting: soon\n")
    assert len(found.complaints) == 1


def test_slots_are_shown_with_their_conditions(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_slot("linux-1", version=1))
    stated = {"slots": {"linux-1": ["offline: no heartbeat for 5 min"]}, "pools": {"linux": ["no capacity"]}}
    stack.handler = lambda _verb, _document: {"ok": True, "as_of": 5.0, **stated}
    shown = run("slots").out
    assert "offline: no heartbeat for 5 min" in shown
    assert "pool linux: no capacity" in shown
    (slot,) = json.loads(run("slots", "--json").out)
    assert slot["conditions"] == ["offline: no heartbeat for 5 min"]


def test_a_reservation_that_left_the_view_is_read_by_a_worker(stack: FakeIntake, run: Run) -> None:
    old = {"id": "r0", "phase": "released", "request": {"components": []}}
    stack.handler = lambda verb, document: {"ok": True, "reservations": [old] if "r0" in document["ids"] else []}
    assert "released" in run("get", "r0").out
    found = run("get", "unknown")
    assert (found.status, found.complaints) == (1, ["leasehold: there is no reservation unknown"])


def test_draining_waits_until_nothing_is_held(stack: FakeIntake, run: Run) -> None:
    stack.handler = lambda _verb, document: {
        "ok": True,
        "slot": document["slot"],
        "state": "draining",
        "cordoned": False,
    }
    assert run("drain", "linux-1", "--wait", "5").status == 0
    stack.publish(a_row("r1", phase="leased", token=7, leases=(a_lease("linux-1"),)))
    found = run("drain", "linux-1", "--wait", "0.3")
    assert (found.status, found.complaints) == (1, ["leasehold: slots are not drained after 0.3 s: linux-1 holds r1"])


def test_unknown_slots_are_refused_one_by_one(stack: FakeIntake, run: Run) -> None:
    def pick(_verb: str, document: dict[str, Any]) -> dict[str, Any]:
        if document["slot"] == "linux-1":
            return {"ok": True, "slot": "linux-1", "state": "ready", "cordoned": True}
        fault = {"index": 0, "path": "slot", "expected": "a known slot", "got": f'"{document["slot"]}"'}
        fault["code"] = "unknown"
        return {"ok": False, "errors": [fault]}

    stack.handler = pick
    found = run("cordon", "linux-1", "linux-9")
    assert (found.status, found.out) == (1, "linux-1 ready cordoned\n")
    assert found.complaints == ["leasehold: there is no slot linux-9"]


def test_rules_are_applied_once_and_shown(stack: FakeIntake, database: str, run: Run, tmp_path: Path) -> None:
    rules = '[pools.linux]\nsystem = "x86_64-linux"\nmax_slots = 2\n'
    (tmp_path / "leasehold.toml").write_text(rules)
    assert run("apply", "leasehold.toml").out == "rules version 1\n"
    assert run("apply", "leasehold.toml").out == "rules version 1, unchanged\n"
    assert run("rules", "show").out == f"# version 1\n{rules}"
    assert json.loads(run("rules", "show", "--json").out)["rules"]["pools"]["linux"]["max_slots"] == 2
    assert "rules_changed" in run("events").out
    assert json.loads(run("events", "--json").out.splitlines()[0])["name"] == "rules_changed"


def test_rules_are_shown_as_toml_on_a_narrow_terminal(
    stack: FakeIntake, database: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = "a long text of several words " * 4
    pool = {"system": "x86_64-linux", "max_slots": 2, "labels": {"about": about}}
    (tmp_path / "leasehold.toml").write_text(
        f'[pools.linux]\nsystem = "x86_64-linux"\nmax_slots = 2\n[pools.linux.labels]\nabout = "{about}"\n'
    )
    assert run("apply", "leasehold.toml").status == 0
    assert tomllib.loads(run_on_terminal(monkeypatch, 40, "rules", "show"))["pools"]["linux"] == pool


def test_rules_that_are_wrong_change_nothing(stack: FakeIntake, database: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text('[pools.linux]\nsystem = "s"\nmax_slots = 1\nmin_slotz = 3\n')
    found = run("apply", "bad.toml")
    assert (found.status, len(found.complaints)) == (2, 1)
    assert 'did you mean "min_slots"?' in found.err
    assert run("rules", "show").complaints == ["leasehold: no rules were applied yet: `leasehold apply FILE`"]


def test_a_written_configuration_is_fine_and_is_not_written_over(run: Run) -> None:
    assert run("config", "init").status == 0
    assert run("config", "check").status == 0
    assert run("config", "init").status == 2


def test_migrating_twice_changes_nothing(run: Run) -> None:
    assert run("migrate").out.startswith("applied ")
    assert run("migrate").out == "nothing to do\n"


def test_a_scenario_is_played(run: Run, tmp_path: Path) -> None:
    scenario = {
        "config": {"pools": {"linux": {"system": "s", "max_slots": 1}}},
        "timeline": [{"at": 0, "submit": {"id": "r1", "system": "s"}}, {"at": 0, "tick": True}],
    }
    (tmp_path / "one.json").write_text(json.dumps(scenario))
    found = run("simulate", "one.json", "--json")
    assert found.status == 0
    assert json.loads(found.out.splitlines()[-1])["state"]["reservations"][0]["id"] == "r1"
    (tmp_path / "bad.json").write_text('{"timelime": []}')
    assert run("simulate", "bad.json").status == 2


def test_the_live_state_is_a_scenario(stack: FakeIntake, database: str, run: Run, tmp_path: Path) -> None:
    assert run("snapshot").complaints == ["leasehold: no rules were applied yet: `leasehold apply FILE`"]
    rules = '[pools.linux]\nsystem = "x86_64-linux"\nmax_slots = 2\n[cloud]\nboot = 60\n'
    (tmp_path / "leasehold.toml").write_text(rules)
    run("apply", "leasehold.toml")
    found = run("snapshot")
    document = json.loads(found.out)
    assert (found.status, document["cloud"], document["config"]["pools"]["linux"]["max_slots"]) == (0, {"boot": 60}, 2)
    (tmp_path / "now.json").write_text(found.out)
    assert run("simulate", "now.json", "--json").status == 0


def test_reservations_that_wait_at_the_end_of_a_play_are_printed_with_the_smallest_change(
    run: Run, tmp_path: Path
) -> None:
    scenario = {
        "config": {"pools": {"linux": {"system": "s", "max_slots": 1}}},
        "timeline": [{"at": 0, "submit": [{"id": "r1", "system": "s"}, {"id": "r2", "system": "s"}]}],
        "tick_every": 1,
        "until": 2,
    }
    (tmp_path / "full.json").write_text(json.dumps(scenario))
    last = run("simulate", "full.json").out.splitlines()[-1]
    assert last == "r2 waits: at_max_slots; smallest change: pool linux is at its max_slots of 1: 2 would do"
