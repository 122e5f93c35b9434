"""The smallest change that would end a wait, and its reverse, as commands to type (docs/reference/protocol.md,
"explain"); and tables as TOML, for example the rules in force.
"""

import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from leasehold.client.models import SmallestChange
from workers.config_template import format_value

_OPTIONS: Final = {"max_fanout": "--max-fanout", "balance": "--balance", "charge_rate": "--charge-rate"}


def format_commands(actions: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the commands that carry out these actions of a change, in order. Return [] if any has no command."""
    found = [_format(each) for each in actions]
    return [] if None in found else [each for each in found if each is not None]


def list_undo_commands(change: SmallestChange, before: int) -> list[str]:
    """Return the commands that reverse a change that was made. Return [] if a part of it cannot be reversed. `before`:
    the version of the rules before the change; 0: it is not known.
    """
    if any("release" in each for each in change.actions):
        return []
    commands = format_commands(change.undo)
    if len(commands) < len(change.undo):
        return []
    if any("rules" in each for each in change.actions):
        return [*commands, f"leasehold rules rollback {before}"] if before else []
    return commands


def describe_loss(undo: Iterable[Mapping[str, Any]]) -> str:
    """Return as a sentence what these actions, which reverse a change, lose beside it; "": nothing."""
    names = [each["account"]["id"] for each in undo if "balance" in each.get("account", {})]
    lost = "what it earns and pays until then is lost"
    return f"The undo sets the balance of {names[0]} to its former value: {lost}." if names else ""


def _format(action: Mapping[str, Any]) -> str | None:
    ((name, value),) = action.items()
    match name:
        case "rules":
            words = ["rules", "set", *format_pairs(value)]
        case "release":
            words = ["cancel", value]
        case "priority":
            words = ["priority", value["reservation"], _show(value["priority"])]
        case "cordon" | "uncordon":
            words = [name, value]
        case "account":
            words = ["accounts", "set", value["id"], *_list_options(value)]
        case _:
            return None
    return shlex.join(["leasehold", *words])


def _list_options(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        if name in _OPTIONS:
            numbers = value if isinstance(value, list | tuple) else [value]
            yield f"{_OPTIONS[name]}={','.join(map(_show, numbers))}"
        elif name == "disable_free_tasks":
            yield "--disable-free-tasks" if value else "--enable-free-tasks"
        elif name == "per_label_task_limits":
            for label, most in value.items():
                yield from ("--limit", f"{label}={most}")


def _show(number: float) -> str:
    """Return a number with all its digits: a command must restore exactly the former value."""
    return f"{number:.15g}"


def format_toml(document: Mapping[str, Any]) -> str:
    """Return `document` as TOML text: plain values first, then the tables."""
    return "\n".join(_format_table(document, ())).strip()


def format_pairs(document: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield `KEY=VALUE` for each value of `document`, with dotted keys: `pools.linux.max_slots=5`."""
    for key, value in document.items():
        own = f"{path}{_quote(key)}"
        if isinstance(value, Mapping) and value:
            yield from format_pairs(value, f"{own}.")
        else:
            yield f"{own}={format_value(value)}"


def _format_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    plain = {key: value for key, value in table.items() if key not in inner}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(path)}]"
    for key, value in plain.items():
        yield f"{_quote(key)} = {format_value(value)}"
    for key, value in inner.items():
        yield from _format_table(value, (*path, _quote(key)))


def _quote(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else format_value(key)
