"""The commands of a host's leases, with a scheduler in memory, and real processes."""

import json
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from leasehold.client.models import LeaseKey
from leasehold.errors import Refused
from leasehold.work import command, guard
from leasehold.work.devices import Devices
from leasehold.work.ports import Outcome, Taken
from leasehold.work.records import RECORD, Records, make_lease_id
from scheduler.model.command_schemas import ExitedDocument
from scheduler.model.validation import read_document
from testbed.guarding import Guarded
from testbed.processes import wait_for
from tests.work.fake_scheduler import SIGNER, FakeScheduler, refuse
from tests.work.guarded_host import PYTHON, is_running
from tests.work.runner_host import HOST, RunnerHost, end_guard, list_left

ENDLESS = ["sleep", "1000"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo ready; while true; do sleep 1; done"]
Make = Callable[..., RunnerHost]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[RunnerHost] = []

    def build(scheduler: FakeScheduler | None = None, **more: Any) -> RunnerHost:
        made.append(RunnerHost(tmp_path, scheduler, **more))
        return made[-1]

    yield build
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["sh", "-c", "echo hello; exit 0"], Outcome(why="exited", exit_code=0, tail="hello\n", bytes=6)),
        (["sh", "-c", "exit 3"], Outcome(why="exited", exit_code=3)),
        (["sh", "-c", "kill -KILL $$"], Outcome(why="signal", signal=9)),
        (
            ["no-such-program-47"],
            Outcome(
                why="not_started", error="the program no-such-program-47 cannot be started: No such file or directory"
            ),
        ),
    ],
)
def test_a_command_of_a_lease_is_run_and_its_outcome_reported(make: Make, argv: list[str], expected: Outcome) -> None:
    host = make()
    assert host.await_outcome(host.scheduler.lease("r1", argv)) == expected


@pytest.mark.parametrize(
    ("fields", "end"),
    [
        ({"argv": ["/" + "a" * 3000]}, "a cannot be started: File name too long"),
        ({"cwd": "/" + "é" * 3000}, "é cannot be entered: File name too long"),
        ({"image": "i" * 256}, "i"),
    ],
)
def test_the_scheduler_takes_the_error_of_a_command_with_long_names(
    make: Make, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], end: str
) -> None:
    monkeypatch.setattr(command, "ENGINES", ())
    host = make()
    key = host.scheduler.lease("r1", **{"argv": ["true"]} | fields)
    error = host.await_outcome(key).error
    report = {"slot": "s", "machine": "m", "run": "b-1", "reservation": "r1", "component": "main", "token": 1}
    assert error is not None
    assert error.endswith(end)
    assert read_document(ExitedDocument, report | {"why": "not_started", "error": error}).error == error


def test_a_command_runs_once_however_often_its_lease_is_read(make: Make, tmp_path: Path) -> None:
    host = make()
    key = host.scheduler.lease("r1", ["sh", "-c", f"echo x >> {tmp_path}/log"])
    host.await_outcome(key)
    for _ in range(20):
        host.look()
    # The lease ends, and a stale answer names it again.
    lease = host.scheduler.leases.pop(key)
    begun = guard.read_boot_clock()
    host.runner.look([lease], begun)
    assert (tmp_path / "log").read_text() == "x\n"
    assert (host.scheduler.count("take"), host.scheduler.count("exited")) == (1, 1)


def test_a_command_that_a_hint_names_is_run_before_the_leases_are_read(make: Make) -> None:
    host = make()
    key = host.scheduler.lease("r1", ["true"])
    host.runner.expect([key])
    wait_for(lambda: key in host.scheduler.outcomes, "the outcome")
    host.runner.expect([key])
    host.look()
    assert (host.scheduler.count("take"), host.scheduler.count("exited")) == (1, 1)


def test_a_forged_hint_starts_nothing(make: Make) -> None:
    host = make()
    assert host.runner.expect([LeaseKey(f"none-{number}", "main", 7) for number in range(1000)])
    wait_for(lambda: host.scheduler.count("take"), "a request")
    # Hints make it ask about 50 leases at the most, until it has read which ones there are.
    assert not host.runner.expect([LeaseKey("one-more", "main", 7)])
    assert len(_list_keys(host, "take")) == 50
    host.look()
    assert host.list_events("command_started") == []
    # The jobs are forgotten: the next hint about a lease makes the runner ask.
    assert host.await_outcome(host.scheduler.lease("r1", ["true"])).why == "exited"


