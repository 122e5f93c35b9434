"""Fixtures for the command line: commands run in this process, with output and status as a shell gets them."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest
import typer.main

from leasehold.cli.program import run_safely
from testbed.servers import redis_client, redis_server, redis_url
from tests.client.intake import FakeIntake, client, intake

__all__ = ["Outcome", "client", "intake", "redis_client", "redis_server", "redis_url", "run"]


class Outcome:
    """The result of a command."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status, self.out, self.err = status, out, err

    @property
    def complaints(self) -> list[str]:
        """The lines on standard error."""
        return self.err.splitlines()


Run = Callable[..., Outcome]
build_once: Final = cache(typer.main.get_command)
"""Builds the commands of this process at their first use. That takes ten times as long as most commands."""


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs one command in an empty folder without a stack."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(typer.main, "get_command", build_once)
    for name in ("LEASEHOLD_CONFIG", "LEASEHOLD_BROKER__URL", "LEASEHOLD_DATABASE__URL"):
        monkeypatch.delenv(name, raising=False)

    def command(*words: str) -> Outcome:
        capfd.readouterr()
        status = run_safely(list(words))
        out, err = capfd.readouterr()
        return Outcome(status, out, err)

    return command


@pytest.fixture
def stack(intake: FakeIntake, run: Run, monkeypatch: pytest.MonkeyPatch) -> FakeIntake:
    """Return the stand-in for a stack; commands find it by the environment."""
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", intake.url)
    return intake


@pytest.fixture
def database(run: Run, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of an empty migrated database, configured by the environment."""
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", sqlite_url)
    return sqlite_url
