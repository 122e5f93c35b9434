"""The guard of a host with real commands: their output, their outcomes, their ends, and what they leave behind."""

import ast
import os
import pwd
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from leasehold.agent.enforcer import Cgroups, find_limits
from leasehold.work import guard
from leasehold.work.guard import MOST_TAIL, OLDER_OUTPUT, OUTCOME, OUTPUT, Output, read_boot_clock
from leasehold.work.guard_client import Exited, GuardLost, Known, NotStarted, Printed, Started
from testbed.guarding import Guarded
from testbed.processes import wait_for
from tests.ci_rules import NO_MEMORY_CONTROLLER
from tests.work.guarded_host import PYTHON, GuardedHost, is_running, read_number

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs subreapers and /proc")
ENDLESS = ("sleep", "1000")
DAEMON = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    reader, writer = os.pipe()
    if (daemon := os.fork()) == 0:
        if sys.argv[2] == "bare":
            os.execve("/bin/sleep", ["sleep", "1000"], {})
        os.execv("/bin/sleep", ["sleep", "1000"])
    os.close(writer)
    os.read(reader, 1)
    with open(sys.argv[1] + ".draft", "w") as file:
        file.write(str(daemon))
    os.rename(sys.argv[1] + ".draft", sys.argv[1])
    os._exit(0)
