"""The systemd template runs every line of the Procfile, and systemd accepts it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from leasehold.stack.programs import find_procfile, read_procfile
from leasehold.web.http_protocol import MOST_FILES
from tests.ci_rules import NO_SYSTEMD

TEMPLATE: Final = Path(__file__).parents[2] / "compose" / "systemd" / "leasehold@.service"
UNIT: Final = TEMPLATE.read_text(encoding="utf-8")
PREFIX: Final = "/opt/leasehold"
NAMES: Final = [program.name for program in read_procfile(find_procfile().read_text(encoding="utf-8"))]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """Return an installation whose `python` prints its arguments."""
    package = tmp_path / "lib" / "python3.12" / "site-packages" / "leasehold"
    package.mkdir(parents=True)
    shutil.copy(find_procfile(), package / "Procfile")
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$0" "$@"\n')
    python.chmod(0o755)
    return tmp_path


def run(name: str, prefix: Path) -> subprocess.CompletedProcess[str]:
    """Run what systemd would run for an instance of this name, in the test's installation."""
    (line,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    words = shlex.split(line.replace("%i", name).replace("$$", "$").replace(PREFIX, str(prefix)))
    path = f"{prefix}/bin:{os.defpath}"
    return subprocess.run(words, env={"PATH": path}, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("name", NAMES)
def test_each_line_of_the_procfile_is_served(name: str, prefix: Path) -> None:
    (program,) = [each for each in read_procfile(find_procfile().read_text(encoding="utf-8")) if each.name == name]
    assert program.command[0] == sys.executable
    done = run(name, prefix)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == [f"{prefix}/bin/python", *program.command[1:]]


@pytest.mark.parametrize("name", ["tick", ""])
def test_a_name_that_the_procfile_lacks_is_one_line_and_status_2(name: str, prefix: Path) -> None:
    done = run(name, prefix)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"leasehold: the Procfile has no process {name}\n"


def test_a_process_gets_the_environment_of_the_installation() -> None:
    settings = dict(each.split("=", 1) for each in re.findall(r"^Environment=(.*)$", UNIT, re.MULTILINE))
    assert settings["PATH"].startswith(f"{PREFIX}/bin:")
    assert settings["LEASEHOLD_CONFIG"] == "/etc/leasehold/leasehold.toml"
    assert settings["PYTHONSAFEPATH"] == "1"
    assert settings["LEASEHOLD_ACCESS__MODE"] == "signed"
    files = re.findall(r"^EnvironmentFile=-(.*)$", UNIT, re.MULTILINE)
    assert files == ["/etc/leasehold/leasehold.env", "/etc/leasehold/%i.env"]
    (folder,) = re.findall(r"^RuntimeDirectory=(.*)$", UNIT, re.MULTILINE)
    assert {settings[f"LEASEHOLD_CELERY__{name}_FILE"] for name in ("BEAT", "ALIVE")} == {f"/run/{folder}/alive"}


def test_a_process_may_have_as_many_open_files_as_the_console_uses() -> None:
    (limit,) = re.findall(r"^LimitNOFILE=(.*)$", UNIT, re.MULTILINE)
    assert int(limit) >= MOST_FILES


def test_no_page_has_another_unit() -> None:
    pages = (Path(__file__).parents[2] / "docs").rglob("*.md")
    assert [page.name for page in pages if "ExecStart=" in page.read_text(encoding="utf-8")] == []


def verify(unit: str, folder: Path) -> subprocess.CompletedProcess[str]:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip(NO_SYSTEMD)
    instance = folder / f"leasehold@{NAMES[0]}.service"
    instance.write_text(unit, encoding="utf-8")
    command = [analyze, "verify", "--man=no", str(instance)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_systemd_finds_no_fault_in_the_template(tmp_path: Path) -> None:
    done = verify(UNIT, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    # systemd reports faults on standard error.
    assert "Restartt" in verify(UNIT.replace("Restart=", "Restartt="), tmp_path).stderr
