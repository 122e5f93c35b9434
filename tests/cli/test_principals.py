"""`leasehold principals`: keys are written to private files or printed once; wrong arguments change nothing."""

import json
import stat
from pathlib import Path

import pytest

from scheduler.protocol.signing import read_key_line
from tests.cli.conftest import Run


@pytest.mark.usefixtures("database")
def test_a_principal_is_added_listed_rotated_and_removed(tmp_path: Path, run: Run) -> None:
    file = tmp_path / "ci.key"
    added = run("principals", "add", "ci", "--role", "producer", "--account", "ci", "--key-file", str(file))
    assert (added.status, added.err) == (0, "")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    name, key, cluster = read_key_line(file.read_text(encoding="utf-8"))
    assert (name, bool(cluster)) == ("ci", True)
    listed = json.loads(run("principals", "list", "--json").out)
    assert [(each["name"], each["role"], each["accounts"]) for each in listed] == [
        ("ci", "producer", ["ci"]),
        ("leasehold", "worker", []),
    ]
    assert file.read_text(encoding="utf-8").split(":")[1][:20] not in run("principals", "list").out
    rotated = run("principals", "rotate", "ci", "--key-file", str(file), "--grace", "30m", "--json")
    assert json.loads(rotated.out)["key_file"] == str(file)
    again = read_key_line(file.read_text(encoding="utf-8"))
    assert (again[0], again[2]) == (name, cluster)
    assert again[1] != key
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert run("principals", "remove", "ci").status == 0
    assert [each["name"] for each in json.loads(run("principals", "list", "--json").out)] == ["leasehold"]


@pytest.mark.usefixtures("database")
def test_the_right_to_run_is_given_at_once_or_later_and_withdrawn(run: Run) -> None:
    def list_rights() -> dict[str, list[str]]:
        return {each["name"]: each["rights"] for each in json.loads(run("principals", "list", "--json").out)}

    assert run("principals", "add", "ci", "--role", "producer").status == 0
    assert run("principals", "add", "night", "--role", "producer", "--may", "run").status == 0
    assert list_rights() == {"ci": [], "leasehold": [], "night": ["run"]}
    assert run("principals", "may", "ci", "run").out == "ci may run\n"
    assert run("principals", "may", "night", "run", "--not").out == "night may not run\n"
    assert list_rights() == {"ci": ["run"], "leasehold": [], "night": []}
    assert run("principals", "may", "ci", "fly").status == 2
    assert run("principals", "add", "lab-1", "--role", "host", "--may", "run").status == 2


@pytest.mark.usefixtures("database")
def test_without_a_file_the_key_is_printed_once(run: Run) -> None:
    shown = run("principals", "add", "anna", "--role", "operator").out
    assert read_key_line(shown.splitlines()[-1])[0] == "anna"
    document = json.loads(run("principals", "add", "bob", "--role", "reader", "--json").out)
    assert read_key_line(document["key"])[0] == "bob"
    assert document["key"].partition(":")[2][:20] not in run("principals", "list", "--json").out


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("add", "leasehold", "--role", "reader"), 'name: expected a name that no principal has, got "leasehold"'),
        (("add", "a b", "--role", "reader"), "name: expected a name (letters, digits and ._:@/+-"),
        (("add", "x", "--role", "worker"), "expected one of producer, operator, host, reader, got 'worker'"),
        (("add", "x", "--role", "operator", "--account", "ci"), "accounts: expected no accounts for a role other than"),
        (("add", "x", "--role", "reader", "--key-file", "nowhere/x.key"), "expected a file that can be written"),
        (("add", "x", "--role", "reader", "--key-file", "there.key"), "expected no file there yet, got a file"),
        (("rotate", "leasehold", "--grace", "never"), "expected a duration like 90, 30m or 6h, got 'never'"),
        (("rotate", "leasehold", "--grace", "soon"), "expected a duration like 90, 30m or 6h, got 'soon'"),
        (("remove", "leasehold"), 'name: expected a principal other than that of the workers, got "leasehold"'),
    ],
)
def test_wrong_arguments_are_one_line_and_change_nothing(
    words: tuple[str, ...], line: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.key").write_text("mine", encoding="utf-8")
    before = run("principals", "list", "--json").out
    refused = run("principals", *words)
    assert (refused.status, refused.out) == (2, "")
    assert line in refused.err
    assert refused.err.count("\n") == 1
    assert run("principals", "list", "--json").out == before
    assert Path("there.key").read_text(encoding="utf-8") == "mine"
    assert {each.name for each in tmp_path.glob("*key*")} | {each.name for each in tmp_path.glob(".*key*")} == {
        "there.key"
    }


@pytest.mark.parametrize(
    ("content", "mode", "line"),
    [
        ("anna:c2hvcnQ=", 0o600, "expected one line NAME:KEY@CLUSTER, got a key of fewer than 32 bytes"),
        ("a\nb\n", 0o600, "expected one line NAME:KEY@CLUSTER, got 2 lines"),
        (f"anna:{'A' * 43}", 0o644, "expected a file of mode 0600, got mode 0644"),
        (f"anna:{'A' * 43}", 0o640, "expected a file of mode 0600, got mode 0640"),
        ("A" * 43, 0o600, "expected the principal of the key (NAME:KEY, or access.principal), got no name"),
    ],
)
def test_a_key_file_that_is_not_usable_is_one_line(
    content: str, mode: int, line: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "anna.key"
    file.write_text(content, encoding="utf-8")
    file.chmod(mode)
    monkeypatch.setenv("LEASEHOLD_BROKER__URL", "redis://127.0.0.1:1/0")
    monkeypatch.setenv("LEASEHOLD_ACCESS__KEY_FILE", str(file))
    refused = run("cancel", "r1")
    assert (refused.status, refused.out, refused.err.count("\n")) == (2, "", 1)
    assert line in refused.err
    assert content.partition(":")[2][:20] not in refused.err or not content.partition(":")[2]


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("rotate leasehole", 'leasehold: there is no principal leasehole (did you mean "leasehold"?)'),
        ("remove unknown", "leasehold: there is no principal unknown"),
    ],
)
def test_an_unknown_principal_is_one_line(words: str, line: str, run: Run) -> None:
    found = run("principals", *words.split())
    assert (found.status, found.out, found.complaints) == (1, "", [line])
