"""What each kind of process must not import: imports are most of its start and of its memory.

Each process imports what it needs in a Python of its own, in an empty folder, and none of what `HEAVY` lists for it.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = "from leasehold.cli.program import run_safely; run_safely({words!r})"
CLIENT: Final = """
from leasehold import Client, Unavailable
try:
    Client({url!r}, timeout=0.1).renew("r1")
except Unavailable:
    print("no stack")
"""
WORKER: Final = """
import importlib, tasks.worker
from tasks.app import MODULES, app
app.services.import_adapters()
[importlib.import_module(each) for each in MODULES]
"""
BEAT: Final = "import tasks.clock, tasks.beat; from tasks.app import app"
MEMBERSHIP: Final = """
import os
os.environ["LEASEHOLD_DATABASE__URL"] = "sqlite:///missing.db"
os.environ["LEASEHOLD_BROKER__URL"] = "redis://127.0.0.1:1/0"
import tasks.clock, tasks.beat
from tasks.app import app, refuse_foreign
refuse_foreign()
assert tasks.beat.PunctualScheduler(app, lazy=True)._may_send()
"""
FLOWER: Final = "import tasks.monitor; from tasks.app import app"
SCHEMA: Final = """
import os
os.environ["LEASEHOLD_DATABASE__URL"] = "sqlite:///missing.db"
from leasehold.cli.status import _find_schema_fault
_find_schema_fault()
"""
CODE: Final = {
    "import leasehold": "import leasehold; leasehold.LeaseholdError",
    "help": COMMAND.format(words=["--help"]),
    "a client over Redis": CLIENT.format(url="redis://127.0.0.1:1/0"),
    "a client over HTTP": CLIENT.format(url="http://127.0.0.1:1"),
    "status": COMMAND.format(words=["status"]),
    "status of a database": SCHEMA,
    "list": COMMAND.format(words=["list", "--limit", "3", "--phase", "pending"]),
    "a worker": WORKER,
    "beat": BEAT,
    "beat on SQLite": MEMBERSHIP,
    "flower": FLOWER,
    "metrics": "import workers.exporter",
}
LIBRARIES: Final = ("alembic", "boto3", "botocore", "flask", "matplotlib", "moto", "plotext", "psycopg", "rich")
SERVICE: Final = ("celery", "kombu", "flower", "sqlalchemy", "structlog", "prometheus_client", "tenacity", "tornado")
WAYS: Final = ("redis", "asyncio", "anyio", "httpx")
"""What the two ways of a client to its stack load."""
OPERATIONS: Final = (
    "scheduler.policy.plan",
    "scheduler.operations.tick",
    "scheduler.operations.commands",
    "scheduler.explain",
)
EMULATOR: Final = ("scheduler.simulation.cluster", "leasehold_emulator", "scheduler.store.postgresql")
OF_FEW_COMMANDS: Final = ("concurrent.futures", "csv", "logging", "msgspec", "secrets", "tempfile")
"""Modules that only single commands need, so that the others and `--help` do without them."""
HEAVY: Final[dict[str, tuple[str, ...]]] = {
    "import leasehold": (*LIBRARIES, *SERVICE, *WAYS, "pydantic", "typer", "msgspec", "importlib.metadata"),
    "help": (*LIBRARIES, *SERVICE, *WAYS, *OF_FEW_COMMANDS, "pydantic", "importlib.metadata"),
    "a client over Redis": (*LIBRARIES, *SERVICE, "anyio", "httpx", "httpcore", "pydantic", "typer"),
    # httpx loads rich for a command of its own, if it is installed.
    "a client over HTTP": (*LIBRARIES[:-1], *SERVICE, "redis", "pydantic", "typer"),
    "status": (*LIBRARIES, *SERVICE, "pydantic"),
    "status of a database": (*LIBRARIES, *SERVICE, "pydantic"),
    "list": (*LIBRARIES, *SERVICE, "pydantic"),
    "a worker": (*LIBRARIES, *EMULATOR, "flower", "prometheus_client", "pydantic", "typer"),
    "beat": (*LIBRARIES, *EMULATOR, *OPERATIONS, "flower", "prometheus_client", "pydantic", "tenacity", "typer"),
    "beat on SQLite": (*LIBRARIES, *EMULATOR, *OPERATIONS, "flower", "pydantic", "sqlalchemy", "typer"),
    "flower": (*LIBRARIES, *EMULATOR, *OPERATIONS, "pydantic", "tenacity", "typer"),
    "metrics": (*LIBRARIES, *EMULATOR, *OPERATIONS, "celery", "kombu", "flower", "pydantic", "typer"),
}
"""Process -> what it must not import."""


def list_imports(code: str, folder: Path) -> set[str]:
    """Return the modules that a process has imported after this code."""
    show = "\nimport json, sys; sys.stderr.write('\\n' + json.dumps(sorted(sys.modules)))"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LEASEHOLD_")}
    done = subprocess.run(
        [sys.executable, "-c", code + show],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


@pytest.mark.parametrize("process", HEAVY)
def test_a_process_imports_nothing_heavy_that_it_does_not_use(process: str, tmp_path: Path) -> None:
    """No module of `HEAVY`, nor one below it."""
    found = list_imports(CODE[process], tmp_path)
    assert [each for each in HEAVY[process] if each in found] == []


@pytest.mark.parametrize("process", ["import leasehold", "help"])
def test_import_and_help_load_nothing_of_the_stack_but_its_ground_floor(process: str, tmp_path: Path) -> None:
    """Where the ground floor is `scheduler.protocol`, and its parent imports nothing."""
    stack = re.compile(r"(tasks|workers|scheduler\.(?!protocol\b))")
    assert [each for each in list_imports(CODE[process], tmp_path) if stack.match(each)] == []


def test_rich_can_be_imported_after_the_logs(tmp_path: Path) -> None:
    """The logs hide rich from structlog alone: a command that draws progress bars finds it."""
    found = list_imports("import workers.logs, rich.progress", tmp_path)
    assert {"structlog", "rich.progress"} <= found
