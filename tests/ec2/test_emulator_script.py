"""Scripts of the emulator: steps in order, on a clock of their own, by the control API and from a file."""

import os
import sys
import tomllib
import urllib.request
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from leasehold_emulator.__main__ import main
from leasehold_emulator.script import load_script, parse_script

from scheduler.model.validation import InvalidInputError
from testbed.guarding import Guarded
from tests.ec2.conftest import Emulator, Launch
from tests.ec2.test_emulator import eventually
from workers.ec2.fleet import Ec2Fleet

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client

ROOT = Path(__file__).parents[2]
BAD_DAY = ROOT / "examples" / "bad-day.toml"


def play(emulator: Emulator, *steps: dict[str, Any], **script: Any) -> None:
    """Play a script whose hours last milliseconds."""
    status, answer = emulator.ask("POST", "script", {"speed": 1e6, "steps": list(steps), **script})
    assert (status, answer["played"]) == (200, 0)


def await_end(emulator: Emulator) -> None:
    eventually(lambda: bool(emulator.ask("GET", "script")[1]["ended"]))


def settings_of(emulator: Emulator) -> dict[str, Any]:
    found: dict[str, Any] = emulator.ask("GET", "state")[1]["settings"]
    return found


def test_settings_change_at_their_time_and_get_their_defaults_again(emulator: Emulator) -> None:
    emulator.steer(boot_seconds=3)
    play(
        emulator,
        {"at": "10h", "text": "over", "clear": ["capacity", "status_seconds"]},
        {"at": "1h", "text": "begin", "settings": {"capacity": [{"machines": 1}], "status_seconds": 7}},
        settings={"forget_seconds": 17},
    )
    assert settings_of(emulator)["forget_seconds"] == 17
    await_end(emulator)
    found = settings_of(emulator)
    assert (found["boot_seconds"], found["status_seconds"], found["capacity"]) == (3, 0, [])
    steps = [event for event in emulator.events() if event["event"] == "step"]
    assert [each["detail"] for each in steps] == ["begin", "over"]


def test_the_clock_of_a_script_runs_at_its_speed(emulator: Emulator) -> None:
    play(emulator, {"at": "2h", "settings": {"boot_seconds": 1}}, speed=60)
    first = emulator.ask("GET", "script")[1]
    eventually(lambda: emulator.ask("GET", "script")[1]["at"] >= first["at"] + 12)
    found = emulator.ask("GET", "script")[1]
    assert (found["played"], found["ended"], found["steps"]) == (0, False, [{"at": 7200, "text": ""}])


def test_a_share_of_the_machines_that_match_is_interrupted(launch: Launch, emulator: Emulator) -> None:
    machines = {launch(number).id for number in range(7)}
    play(
        emulator,
        {"at": 0, "interrupt": {"share": 0.34, "deadline": 60}, "rebalance": {"zone": "us-east-1z"}},
        {"at": 1, "lose": {"count": 2}},
    )
    await_end(emulator)
    warned = [event["instances"][0] for event in emulator.events() if event["event"] == "warned"]
    assert len(set(warned)) == ceil(0.34 * 7)
    assert set(warned) < machines
    lost = [event["instances"][0] for event in emulator.events() if event["event"] == "lost"]
    assert len(set(lost)) == 2
    assert [event for event in emulator.events() if event["event"] == "rebalance"] == []


def test_the_same_seed_chooses_the_same_machines(fleet: Ec2Fleet, launch: Launch, emulator: Emulator) -> None:
    def choose(seed: int) -> list[int]:
        emulator.ask("POST", "reset")
        order = [launch(number).id for number in range(8)]
        play(emulator, {"at": 0, "lose": {"count": 3}}, seed=seed)
        await_end(emulator)
        return [order.index(each["instances"][0]) for each in emulator.events() if each["event"] == "lost"]

    assert choose(5) == choose(5)
    assert len({tuple(choose(seed)) for seed in range(5)}) > 1


def test_a_new_image_has_a_parameter_and_is_the_newest_of_its_name(emulator: Emulator, client: "EC2Client") -> None:
    play(
        emulator,
        {"at": 0, "image": {"name": "linux-1", "parameter": "/images/linux"}},
        {"at": 1, "image": {"name": "linux-2", "parameter": "/images/linux"}},
    )
    await_end(emulator)
    images = client.describe_images(Filters=[{"Name": "name", "Values": ["linux-*"]}])["Images"]
    assert sorted(image["Name"] for image in images) == ["linux-1", "linux-2"]


