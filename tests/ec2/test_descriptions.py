"""botocore's descriptions read in parts are the descriptions themselves, without their documentation."""

from typing import Any

import pytest
from botocore.loaders import Loader

from workers.ec2.descriptions import DescriptionFiles


def load_whole(name: str, service: str | None, loader: Loader) -> Any:
    return without_texts(loader.load_service_model(service, name) if service else loader.load_data(name))


def without_texts(value: Any) -> Any:
    if isinstance(value, dict):
        kept = ((name, each) for name, each in value.items() if name != "documentation" or not isinstance(each, str))
        return {name: without_texts(each) for name, each in kept}
    return [without_texts(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("name", "service"),
    [
        ("service-2", "sqs"),
        ("service-2", "pricing"),
        ("service-2", "events"),
        ("paginators-1", "ec2"),
        ("endpoint-rule-set-1", "ec2"),
        ("endpoints", None),
        ("partitions", None),
    ],
)
def test_every_part_of_a_description_is_botocores_own(name: str, service: str | None) -> None:
    ours = Loader(file_loader=DescriptionFiles())

    assert load_whole(name, service, ours) == load_whole(name, service, Loader())


def test_a_part_that_is_merged_into_a_description_replaces_or_completes_its_own() -> None:
    first, second = (Loader(file_loader=DescriptionFiles()) for _ in range(2))
    shapes = first.load_service_model("sqs", "service-2")["shapes"]

    shapes["String"] = {"type": "string", "min": 1}

    assert shapes.get("String") == {"type": "string", "min": 1}
    assert second.load_service_model("sqs", "service-2")["shapes"]["String"] == {"type": "string"}


def test_a_missing_description_is_none() -> None:
    assert DescriptionFiles().load_file("/nowhere/service-2") is None
