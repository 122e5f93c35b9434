"""Documents of every kind, good ones and broken ones, and what Leasehold answers to each.

`python -m tests.unit.recorded_answers` writes the answers of the present code to `recorded_answers.json.gz`. The test
compares the code with that file, so write it only when an answer has to change.
"""

import copy
import gzip
import hashlib
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from leasehold_emulator.settings import read_settings as read_emulator_settings

from scheduler.model.command_schemas import (
    SCHEMAS,
    ApplyDocument,
    CommandDocument,
    ConditionsDocument,
    ExplainDocument,
    LeasesDocument,
    PreviewDocument,
    QueryDocument,
    RulesDocument,
)
from scheduler.model.rules import read_rules
from scheduler.model.validation import InvalidInputError, read_document
from scheduler.simulation.scenario import read_scenario
from workers.settings import read_settings

RECORD: Final = Path(__file__).with_suffix(".json.gz")
ROUNDS: Final = 160
"""Broken copies of each good document."""
NAMES: Final = ("a b", "", "x" * 201, "ok-1", "_x", "ü")
JUNK: Final[tuple[Any, ...]] = (
    *(None, True, False, 0, 1, -1, 0.5, 1.0, -0.0, 2, 10**16, 10**40, 1e300, float("nan"), float("inf")),
    *("", "x", "30s", "1h30m", "5", "a b", "a\0b", "\ud800", "x" * 300, "redis://:secret@h:1/0", "fifo", "on_demand"),
    *([], [1], ["a"], [1, 2, 3, 4, 5], [1, "a"], [-1], [[]], {}, {"a": 1}, {"a": "b"}, {"a b": 1}, {"a": -1}, {"": 0}),
    *({1: 2}, {"[key]": "b"}, {"a b": -1, "c": None}, {"\ud800": 1}, [{"name": "a"}], [{}], [None], {"a": {"b": 1}}),
    *({str(number): 0 for number in range(70)}, "a" * 32, "0" * 64, (1, 2), {"x": [1]}),
)
KEYS: Final = ("zzz", "max_slot", "pol", "systm", "[key]", "", "two\nlines", "\ud800", "k" * 100, 1, None, "resource")

