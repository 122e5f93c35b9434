"""`leasehold top`: figures of a stack, live on a terminal, and what it leaves there."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import pytest
from rich.text import Text

from leasehold import Client
from leasehold.client.redis.transport import RequestTransport
from leasehold.errors import Unavailable
from leasehold.top.draw import draw
from leasehold.top.figures import Figures, PoolCounts, Reader
from leasehold.top.screen import ENTER, LEAVE
from scheduler.model.events import Event
from scheduler.model.runs import RunState
from scheduler.model.view import Gone
from scheduler.model.waits import Waits
from scheduler.store.opening import open_store
from testbed.guarding import Guarded
from testbed.processes import wait_for
from tests.builders import a_lease, a_slot
from tests.cli.conftest import Run
from tests.cli.started import LEASEHOLD
from tests.cli.terminal import strip_colours
from tests.cli.test_hostile_texts import HOSTILE, find_controls
from tests.client.intake import FakeIntake, a_row


@pytest.fixture
def filled(stack: FakeIntake) -> FakeIntake:
    """Return a stack with two pools, a leased, a pending and an ended reservation, and a report of a tick."""
    stack.publish(
        a_slot("linux-1", pool="linux", version=1, resources={"cpus": 4, "memory_mib": 1000}),
        a_slot("linux-2", pool="linux", version=1, state="booting", resources={"cpus": 4}),
        a_slot("mac-1", pool="mac", version=1, state="draining", cordoned=True),
        a_slot("mac-2", pool="mac", version=1, state="empty"),
        a_row("r1", phase="leased", token=1, leases=(a_lease("linux-1", resources={"cpus": 3, "memory_mib": 100}),)),
        a_row("r2", sequence=2, run=RunState()),
        a_row("r3", sequence=3, phase="released"),
    )
    report = {"at": time.time(), "term": 3, "seconds": 0.012, "leader": "alpha:7", "view_lag": 0.5, "decisions": 4}
    figures = {"codes": {"at_max_slots": 1}, "longest_wait": 90.0, "at_quota": ["mac"]}
    stack.view_cache.write_report(report | figures, Waits(["r2"], [("at_max_slots", "x")]))
    return stack


def test_one_document_has_the_figures(filled: FakeIntake, run: Run) -> None:
    found = run("top", "--once", "--json")
    assert (found.status, found.err) == (0, "")
    figures = json.loads(found.out)
    assert figures["pools"] == {
        "linux": {"states": {"ready": 1, "booting": 1}, "busy": 1, "cordoned": 0, "load": 0.75},
        "mac": {"states": {"draining": 1}, "busy": 0, "cordoned": 1, "load": 0},
    }
    assert (figures["phases"], figures["waiting"]) == ({"leased": 1, "pending": 1}, {"at_max_slots": 1})
    assert figures["commands"] == {"waiting": 1}
    assert (figures["longest_wait"], figures["at_quota"], figures["rates"]) == (90, ["mac"], None)
    assert (figures["tick"]["leader"], figures["tick"]["decisions"]) == ("alpha:7", 4)
    assert (figures["queues"]["launch"], figures["events"], figures["problems"]) == (0, None, [])


def test_output_that_is_no_terminal_is_printed_once_without_colours(filled: FakeIntake, run: Run) -> None:
    found = run("top")
    assert (found.status, find_controls(found.out)) == (0, set())
    lines = [" ".join(line.split()) for line in found.out.splitlines()]
    assert any(line.startswith("Reservations pending 1 leased 1 revoking 0") for line in lines)
    assert "Commands waiting 1" in lines
    assert any(line.startswith("linux 1 1 1 · · 75%") for line in lines)
    assert any(line.startswith("Waiting for at_max_slots 1") for line in lines)
    assert len({line for line in lines if line.startswith("last tick")}) == 1


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_no_number_is_cut_and_no_line_is_wider_than_the_terminal(width: int) -> None:
    states = {"ready": 12345, "launching": 1234, "binding": 12, "terminating": 77, "error": 3, "stopped": 1000}
    pools = {
        "linux": PoolCounts(states=states, busy=12344, cordoned=0, load=1.0),
        "a-very-long-name-of-a-pool-in-eu-central-1": PoolCounts(states={"ready": 7}, busy=6),
    }
    event = {
        "at": 0,
        "name": "reservation_leased",
        "reservation": "r1",
        "text": "waited=0.149 slots=linux-1 term=98765",
    }
    figures = Figures(at=0, url="redis://127.0.0.1:6379/0", pools=pools, events=[event])
    figures.tick = {"age": 1, "seconds": 0.1, "decisions": 54321, "view_lag": 0.2, "leader": "host:777", "term": 1}
    figures.phases, figures.longest_wait = {"pending": 123456, "leased": 98765}, 12000
    figures.waiting = {"at_max_slots": 23456, "never_fits": 34567, "ahead": 45678}
    figures.queues, figures.processes = {"reservations": 56789, "terminate": 67890}, 24
    drawn = draw(figures, width, None)
    lines = [Text.from_ansi(line).plain for line in drawn]
    assert max(map(len, lines)) <= width
    counts = set(re.findall(r"(?<![\w.:-])\d[\d,]*(?![\w.:-])", "\n".join(lines)))
    assert {"123,456", "98,765", "23,456", "34,567", "45,678", "56,789", "67,890", "24", "12,344", "12,345"} <= counts
    # Sums of states, where there is no room for each of them.
    assert width == 40 or counts & {"1,234", "1,246"}
    assert not re.search(r"\d…", "\n".join(lines))
    # No slot of these pools boots, drains or is cordoned; a full pool is nothing bad.
    assert not {"booting", "draining", "cordoned"} & set(" ".join(lines).split())
    assert not any("\x1b[31m█" in line for line in drawn)


def test_events_of_a_readable_database_are_shown(filled: FakeIntake, database: str, run: Run) -> None:
    event = Event(at=0, name="reservation_failed", cause="holder", reservation="r9", detail={"reason": HOSTILE})
    with closing(open_store(database)) as store, store.transaction() as transaction:
        transaction.append_events([event])
    found = run("top", "--once")
    assert "reservation_failed     r9" in found.out
    assert find_controls(found.out) == set()
    (shown,) = json.loads(run("top", "--once", "--json").out)["events"]
    assert (shown["reservation"], shown["detail"]) == ("r9", {"reason": HOSTILE})


def test_texts_of_users_have_no_control_characters(stack: FakeIntake, run: Run) -> None:
    stack.publish(a_slot("s", pool=HOSTILE, version=1))
    stack.view_cache.write_report({"at": time.time(), "leader": HOSTILE, "seconds": 0.1, "codes": {HOSTILE: 1}})
    assert find_controls(run("top").out) == set()


def test_a_stack_without_a_tick_or_a_view_is_named(stack: FakeIntake, run: Run) -> None:
    assert json.loads(run("top", "--once", "--json").out)["problems"] == ["there was no tick yet"]
    stack._redis.delete("leasehold:view:generation")
    (_, problem) = json.loads(run("top", "--once", "--json").out)["problems"]
    assert problem.startswith("Redis holds no valid view")


def test_without_a_redis_there_is_one_line(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", "redis://127.0.0.1:1/0")
    found = run("top", "--once")
    assert (found.status, found.out, len(found.complaints)) == (1, "", 1)


def test_a_refresh_reads_only_what_changed(filled: FakeIntake) -> None:
    with Client(filled.url) as client:
        reader = Reader(client)
        assert reader.read().rates is None
        assert reader._refreshed is not None
        reader._refreshed -= 10  # so that the interval, which is rounded to a millisecond, is almost exact
        filled.publish(a_row("r4", sequence=4))
        filled.publish(a_row("r4", sequence=4, version=2, phase="leased", token=2, leases=(a_lease("linux-2"),)))
        filled.publish(a_row("r2", sequence=2, version=2, phase="released"))
        filled.publish(a_row("r5", sequence=5), a_slot("mac-1", pool="mac", version=2, state="empty"))
        found = reader.read()
        rates = found.rates
        assert rates is not None
        counts = [round(rate * rates.seconds) for rate in (rates.submitted, rates.leased, rates.released, rates.ended)]
        assert counts == [2, 1, 1, 0]
        assert found.phases == {"leased": 2, "pending": 1}
        assert found.pools["mac"].states == {}
        filled.view_cache.publish([Gone("slots", "linux-2", 9)])
        assert reader.read().pools["linux"].states == {"ready": 1}
        assert reader.full_reads == 1


def test_a_view_that_was_built_again_is_read_again(filled: FakeIntake) -> None:
    with Client(filled.url) as client:
        reader = Reader(client)
        reader.read()
        filled.view_cache.rebuild([a_slot("linux-7", pool="linux", version=1)])
        assert reader.read().pools["linux"].states == {"ready": 1}
        filled._redis.xtrim("leasehold:view:deltas", maxlen=0)
        filled.publish(a_slot("linux-8", pool="linux", version=1), a_slot("linux-9", pool="linux", version=1))
        filled._redis.xtrim("leasehold:view:deltas", maxlen=0)
        assert reader.read().pools["linux"].states == {"ready": 3}
        assert reader.full_reads == 3


def test_changes_that_redis_does_not_answer_are_no_figures(filled: FakeIntake) -> None:
    with Client(filled.url) as client:
        reader = Reader(client)
        client.close()
        assert isinstance(client._wire, RequestTransport)
        client._wire.redis.connection_pool.connection_kwargs["port"] = 1
        with pytest.raises(Unavailable):
            reader.read()


class Live:
    """`leasehold top` on a terminal of its own."""

    def __init__(self, folder: Path) -> None:
        self.ours, self.theirs = pty.openpty()
        fcntl.ioctl(self.theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.mode = termios.tcgetattr(self.theirs)
        self.text = ""
        self.process = Guarded(
            (sys.executable, "-c", START, os.ttyname(self.theirs)), cwd=folder, stdout=self.theirs, stderr=self.theirs
        )

    def read_until(self, mark: str) -> str:
        """Read until this text was shown; return all output so far."""
        os.set_blocking(self.ours, False)

        def look() -> bool:
            with suppress(BlockingIOError, OSError):
                while block := os.read(self.ours, 65536):
                    self.text += block.decode(errors="replace")
            return mark in strip_colours(self.text) or mark in self.text

        wait_for(look, repr(mark))
        return self.text

    def press(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.ours)
        os.close(self.theirs)


START = f"""
import os, signal, sys
# The tests may run under nohup, which lets its children ignore SIGHUP.
signal.signal(signal.SIGHUP, signal.SIG_DFL)
# The terminal becomes the controlling one of this session, and standard input.
os.setsid() if os.getsid(0) != os.getpid() else None
descriptor = os.open(sys.argv[1], os.O_RDWR)
os.dup2(descriptor, 0)
os.execv(sys.executable, {list(LEASEHOLD)!r} + ["top", "--interval", "0.2"])
"""


@pytest.fixture
def live(filled: FakeIntake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("COLUMNS", raising=False)
    found = Live(tmp_path)
    yield found
    found.close()


@pytest.mark.parametrize("key", ["q", "\x03"])
def test_keys_end_the_display_and_the_terminal_is_as_before(key: str, live: Live) -> None:
    shown = live.read_until("Reservations")
    assert shown.index(ENTER) < shown.index("Reservations")
    live.press(key)
    assert live.process.wait(40) == 0
    assert live.read_until(LEAVE).rstrip().endswith(LEAVE)
    assert termios.tcgetattr(live.theirs) == live.mode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_end_the_display_and_the_terminal_is_as_before(number: signal.Signals, live: Live) -> None:
    live.read_until("Reservations")
    live.process.send_signal(number)
    assert live.process.wait(40) == (0 if number == signal.SIGINT else -number)
    assert LEAVE in live.read_until(LEAVE)
    assert termios.tcgetattr(live.theirs) == live.mode


def test_the_display_is_live_and_survives_an_outage(live: Live, filled: FakeIntake) -> None:
    live.read_until("pending 1")
    filled.publish(a_row("r6", sequence=6))
    live.read_until("pending 2")
    filled._redis.delete("leasehold:view:generation")
    live.read_until("Redis holds no valid view")
    filled.view_cache.rebuild([a_row("r6", sequence=6), *(a_row(f"n{n}", sequence=9 + n) for n in range(6))])
    live.read_until("pending 7")