time.sleep(float(sys.argv[3]))
"""
"""The pipe closes when the daemon has its environment."""


def make_daemon(path: Path, environment: str, seconds: float = 1000) -> list[str]:
    """Return a command that starts a daemon, which writes its process id to `path`, and then sleeps `seconds`."""
    return [*PYTHON, DAEMON, str(path), environment, str(seconds)]


def await_pid(path: Path) -> int:
    return wait_for(lambda: read_number(path), f"a process id in {path.name}")


def test_the_guard_imports_only_the_standard_library() -> None:
    tree = ast.parse(Path(guard.__file__).read_text(encoding="utf-8"))
    names = {each.name for node in ast.walk(tree) if isinstance(node, ast.Import) for each in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 0", {"code": 0}),
        ("exit 3", {"code": 3}),
        ("kill -TERM $$", {"signal": signal.SIGTERM}),
        ("kill -KILL $$", {"signal": signal.SIGKILL}),
    ],
)
def test_a_command_ends_with_an_exit_code_or_a_signal(host: GuardedHost, script: str, expected: dict[str, int]) -> None:
    host.start("c", ["sh", "-c", f"echo out; echo err >&2; {script}"])
    end = host.await_end("c")
    assert isinstance(end, Exited)
    assert (end.code, end.signal) == (expected.get("code"), expected.get("signal"))
    assert (end.tail, end.bytes, end.left, end.cause) == ("out\nerr\n", 8, 0, None)
    assert (host.folder / "c" / OUTPUT).read_text() == "out\nerr\n"


def test_a_command_has_its_environment_folder_and_an_empty_input(host: GuardedHost, tmp_path: Path) -> None:
    host.start("c", ["sh", "-c", "cat; pwd; echo $NAME; ulimit -n; umask"], cwd=str(tmp_path), env={"NAME": "ä b"})
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    umask = os.umask(0)
    os.umask(umask)
    assert host.await_end("c").tail == f"{tmp_path}\nä b\n{soft}\n{umask:04o}\n"


def test_a_command_leads_its_own_session_and_ignores_no_signal(host: GuardedHost) -> None:
    program = "import os, signal; print(os.getsid(0) == os.getpid(), signal.pthread_sigmask(0, ()))"
    ignored = "; print([each.name for each in signal.Signals if signal.getsignal(each) == signal.SIG_IGN])"
    host.start("c", [*PYTHON, program + ignored])
    # Python itself ignores SIGPIPE and SIGXFSZ.
    assert host.await_end("c").tail.splitlines() == ["True set()", "['SIGPIPE', 'SIGXFSZ']"]


@pytest.mark.parametrize(
    ("argv", "more", "error"),
    [
        (["no-such-program-47"], {}, "the program no-such-program-47 cannot be started: No such file or directory"),
        (["/"], {}, "the program / cannot be started: Permission denied"),
        (["true"], {"cwd": "/no/such"}, "the folder /no/such cannot be entered: No such file or directory"),
        (["true"], {"user": "no-such-user-47"}, "the user no-such-user-47 does not exist on this host"),
        (["true"], {"deadline": 0.0}, "the deadline of the lease has passed"),
        (["true"], {"cgroup": "/dev/null/x"}, "the command cannot be started: Not a directory"),
        (["true", "x" * 200_000], {}, "the program true cannot be started: Argument list too long"),
    ],
)
def test_a_command_that_cannot_be_started_is_reported(
    host: GuardedHost, argv: list[str], more: dict[str, Any], error: str
) -> None:
    host.start("c", argv, **more)
    end = host.await_end("c")
    assert isinstance(end, NotStarted)
    assert end.error == error


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user")
def test_a_command_runs_as_another_user(host: GuardedHost) -> None:
    user = pwd.getpwnam("daemon")
    host.start("c", ["sh", "-c", "id -u; id -G; echo $HOME $USER; pwd"], user="daemon", cwd="/", env={"HOME": "/"})
    groups = " ".join(map(str, os.getgrouplist("daemon", user.pw_gid)))
    assert host.await_end("c").tail == f"{user.pw_uid}\n{groups}\n/ daemon\n/\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes the user")
def test_a_command_of_another_user_ends_with_the_guard(host: GuardedHost) -> None:
    """The kernel drops the wish to end with the parent when a process changes its user."""
    pid = host.run("c", ENDLESS, user="daemon", cwd="/")
    os.kill(host.keeper, signal.SIGKILL)
    os.kill(host.guard, signal.SIGKILL)
    wait_for(lambda: not is_running(pid), "the end of the command")


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user first")
def test_only_root_may_change_the_user(tmp_path: Path) -> None:
    """The message names the reason."""
    command = guard.Command({"id": "c", "argv": ["true"], "env": {}, "folder": str(tmp_path), "user": "root"})
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.setuid(pwd.getpwnam("daemon").pw_uid)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        guard.Starter(0o022, (64, 64))._become(command, os.getppid(), 1, writer)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as found:
        assert found.read() == "the user root cannot be taken: Operation not permitted (the agent does not run as root)"


def test_a_repeated_request_starts_nothing_again(host: GuardedHost) -> None:
    script = ["sh", "-c", 'echo once >> "$HOME/log"; sleep 1000']
    pid = host.run("c", script)
    host.start("c", script)
    assert host.await_event(Known, "c").pid == pid
    wait_for((host.folder / "log").exists, "the first line")
    host.send("kill", "c")
    host.await_end("c")
    host.start("c", script)
    host.await_that(lambda: [e for e in host.events if isinstance(e, Known) and e.outcome], "the outcome, again")
    assert (host.folder / "log").read_text() == "once\n"


def test_a_command_is_killed_at_its_deadline(host: GuardedHost) -> None:
    begin = read_boot_clock()
    pid = host.run("c", ["sh", "-c", "trap '' TERM; while true; do sleep 1; done"], deadline=begin + 1.0)
    end = host.await_end("c")
    assert (end.signal, end.cause) == (signal.SIGKILL, "deadline")
    assert 1.0 <= read_boot_clock() - begin < 4.0
    assert not is_running(pid)


def test_a_deadline_moves(host: GuardedHost) -> None:
    host.run("c", ENDLESS, deadline=read_boot_clock() + 1000)
    host.send("deadline", "c", deadline=read_boot_clock() + 0.2)
    assert host.await_end("c").cause == "deadline"


def test_a_deadline_holds_without_an_agent_and_the_next_agent_gets_the_outcome(host: GuardedHost) -> None:
    pid = host.run("c", ["sh", "-c", "echo hello; sleep 1000"], deadline=read_boot_clock() + 1.0)
    host.await_event(Printed, "c")
    other = host.run("d", ENDLESS)
    host.client.disconnect()
    wait_for(lambda: not is_running(pid), "the end at the deadline")
    found = host.reconnect()
    assert found["c"].outcome.cause == "deadline"
    assert found["c"].outcome.tail == "hello\n"
    assert (found["d"].outcome, found["d"].pid, found["d"].started) == (None, other, True)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_stop_signal_ends_a_command_in_its_own_way(host: GuardedHost, is_stopped: bool) -> None:
    handle = "import os, signal; signal.signal(signal.SIGUSR1, lambda *_: (print('bye', flush=True), os._exit(7)))"
    pid = host.run("c", [*PYTHON, handle + "; print('ready', flush=True)\nwhile True: signal.pause()"])
    host.await_event(Printed, "c")
    if is_stopped:
        os.killpg(pid, signal.SIGSTOP)
    host.send("stop", "c", signal=signal.SIGUSR1, grace=60)
    end = host.await_end("c")
    assert (end.code, end.cause, end.tail) == (7, "stop", "ready\nbye\n")


def test_a_stop_signal_that_comes_with_the_start_ends_the_command(host: GuardedHost) -> None:
    """The group of the command does not exist yet when the guard carries out the second request."""
    for name in ("a", "b", "c"):
        host.start(name, ["sleep", "1000"])
        host.send("stop", name, signal=int(signal.SIGTERM), grace=10.0)
    assert {host.await_end(name).signal for name in ("a", "b", "c")} == {signal.SIGTERM}


def test_a_command_that_ignores_its_stop_signal_is_killed_after_the_grace(host: GuardedHost) -> None:
    host.run("c", ["sh", "-c", "trap '' TERM; echo ready; while true; do sleep 1; done"])
    host.await_event(Printed, "c")
    begin = time.monotonic()
    host.send("stop", "c", signal=signal.SIGTERM, grace=0.5)
    end = host.await_end("c")
    assert (end.signal, end.cause) == (signal.SIGKILL, "stop")
    assert time.monotonic() - begin >= 0.5


def test_a_stopped_command_is_killed_at_its_deadline(host: GuardedHost) -> None:
    pid = host.run("c", ENDLESS, deadline=read_boot_clock() + 1.0)
    os.kill(pid, signal.SIGSTOP)
    assert host.await_end("c").cause == "deadline"


def test_a_command_that_is_killed_from_outside_ends_by_the_signal(host: GuardedHost) -> None:
    os.kill(host.run("c", ENDLESS), signal.SIGKILL)
    end = host.await_end("c")
    assert (end.signal, end.cause) == (signal.SIGKILL, None)


def test_what_a_command_leaves_in_its_group_ends_with_it(host: GuardedHost) -> None:
    host.start("c", ["sh", "-c", 'sleep 1000 & echo $! > "$HOME/pid"; exit 0'])
    assert host.await_end("c").code == 0
    assert not is_running(await_pid(host.folder / "pid"))


@linux
@pytest.mark.parametrize("environment", ["same", "bare"])
def test_a_daemon_of_a_command_ends_with_it(host: GuardedHost, environment: str) -> None:
    path = host.folder / "pid"
    host.run("c", make_daemon(path, environment))
    daemon = await_pid(path)
    host.send("kill", "c")
    host.await_end("c")
    assert not is_running(daemon)


@linux
@pytest.mark.parametrize("environment", ["same", "bare"])
def test_a_daemon_stays_while_its_command_runs_and_ends_with_it(host: GuardedHost, environment: str) -> None:
    """With an empty environment it belongs to the only command of which it can be."""
    path, go = host.folder / "pid", host.folder / "go"
    os.mkfifo(go)
    host.run(
        "c", ["sh", "-c", 'sh -c "$1" 1 2>&1; cat < "$2"', "sh", _quote(make_daemon(path, environment, 0)), str(go)]
    )
    daemon = await_pid(path)
    host.await_that(lambda: _is_adopted(daemon, host.guard), "the adoption of the daemon")
    # Two ticks of the guard later, which it shows by output of another command.
    host.run("d", ["sh", "-c", "echo a; sleep 1.2; echo b; sleep 1.2; echo c"])
    host.await_end("d")
    assert is_running(daemon)
    go.write_text("")
    assert host.await_end("c").code == 0
    assert not is_running(daemon)


@linux
def test_a_daemon_that_could_be_of_several_commands_is_killed(host: GuardedHost) -> None:
    path = host.folder / "pid"
    host.run("a", ENDLESS)
    host.run("c", ["sh", "-c", 'sh -c "$1"; sleep 1000', "sh", _quote(make_daemon(path, "bare", 0))])
    daemon = await_pid(path)
    host.await_that(lambda: not is_running(daemon), "the end of the daemon")


@linux
def test_a_daemon_of_an_ended_command_does_not_become_one_of_another(host: GuardedHost) -> None:
    """The only running command that began before the daemon is not the only one of which it can be."""
    host.run("a", ENDLESS)
    for name in "bcde":
        # One of them begins soon after a search, so that the next search comes after its end.
        host.start(name, make_daemon(host.folder / f"pid-{name}", "bare", 0.3))
        host.await_end(name)
    daemons = [await_pid(host.folder / f"pid-{name}") for name in "bcde"]
    host.await_that(lambda: not any(map(is_running, daemons)), "the end of the daemons")
    assert host.reconnect()["a"].outcome is None


@linux
def test_a_daemon_is_killed_although_no_command_runs_any_more(host: GuardedHost) -> None:
    host.start("a", make_daemon(host.folder / "pid-a", "bare", 0.05))
    host.await_end("a")
    # Within a second after the last search: the daemon of one of two commands, which both end before the next one.
    host.start("b", ["sleep", "0.4"])
    host.start("c", make_daemon(host.folder / "pid-c", "bare", 0.2))
    host.await_end("c")
    host.await_end("b")
    daemon = await_pid(host.folder / "pid-c")
    wait_for(lambda: not is_running(daemon), "the end of the daemon")


def _is_adopted(pid: int, guard_pid: int) -> bool:
    found = guard.find_process(pid)
    return found is not None and found.parent == guard_pid


def _quote(argv: list[str]) -> str:
    import shlex

    return shlex.join(argv)


@linux
def test_a_bomb_of_processes_in_sessions_of_their_own_ends(host: GuardedHost) -> None:
    """Bounded: at most 400 processes at a time, each of which starts two in new sessions and ends."""
    bomb = """
