"""Scripts for the EC2 emulator: what happens to EC2 in the course of a day, step by step.

A script has a clock of its own, which may run faster than real time: a step is due at its time divided by the speed.
All other times (boots, deadlines of interruptions) are those of the settings, in real seconds.
"""

import math
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends
from moto.ssm.models import ssm_backends

from leasehold_emulator.background_events import LONG_BEFORE, RETIREMENT, BackgroundEvents
from leasehold_emulator.control import Control
from leasehold_emulator.images import find_root_device
from leasehold_emulator.instances import EmulatedInstance, each_instance
from leasehold_emulator.settings import EmulatorSettings, Share
from scheduler.model.input_texts import parse_json, parse_toml
from scheduler.model.validation import (
    Amount,
    Count,
    Document,
    Fault,
    Name,
    Positive,
    Seconds,
    Text,
    conflicts,
    fault,
    read_document,
)
from scheduler.protocol.input_files import read_input_text

SETTINGS: Final = frozenset(EmulatorSettings.model_fields)


class Chosen(Document):
    """The instances that a step concerns: all instances that are alive and have this type, zone and market. With
    `share` or `count` it is a part of these instances, which is chosen at random.
    """

    share: Share | None = None
    """Share of the matching instances that the step concerns, from 0 to 1. Their number is rounded up."""
    count: Positive | None = None
    """Number of the matching instances that the step concerns."""
    type: Name | None = None
    zone: Name | None = None
    market: Literal["spot", "on-demand"] | None = None
    deadline: Seconds | None = None
    """Only for `interrupt` and `maintain`: real seconds from the notice to the end of the instance (`interrupt`), or to
    the begin of the announced change, a retirement (`maintain`). Default: the setting `interruption_deadline` for
    `interrupt`, and 14 days (LONG_BEFORE) for `maintain`.
    """

    def check_fields(self) -> None:
        """Raise an error if both `share` and `count` are set, because each of them names the number of instances."""
        if self.share is not None and self.count is not None:
            raise conflicts([Fault("count", "no count beside share", str(self.count))])

    def matches(self, instance: EmulatedInstance) -> bool:
        """Return whether an instance has the type, zone and market of this choice. A field that is None matches every
        instance.
        """
        life = instance.life
        return self.type in {None, life.type} and self.zone in {None, life.zone} and self.market in {None, life.market}


class NewImage(Document):
    """A machine image that a step registers. `parameter`: the SSM parameter whose value is the id of this image from
    then on; None: no parameter.
    """

    name: Name
    parameter: Text | None = None


class Step(Document):
    """What happens at one time of a script. The parts of a step happen in the order of these fields."""

    at: Seconds
    """Time of the step by the clock of the script, in seconds from the begin of the script."""
    text: Text = ""
    """What the step means: a text for the log."""
    clear: tuple[Name, ...] = ()
    """Names of settings that get their default values again."""
    settings: EmulatorSettings | None = None
    """The settings that the step changes; all other settings stay."""
    image: NewImage | None = None
    rebalance: Chosen | None = None
    """Spot instances that get a rebalance recommendation."""
    maintain: Chosen | None = None
    """Instances that AWS Health announces to retire."""
    interrupt: Chosen | None = None
    """Spot instances that EC2 interrupts: each gets an interruption notice and ends later."""
    lose: Chosen | None = None
    """Instances that end at once, without a notice."""

    def check_fields(self) -> None:
        """Raise an error for an unknown setting in `clear`, and for a `deadline` in `rebalance` or `lose`, which have
        no deadline.
        """
        for index, name in enumerate(self.clear):
            if name not in SETTINGS:
                raise conflicts([Fault(f"clear[{index}]", "the name of a setting", f'"{name}"')])
        for key in ("rebalance", "lose"):
            chosen: Chosen | None = getattr(self, key)
            if chosen is not None and chosen.deadline is not None:
                raise conflicts([Fault(f"{key}.deadline", "nothing", f"{chosen.deadline:g}")])


class Script(Document):
    """A script for the EC2 emulator. Each step happens once, in the order of the steps' times."""

    name: Text = ""
    speed: Amount = 1.0
    """Seconds of the script that pass in one second."""
    settings: EmulatorSettings | None = None
    """The settings that change at the begin of the script; all other settings stay."""
    seed: Count = 0
    """Seed of the random choice of instances."""
    steps: tuple[Step, ...]

    def check_fields(self) -> None:
        """Raise an error for a script with the speed 0, because its clock would stand still."""
        if self.speed <= 0:
            raise conflicts([Fault("speed", "a number greater than 0", f"{self.speed:g}")])


