"""The emulated EC2 instances: instances of moto (a mock of AWS) whose boots, status checks and ends take time."""

import copy
import math
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, ClassVar, Final

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.utils import utcnow
from moto.ec2.models import ec2_backends
from moto.ec2.models import instances as moto_instances
from moto.ec2.models.block_device import BlockDeviceType
from moto.ec2.models.elastic_block_store import VolumeAttachment

from leasehold_emulator.calls import Place
from leasehold_emulator.images import AMAZON_LINUX_ROOT
from leasehold_emulator.lives import Cause, Fate, Life, Lives
from leasehold_emulator.power_switch import PowerSwitch
from leasehold_emulator.settings import EmulatorSettings

ROOT_GIB: Final = 8
"""Size of the root volume of an image, in GiB."""
PENDING, RUNNING, SHUTTING_DOWN, TERMINATED = 0, 16, 32, 48


class EmulatedInstance(PowerSwitch, moto_instances.Instance):
    """An emulated EC2 instance, whose state depends on the time. The delays are those that were configured when it was
    launched.
    """

    lives: ClassVar[Lives] = Lives(EmulatorSettings())
    _numbers: ClassVar[Iterator[int]] = count(1)
    _hidden_until: ClassVar[float] = 0.0
    """Time of the monotonic clock from which Describe calls include all instances."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        now, settings = time.monotonic(), self.lives.settings
        self._settings, self._began_at = settings, now
        self.runs_at = now + settings.boot_seconds
        """The end of the instance's boot, as a time of the monotonic clock."""
        self._ends_at: float | None = None
        self._seen_until: tuple[float, moto_instances.InstanceState] | None = None
        self.fate = Fate()
        """How the boot of the instance fails and when the instance is interrupted, as drawn at its launch."""
        super().__init__(*args, **kwargs)
        self.number = next(self._numbers)
        """Number of the instance in the order of the launches."""
        # moto records the launch (a "reservation") before it makes the instances.
        self.launch: str = next(reversed(self.ec2_backend.reservations))
        EmulatedInstance._hidden_until = max(self._hidden_until, now + settings.describe_lag_seconds)
        _KNOWN[self.id] = self
        self._given_interfaces = {each.get("NetworkInterfaceId") for each in kwargs.get("nics") or ()}
        if self.image_id not in self.ec2_backend.amis:
            self.root_device_name = AMAZON_LINUX_ROOT
        spot = kwargs.get("lifecycle") == "spot" or kwargs.get("instance_market_options") == "spot"
        self.life = Life(
            id=self.id,
            region=self.ec2_backend.region_name,
            type=self.instance_type,
            zone=str(self.availability_zone),
            market="spot" if spot else "on-demand",
            launched_at=time.time(),
        )
        self.fate = self.lives.begin(self.life)
        if self.fate.failure == "stuck":
            self.runs_at = math.inf

    @property
    def real_state(self) -> moto_instances.InstanceState:
        """The state of the instance by the clock: it is running only after its boot, and terminated only after it has
        shut down.
        """
        now = time.monotonic()
        if self._held.code == RUNNING and now < self.runs_at:
            return moto_instances.InstanceState("pending", PENDING)
        if self._held.code == TERMINATED and self._ends_at is not None and now < self._ends_at:
            return moto_instances.InstanceState("shutting-down", SHUTTING_DOWN)
        return self.find_stopping() or self._held

    @property
    def _state(self) -> moto_instances.InstanceState:
        """The state of the instance that Describe calls show. For a configured time after TerminateInstances they still
        show the state that the instance had before.
        """
        if self._seen_until is not None and time.monotonic() < self._seen_until[0]:
            return self._seen_until[1]
        return self.real_state

    @_state.setter
    def _state(self, state: moto_instances.InstanceState) -> None:
        self._held = state

    @property
    def is_ending(self) -> bool:
        """Whether the instance is shutting down or terminated."""
        return self._ends_at is not None

    @classmethod
    def may_hide(cls) -> bool:
        """Whether any instance may be hidden (`is_hidden`)."""
        return time.monotonic() < cls._hidden_until

    @property
    def is_hidden(self) -> bool:
        """Whether the instance is so new that Describe calls do not include it yet."""
        return time.monotonic() < self._began_at + self._settings.describe_lag_seconds

    @property
    def instance_id(self) -> str:
        """The id of the instance. moto derives the name of this attribute from the name of the class, and this class
        has another name than moto's class.
        """
        return self.id

    @property
    def instance_status(self) -> dict[str, Any]:
        """EC2's instance status check: `initializing` for a configured time after the boot, then `ok` or `impaired`."""
        return self._check(super().instance_status)

    @property
    def system_status(self) -> dict[str, Any]:
        """EC2's system status check: `initializing` for a configured time after the boot, then `ok` or `impaired`."""
        return self._check(super().system_status)

    @property
    def private_ip_address(self) -> str | None:
        """The private address of the instance; None for a configured time after the launch.

        If the boot fails as `unreachable`, it is the setting `dead_address`, which gives no answer. Else it is the
        setting `address`, or if that is not set, the address that moto invented.
        """
        if self._has_no_address:
            return None
        if self.fate.failure == "unreachable":
            return self._settings.dead_address
        return self._settings.address or super().private_ip_address

    @property
    def public_ip_address(self) -> str | None:
        """The public address of the instance; None for a configured time after the launch."""
        return None if self._has_no_address else super().public_ip_address

    @property
    def _has_no_address(self) -> bool:
        return time.monotonic() < self._began_at + self._settings.address_lag_seconds

    def setup_defaults(self) -> None:
        """Add the root volume of the image."""
        volume = self.ec2_backend.create_volume(size=ROOT_GIB, zone_name=self._placement.zone)
        # moto's attach_volume looks at each instance to find this one.
        device = self.root_device_name
        volume.attachment = VolumeAttachment(volume, self, device, "attached")  # type: ignore[abstract]
        self.block_device_mapping[device] = BlockDeviceType(
            volume_id=volume.id, status=volume.status, size=ROOT_GIB, attach_time=utcnow(), delete_on_termination=True
        )

    def add_block_device(self, size: int | None, device_path: str, *details: Any, **more: Any) -> None:
        """Add a volume beside the root volume of the image. A volume at the root device replaces the root volume."""
        root = self.block_device_mapping.get(self.root_device_name)
        if device_path == self.root_device_name:
            size = size or ROOT_GIB
            if root is not None:
                self.ec2_backend.detach_volume(root.volume_id, self.id, device_path)
                self.ec2_backend.delete_volume(root.volume_id)
        elif root is None:
            self.setup_defaults()
        # A volume without a size has that of its snapshot.
        super().add_block_device(size, device_path, *details, **more)  # type: ignore[arg-type]

    def get_tags(self) -> list[dict[str, str]]:
        """Return the tags of this instance. This method replaces moto's, which searches the tags of all resources for
        each instance.
        """
        tags = self.ec2_backend.tags.get(self.id, {})
        return [
            {"resource_id": self.id, "key": key, "value": value, "resource_type": "instance"}
            for key, value in tags.items()
        ]

    def terminate(self) -> moto_instances.InstanceState:
        """Begin to shut the instance down, and return the state that it had before. A repeated call changes nothing."""
        before = copy.copy(self._state)
        if self._ends_at is None:
            self._end("call", self._settings.terminate_seconds)
            self.note_user()
            self._seen_until = (time.monotonic() + self._settings.terminate_lag_seconds, before)
        return before

    def end_by_itself(self, cause: Cause, reason: str, seconds: float) -> None:
        """End the instance without a call, after `seconds` of shutting down. `reason`: EC2's text for the cause, like
        "Server.InternalError: why".
        """
        if self._ends_at is None:
            self._end(cause, seconds)
            self._reason = reason
            self.state_reason = moto_instances.StateReason(reason, reason.partition(":")[0])

    def _end(self, cause: Cause, seconds: float) -> None:
        now = time.time()
        self.life.cause, self.life.end_asked_at, self.life.terminated_at = cause, now, now + seconds
        self._ends_at = time.monotonic() + seconds
        self.lives.moving[self.id] = None
        # The boot and a stop no longer count: the state follows moto's record and the end.
        self.runs_at = self._stopped_at = 0.0
        # moto would refuse a repeated call to end a protected instance that has ended.
        self.disable_api_termination = self.disable_api_stop = False
        # EC2 deletes the network interface that it made for the instance, and its address is free again.
        for interface in self.nics.values():
            interface.delete_on_termination = interface.id not in self._given_interfaces
        # Otherwise moto would free the addresses once more, when it forgets the instance.
        self._private_ips.clear()
        volumes = [device.volume_id for _, device in self.get_block_device_mapping]
        super().terminate()
        for volume in volumes:
            if volume not in self.ec2_backend.volumes:
                self.ec2_backend.tags.pop(volume, None)

    def is_gone_since(self, seconds: float) -> bool:
        """Return whether the instance was terminated at least this number of seconds ago."""
        return self._ends_at is not None and time.monotonic() >= self._ends_at + seconds

    def _check(self, status: dict[str, Any]) -> dict[str, Any]:
        if status["Status"] != "ok":
            return status
        if time.monotonic() < self.runs_at + self._settings.status_seconds:
            return {"Status": "initializing", "Details": [{"Name": "reachability", "Status": "initializing"}]}
        if self.fate.failure == "impaired":
            return {"Status": "impaired", "Details": [{"Name": "reachability", "Status": "failed"}]}
        return status


