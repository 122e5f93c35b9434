"""The devices of a host, which it gives to the commands of leases: each device to one command at a time.

The scheduler counts the amount of a resource and knows no single device. The host chooses the first free ones. A lease
with a part of a device, such as 0.5 gpus, gets the amount and no device of its own.
"""

from collections.abc import Iterable, Mapping
from itertools import count, islice
from typing import Final

GPUS: Final = "gpus"
"""The resource whose devices have the numbers 0, 1 and so on if the host names none."""


class NoDevice(Exception):  # noqa: N818 - an outcome
    """Raised if fewer devices are free than a lease needs. The message states why."""


class Devices:
    """`named`: resource -> the ids of its devices."""

    def __init__(self, named: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._named = named or {}

    def choose(self, resources: Mapping[str, float], used: Iterable[Mapping[str, list[str]]]) -> dict[str, list[str]]:
        """Return the devices for a lease with these amounts, by resource. `used`: those of the other commands. Raises
        NoDevice.
        """
        taken = {(name, each) for devices in used for name, found in devices.items() for each in found}
        chosen = {}
        for name in sorted({GPUS, *self._named} & resources.keys()):
            needed = resources[name]
            if needed % 1:
                continue
            ids = self._named[name] if name in self._named else map(str, count())
            free = (each for each in ids if (name, each) not in taken)
            chosen[name] = list(islice(free, int(needed)))
            if (found := len(chosen[name])) < needed:
                raise NoDevice(f"{name}: the lease needs {needed:g} devices, and {found} of this host are free")
        # A command without a lease on them does not see the devices that the host names. One with a part does.
        return {name: [] for name in self._named if not resources.get(name, 0.0)} | chosen
