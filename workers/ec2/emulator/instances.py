"""Instances that take their time: moto's, with a boot, status checks and an end that last."""

import copy
import os
import time
from collections.abc import Iterator
from typing import Any, ClassVar

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models import instances as moto_instances

from workers.ec2.emulator.calls import Place
from workers.ec2.emulator.settings import EmulatorSettings

PENDING, RUNNING, SHUTTING_DOWN, TERMINATED = 0, 16, 32, 48


class EmulatedInstance(moto_instances.Instance):
    """An instance whose state follows the clock. Its times are those that were set when it was launched."""

    settings: ClassVar[EmulatorSettings] = EmulatorSettings()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        now = time.monotonic()
        self._running_at = now + self.settings.boot_seconds
        self._checked_at = self._running_at + self.settings.status_seconds
        self._ends_at: float | None = None
        self._address = self.settings.address
        super().__init__(*args, **kwargs)

    @property
    def _state(self) -> moto_instances.InstanceState:
        """What moto holds, but later: running after the boot, terminated after the end."""
        now = time.monotonic()
        if self._held.code == RUNNING and now < self._running_at:
            return moto_instances.InstanceState("pending", PENDING)
        if self._held.code == TERMINATED and self._ends_at is not None and now < self._ends_at:
            return moto_instances.InstanceState("shutting-down", SHUTTING_DOWN)
        return self._held

    @_state.setter
    def _state(self, state: moto_instances.InstanceState) -> None:
        self._held = state

    @property
    def instance_id(self) -> str:
        """Its id: moto's serializer goes by the name of the class, and this class has another."""
        return self.id

    @property
    def instance_status(self) -> dict[str, Any]:
        """`initializing` for a while after the boot."""
        return self._check(super().instance_status)

    @property
    def system_status(self) -> dict[str, Any]:
        """As above."""
        return self._check(super().system_status)

    @property
    def private_ip_address(self) -> str | None:
        """The address that is set for all, else moto's."""
        return self._address or super().private_ip_address

    def get_tags(self) -> list[dict[str, str]]:
        """Its tags, looked up by its id: moto goes through the tags of all resources for each instance."""
        tags = self.ec2_backend.tags.get(self.id, {})
        return [
            {"resource_id": self.id, "key": key, "value": value, "resource_type": "instance"}
            for key, value in tags.items()
        ]

    def terminate(self) -> moto_instances.InstanceState:
        """Begins its end, once: a repeat changes nothing."""
        before = copy.copy(self._state)
        if self._ends_at is None:
            self._ends_at = time.monotonic() + self.settings.terminate_seconds
            # From here on moto's own record is what counts, boot or not.
            self._running_at = 0.0
            volumes = [device.volume_id for _, device in self.get_block_device_mapping]
            super().terminate()
            self._drop_tags(volumes)
        return before

    def is_gone_since(self, seconds: float) -> bool:
        """Whether it has been terminated for so long."""
        return self._ends_at is not None and time.monotonic() >= self._ends_at + seconds

    def _check(self, status: dict[str, Any]) -> dict[str, Any]:
        if status["Status"] == "ok" and time.monotonic() < self._checked_at:
            return {"Status": "initializing", "Details": [{"Name": "reachability", "Status": "initializing"}]}
        return status

    def _drop_tags(self, volumes: list[str]) -> None:
        for volume in volumes:
            if volume not in self.ec2_backend.volumes:
                self.ec2_backend.tags.pop(volume, None)


def install_instances() -> None:
    """Make moto's EC2 of this process launch EmulatedInstances, and know no images.

    Thousands of images would cost seconds at the start and most of the time of each launch; without them
    any image id will do.
    """
    os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    moto_instances.Instance = EmulatedInstance  # type: ignore[misc]


def warm_up(region: str) -> None:
    """Make the region's default network now rather than during the first call."""
    ec2_backends[DEFAULT_ACCOUNT_ID][region].describe_instances()


def each_instance() -> Iterator[tuple[str, moto_instances.Instance]]:
    """(region, instance) of all that EC2 still describes."""
    for region, backend in list(ec2_backends[DEFAULT_ACCOUNT_ID].items()):
        for reservation in list(backend.reservations.values()):
            for instance in reservation.instances:
                yield region, instance


def forget_terminated(seconds: float) -> None:
    """Forget the instances that have been terminated for so long, as EC2 does after about an hour."""
    for backend in list(ec2_backends[DEFAULT_ACCOUNT_ID].values()):
        for key, reservation in list(backend.reservations.items()):
            if all(_is_gone(instance, seconds) for instance in reservation.instances):
                del backend.reservations[key]
                for instance in reservation.instances:
                    backend.tags.pop(instance.id, None)


def zone_of(place: Place, region: str) -> str | None:
    """The zone that a launch to this place ends in: as named, its subnet's, else moto's default one."""
    if place.zone:
        return place.zone
    if place.subnet is None:
        return f"{region}a"
    zones = ec2_backends[DEFAULT_ACCOUNT_ID][region].subnets
    return next((zone for zone, subnets in zones.items() if place.subnet in subnets), None)


def describe_instance(region: str, instance: moto_instances.Instance) -> dict[str, Any]:
    """One instance as the control API shows it."""
    return {
        "id": instance.id,
        "region": region,
        "state": instance.state,
        "type": instance.instance_type,
        "zone": instance.availability_zone,
        "market": instance.lifecycle or "on-demand",
        "address": instance.private_ip_address,
        "launched_at": instance.launch_time.timestamp(),
        "user_data": str(instance.user_data) if instance.user_data else None,
        "tags": {tag["key"]: tag["value"] for tag in instance.get_tags()},
    }


def _is_gone(instance: moto_instances.Instance, seconds: float) -> bool:
    return isinstance(instance, EmulatedInstance) and instance.is_gone_since(seconds)
