"""Lives: what is to become of each instance, drawn when it is launched, and what became of it."""

import random
from typing import Literal

import msgspec

from workers.ec2.emulator.settings import BootFailure, EmulatorSettings

Kind = Literal["stuck", "terminated", "impaired", "unreachable"]
Cause = Literal["call", "interrupted", "lost", "boot_failure"]
HOUR = 3600.0


class Fate(msgspec.Struct, frozen=True):
    """What is to become of an instance: how its boot fails, and after how many seconds it is interrupted."""

    failure: Kind | None = None
    interrupted_after: float | None = None


class Life(msgspec.Struct, kw_only=True):
    """One instance from its launch to its end; times in seconds since the epoch."""

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
    """When a warning said that it ends."""
    end_asked_at: float | None = None
    terminated_at: float | None = None
    """The end of its end: from here on it costs nothing. May lie ahead."""
    cause: Cause | None = None
    """Who ended it: a call, or EC2 by itself."""


class Lives:
    """All instances since the start or the last reset, and the chance that decides about the next one.

    The same seed and the same launches in the same order give the same fates. Not thread-safe by itself: the
    layer uses it under its lock.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self.all: dict[str, Life] = {}
        self.change(settings, anew=True)

    def change(self, settings: EmulatorSettings, *, anew: bool) -> None:
        """Draw by these settings from now on; `anew`: chance and the counts of boot failures begin again."""
        self.settings = settings
        if anew:
            # Chance that can be repeated is the point: nothing here is secret.
            self._fates = random.Random(settings.random_seed)  # noqa: S311
            self._notices = random.Random(settings.random_seed)  # noqa: S311
            self._left = [failure.count for failure in settings.boot_failures]

    def begin(self, life: Life) -> Fate:
        """The fate of an instance that is being launched."""
        # As many draws for each instance whatever is set, so that one setting does not change another's chance.
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
        """How often the next notice arrives: 0, 1 or 2 times."""
        dropped, doubled = self._notices.random(), self._notices.random()
        if dropped < self.settings.dropped_notices:
            return 0
        return 2 if doubled < self.settings.doubled_notices else 1

    def _choose_failure(self, life: Life, drawn: float) -> Kind | None:
        """The first failure that concerns it and is not used up, each with its share of what is drawn."""
        before = 0.0
        for place, failure in enumerate(self.settings.boot_failures):
            if self._left[place] == 0 or not _concerns(failure, life):
                continue
            if before <= drawn < before + failure.share:
                left = self._left[place]
                self._left[place] = None if left is None else left - 1
                return failure.kind
            before += failure.share
        return None


def _concerns(failure: BootFailure, life: Life) -> bool:
    return (
        failure.type in {None, life.type}
        and failure.zone in {None, life.zone}
        and failure.market in {None, life.market}
    )
