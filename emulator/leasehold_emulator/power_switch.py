"""How emulated EC2 instances are stopped and started. Both take a configured time."""

import copy
import time
from typing import TYPE_CHECKING, ClassVar, Final

from moto.core.utils import utcnow
from moto.ec2.models import instances as moto_instances

from leasehold_emulator.error_codes import describe_reason

if TYPE_CHECKING:
    from leasehold_emulator.lives import Life, Lives
    from leasehold_emulator.settings import EmulatorSettings

RUNNING: Final = 16
STOPPING: Final = 64
STOPPED: Final = 80
BY_USER: Final = "Client.UserInitiatedShutdown"
"""EC2's code of the state reason of an instance that a call stopped or terminated."""


class PowerSwitch:
    """The part of an emulated instance that stops and starts it. The state of the instance depends on the time that has
    passed since the stop or start.
    """

    _settings: "EmulatorSettings"
    _held: moto_instances.InstanceState
    _state: moto_instances.InstanceState
    _stopped_at = 0.0
    """The time at which the instance is stopped, by the monotonic clock."""
    lives: "ClassVar[Lives]"
    life: "Life"
    runs_at: float

    @property
    def real_state(self) -> moto_instances.InstanceState:
        """The state of the instance at the present time. Subclasses define it."""
        raise NotImplementedError

    def find_stopping(self) -> moto_instances.InstanceState | None:
        """Return the state `stopping` while the instance stops; None otherwise."""
        is_stopping = self._held.code == STOPPED and time.monotonic() < self._stopped_at
        return moto_instances.InstanceState("stopping", STOPPING) if is_stopping else None

    def stop(self) -> moto_instances.InstanceState:
        """Begin to stop the instance, and return the state that it had before. A repeated call changes nothing."""
        before = copy.copy(self._state)
        if self._held.code == RUNNING:
            seconds = self._settings.stop_seconds
            self.lives.moving[self.life.id] = None
            self._held = moto_instances.InstanceState("stopped", STOPPED)
            self._stopped_at, self.life.stopped_at = time.monotonic() + seconds, time.time() + seconds
            self.note_user()
        return before

    def note_user(self) -> None:
        """Record as the reason of the present change of state that a call of a user made it."""
        self._reason = f"User initiated ({utcnow():%Y-%m-%d %H:%M:%S} GMT)"
        self.state_reason = moto_instances.StateReason(describe_reason(BY_USER), BY_USER)

    def start(self) -> moto_instances.InstanceState:
        """Start the stopped instance, and return the state that it had before. A repeated call changes nothing."""
        before = copy.copy(self._state)
        if self.real_state.code == STOPPED:
            self._held = moto_instances.InstanceState("running", RUNNING)
            self.lives.moving[self.life.id] = None
            self.runs_at = time.monotonic() + self._settings.start_seconds
            self.life.stopped_at, self.life.starts = None, self.life.starts + 1
            self._reason, self.state_reason = "", moto_instances.StateReason()
        return before
