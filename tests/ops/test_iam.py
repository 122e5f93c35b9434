"""docs/iam/ permits exactly the calls of the workers, under the conditions of docs/how-to/aws.md.

The calls are read from the code of the workers: every name that is an operation of EC2, SQS or STS in boto3.
"""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import botocore.session
import pytest
from botocore import xform_name
from leasehold_emulator.notices import RULES as EMULATED

import tasks.machines
from scheduler.model.rules import Rules
from workers.configuration import check_configuration
from workers.ec2.requests import TAG_ALIVE, TAG_CLUSTER, TAG_CLUSTER_ID

ROOT: Final = Path(__file__).parents[2]
IAM: Final = ROOT / "docs" / "iam"
CHAPTER: Final = (ROOT / "docs" / "how-to" / "aws.md").read_text(encoding="utf-8")
POLICIES: Final = ("launch", "look", "terminate", "start", "stop", "interruptions", "claim", "images", "prices")
SERVICES: Final = ("ec2", "pricing", "sqs", "ssm", "sts")

ACTIONS: Final = {
    # Tagging new resources and passing a role to machines are permissions of their own.
    "ec2:RunInstances": {"ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"},
    # A fleet runs instances in the name of its caller.
    "ec2:CreateFleet": {"ec2:CreateFleet", "ec2:RunInstances", "ec2:CreateTags", "iam:PassRole"},
    "sqs:DeleteMessageBatch": {"sqs:DeleteMessage"},
    # Every identity may call this.
    "sts:GetCallerIdentity": set(),
    # The doctor decodes a refusal if it may, and shows it undecoded if not.
    "sts:DecodeAuthorizationMessage": set(),
}
"""Calls that need other permissions than that of their own name."""

FLEET_POLICIES: Final = {
    "find_places": "launch",
    "launch": "launch",
    "describe": "look",
    "find_launched": "look",
    "sweep": "look",
    "terminate": "terminate",
    "claim": "claim",
    "start": "start",
    "resize": "start",
    "stop": "stop",
}
"""Method of the Fleet port -> the policy that it needs."""


@cache
def operations() -> dict[str, str]:
    """Return the calls by the names of boto3's methods: `run_instances` → `ec2:RunInstances`."""
    session = botocore.session.get_session()
    return {
        xform_name(operation): f"{service}:{operation}"
        for service in SERVICES
        for operation in session.get_service_model(service).operation_names
    }


