"""Scenarios: the files that `leasehold simulate` runs. They are read and checked before anything runs."""

import tomllib
from pathlib import Path
from typing import Any

import msgspec

from scheduler.model.json_text import parse_json
from scheduler.model.rules import Rules, read_rules
from scheduler.model.validation import Amount, Document, InvalidInputError, Seconds, Text, fault, read_document
from scheduler.simulation.cloud_documents import CloudDocument, read_simulated_cloud
from scheduler.simulation.initial_state import GivenHold, GivenReservation, GivenSlot
from scheduler.simulation.steps import Step, StepReader


class Scenario(msgspec.Struct, frozen=True):
    """A checked scenario. `config` has the rules as a document, for later partial changes."""

    name: str
    config: dict[str, Any]
    rules: Rules
    cloud: CloudDocument
    slots: tuple[GivenSlot, ...]
    reservations: tuple[GivenReservation, ...]
    holds: tuple[GivenHold, ...]
    timeline: tuple[Step, ...]
    tick_every: float | None
    kicks: bool
    wakes: bool
    until: float


class _TopDocument(Document):
    """The keys of a scenario. A reader checks the value of each in detail."""

    name: Text = "scenario"
    config: dict[str, Any] = {}
    cloud: dict[str, Any] = {}
    slots: list[Any] = []
    reservations: list[Any] = []
    holds: list[Any] = []
    timeline: list[Any] = []
    tick_every: Seconds | None = None
    kicks: bool = False
    wakes: bool = False
    until: Amount = 0.0


def load_scenario(path: Path) -> Scenario:
    """Read a JSON or TOML file. Raises InvalidInputError with one line for the first fault."""
    try:
        text = path.read_text(encoding="utf-8")
        document = tomllib.loads(text) if path.suffix == ".toml" else parse_json(text)
    except OSError as error:
        raise fault(str(path), "a file that can be read", error.strerror or "nothing") from None
    except (ValueError, RecursionError) as error:  # no JSON, no TOML, no UTF-8, a number of thousands of digits
        raise fault(str(path), "JSON (or TOML in a .toml file)", str(error)) from None
    return read_scenario(document)


def read_scenario(document: object) -> Scenario:
    """Check a whole scenario. Raises InvalidInputError with only the first fault, so that bad input gives one line."""
    try:
        return _read_scenario(document)
    except InvalidInputError as error:
        raise InvalidInputError(error.faults[:1]) from None


def _read_scenario(document: object) -> Scenario:
    top = read_document(_TopDocument, document)
    rules = read_rules(top.config, "config")
    reader = StepReader(rules, top.config)
    reservations = tuple(
        read_document(GivenReservation, each, f"reservations[{index}]") for index, each in enumerate(top.reservations)
    )
    reader.declare(reservations)
    slots = tuple(reader.read_slot(each, f"slots[{index}]") for index, each in enumerate(top.slots))
    timeline = tuple(reader.read_step(each, f"timeline[{index}]") for index, each in enumerate(top.timeline))
    if top.tick_every == 0:
        raise fault("tick_every", "a duration > 0", 0)
    return Scenario(
        name=top.name,
        config=top.config,
        rules=rules,
        cloud=read_simulated_cloud(top.cloud, rules),
        slots=slots,
        reservations=reservations,
        holds=tuple(reader.read_hold(each, f"holds[{index}]") for index, each in enumerate(top.holds)),
        timeline=timeline,
        tick_every=top.tick_every,
        kicks=top.kicks,
        wakes=top.wakes,
        until=top.until,
    )
