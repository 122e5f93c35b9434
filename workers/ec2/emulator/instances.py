"""Instances that take their time: moto's, with a boot, status checks and an end that last."""

import copy
import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models import instances as moto_instances

from workers.ec2.emulator.calls import Place
from workers.ec2.emulator.lives import Cause, Fate, Life, Lives
from workers.ec2.emulator.settings import EmulatorSettings

PENDING, RUNNING, SHUTTING_DOWN, TERMINATED = 0, 16, 32, 48


class EmulatedInstance(moto_instances.Instance):
    """An instance whose state follows the clock. Its times are those that were set when it was launched."""

    lives: ClassVar[Lives] = Lives(EmulatorSettings())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        now, settings = time.monotonic(), self.lives.settings
        self._settings, self._began_at = settings, now
        self._running_at = now + settings.boot_seconds
        self._ends_at: float | None = None
        self._seen_until: tuple[float, moto_instances.InstanceState] | None = None
        self._fate = Fate()
        super().__init__(*args, **kwargs)
        self.life = _begin_life(self, kwargs)
        self._fate = self.lives.begin(self.life)
        if self._fate.failure == "stuck":
            self._running_at = math.inf

    @property
    def fate(self) -> Fate:
        """What is to become of it."""
        return self._fate

    @property
    def runs_at(self) -> float:
        """When its boot is over, by the monotonic clock."""
        return self._running_at

    @property
    def real_state(self) -> moto_instances.InstanceState:
        """What moto holds, but later: running after the boot, terminated after the end."""
        now = time.monotonic()
        if self._held.code == RUNNING and now < self._running_at:
            return moto_instances.InstanceState("pending", PENDING)
        if self._held.code == TERMINATED and self._ends_at is not None and now < self._ends_at:
            return moto_instances.InstanceState("shutting-down", SHUTTING_DOWN)
        return self._held

    @property
    def _state(self) -> moto_instances.InstanceState:
        """What the API shows: the state, or for a while after the order to end the one before."""
        if self._seen_until is not None and time.monotonic() < self._seen_until[0]:
            return self._seen_until[1]
        return self.real_state

    @_state.setter
    def _state(self, state: moto_instances.InstanceState) -> None:
        self._held = state

    @property
    def is_ending(self) -> bool:
        """Whether its end has begun."""
        return self._ends_at is not None

    @property
    def is_hidden(self) -> bool:
        """Whether it is so young that no Describe call knows it."""
        return time.monotonic() < self._began_at + self._settings.describe_lag_seconds

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
        """None at first, if so set; a dead one after such a boot; the one that is set for all; else moto's."""
        if self._has_no_address:
            return None
        if self._fate.failure == "unreachable":
            return self._settings.dead_address
        return self._settings.address or super().private_ip_address

    @property
    def public_ip_address(self) -> str | None:
        """None at first, too."""
        return None if self._has_no_address else super().public_ip_address

    @property
    def _has_no_address(self) -> bool:
        return time.monotonic() < self._began_at + self._settings.address_lag_seconds

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
            self._end("call", self._settings.terminate_seconds)
            self._seen_until = (time.monotonic() + self._settings.terminate_lag_seconds, before)
        return before

    def end_by_itself(self, cause: Cause, reason: str, seconds: float) -> None:
        """EC2 ends it, `seconds` of shutting down included; `reason` like "Server.InternalError: why"."""
        if self._ends_at is None:
            self._end(cause, seconds)
            self._reason = reason
            self.state_reason = moto_instances.StateReason(reason, reason.partition(":")[0])

    def _end(self, cause: Cause, seconds: float) -> None:
        now = time.time()
        self.life.cause, self.life.end_asked_at, self.life.terminated_at = cause, now, now + seconds
        self._ends_at = time.monotonic() + seconds
        # From here on moto's own record is what counts, boot or not.
        self._running_at = 0.0
        volumes = [device.volume_id for _, device in self.get_block_device_mapping]
        super().terminate()
        self._drop_tags(volumes)

    def is_gone_since(self, seconds: float) -> bool:
        """Whether it has been terminated for so long."""
        return self._ends_at is not None and time.monotonic() >= self._ends_at + seconds

    def _check(self, status: dict[str, Any]) -> dict[str, Any]:
        if status["Status"] != "ok":
            return status
        if time.monotonic() < self._running_at + self._settings.status_seconds:
            return {"Status": "initializing", "Details": [{"Name": "reachability", "Status": "initializing"}]}
        if self._fate.failure == "impaired":
            return {"Status": "impaired", "Details": [{"Name": "reachability", "Status": "failed"}]}
        return status

    def _drop_tags(self, volumes: list[str]) -> None:
        for volume in volumes:
            if volume not in self.ec2_backend.volumes:
                self.ec2_backend.tags.pop(volume, None)


def _begin_life(instance: EmulatedInstance, launch: Mapping[str, Any]) -> Life:
    spot = launch.get("lifecycle") == "spot" or launch.get("instance_market_options") == "spot"
    return Life(
        id=instance.id,
        region=instance.ec2_backend.region_name,
        type=instance.instance_type,
        zone=str(instance.availability_zone),
        market="spot" if spot else "on-demand",
        launched_at=time.time(),
    )


def know_no_images() -> None:
    """Have moto's EC2 of this process start without images.

    Thousands of images would cost seconds at the start and most of the time of each launch; without them
    any image id will do.
    """
    os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")


def install_instances(lives: Lives) -> None:
    """Make moto's EC2 of this process launch EmulatedInstances with lives of these."""
    EmulatedInstance.lives = lives
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


def find_instance(name: str) -> EmulatedInstance | None:
    """The instance with this id, while EC2 knows it, in whatever region."""
    found = (instance for _, instance in each_instance() if instance.id == name)
    return next((instance for instance in found if isinstance(instance, EmulatedInstance)), None)


@contextmanager
def hidden_ones(region: str) -> Iterator[None]:
    """In the block moto knows no instance of the region that is still hidden.

    All instances of one of moto's reservations were launched at once, so that they are seen at once.
    """
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][region]
    everything = backend.reservations
    backend.reservations = {
        key: reservation for key, reservation in everything.items() if not any(map(_is_hidden, reservation.instances))
    }
    try:
        yield
    finally:
        backend.reservations = everything


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
        "state": _real_state(instance),
        "type": instance.instance_type,
        "zone": instance.availability_zone,
        "market": instance.lifecycle or "on-demand",
        "address": instance.private_ip_address,
        "launched_at": instance.launch_time.timestamp(),
        "user_data": str(instance.user_data) if instance.user_data else None,
        "tags": {tag["key"]: tag["value"] for tag in instance.get_tags()},
    }


def _real_state(instance: moto_instances.Instance) -> str | None:
    return instance.real_state.name if isinstance(instance, EmulatedInstance) else instance.state


def _is_hidden(instance: moto_instances.Instance) -> bool:
    return isinstance(instance, EmulatedInstance) and instance.is_hidden


def _is_gone(instance: moto_instances.Instance, seconds: float) -> bool:
    return isinstance(instance, EmulatedInstance) and instance.is_gone_since(seconds)
