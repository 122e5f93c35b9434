"""`leasehold host`: each command sends a request or a heartbeat; an error is one line."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from leasehold.agent.machine import find_resources, find_slot_name, make_run
from testbed.guarding import Guarded
from testbed.processes import wait_for
from tests.builders import a_slot
from tests.cli.conftest import Run
from tests.client.intake import Document, FakeIntake

COMMANDS = {"run": "--pool lab", "register": "--pool lab", "heartbeat": "", "leave": "", "remove": ""}
READY = {"ok": True, "slot": "lab-1", "state": "ready", "cordoned": False}


@pytest.fixture(autouse=True)
def _stack(run: Run, intake: FakeIntake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    intake.handler = lambda _verb, _document: dict(READY)


def refuse(path: str) -> Any:
    error = {"index": 0, "path": path, "expected": "something else", "got": "this"}
    return lambda _verb, _document: {"ok": False, "errors": [error]}


def last(intake: FakeIntake) -> tuple[str, Document]:
    verb, document = intake.seen[-1]
    return verb, {key: value for key, value in document.items() if key not in {"request", "reply_to"}}


def test_register_sends_the_given_options(run: Run, intake: FakeIntake) -> None:
    words = "host register lab-1 --pool lab --machine m1 --cpus 8 --memory 512 --resource gpus=2 --label disk=ssd"
    found = run(*words.split(), "--address", "10.0.0.7")
    assert (found.status, found.out, found.err) == (0, "lab-1 ready\n", "")
    assert last(intake) == (
        "register",
        {
            "slot": "lab-1",
            "pool": "lab",
            "machine": "m1",
            "resources": {"cpus": 8, "memory_mib": 512, "gpus": 2},
            "labels": {"disk": "ssd"},
            "address": "10.0.0.7",
        },
    )


def test_register_finds_missing_values_on_the_host(run: Run, intake: FakeIntake) -> None:
    assert run("host", "register", "--pool", "lab").status == 0
    _, document = last(intake)
    assert (document["slot"], document["resources"]) == (find_slot_name(), find_resources())
    first = document["machine"]
    assert run("host", "leave").status == 0
    assert last(intake) == ("leave", {"slot": find_slot_name(), "machine": first})


@pytest.mark.parametrize(
    ("path", "status"),
    [
        # Not well-formed, or an unknown pool.
        ("resources.cpus", 2),
        ("pool", 2),
        # The slot belongs to another machine.
        ("machine", 1),
    ],
)
@pytest.mark.parametrize("command", ["register", "run"])
def test_a_refusal_of_a_host_is_one_line_with_the_reason(
    command: str, path: str, status: int, run: Run, intake: FakeIntake
) -> None:
    intake.handler = refuse(path)
    found = run("host", command, "lab-1", "--pool", "lab", "--machine", "m2")
    assert (found.status, found.complaints) == (status, [f"leasehold: {path}: expected something else, got this"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("register",), "Missing option '--pool'"),
        (("register", "--pool", "lab", "--label", "disk"), "expected name=value, got 'disk'"),
        (("run", "--pool", "lab", "--resource", "gpus"), "expected name=value, got 'gpus'"),
        (("remove",), "Missing argument 'SLOT'"),
    ],
)
def test_bad_usage_is_one_line(words: tuple[str, ...], complaint: str, run: Run, intake: FakeIntake) -> None:
    found = run("host", *words)
    assert found.status == 2
    assert len(found.complaints) == 1
    assert complaint in found.err
    assert intake.seen == []


@pytest.mark.parametrize(
    ("words", "path"),
    [
        *((f"{verb} lab:1! {more}", "slot") for verb, more in COMMANDS.items()),
        *((f"{verb} lab-1 {more} --machine -m1", "machine") for verb, more in COMMANDS.items() if verb != "remove"),
        ("leave lab-1 --machine=", "machine"),
    ],
)
def test_a_malformed_id_is_refused_before_a_request_is_sent(
    words: str, path: str, run: Run, intake: FakeIntake, redis_client: redis.Redis
) -> None:
    found = run("host", *words.split())
    assert found.status == 2
    assert [line.partition(" expected ")[0] for line in found.complaints] == [f"leasehold: {path}:"]
    assert intake.seen == []
    assert redis_client.keys("leasehold:heartbeat:*") == []


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("--pool lab:1!", "pool"),
        ("--pool lab --cpus two", "resources.cpus"),
        ("--pool lab --memory -1", "resources.memory_mib"),
        ("--pool lab --resource gpus=", "resources.gpus"),
        ("--pool lab --address -here", "address"),
    ],
)
@pytest.mark.parametrize("command", ["register", "run"])
def test_resources_of_a_host_are_checked_before_a_request_is_sent(
    command: str, words: str, path: str, run: Run, intake: FakeIntake
) -> None:
    found = run("host", command, "lab-1", "--machine", "m1", *words.split())
    assert found.status == 2
    assert [line.partition(" expected ")[0] for line in found.complaints] == [f"leasehold: {path}:"]
    assert intake.seen == []


def test_a_heartbeat_is_written_without_a_request(run: Run, intake: FakeIntake, redis_client: redis.Redis) -> None:
    intake.publish(a_slot("lab-1", state="ready", machine="m1"))
    found = run("host", "heartbeat", "lab-1", "--machine", "m1", "--json")
    assert (found.status, json.loads(found.out)) == (0, {"slot": "lab-1", "machine": "m1", "checked": True})
    assert redis_client.get("leasehold:heartbeat:lab-1") == b"m1"
    assert intake.seen == []


@pytest.mark.parametrize(
    ("slot", "machine", "line"),
    [
        ("lab-9", "m1", "leasehold: there is no slot lab-9: has its host registered?"),
        ("lab-1", "m2", 'leasehold: machine: expected the machine that lab-1 belongs to, got "m2"'),
    ],
)
def test_a_heartbeat_that_could_not_be_checked_is_reported(
    slot: str, machine: str, line: str, run: Run, intake: FakeIntake
) -> None:
    intake.publish(a_slot("lab-1", state="ready", machine="m1"))
    found = run("host", "heartbeat", slot, "--machine", machine)
    assert (found.status, found.complaints) == (1, [line])


def test_a_heartbeat_is_sent_without_a_view(run: Run, redis_client: redis.Redis) -> None:
    redis_client.delete("leasehold:view:generation")
    found = run("host", "heartbeat", "lab-1", "--machine", "m1")
    assert (found.status, found.out) == (0, "lab-1 alive\n")
    assert "sent; it could not be checked whether lab-1 belongs to this machine" in found.err
    assert redis_client.get("leasehold:heartbeat:lab-1") == b"m1"


@pytest.mark.parametrize(("command", "out"), [("leave", "lab-1 draining\n"), ("remove", "lab-1 removed\n")])
def test_leave_and_remove_are_requests(command: str, out: str, run: Run, intake: FakeIntake) -> None:
    intake.handler = lambda _verb, _document: {**READY, "state": "draining"}
    more = ["--machine", "m1"] if command == "leave" else []
    found = run("host", command, "lab-1", *more)
    assert (found.status, found.out) == (0, out)
    assert last(intake) == (command, {"slot": "lab-1"} | ({"machine": "m1"} if more else {}))
    intake.handler = refuse("slot")
    assert run("host", command, "lab-1", *more).status == 1


LEASE = {"reservation": "r1", "component": "helper.0", "token": 1}
EXEC = ["host", "exec", "r1", "--component", "helper.0", "--slot", "lab-1", "--machine", "m1"]


def start_exec(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run `leasehold host exec` as a process, because it may become the command."""
    words = [sys.executable, "-m", "leasehold.cli", *EXEC, "--state", str(folder / "state"), "--", *command]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)


