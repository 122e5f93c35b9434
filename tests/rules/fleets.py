"""Strategies: small fleets, as scenarios, with times on a coarse grid so that events coincide.

Strategies without draws are made once: validating new ones for each fleet takes longer than drawing it.
"""

import os
from functools import cache
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from tests.generated import TIMES
from tests.rules.playing import Document, a_pool

QUICKLY = settings(max_examples=40 * TIMES, derandomize=bool(os.environ.get("CI")))
"""A build server tries the same fleets each time; a person others each time."""
SYSTEMS = ("x86_64-linux", "aarch64-linux")
POOLS = ("linux", "arm", "hosts")
ACCOUNTS = ("a", "b")
PARTS = ("x", "y")
"""The names of elastic components."""
IDS = [f"r{number}" for number in range(6)]
SLOTS = [f"{pool}-{number}" for pool in POOLS for number in (1, 2, 3)]


@cache
def durations(*values: float) -> st.SearchStrategy[float]:
    """One of these, or an unusual value."""
    return st.sampled_from(values) | st.integers(1, 40).map(float)


@st.composite
def pools(draw: st.DrawFn, system: str) -> Document:
    """A pool of ec2 slots with small limits."""
    most = draw(st.integers(1, 3))
    sized = draw(st.booleans())
    offerings = [
        {"name": "small", "price": 1, "resources": {"cpus": 1}},
        {"name": "large", "price": draw(st.sampled_from([1.2, 3])), "market": "on-demand", "resources": {"cpus": 2}},
    ]
    extra: Document = {}
    if sized:
        extra = {"offerings": offerings} if draw(st.booleans()) else {"resources": {"cpus": 2}}
    return a_pool(
        system=system,
        max_slots=most,
        min_slots=draw(st.integers(0, most)),
        target_warm_slots=draw(st.integers(0, 2)),
        idle_scale_down=draw(durations(10, 20)),
        lease_ttl=draw(st.sampled_from([0, 15, 30])),
        reservation_ttl=draw(st.sampled_from([0, 0, 25])),
        launch_timeout=draw(durations(5, 10)),
        boot_timeout=draw(durations(5, 10)),
        terminating_timeout=draw(durations(5, 10)),
        drain_timeout=draw(st.sampled_from([0, 10])),
        error_cooldown=draw(durations(5, 10)),
        capacity_hold=draw(durations(5, 10)),
        quota_hold=draw(durations(5, 10)),
        **({"max_leases_per_slot": draw(st.integers(1, 3))} if draw(st.booleans()) else {}),
        **draw(lives()),
        **extra,
    )


@cache
def lives() -> st.SearchStrategy[Document]:
    """When a pool's machines are used up, unhealthy, or to be replaced by on-demand ones; mostly not set."""
    return st.fixed_dictionaries(
        {},
        optional={
            "max_uses": st.integers(0, 3),
            "recycle_unclean": st.booleans(),
            "unhealthy_after": st.integers(0, 2),
            "on_demand_after": st.integers(0, 2),
        },
    )


@st.composite
def wishes(draw: st.DrawFn, name: str, *, elastic: bool = False) -> Document:
    """A producer's request; with elastic components if wanted."""
    wish: Document = {"id": name}
    wish |= {"system": draw(st.sampled_from([*SYSTEMS, SYSTEMS[0]]))} if draw(st.booleans()) else {"pool": "linux"}
    if draw(st.booleans()):
        wish["components"] = [
            {"name": "w", "count": draw(st.integers(1, 2)), "resources": {"cpus": draw(st.sampled_from([0, 1, 2, 3]))}}
        ]
    if elastic and draw(st.integers(0, 3)):
        wish.setdefault("components", [{"name": "w"}])
        wish["components"] += draw(st.lists(elastic_components(), min_size=1, max_size=2, unique_by=_name))
    return wish | draw(conditions())


