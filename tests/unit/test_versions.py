"""The tested versions are those that are locked, installed, shipped and named in the docs."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
# celery 5.7.0 ends a worker that holds a message when Redis goes away (tests/system/test_lost_messages.py tries it).
TRIED = {"celery": "5.6.3", "kombu": "5.7.0", "redis": "8.1.0"}


def read_pins(path: Path) -> dict[str, str]:
    """Return the versions of these packages in a lock file."""
    found = re.findall(r"^([a-z]+)==([0-9.]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {name: pinned for name, pinned in found if name in TRIED}


def test_a_new_lock_has_the_tested_versions() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert dict(each.split("==") for each in project["tool"]["uv"]["constraint-dependencies"]) == TRIED


@pytest.mark.parametrize("lock", ["requirements.lock", "compose/requirements.lock", "compose/emulator.lock"])
def test_every_lock_installs_the_tested_versions(lock: str) -> None:
    assert read_pins(ROOT / lock) == TRIED


def test_the_tests_run_on_the_tested_versions() -> None:
    assert {name: version(name) for name in TRIED} == TRIED


@pytest.mark.parametrize(("celery", "is_allowed"), [("5.6.3", True), ("5.7.0", False), ("5.7.1", True)])
def test_without_a_lock_the_celery_that_loses_workers_is_not_installed(celery: str, is_allowed: bool) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (needed,) = [each for each in map(Requirement, project["dependencies"]) if each.name == "celery"]
    assert needed.specifier.contains(celery) is is_allowed