def test_the_environment_names_the_lease(make: Make) -> None:
    host = make()
    peers = [{"component": "main", "slot": "lab-1", "address": "10.0.0.7"}, {"component": "main.1", "slot": "lab-2"}]
    more: dict[str, Any] = {
        "index": 3,
        "cores": 1.5,
        "resources": {"gpus": 2},
        "deadline": 1700000000.5,
        "peers": peers,
        "env": {"COLOR": "blue"},
        "cwd": "/",
    }
    show = "import json, os; print(json.dumps({**os.environ, 'peers': open(os.environ['LEASEHOLD_PEERS_FILE']).read(), "
    show += "'notice': open(os.environ['LEASEHOLD_NOTICE_FILE']).read()}))"
    found = json.loads(host.await_outcome(host.scheduler.lease("r1", [*PYTHON, show], token=7, **more)).tail)
    names = ("RESERVATION", "TOKEN", "SLOT", "COMPONENT", "INDEX", "CORES", "DEADLINE")
    assert [found[f"LEASEHOLD_{name}"] for name in names] == ["r1", "7", "lab-1", "main", "3", "1.5", "1700000000.5"]
    assert json.loads(found["LEASEHOLD_RESOURCES"]) == {"gpus": 2}
    assert (json.loads(found["LEASEHOLD_DEVICES"]), found["CUDA_VISIBLE_DEVICES"]) == ({"gpus": ["0", "1"]}, "0,1")
    filled = [peers[0], {**peers[1], "address": None}]
    assert json.loads(found["LEASEHOLD_PEERS"]) == json.loads(found["peers"]) == filled
    assert json.loads(found["notice"]) == {"state": "held", "revoke_by": None}
    assert (found["COLOR"], found["PATH"], found["HOME"]) == ("blue", os.environ["PATH"], os.environ["HOME"])
    assert "PYTEST_CURRENT_TEST" not in found


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user")
def test_a_command_of_another_user_can_read_its_files(make: Make) -> None:
    host = make()
    read = 'id -un; cat "$LEASEHOLD_NOTICE_FILE" "$LEASEHOLD_PEERS_FILE"; echo > "$LEASEHOLD_NOTICE_FILE" || echo no'
    key = host.scheduler.lease("r1", ["sh", "-c", read + '; dirname "$LEASEHOLD_NOTICE_FILE"'], user="daemon", cwd="/")
    lines = host.await_outcome(key).tail.splitlines()
    assert lines[0] == "daemon"
    assert lines[1].startswith('{"state": "held"')
    assert "no" in lines
    assert not Path(lines[-1]).exists()


