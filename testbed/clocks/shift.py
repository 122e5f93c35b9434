"""Gives single processes of a stack a wall clock that is off by seconds which a test may change at any time."""

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

HOOK: Final = Path(__file__).with_name("hook")
VARIABLE: Final = "SHIFTED_CLOCK_FILE"
"""Read by `hook/sitecustomize.py`, which may be imported by no process whose clock is to stay right."""


class Shifts:
    """The shifts of a stack's processes by their names, kept in files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def set(self, name: str, seconds: float) -> None:
        """Put the clock of this process `seconds` ahead (or behind, below zero), from now on."""
        draft = self._path(name).with_suffix(".draft")
        draft.write_text(repr(float(seconds)))
        draft.replace(self._path(name))

    def set_all(self, names: Iterable[str], seconds: float) -> None:
        """Let the clock of the whole host jump: all its processes get the same shift."""
        for name in names:
            self.set(name, seconds)

    def environment(self, name: str, base: Mapping[str, str]) -> dict[str, str]:
        """Return `base` with what the process of this name needs to have the shifted clock."""
        paths = [str(HOOK), *([base["PYTHONPATH"]] if base.get("PYTHONPATH") else [])]
        return {**base, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: str(self._path(name))}

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.seconds"