import os, sys, time
left = int(sys.argv[1])
while left > 0:
    left -= 1
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        left //= 2
time.sleep(1000)
"""
    host.start("c", [*PYTHON, bomb, "13"])
    host.await_event(Started, "c")
    wait_for(lambda: len(host.list_tagged()) > 60, "some processes of the bomb")
    host.send("kill", "c")
    assert host.await_end("c").left == 0
    assert host.list_tagged() == []


@linux
@pytest.mark.parametrize("is_only_the_guard", [True, False])
def test_a_killed_guard_takes_its_commands_with_it(host: GuardedHost, is_only_the_guard: bool) -> None:
    path = host.folder / "pid"
    pid = host.run("c", make_daemon(path, "bare"))
    daemon, keeper = await_pid(path), host.keeper
    if not is_only_the_guard:
        os.kill(keeper, signal.SIGKILL)
    os.kill(host.guard, signal.SIGKILL)
    with pytest.raises(GuardLost, match="the guard has ended"):
        host.await_that(lambda: None, "the end of the connection")
    wait_for(lambda: not is_running(pid), "the end of the command")
    if is_only_the_guard:
        wait_for(lambda: not is_running(daemon) and not is_running(keeper), "the end of daemon and keeper")
    else:
        os.kill(daemon, signal.SIGKILL)
    assert host.reconnect() == {}


@linux
def test_a_stopped_guard_without_a_keeper_is_killed_with_all_that_its_commands_started(host: GuardedHost) -> None:
    path = host.folder / "pid"
    pid = host.run("c", make_daemon(path, "bare"))
    daemon = await_pid(path)
    os.kill(host.keeper, signal.SIGKILL)
    os.kill(host.guard, signal.SIGSTOP)
    host.client.kill_guard()
    wait_for(lambda: not any(map(is_running, (host.guard, pid, daemon))), "the end of guard, command and daemon")
    assert host.reconnect() == {}


def test_a_guard_without_commands_ends_with_its_agent(host: GuardedHost) -> None:
    host.start("c", ["true"])
    host.await_end("c")
    host.client.disconnect()
    wait_for(lambda: not is_running(host.guard), "the end of the guard")
    # No agent has acknowledged the outcome: it is in a file.
    assert (host.folder / "c" / OUTCOME).exists()


def test_a_second_agent_gets_the_same_guard(host: GuardedHost) -> None:
    pid, first = host.run("c", ENDLESS), host.guard
    assert host.reconnect()["c"].pid == pid
    assert host.guard == first


def test_an_acknowledged_command_is_forgotten(host: GuardedHost) -> None:
    host.start("c", ["true"])
    host.await_end("c")
    host.send("ack", "c")
    assert host.reconnect() == {}


def test_an_end_that_arrives_with_the_list_is_not_lost(
    host: GuardedHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.run("c", ["sh", "-c", f"until [ -e {tmp_path}/go ]; do sleep 0.01; done"])
    send = host.client.send

    def send_and_end(request: Mapping[str, Any]) -> None:
        send(request)
        assert host.client._socket is not None
        connected = host.client._socket

        def peek() -> bytes:
            return connected.recv(65_536, socket.MSG_PEEK)

        wait_for(lambda: b'"list"' in peek(), "the list")
        (tmp_path / "go").touch()
        wait_for(lambda: b'"exited"' in peek(), "the end")

    monkeypatch.setattr(host.client, "send", send_and_end)
    assert host.reconnect()["c"].outcome is None
    assert host.await_end("c").code == 0


@pytest.mark.parametrize("line", [b"x", b"{}", b'{"do": "fly", "id": "c"}', b'{"do": "ack"}', b"[1]"])
def test_a_request_that_cannot_be_read_is_refused_and_the_guard_goes_on(host: GuardedHost, line: bytes) -> None:
    assert host.client._socket is not None
    host.client._socket.sendall(line + b"\n")
    host.await_that(lambda: host.events, "a refusal")
    host.start("c", ["true"])
    assert host.await_end("c").code == 0


def test_a_long_output_keeps_its_end_within_two_bounded_files(host: GuardedHost) -> None:
    most = 1024 * 1024
    total = 20 * most
    host.start("c", ["sh", "-c", f"head -c {total} /dev/zero | tr '\\0' x; echo end"], most_output=most)
    end = host.await_end("c")
    sizes = {each.name: each.stat().st_size for each in (host.folder / "c").iterdir()}
    assert sizes[OLDER_OUTPUT] == most
    assert 0 < sizes[OUTPUT] <= most
    assert (end.bytes, end.dropped) == (total + 4, 0)
    assert end.tail == "x" * (MOST_TAIL - 4) + "end\n"
    assert set(sizes) == {OUTPUT, OLDER_OUTPUT, OUTCOME}


def test_binary_output_becomes_text(host: GuardedHost) -> None:
    data = bytes(range(256)) * 200
    (host.folder / "data").write_bytes(data)
    host.start("c", ["cat", str(host.folder / "data")])
    end = host.await_end("c")
    assert (host.folder / "c" / OUTPUT).read_bytes() == data
    assert end.bytes == len(data)
    assert 0 < len(end.tail.encode()) <= MOST_TAIL
    assert "\0" not in end.tail


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("café au lait\n".encode("latin-1"), "caf? au lait\n"),
        # a character of which only the first bytes came, and an encoded surrogate
        (b"\xe2\x82", "??"),
        (b"\xed\xa0\x80.", "???."),
        (b"a\0b", "a?b"),
        (b"\xff" * 9000 + b"end\n", "?" * (MOST_TAIL - 4) + "end\n"),
        ("é€😀".encode(), "é€😀"),
    ],
)
def test_the_tail_has_as_many_bytes_as_the_output(tmp_path: Path, data: bytes, text: str) -> None:
    output = Output(str(tmp_path), 1_000_000)
    output.write(data)
    assert output.tail == text
    assert len(text.encode()) == min(len(data), MOST_TAIL)
    output.close()


@pytest.mark.parametrize("offset", range(4))
def test_the_tail_begins_with_a_whole_character(tmp_path: Path, offset: int) -> None:
    output = Output(str(tmp_path), 1_000_000)
    output.write(b"a" * offset + "€".encode() * 5000)
    assert set(output.tail) == {"€"}
    assert len(output.tail.encode()) in range(MOST_TAIL - 3, MOST_TAIL + 1)
    output.close()


def test_a_full_disk_drops_output_and_the_command_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a file's size refuses writes as a full disk does."""
    output = Output(str(tmp_path), 10_000)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, limits[1]))
        output.write(b"x" * 5000)
        output.write(b"y" * 100)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert (output.bytes, output.dropped) == (5100, 2100)
    output.write(b"z" * 50)
    assert (output.bytes, output.dropped) == (5150, 2100)
    assert (tmp_path / OUTPUT).read_bytes() == b"x" * 3000 + b"z" * 50
    assert output.tail[-150:] == "y" * 100 + "z" * 50
    output.close()


