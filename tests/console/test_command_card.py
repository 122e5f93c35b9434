"""The command of a reservation in the console: what its page and the list show, and the rights for that."""

import re
from typing import Any

import msgspec
import pytest

from leasehold.client.loop_client import LoopClient
from leasehold.client.models import Command, Reservation
from leasehold.console.pages.reservation import MOST_OUTPUTS, MOST_RUNS, make_card
from leasehold.errors import Fault, LeaseholdError, NotAnswered, Refused, Unavailable
from scheduler.model.runs import RunState
from scheduler.ports import StoredPrincipal
from scheduler.protocol.signing import make_key
from testbed.processes import wait_for
from tests.builders import NOW, a_lease
from tests.console.chromium import open_window
from tests.console.conftest import MakeConsole
from tests.console.served import Browser, Console
from tests.console.test_gate import basic
from tests.console.test_pages import plain, row

KEY = make_key()
PATH = "/reservation-commands/job"
HOSTILE = "</pre><script>alert(1)</script>\x1b[2J\x9b31m\u202e\r\x00"
RUNNING = RunState("running")


def a_run(component: str = "main", token: int = 7, **fields: Any) -> dict[str, Any]:
    """Return a run as an answer of a worker has it."""
    return {"component": component, "slot": "lab-1", "token": token, "taken_at": NOW, "started_at": NOW, **fields}


def a_command(*runs: dict[str, Any], **fields: Any) -> Command:
    run = {"argv": ["make", "all of it"], "env": {"TOKEN": "***"}, "cwd": "/srv", "user": None, "on_exit": "fail"}
    document = {"reservation": "job", "phase": "leased", "state": "running", "run": run, "executions": runs, **fields}
    return msgspec.convert(document, Command)


class Worker:
    """Answers questions about commands in place of a worker."""

    def __init__(self) -> None:
        self.answer: Command | LeaseholdError = a_command()
        self.asked: list[str] = []

    async def command(self, name: str, *, timeout: float | None = None) -> Command:  # noqa: ASYNC109 - as the client
        assert timeout is not None
        self.asked.append(name)
        if isinstance(self.answer, LeaseholdError):
            raise self.answer
        return self.answer


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Worker:
    found = Worker()

    async def command(_client: LoopClient, name: str, **limits: Any) -> Command:
        return await found.command(name, **limits)

    monkeypatch.setattr(LoopClient, "command", command)
    return found


@pytest.fixture
def console(make_console: MakeConsole) -> Console:
    job = row("job", 1, principal="ci", phase="leased", token=7, leases=(a_lease("lab-1"),), run=RUNNING)
    return make_console((job, row("bare", 2)))


def enter_as(console: Console, name: str, role: str) -> Browser:
    console.add(StoredPrincipal(name=name, role=role, key=KEY, created_at=0.0))  # type: ignore[arg-type]
    return console.browser(Authorization=basic(name, KEY))


def test_the_submitter_sees_the_command_its_runs_and_its_output(console: Console, worker: Worker) -> None:
    first = a_run(token=6, why="lost", state="ended", ended_at=NOW + 1, error="the guard died", tail="early")
    worker.answer = a_command(first, a_run(state="started", tail="\nlate\n", bytes=12345))
    answer = enter_as(console, "ci", "producer").get(PATH)
    text = plain(answer.text)
    assert "Command running It runs." in text
    assert "make 'all of it'" in text
    assert "Working directory /srv Environment (values are hidden) TOKEN" in text
    assert re.search(r"main lab-1 7 started .* 12,345 main lab-1 6 ended .* lost the guard died 0", text)
    # The parser drops the first line feed of a `pre`.
    assert ">\n\nlate\n</pre>" in answer.text
    # The last run of a component replaces the output of the ones before.
    assert "early" not in text
    assert worker.asked == ["job"]


@pytest.mark.parametrize(("name", "role"), [("eve", "reader"), ("other", "producer")])
def test_another_person_sees_only_the_state(console: Console, worker: Worker, name: str, role: str) -> None:
    worker.answer = a_command(a_run(tail="secret"))
    browser = enter_as(console, name, role)
    page = browser.get("/reservations/job")
    assert (page.status, "Command running It runs." in plain(page.text)) == (200, True)
    card = browser.get(PATH).text
    expected = "Command running It runs. Only the principal that submitted the reservation and principals with the role"
    assert plain(card).startswith(expected)
    assert "data-every" not in card
    assert worker.asked == []


