"""A plain `pip install leasehold`: a process of its own blocks the libraries of the extras."""

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Final

import pytest

from leasehold.cli import requesting
from leasehold.extras import EXTRAS, explain_missing
from scheduler.model.validation import InvalidInputError
from tests.cli.test_commands import list_commands

ROOT: Final = Path(__file__).parents[2]
NEEDS: Final = "leasehold: this command needs the extra "
ABSENT: Final = frozenset(EXTRAS)
"""The libraries that a plain installation lacks."""
BLOCK: Final = """
import json, sys

class Without:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        absent = name.partition(".")[0] in {names!r}
        return None if absent else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Without, sys.meta_path)
"""
IMPORTS: Final = """
import leasehold, leasehold.agent.agent, leasehold.client.client, leasehold.cli.program
leasehold.Client, leasehold.Lease, leasehold.__version__
ours = [name.split(".") for name in sys.modules if name.partition(".")[0] in ("scheduler", "tasks", "workers")]
print(json.dumps(sorted({".".join(name[:2]) for name in ours})))
"""
COMMANDS: Final = """
import contextlib, functools, io
import typer.main
from leasehold.cli.program import run_safely
typer.main.get_command = functools.cache(typer.main.get_command)  # to build the commands takes longer than most of them
for words in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run_safely(words)
    print(json.dumps([status, out.getvalue(), err.getvalue()]))
"""
CLIENT: Final = """
from leasehold.client import discovery
from leasehold import Client, NoStack
try:
    Client()
except NoStack as error:
    print(json.dumps(str(error)))
print(json.dumps(discovery.is_locked(discovery.Path("lock"))))
client = Client(sys.argv[1])
print(json.dumps(client.probe.queue_lengths()["reservations"]))
client.close()
"""
NEED_THE_SERVER: Final = (
    ["up"],
    ["demo"],
    ["doctor"],
    ["migrate"],
    ["events"],
    ["snapshot"],
    ["alive", "beat"],
    ["rules", "show"],
    ["simulate", "a.json"],
)
"""Commands that need the service, each with its arguments."""


def run_python(code: str, folder: Path, *words: str) -> list[Any]:
    """Return what the code prints, a JSON value on each line."""
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_commands(folder: Path, blocked: AbstractSet[str], commands: list[list[str]]) -> list[Any]:
    """Return status, output and errors of each command if these modules are not installed."""
    return run_python(BLOCK.format(names=set(blocked)) + COMMANDS, folder, json.dumps(commands))


def list_modules(extra: str) -> Iterator[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for requirement in project["optional-dependencies"][extra]:
        yield requirement.partition("[")[0].partition(">")[0].replace("-", "_")


@pytest.mark.parametrize("extra", ["agent", "server", "console", "emulator", "plot", "postgresql"])
def test_every_library_of_an_extra_is_known_to_be_installed_by_it(extra: str) -> None:
    assert {EXTRAS.get(module) for module in list_modules(extra)} == {extra}


def test_client_and_command_line_import_rows_and_protocol_alone_and_no_library_of_an_extra(tmp_path: Path) -> None:
    found = run_python(BLOCK.format(names=set(EXTRAS)) + IMPORTS, tmp_path)
    assert found == [["scheduler", "scheduler.model", "scheduler.protocol"]]


def test_every_command_shows_its_help_and_names_the_extra_that_it_needs(tmp_path: Path) -> None:
    helps = [[*words, "--help"] for words, _ in list_commands()]
    results = run_commands(tmp_path, ABSENT, [*helps, *NEED_THE_SERVER])
    for words, (status, out, err) in zip(helps, results[: len(helps)], strict=True):
        assert (status, err, "Usage" in out) == (0, "", True), words
    for words, (status, out, err) in zip(NEED_THE_SERVER, results[len(helps) :], strict=True):
        assert (status, out) == (1, ""), words
        assert err.startswith(f"{NEEDS}'server' ("), words
        assert err.endswith("is not installed): pip install 'leasehold[server]'\n"), words


def test_commands_that_need_the_emulator_name_its_extra(tmp_path: Path) -> None:
    blocked = {module for module, extra in EXTRAS.items() if extra == "emulator"}
    for status, _, err in run_commands(tmp_path, blocked, [["up"], ["demo"], ["emulate-ec2"]]):
        last = err.splitlines()[-1]
        assert (status, last.startswith(f"{NEEDS}'emulator' (")) == (1, True)
        assert last.endswith("is not installed): pip install 'leasehold[server,emulator]'")


def test_the_emulator_names_its_extra_where_no_extra_is_installed(tmp_path: Path) -> None:
    ((status, out, err),) = run_commands(tmp_path, ABSENT, [["emulate-ec2"]])
    wanted = f"{NEEDS}'emulator' (moto is not installed): pip install 'leasehold[server,emulator]'\n"
    assert (status, out, err) == (1, "", wanted)


def test_a_missing_module_that_no_extra_installs_gets_no_message_for_people() -> None:
    assert explain_missing(ModuleNotFoundError("No module named 'rich'", name="rich")) is None


def test_a_plain_installation_checks_arguments() -> None:
    with pytest.raises(InvalidInputError):
        requesting.check("renew", {"reservation": 7})


def test_the_client_works_without_the_modules_that_windows_lacks(redis_url: str, tmp_path: Path) -> None:
    posix = {"fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"}
    found = run_python(BLOCK.format(names=posix) + CLIENT, tmp_path, redis_url)
    assert found[0].startswith("no stack runs here")
    assert found[1:] == [False, 0]


def test_the_status_of_a_stack_is_shown_without_a_look_at_its_database(
    redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Like the run.json of a stack, from which every command in its folder gets it.
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", redis_url)
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", f"sqlite:///{tmp_path}/leasehold.db")
    ((status, out, err),) = run_commands(tmp_path, ABSENT, [["status", "--json"]])
    assert (status, json.loads(out)["state"], err) == (1, "degraded", "")
