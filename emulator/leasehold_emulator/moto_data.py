"""Keep moto from holding data that the emulator does not use: 100 MiB after its import, and a second of its start."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any, Final

from botocore.loaders import Loader

from workers.ec2.descriptions import DescriptionFiles

_OFFERINGS: Final = "instance_type_offerings"
_POLICIES: Final = "moto.iam.aws_managed_policies"


class _Regions(Mapping[str, list[dict[str, Any]]]):
    """The offerings of instance types by region, as moto has them. Those of a region are read at their first use."""

    def __init__(self, kind: str, names: Iterable[str]) -> None:
        self._kind, self._names = kind, tuple(names)

    def __getitem__(self, region: str) -> list[dict[str, Any]]:
        if region not in self._names:
            raise KeyError(region)
        return _read_offerings(self._kind, region)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


@cache
def _read_offerings(kind: str, region: str) -> list[dict[str, Any]]:
    from moto.utilities.utils import load_resource  # noqa: PLC0415 - see `import_sparingly`

    rows: list[dict[str, Any]] = load_resource(f"ec2/resources/{_OFFERINGS}/{kind}/{region}.json")
    return [{**row, "LocationType": kind} for row in rows]


def import_sparingly() -> None:
    """Import moto's EC2 without its policies of IAM, with the offerings of a region only when they are used, and with
    botocore's descriptions in parts. Call this before any other import of moto.
    """
    Loader.FILE_LOADER_CLASS = DescriptionFiles
    policies = ModuleType(_POLICIES)
    policies.aws_managed_policies_data = "{}"  # type: ignore[attr-defined]
    sys.modules[_POLICIES] = policies
    from moto.utilities import utils  # noqa: PLC0415 - imported by this function for the first time

    load = utils.load_resource
    utils.load_resource = lambda resource: [] if _OFFERINGS in resource else load(resource)
    try:
        from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS  # noqa: PLC0415 - as above
    finally:
        utils.load_resource = load
    for kind, regions in INSTANCE_TYPE_OFFERINGS.items():
        INSTANCE_TYPE_OFFERINGS[kind] = _Regions(kind, regions)