def test_an_agent_that_is_not_root_leaves_another_user_to_the_guard_to_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making files for the user would fail first, with an error about them."""
    records = Records(tmp_path / "commands")
    record = records.begin(LeaseKey("r1", "main", 1), "b-1")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert records.make_notices(record, "daemon") == records.folder(record.key)
    assert record.notices is None


def test_a_device_has_one_command_at_a_time_also_after_a_new_agent(make: Make, tmp_path: Path) -> None:
    devices = Devices({"gpus": ("a", "b", "c")})
    host = make(devices=devices)
    show = ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"; exec sleep 1000']
    keys = [host.scheduler.lease(f"r{each}", show, resources={"gpus": 1}) for each in (1, 2)]
    for key in keys:
        host.await_start(key)
    none = host.scheduler.lease("r3", ["sh", "-c", 'echo "<$CUDA_VISIBLE_DEVICES>"'])
    assert host.await_outcome(none).tail == "<>\n"
    host.await_that(lambda: len({each.key for each in host.scheduler.outputs}) >= 2, "the output of both")
    shown = {each.tail for each in host.scheduler.outputs if each.key in keys}
    assert len(shown) == 2
    assert shown < {"a\n", "b\n", "c\n"}
    host.runner.close()
    again = make(scheduler=host.scheduler, devices=devices)
    for key in keys:
        again.await_start(key)
    (left,) = {"a", "b", "c"} - {each.strip() for each in shown}
    last = again.scheduler.lease("r4", ["sh", "-c", 'echo "$CUDA_VISIBLE_DEVICES"'], resources={"gpus": 1})
    assert again.await_outcome(last).tail == f"{left}\n"
    wide = again.scheduler.lease("r5", ["true"], resources={"gpus": 2})
    assert again.await_outcome(wide).error == "gpus: the lease needs 2 devices, and 1 of this host are free"


def test_start_and_output_are_reported_while_a_command_runs(make: Make) -> None:
    host = make()
    one = host.scheduler.lease("r1", ["sh", "-c", "echo one; sleep 1000"])
    two = host.scheduler.lease("r2", ["sh", "-c", "echo two; sleep 1000"])
    host.await_that(lambda: len(host.scheduler.outputs) >= 2, "the output of both")
    assert {(each.key, each.tail, each.bytes) for each in host.scheduler.outputs} == {
        (one, "one\n", 4),
        (two, "two\n", 4),
    }
    assert host.scheduler.count("output") <= 2
    host.await_that(lambda: _list_keys(host, "started") == {one, two}, "the report of both starts")


def test_leases_that_come_together_share_their_requests(make: Make) -> None:
    host = make()
    keys = [host.scheduler.lease(f"r{number}", ENDLESS) for number in range(20)]
    host.await_that(lambda: len(host.list_events("command_started")) == len(keys), "the starts")
    host.await_that(lambda: _list_keys(host, "started") == set(keys), "the reports of the starts")
    assert host.scheduler.count("take") == 1
    host.scheduler.leases.clear()
    host.await_that(lambda: set(host.scheduler.outcomes) == set(keys), "the outcomes")
    assert host.scheduler.count("started") + host.scheduler.count("exited") < len(keys)


def _list_keys(host: RunnerHost, verb: str) -> set[LeaseKey]:
    return {key for each, detail in host.scheduler.requests if each == verb for key in detail}


def test_the_start_of_a_command_that_ends_at_once_is_not_reported(make: Make) -> None:
    host = make()
    keys = [host.scheduler.lease(f"r{number}", ["true"]) for number in range(3)]
    for key in keys:
        assert host.await_outcome(key).exit_code == 0
    assert host.scheduler.count("started") == 0


@pytest.mark.parametrize("verb", ["take", "started", "exited"])
def test_a_slow_answer_about_one_lease_delays_no_other_one(make: Make, verb: str) -> None:
    """Another lease gets its command, is renewed and revoked, and reports its end meanwhile."""
    scheduler = FakeScheduler(HOST)
    scheduler.ttl = 1.0
    host = make(scheduler)
    held_back = scheduler.held_back[verb, "slow"] = threading.Event()
    slow = scheduler.lease("slow", ["true"] if verb == "exited" else ENDLESS)
    host.await_that(lambda: slow in _list_keys(host, verb), "the request")
    try:
        script = "trap 'echo bye; exit 7' TERM; echo ready; while true; do sleep 0.02; done"
        other = scheduler.lease("other", ["sh", "-c", script])
        pid = host.await_start(other)
        renewed = scheduler.count("renew")
        host.await_that(lambda: scheduler.count("renew") >= renewed + 6, "twice the ttl")
        assert is_running(pid)
        host.await_that(lambda: other in _list_keys(host, "started"), "the report of its start")
        scheduler.revoke(other, 30)
        assert host.await_outcome(other).why == "revoked"
    finally:
        held_back.set()
    if verb == "take":
        # Its deadline may have passed by now.
        host.await_that(lambda: slow in {*_list_keys(host, "renew"), *scheduler.outcomes}, "its start, or its end")
    else:
        scheduler.leases.pop(slow)
        assert host.await_outcome(slow).why == ("exited" if verb == "exited" else "revoked")
    assert [key for each, detail in scheduler.requests if each == verb for key in detail].count(slow) == 1


def test_no_request_about_a_lease_is_sent_while_another_one_has_no_answer(make: Make, tmp_path: Path) -> None:
    """So the reports about a command arrive in order."""
    host = make()
    held_back = host.scheduler.held_back["started", "r1"] = threading.Event()
    key = host.scheduler.lease("r1", ["sh", "-c", f"while ! [ -e {tmp_path}/go ]; do sleep 0.02; done"])
    host.await_that(lambda: key in _list_keys(host, "started"), "the report of its start")
    (tmp_path / "go").touch()
    host.await_event("command_ended")
    try:
        assert host.scheduler.count("exited") == 0
    finally:
        held_back.set()
    assert host.await_outcome(key).exit_code == 0


def test_a_lease_without_answers_does_not_keep_others_from_theirs(make: Make) -> None:
    """A row that no transaction can read fails each request that names it. Then each lease has a request of its own."""
    host = make()
    host.scheduler.broken = {"r3"}
    keys = [host.scheduler.lease(f"r{number}", ["true"]) for number in range(6)]
    host.await_that(lambda: len(host.scheduler.outcomes) == 5, "the outcomes of the others")
    assert keys[3] not in host.scheduler.outcomes
    host.scheduler.broken = set()
    assert host.await_outcome(keys[3]).exit_code == 0


def test_leases_are_renewed_together_and_their_deadlines_move(make: Make) -> None:
    host = make()
    host.scheduler.ttl = 3.0
    keys = [host.scheduler.lease(f"r{number}", ENDLESS) for number in range(3)]
    pids = [host.await_start(key) for key in keys]
    begin = time.monotonic()
    host.await_that(lambda: time.monotonic() - begin > 5, "a time longer than the ttl")
    assert all(is_running(pid) for pid in pids)
    renewals = [detail for verb, detail in host.scheduler.requests if verb == "renew"]
    assert sorted(renewals[-1]) == sorted(keys)
    assert len(renewals) <= 9


def test_a_command_ends_before_its_lease_expires_if_the_scheduler_is_silent(make: Make) -> None:
    host = make()
    host.scheduler.ttl = 3.0
    key = host.scheduler.lease("r1", STUBBORN)
    pid = host.await_start(key)
    host.await_that(lambda: host.scheduler.count("renew"), "a renewal")
    host.scheduler.is_silent, begin = True, time.monotonic()
    host.await_that(lambda: not is_running(pid), "the end of the command")
    assert time.monotonic() - begin < 3.0
    host.scheduler.is_silent = False
    assert host.await_outcome(key).why == "fenced"


def test_a_command_ends_before_its_host_counts_as_offline(make: Make) -> None:
    scheduler = FakeScheduler(HOST)
    scheduler.ttl, scheduler.offline_timeout = None, 3.0
    host = make(scheduler)
    pid = host.await_start(scheduler.lease("r1", ENDLESS))
    scheduler.is_silent, begin = True, time.monotonic()
    host.await_that(lambda: not is_running(pid), "the end of the command")
    assert time.monotonic() - begin < 3.5


def test_a_refused_renewal_ends_a_command(make: Make) -> None:
    host = make()
    host.scheduler.ttl = 2.0
    key = host.scheduler.lease("r1", ENDLESS)
    host.await_start(key)
    host.scheduler.renew = lambda keys: {each: refuse("token", "conflict") for each in keys}  # type: ignore[method-assign]
    assert host.await_outcome(key).why == "revoked"


def test_a_lease_that_is_gone_ends_its_command(make: Make) -> None:
    host = make()
    key = host.scheduler.lease("r1", STUBBORN)
    pid = host.await_start(key)
    del host.scheduler.leases[key]
    assert host.await_outcome(key).why == "revoked"
    assert not is_running(pid)


def test_a_revoked_command_gets_a_notice_and_its_stop_signal(make: Make) -> None:
    host = make()
    handle = """