def find_calls(source: str) -> set[str]:
    """Return the AWS calls in a source: methods (`client.run_instances`) and names for paginators."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        name = node.attr if isinstance(node, ast.Attribute) else node.value if isinstance(node, ast.Constant) else None
        if isinstance(name, str) and name in operations():
            found.add(operations()[name])
    return found


def calls_of_the_workers() -> set[str]:
    files = (ROOT / "workers").rglob("*.py")
    return set().union(*(find_calls(file.read_text(encoding="utf-8")) for file in files))


def read_policy(name: str) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((IAM / f"{name}.json").read_text(encoding="utf-8"))
    return document


def statements(name: str) -> list[dict[str, Any]]:
    policy = read_policy(name)
    assert policy["Version"] == "2012-10-17"
    found: list[dict[str, Any]] = policy["Statement"]
    return found


def as_list(value: str | list[str]) -> list[str]:
    return [value] if isinstance(value, str) else value


def actions_of(name: str) -> set[str]:
    return {action for statement in statements(name) for action in as_list(statement["Action"])}


def test_the_policies_permit_what_is_called_and_nothing_else() -> None:
    called = calls_of_the_workers()
    needed = set().union(*(ACTIONS.get(call, {call}) for call in called))
    permitted = set().union(*(actions_of(name) for name in POLICIES))
    assert needed - permitted == set()
    assert permitted - needed == set()


def test_calls_are_found_however_they_are_written() -> None:
    """Otherwise the comparison could pass without a call."""
    assert find_calls("self._client.get_paginator('describe_instances')") == {"ec2:DescribeInstances"}
    assert find_calls("call = a.create_fleet if x else a.run_instances") == {"ec2:CreateFleet", "ec2:RunInstances"}
    assert find_calls("client.describe(machines)") == set()
    assert {"ec2:RunInstances", "ec2:CreateFleet", "ec2:TerminateInstances"} <= calls_of_the_workers()


def parse_module(name: str) -> ast.Module:
    return ast.parse((ROOT / f"{name.replace('.', '/')}.py").read_text(encoding="utf-8"))


def fleet_methods(module: str, name: str) -> set[str]:
    """Return the methods of the Fleet port that a function or class of a module calls, itself or by others of the
    module.
    """
    definitions = {
        node.name: node for node in parse_module(module).body if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }
    open_names, seen, methods = [name], set[str](), set[str]()
    while open_names:
        if (name := open_names.pop()) in seen or name not in definitions:
            continue
        seen.add(name)
        for node in ast.walk(definitions[name]):
            if isinstance(node, ast.Name):
                open_names.append(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Attribute):
                methods |= {node.attr} if node.value.attr == "fleet" else set()
    return methods


def imported_operations(queue: str) -> set[tuple[str, str]]:
    """Return what the tasks of a queue use of scheduler.operations, in any of its packages, as (module, name)."""
    if queue in {"reservations", "ticks"}:
        nodes = ast.walk(parse_module(f"tasks.{queue}"))
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
        found = {(str(node.module), each.name) for node in imports for each in node.names}
    else:
        found = {
            (used.__module__, used.__name__)
            for task in vars(tasks.machines).values()
            if str(getattr(task, "name", "")).startswith(f"leasehold.{queue}.")
            for used in map(vars(tasks.machines).get, task.run.__code__.co_names)
            if used is not None and hasattr(used, "__module__") and hasattr(used, "__name__")
        }
    return {(module, name) for module, name in found if module.startswith("scheduler.operations.")}


def roles_of_the_chapter() -> dict[str, set[str]]:
    rows = re.findall(r"^\| (\w+) \| `leasehold-\w+` \| ([^|]+) \|", CHAPTER, re.MULTILINE)
    return {worker: set(re.findall(r"`(\w+)`", policies)) for worker, policies in rows}


@pytest.mark.parametrize("worker", ["launch", "health", "terminate"])
def test_each_workers_role_has_the_policies_that_its_operations_need(worker: str) -> None:
    used = set().union(*(fleet_methods(*used) for used in imported_operations(worker)))
    needed = {FLEET_POLICIES[method] for method in used - {"freeze"}}
    assert needed
    assert needed <= roles_of_the_chapter()[worker]


def test_only_workers_that_call_aws_have_a_role() -> None:
    assert set(roles_of_the_chapter()) == {"launch", "health", "terminate"}
    for queue in ("reservations", "ticks"):
        assert not any(fleet_methods(*used) for used in imported_operations(queue))


def find_kinds(statement: dict[str, Any]) -> set[str]:
    """Return the kinds of resources: `instance` of `arn:aws:ec2:…:instance/*`."""
    return {resource.rpartition(":")[2].partition("/")[0] for resource in as_list(statement["Resource"])}


def with_action(name: str, action: str) -> Iterator[dict[str, Any]]:
    return (each for each in statements(name) if action in as_list(each["Action"]))


@pytest.mark.parametrize("action", ["ec2:RunInstances", "ec2:CreateFleet"])
def test_new_resources_must_have_the_clusters_tag(action: str) -> None:
    for statement in with_action("launch", action):
        if find_kinds(statement) & {"instance", "volume", "fleet", "*"}:
            assert statement["Condition"] == {"StringEquals": {f"aws:RequestTag/{TAG_CLUSTER}": "leasehold"}}
    tagged = set().union(*(find_kinds(each) for each in with_action("launch", action) if "Condition" in each))
    assert {"instance", "volume"} <= tagged


def test_existing_instances_may_only_get_the_tags_of_identity_and_life_and_only_with_the_clusters_tag() -> None:
    (statement,) = statements("claim")
    assert actions_of("claim") == {"ec2:CreateTags"}
    assert find_kinds(statement) == {"instance"}
    assert statement["Condition"] == {
        "StringEquals": {f"aws:ResourceTag/{TAG_CLUSTER}": "leasehold"},
        "ForAllValues:StringEquals": {"aws:TagKeys": [TAG_CLUSTER_ID, TAG_ALIVE]},
    }


def test_tags_are_set_only_by_calls_that_create_the_resource() -> None:
    (statement,) = with_action("launch", "ec2:CreateTags")
    assert statement["Condition"] == {
        "StringEquals": {"ec2:CreateAction": ["RunInstances", "CreateFleet", "CreateLaunchTemplate"]}
    }
    assert find_kinds(statement) == {"instance", "volume", "fleet", "launch-template", "spot-instances-request"}


def test_only_the_machines_role_is_handed_on_and_only_to_ec2() -> None:
    (statement,) = with_action("launch", "iam:PassRole")
    assert statement["Resource"].endswith(":role/leasehold-machine")
    assert statement["Condition"] == {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}


def test_only_instances_with_the_clusters_tag_are_terminated() -> None:
    (statement,) = with_action("terminate", "ec2:TerminateInstances")
    assert statement["Condition"] == {"StringEquals": {f"aws:ResourceTag/{TAG_CLUSTER}": "leasehold"}}
    assert find_kinds(statement) == {"instance"}


@pytest.mark.parametrize(
    ("name", "actions"),
    [("start", {"ec2:StartInstances", "ec2:ModifyInstanceAttribute"}), ("stop", {"ec2:StopInstances"})],
)
def test_only_instances_with_the_clusters_tag_are_started_and_stopped(name: str, actions: set[str]) -> None:
    (statement,) = statements(name)
    assert actions_of(name) == actions
    assert statement["Condition"] == {"StringEquals": {f"aws:ResourceTag/{TAG_CLUSTER}": "leasehold"}}
    assert find_kinds(statement) == {"instance"}


def test_each_ability_is_a_policy_of_its_own() -> None:
    together = [
        (name, other)
        for name in POLICIES
        for other in POLICIES
        if name < other and (actions_of(name) & actions_of(other)) - {"ec2:CreateTags"}
    ]
    assert together == []


@pytest.mark.parametrize("name", POLICIES)
def test_nothing_is_permitted_by_a_star(name: str) -> None:
    """Except describing, which EC2 permits only for a region, and the price list, which is public."""
    for statement in statements(name):
        assert statement["Effect"] == "Allow"
        actions = as_list(statement["Action"])
        assert not [action for action in actions if "*" in action]
        if "*" in as_list(statement["Resource"]):
            assert name in {"look", "images", "prices"} or actions == ["ec2:DescribeSubnets"]
            limit = None if name == "prices" else {"StringEquals": {"aws:RequestedRegion": "us-east-1"}}
            assert statement.get("Condition") == limit


def test_a_host_can_become_the_three_roles_and_nothing_else() -> None:
    (statement,) = statements("host")
    assert statement["Action"] == "sts:AssumeRole"
    roles = {resource.rpartition("/")[2] for resource in statement["Resource"]}
    profiles = (ROOT / "compose" / "aws" / "config").read_text(encoding="utf-8")
    assert roles == {"leasehold-launch", "leasehold-look", "leasehold-terminate"}
    assert roles == set(re.findall(r"^role_arn = .*:role/(\S+)$", profiles, re.MULTILINE))
    assert roles == set(re.findall(r"^\[profile (\S+)\]$", profiles, re.MULTILINE))
    (trust,) = statements("trust-host")
    assert trust["Principal"]["AWS"].endswith(":role/leasehold-host")


def test_the_queue_accepts_events_about_machines_from_our_rules_only() -> None:
    """The emulator makes the same rules."""
    assert {f"leasehold-{name}s": read_policy(f"{name}-rule") for name in ("interruption", "state")} | {
        "leasehold-health": read_policy("health-rule")
    } == EMULATED
    (statement,) = statements("interruption-queue")
    assert (statement["Principal"], statement["Action"]) == ({"Service": "events.amazonaws.com"}, "sqs:SendMessage")
    senders = statement["Condition"]["ArnEquals"]["aws:SourceArn"]
    assert {sender.rpartition("/")[2] for sender in senders} == EMULATED.keys()
    (ours,) = statements("interruptions")
    assert ours["Resource"] == statement["Resource"]


def test_every_file_is_used_in_the_chapter_and_every_file_that_it_names_is_there() -> None:
    files = {file.stem for file in IAM.glob("*.json")}
    named = set(re.findall(r"(?:iam|policies)/([a-z0-9-]+)\.json", CHAPTER)) - {"attributes"}
    roles = {f"trust-{kind}" for kind in re.findall(r"^role \w+ (\w+);", CHAPTER, re.MULTILINE)} | {"trust-host"}
    assert named | roles | {"terminate"} == files


def test_the_rules_of_the_chapter_can_be_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEASEHOLD_CONFIG", raising=False)
    blocks = [
        block
        for block in re.findall(r"```toml\n(.*?)```", CHAPTER, re.DOTALL)
        if set(tomllib.loads(block)) & set(Rules.model_fields)
    ]
    assert blocks
    for block in blocks:
        file = tmp_path / "leasehold.toml"
        file.write_text(block, encoding="utf-8")
        assert check_configuration(file) == []
