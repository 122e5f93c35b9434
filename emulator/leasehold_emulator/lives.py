"""The records of all emulated EC2 instances, and what is drawn at random for each of them.

At the launch of an instance two things are drawn: how its boot fails, and when it is interrupted. The record of an
instance stays after EC2 no longer describes the instance.
"""

import random
from typing import Literal

import msgspec

from leasehold_emulator.settings import EmulatorSettings

Kind = Literal["stuck", "terminated", "impaired", "unreachable"]
Cause = Literal["call", "interrupted", "retired", "lost", "boot_failure", "fault"]
HOUR = 3600.0


class Fate(msgspec.Struct, frozen=True):
    """What was drawn at random at the launch of an emulated instance. `failure`: how its boot fails; None: it does not
    fail. `interrupted_after`: the seconds after which it is interrupted; None: it is never interrupted.
    """

    failure: Kind | None = None
    interrupted_after: float | None = None


class Life(msgspec.Struct, kw_only=True):
    """The record of one emulated instance from its launch to its end. Times are in seconds since the epoch."""

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
    """The time at which the instance ends, as an interruption notice has announced; None if there was no notice."""
    end_asked_at: float | None = None
    terminated_at: float | None = None
    """The time at which the instance has shut down and no longer costs anything. It may be in the future."""
    cause: Cause | None = None
    """What ended the instance: a call, or an event of EC2. None while the instance is not ended."""
    stopped_at: float | None = None
    """The time at which the instance is stopped, and costs only its storage. None while no stop was requested."""
    starts: int = 0
    """How often the instance was started again after a stop."""

    def counts_for_quota(self, now: float) -> bool:
        """Return whether the instance uses a part of the quota: it is neither terminated nor stopped."""
        is_stopped = self.stopped_at is not None and now >= self.stopped_at
        return (self.terminated_at is None or now < self.terminated_at) and not is_stopped


class Lives:
    """The records of all emulated instances since the start or the last reset of the emulator, and the random
    generators for new instances.

    The same seed and the same launches in the same order give the same random results. Not thread-safe; the middleware
    uses it under its lock.
    """

    def __init__(self, settings: EmulatorSettings) -> None:
        self.all: dict[str, Life] = {}
        self.moving: dict[str, None] = {}
        """Ids of the instances that boot, stop, start or end."""
        self.change(settings, restart=True)

    def change(self, settings: EmulatorSettings, *, restart: bool) -> None:
        """Use these settings for new instances. `restart`: whether the random generators and the counts of boot
        failures start again.
        """
        self.settings = settings
        if restart:
            # Repeatable random numbers are intended; nothing here is secret.
            self._fates = random.Random(settings.random_seed)  # noqa: S311
            self._notices = random.Random(settings.random_seed)  # noqa: S311
            self._changes = random.Random(settings.random_seed)  # noqa: S311
            self._left = [failure.count for failure in settings.boot_failures]

    def begin(self, life: Life) -> Fate:
        """Record an emulated instance at its launch, and return what was drawn for it: how its boot fails and when it
        is interrupted.
        """
        # Each instance takes the same number of draws, so that one setting does not change the others' random numbers.
        boot, interruption = self._fates.random(), self._fates.expovariate(1.0)
        rate = self.settings.interruption_rate
        fate = Fate(
            failure=self._choose_failure(life, boot),
            interrupted_after=interruption / rate * HOUR if rate and life.market == "spot" else None,
        )
        life.boot_failure = fate.failure
        self.all[life.id] = life
        self.moving[life.id] = None
        return fate

    def count_notices(self, kind: Literal["notice", "state"] = "notice") -> int:
        """Draw at random how often the next event of EC2 is sent, and return this number: 0 (the event is lost), 1, or
        2 (it is doubled). `kind`: `notice` for an interruption, a recommendation or a scheduled change; `state` for a
        change of state.
        """
        # Changes of state have random numbers of their own, so that they do not change those of other notices.
        numbers = self._notices if kind == "notice" else self._changes
        dropped, doubled = numbers.random(), numbers.random()
        if dropped < self.settings.dropped_notices:
            return 0
        return 2 if doubled < self.settings.doubled_notices else 1

    def _choose_failure(self, life: Life, drawn: float) -> Kind | None:
        """Return how the boot of a new instance fails, or None if it does not. Each configured boot failure has a share
        of the numbers from 0 to 1. The failure whose share contains `drawn`, a random number from 0 to 1, is chosen.

        Boot failures for other types, zones or markets, and those whose count is used up, have no share.
        """
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