def know_no_images() -> None:
    """Let moto's EC2 in this process start without machine images (AMIs), so that it accepts every image id.

    Loading thousands of images would take seconds at the start, and most of the time of each launch.
    """
    os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")


_KNOWN: Final[dict[str, EmulatedInstance]] = {}
"""Id → instance, for all instances that EC2 describes. moto has no index of them."""


def install_instances(lives: Lives) -> None:
    """Let moto's EC2 in this process launch instances of the class EmulatedInstance, and record them in `lives`. Let
    moto find an instance without looking at all others, as it does for each volume that it attaches or detaches.
    """
    EmulatedInstance.lives = lives
    moto_instances.Instance = EmulatedInstance  # type: ignore[misc]

    def get_instance(backend: Any, instance_id: str) -> moto_instances.Instance:
        found = _KNOWN.get(instance_id)
        return found if found is not None and found.ec2_backend is backend else _search(backend, instance_id)

    moto_instances.InstanceBackend.get_instance = get_instance  # type: ignore[assignment,method-assign]


_search: Final = moto_instances.InstanceBackend.get_instance


def forget_all() -> None:
    """Forget all instances, after moto was reset."""
    _KNOWN.clear()


def warm_up(region: str) -> None:
    """Let moto make its model of this AWS region, with the default VPC and subnets. Otherwise the first EC2 call would
    wait for it.
    """
    ec2_backends[DEFAULT_ACCOUNT_ID][region].describe_instances()