def grant(intake: FakeIntake, *leases: Document) -> None:
    """Give the host these leases in the database."""
    intake.handler = lambda _verb, _document: {**READY, "leases": list(leases)}


def test_exec_leaves_a_note_and_becomes_the_command(intake: FakeIntake, tmp_path: Path) -> None:
    grant(intake, LEASE)
    shown = "import os; print(open(f'state/processes/lab-1/{os.getpid()}.json').read())"
    found = start_exec(tmp_path, sys.executable, "-c", shown)
    assert (found.returncode, found.stderr) == (0, "")
    note = json.loads(found.stdout)
    assert (note["reservation"], note["component"]) == ("r1", "helper.0")
    assert last(intake) == ("leases", {"slot": "lab-1", "machine": "m1"})


@pytest.mark.parametrize("is_here", [True, False])
def test_exec_runs_a_command_only_on_the_machine_on_which_the_agent_runs(
    is_here: bool, intake: FakeIntake, tmp_path: Path
) -> None:
    """Another machine may have the same id, as a clone has."""
    run = make_run() if is_here else f"{'f' * 12}-1"
    intake.handler = lambda _verb, _document: {**READY, "run": run, "leases": [LEASE]}
    found = start_exec(tmp_path, "echo", "ran")
    assert (found.returncode, found.stdout) == ((0, "ran\n") if is_here else (1, ""))
    assert is_here or found.stderr.startswith("leasehold: --machine: expected the machine on which the agent of lab-1")


