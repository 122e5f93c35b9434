"""Lives of instances: the fate that is drawn for each at its launch, and the record of what happened to it."""

import random
from typing import Literal

import msgspec

from workers.ec2.emulator.settings import EmulatorSettings

Kind = Literal["stuck", "terminated", "impaired", "unreachable"]
Cause = Literal["call", "interrupted", "lost", "boot_failure"]
HOUR = 3600.0


class Fate(msgspec.Struct, frozen=True):
    """What will happen to an instance: how its boot fails, and after how many seconds it is interrupted."""

    failure: Kind | None = None
    interrupted_after: float | None = None


class Life(msgspec.Struct, kw_only=True):
    """The record of one instance; times in seconds since the epoch."""

    id: str
    region: str
    type: str
    zone: str
    market: Literal["spot", "on-demand"]
    launched_at: float
    token: str | None = None
    boot_failure: str | None = None
    warned_at: float | None = None
    deadline: float | None = None
    """The end that a warning has announced."""
    end_asked_at: float | None = None
    terminated_at: float | None = None
    """The end of shutting down, after which it costs nothing. May be in the future."""
    cause: Cause | None = None
    """What ended it: a call, or an event of EC2."""


class Lives:
    """All instances since the start or the last reset, and the random generators for the next ones.

    The same seed and the same launches in the same order give the same fates. Not thread-safe; the middleware uses it
    under its lock.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self.all: dict[str, Life] = {}
        self.change(settings, restart=True)

    def change(self, settings: EmulatorSettings, *, restart: bool) -> None:
        """Use these settings from now on. `restart`: the random generators and counts of boot failures start again."""
        self.settings = settings
        if restart:
            # Repeatable random numbers are intended; nothing here is secret.
            self._fates = random.Random(settings.random_seed)  # noqa: S311
            self._notices = random.Random(settings.random_seed)  # noqa: S311
            self._left = [failure.count for failure in settings.boot_failures]

    def begin(self, life: Life) -> Fate:
        """Record an instance that is being launched, and draw its fate."""
        # Each instance takes the same number of draws, so that one setting does not change the others' random numbers.
        boot, interruption = self._fates.random(), self._fates.expovariate(1.0)
        rate = self.settings.interruption_rate
        fate = Fate(
            failure=self._choose_failure(life, boot),
            interrupted_after=interruption / rate * HOUR if rate and life.market == "spot" else None,
        )
        life.boot_failure = fate.failure
        self.all[life.id] = life
        return fate

    def count_notices(self) -> int:
        """Return how often the next notice is sent: 0, 1 or 2 times."""
        dropped, doubled = self._notices.random(), self._notices.random()
        if dropped < self.settings.dropped_notices:
            return 0
        return 2 if doubled < self.settings.doubled_notices else 1

    def _choose_failure(self, life: Life, drawn: float) -> Kind | None:
        """Return the first failure that applies and is not used up, by its share of the drawn number."""
        before = 0.0
        for index, failure in enumerate(self.settings.boot_failures):
            concerns = failure.type in {None, life.type} and failure.zone in {None, life.zone}
            if self._left[index] == 0 or not concerns or failure.market not in {None, life.market}:
                continue
            if before <= drawn < before + failure.share:
                left = self._left[index]
                self._left[index] = None if left is None else left - 1
                return failure.kind
            before += failure.share
        return None