@cache
def conditions() -> st.SearchStrategy[Document]:
    """Keys of a request about its time, its queue position and its loss."""
    return st.fixed_dictionaries(
        {},
        optional={
            "ttl": st.sampled_from([0, 10, 20]),
            "priority": st.sampled_from([0, 1, 1, 2]),
            "size": st.integers(0, 3),
            "restart_policy": st.sampled_from(["never", "on_failure"]),
            "on_interruption": st.sampled_from(["requeue", "fail"]),
            "runtime": st.sampled_from([5, 17]),
            "account": st.sampled_from(ACCOUNTS),
            "max_runtime": st.sampled_from([4, 11]),
        },
    )


@cache
def elastic_components() -> st.SearchStrategy[Document]:
    """A component that may have several instances, of any size."""
    return st.builds(
        lambda name, count, cpus: {"name": name, "kind": "elastic", "count": count, "resources": {"cpus": cpus}},
        st.sampled_from(PARTS),
        st.integers(1, 3),
        st.sampled_from([0, 1, 1, 2]),
    )


def _name(component: Document) -> str:
    name: str = component["name"]
    return name


@cache
def elastic_rules() -> st.SearchStrategy[Document]:
    """How elastic instances are granted and reclaimed."""
    return st.fixed_dictionaries(
        {
            "elastic": st.sampled_from(["yielding", "flexible", "malleable", "rigid"]),
            "preemption": st.booleans(),
            "preemption_grace": st.sampled_from([0, 0, 4, 9]),
        }
    )


@cache
def elastic_words() -> st.SearchStrategy[tuple[str, Any]]:
    """An action on a single elastic instance."""
    return st.tuples(
        st.sampled_from(["fail", "surrender"]),
        st.builds(
            lambda name, part, index: {"reservation": name, "component": f"{part}{index}"},
            st.sampled_from(IDS),
            st.sampled_from(PARTS),
            st.sampled_from(["", ".0", ".1"]),
        ),
    )


@cache
def actions() -> st.SearchStrategy[tuple[str, Any]]:
    """Any action that needs only ids which the fleet has declared."""
    ids, slots = st.sampled_from(IDS), st.sampled_from(SLOTS)
    errors = st.sampled_from(["capacity", "quota", "throttled", "misconfigured"])
    return st.one_of(
        st.tuples(st.sampled_from(["release", "cancel", "renew"]), ids),
        st.tuples(st.sampled_from(["fail", "surrender"]), ids.map(lambda name: {"reservation": name})),
        st.tuples(
            st.just("priority"),
            st.builds(lambda name, value: {"reservation": name, "priority": value}, ids, st.integers(0, 2)),
        ),
        st.tuples(
            st.just("account"),
            st.builds(
                lambda name, value: {"id": name, "enforce_max_runtime": value}, st.sampled_from(ACCOUNTS), st.booleans()
            ),
        ),
        st.tuples(st.sampled_from(["lose", "cordon", "uncordon", "drain", "seen"]), slots),
        st.tuples(st.just("register"), st.builds(_host, st.integers(4, 5), st.sampled_from([{}, {"disk": "ssd"}]))),
        st.tuples(
            st.just("interrupt"),
            st.builds(lambda slot, end: {"slot": slot, "deadline": end}, slots, st.sampled_from([0, 5, 12])),
        ),
        st.tuples(
            st.just("outage"),
            st.builds(lambda error, end: {"pool": "linux", "error": error, "until": end}, errors, st.integers(1, 60)),
        ),
        st.tuples(
            st.just("rules"),
            st.builds(
                lambda most, warm: {"pools": {"arm": {"max_slots": most, "target_warm_slots": warm, "min_slots": 0}}},
                st.integers(1, 3),
                st.integers(0, 2),
            ),
        ),
    )


def _host(number: int, labels: dict[str, str]) -> Document:
    """A host that registers itself, each time with other resources."""
    size = {"resources": {"cpus": 2}, "labels": labels}
    return {"id": f"hosts-{number}", "pool": "hosts", "machine": f"machine-{number}", **size}