import os, signal
def stop(*_):
    print(open(os.environ["LEASEHOLD_NOTICE_FILE"]).read(), flush=True)
    os._exit(0)
signal.signal(signal.SIGINT, stop)
print("ready", flush=True)
while True:
    signal.pause()
"""
    key = host.scheduler.lease("r1", [*PYTHON, handle], stop_signal="INT", grace=50)
    host.await_that(lambda: host.scheduler.outputs, "its first line")
    host.scheduler.revoke(key, 60)
    outcome = host.await_outcome(key)
    assert (outcome.why, outcome.exit_code) == ("revoked", 0)
    notice = json.loads(outcome.tail.splitlines()[1])
    assert notice == {"state": "revoking", "revoke_by": host.scheduler.leases[key].revoke_by}


@pytest.mark.parametrize(("grace", "seconds", "longest"), [(0.5, 60, 10), (60, 2.5, 2.5), (60, -5, 2)])
def test_a_revoked_command_that_does_not_end_is_killed_in_time(
    make: Make, grace: float, seconds: float, longest: float
) -> None:
    host = make()
    key = host.scheduler.lease("r1", STUBBORN, grace=grace)
    host.await_that(lambda: host.scheduler.outputs, "its first line")
    host.scheduler.revoke(key, seconds)
    begin = time.monotonic()
    outcome = host.await_outcome(key)
    assert (outcome.why, outcome.signal) == ("revoked", 9)
    assert time.monotonic() - begin < longest


def test_an_outcome_is_reported_until_it_is_answered(make: Make) -> None:
    host = make()
    key = host.scheduler.lease("r1", ["sh", "-c", "exit 4"])
    host.scheduler.exited = _fail_twice(host.scheduler)  # type: ignore[method-assign, assignment]
    assert host.await_outcome(key).exit_code == 4
    assert host.scheduler.count("exited") == 3


def _fail_twice(scheduler: FakeScheduler) -> Callable[[Mapping[LeaseKey, Outcome]], Mapping[LeaseKey, Refused]]:
    def exited(outcomes: Mapping[LeaseKey, Outcome]) -> Mapping[LeaseKey, Refused]:
        scheduler.is_silent = scheduler.count("exited") < 2
        return FakeScheduler.exited(scheduler, outcomes)

    return exited


def test_an_end_that_arrives_with_a_start_that_cannot_be_noted_is_reported(make: Make) -> None:
    host: RunnerHost

    def note_start(reservation: str, _component: str, _pid: int) -> None:
        if reservation == "r1":
            # The start and the end of the other command arrive together.
            wait_for((host.folder / "leases" / make_lease_id(second) / guard.OUTCOME).exists, "the end")
        raise OSError("the note cannot be written")

    host = make(note_start=note_start)
    first, second = (host.scheduler.lease(name, ["true"]) for name in ("r1", "r2"))
    assert [host.await_outcome(each).exit_code for each in (first, second)] == [0, 0]
    assert host.list_events("work_failed")[0]["error"] == "the note cannot be written"
    assert len(host.list_events("command_started")) == 2


@pytest.mark.parametrize("is_whole", [False, True])
def test_a_refused_outcome_is_not_reported_again(make: Make, is_whole: bool) -> None:
    host = make()
    if is_whole:
        host.scheduler.refusals["exited"] = refuse("token", "unknown")
    else:
        host.scheduler.refused["exited", "r1"] = refuse("token", "unknown")
    host.scheduler.lease("r1", ["true"])
    host.await_event("refused")
    for _ in range(5):
        host.look()
    assert host.scheduler.count("exited") == 1


@pytest.mark.parametrize("path", ["signature", "principal"])
def test_an_outcome_is_reported_again_while_the_sender_is_refused(make: Make, path: str) -> None:
    host = make()
    host.scheduler.refusals["exited"] = refuse(path, "forbidden")
    key = host.scheduler.lease("r1", ["sh", "-c", "exit 4"])
    host.await_that(lambda: host.scheduler.count("exited") >= 2, "another report")
    host.scheduler.refusals.clear()
    assert host.await_outcome(key).exit_code == 4
    assert len(host.list_events("refused")) == 1


@pytest.mark.parametrize(
    "spoiled",
    [
        {"cluster": "c2"},
        {"principal": "lab-2"},
        {"slot": "lab-2"},
        {"machine": "m2"},
        {"run": "b-0"},
        {"reservation": "r2"},
        {"component": "main.1"},
        {"token": "2"},
        {"nonce": "n"},
        {"command_sha256": "0"},
    ],
)
def test_a_command_that_is_signed_for_anything_else_is_not_run(make: Make, spoiled: dict[str, str]) -> None:
    host = make()
    host.scheduler.spoiled = spoiled
    host.scheduler.lease("r1", ["true"])
    event = host.await_event("wrong_command")
    assert event == {
        "event": "wrong_command",
        "reservation": "r1",
        "component": "main",
        "why": "it is not signed for this host, lease and request",
    }
    host.await_that(lambda: host.scheduler.count("take") >= 2, "another request")
    assert len(host.list_events("wrong_command")) == 1
    assert host.guard == 0


def test_a_command_that_is_signed_with_another_key_is_not_run(make: Make) -> None:
    host = make()
    host.scheduler.signer = SIGNER._replace(key=bytes(32))
    host.scheduler.lease("r1", ["true"])
    host.await_event("wrong_command")
    assert host.guard == 0


def test_an_answer_to_an_earlier_request_is_not_run(make: Make) -> None:
    host = make()
    key = host.scheduler.lease("r1", ["true"])
    earlier = FakeScheduler.take(host.scheduler, {key: "an-earlier-nonce"})[key]
    assert isinstance(earlier, Taken)
    host.scheduler.replay = earlier
    host.await_event("wrong_command")
    host.await_that(lambda: host.scheduler.count("take") >= 3, "another request")
    nonces = [each for verb, detail in host.scheduler.requests if verb == "take" for each in detail.values()]
    assert len(set(nonces)) == len(nonces)
    assert host.guard == 0


@pytest.mark.parametrize("more", [{"slot": "lab-2"}, {"token": 9}, {"argv": "true"}, {"stop_signal": "STOP"}])
def test_a_signed_command_that_contradicts_its_lease_is_not_run(make: Make, more: dict[str, Any]) -> None:
    host = make()
    key = host.scheduler.lease("r1", ["true"])
    host.scheduler.commands[key] |= more
    host.await_event("wrong_command")
    assert host.guard == 0


def test_a_host_without_a_key_runs_no_command(make: Make) -> None:
    host = make(signer=None)
    host.scheduler.lease("r1", ["true"])
    host.look()
    assert host.await_event("not_run")["why"] == (
        "the agent has no key of a principal with the role host, and the id of its cluster"
    )
    assert host.scheduler.requests == []


def test_a_refused_take_is_asked_again_and_reported_once(make: Make) -> None:
    host = make()
    host.scheduler.refusals["take"] = refuse("reservation", "conflict")
    key = host.scheduler.lease("r1", ["true"])
    host.await_that(lambda: host.scheduler.count("take") >= 2, "another request")
    host.scheduler.refusals.clear()
    assert host.await_outcome(key).exit_code == 0
    assert len(host.list_events("not_run")) == 1


def test_a_command_that_another_agent_took_is_not_run(make: Make) -> None:
    """It is lost when that agent's time is over; without an offline timeout, only after some minutes."""
    host = make()
    key = host.scheduler.lease("r1", ["true"])
    host.scheduler.takers[key] = "b-0"
    host.await_that(lambda: host.scheduler.count("take") >= 2, "another request")
    assert host.guard == 0
    assert host.scheduler.outcomes == {}


