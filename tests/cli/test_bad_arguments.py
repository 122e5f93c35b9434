"""Wrong arguments are found before a request is sent: one line with the fault, and status 2."""

from pathlib import Path

import pytest

from tests.cli.conftest import Run

NAME = "a name (letters, digits and ._:@/+-, at most 200 characters)"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("reserve --system s --cpus two", 'resources.cpus: expected a number >= 0, got "two"'),
        ("reserve --system s --memory -1", "resources.memory_mib: expected a number >= 0, got -1"),
        ("reserve --system s --memory 4X", 'resources.memory_mib: expected a number >= 0, got "4X"'),
        ("reserve --system s --cpus 500M", 'resources.cpus: expected a number >= 0, got "500M"'),
        ("reserve --system s --resource gpus=5m", 'resources.gpus: expected a number >= 0, got "5m"'),
        ("reserve --system s --resource gpus=", 'resources.gpus: expected a number >= 0, got ""'),
        ("reserve --system s --priority -1", "priority: expected a number >= 0, got -1.0"),
        (
            "reserve --system s --ttl long",
            'ttl: expected a duration >= 0 (seconds, or like "30s", "15m", "1h"), got "long"',
        ),
        (
            "reserve --system s --expected-runtime 0",
            'expected_runtime: expected a duration > 0 (seconds, or like "30s", "15m", "1h"), got 0',
        ),
        (
            "run --system s --max-runtime inf -- true",
            'max_runtime: expected a duration > 0 (seconds, or like "30s", "15m", "1h"), got inf',
        ),
        ("reserve --system s --id r!", f'id: expected {NAME}, got "r!"'),
        ("reserve --cpus 2", "system: expected a system or a pool (one of them), got null"),
        ("reserve --system s --pool p", 'system: expected a system or a pool (one of them), got "s"'),
        ("reserve --file bad.json", 'system: expected a system or a pool (one of them), got "s"'),
        ("release r!", f'reservation: expected {NAME}, got "r!"'),
        ("release r1 --token -1", "token: expected a whole number >= 0, got -1"),
        ("renew r1 --token -1", "token: expected a whole number >= 0, got -1"),
        ("surrender r1 --component a!", f'component: expected {NAME}, got "a!"'),
        ("confirm r1 --slot s!", f'slot: expected {NAME}, got "s!"'),
        ("absent r!", f'reservation: expected {NAME}, got "r!"'),
        ("idle s1 --label !=1", f'labels.!: expected {NAME}, got "!"'),
        ("cancel r1 r!", f'reservation: expected {NAME}, got "r!"'),
        ("priority r1 nan", "priority: expected a number >= 0, got nan"),
        ("cordon s1 s!", f'slot: expected {NAME}, got "s!"'),
        ("uncordon s!", f'slot: expected {NAME}, got "s!"'),
        ("drain s! --wait 5", f'slot: expected {NAME}, got "s!"'),
        ("accounts reset a1 a!", f'account: expected {NAME}, got "a!"'),
        ("accounts delete a! --yes", f'account: expected {NAME}, got "a!"'),
    ],
)
def test_values_are_checked_before_a_request_is_sent(words: str, complaint: str, run: Run, tmp_path: Path) -> None:
    """No stack runs, so a request could not be sent."""
    (tmp_path / "bad.json").write_text('{"system": "s", "pool": "p", "request": "q1", "id": null}')
    found = run(*words.split())
    assert (found.status, found.complaints) == (2, [f"leasehold: {complaint}"])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("nonsense",), "No such command 'nonsense'"),
        (("get",), "Missing argument 'RESERVATION'"),
        (("list", "--phase", "gone"), "expected one of pending, leased"),
        (("reserve", "--label", "ssd"), "expected name=value, got 'ssd'"),
        (("drain", "linux-1", "--wait", "soon"), "Invalid value for '--wait'"),
        (("reserve", "--file", "nowhere.json"), "nowhere.json: expected a file that can be read"),
        (("reserve", "--file", "x.json", "--cpus", "1"), "--file: expected no other option of a reservation"),
        (("simulate", "nowhere.json"), "nowhere.json"),
        (("apply", "nowhere.toml"), "nowhere.toml: expected a file that can be read"),
        (("config", "check", "nowhere.toml"), "nowhere.toml: expected a file that can be read"),
    ],
)
def test_bad_usage_is_one_line_and_status_2(words: tuple[str, ...], complaint: str, run: Run) -> None:
    found = run(*words)
    assert found.status == 2
    assert len(found.complaints) == 1
    assert complaint in found.err
    assert found.out == ""