class ScriptPlayer:
    """Plays one script: carries its steps out when they are due. Not thread-safe; the middleware uses it under its
    lock.
    """

    def __init__(
        self,
        script: Script,
        control: Control,
        events: BackgroundEvents,
        region: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._script, self._control, self._events, self._region = script, control, events, region
        # Repeatable random numbers are intended; nothing here is secret.
        self._random = random.Random(script.seed)  # noqa: S311
        self._clock, self._began = clock, clock()
        self._played = 0
        self._is_stopped = False
        if script.settings is not None:
            control.lay_over(script.settings)
        self._steps = sorted(script.steps, key=lambda step: step.at)
        for step in self._steps:
            events.plan(step.at / script.speed, partial(self._play, step))

    def stop(self) -> None:
        """Play no further step."""
        self._is_stopped = True

    def show(self) -> dict[str, Any]:
        """Return the state of the script as JSON values. `at`: the time by the clock of the script. `played`: the
        number of played steps. `ended`: whether all steps were played.
        """
        return {
            "name": self._script.name,
            "speed": self._script.speed,
            "at": (self._clock() - self._began) * self._script.speed,
            "steps": [{"at": step.at, "text": step.text} for step in self._steps],
            "played": self._played,
            "ended": self._played == len(self._steps),
        }

    def _play(self, step: Step) -> None:
        if self._is_stopped:
            return
        self._played += 1
        self._events.log_step(self._region, step.text)
        if step.clear:
            default = EmulatorSettings()
            self._control.lay_over(EmulatorSettings(**{name: getattr(default, name) for name in step.clear}))
        if step.settings is not None:
            self._control.lay_over(step.settings)
        if step.image is not None:
            _register(step.image, self._region)
        if step.rebalance is not None:
            self._events.recommend(self._choose(step.rebalance, market="spot"))
        if step.maintain is not None:
            seconds = step.maintain.deadline
            begin = LONG_BEFORE if seconds is None else seconds
            self._events.maintain(self._choose(step.maintain), RETIREMENT, begin)
        if step.interrupt is not None:
            self._events.interrupt(self._choose(step.interrupt, market="spot"), step.interrupt.deadline)
        if step.lose is not None:
            self._events.lose(self._choose(step.lose))

    def _choose(self, chosen: Chosen, market: str | None = None) -> list[str]:
        """Return the ids of the instances that a step concerns. `market`: the only market whose instances this kind of
        step can concern; None: both markets.
        """
        found = [
            instance.id
            for _, instance in each_instance()
            if isinstance(instance, EmulatedInstance)
            and not instance.is_ending
            and market in {None, instance.life.market}
            and chosen.matches(instance)
        ]
        count = len(found)
        if chosen.share is not None:
            count = math.ceil(chosen.share * len(found))
        elif chosen.count is not None:
            count = min(chosen.count, len(found))
        return self._random.sample(found, count)


def read_script(document: object) -> Script:
    """Return the script in a parsed document. Raises InvalidInputError if a key is wrong."""
    return read_document(Script, document)


def parse_script(text: str, kind: Literal["TOML", "JSON"], name: str = "script") -> Script:
    """Return the script in a TOML or JSON text. `name`: the name of the text, like that of its file. Raises
    InvalidInputError, which contains the name, if the text is wrong.
    """
    try:
        document: Any = parse_json(text) if kind == "JSON" else parse_toml(text)
    except ValueError as error:
        raise fault(name, f"valid {kind}", str(error)) from None
    if not isinstance(document, dict):
        raise fault(name, "a table", document)
    return read_script(document)


def change_speed(script: Script, speed: str) -> Script:
    """Return a copy of the script with the speed in the text `speed`. Raises InvalidInputError unless the text is a
    number greater than 0.
    """
    try:
        found = float(speed)
    except ValueError:
        found = 0.0
    if not 0 < found < math.inf:
        raise fault("speed", "a number greater than 0", speed)
    return script.model_copy(update={"speed": found})


def load_script(path: Path) -> Script:
    """Return the script in a TOML or (`.json`) JSON file. Raises OSError if the file cannot be read, InvalidInputError
    if its content is wrong.
    """
    return parse_script(read_input_text(path), "JSON" if path.suffix == ".json" else "TOML", path.name)


def _register(image: NewImage, region: str) -> None:
    """Register a machine image in the emulated EC2. If the image names an SSM parameter, set the parameter to the id of
    the image.
    """
    ami = ec2_backends[DEFAULT_ACCOUNT_ID][region].register_image(image.name)
    ami.root_device_name = find_root_device(image.name)
    if image.parameter is not None:
        ssm_backends[DEFAULT_ACCOUNT_ID][region].put_parameter(
            name=image.parameter,
            description="",
            value=ami.id,
            parameter_type="String",
            allowed_pattern="",
            keyid="",
            overwrite=True,
            tags=[],
            data_type="text",
            tier=None,
            policies=None,
        )
