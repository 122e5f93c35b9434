"""Images that rules name by a source: found at `apply` and by the periodic task, and kept with the rules."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from scheduler.model.lives import find_drift
from scheduler.model.rules import read_rules
from scheduler.model.validation import InvalidInputError
from scheduler.operations.explain import explain
from scheduler.operations.rules.apply import apply_rules
from scheduler.operations.rules.history import describe_history
from scheduler.operations.rules.images import find_images, refresh_images
from scheduler.operations.rules.preview import preview_rules
from scheduler.ports import CloudError
from tests.builders import SYSTEM, a_slot, some_rules
from tests.operations.harness import Harness

SOURCE = "ssm:/images/linux"


def with_image(image: str = SOURCE, **pool: Any) -> dict[str, Any]:
    """The document of rules with this image."""
    return {"pools": {"linux": {"system": SYSTEM, "max_slots": 2, "ec2": {"image": image}, **pool}}}


@dataclass
class Shelf:
    """Images by source; a source that is missing here is not found, one with an error fails."""

    images: dict[str, str | CloudError] = field(default_factory=dict)

    def find(self, source: str) -> str:
        found = self.images.get(source, CloudError("not_found", "ParameterNotFound", source))
        if isinstance(found, CloudError):
            raise found
        return found


def image_in_force(harness: Harness) -> str | None:
    return harness.ports.rules().pools["linux"].ec2.image


def test_the_id_of_an_image_is_in_force_from_apply_on_and_changes_with_the_periodic_task() -> None:
    harness, shelf = Harness(with_image("ami-0")), Shelf({SOURCE: "ami-1"})
    found = find_images(shelf, read_rules(with_image()))
    assert apply_rules(harness.ports, with_image(), images=found.images)[1]
    assert image_in_force(harness) == "ami-1"
    assert refresh_images(harness.ports, shelf).changed == {}
    version = harness.store.rules_version()
    shelf.images[SOURCE] = "ami-2"
    assert refresh_images(harness.ports, shelf).changed == {SOURCE: "ami-2"}
    assert (image_in_force(harness), harness.store.rules_version()) == ("ami-2", version + 1)
    assert harness.store.load_rules().document == with_image()
    last = describe_history(harness.store, 1)[-1]
    assert (last["source"], last["changes"]) == ("images", [f"image {SOURCE}: ami-1 -> ami-2"])


def test_the_same_file_applied_again_changes_nothing_unless_the_image_is_another_one() -> None:
    harness = Harness(with_image("ami-0"))
    assert apply_rules(harness.ports, with_image(), images={SOURCE: "ami-1"})[1]
    assert not apply_rules(harness.ports, with_image(), images={SOURCE: "ami-1"})[1]
    assert not apply_rules(harness.ports, with_image())[1]
    assert apply_rules(harness.ports, with_image(), images={SOURCE: "ami-2"})[1]


def test_an_apply_without_a_look_up_keeps_the_known_image_of_a_source_and_forgets_others() -> None:
    harness = Harness(with_image("ami-0"))
    apply_rules(harness.ports, with_image(), images={SOURCE: "ami-1"})
    apply_rules(harness.ports, with_image(min_slots=1))
    assert image_in_force(harness) == "ami-1"
    apply_rules(harness.ports, with_image("ami-7"))
    assert harness.store.load_rules().images == {}


@pytest.mark.parametrize("category", ["not_found", "auth", "transient"])
def test_a_look_up_that_fails_keeps_the_known_image(category: Any) -> None:
    harness = Harness(with_image("ami-0"))
    apply_rules(harness.ports, with_image(), images={SOURCE: "ami-1"})
    version = harness.store.rules_version()
    refreshed = refresh_images(harness.ports, Shelf({SOURCE: CloudError(category, "Code", "text")}))
    assert list(refreshed.failed) == [SOURCE]
    assert (image_in_force(harness), harness.store.rules_version()) == ("ami-1", version)


def test_images_that_were_found_for_replaced_rules_are_not_stored() -> None:
    harness = Harness(with_image())

    class Slow(Shelf):
        def find(self, source: str) -> str:
            apply_rules(harness.ports, with_image("ami-9"))
            return "ami-1"

    assert refresh_images(harness.ports, Slow()).changed == {}
    assert image_in_force(harness) == "ami-9"


def test_a_preview_has_the_machines_that_another_image_replaces() -> None:
    drifting: dict[str, Any] = {"replacement": {"drift": "replace"}}
    harness = Harness(with_image("ami-1", **drifting))
    digest = harness.ports.rules().pools["linux"].launch_digest
    machine = {"state": "ready", "epoch": 1, "launch_digest": digest, "instance_id": "i-1", "launch_id": "l-1"}
    harness.put(replace(harness.slot(), **machine))
    same = preview_rules(harness.store, with_image(**drifting), images={SOURCE: "ami-1"})
    assert (same.changed, same.departures) == (True, ())
    other = preview_rules(harness.store, with_image(**drifting), images={SOURCE: "ami-2"})
    assert [(each.slot, each.reason) for each in other.departures] == [("linux-1", "drifted")]


def test_a_machine_does_not_drift_while_the_image_of_its_pool_is_not_known() -> None:
    known = some_rules({"pools": {"linux": {"ec2": {"image": "ami-1"}}}}).pools["linux"].launch_digest
    unknown = some_rules({"pools": {"linux": {"ec2": {"image": SOURCE}}}}).pools["linux"].launch_digest
    assert find_drift(a_slot(launch_digest=known), unknown) == ()


@pytest.mark.parametrize(
    "image", ["ssm:", "ssm:name", "ssm:/a b", "newest:amazon", "newest:/x", "newest:a/", "ssm:/" + "x" * 300]
)
def test_a_source_that_is_not_well_formed_is_refused(image: str) -> None:
    with pytest.raises(InvalidInputError, match=r"pools\.linux\.ec2\.image: expected"):
        some_rules({"pools": {"linux": {"ec2": {"image": image}}}})


def test_a_pool_whose_image_is_not_found_yet_launches_nothing_and_its_slots_stay_empty() -> None:
    harness = Harness(with_image("ami-0"))
    apply_rules(harness.ports, with_image())
    harness.submit("r1")
    harness.settle()
    assert {slot.state for slot in harness.store.find_slots()} == {"empty"}
    assert harness.fleet.machines == {}
    found = explain(harness.ports, "r1")
    assert found["waiting"] == {
        "code": "misconfigured",
        "detail": f"nothing is launched in linux until its image is found: {SOURCE}",
    }
    assert refresh_images(harness.ports, Shelf({SOURCE: "ami-1"})).changed == {SOURCE: "ami-1"}
    harness.settle()
    assert harness.phase() == "leased"


def test_the_root_device_is_looked_up_for_each_image_whose_volume_has_another_size() -> None:
    harness = Harness(with_image("ami-0"))
    shelf = Shelf({SOURCE: "ami-1", "root:ami-1": "/dev/sda1", "root:ami-2": "/dev/xvda"})
    apply_rules(harness.ports, with_image(ec2={"image": SOURCE, "volume_gib": 40}))
    assert refresh_images(harness.ports, shelf).changed == {SOURCE: "ami-1", "root:ami-1": "/dev/sda1"}

    def device_in_force() -> str | None:
        return harness.ports.rules().pools["linux"].ec2.root_device

    assert device_in_force() == "/dev/sda1"
    shelf.images[SOURCE] = "ami-2"
    assert refresh_images(harness.ports, shelf).changed == {SOURCE: "ami-2", "root:ami-2": "/dev/xvda"}
    assert device_in_force() == "/dev/xvda"
    # An image by its id, too; what no pool needs any more is forgotten.
    plain = with_image(ec2={"image": "ami-2", "volume_gib": 40})
    found = find_images(shelf, read_rules(plain))
    apply_rules(harness.ports, plain, images=found.images)
    assert harness.store.load_rules().images == {"root:ami-2": "/dev/xvda"}
    apply_rules(harness.ports, with_image("ami-2"))
    assert harness.store.load_rules().images == {}


def test_an_image_whose_root_device_is_not_found_is_no_fault() -> None:
    """The pool is launched with the usual root device."""
    found = find_images(Shelf({}), read_rules(with_image(ec2={"image": "ami-2", "volume_gib": 40})))
    assert (found.images, list(found.errors)) == ({}, ["root:ami-2"])