def test_a_command_that_another_agent_took_is_lost_when_its_time_is_over(make: Make) -> None:
    scheduler = FakeScheduler(HOST)
    scheduler.offline_timeout = 1.0
    host = make(scheduler)
    key = scheduler.lease("r1", ["true"])
    scheduler.takers[key] = "b-0"
    assert host.await_outcome(key).why == "lost"
    assert host.guard == 0


def test_a_killed_guard_loses_its_commands_and_the_next_ones_run(make: Make) -> None:
    host = make()
    keys = [host.scheduler.lease(f"r{number}", STUBBORN) for number in range(2)]
    pids = [host.await_start(key) for key in keys]
    first = host.guard
    os.kill(first, signal.SIGKILL)
    for key in keys:
        outcome = host.await_outcome(key)
        assert (outcome.why, outcome.error) == ("lost", "the guard of the host ended")
    assert not any(is_running(pid) for pid in pids)
    assert host.await_outcome(host.scheduler.lease("r9", ["true"])).exit_code == 0
    assert host.guard != first


def test_a_guard_that_is_killed_with_its_keeper_leaves_nothing(make: Make) -> None:
    """The agent finds the processes by their group and tag."""
    host = make()
    script = "sleep 1000 & setsid sleep 1000 & echo ready; wait"
    key = host.scheduler.lease("r1", ["sh", "-c", script])
    host.await_that(lambda: host.scheduler.outputs, "its first line")
    host.await_that(lambda: len(list_left(host.folder)) == 3, "all of its processes")
    process = guard.find_process(host.guard)
    assert process is not None
    os.kill(process.parent, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    assert host.await_outcome(key).why == "lost"
    assert list_left(host.folder) == []


def test_a_stopped_guard_does_not_keep_a_command_beyond_its_deadline(make: Make) -> None:
    host = make()
    host.scheduler.ttl = 3.0
    key = host.scheduler.lease("r1", STUBBORN)
    pid = host.await_start(key)
    os.kill(host.guard, signal.SIGSTOP)
    host.scheduler.is_silent, begin = True, time.monotonic()
    host.await_that(lambda: not is_running(pid), "the end of the command")
    assert time.monotonic() - begin < 3.0 + 5.0
    host.scheduler.is_silent = False
    assert host.await_outcome(key).why in {"fenced", "lost"}
    assert host.await_outcome(host.scheduler.lease("r2", ["true"])).exit_code == 0


def test_a_new_agent_takes_a_running_command_back(make: Make, tmp_path: Path) -> None:
    first = make()
    log = tmp_path / "log"
    key = first.scheduler.lease(
        "r1", ["sh", "-c", f"echo x >> {log}; while ! [ -e {log}.go ]; do sleep 0.05; done; exit 5"]
    )
    pid = first.await_start(key)
    first.runner.close()
    scheduler = FakeScheduler(HOST._replace(run="b-2"))
    scheduler.leases, scheduler.takers = first.scheduler.leases, first.scheduler.takers
    second = make(scheduler)
    assert second.await_start(key) == pid
    second.await_that(lambda: scheduler.count("renew"), "a renewal")
    (tmp_path / "log.go").write_text("")
    assert second.await_outcome(key).exit_code == 5
    assert log.read_text() == "x\n"
    assert scheduler.count("take") == 0


def test_a_new_agent_reports_what_ended_meanwhile(make: Make, tmp_path: Path) -> None:
    first = make()
    key = first.scheduler.lease(
        "r1", ["sh", "-c", f"while ! [ -e {tmp_path}/go ]; do sleep 0.05; done; echo end; exit 6"]
    )
    first.await_start(key)
    first.runner.close()
    (tmp_path / "go").write_text("")
    # The guard ends with its last command, because it has no agent.
    wait_for(lambda: not is_running(first.guard), "the end of the guard")
    scheduler = FakeScheduler(HOST._replace(run="b-2"))
    scheduler.leases = first.scheduler.leases
    assert make(scheduler).await_outcome(key) == Outcome(why="exited", exit_code=6, tail="end\n", bytes=4)


def test_a_new_agent_reports_that_an_earlier_one_gave_the_notice(make: Make, tmp_path: Path) -> None:
    first, gate = make(), tmp_path / "gate"
    script = f"trap 'until [ -e {gate} ]; do sleep 0.05; done; exit 5' TERM; sleep 1000 & wait"
    key = first.scheduler.lease("r1", ["sh", "-c", script], grace=60.0)
    first.await_start(key)
    first.scheduler.revoke(key, 60.0)
    first.await_that(lambda: read_notice(first, key)["state"] == "revoking", "the notice")
    first.runner.close()
    gate.touch()
    wait_for(lambda: not is_running(first.guard), "the end of the guard")
    scheduler = FakeScheduler(HOST._replace(run="b-2"))
    scheduler.leases = first.scheduler.leases
    outcome = make(scheduler).await_outcome(key)
    assert (outcome.why, outcome.exit_code) == ("revoked", 5)


def read_notice(host: RunnerHost, key: LeaseKey) -> Any:
    return json.loads((host.folder / "leases" / make_lease_id(key) / "notice.json").read_text(encoding="utf-8"))


def test_a_new_agent_after_a_reboot_has_lost_the_commands(make: Make, tmp_path: Path) -> None:
    """A process that has the id of the command by now is left alone."""
    first = make()
    key = first.scheduler.lease("r1", ENDLESS)
    first.await_start(key)
    first.runner.close()
    end_guard(first.folder)
    (first.folder / "leases" / make_lease_id(key) / guard.OUTCOME).unlink()
    other = Guarded(ENDLESS)
    records = Records(first.folder)
    (record,) = records.load()
    record.pid, record.begun = other.pid, None
    records.save(record)
    scheduler = FakeScheduler(HOST._replace(run="other-2"))
    scheduler.leases = first.scheduler.leases
    outcome = make(scheduler).await_outcome(key)
    assert (outcome.why, outcome.error) == ("lost", "the host was started again")
    assert other.poll() is None
    other.kill()
    other.wait()


def test_a_new_agent_loses_a_command_that_was_taken_and_not_started(make: Make, tmp_path: Path) -> None:
    key = LeaseKey("r1", "main", 1)
    Records(tmp_path / "commands").begin(key, "b-1")
    scheduler = FakeScheduler(HOST._replace(run="b-2"))
    scheduler.lease("r1", ["true"])
    scheduler.takers[key] = "b-1"
    host = make(scheduler)
    outcome = host.await_outcome(key)
    assert (outcome.why, outcome.error) == (
        "lost",
        "an earlier agent of the host took the command, and did not start it",
    )


def test_a_new_agent_runs_a_command_that_was_only_asked_for(make: Make, tmp_path: Path) -> None:
    Records(tmp_path / "commands").begin(LeaseKey("r1", "main", 1), "b-1")
    host = make(FakeScheduler(HOST._replace(run="b-2")))
    assert host.await_outcome(host.scheduler.lease("r1", ["true"])).exit_code == 0


def test_a_folder_that_takes_no_records_starts_nothing(make: Make) -> None:
    host = make()
    (host.folder / "leases").rmdir()
    (host.folder / "leases").write_text("")
    host.scheduler.lease("r1", ["true"])
    assert "no record can be written" in host.await_event("not_run")["why"]
    assert host.scheduler.count("take") == 0
    (host.folder / "leases").unlink()
    (host.folder / "leases").mkdir()


def test_no_end_of_a_command_is_missed_while_no_record_can_be_written(make: Make, tmp_path: Path) -> None:
    host, gate = make(), tmp_path / "gate"
    script = f"until [ -e {gate} ]; do sleep 0.05; done; exit 3"
    keys = [host.scheduler.lease(f"r{number}", ["sh", "-c", script]) for number in range(4)]
    for key in keys:
        host.await_start(key)
        refuse_records(host, key)
    gate.touch()
    assert [host.await_outcome(key).exit_code for key in keys] == [3] * 4
    assert host.list_events("work_failed")


def test_a_command_whose_record_cannot_be_written_before_its_start_is_not_started(make: Make, tmp_path: Path) -> None:
    host = make()
    host.scheduler.held_back["take", "r1"] = answer = threading.Event()
    key = host.scheduler.lease("r1", ["touch", str(tmp_path / "started")])
    host.await_that(lambda: host.scheduler.count("take"), "the request for the command")
    refuse_records(host, key)
    answer.set()
    found = host.await_outcome(key)
    assert found.why == "not_started"
    assert RECORD in (found.error or "")
    assert not (tmp_path / "started").exists()


def test_a_record_of_which_the_disk_takes_a_part_does_not_replace_the_last_one(tmp_path: Path) -> None:
    """The limit of a file's size refuses writes as a full disk does."""
    records = Records(tmp_path / "commands")
    record = records.begin(LeaseKey("r1", "main", 1), "b-1")
    record.outcome = Outcome(why="exited", exit_code=0, tail="x" * 8000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        with pytest.raises(OSError, match="too large"):
            records.save(record)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    (stored,) = records.load()
    assert (stored.key, stored.outcome) == (record.key, None)


def refuse_records(host: RunnerHost, key: LeaseKey) -> None:
    """Let each further write of the record of a lease fail, as on a full disk: its draft is a folder."""
    (host.folder / "leases" / make_lease_id(key) / f".{RECORD}").mkdir()


def test_the_output_of_the_last_commands_is_kept(make: Make) -> None:
    host = make()
    keys = [host.scheduler.lease(f"r{number}", ["echo", str(number)]) for number in range(24)]
    for key in keys:
        host.await_outcome(key)
    host.scheduler.leases.clear()
    host.await_that(lambda: len(list((host.folder / "leases").iterdir())) == 20, "the removal of the oldest")


ENGINE = """#!/bin/sh
echo "$@" >> {folder}/engine.log
[ "$1" = rm ] && exit 0
while [ "$1" != IMAGE ]; do shift; done
shift
exec "$@"
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put a program on the PATH that acts as docker does. Return the file with its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "docker"
    program.write_text(ENGINE.format(folder=folder))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "engine.log"


def test_a_command_with_an_image_runs_in_a_container_which_is_removed(make: Make, engine: Path) -> None:
    host = make()
    key = host.scheduler.lease("r1", ["sh", "-c", "echo $COLOR; exit 8"], image="IMAGE", env={"COLOR": "blue"})
    outcome = host.await_outcome(key)
    assert (outcome.exit_code, outcome.tail) == (8, "blue\n")
    first, second = engine.read_text().splitlines()
    name = f"leasehold-{make_lease_id(key)}"
    assert first.startswith("run --rm --env")
    assert f"--label leasehold.lease={name} --name {name}" in first
    assert "blue" not in first
    assert second == f"rm --force {name}"


def test_the_container_of_a_dead_guard_is_removed_by_the_agent(make: Make, engine: Path) -> None:
    host = make()
    key = host.scheduler.lease("r1", ENDLESS, image="IMAGE")
    host.await_start(key)
    os.kill(host.guard, signal.SIGKILL)
    assert host.await_outcome(key).why == "lost"
    assert engine.read_text().splitlines()[-1] == f"rm --force leasehold-{make_lease_id(key)}"


def test_a_host_without_a_container_engine_starts_no_image(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    host = make()
    outcome = host.await_outcome(host.scheduler.lease("r1", ["true"], image="IMAGE"))
    assert outcome.why == "not_started"
    assert outcome.error == "this host has no container engine (podman or docker) for the image IMAGE"


class Agent:
    """The small agent as a process of its own."""

    def __init__(self, folder: Path, run: str, ttl: float, script: str) -> None:
        self._log = folder / f"{run}.log"
        command = [sys.executable, "-m", "tests.work.small_agent", str(folder), run, str(ttl), script]
        with self._log.open("wb") as log:
            self.process = Guarded(command, stdout=log)

    def await_event(self, name: str) -> dict[str, Any]:
        def find() -> dict[str, Any] | None:
            lines = [
                json.loads(line) for line in self._log.read_text().splitlines(keepends=True) if line.endswith("\n")
            ]
            return next((each for each in lines if each["event"] == name), None)

        return wait_for(find, f"{name} in {self._log.read_text()}")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_guard(tmp_path / "commands")


def _count_lines(path: Path) -> int:
    return len(path.read_text().splitlines())


SCRIPT = "echo x >> {0}/log; setsid sleep 1000 & while ! [ -e {0}/go ]; do sleep 0.05; done; exit 7"


def test_a_killed_agent_leaves_its_command_to_the_next_one(folder: Path) -> None:
    script = SCRIPT.format(folder)
    first = Agent(folder, "b-1", 60, script)
    pid = first.await_event("command_started")["pid"]
    first.process.kill()
    first.process.wait()
    second = Agent(folder, "b-2", 60, script)
    assert second.await_event("taken_back")["pid"] == pid
    (folder / "go").write_text("")
    assert second.await_event("outcome")["exit_code"] == 7
    second.process.wait()
    assert _count_lines(folder / "log") == 1
    assert list_left(folder / "commands") == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_command_of_a_dead_or_stopped_agent_ends_at_its_deadline(folder: Path, number: signal.Signals) -> None:
    agent = Agent(folder, "b-1", 4, SCRIPT.format(folder))
    agent.await_event("command_started")
    os.kill(agent.process.pid, number)
    begin = time.monotonic()
    wait_for(lambda: not list_left(folder / "commands"), "the end of the command")
    assert time.monotonic() - begin < 4 + 5
    agent.process.kill()
    agent.process.wait()
    # The next agent does not run it again.
    second = Agent(folder, "b-2", 4, SCRIPT.format(folder))
    assert second.await_event("outcome")["why"] == "fenced"
    second.process.wait()
    assert _count_lines(folder / "log") == 1


def test_a_killed_agent_and_guard_leave_nothing(folder: Path) -> None:
    """The keeper ends the command, and the next agent reports that it was lost."""
    agent = Agent(folder, "b-1", 60, SCRIPT.format(folder))
    agent.await_event("command_started")
    pid = int((folder / "commands/guard" / guard.LOCK).read_text().split()[0])
    agent.process.kill()
    os.kill(pid, signal.SIGKILL)
    agent.process.wait()
    wait_for(lambda: not list_left(folder / "commands"), "the end of the command")
    second = Agent(folder, "b-2", 60, SCRIPT.format(folder))
    assert second.await_event("outcome")["why"] == "lost"
    second.process.wait()
    assert _count_lines(folder / "log") == 1


def test_a_stopped_agent_and_guard_are_replaced_by_the_next_agent(folder: Path) -> None:
    agent = Agent(folder, "b-1", 60, SCRIPT.format(folder))
    agent.await_event("command_started")
    for pid in (agent.process.pid, int((folder / "commands/guard" / guard.LOCK).read_text().split()[0])):
        os.kill(pid, signal.SIGSTOP)
    second = Agent(folder, "b-2", 60, SCRIPT.format(folder))
    assert second.await_event("outcome")["why"] == "lost"
    second.process.wait()
    assert list_left(folder / "commands") == []
    assert _count_lines(folder / "log") == 1
    agent.process.kill()
    agent.process.wait()