FULL_POOL: Final[dict[str, Any]] = {
    "system": "x86_64-linux",
    "max_slots": 4,
    "min_slots": 1,
    "max_leases_per_slot": 2,
    "default_resources": {"cpus": 1},
    "idle_scale_down": "5m",
    "launch_for_elastic": True,
    "rebalance": "ignore",
    "resources": {"cpus": 4, "memory_mib": 8192.5},
    "labels": {"disk": "ssd"},
    "offerings": [
        {"name": "m5.large", "market": "on_demand", "price": 0.1, "zone": "a"},
        {"name": "m5.large", "market": "spot", "resources": {"cpus": 2}, "labels": {}, "type": "m5"},
    ],
    "ec2": {"image": "ami-1", "subnets": ["s-1"], "launch_template": "lt", "launch_template_version": 2, "tags": {}},
    "probe": {"kind": "tcp", "port": 22, "timeout": "2s", "command": ["a", "b"]},
}
RULES: Final[dict[str, Any]] = {
    "scheduler": {
        "queue": "priority",
        "starvation_guard": 60,
        "interruption_grace": "30s",
        "backfill": False,
        "system": {"arm": {"queue": "quota", "max_slots": 3}},
    },
    "pools": {"linux": FULL_POOL, "hosts": {"system": "x", "provider": "static", "probe": {"kind": "none"}}},
    "accounts": {"ci": {"charge_rate": [1, 2], "balance": [-1, 2.5], "per_label_task_limits": {"disk": 2}}},
    "limits": {"work_per_tick": 5},
}
RESERVATION: Final[dict[str, Any]] = {
    "id": "r1",
    "pool": "linux",
    "labels": {"disk": "ssd"},
    "prefers": {"zone": "a"},
    "account": "ci",
    "priority": 2,
    "size": 1.5,
    "ttl": "1h",
    "restart_policy": "on_failure",
    "on_interruption": "fail",
    "preemptible": False,
    "tags": {"job": "7"},
    "runtime": 60,
    "expected_runtime": "1m30s",
    "max_runtime": 120,
    "components": [
        {"name": "main", "resources": {"cpus": 1}},
        {"name": "more", "count": 3, "kind": "elastic", "labels": {"a": "b"}},
    ],
    "on_lease": {"task": "mine.start", "queue": "mine"},
    "on_end": {"task": "mine.end", "queue": "mine"},
    "key_hash": "0" * 64,
    "run": {
        "argv": ["make", "test"],
        "env": {"CI": "1"},
        "cwd": "/srv",
        "user": "build",
        "stop_signal": "INT",
        "grace": "30s",
        "on_exit": "release",
        "image": "docker.io/library/debian:12",
    },
}
HOLDER: Final[dict[str, Any]] = {"reservation": "r1", "token": 3, "key": "a" * 40}
FIELDS: Final[dict[str, Any]] = {
    **HOLDER,
    "id": "r2",
    "component": "main",
    "reason": "over",
    "priority": 3,
    "slot": "linux-1",
    "as_of": 12.5,
    "labels": {"a": "b"},
    "account": "ci",
    "pool": "linux",
    "machine": "m1",
    "resources": {"cpus": 2},
    "address": "10.0.0.1",
    "charge_rate": [1],
    "balance": [5],
    "max_fanout": 2,
    "description": "of the tests",
    "want": 2,
    "run": "a-run",
    "waited": 0.5,
    "nonce": "n" * 16,
    "tail": "the end",
    "bytes": 7,
    "why": "signal",
    "signal": 9,
    "error": "ended",
    "per_label_task_limits": {"disk": 2},
    "max_charge_seconds": 60,
    "disable_free_tasks": True,
    "enforce_max_runtime": True,
}
SCENARIO: Final[dict[str, Any]] = {
    "name": "recorded",
    "config": RULES,
    "cloud": {
        "launch": 1,
        "boot": "30s",
        "quota": 5,
        "outages": [{"pool": "linux", "at": 5, "until": "1m", "offering": "m5.large"}],
    },
    "slots": [
        {
            "id": "linux-1",
            "pool": "linux",
            "leases": [{"reservation": "r0", "level": 2, "cost": [1], "state": "revoking", "revoke_by": -5}],
            "labels": {"disk": "ssd"},
            "offering": "m5.large/spot",
            "price": 0.2,
            "since": -10,
            "uses": None,
        },
        {"id": "linux-2", "pool": "linux", "state": "booting", "market": "spot", "unconfirmed": 2},
    ],
    "reservations": [
        {"id": "r0", "system": "x86_64-linux", "phase": "leased", "leased_at": -5, "declined": ["linux-3"]},
        {**RESERVATION, "id": "r9", "restarts": 2, "component_restarts": {"main": 1}, "suspended": True},
    ],
    "holds": [{"pool": "*", "kind": "capacity", "until": 30, "delay": "1m"}],
    "run_times": [{"account": "ci", "job": "build", "cpus": 4, "seconds": [1, "2m"], "ratios": [0.5]}],
    "timeline": [
        {"at": 0, "submit": RESERVATION},
        {"at": 0, "submit": [{"id": "r2", "system": "x86_64-linux"}]},
        {"at": 1, "tick": True},
        {"at": 1, "tick": {"between": [{"cancel": "r2"}]}},
        {"at": 2, "confirm": {"reservation": "r1", "slot": "linux-1", "as_of": 1}},
        {"at": 2, "interrupt": {"slot": "linux-1", "deadline": "1m"}},
        {"at": 2, "fail": {"reservation": "r1", "component": "main"}},
        {"at": 3, "priority": {"reservation": "r1", "priority": 5}},
        {"at": 3, "absent": "r1"},
        {"at": 3, "idle": {"slot": "linux-1", "labels": {"a": "b"}}},
        {"at": 4, "account": {"id": "new", "charge_rate": [1, 2, 3], "balance": [1]}},
        {"at": 4, "reset_account": "new"},
        {"at": 5, "rules": {"scheduler": {"queue": "size"}}},
        {"at": 5, "register": {"id": "h1", "pool": "hosts", "machine": "m1", "labels": {"a": "b"}}},
        {"at": 6, "cordon": "linux-1"},
        {"at": 6, "outage": {"pool": "linux", "error": "quota", "until": 9}},
        {"at": 7, "found": {"pool": "linux", "slot": "linux-4"}},
        {"at": 8, "slot": {"id": "linux-3", "pool": "linux", "resources": {"cpus": 4}}},
    ],
    "tick_every": "10s",
    "kicks": True,
    "until": 60,
}
SETTINGS: Final[dict[str, Any]] = {
    "recover_interval": 10,
    "broker": {"url": "redis://:secret@h:6379/0"},
    "view": {"prefix": "x:", "tombstones": "10m"},
    "access": {"mode": "signed", "principal": "a", "key": "k" * 40},
    "database": {"url": "postgresql://me:secret@h/n"},
    "aws": {"access_key_id": "a", "secret_access_key": "b", "endpoint_url": "http://h:1", "calls_per_second": 3},
    "ticks": {"interval": 5},
    "flower": {"basic_auth": "me:secret", "port": 5556, "host": "0.0.0.0"},  # noqa: S104 - read, never listened on
    "celery": {"hard_time_limit": 60, "soft_time_limit": 50, "concurrency": {"launch": 3}},
    "keep": {"requests": 600},
}
EMULATOR: Final[dict[str, Any]] = {
    "boot_seconds": "2s",
    "boot_failures": [{"kind": "stuck", "share": 0.5}],
    "quota": {"spot_machines": 3},
    "throttling": {"launch": {"size": 2, "refill": 1}},
    "interruption_queue": "notices",
    "faults": [{"code": "InternalError", "count": 2, "seconds": "1m"}, {"lost": "reset"}],
}
QUESTION: Final = {"request": "q1", "reply_to": "leasehold:reply:1"}