def test_a_folder_that_takes_no_files_loses_only_the_files(host: GuardedHost) -> None:
    """The folder is a file: neither output nor outcome can be written."""
    (host.folder / "c").mkdir()
    (host.folder / "file").write_text("")
    host.start("c", ["sh", "-c", "echo hello; exit 4"], folder=str(host.folder / "file"))
    end = host.await_end("c")
    assert (end.code, end.tail, end.bytes, end.dropped) == (4, "hello\n", 6, 6)


def test_a_command_may_close_its_output(host: GuardedHost) -> None:
    host.start("c", ["sh", "-c", "exec >&- 2>&-; sleep 0.1; exit 5"])
    assert host.await_end("c").code == 5


def test_running_commands_report_their_output_about_once_a_second(host: GuardedHost) -> None:
    host.start("c", ["sh", "-c", "i=0; while [ $i -lt 24 ]; do echo $i; i=$((i+1)); sleep 0.1; done"])
    host.await_end("c")
    printed = [each for each in host.events if isinstance(each, Printed)]
    assert 1 <= len(printed) <= 5
    assert [each.bytes for each in printed] == sorted({each.bytes for each in printed})


def test_a_silent_agent_does_not_hold_up_a_command(host: GuardedHost) -> None:
    """The agent reads no events; the command writes more than a socket holds, and ends."""
    host.start("c", ["sh", "-c", "head -c 30000000 /dev/zero; exit 6"], most_output=1_000_000)
    wait_for((host.folder / "c" / OUTCOME).exists, "the outcome")
    assert host.await_end("c").code == 6


