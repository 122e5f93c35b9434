"""Images that the rules name by a source: an SSM parameter, or the newest image of an owner with a matching name.

A source is resolved to the id of an image (AMI) when rules are applied, and later by a periodic task. The ids are
stored with the rules, so a launch needs no look-up.
"""

import re
from typing import Final

from scheduler.model.faults import expected

SSM: Final = "ssm:"
"""Beginning of a source that names an SSM parameter: `ssm:/PATH`."""
NEWEST: Final = "newest:"
"""Beginning of a source that names the newest image of an owner: `newest:OWNER/NAME`. NAME may have `*` and `?`."""
ROOT_OF: Final = "root:"
"""Beginning of a source that names the root device of an image: `root:IMAGE`. Rules do not contain it: it is looked up
for a pool with `volume_gib`.
"""
_MOST: Final = 1024
_SOURCE: Final = re.compile(r"ssm:(/[A-Za-z0-9_.-]+)+|newest:[A-Za-z0-9-]+/[A-Za-z0-9()\[\] ./'@_*?-]+")


def is_source(image: str | None) -> bool:
    """Return whether `image` is the source of an image (`ssm:…` or `newest:…`). Return False for the id of an image,
    and for None.
    """
    return image is not None and image.startswith((SSM, NEWEST))


def check_image(value: object) -> object:
    """Return the value of a key that names an image, unchanged. The value is the id of an image, or its source. Raises
    ExpectedError for a source that is not well-formed.
    """
    if isinstance(value, str) and is_source(value) and (len(value) > _MOST or not _SOURCE.fullmatch(value)):
        raise expected("ssm:/PATH of a parameter, newest:OWNER/NAME of images, or the id of an image")
    return value