Reader = Callable[[Any], object]


def list_kinds() -> dict[str, tuple[Reader, list[Any]]]:
    """Each kind of document: its reader, and good documents of it."""
    kinds: dict[str, tuple[Reader, list[Any]]] = {}
    for verb, model in SCHEMAS.items():
        full = {name: FIELDS[name] for name in FIELDS if name in model.model_fields}
        kinds[verb] = (partial(read_document, model), [RESERVATION if verb == "submit" else full])
    kinds["submit"][1].append({"id": "r1", "system": "x", "resources": {"cpus": 1}})
    ended = {**kinds["exited"][1][0], "why": "exited", "exit_code": 3}
    kinds["exited"][1].append({name: value for name, value in ended.items() if name != "signal"})
    questions: list[tuple[Any, dict[str, Any]]] = [
        (QueryDocument, {"ids": ["a", "b"]}),
        (ExplainDocument, {"reservation": "r1"}),
        (CommandDocument, {"reservation": "r1"}),
        (ConditionsDocument, {"pool": "linux"}),
        (RulesDocument, {"history": 3}),
        (PreviewDocument, {"rules": {}}),
        (ApplyDocument, {"rules": {}, "expected": 3, "source": "a test"}),
        (LeasesDocument, {"slot": "linux-1", "machine": "m"}),
    ]
    for asked, fields in questions:
        kinds[asked.__name__] = partial(read_document, asked), [{**QUESTION, **fields}]
    kinds["rules"] = read_rules, [RULES, {"pools": {"linux": FULL_POOL}}, {"pools": {"p": FULL_POOL, "q": FULL_POOL}}]
    kinds["scenario"] = read_scenario, [SCENARIO, SCENARIO, SCENARIO]
    kinds["settings"] = _read_file_settings, [SETTINGS, {}]
    kinds["emulator"] = read_emulator_settings, [EMULATOR]
    return kinds


def _read_file_settings(document: Any) -> object:
    """Settings as a TOML file gives them: a table, with texts as keys."""
    return (
        read_settings({key: document[key] for key in document if isinstance(key, str)})
        if isinstance(document, dict)
        else None
    )


def list_documents(kind: str, good: list[Any]) -> Iterator[Any]:
    """The good documents, junk in their place, and broken copies, the same ones at every call."""
    chance = random.Random(f"documents of {kind}")
    yield from (copy.deepcopy(each) for each in good)
    yield from (copy.deepcopy(each) for each in JUNK)
    for one in good:
        for _ in range(ROUNDS):
            document = copy.deepcopy(one)
            for _ in range(chance.choice((1, 1, 1, 2, 3))):
                _break(document, chance)
            yield document


def _break(document: Any, chance: random.Random) -> None:
    """Replace, remove, or add something at a random place of the document."""
    tables = list(_list_tables(document))
    if not tables:
        return
    table = chance.choice(tables)
    keys = list(range(len(table))) if isinstance(table, list) else list(table)
    action = chance.choice(("replace", "replace", "replace", "remove", "add"))
    if action == "add" and isinstance(table, dict):
        table[chance.choice(KEYS)] = copy.deepcopy(chance.choice(JUNK))
    elif action == "add":
        table.append(copy.deepcopy(chance.choice(JUNK)))
    elif keys and action == "remove":
        table.pop(chance.choice(keys))
    elif keys:
        table[chance.choice(keys)] = copy.deepcopy(chance.choice(JUNK))


def _list_tables(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for each in value.values() if isinstance(value, dict) else value:
            yield from _list_tables(each)


def answer(reader: Reader, document: Any) -> Any:
    """The digest of what was read of a good document, or the faults of a bad one as lists of path, expected, got."""
    try:
        read = reader(document)
    except InvalidInputError as error:
        return [[each.path, each.expected, each.got] for each in error.faults]
    except (ValueError, TypeError, AttributeError) as error:
        return f"raises {type(error).__name__}"
    return hashlib.sha256(repr(_plain(read)).encode("utf-8", "backslashreplace")).hexdigest()[:12]


def _plain(value: Any) -> Any:
    """What was read, as tables, lists and plain values; a secret as its text."""
    if hasattr(value, "get_secret_value"):
        return value.get_secret_value()
    if hasattr(value, "model_dump"):
        names = [*type(value).model_fields]
        given = sorted(set(value.model_fields_set))
        return {name: _plain(getattr(value, name)) for name in names} | {"given": given}
    if hasattr(value, "__struct_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(_plain, value)]
    return value


def answer_all() -> dict[str, list[Any]]:
    """The answers of the present code to all documents of each kind."""
    return {
        kind: [answer(reader, each) for each in list_documents(kind, good)]
        for kind, (reader, good) in list_kinds().items()
    }


def read_record() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = json.loads(gzip.decompress(RECORD.read_bytes()))
    return found


if __name__ == "__main__":
    text = json.dumps(answer_all(), separators=(",", ":"))
    RECORD.write_bytes(gzip.compress(text.encode(), mtime=0))