def test_fifty_commands_run_beside_each_other(host: GuardedHost) -> None:
    for number in range(50):
        host.start(f"c{number}", ["sh", "-c", f"echo {number}; exit {number}"])
    assert [(host.await_end(f"c{number}").code, number) for number in range(50)] == [(n, n) for n in range(50)]


def test_a_deep_folder_has_a_socket_too(tmp_path: Path) -> None:
    """The path of a Unix socket has at most about 100 bytes."""
    if sys.platform != "linux":
        pytest.skip("no shorter path of a folder")
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    host = GuardedHost(deep)
    try:
        host.start("c", ["true"])
        assert host.await_end("c").code == 0
    finally:
        host.close()


def _find_cgroup_folder() -> Path | None:
    mounts = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
    return next((each for each in mounts if os.access(each / "cgroup.procs", os.W_OK)), None)


@pytest.fixture
def cgroup() -> Iterator[Path]:
    """Return a delegated folder of cgroup v2."""
    mount = _find_cgroup_folder()
    assert mount is not None
    folder = mount / f"leasehold-test-{os.getpid()}"
    folder.mkdir()
    yield folder
    wait_for(lambda: "populated 0" in (folder / "cgroup.events").read_text(), "the end of the cgroup's processes")
    guard.remove_cgroup(str(folder))
    assert not folder.exists()


