"""The actions of a smallest change (the least change that would end the wait of a reservation;
docs/reference/protocol.md, "explain"), as requests and as sentences.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from leasehold.client.async_client import AsyncClient
from leasehold.client.commands import AccountFields
from scheduler.model.rules import merge_rules


@dataclass(frozen=True)
class Action:
    """One action that the console can request: the verb (name of the request), the id of the object to change, and the
    function that sends the request.
    """

    verb: str
    about: str
    act: Callable[[AsyncClient], Awaitable[object]]


@dataclass(frozen=True)
class Described:
    """An action of a smallest change as a sentence. `verb`: the name of the request by which the console can carry the
    action out; None: no request can, for example for a new host.
    """

    text: str
    verb: str | None


def find_action(document: Mapping[str, Any]) -> Action | None:
    """Return the request that carries out one action of a smallest change (the least change that would end the wait of
    a reservation). Return None if the console has no request for the action, e.g. for a new host.

    `document`: the action as a table with one key, for example `{"resume": "build-1"}`.
    """
    ((name, value),) = document.items()
    match name:
        case "rules":
            return Action("apply", "rules", lambda client: _change_rules(client, value))
        case "release":
            # The console is no holder and has no token: it ends the reservation as an operator does.
            return Action("cancel", value, lambda client: client.cancel(value, reason="ended in the console"))
        case "resume":
            return Action("resume", value, lambda client: client.resume(value))
        case "suspend":
            return Action("suspend", value, lambda client: _suspend(client, value))
        case "cordon":
            return Action("cordon", value, lambda client: client.cordon(value))
        case "uncordon":
            return Action("uncordon", value, lambda client: client.uncordon(value))
        case "priority":
            about, priority = value["reservation"], value["priority"]
            return Action("priority", about, lambda client: client.priority(about, priority))
        case "account":
            fields = cast("AccountFields", {key: each for key, each in value.items() if key in _ACCOUNT_FIELDS})
            return Action("account", value["id"], lambda client: client.account(value["id"], **fields))
    return None


class Undo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a change that was made is undone. `actions`: those that reverse the change of rows. `wrote`: the version of
    the rules that the change wrote; 0: it changed no rules. Before version 1 there were none to go back to.
    """

    actions: tuple[dict[str, Any], ...] = ()
    wrote: int = 0


def read_undo(text: str) -> Undo | None:
    """Return the `Undo` in the JSON text of a form; None if it is broken, or names an action without a request."""
    try:
        undo = msgspec.json.decode(text, type=Undo)
        # A form may contain anything: each action must be one that can be described.
        known = [describe_action(each).verb for each in undo.actions]
    except (msgspec.DecodeError, LookupError, TypeError, ValueError):
        return None
    return undo if None not in known and (known or undo.wrote) and undo.wrote != 1 else None


def describe_action(document: Mapping[str, Any]) -> Described:
    """Return the sentence that shows an action of a smallest change to people, and the verb of the request that carries
    it out. A smallest change is the least change that would end the wait of a reservation. `document`: as in
    `find_action`.
    """
    action = find_action(document)
    ((name, value),) = document.items()
    verb = None if action is None else action.verb
    match name:
        case "rules":
            text = "apply these rules: " + msgspec.json.encode(value).decode()
        case "release":
            text = f"end the reservation {value}"
        case "priority":
            text = f"set the priority of {value['reservation']} to {value['priority']:g}"
        case "account":
            text = f"change the account {value['id']}: {msgspec.json.encode(_without_id(value)).decode()}"
        case "slot":
            text = f"add the host {value.get('id', '')} (a host registers itself)"
        case _:
            text = f"{name} {value}"
    return Described(text, verb)


async def _change_rules(client: AsyncClient, config: Mapping[str, Any]) -> object:
    """Apply the rules in force with the keys in `config` changed. The request is refused if other rules are applied
    between the read of the rules and the change.
    """
    present = await client.rules()
    merged = merge_rules(present.document, dict(config))
    return await client.apply_rules(merged, expected=present.version, source="the smallest change, in the console")


async def _suspend(client: AsyncClient, name: str) -> object:
    row = await client.get(name)
    return await client.suspend(name, row.token or None if row else None)


def _without_id(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key != "id"}


_ACCOUNT_FIELDS = frozenset(AccountFields.__annotations__)