def test_the_command_of_exec_inherits_an_ignored_interrupt(intake: FakeIntake, tmp_path: Path) -> None:
    """The command has it as without `host exec`, which itself can be interrupted while it waits."""
    grant(intake, LEASE)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        found = start_exec(tmp_path, "sh", "-c", "kill -INT $$; echo alive")
    finally:
        signal.signal(signal.SIGINT, before)
    assert (found.returncode, found.stdout) == (0, "alive\n")


def test_exec_reports_a_command_that_cannot_run_and_removes_its_note(
    run: Run, intake: FakeIntake, tmp_path: Path
) -> None:
    grant(intake, LEASE)
    found = run(*EXEC, "--state", str(tmp_path), "--", "no-such-command")
    reason = "the command no-such-command cannot be started: No such file or directory"
    assert (found.status, found.complaints) == (1, [f"leasehold: {reason}"])
    assert list((tmp_path / "processes" / "lab-1").iterdir()) == []
    (tmp_path / "file").touch()
    found = run(*EXEC, "--state", str(tmp_path / "file"), "--", "true")
    assert (found.status, len(found.complaints)) == (1, 1)
    assert "--state: expected a folder that can be written" in found.err


@pytest.mark.parametrize(
    ("leases", "complaint"),
    [
        # Nothing is leased on this host.
        ((), 'RESERVATION: expected a reservation that is leased on lab-1, got "r1"'),
        # Another reservation is leased there.
        (({**LEASE, "reservation": "r2"},), 'RESERVATION: expected a reservation that is leased on lab-1, got "r1"'),
        # Another component of the reservation is leased there.
        (({**LEASE, "component": "main"},), '--component: expected main, which r1 has on lab-1, got "helper.0"'),
    ],
)
def test_exec_runs_nothing_without_a_lease_on_this_host(
    leases: tuple[Document, ...], complaint: str, intake: FakeIntake, tmp_path: Path
) -> None:
    grant(intake, *leases)
    found = start_exec(tmp_path, "touch", "ran")
    assert (found.returncode, found.stderr) == (1, f"leasehold: {complaint}\n")
    # The command did not run, and no note was written.
    assert list(tmp_path.iterdir()) == []


def test_exec_runs_nothing_on_a_host_that_is_unknown(intake: FakeIntake, tmp_path: Path) -> None:
    intake.handler = refuse("slot")
    found = start_exec(tmp_path, "touch", "ran")
    assert (found.returncode, found.stderr) == (1, "leasehold: slot: expected something else, got this\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ids", ["", "0,,1", "0,0"])
def test_wrong_ids_of_devices_are_refused_before_a_request_is_sent(run: Run, intake: FakeIntake, ids: str) -> None:
    found = run("host", "run", "lab-1", "--pool", "lab", "--machine", "m1", "--device", f"gpus={ids}")
    assert (found.status, len(found.complaints), intake.seen) == (2, 1, [])
    assert f"--device: expected different ids, separated by commas, got gpus={ids}" in found.err


def test_a_folder_that_is_no_cgroup_is_refused_before_a_request_is_sent(
    run: Run, intake: FakeIntake, tmp_path: Path
) -> None:
    found = run("host", "run", "lab-1", "--pool", "lab", "--machine", "m1", "--cgroup", str(tmp_path))
    assert (found.status, len(found.complaints), intake.seen) == (1, 1, [])
    assert "--cgroup: expected a folder of cgroup v2" in found.err


def test_under_nohup_the_agent_stays_when_its_terminal_goes(intake: FakeIntake, tmp_path: Path) -> None:
    """A second signal would end the agent at once, with status 130."""
    states = {"register": "ready", "leave": "empty"}

    def handle(verb: str, _document: Document) -> Document:
        left = any(each == "leave" for each in intake.verbs())
        return {**READY, "state": states.get(verb, "empty" if left else "ready"), "leases": []}

    intake.handler = handle
    command = [sys.executable, "-m", "leasehold.cli", "host", "run", "lab-1", "--pool", "lab", "--machine", "m1"]
    ignoring = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh"]
    process = Guarded([*ignoring, *command, "--state", tmp_path], stdout=subprocess.DEVNULL)
    wait_for(lambda: "leases" in intake.verbs(), "the agent")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(40) == 0
