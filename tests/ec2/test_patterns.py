"""Names, ids, tags and regions that EC2 refuses are known before the first call."""

from pathlib import Path
from typing import Any

import pytest

from scheduler.model.rules import read_rules
from scheduler.simulation.cloud_documents import CloudDocument
from tests.cli.conftest import Run, run
from workers.configuration import Configuration
from workers.ec2.patterns import find_refused, list_regions
from workers.settings import AwsSettings, Settings

__all__ = ["run"]

IMAGE = "ami-0123456789abcdef0"


def warn(ec2: dict[str, Any], aws: dict[str, Any] | None = None, **pool: Any) -> list[str]:
    offerings = [{"name": "m5.large"}]
    document = {"system": "x86_64-linux", "max_slots": 3, "offerings": offerings, "ec2": ec2, **pool}
    rules_document = {"pools": {"a": document}}
    settings = Settings(aws=AwsSettings(**aws or {}))
    found = Configuration(None, settings, rules_document, read_rules(rules_document), CloudDocument())
    return [str(each) for each in find_refused(found.rules, found.settings.aws)]


@pytest.mark.parametrize(
    "ec2",
    [
        {"image": IMAGE, "subnets": ["subnet-01234567", "eu-west-1a:subnet-0123456789abcdef0"]},
        {"image": "ami-01234567", "security_groups": ["sg-0123456789abcdef0"], "key_name": "my key (2026)"},
        {"image": "ssm:/aws/service/ami", "instance_profile": "machine+ci@1"},
        {"image": IMAGE, "instance_profile": "arn:aws-cn:iam::123456789012:instance-profile/team/machine"},
        {"launch_template": "lt-0123456789abcdef0", "launch_template_version": 1},
        {"launch_template": "ci/(runner)_v1.2-x", "launch_template_version": 1},
        {"image": IMAGE, "tags": {f"t{number}": "v" * 256 for number in range(43)}},
    ],
)
def test_what_ec2_accepts_causes_no_warning(ec2: dict[str, Any]) -> None:
    assert warn(ec2, {"region": "eu-central-1"}) == []


@pytest.mark.parametrize(
    ("ec2", "warning"),
    [
        ({"image": "ami-1"}, 'image: expected ami- with 8 or 17 hexadecimal digits, got "ami-1"'),
        ({"image": "ami-0123456789ABCDEF0"}, "image: expected ami- with 8 or 17"),
        ({"image": "0123456789abcdef0"}, "image: expected ami- with 8 or 17"),
        (
            {"image": IMAGE, "subnets": ["subnet-01234567", "eu-1a:subnet-x"]},
            "subnets[1]: expected subnet- with 8 or 17",
        ),
        (
            {"image": IMAGE, "security_groups": ["default"]},
            'security_groups[0]: expected sg- with 8 or 17 hexadecimal digits, got "default"',
        ),
        ({"launch_template": "lt-12", "launch_template_version": 1}, "launch_template: expected lt- with 8 or 17"),
        (
            {"launch_template": "a b", "launch_template_version": 1},
            "launch_template: expected an id (lt-…) or a name of 3 to 128",
        ),
        ({"launch_template": "x" * 129, "launch_template_version": 1}, "launch_template: expected an id"),
        ({"image": IMAGE, "key_name": "k" * 256}, "key_name: expected at most 255 ASCII characters"),
        ({"image": IMAGE, "key_name": "schlüssel"}, "key_name: expected at most 255 ASCII characters"),
        ({"image": IMAGE, "instance_profile": "a b"}, "instance_profile: expected the name or the ARN"),
        # the role in place of the profile
        (
            {"image": IMAGE, "instance_profile": "arn:aws:iam::123456789012:role/ci"},
            "instance_profile: expected the name or",
        ),
        (
            {"image": IMAGE, "tags": {f"t{number}": "v" for number in range(44)}},
            "tags: expected at most 43 tags (EC2 permits 50, and 7 are of Leasehold), got 44 of them",
        ),
        (
            {"image": IMAGE, "tags": {"AWS:team": "ci"}},
            'tags.AWS:team: expected a tag that does not begin with aws: (these are of AWS), got "AWS:team"',
        ),
        ({"image": IMAGE, "tags": {"t" * 129: "v"}}, "expected a name of at most 128 characters, got 129 of them"),
    ],
)
def test_what_ec2_refuses_is_warned_of_with_its_path(ec2: dict[str, Any], warning: str) -> None:
    (found,) = warn(ec2)
    assert found.startswith("pools.a.ec2.")
    assert warning in found


