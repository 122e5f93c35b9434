"""Images that the rules name by a source: an SSM parameter, or the newest image of an owner with a matching name.

A source is resolved to the id of an image (AMI) when rules are applied, and later by a periodic task. The ids are
stored with the rules, so a launch needs no look-up.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from scheduler.model.faults import expected

if TYPE_CHECKING:
    from scheduler.model.rules import Rules

SSM: Final = "ssm:"
"""Beginning of a source that names an SSM parameter: `ssm:/PATH`."""
NEWEST: Final = "newest:"
"""Beginning of a source that names the newest image of an owner: `newest:OWNER/NAME`. NAME may have `*` and `?`."""
_MOST: Final = 1024
_SOURCE: Final = re.compile(r"ssm:(/[A-Za-z0-9_.-]+)+|newest:[A-Za-z0-9-]+/[A-Za-z0-9()\[\] ./'@_*?-]+")


def is_source(image: str | None) -> bool:
    """Return whether this is the source of an image, and not the id of one."""
    return image is not None and image.startswith((SSM, NEWEST))


def check_image(value: object) -> object:
    """Return the value of a key that names an image. Raises ExpectedError for a source that is not well-formed."""
    if isinstance(value, str) and is_source(value) and (len(value) > _MOST or not _SOURCE.fullmatch(value)):
        raise expected("ssm:/PATH of a parameter, newest:OWNER/NAME of images, or the id of an image")
    return value


def list_sources(rules: "Rules") -> dict[str, str]:
    """Return the sources of images that the rules name, each with the path of the first key that has it."""
    found: dict[str, str] = {}
    for name, pool in rules.pools.items():
        if pool.ec2.image is not None and is_source(pool.ec2.image):
            found.setdefault(pool.ec2.image, f"pools.{name}.ec2.image")
    return found


def with_images(rules: "Rules", images: Mapping[str, str]) -> "Rules":
    """Return the rules with ids in place of the sources of images. A source that `images` lacks stays."""
    changed: dict[str, Any] = {}
    for name, pool in rules.pools.items():
        if (image := images.get(pool.ec2.image or "")) is not None:
            changed[name] = pool.model_copy(update={"ec2": pool.ec2.model_copy(update={"image": image})})
    return rules.model_copy(update={"pools": {**rules.pools, **changed}}) if changed else rules
