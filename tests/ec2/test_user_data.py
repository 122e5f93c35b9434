"""User data: the variables of a template, which the page lists as well."""

import re
from pathlib import Path

import pytest

from scheduler.model.validation import InvalidInputError
from scheduler.protocol.join_tokens import TOKEN_PLACE
from tests.ec2.conftest import IMAGE, an_order, some_rules
from workers.ec2.user_data import MOST_BYTES, VARIABLES, example_template, find_template, render_user_data, variables_of

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "user-data.md"
VALUES = {name: f"<{name}>" for name in VARIABLES}


def test_a_launch_gives_every_variable_its_value() -> None:
    pool = some_rules().pools["linux"]
    assert variables_of(an_order(cluster_id="c-1"), pool, "blue", "us-east-1", "https://x") == {
        "cluster": "blue",
        "pool": "linux",
        "system": "x86_64-linux",
        "slot": "linux-1",
        "launch_id": "launch-1",
        "offering": "c5.large",
        "market": "spot",
        "region": "us-east-1",
        "boot_seconds": "780",
        "silence_seconds": "1800",
        "cluster_id": "c-1",
        "join_url": "https://x",
        "join_token": "",
    }
    assert variables_of(an_order(), pool, "blue", "us-east-1").keys() == VARIABLES.keys()


def test_a_pool_without_offerings_leaves_the_offering_empty() -> None:
    values = variables_of(an_order(offering=None), some_rules(offerings=[]).pools["linux"], "blue", "x")
    assert (values["offering"], values["market"]) == ("", "spot")


def test_variables_are_replaced_and_dollars_are_kept() -> None:
    assert render_user_data("$slot of ${cluster} for $$5", VALUES) == "<slot> of <cluster> for $5"


@pytest.mark.parametrize(
    ("template", "line"),
    [
        ("${slto}", r"here: expected only the variables cluster, pool, .*, got \"\$\{slto\}\""),
        ("echo $HOME", r"here: expected only the variables .*, got \"\$\{HOME\}\""),
        ("echo $(date)", r"here: expected `\$\$` for a dollar sign .*line 1, col 6"),
        ("é" * (MOST_BYTES // 2) + "x", rf"here: expected at most {MOST_BYTES} bytes .*, got {MOST_BYTES + 1}"),
    ],
)
def test_a_template_that_cannot_be_rendered_is_refused_by_name(template: str, line: str) -> None:
    with pytest.raises(InvalidInputError, match=line):
        render_user_data(template, VALUES, "here")


def test_the_shipped_example_renders_with_every_variable_that_is_the_same_for_all_machines_of_a_batch() -> None:
    rendered = render_user_data(example_template(), VALUES)
    assert rendered.startswith("#!/bin/sh\n")
    missing = [name for name, value in VALUES.items() if value not in rendered]
    # The last three are for machines with agents.
    assert missing == ["slot", "launch_id", "offering", "cluster_id", "join_url", "join_token"]


def test_a_pool_with_agents_and_a_profile_and_without_user_data_gets_a_script_that_joins_by_a_proof() -> None:
    pool = some_rules({"image": IMAGE, "instance_profile": "machine"}, agent=True).pools["linux"]
    template = find_template(pool)
    assert template is not None
    values = variables_of(an_order(cluster_id="c-1"), pool, "blue", "eu-west-1", "https://x")
    assert render_user_data(template, values).splitlines() == [
        "#!/bin/sh",
        'exec leasehold host join "https://x" --cluster "c-1" --region "eu-west-1"',
    ]
    assert not pool.ec2.names_slot
    assert values["join_token"] == ""
    assert find_template(some_rules().pools["linux"]) is None


def test_a_pool_with_agents_and_without_a_profile_and_user_data_gets_a_script_that_joins_by_the_token() -> None:
    pool = some_rules(agent=True).pools["linux"]
    template = find_template(pool)
    assert template is not None
    values = variables_of(an_order(cluster_id="c-1"), pool, "blue", "eu-west-1", "https://x")
    assert render_user_data(template, values).splitlines() == [
        "#!/bin/sh",
        f'export LEASEHOLD_JOIN_TOKEN="{TOKEN_PLACE}"',
        'exec leasehold host join "https://x" --cluster "c-1"',
    ]
    # The launches stay in bulk.
    assert not pool.ec2.names_slot


def test_the_page_lists_the_variables_as_the_code_has_them() -> None:
    rows = re.findall(r"^\| `\$\{(\w+)\}` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert dict(rows) == dict(VARIABLES)