@pytest.mark.parametrize("offering", [{"name": "mac2.metal"}, {"name": "apple", "type": "mac-m4.metal"}])
def test_a_mac_needs_a_dedicated_host(offering: dict[str, Any]) -> None:
    found = warn({"image": IMAGE}, offerings=[offering])
    wanted = "a type that needs no dedicated host (Leasehold launches no Mac machines)"
    assert found == [f'pools.a.offerings[0].type: expected {wanted}, got "{offering.get("type", offering["name"])}"']


@pytest.mark.parametrize(
    ("aws", "warnings"),
    [
        ({"region": "eu-central-1"}, []),
        ({"region": "us-gov-west-1"}, []),
        ({"region": "cn-north-1"}, []),
        ({}, []),
        (
            {"region": "eu-centrl-1"},
            ['aws.region: expected a region of AWS (did you mean "eu-central-1"?), got "eu-centrl-1"'],
        ),
        # a zone is no region
        (
            {"region": "eu-central-1a"},
            ['aws.region: expected a region of AWS (did you mean "eu-central-1"?), got "eu-central-1a"'],
        ),
        ({"region": "here", "endpoint_url": "http://127.0.0.1:4579"}, []),
    ],
)
def test_an_unknown_region_is_warned_of(aws: dict[str, Any], warnings: list[str]) -> None:
    assert warn({"image": IMAGE}, aws) == warnings


def test_botocore_lists_regions_of_all_partitions() -> None:
    assert {"us-east-1", "cn-north-1", "us-gov-west-1"} <= set(list_regions())


def test_the_cluster_is_a_part_of_the_names_of_launch_templates() -> None:
    (found,) = warn({"image": IMAGE}, {"cluster": "team:ci"})
    assert found == (
        "aws.cluster: expected at most 101 letters, digits and ().-/_ (it is a part of the names of launch templates),"
        ' got "team:ci"'
    )
    assert len(warn({"image": IMAGE}, {"cluster": "c" * 102})) == 1
    assert warn({"image": IMAGE}, {"cluster": "c" * 101}) == []
    # A pool with a launch template of its own needs none of ours.
    assert warn({"launch_template": "ci-runner", "launch_template_version": 1}, {"cluster": "team:ci"}) == []


def test_a_static_pool_is_not_checked() -> None:
    static: Any = {"provider": "static", "max_slots": None, "offerings": []}
    assert warn({"image": "x"}, {"cluster": "team:ci"}, **static) == []


def test_the_commands_print_the_warnings_and_go_on(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LEASEHOLD_DATABASE__URL", f"sqlite:///{tmp_path}/rules.db")
    Path("leasehold.toml").write_text('[pools.a]\nsystem = "x"\nmax_slots = 1\nec2.image = "ami-1"\n', encoding="utf-8")
    line = 'pools.a.ec2.image: expected ami- with 8 or 17 hexadecimal digits, got "ami-1"'
    checked = run("config", "check")
    assert (checked.status, f"warning: {line}" in checked.out) == (0, True)
    assert run("migrate").status == 0
    applied = run("apply", "--dry-run", "leasehold.toml")
    assert (applied.status, applied.complaints) == (0, [f"leasehold: warning: {line}"])
