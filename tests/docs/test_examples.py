"""The commands and Python programs of README and docs run: a reader who types them gets no error.

Blocks that are marked `console` (lines that begin with `$`) and `python` are run, in the order of their page, in a
folder in which a stack runs. What cannot run here stands in NOT_RUN with its reason.
"""

import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Final

import pytest

from leasehold.stack import Stack
from testbed.guarding import Guarded
from workers.embedded_redis import NO_SERVER, find_redis_server

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = ("README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").rglob("*.md")))
BLOCK: Final = re.compile(r"^```(console|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS: Final = 120.0
NOT_RUN: Final = {
    "leasehold up": "the fixture starts a stack in this folder already",
    "make ": "it would make this environment again, or play the demo for half a minute",
    'client = Client(\n    "rediss://': "it names a Redis with TLS on another host",
    'client = Client("https://': "it names a server on another host",
    "import json\nfrom celery import": "tests/system/test_plain_celery.py runs it",
    'with client.lease(\n    system="lab"': "the loop ends with the lease only; tests/system/test_elastic.py plays one",
    "leasehold demo --commands": "it plays for a minute",
    "from leasehold.work.dask import": "`make integrations` has Dask",
    "from leasehold.stack import Stack": "the rules of the example are an ellipsis; the fixture starts a Stack",
}
"""The beginning of a command or program -> why it does not run here."""
WITH_AGENTS: Final = "docs/tutorial/run-a-command.md"
"""The page whose stack has rules of its own, for machines with agents."""
FOLLOWS: Final = ("--follow", "--watch")
"""Options of commands that run until Ctrl-C."""


def list_examples(page: str) -> Iterator[tuple[str, str]]:
    """Return (kind, text) of each command and program of a page, in order."""
    for kind, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8")):
        lines = [line[2:] for line in text.splitlines() if line.startswith("$ ")] if kind == "console" else [text]
        yield from ((kind, line) for line in lines if not line.startswith(tuple(NOT_RUN)))


EXAMPLES: Final = {page: found for page in PAGES if (found := list(list_examples(page)))}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with a running stack of its own, and with what the pages name of a checkout."""
    if find_redis_server() is None:
        pytest.skip(NO_SERVER)
    found = tmp_path_factory.mktemp("examples")
    for name in ("examples", "tests", "docs"):
        (found / name).symlink_to(ROOT / name)
    with Stack(found):
        yield found


def make_environment() -> dict[str, str]:
    # With PYTHONUNBUFFERED, an output that is not flushed in time would not be noticed.
    left_out = ("LEASEHOLD_", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}


def run_program(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a Python program of a page; `work_on` stands for what its reader would do."""
    if "await " in text or "async with" in text:
        body = f"async def work_on(*_): pass\n{text}".replace("\n", "\n    ")
        program = f"import asyncio\nasync def main():\n    {body}\nasyncio.run(main())\n"
    else:
        program = f"def work_on(*_): pass\n{text}"
    return _run([sys.executable, "-c", program], folder)


def run_command(line: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a page as a shell does. A command that follows events gets Ctrl-C after its first line."""
    if not any(option in line for option in FOLLOWS):
        return _run(["/bin/sh", "-c", line], folder)
    words = ["/bin/sh", "-c", f"exec {line}"]
    with Guarded(words, cwd=folder, env=make_environment(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=SECONDS)
    return subprocess.CompletedProcess(line, 0 if first and process.returncode in {0, 130} else 1, first.decode(), "")


def _run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, cwd=folder, env=make_environment(), capture_output=True, text=True, timeout=SECONDS, check=False
    )


@pytest.mark.timeout(400)
@pytest.mark.parametrize("page", [page for page in EXAMPLES if page != WITH_AGENTS])
def test_the_examples_of_a_page_run(page: str, folder: Path) -> None:
    _run_examples(page, folder)


@pytest.mark.timeout(400)
def test_the_tutorial_of_commands_runs_with_its_own_rules(tmp_path: Path) -> None:
    page = (ROOT / WITH_AGENTS).read_text(encoding="utf-8")
    rules = tomllib.loads(page.partition("```toml\n")[2].partition("```")[0])
    with Stack(tmp_path, rules=rules):
        _run_examples(WITH_AGENTS, tmp_path)


def _run_examples(page: str, folder: Path) -> None:
    for kind, text in EXAMPLES[page]:
        done = run_command(text, folder) if kind == "console" else run_program(text, folder)
        assert done.returncode == 0, f"{page}:\n{indent(text, '    ')}\n{done.stdout}{done.stderr}"


def test_a_wrong_example_is_noticed(tmp_path: Path) -> None:
    assert run_command("leasehold no-such-command", tmp_path).returncode != 0
    assert run_program("from leasehold import NoSuchName\n", tmp_path).returncode != 0


def test_every_reason_not_to_run_an_example_is_needed() -> None:
    texts = [text for page in PAGES for _, text in BLOCK.findall((ROOT / page).read_text(encoding="utf-8"))]
    unused = [
        start for start in NOT_RUN if not any(re.search(f"^(\\$ )?{re.escape(start)}", t, re.MULTILINE) for t in texts)
    ]
    assert unused == []