def test_the_command_of_an_ended_reservation_runs_again_by_a_button(
    make_console: MakeConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def rerun(_client: LoopClient, name: str) -> Reservation:
        asked.append(name)
        if name == "other":
            raise Refused([Fault(0, "run", "a principal with the right run", "none", "forbidden")])
        return Reservation(id="r-2", phase="pending")

    monkeypatch.setattr(LoopClient, "rerun", rerun)
    ended = {"phase": "failed", "principal": "ci", "run": RunState("ended", exit_code=3, why="exited")}
    console = make_console((row("job", 1, **ended), row("other", 2, **ended), row("bare", 3, phase="released")))
    submitter, reader = enter_as(console, "ci", "producer"), enter_as(console, "eye", "reader")
    assert "Run again" not in submitter.get("/reservations/bare").text
    assert re.search(r"/do/rerun[^>]*><button>Run again", submitter.get("/reservations/job").text)
    assert re.search(r"/do/rerun[^>]*><button disabled", reader.get("/reservations/job").text)
    found = submitter.post("/reservations/job/do/rerun").text
    assert "submitted again as" in found
    assert 'href="/reservations/r-2"' in found
    assert "run: expected a principal with the right run" in submitter.post("/reservations/other/do/rerun").text
    assert asked == ["job", "other"]


def test_the_button_appears_on_an_open_page_when_the_command_ends(make_console: MakeConsole) -> None:
    known = row("job", 1, principal="ci", phase="leased", token=7, leases=(a_lease("lab-1"),), run=RUNNING)
    console = make_console((known,))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/reservations/job?token={console.token}")
        window.await_text("#actions", "Cancel")
        window.run("(document.querySelector('#outcome').textContent = 'an earlier outcome', 1)")
        ended = RunState("ended", exit_code=3, why="exited")
        console.publish(msgspec.structs.replace(known, version=9, phase="failed", leases=(), run=ended))
        window.await_text("#actions", "Run again")
        assert "Cancel" not in window.run("document.querySelector('#actions').innerText")
        assert window.run("document.querySelectorAll('#actions').length") == 1
        assert window.run("document.querySelector('#outcome').textContent") == "an earlier outcome"
        assert window.errors() == []


def test_a_hostile_output_stays_text(console: Console, worker: Worker) -> None:
    run = a_run(HOSTILE, slot=HOSTILE, error=HOSTILE, state="ended", why="exited", exit_code=3, tail=HOSTILE * 300)
    worker.answer = a_command(run, run={"argv": [HOSTILE], "env": {HOSTILE: "***"}, "cwd": HOSTILE})
    text = enter_as(console, "ops", "operator").get(PATH).text
    assert "<script" not in text
    assert re.findall(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", text) == []
    assert text.count("&lt;/pre&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[2J\\x9b31m\\u202e\\r\\x00") > 300


def test_a_line_of_8_kib_is_shown_whole(console: Console, worker: Worker) -> None:
    worker.answer = a_command(a_run(tail="x" * 8192, bytes=10**7))
    assert f">\n{'x' * 8192}</pre>" in enter_as(console, "ops", "operator").get(PATH).text


def test_the_page_reads_the_output_of_a_command_that_runs_again(console: Console, worker: Worker) -> None:
    browser = enter_as(console, "ops", "operator")
    assert f'hx-get="{PATH}" hx-trigger="load, reload"' in browser.get("/reservations/job").text
    worker.answer = a_command(a_run(tail="one"))
    poll = re.search(r'data-every="5" hx-get="([^"]*)"', browser.get(PATH).text)
    assert poll is not None
    assert browser.get(poll[1]).status == 204
    worker.answer = a_command(a_run(tail="one two"))
    again = browser.get(poll[1])
    assert (again.status, "one two" in again.text) == (200, True)
    console.publish(row("job", 9, principal="ci", phase="failed", run=RunState("ended", 3, why="exited")))
    ended = browser.get(PATH).text
    assert "data-every" not in ended
    assert "exit 3 Its command exited with the code 3." in plain(ended)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (NotAnswered("no answer"), "No worker answered, so only the state of the command is known."),
        (Unavailable("Redis does not answer"), "Redis does not answer"),
        (Refused([Fault(0, "reservation", "a reservation with a command", "job", "unknown")]), "with a command"),
    ],
)
def test_a_command_that_cannot_be_read_has_its_state(
    console: Console, worker: Worker, error: LeaseholdError, expected: str
) -> None:
    worker.answer = error
    answer = enter_as(console, "ops", "operator").get(PATH)
    assert answer.status == 200
    assert plain(answer.text).startswith("Command running It runs.")
    assert expected in plain(answer.text)


