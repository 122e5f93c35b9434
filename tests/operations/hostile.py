"""Hostile attempts: everything that a sender may try against the reservations, accounts and slots of others.

The others' things have these names: the principal `shop` has reservations, the request `q-shop` and the account `shop`;
there are an account `rival` and the slots `linux-1` and `lab-1`. `mine` is a reservation of the hostile producer.
"""

import hashlib
from collections.abc import Mapping
from typing import Any, Final

from scheduler.model.principals import Principal
from tests.operations.harness import NOW

Item = dict[str, Any]
Tokens = Mapping[str, int]
"""The token of each reservation of the principal `shop`; 0 where it is pending."""
KEY, OTHER_KEY = "k" * 43, "o" * 43
KEY_HASH: Final = hashlib.sha256(KEY.encode()).hexdigest()
VICTIMS: Final = ("leased", "bare", "waiting", "held-up")
HOLDERS_VERBS: Final = ("release", "renew", "confirm", "fail", "surrender", "decline", "suspend", "resume")


def list_foreign_words(tokens: Tokens) -> list[tuple[str, Item]]:
    """Each command about a reservation, for each reservation of another principal, with its true token."""
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


def list_operators_words() -> list[tuple[str, Item]]:
    """Each word of an operator, about a slot, an account or a reservation."""
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


def list_hosts_words() -> list[tuple[str, Item]]:
    """Words of a host, about the slot of another host."""
    return [
        ("register", {"slot": "lab-1", "pool": "lab", "machine": "m1", "resources": {"cpus": 99}}),
        ("register", {"slot": "lab-1", "pool": "lab", "machine": "m2"}),
        ("register", {"slot": "lab-3", "pool": "lab", "machine": "m3"}),
        ("register", {"slot": "linux-1", "pool": "linux", "machine": "m1"}),
        ("leave", {"slot": "lab-1", "machine": "m1"}),
        ("leave", {"items": [{"slot": "lab-1", "machine": "m1"}, {"slot": "linux-1", "machine": "m1"}]}),
    ]


def list_submits(account: str) -> list[tuple[str, Item]]:
    """Submits that name what belongs to another principal: its account, its reservation, its request."""
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
    """Requests under the id of another principal's request: the stored answer is not theirs."""
    return [
        ("renew", {"request": "q-shop", "reservation": "mine"}),
        ("cancel", {"request": "q-shop", "reservation": "mine"}),
    ]


def list_bare_submits() -> list[tuple[str, Item]]:
    """What no host, reader or worker may ask for, though it names nothing of others."""
    return [
        ("submit", {"id": "new", "system": "x86_64-linux"}),
        ("submit", {"items": [{"id": "new", "system": "x86_64-linux"}, {"id": "two", "pool": "lab"}]}),
        *((verb, {"reservation": "unknown"}) for verb in HOLDERS_VERBS),
    ]


def list_attempts(tokens: Tokens, principal: Principal) -> list[tuple[str, Item]]:
    """What this principal tries against others: `tokens` are those of the principal `shop`, by reservation."""
    common = [*list_foreign_words(tokens), *list_operators_words(), *list_hosts_words(), *list_submits("shop")]
    match principal.role:
        case "producer":
            of_own = [("confirm", {"reservation": "mine", "slot": slot}) for slot in ("linux-1", "lab-1", "linux-3")]
            unknown = [("confirm", {"reservation": "unknown", "slot": "linux-1"})]
            return [*common, *of_own, *unknown, *list_repeats()]
        case "host":
            own = [("register", {"slot": "lab-2", "pool": "linux", "machine": "m2"})]
            return [*common, *list_bare_submits(), *own]
        case _:
            own = [("register", {"slot": principal.name, "pool": "lab", "machine": "m2"})]
            return [*common, *list_bare_submits(), *own]