@st.composite
def fleets(draw: st.DrawFn, *, elastic: bool = False) -> Document:
    """A whole scenario: pools, rules, a simulated cloud and a timeline. `elastic`: with elastic components."""
    config: Document = {
        "scheduler": {
            "queue": draw(st.sampled_from(["fifo", "priority", "size", "dynsize"])),
            "backfill": draw(st.booleans()),
            "max_slots": draw(st.sampled_from([0, 0, 2, 3])),
            "restart_delay": draw(st.sampled_from([0, 7])),
            "confirm_timeout": draw(st.sampled_from([0, 0, 6])),
            **draw(st.sampled_from([{}, {"interruption_grace": 0}, {"interruption_grace": 4}])),
            **draw(st.sampled_from([{}, {"preemption_grace": 0}, {"preemption_grace": 5}])),
            **(draw(elastic_rules()) if elastic else {}),
        },
        "pools": {
            "linux": draw(pools(SYSTEMS[0])),
            "arm": draw(pools(SYSTEMS[1])),
            "hosts": {
                "system": SYSTEMS[0],
                "provider": "static",
                "offline_timeout": 20,
                "lease_ttl": 0,
                **draw(st.sampled_from([{}, {"max_uses": 2}, {"recycle_unclean": True}, {"unhealthy_after": 1}])),
            },
        },
    }
    config["accounts"] = {name: {"enforce_max_runtime": draw(st.booleans())} for name in ACCOUNTS}
    delays = st.sampled_from([0, 0, 3, 8])
    hosts = [{"id": f"hosts-{number}", "pool": "hosts"} for number in (1, 2, 3)]
    missing = [{"id": name, "pool": name.rpartition("-")[0], "state": "empty"} for name in SLOTS if "hosts" not in name]
    given = draw(st.lists(st.sampled_from(IDS), max_size=3, unique=True))
    later = [name for name in IDS if name not in given]
    items: list[tuple[float, str, Any]] = [
        (draw(st.integers(0, 30)), "submit", draw(wishes(name, elastic=elastic))) for name in later
    ]
    if elastic:
        items += [(at, *act) for at, act in draw(st.lists(st.tuples(st.integers(1, 60), elastic_words()), max_size=6))]
        for name in ("linux", "arm"):
            config["pools"][name]["launch_for_elastic"] = draw(st.booleans())
    items += [(at, *act) for at, act in draw(st.lists(st.tuples(st.integers(1, 60), actions()), max_size=12))]
    if draw(st.booleans()):
        error = draw(st.sampled_from(["capacity", "quota", "throttled", "misconfigured"]))
        items.append((0, "outage", {"pool": "linux", "error": error, "until": draw(st.integers(1, 70))}))
    items += [(at, "tick", True) for at in draw(st.lists(st.integers(0, 60), min_size=3, max_size=12))]
    order = {"submit": 0}
    timeline = [
        {"at": at, name: value} for at, name, value in sorted(items, key=lambda one: (one[0], order.get(one[1], 1)))
    ]
    return {
        "config": config,
        "cloud": {name: draw(delays) for name in ("launch", "boot", "bind", "terminate")},
        "slots": [*hosts, *missing],
        "reservations": [draw(wishes(name, elastic=elastic)) for name in given],
        "timeline": _declared(timeline, given),
        "until": 80,
    }


def _declared(timeline: list[Document], given: list[str]) -> list[Document]:
    """The timeline without actions on reservations and hosts that are not declared yet."""
    known, kept = set(given), []
    for item in timeline:
        value = next(value for name, value in item.items() if name != "at")
        if "submit" in item:
            known.add(value["id"])
        named = value.get("reservation") if isinstance(value, dict) else None
        if named is None or named in known:
            kept.append(item)
    return kept
