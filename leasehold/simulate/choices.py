"""The combinations of settings that `--compare` requests, each with its rules."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from scheduler.model.rules import SchedulerKeys, merge_rules, read_rules
from scheduler.model.validation import InvalidInputError, fault, suggest

MOST_COMBINATIONS: Final = 100


@dataclass(frozen=True)
class Combination:
    """A value for each compared key, and the rules with these values."""

    settings: Mapping[str, str]
    document: dict[str, Any]

    @property
    def label(self) -> str:
        """The settings, like `queue=size profile=pack`; "" for a single run. A path is cut to its last part if that is
        unique.
        """
        last = [name.rpartition(".")[2] for name in self.settings]
        shown = last if len(set(last)) == len(last) else list(self.settings)
        return " ".join(f"{name}={value}" for name, value in zip(shown, self.settings.values(), strict=True))


def read_choices(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each key from texts like `queue=fifo,size`. Raises InvalidInputError."""
    found: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, equals, rest = word.partition("=")
        values = tuple(dict.fromkeys(value for value in rest.split(",") if value))
        if not equals or not values:
            raise fault("--compare", "KEY=VALUE,VALUE", word)
        if "." not in name and name not in SchedulerKeys.model_fields:
            near = suggest(name, SchedulerKeys.model_fields)
            raise fault("--compare", f"a key of [scheduler]{near}, or a path like pools.NAME.KEY", name)
        if name in found:
            raise fault("--compare", "each key once", name)
        found[name] = values
    return found


def combine(document: Mapping[str, Any], choices: Mapping[str, Sequence[str]]) -> list[Combination]:
    """Return every combination of the choices; the last key changes fastest. Raises InvalidInputError."""
    combinations = [dict(zip(choices, values, strict=True)) for values in product(*choices.values())]
    if len(combinations) > MOST_COMBINATIONS:
        raise fault("--compare", f"at most {MOST_COMBINATIONS} combinations", len(combinations))
    return [Combination(each, _apply(document, each)) for each in combinations]


def _apply(document: Mapping[str, Any], settings: Mapping[str, str]) -> dict[str, Any]:
    made = dict(document)
    for name, text in settings.items():
        made = merge_rules(made, _lay_over(made, name, _parse(text)))
        try:
            read_rules(made, "")
        except InvalidInputError as error:
            raise fault(f"--compare {name}", error.faults[0].expected, text) from None
    return made


def _lay_over(document: Mapping[str, Any], name: str, value: Any) -> dict[str, Any]:
    """Return the change of one key as a document. The key is a path like `pools.NAME.KEY`, or a key of the scheduler,
    which is also changed for the systems that have their own value.
    """
    if "." in name:
        path = name.split(".")
        change: Any = value
        for part in reversed(path):
            change = {part: change}
        return dict(change)
    own = document.get("scheduler", {}).get("system", {})
    systems = {system: {name: value} for system, keys in own.items() if name in keys}
    return {"scheduler": {name: value, **({"system": systems} if systems else {})}}


def _parse(text: str) -> Any:
    """Return the value of a text that is TOML, as of a number or a boolean, else the text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
