"""Looks up the images that the rules name by a source (such as an SSM parameter), and the root devices of images whose
volumes are to have another size, and stores both with the rules.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

from scheduler.model.rules import Rules, list_image_sources, list_root_sources, read_rules, with_images
from scheduler.model.validation import Fault, InvalidInputError, show
from scheduler.operations.ports import Ports
from scheduler.operations.rules.apply import RulesChangedError, write_rules
from scheduler.ports import CloudError, Images

SOURCE = "images"
"""The origin that the history of the rules shows for a version in which only the ids of images changed."""


class Found(NamedTuple):
    """The result of a look-up of images. `images`: source -> id of the image, or name of the root device; `errors`:
    source -> error, if the source could not be looked up now.
    """

    images: dict[str, str]
    errors: dict[str, CloudError]


def look_up(images: Images, rules: Rules, known: Mapping[str, str] = MappingProxyType({})) -> Found:
    """Look up the sources of images that the rules name, and then the root devices that their pools need. Errors of the
    cloud are in the result. `known`: what was found before, for images that cannot be looked up now.
    """
    found = Found({}, {})

    def find(sources: Iterable[str]) -> None:
        for source in sources:
            try:
                found.images[source] = images.find(source)
            except CloudError as error:
                found.errors[source] = error

    find(list_image_sources(rules))
    find(list_root_sources(with_images(rules, {**known, **found.images})))
    return found


def find_images(images: Images, rules: Rules, prefix: str = "") -> Found:
    """Look up each source of an image that the rules name, and the root devices that pools need. `prefix`: the path of
    the rules, for the messages about faults.

    Raises InvalidInputError with a line for each source that has no image. Other errors of the cloud are in the result.
    """
    keys, found = list_image_sources(rules), look_up(images, rules)
    faults = [
        Fault(
            f"{prefix}.{keys[source]}" if prefix else keys[source],
            f"a source that names an existing image ({error.code})",
            show(source),
        )
        for source, error in found.errors.items()
        # A pool whose root device is not found launches with the usual one.
        if error.category == "not_found" and source in keys
    ]
    if faults:
        raise InvalidInputError(faults)
    return found


class Refreshed(NamedTuple):
    """The result of `refresh_images`. `changed`: source -> new id, for each image that changed; `failed`: source ->
    text of the error.
    """

    changed: dict[str, str]
    failed: dict[str, str]


def refresh_images(ports: Ports, images: Images) -> Refreshed:
    """Look up the sources of images in the rules in force. If a source has another image now, store a new version of
    the rules: it has the same document, and the new ids of the images. If a source cannot be looked up, its image
    stays. Return what changed and what could not be looked up.

    Sources are looked up outside of any transaction. If other rules came into force meanwhile, nothing is stored.
    """
    stored = ports.store.load_rules()
    rules = read_rules(stored.document)
    found, errors = look_up(images, rules, stored.images)
    changed = {source: image for source, image in found.items() if stored.images.get(source) != image}
    if changed and not _store(ports, stored.document, rules, found, stored.version):
        changed = {}
    return Refreshed(changed, {source: str(error) for source, error in errors.items()})


def _store(
    ports: Ports, document: Mapping[str, object], rules: Rules, images: Mapping[str, str], expected: int
) -> bool:
    try:
        with ports.store.transaction() as transaction:
            applied = write_rules(
                transaction, document, rules, cause="cloud", source=SOURCE, expected=expected, images=images
            )
    except RulesChangedError:
        return False
    applied.announce(ports)
    return True