@pytest.mark.skipif(_find_cgroup_folder() is None, reason="needs a writable cgroup v2")
def test_a_command_runs_in_its_cgroup_which_ends_with_it(host: GuardedHost, cgroup: Path) -> None:
    place, pid = cgroup / "c" / "run", host.folder / "pid"
    host.run("c", make_daemon(pid, "bare"), cgroup=str(place))
    daemon = await_pid(pid)
    assert str(daemon) in (place / "cgroup.procs").read_text().split()
    # A cgroup that the command itself has made.
    inner = place / "inner"
    inner.mkdir()
    (inner / "cgroup.procs").write_text(str(daemon))
    host.send("kill", "c")
    assert host.await_end("c").left == 0
    assert not is_running(daemon)
    assert not place.exists()


@pytest.mark.skipif(_find_cgroup_folder() is None, reason="needs a writable cgroup v2")
def test_a_cgroup_without_kill_ends_too(cgroup: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = Guarded(ENDLESS)
    (cgroup / "cgroup.procs").write_text(str(process.pid))

    def write(path: str, text: str) -> None:
        raise OSError(f"no {path}")

    monkeypatch.setattr(guard, "_write", write)
    assert guard.kill_cgroup(str(cgroup))
    assert process.wait(10) == -signal.SIGKILL
    wait_for(lambda: not guard.kill_cgroup(str(cgroup)), "an empty cgroup")


def test_the_kernel_is_asked_to_count_what_lacks_memory(host: GuardedHost, tmp_path: Path) -> None:
    control = tmp_path / "lease" / "cgroup.subtree_control"
    control.parent.mkdir()
    control.touch()
    host.start("c", ["true"], cgroup=str(tmp_path / "lease" / "run"))
    # It is no cgroup.
    assert isinstance(host.await_end("c"), NotStarted)
    assert control.read_text() == "+memory"


def _has_memory_controller() -> bool:
    mount = _find_cgroup_folder()
    return mount is not None and "memory" in (mount / "cgroup.controllers").read_text().split()


@pytest.mark.skipif(not _has_memory_controller(), reason=NO_MEMORY_CONTROLLER)
def test_a_command_that_lacks_memory_is_recognized(host: GuardedHost, cgroup: Path) -> None:
    (cgroup.parent / "cgroup.subtree_control").write_text("+cpu +memory")
    (cgroup / "memory.max").write_text("64M")
    find_limits(cgroup)
    for name, size, lacks in (("small", 1, False), ("large", 200, True)):
        program = f"print(len(bytearray({size} << 20)) >> 20)"
        host.start(name, [*PYTHON, program], cgroup=str(cgroup / f"leasehold-{name}" / "run"))
        end = host.await_end(name)
        assert (end.code, end.signal) == ((None, signal.SIGKILL) if lacks else (0, None))
        assert end.oom == lacks
        assert not (cgroup / f"leasehold-{name}").exists()


@pytest.mark.skipif(not _has_memory_controller(), reason=NO_MEMORY_CONTROLLER)
def test_a_lease_has_a_command_and_processes_of_its_holder(host: GuardedHost, cgroup: Path) -> None:
    (cgroup.parent / "cgroup.subtree_control").write_text("+cpu +memory")
    limits = Cgroups(cgroup)
    limits.apply("r1", [], 0.5, 0)
    (lease,) = cgroup.glob("leasehold-*")
    held = Guarded(ENDLESS)
    command = host.run("c", ENDLESS, cgroup=str(lease / "run"))
    limits.apply("r1", [command, held.pid], 0.5, 0)
    assert (lease / "run" / "cgroup.procs").read_text().split() == [str(command)]
    assert str(held.pid) in (lease / "held" / "cgroup.procs").read_text().split()
    limits.lift("r1", [])
    assert (lease / "cpu.max").read_text() == "max 100000\n"
    host.send("kill", "c")
    assert host.await_end("c").left == 0
    assert not lease.exists()
    held.kill()
    held.wait()
