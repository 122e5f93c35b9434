"""What can be steered: times and faults, as documents that a file or the control API gives."""

import json
import tomllib
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from scheduler.model.validation import Document, Name, Positive, Seconds, Text, fault, read_document

STATUS_OF_CODE: Final = {
    "InsufficientInstanceCapacity": 500,
    "InsufficientHostCapacity": 500,
    "InternalError": 500,
    "Unavailable": 503,
    "RequestLimitExceeded": 503,
    "UnauthorizedOperation": 403,
    "AuthFailure": 401,
    "OptInRequired": 403,
}
"""The HTTP status that EC2 sends with a code; 400 with all others."""


class FaultRule(Document):
    """An error to answer with: for which calls, and how often or how long. What is left out matches all."""

    code: Name
    message: Text = "injected by the emulator"
    status: Positive | None = None
    """HTTP status; left out = the one that EC2 sends with this code. boto3 repeats calls that got a 5xx."""
    action: Name | None = None
    """An EC2 action, or `*` as `any`; left out = the launching ones, RunInstances and CreateFleet."""
    type: Name | None = None
    zone: Name | None = None
    market: Literal["spot", "on-demand"] | None = None
    count: Positive | None = None
    """How many calls it meets; boto3's own repeats of one call count once. Left out = any number."""
    seconds: Seconds | None = None
    """How long it lasts from the moment that it is set; left out = until it is taken away."""

    @property
    def http_status(self) -> int:
        """The status to answer with."""
        return self.status or STATUS_OF_CODE.get(self.code, 400)


class EmulatorSettings(Document):
    """Everything that can be steered. Times in seconds, or like "2s"."""

    boot_seconds: Seconds = 0.0
    """`pending` lasts so long."""
    status_seconds: Seconds = 0.0
    """The status checks say `initializing` so long after that."""
    terminate_seconds: Seconds = 0.0
    """`shutting-down` lasts so long."""
    forget_seconds: Seconds = 300.0
    """A terminated instance is described so long (EC2: about an hour)."""
    address: Text | None = None
    """The private address of every instance, for probes to find something; left out = invented ones."""
    faults: Annotated[tuple[FaultRule, ...], Field(strict=False)] = ()


def read_settings(document: object, prefix: str = "") -> EmulatorSettings:
    """Settings from a parsed document; raises InvalidInputError naming each key that is wrong."""
    return read_document(EmulatorSettings, document, prefix)


def load_settings(path: Path) -> EmulatorSettings:
    """Settings from a TOML or (`.json`) JSON file.

    Raises OSError when it cannot be read, InvalidInputError when it is not what it should be.
    """
    return read_settings(_parse(path.read_text(encoding="utf-8"), path))


def _parse(text: str, path: Path) -> dict[str, Any]:
    kind = "JSON" if path.suffix == ".json" else "TOML"
    try:
        document: Any = json.loads(text) if kind == "JSON" else tomllib.loads(text)
    except ValueError as error:
        raise fault(path.name, f"valid {kind}", str(error)) from None
    if not isinstance(document, dict):
        raise fault(path.name, "a table", document)
    return document
