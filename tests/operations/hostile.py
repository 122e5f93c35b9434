"""Hostile requests: attempts to change or read reservations, accounts and slots of other principals.

The principal `shop` has reservations, the request `q-shop` and the account `shop`. There are an account `rival` and the
slots `linux-1` and `lab-1`. `mine` is a reservation of the hostile producer.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from scheduler.model.principals import Principal
from scheduler.protocol.verbs import KEY_VERBS
from tests.operations.harness import NOW

Item = dict[str, Any]
Tokens = Mapping[str, int]
"""The token of each reservation of the principal `shop`; 0 where it is pending."""
KEY, OTHER_KEY = "k" * 43, "o" * 43
KEY_HASH: Final = hashlib.sha256(KEY.encode()).hexdigest()
VICTIMS: Final = ("leased", "bare", "waiting", "held-up")
HOLDERS_VERBS: Final = tuple(sorted(KEY_VERBS))


def list_commands_about_others(tokens: Tokens) -> list[tuple[str, Item]]:
    """Return each command about a reservation, for each reservation of another principal, with its current token."""
    found: list[tuple[str, Item]] = []
    for name, token in tokens.items():
        proof: Item = {"reservation": name} | ({"token": token} if token else {})
        found += [(verb, proof) for verb in HOLDERS_VERBS]
        found += [(verb, {**proof, "key": OTHER_KEY}) for verb in HOLDERS_VERBS]
        found += [(verb, {**proof, "component": "main", "reason": "x"}) for verb in ("fail", "surrender", "cancel")]
        found += [("cancel", {"reservation": name}), ("confirm", {**proof, "slot": "linux-1"})]
        found += [("priority", {"reservation": name, "priority": number}) for number in (0, 1e15)]
        found += [("release", {"items": [{"reservation": name, "token": guess} for guess in range(1, 1001)]})]
        found += [("renew", {"items": [{"reservation": name, "token": guess} for guess in range(1, 1001)]})]
    return found


def list_operator_commands() -> list[tuple[str, Item]]:
    """Return each command of an operator, about a slot, an account or a reservation."""
    found: list[tuple[str, Item]] = [
        (verb, {"slot": slot}) for verb in ("cordon", "uncordon", "drain", "remove") for slot in ("linux-1", "lab-1")
    ]
    found += [("idle", {"slot": "linux-1"}), ("idle", {"slot": "linux-1", "labels": {"a": "b"}, "as_of": NOW + 1e9})]
    found += [("absent", {"reservation": name}) for name in (*VICTIMS, "unknown")]
    for account in ("shop", "rival", "new"):
        found += [
            ("account", {"account": account, "balance": [1e9]}),
            ("account", {"account": account, "charge_rate": [1e9], "max_fanout": 9}),
            ("reset_account", {"account": account}),
            ("forget_account", {"account": account}),
        ]
    return found


def list_host_commands() -> list[tuple[str, Item]]:
    return [
        ("register", {"slot": "lab-1", "pool": "lab", "machine": "m1", "resources": {"cpus": 99}}),
        ("register", {"slot": "lab-1", "pool": "lab", "machine": "m2"}),
        ("register", {"slot": "lab-3", "pool": "lab", "machine": "m3"}),
        ("register", {"slot": "linux-1", "pool": "linux", "machine": "m1"}),
        ("leave", {"slot": "lab-1", "machine": "m1"}),
        ("leave", {"items": [{"slot": "lab-1", "machine": "m1"}, {"slot": "linux-1", "machine": "m1"}]}),
    ]


def list_submits(account: str) -> list[tuple[str, Item]]:
    """Return submits that name the account, a reservation or a request of another principal."""
    fields = {"system": "x86_64-linux"}
    return [
        ("submit", {"id": "new", **fields, "account": account}),
        ("submit", {"items": [{"id": f"new-{number}", **fields, "account": account} for number in range(3)]}),
        *(("submit", {"id": name, **fields}) for name in VICTIMS),
        ("submit", {"id": "leased", **fields, "key_hash": hashlib.sha256(OTHER_KEY.encode()).hexdigest()}),
        ("submit", {"request": "q-shop", "id": "waiting", **fields}),
        ("submit", {"request": "q-shop", "id": "new", **fields}),
    ]


def list_repeats() -> list[tuple[str, Item]]:
    """Return requests with the request id of another principal; they must not get its stored answer."""
    return [
        ("renew", {"request": "q-shop", "reservation": "mine"}),
        ("cancel", {"request": "q-shop", "reservation": "mine"}),
    ]


def list_producer_commands() -> list[tuple[str, Item]]:
    """Return requests about own or unknown reservations that no host, reader or worker may send."""
    return [
        ("submit", {"id": "new", "system": "x86_64-linux"}),
        ("submit", {"items": [{"id": "new", "system": "x86_64-linux"}, {"id": "two", "pool": "lab"}]}),
        *((verb, {"reservation": "unknown"}) for verb in HOLDERS_VERBS),
    ]


def list_attempts(tokens: Tokens, principal: Principal) -> list[tuple[str, Item]]:
    """Return the hostile requests of this principal. `tokens`: reservation of the principal `shop` -> token."""
    common = [
        *list_commands_about_others(tokens),
        *list_operator_commands(),
        *list_host_commands(),
        *list_submits("shop"),
    ]
    match principal.role:
        case "producer":
            of_own = [("confirm", {"reservation": "mine", "slot": slot}) for slot in ("linux-1", "lab-1", "linux-3")]
            unknown = [("confirm", {"reservation": "unknown", "slot": "linux-1"})]
            return [*common, *of_own, *unknown, *list_repeats()]
        case "host":
            own = [("register", {"slot": "lab-2", "pool": "linux", "machine": "m2"})]
            return [*common, *list_producer_commands(), *own]
        case _:
            own = [("register", {"slot": principal.name, "pool": "lab", "machine": "m2"})]
            return [*common, *list_producer_commands(), *own]
