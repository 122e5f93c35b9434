"""The wheel contains all files of the packages: code, Lua, templates, migrations."""

import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {"leasehold": "", "tasks": "", "workers": "", "scheduler": "", "leasehold_emulator": "emulator"}
"""Package of the wheel -> the folder of the repository that contains it."""


def list_files() -> set[str]:
    found = (
        (ROOT / folder, path) for package, folder in PACKAGES.items() for path in (ROOT / folder / package).rglob("*")
    )
    return {str(path.relative_to(top)) for top, path in found if path.is_file() and "__pycache__" not in path.parts}


def test_the_wheel_contains_every_file_of_the_packages_and_those_that_up_and_demo_need(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=100)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert inside == list_files() | {"leasehold/Procfile", "leasehold/examples/nasa-like.swf.gz"}
    kinds = {Path(name).suffix for name in inside}
    assert {".py", ".lua", ".tmpl", ".gz"} <= kinds
    # For type checkers: these packages are typed.
    assert {f"{package}/py.typed" for package in PACKAGES} <= inside
    assert "scheduler/store/migrations/versions/0023_release_0_1_0.py" in inside
