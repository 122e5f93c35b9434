"""Send EC2's event for each change of the state of an emulated instance."""

from collections.abc import Iterable
from typing import Final

from leasehold_emulator.instances import EmulatedInstance
from leasehold_emulator.lives import Lives
from leasehold_emulator.notices import send_notice, state_event

_BEFORE: Final = {"running": "pending", "terminated": "shutting-down", "stopped": "stopping"}
"""State -> the state through which EC2 always enters it, at least for a moment."""
_LAST: Final = "terminated"


class StateChanges:
    """Sends EC2's events about changes of state. It records all instances that are not terminated, each with the last
    state about which an event was sent. Not thread-safe; the middleware uses it under its lock.

    Only the instances in `Lives.moving` are looked at, because this happens ten times a second.
    """

    def __init__(self, lives: Lives) -> None:
        self._lives = lives
        self._sent: dict[str, tuple[EmulatedInstance, str]] = {}

    def add(self, instances: Iterable[EmulatedInstance]) -> None:
        """Record these new instances. From now on, `send` sends the events about their changes of state."""
        self._sent |= {instance.id: (instance, "") for instance in instances}

    def clear(self) -> None:
        """Forget all recorded instances. `send` sends no more events about them."""
        self._sent.clear()
        self._lives.moving.clear()

    def send(self) -> None:
        """Send the events about all changes of state since the last call, including states that lasted only for a
        moment.
        """
        for name in [each for each in self._lives.moving if each in self._sent]:
            instance, sent = self._sent[name]
            state = str(instance.real_state.name)
            if state in _BEFORE:
                del self._lives.moving[name]
            if state == sent:
                continue
            before = _BEFORE.get(state)
            # A new instance is pending first; a stopped one that starts is pending again.
            for each in [before, state] if before is not None and before != sent else [state]:
                self._send(instance, each)
            self._sent[name] = instance, state
            if state == _LAST:
                del self._sent[name]

    def _send(self, instance: EmulatedInstance, state: str) -> None:
        for _ in range(self._lives.count_notices("state")):
            send_notice(state_event(instance.life, state))