def test_a_reservation_without_a_command_has_no_card(console: Console, worker: Worker) -> None:
    browser = console.entered()
    assert 'id="command"' not in browser.get("/reservations/bare").text
    assert browser.get("/reservation-commands/bare").status == 404
    assert worker.asked == []


def test_the_list_has_the_state_of_each_command(make_console: MakeConsole) -> None:
    runs = {
        "pending": ("pending", RunState()),
        "works": ("leased", RUNNING),
        "done": ("released", RunState("ended", 0, why="exited")),
        "broken": ("failed", RunState("ended", 3, why="exited")),
        "killed": ("failed", RunState("ended", None, 9, "signal")),
        "full": ("failed", RunState("ended", None, 9, "out_of_memory")),
        "silent": ("cancelled", RunState("ended")),
        # One instance of a gang has ended.
        "gang": ("leased", RunState("running", 0, why="exited")),
    }
    rows = [row(name, place, phase=phase, run=run) for place, (name, (phase, run)) in enumerate(runs.items())]
    text = make_console(tuple(rows)).entered().get("/reservations").text
    found = {
        name: re.findall(r'<td class="wide"><span class="badge ?(\w*)">([^<]*)<', line) for name, line in _lines(text)
    }
    assert found == {
        "pending": [],
        "works": [("info", "running")],
        "done": [("good", "exit 0")],
        "broken": [("bad", "exit 3")],
        "killed": [("bad", "SIGKILL")],
        "full": [("bad", "out of memory")],
        "silent": [("", "ended")],
        "gang": [("info", "running")],
    }


def _lines(text: str) -> list[tuple[str, str]]:
    """Return the id and the rest of each row of a list."""
    return re.findall(r'<th scope="row"><a href="/reservations/([^"]*)">(.*?)</tr>', text, re.DOTALL)


def test_many_runs_are_cut_and_the_outputs_of_failed_ones_come_first() -> None:
    ended: dict[str, Any] = {"state": "ended", "why": "exited", "tail": "x"}
    runs = [a_run(f"worker.{number}", exit_code=int(number == 24), **ended) for number in range(25)]
    card = make_card(a_command(*runs), RUNNING)
    assert [each.component for each in card.runs[:2]] == ["worker.24", "worker.23"]
    assert (len(card.runs), card.older) == (MOST_RUNS, 5)
    assert (len(card.outputs), card.quiet) == (MOST_OUTPUTS, 21)
    assert card.outputs[0].component == "worker.24"


@pytest.mark.timeout(240)
def test_an_open_page_follows_the_output(console: Console, worker: Worker) -> None:
    """Each reading is one request, which does not replace the card if nothing has changed."""
    loads = "performance.getEntriesByType('resource').filter((each) => each.name.endsWith('/job')).length"
    worker.answer = a_command(a_run(tail="one"))
    with open_window(f"http://127.0.0.1:{console.settings.console.port}") as window:
        window.open(f"/reservations/job?token={console.token}")
        window.await_text("#command", "one")
        before, asked = window.run(loads), len(worker.asked)
        window.run("(document.querySelector('.tail').dataset.kept = 'yes', 1)")
        wait_for(lambda: len(worker.asked) > asked + 1, "two readings")
        assert window.run("document.querySelector('.tail').dataset.kept") == "yes"
        worker.answer = a_command(a_run(tail=f"one {HOSTILE}"))
        window.await_text("#command", "one </pre><script>alert(1)</script>")
        assert window.run(loads) == before
        assert window.errors() == []
