"""The wheel contains all files of the packages: code, Lua, templates, migrations."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {
    "leasehold": "leasehold",
    "leasehold/service/tasks": "tasks",
    "leasehold/service/workers": "workers",
    "scheduler": "scheduler",
    "leasehold_emulator": "emulator/leasehold_emulator",
}
"""Folder of the wheel -> the folder of the repository that it is made of."""
FIND: Final = "import site, sys; from importlib.util import find_spec; site.addsitedir(sys.argv[1]); "
FIND_TASKS: Final = FIND + "print(find_spec('tasks').origin, find_spec('workers').origin)"


def list_files() -> set[str]:
    found = ((folder, source, path) for folder, source in PACKAGES.items() for path in (ROOT / source).rglob("*"))
    return {
        f"{folder}/{path.relative_to(ROOT / source)}"
        for folder, source, path in found
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (found,) = folder.glob("*.whl")
    return found


def test_an_environment_finds_tasks_and_workers_unless_it_has_its_own(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    command = [sys.executable, "-I", "-S", "-c", FIND_TASKS, str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert found == [str(tmp_path / "leasehold" / "service" / name / "__init__.py") for name in ("tasks", "workers")]
    (tmp_path / "tasks.py").touch()
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert found[0] == str(tmp_path / "tasks.py")


def test_the_wheel_contains_every_file_of_the_packages_and_those_that_up_and_demo_need(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    more = {"leasehold/Procfile", "leasehold/examples/nasa-like.swf.gz", "leasehold-service.pth"}
    assert inside == (list_files() | more) - {"leasehold/service.pth"}
    kinds = {Path(name).suffix for name in inside}
    assert {".py", ".lua", ".tmpl", ".gz"} <= kinds
    # For type checkers: these packages are typed.
    assert {f"{package}/py.typed" for package in PACKAGES} <= inside
    assert "scheduler/store/migrations/versions/0023_release_0_1_0.py" in inside