def each_instance() -> Iterator[tuple[str, moto_instances.Instance]]:
    """Yield (region, instance) for each emulated instance that EC2 still describes."""
    for region, backend in list(ec2_backends[DEFAULT_ACCOUNT_ID].items()):
        for reservation in list(backend.reservations.values()):
            for instance in reservation.instances:
                yield region, instance


def find_instance(name: str) -> EmulatedInstance | None:
    """Return the emulated instance with this id in any region; None if EC2 describes no such instance."""
    return find_all([name]).get(name)


def find_all(names: Iterable[str]) -> dict[str, EmulatedInstance]:
    """Return id -> emulated instance for these ids, in their order. An id that EC2 does not describe is omitted."""
    return {name: _KNOWN[name] for name in dict.fromkeys(names) if name in _KNOWN}


@contextmanager
def without_hidden(region: str) -> Iterator[None]:
    """Within this context, remove from moto's list of the region the instances that are too new for Describe calls.

    The list consists of moto's reservations, whose instances were launched together. So a reservation is removed as a
    whole.
    """
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    everything = backend.reservations
    if not EmulatedInstance.may_hide():
        yield
        return
    backend.reservations = {
        key: reservation
        for key, reservation in everything.items()
        if not any(isinstance(each, EmulatedInstance) and each.is_hidden for each in reservation.instances)
    }
    try:
        yield
    finally:
        backend.reservations = everything


def forget_terminated(seconds: float) -> None:
    """Remove the instances that were terminated at least this number of seconds ago. EC2 does so after
    about an hour.
    """
    for backend in list(ec2_backends[DEFAULT_ACCOUNT_ID].values()):
        for key, reservation in list(backend.reservations.items()):
            if all(
                isinstance(each, EmulatedInstance) and each.is_gone_since(seconds) for each in reservation.instances
            ):
                del backend.reservations[key]
                for instance in reservation.instances:
                    backend.tags.pop(instance.id, None)
                    _KNOWN.pop(instance.id, None)


def zone_of(place: Place, region: str) -> str | None:
    """Return the availability zone of a launch: the zone of `place`, else the zone of its subnet, else moto's default
    zone.

    Return None if the subnet is unknown.
    """
    if place.zone:
        return place.zone
    if place.subnet is None:
        return f"{region}a"
    zones = ec2_backends[DEFAULT_ACCOUNT_ID][region].subnets
    return next((zone for zone, subnets in zones.items() if place.subnet in subnets), None)


def find_subnet(place: Place, region: str) -> str | None:
    """Return the id of the first subnet in the zone of `place`; None if there is none."""
    zones = ec2_backends[DEFAULT_ACCOUNT_ID][region].subnets
    return next(iter(zones.get(place.zone or "", ())), None)


def count_free_addresses(region: str, subnet: str) -> int | None:
    """Return the number of addresses in a subnet that no instance has; None if there is no such subnet."""
    zones = ec2_backends[DEFAULT_ACCOUNT_ID][region].subnets.values()
    found = next((subnets[subnet] for subnets in zones if subnet in subnets), None)
    return None if found is None else int(found.available_ip_address_count)


def describe_instance(region: str, instance: moto_instances.Instance) -> dict[str, Any]:
    """Return an emulated instance as JSON values, as the emulator's control API shows it."""
    return {
        "id": instance.id,
        "region": region,
        "state": instance.real_state.name if isinstance(instance, EmulatedInstance) else instance.state,
        "type": instance.instance_type,
        "zone": instance.availability_zone,
        "market": instance.lifecycle or "on-demand",
        "address": instance.private_ip_address,
        "launched_at": instance.launch_time.timestamp(),
        "user_data": str(instance.user_data) if instance.user_data else None,
        "tags": {tag["key"]: tag["value"] for tag in instance.get_tags()},
    }
