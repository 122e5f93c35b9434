"""The settings that the EC2 emulator uses. They come from options, from a file that may change, and from the control
API.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leasehold_emulator.faults import FaultTable
from leasehold_emulator.lives import Lives
from leasehold_emulator.settings import EmulatorSettings, load_settings, read_settings
from leasehold_emulator.spot_prices import SpotPrices
from scheduler.model.validation import InvalidInputError


class Control:
    """The present settings and injected faults of the EC2 emulator. If a setting is changed several times, the last
    change counts. If the settings file changes, its content replaces all settings.

    Not thread-safe; the middleware uses it under its lock.
    """

    def __init__(
        self,
        settings: EmulatorSettings,
        file: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.faults = FaultTable()
        self.lives = Lives(settings)
        self.spot_prices = SpotPrices(settings.spot_prices, settings.random_seed, clock)
        self.file_error: str | None = None
        """Why the emulator could not apply the last change of its settings file, so that the earlier settings stay;
        None if it could.
        """
        self._file, self._stamp, self.clock = file, _stamp(file), clock
        self.settings = settings
        self.apply(load_settings(file) if file else settings)

    def apply(self, settings: EmulatorSettings) -> None:
        """Replace all settings of the emulator and all injected faults. The time of the new faults starts now."""
        self.settings = settings
        self.lives.change(settings, restart=True)
        self.spot_prices.restart(settings.spot_prices, settings.random_seed)
        self.faults.seed = settings.random_seed
        self.faults.replace(settings.faults, self.clock())

    def change(self, document: object) -> None:
        """Change the emulator's settings that `document` contains; all other settings stay.

        Raises InvalidInputError if a key of the document is wrong.
        """
        self.lay_over(read_settings(document))

    def lay_over(self, given: EmulatorSettings) -> None:
        """Change the emulator's settings that were set explicitly in `given`; all other settings stay."""
        changes = {name: getattr(given, name) for name in given.model_fields_set - {"faults"}}
        self.settings = self.settings.model_copy(update=changes)
        self.lives.change(self.settings, restart=bool(changes.keys() & {"random_seed", "boot_failures"}))
        change = self.spot_prices.restart if "random_seed" in changes else self.spot_prices.change
        change(self.settings.spot_prices, self.settings.random_seed)
        self.faults.seed = self.settings.random_seed
        if "faults" in given.model_fields_set:
            self.faults.replace(given.faults, self.clock())

    def restart(self) -> None:
        """Remove all injected faults. Start the random choices and the counts of boot failures again, as at the start
        of the emulator.
        """
        self.faults.replace((), self.clock())
        self.lives.change(self.settings, restart=True)
        self.spot_prices.restart(self.settings.spot_prices, self.settings.random_seed)

    def show(self) -> dict[str, Any]:
        """Return the settings of the emulator as JSON values. The setting `faults` has the injected faults whose time
        is not over.
        """
        now = self.clock()
        faults = [rule.model_dump(exclude_none=True) for rule in self.faults.rules(now)]
        return {**self.settings.model_dump(mode="json"), "faults": faults}

    def refresh(self) -> None:
        """Read the settings file again if it has changed. If the file is wrong, keep the present settings and set
        `file_error`.
        """
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