def test_another_script_and_a_reset_end_the_present_one(emulator: Emulator) -> None:
    play(emulator, {"at": 0.1, "settings": {"boot_seconds": 5}}, speed=1)
    play(emulator, {"at": 0.2, "text": "the second"}, speed=1)
    await_end(emulator)
    assert [event["detail"] for event in emulator.events()] == ["the second"]
    assert settings_of(emulator)["boot_seconds"] == 0
    emulator.ask("POST", "reset")
    assert emulator.ask("GET", "script")[0] == 404


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("steps = [{}]", "steps[0].at: expected a value, got nothing"),
        ('steps = [{ at = 1, clear = ["capacities"] }]', "steps[0].clear[0]: expected the name of a setting"),
        ("steps = [{ at = 1, settings = { boot = 1 } }]", "steps[0].settings.boot: expected a known key"),
        ("steps = [{ at = 1, lose = { share = 0.5, count = 2 } }]", "steps[0].lose.count: expected no count"),
        ("steps = [{ at = 1, rebalance = { deadline = 2 } }]", "steps[0].rebalance.deadline: expected nothing"),
        ("speed = 0\nsteps = []", "speed: expected a number greater than 0, got 0"),
        ("steps", "script: expected valid TOML"),
    ],
)
def test_a_wrong_script_is_refused_by_name(text: str, message: str, emulator: Emulator) -> None:
    with pytest.raises(InvalidInputError) as caught:
        parse_script(text, "TOML")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("speed", ["0", "-1", "fast", "nan", "inf"])
def test_a_wrong_speed_is_refused_and_plays_nothing(speed: str, emulator: Emulator) -> None:
    status, answer = emulator.ask("POST", f"script?speed={speed}", {"steps": []})
    assert status == 400
    assert answer["error"].startswith("speed: expected a number greater than 0")
    assert emulator.ask("GET", "script")[0] == 404


def test_a_script_in_toml_is_read_over_http(emulator: Emulator) -> None:
    request = urllib.request.Request(  # noqa: S310 - our own loopback
        f"{emulator.url}/_leasehold/script?speed=1e6", BAD_DAY.read_bytes(), {"Content-Type": "application/toml"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own loopback
        assert answer.status == 200
    await_end(emulator)
    assert settings_of(emulator)["capacity"] == []


def test_the_example_has_what_a_bad_day_has() -> None:
    script = load_script(BAD_DAY)
    assert [step.at for step in script.steps] == sorted(step.at for step in script.steps)
    changed = {key for step in script.steps if step.settings for key in step.settings.model_fields_set}
    assert changed == {"capacity", "spot_prices", "throttling", "faults"}
    assert sum(step.interrupt is not None for step in script.steps) == 1
    assert sum(step.image is not None for step in script.steps) == 2


def test_a_script_with_the_emulator(tmp_path: Path) -> None:
    """The emulator that is started with a script plays it; a wrong one is one line, and nothing is served."""
    log = tmp_path / "calls.jsonl"
    program = [sys.executable, "-m", "leasehold_emulator", "--port=0", f"--script={BAD_DAY}", "--speed=1e6"]
    with (tmp_path / "out").open("wb") as out:
        process = Guarded([*program, f"--call-log={log}"], env=dict(os.environ), cwd=ROOT, stdout=out)
        eventually(lambda: log.exists() and "16:00 the day ends" in log.read_text())
        process.terminate()
        assert process.wait(20) == 0


def test_a_wrong_script_file_ends_the_emulator_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "day.toml"
    file.write_text(BAD_DAY.read_text() + "\n[[steps]]\nat = 'never'\n")
    assert main(["--port=0", f"--script={file}"]) == 2
    line = capsys.readouterr().err
    assert line.startswith(
        f"leasehold: steps[{len(tomllib.loads(BAD_DAY.read_text())['steps'])}].at: expected a duration"
    )
    assert main(["--port=0", f"--script={tmp_path / 'none.toml'}"]) == 1
