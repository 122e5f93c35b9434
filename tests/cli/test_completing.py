"""Shell completion: live ids of the stack, and no output without a stack."""

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from leasehold.cli import completing
from leasehold.cli.program import run_safely
from scheduler.model.accounts import Account
from tests.builders import a_lease, a_slot
from tests.cli.conftest import Run
from tests.client.intake import FakeIntake, a_row

CODE = "import sys; from leasehold.cli.program import run_safely; sys.exit(run_safely(sys.argv[1:]))"
PATIENT = f"from leasehold.cli import completing; completing.SECONDS = completing.CONNECT_SECONDS = 60; {CODE}"
"""The code with a time limit that a busy machine cannot reach."""


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    """Return a stand-in with a leased, a pending and an ended reservation, two slots and two accounts."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    intake.publish(
        a_row("build-7", phase="leased", token=7, leases=(a_lease("linux-1", token=7),)),
        a_row("build-8", sequence=2),
        a_row("build-9", sequence=3, phase="released"),
        a_slot("linux-1", version=1),
        a_slot("big-1", version=1),
        Account(id="ci", version=1, description="nightly builds"),
        Account(id="old", version=1, forgotten=True),
    )
    return intake


Complete = Callable[[str], list[str]]


@pytest.fixture
def complete(run: Run, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Complete:
    """Return a function with the completions that bash offers for a line. Standard error must stay empty."""

    def ask(words: str) -> list[str]:
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
        monkeypatch.setenv("_LEASEHOLD_COMPLETE", "complete_bash")
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_safely([])
        out, err = capfd.readouterr()
        assert (ended.value.code, err) == (0, "")
        return out.split()

    return ask


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limit, for busy machines."""
    monkeypatch.setattr(completing, "SECONDS", 60.0)
    monkeypatch.setattr(completing, "CONNECT_SECONDS", 60.0)


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("leasehold explain build-", ["build-7", "build-8", "build-9"]),
        ("leasehold cancel build-", ["build-7", "build-8"]),
        ("leasehold release ", ["build-7"]),
        ("leasehold drain lin", ["linux-1"]),
        ("leasehold list --account ", ["ci"]),
        ("leasehold slots --pool ", ["big", "linux"]),
    ],
)
@pytest.mark.usefixtures("stack", "patient")
def test_existing_ids_are_offered(words: str, offered: list[str], complete: Complete) -> None:
    assert complete(words) == offered


def test_fixed_values_are_offered_without_a_stack(complete: Complete) -> None:
    assert complete("leasehold slots --state dr") == ["draining"]
    assert complete("leasehold list --sort p") == ["phase", "priority", "position"]


@pytest.mark.usefixtures("patient")
def test_systems_and_versions_are_those_of_the_rules(complete: Complete, stack: FakeIntake) -> None:
    pools = {"linux": {"system": "x86_64-linux"}, "mac": {"system": "arm64-darwin"}, "all": {}}
    history = [{"version": each, "applied_at": 0.0, "source": "apply"} for each in (9, 10, 11)]
    stack.handler = lambda _verb, _: {"ok": True, "version": 11, "document": {"pools": pools}, "history": history}
    assert complete("leasehold reserve --system ") == ["arm64-darwin", "x86_64-linux"]
    assert complete("leasehold list --system x") == ["x86_64-linux"]
    assert complete("leasehold rules show --version 1") == ["11", "10"]
    assert complete("leasehold rules rollback ") == ["11", "10", "9"]


def test_events_and_processes_are_offered_without_a_stack(complete: Complete, tmp_path: Path) -> None:
    assert complete("leasehold events --name reservation_re") == [
        *("reservation_revoking", "reservation_released", "reservation_revoked", "reservation_relevelled"),
        "reservation_restored",
    ]
    assert complete("leasehold alive t") == ["ticks", "terminate"]
    assert complete("leasehold logs ") == []
    logs = tmp_path / ".leasehold" / "logs"
    logs.mkdir(parents=True, mode=0o700)
    (logs.parent).chmod(0o700)
    (logs / "ticks.log").touch()
    assert complete("leasehold logs ") == ["ticks"]


def test_without_a_stack_nothing_is_printed(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete("leasehold get ") == []
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", "redis://127.0.0.1:1/0")
    assert complete("leasehold get ") == []
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", "nonsense")
    assert complete("leasehold get ") == []


def test_a_server_that_does_not_answer_is_not_waited_for(complete: Complete, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        monkeypatch.setenv("LEASEHOLD_BROKER__URL", f"redis://127.0.0.1:{deaf.getsockname()[1]}/0")
        assert complete("leasehold get ") == []


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_takes_the_script(stack: FakeIntake, tmp_path: Path) -> None:
    """A real bash reads the script and calls its function as it does when the user presses the key."""
    (tmp_path / "leasehold").write_text(f"#!{sys.executable}\n{PATIENT}\n")
    (tmp_path / "leasehold").chmod(0o755)
    script = """
        eval "$(_LEASEHOLD_COMPLETE=source_bash leasehold)"
        COMP_WORDS=(leasehold drain lin) COMP_CWORD=2
        _leasehold_completion leasehold
        echo "offered: ${COMPREPLY[@]}"
    """
    found = subprocess.run(
        ["bash", "--norc", "-c", script],  # noqa: S607 - the one of this machine
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "offered: linux-1\n"
