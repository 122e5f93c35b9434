"""The combinations of settings that `leasehold simulate --compare` plays, each with its rules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from scheduler.model.rules import SchedulerKeys, merge_rules, read_rules
from scheduler.model.toml_text import parse_toml
from scheduler.model.validation import InvalidInputError, fault, suggest

MOST_COMBINATIONS: Final = 100


@dataclass(frozen=True)
class Combination:
    """One combination of settings to simulate: a value for each compared key (`settings`), and the rules with these
    values (`document`).
    """

    settings: Mapping[str, str]
    document: dict[str, Any]

    @property
    def label(self) -> str:
        """The settings as a text, like "queue=size profile=pack"; "" if nothing is compared. A key that is a path, like
        `pools.linux.max_slots`, is shown as its last part if no other key ends in this part.
        """
        last = [name.rpartition(".")[2] for name in self.settings]
        shown = last if len(set(last)) == len(last) else list(self.settings)
        return " ".join(f"{name}={value}" for name, value in zip(shown, self.settings.values(), strict=True))


def read_choices(words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the values of each key from texts like `queue=fifo,size`. Raises InvalidInputError for a text of another
    form, an unknown key, and a key that is given twice.
    """
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
    """Return every combination of the choices; the last key changes fastest. Raises InvalidInputError for more than
    MOST_COMBINATIONS combinations and for a value that the rules refuse.
    """
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
    """Return the part of a rules document that sets the key `name` to `value`, to be merged into `document`. `name` is
    a path like `pools.NAME.KEY`, or a key of [scheduler]. A key of [scheduler] is also set for each system in
    `document` that has its own value of the key.
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
    """Return the value of `text` as TOML, like a number or a boolean; if `text` is no TOML value, return it
    unchanged.
    """
    try:
        return parse_toml(f"value = {text}")["value"]
    except ValueError:
        return text
