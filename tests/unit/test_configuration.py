"""leasehold.toml as a whole: what is refused, what is warned of, and the template with every key."""
# ruff: noqa: E501  an expected line of output is one line here

import os
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.pools import Pool
from scheduler.model.rules import Scheduler, read_rules
from scheduler.model.validation import InvalidInputError
from scheduler.simulation.cloud_documents import CloudDocument
from workers.config_template import format_tables, list_keys, list_sections, write_template
from workers.configuration import (
    check_configuration,
    find_configuration,
    find_warnings,
    load_settings,
    read_configuration,
)
from workers.settings import Settings

A_PERIOD = 'a duration > 0 (seconds, or like "30s", "15m", "1h")'
DOCUMENTATION = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable of the product and an empty working folder."""
    for name in [name for name in os.environ if name.startswith("LEASEHOLD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def faults_of(text: str | bytes) -> list[str]:
    Path("leasehold.toml").write_bytes(text.encode() if isinstance(text, str) else text)
    return [str(fault) for fault in check_configuration()]


def test_the_environment_overrides_the_file_and_the_file_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("leasehold.toml").write_text("[ticks]\ninterval = 3\nlock_seconds = 20\n", encoding="utf-8")
    monkeypatch.setenv("LEASEHOLD_TICKS__INTERVAL", "4")
    ticks = read_configuration().settings.ticks
    assert (ticks.interval, ticks.lock_seconds, ticks.kick_seconds) == (4, 20, 2)
    assert load_settings() == read_configuration().settings


def test_without_a_file_all_is_default_and_there_are_no_pools() -> None:
    found = read_configuration()
    assert (found.path, found.settings, found.rules_document) == (None, Settings(), {})
    assert (found.rules, found.cloud) == (read_rules({}), CloudDocument())


def test_the_file_is_the_option_else_the_variable_else_the_one_in_the_working_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert find_configuration() is None
    Path("leasehold.toml").touch()
    assert find_configuration() == Path("leasehold.toml")
    monkeypatch.setenv("LEASEHOLD_CONFIG", "other.toml")
    assert find_configuration() == Path("other.toml")
    assert find_configuration(Path("third.toml")) == Path("third.toml")


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        # invalid TOML, and its position
        ("[ticks]\ninterval = \n", ['leasehold.toml, line 2, column 12: expected valid TOML, got "Invalid value"']),
        (
            "[ticks",
            [
                "leasehold.toml, end of document: expected valid TOML, got \"Expected ']' at the end of a table declaration\""
            ],
        ),
        ("a = 1\na = 2", ['leasehold.toml, end of document: expected valid TOML, got "Cannot overwrite a value"']),
        (b"a = \xff", ['leasehold.toml: expected a text in UTF-8, got "byte 4"']),
        # unknown tables of every kind
        ("[poools.linux]", ['poools: expected a known key (did you mean "pools"?), got "poools"']),
        ("[clout]", ['clout: expected a known key (did you mean "cloud"?), got "clout"']),
        ('"two\\nlines" = 1', ['two\\nlines: expected a known key, got "two\\nlines"']),
        # every part is checked, whatever is wrong in the others
        (
            "x = 1\n[scheduler]\nqueue = 'random'\n[ticks]\ninterval = -1\n[cloud]\nboot = -1\n",
            [
                'x: expected a known key, got "x"',
                f"ticks.interval: expected {A_PERIOD}, got -1",
                'scheduler.queue: expected one of fifo, priority, size, dynsize, quota, got "random"',
                'cloud.boot: expected a duration >= 0 (seconds, or like "30s", "15m", "1h"), got -1',
            ],
        ),
        (
            "[pools.linux]\nsystem = 'x'\nmax_slots = 2\nmin_slots = 3",
            ["pools.linux.min_slots: expected at most max_slots (2), got 3"],
        ),
        ("pools = 1", ["pools: expected a table, got 1"]),
        ("[pools]\nlinux = 1", ["pools.linux: expected a table, got 1"]),
        ("cloud = 1", ["cloud: expected a table, got 1"]),
        # settings of a machine
        (
            "[pools.a]\nsystem = 'x'\nmax_slots = 1\n[pools.a.ec2]\nimage = 'ami-1'\nmetadata_hop_limit = 65\naddress = 'ipv4'",
            [
                "pools.a.ec2.metadata_hop_limit: expected a whole number from 1 to 64, got 65",
                'pools.a.ec2.address: expected one of private, public, ipv6, dns (did you mean "ipv6"?), got "ipv4"',
            ],
        ),
        (
            "[pools.a]\nsystem = 'x'\nmax_slots = 1\nec2 = { launch_template = 'x', launch_template_version = 1, volume_gib = 9 }",
            [
                "pools.a.ec2.root_device: expected `root_device` beside `volume_gib` and a launch_template, whose image may have any, got nothing"
            ],
        ),
        # an account cannot contain a date
        ("[accounts.ci]\nsince = 2020-01-01", ['accounts.ci.since: expected a known key, got "since"']),
        # user data: the file, and its content
        (
            "[pools.a]\nsystem = 'x'\nmax_slots = 1\nec2.user_data_file = 'none.sh'",
            ['pools.a.ec2.user_data_file: expected a file that can be read, got "none.sh": No such file or directory'],
        ),
        (
            "[pools.a]\nsystem = 'x'\nmax_slots = 1\nec2.user_data_file = '.'",
            ['pools.a.ec2.user_data_file: expected a file that can be read, got ".": Is a directory'],
        ),
        (
            "[pools.a]\nsystem = 'x'\nmax_slots = 1\nec2.user_data_file = \"a\\u0000\"",
            [
                'pools.a.ec2.user_data_file: expected the name of a text file in UTF-8, got "a\\u0000"',
                'pools.a.ec2.user_data_file: expected a text of whole characters, without NUL, got "a\\u0000"',
            ],
        ),
        (
            "[pools.a]\nsystem = 'x'\nmax_slots = 1\nec2.user_data_file = 'a'\nec2.user_data = 'b'",
            ["pools.a.ec2.user_data: expected no user_data beside user_data_file, got both"],
        ),
        (
            "[pools.a]\nsystem = 'x'\nmax_slots = 1\nec2.user_data = '$slott'",
            [
                'pools.a.ec2.user_data: expected only the variables cluster, pool, system, slot, launch_id, offering, market, region, boot_seconds, silence_seconds, cluster_id, join_url, join_token, got "${slott}"'
            ],
        ),
    ],
)
def test_a_file_is_checked_as_a_whole(text: str | bytes, lines: list[str]) -> None:
    assert faults_of(text) == lines


def test_a_named_file_that_is_missing_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    line = 'other.toml: expected a file that can be read, got "No such file or directory"'
    assert [str(fault) for fault in check_configuration(Path("other.toml"))] == [line]
    monkeypatch.setenv("LEASEHOLD_CONFIG", "other.toml")
    with pytest.raises(InvalidInputError, match=re.escape(line)):
        load_settings()


def test_a_file_that_is_a_link_to_nothing_is_not_taken_for_no_file() -> None:
    Path("leasehold.toml").symlink_to("nowhere")
    with pytest.raises(InvalidInputError, match=r"leasehold\.toml: expected a file that can be read"):
        read_configuration()


def test_a_file_that_may_not_be_read_names_the_uid_that_has_to_read_it(tmp_path: Path) -> None:
    file = tmp_path / "leasehold.toml"
    file.touch(mode=0o000)
    uid = os.geteuid()
    stranger = 10001 if uid == 0 else uid
    # root may read any file.
    os.seteuid(stranger)
    try:
        faults = [str(fault) for fault in check_configuration(file)]
    finally:
        os.seteuid(uid)
    assert faults == [f'{file}: expected a file that can be read, got "Permission denied (as uid {stranger})"']


def test_a_process_reads_its_settings_past_broken_rules_but_not_past_an_unknown_table() -> None:
    Path("leasehold.toml").write_text("[scheduler]\nqueue = 1\n[log]\nlevel = 'debug'", encoding="utf-8")
    assert load_settings().log.level == "debug"
    Path("leasehold.toml").write_text("[schedulerr]", encoding="utf-8")
    with pytest.raises(InvalidInputError, match="did you mean"):
        load_settings()


def test_user_data_is_read_relative_to_the_file_that_names_it() -> None:
    folder = Path("etc")
    folder.mkdir()
    (folder / "boot.sh").write_text("at ${slot}\n", encoding="utf-8")
    text = "[pools.a]\nsystem = 'x'\nmax_slots = 1\nec2.user_data_file = 'boot.sh'\n"
    (folder / "leasehold.toml").write_text(text, encoding="utf-8")
    found = read_configuration(folder / "leasehold.toml")
    assert found.rules.pools["a"].ec2.user_data == "at ${slot}\n"
    assert found.rules_document["pools"]["a"]["ec2"]["user_data"] == "at ${slot}\n"
    assert read_rules(found.rules_document) == found.rules


def test_the_template_contains_the_defaults_and_one_pool() -> None:
    path = Path("leasehold.toml")
    assert write_template(path) == path.read_text(encoding="utf-8")
    found = read_configuration()
    assert (found.settings, found.cloud) == (Settings(), CloudDocument())
    assert (found.rules.scheduler, found.rules.accounts) == (Scheduler(), {})
    assert list(found.rules.pools) == ["linux"]
    linux = found.rules.pools["linux"]
    assert (linux.system, linux.ec2.image is not None, len(linux.offerings)) == ("x86_64-linux", True, 2)
    chosen = {"system", "max_slots", "resources", "default_resources", "offerings", "ec2"}
    assert linux.model_dump(exclude=chosen) == Pool(system="x", max_slots=1).model_dump(exclude=chosen)
    assert linux.ec2.model_dump(exclude={"image"}) == Pool(system="x", max_slots=1).ec2.model_dump(exclude={"image"})
    assert find_warnings(found) == []


def test_the_minimal_file_has_one_pool_in_about_20_lines() -> None:
    path = Path("leasehold.toml")
    text = write_template(path, is_minimal=True)
    assert text == path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 25
    assert max(map(len, text.splitlines())) <= 100
    for shown in (text, re.sub(r"(?m)^#(?=[a-z_]+ = |\[)", "", text)):
        path.write_text(shown, encoding="utf-8")
        assert check_configuration() == []
        found = read_configuration()
        assert (list(found.rules.pools), find_warnings(found)) == (["linux"], [])


def test_the_commented_file_holds_every_key_and_its_examples_are_good() -> None:
    text = write_template()
    # Of two keys that stand for the same thing, one is enough.
    live = re.sub(r"(?m)^#(?=[a-z_]+ = |\[)(?!user_data_file|duration|type = .*\n# Availability)", "", text)
    Path("leasehold.toml").write_text(live, encoding="utf-8")
    assert check_configuration() == []
    document = tomllib.loads(live)
    for section in list_sections("linux", "ci", "all"):
        table: Any = document
        for part in section.path.split(".") if section.path else ():
            table = (table[-1] if isinstance(table, list) else table)[part]
        names = {key.name for key in list_keys(section)} - {"user_data_file", "accounts", "duration", "type"}
        assert names <= set(table[0] if section.is_list else table), section.path


def test_a_line_of_the_template_has_at_most_100_characters() -> None:
    assert [line for line in write_template().splitlines() if len(line) > 100] == []


def test_an_existing_file_is_not_overwritten() -> None:
    path = Path("leasehold.toml")
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(InvalidInputError, match=r'leasehold\.toml: expected no file there yet, got "a file"'):
        write_template(path)
    assert path.read_text(encoding="utf-8") == "mine"
    with pytest.raises(InvalidInputError, match="expected a file that can be written"):
        write_template(Path("nowhere") / "leasehold.toml")


def test_the_page_about_configuration_lists_every_key() -> None:
    """When this fails: put what `workers.config_template.format_tables()` returns between the two marks."""
    page = DOCUMENTATION.read_text(encoding="utf-8")
    assert page.partition("<!-- keys -->\n\n")[2].partition("\n<!-- end of keys -->")[0] == format_tables()


def test_every_key_has_a_line_of_documentation() -> None:
    assert [key.path for section in list_sections() for key in list_keys(section) if not key.meaning] == []


@pytest.mark.parametrize(
    ("text", "warnings"),
    [
        ("", ["pools: expected at least one pool, got none"]),
        ("target_warm_slots = 3", ["pools.a.target_warm_slots: expected at most max_slots (2), got 3"]),
        ("ec2 = {}", ["pools.a.ec2.image: expected an image or a launch_template (a launch needs one), got neither"]),
        (
            "ec2 = { launch_template = 'x', launch_template_version = 1, security_groups = ['sg-1'] }",
            ["pools.a.ec2.security_groups: expected no security groups beside a launch_template, which names its own, got 1 of them"],
        ),
        (
            "provider = 'static'\nmin_slots = 1\nofferings = [{ name = 'x' }]",
            [
                "pools.a.min_slots: expected nothing in a static pool (hosts register themselves), got 1",
                "pools.a.offerings: expected nothing in a static pool (hosts register themselves), got 1 of them",
            ],
        ),
        ("probe.port = 80", ["pools.a.probe.port: expected a probe of kind tcp or http beside a port, got kind none"]),
        ("[metrics]\nhost = '10.0.0.1'", ['metrics.host: expected a loopback address (there is no password), got "10.0.0.1"']),
    ],
)  # fmt: skip
def test_a_likely_mistake_is_warned_of(text: str, warnings: list[str]) -> None:
    image = "" if "ec2" in text or "static" in text else "ec2.image = 'ami-1'\n"
    pool = f"[pools.a]\nsystem = 'x'\nmax_slots = 2\n{image}{text}" if text else ""
    Path("leasehold.toml").write_text(pool, encoding="utf-8")
    assert [str(warning) for warning in find_warnings(read_configuration())] == warnings


TWO_OFFERINGS = "{ name = 'x', resources = { cpus = 8 } }, { name = 'y', resources = { cpus = 2, gpus = 1 } }"
OUR_TAG = '"leasehold:pool"'


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        (
            "resources.cpus = 4\ndefault_resources = { cpus = 8, gpus = 1 }",
            [
                "pools.a.default_resources.cpus: expected at most 4 (no slot of the pool has more), got 8",
                "pools.a.default_resources.gpus: expected one of cpus (no slot of the pool has more), got 1",
            ],
        ),
        # each offering has enough of one, none of both
        (
            f"default_resources = {{ cpus = 4, gpus = 1 }}\nofferings = [{TWO_OFFERINGS}]",
            [
                "pools.a.default_resources: expected amounts that fit together into a slot of one offering, got cpus 4, gpus 1"
            ],
        ),
        ("min_slots = 3", ["pools.a.min_slots: expected at most max_slots (2), got 3"]),
        (
            "min_slots = 2\n[scheduler]\nmax_slots = 1",
            ["scheduler.max_slots: expected at least the pools' min_slots (2), got 1"],
        ),
        (
            "min_slots = 2\n[scheduler.system.x]\nmax_slots = 1",
            ["scheduler.system.x.max_slots: expected at least the pools' min_slots (2), got 1"],
        ),
        ("min_slots = 2\n[scheduler.system.y]\nmax_slots = 1", []),
        (
            "[pools.a.ec2.tags]\n'leasehold:pool' = 'b'\n[pools.b]\nsystem = 'x'\nmax_slots = 1",
            ["pools.a.ec2.tags.leasehold:pool: expected a tag that does not begin with leasehold:, got " + OUR_TAG],
        ),
        # hosts report their resources themselves
        ("provider = 'static'\nresources.cpus = 4\ndefault_resources = { cpus = 8 }", []),
    ],
)
def test_a_contradiction_is_refused(text: str, faults: list[str]) -> None:
    Path("leasehold.toml").write_text(f"[pools.a]\nsystem = 'x'\nmax_slots = 2\n{text}", encoding="utf-8")
    assert [str(fault) for fault in check_configuration()] == faults


# No deadline: how long an example takes depends on the machine.
@given(
    st.one_of(st.binary(max_size=60), st.text("[]{}=.,'\"\\#\n 01ae-+:ticksintervalpools", max_size=80).map(str.encode))
)
def test_junk_in_the_file_is_refused_with_our_messages_or_read(text: bytes) -> None:
    lines = faults_of(text)
    assert len("\n".join(lines).encode().split(b"\n")) == max(len(lines), 1)
