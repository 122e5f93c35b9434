"""What a launch template gives to the emulated instances of a launch, as far as moto ignores it: volumes, protection
and metadata options.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ec2.models.instances import MetadataOptions

from leasehold_emulator.calls import Call
from leasehold_emulator.instances import EmulatedInstance

_FLEET = "LaunchTemplateConfigs.1.LaunchTemplateSpecification."
_ONE = "LaunchTemplate."
_PROTECTIONS = {"DisableApiTermination": "disable_api_termination", "DisableApiStop": "disable_api_stop"}


def complete_launch(call: Call, instances: Iterable[EmulatedInstance]) -> None:
    """Give these new instances what the launch call or its launch template contains and moto has ignored. The values of
    the call take precedence. A CreateFleet has one template here, because moto gets one call for each place.
    """
    data = _read_template(call)
    given = {**data, **call.parameters}
    protected = [name for key, name in _PROTECTIONS.items() if given.get(key) in {True, "true"}]
    metadata = data.get("MetadataOptions")
    has_own_metadata = any(key.startswith("MetadataOptions.") for key in call.parameters)
    # RunInstances adds the volumes of a template itself.
    volumes = data.get("BlockDeviceMappings", ()) if call.action == "CreateFleet" else ()
    for instance in instances:
        for name in protected:
            setattr(instance, name, True)
        if metadata and not has_own_metadata:
            instance.metadata_options = MetadataOptions(metadata)
        for volume in volumes:
            _add_volume(instance, volume)


def _read_template(call: Call) -> Mapping[str, Any]:
    prefix = _FLEET if call.action == "CreateFleet" else _ONE
    named = {key.removeprefix(prefix): value for key, value in call.parameters.items() if key.startswith(prefix)}
    backend = ec2_backends[DEFAULT_ACCOUNT_ID][call.region]
    if "LaunchTemplateId" in named:
        template = backend.get_launch_template(named["LaunchTemplateId"])
    elif "LaunchTemplateName" in named:
        template = backend.get_launch_template_by_name(named["LaunchTemplateName"])
    else:
        return {}
    data: Mapping[str, Any] = template.get_version(named.get("Version", "$Default")).data
    return data


def _add_volume(instance: EmulatedInstance, mapping: Mapping[str, Any]) -> None:
    volume = mapping.get("Ebs", {})
    instance.add_block_device(
        int(volume["VolumeSize"]) if "VolumeSize" in volume else None,
        mapping["DeviceName"],
        volume.get("SnapshotId"),
        volume.get("Encrypted", False),
        volume.get("DeleteOnTermination", False),
        volume.get("KmsKeyId"),
        volume.get("VolumeType"),
    )
