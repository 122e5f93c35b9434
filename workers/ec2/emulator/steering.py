"""Steering: the settings in force, from options, from a file that may change, and from the control API."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scheduler.model.validation import InvalidInputError
from workers.ec2.emulator.faults import FaultTable
from workers.ec2.emulator.lives import Lives
from workers.ec2.emulator.settings import EmulatorSettings, FaultRule, load_settings, read_settings


class Steering:
    """What holds now. Whoever spoke last is heard: a file that changed replaces everything.

    Not thread-safe by itself: the layer uses it under its lock.
    """

    def __init__(
        self,
        settings: EmulatorSettings,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults = FaultTable()
        self.lives = Lives(settings)
        self.file_error: str | None = None
        """Why the file was not taken when it last changed; the earlier settings hold on."""
        self._file, self._stamp, self._clock = file, _stamp(file), clock
        self.settings = settings
        self.apply(load_settings(file) if file else settings)

    def apply(self, settings: EmulatorSettings) -> None:
        """Make these the settings; their faults begin now and replace all others."""
        self.settings = settings
        self.lives.change(settings, anew=True)
        self.faults.replace(settings.faults, self._clock())

    def change(self, document: object) -> None:
        """Lay a partial document over the settings; raises InvalidInputError when a key of it is wrong."""
        given = read_settings(document)
        changes = {name: getattr(given, name) for name in given.model_fields_set - {"faults"}}
        self.settings = self.settings.model_copy(update=changes)
        self.lives.change(self.settings, anew=bool(changes.keys() & {"random_seed", "boot_failures"}))
        if "faults" in given.model_fields_set:
            self.replace_faults(given.faults)

    def replace_faults(self, rules: tuple[FaultRule, ...]) -> None:
        """These faults and no others."""
        self.faults.replace(rules, self._clock())

    def restart(self) -> None:
        """No faults; chance, and the counts of boot failures, begin again."""
        self.replace_faults(())
        self.lives.change(self.settings, anew=True)

    def add_faults(self, rules: tuple[FaultRule, ...]) -> None:
        """These faults beside the present ones."""
        self.faults.add(rules, self._clock())

    def show(self) -> dict[str, Any]:
        """The settings in force with what is left of the faults, as JSON values."""
        now = self._clock()
        faults = [rule.model_dump(exclude_none=True) for rule in self.faults.rules(now)]
        return {**self.settings.model_dump(mode="json"), "faults": faults}

    def refresh(self) -> None:
        """Read the file again if it changed; one that is wrong is kept out and said in `file_error`."""
        stamp = _stamp(self._file)
        if self._file is None or stamp == self._stamp:
            return
        self._stamp = stamp
        try:
            self.apply(load_settings(self._file))
        except (OSError, InvalidInputError) as error:
            self.file_error = str(error)
        else:
            self.file_error = None


def _stamp(file: Path | None) -> tuple[int, int] | None:
    try:
        found = file.stat() if file else None
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size) if found else None
