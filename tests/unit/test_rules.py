"""Rules from outside: what is refused, with which message, and the meaning of their defaults."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.machines import Offering
from scheduler.model.pools import Pool, offering_key, slot_ids
from scheduler.model.rules import LimitRules, Rules, Scheduler, merge_rules, read_rules
from scheduler.model.validation import Document, InvalidInputError

A_NAME = "a name (letters, digits and ._:@/+-, at most 200 characters)"
A_DURATION = 'a duration >= 0 (seconds, or like "30s", "15m", "1h")'


def refusal(document: object) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        read_rules(document)
    return str(caught.value).split("\n")


def a_pool(**keys: Any) -> dict[str, Any]:
    return {"pools": {"linux": {"system": "x86_64-linux", "max_slots": 2, **keys}}}


def scheduler(**keys: Any) -> dict[str, Any]:
    return {"scheduler": keys}


@pytest.mark.parametrize(
    ("document", "line"),
    [
        # not a table
        (None, "config: expected a table, got null"),
        ([], "config: expected a table, got []"),
        ({"scheduler": "fifo"}, 'config.scheduler: expected a table, got "fifo"'),
        ({"pools": [1]}, "config.pools: expected a table, got [1]"),
        ({"pools": {"linux": 3}}, "config.pools.linux: expected a table, got 3"),
        ({"accounts": {"ci": 3}}, "config.accounts.ci: expected a table, got 3"),
        # unknown keys, near ones and far ones
        ({"schedler": {}}, 'config.schedler: expected a known key (did you mean "scheduler"?), got "schedler"'),
        ({"zzz": {}}, 'config.zzz: expected a known key, got "zzz"'),
        (scheduler(queu="fifo"), 'config.scheduler.queu: expected a known key (did you mean "queue"?), got "queu"'),
        (
            a_pool(max_slot=1),
            'config.pools.linux.max_slot: expected a known key (did you mean "max_slots"?), got "max_slot"',
        ),
        (
            a_pool(ec2={"imag": "a"}),
            'config.pools.linux.ec2.imag: expected a known key (did you mean "image"?), got "imag"',
        ),
        (
            a_pool(offerings=[{"name": "a"}, {"name": "b", "marke": "spot"}]),
            'config.pools.linux.offerings[1].marke: expected a known key (did you mean "market"?), got "marke"',
        ),
        # a key that looks like pydantic's own mark of a key
        ({"[key]": 1}, 'config.[key]: expected a known key, got "[key]"'),
        # keys that are no texts
        ({1: 2}, "config[1]: expected a text as key, got 1"),
        # names of a list
        (
            scheduler(queue="fifoo"),
            (
                "config.scheduler.queue: expected one of fifo, priority, size, dynsize, quota "
                '(did you mean "fifo"?), got "fifoo"'
            ),
        ),
        (scheduler(queue=[]), "config.scheduler.queue: expected one of fifo, priority, size, dynsize, quota, got []"),
        # true and false
        (scheduler(backfill=1), "config.scheduler.backfill: expected true or false, got 1"),
        (scheduler(backfill="true"), 'config.scheduler.backfill: expected true or false, got "true"'),
        # whole numbers: true is none, a text is none
        (scheduler(max_slots=True), "config.scheduler.max_slots: expected a whole number >= 0, got true"),
        (scheduler(max_slots="5"), 'config.scheduler.max_slots: expected a whole number >= 0, got "5"'),
        (scheduler(max_slots=-1), "config.scheduler.max_slots: expected a whole number >= 0, got -1"),
        (scheduler(max_slots=1.5), "config.scheduler.max_slots: expected a whole number >= 0, got 1.5"),
        (scheduler(max_slots=float("nan")), "config.scheduler.max_slots: expected a whole number >= 0, got nan"),
        (
            scheduler(max_slots=1e300),
            "config.scheduler.max_slots: expected a whole number >= 0 and at most 1e15, got 1e+300",
        ),
        (a_pool(max_leases_per_slot=0), "config.pools.linux.max_leases_per_slot: expected a whole number >= 1, got 0"),
        # durations
        (scheduler(restart_delay=-1), f"config.scheduler.restart_delay: expected {A_DURATION}, got -1"),
        (scheduler(restart_delay="5"), f'config.scheduler.restart_delay: expected {A_DURATION}, got "5"'),
        (scheduler(restart_delay=float("inf")), f"config.scheduler.restart_delay: expected {A_DURATION}, got inf"),
        (scheduler(interruption_grace=True), f"config.scheduler.interruption_grace: expected {A_DURATION}, got true"),
        # resources and labels
        (a_pool(resources={"cpus": "two"}), 'config.pools.linux.resources.cpus: expected a number >= 0, got "two"'),
        (a_pool(resources={"cpus": True}), "config.pools.linux.resources.cpus: expected a number >= 0, got true"),
        (a_pool(resources={"cpus": -0.5}), "config.pools.linux.resources.cpus: expected a number >= 0, got -0.5"),
        (a_pool(resources={"c us": 1}), f'config.pools.linux.resources.c us: expected {A_NAME}, got "c us"'),
        (a_pool(labels={"a": 3}), "config.pools.linux.labels.a: expected a text of at most 256 characters, got 3"),
        (
            a_pool(labels={"a": "\ud800"}),
            'config.pools.linux.labels.a: expected a text of whole characters, without NUL, got "\\ud800"',
        ),
        (
            a_pool(labels={"a": "b\0"}),
            'config.pools.linux.labels.a: expected a text of whole characters, without NUL, got "b\\u0000"',
        ),
        # names
        ({"pools": {"a b": {"system": "x", "max_slots": 1}}}, f'config.pools.a b: expected {A_NAME}, got "a b"'),
        (a_pool(system=""), f'config.pools.linux.system: expected {A_NAME}, got ""'),
        (a_pool(system="two\nlines"), f'config.pools.linux.system: expected {A_NAME}, got "two\\nlines"'),
        # what a pool needs
        ({"pools": {"linux": {"max_slots": 1}}}, "config.pools.linux.system: expected a value, got nothing"),
        (
            a_pool(max_slots=None),
            "config.pools.linux.max_slots: expected a whole number >= 0 (an ec2 pool needs it), got null",
        ),
        (a_pool(min_slots=3), "config.pools.linux.min_slots: expected at most max_slots (2), got 3"),
        # only on-demand machines are stopped
        (
            a_pool(stopped_slots=1),
            (
                "config.pools.linux.stopped_slots: expected 0 in a pool without an on-demand offering"
                " (a spot machine is never stopped), got 1"
            ),
        ),
        (
            a_pool(stopped_slots=1, offerings=[{"name": "a", "market": "spot"}]),
            (
                "config.pools.linux.stopped_slots: expected 0 in a pool without an on-demand offering"
                " (a spot machine is never stopped), got 1"
            ),
        ),
        (
            a_pool(stopped_slots=3, offerings=[{"name": "a", "market": "on-demand"}]),
            "config.pools.linux.stopped_slots: expected at most max_slots (2), got 3",
        ),
        (
            a_pool(stopped_slots=1, provider="static"),
            "config.pools.linux.stopped_slots: expected 0 in a static pool (its machines are not launched), got 1",
        ),
        (
            a_pool(offerings=[{"name": "a"}, {"name": "a"}]),
            'config.pools.linux.offerings: expected offerings that differ in name, market or zone, got "a/spot/any"',
        ),
        (a_pool(offerings={"name": "a"}), 'config.pools.linux.offerings: expected a list, got {"name": "a"}'),
        # launch templates are named with a version, and never with $Latest
        (
            a_pool(ec2={"launch_template": "a"}),
            "config.pools.linux.ec2.launch_template_version: expected the number of a version, got null",
        ),
        (
            a_pool(ec2={"launch_template": "a", "launch_template_version": "$Latest"}),
            'config.pools.linux.ec2.launch_template_version: expected a whole number >= 1, got "$Latest"',
        ),
        # user data is never shown
        (
            a_pool(ec2={"user_data": "x" * 12_001}),
            'config.pools.linux.ec2.user_data: expected a text of at most 12000 characters, got "12001 characters"',
        ),
        (
            a_pool(ec2={"user_data": "x\0"}),
            'config.pools.linux.ec2.user_data: expected a text of whole characters, without NUL, got "2 characters"',
        ),
        # probes
        (
            a_pool(probe={"kind": "tcp"}),
            "config.pools.linux.probe.port: expected a port for a probe of kind tcp, got null",
        ),
        (a_pool(probe={"port": 65_536}), "config.pools.linux.probe.port: expected a port of at most 65535, got 65536"),
        (
            a_pool(probe={"kind": "command"}),
            "config.pools.linux.probe.command: expected a command for a probe of kind command, got []",
        ),
        (a_pool(probe={"command": "ls"}), 'config.pools.linux.probe.command: expected a list, got "ls"'),
        # accounts
        (
            {"accounts": {"ci": {"charge_rate": [float("nan")]}}},
            "config.accounts.ci.charge_rate: expected a list of at most 5 numbers >= 0, got [NaN]",
        ),
    ],
)
def test_a_wrong_document_is_refused_with_one_line(document: object, line: str) -> None:
    assert refusal(document) == [line]


def test_every_fault_is_reported_in_the_order_of_the_document() -> None:
    document = {**scheduler(queue="lifo", max_slots=-1), **a_pool(min_slots=3, max_slots=2)}
    assert [line.partition(":")[0] for line in refusal(document)] == [
        "config.scheduler.queue",
        "config.scheduler.max_slots",
        "config.pools.linux.min_slots",
    ]


def test_all_faults_of_one_table_are_reported() -> None:
    twice = [{"name": "a"}, {"name": "a"}]
    assert [line.partition(":")[0] for line in refusal(a_pool(min_slots=3, offerings=twice))] == [
        "config.pools.linux.min_slots",
        "config.pools.linux.offerings",
    ]


def test_an_empty_document_is_all_defaults() -> None:
    assert read_rules({}) == Rules()
    assert read_rules({"scheduler": {}, "pools": {}, "accounts": {}}) == Rules()


def test_the_defaults_are_those_of_the_contract() -> None:
    """As docs/reference/configuration.md shows them; durations in seconds."""
    pool = read_rules(a_pool()).pools["linux"]
    assert Scheduler().model_dump() == {
        "queue": "fifo",
        "profile": "pack",
        "elastic": "yielding",
        "backfill": True,
        "starvation_guard": 3600,
        "guard": "shadow",
        "guard_depth": 1,
        "preemption": True,
        "preemption_grace": 30,
        "min_run_time": 0,
        "interruption_grace": None,
        "restart_delay": 15,
        "max_restarts": 0,
        "max_unconfirmed": 0,
        "adoption_timeout": 60,
        "confirm_timeout": 0,
        "charge_by": "lease",
        "max_slots": 0,
        "share_cores": True,
        "dynsize_decay": 256,
        "system": {},
    }
    assert pool.model_dump(exclude={"system", "max_slots", "ec2", "probe", "replacement", "schedules", "market"}) == {
        "provider": "ec2",
        "min_slots": 0,
        "target_warm_slots": 0,
        "stopped_slots": 0,
        "resize_stopped": False,
        "storage_price": 0,
        "max_leases_per_slot": None,
        "launch_for_elastic": False,
        "default_resources": {},
        "idle_scale_down": 300,
        "reservation_ttl": 0,
        "lease_ttl": 1200,
        "launch_timeout": 300,
        "boot_timeout": 600,
        "binding_timeout": 180,
        "drain_timeout": 0,
        "terminating_timeout": 300,
        "agent": False,
        "offline_timeout": 180,
        "error_cooldown": 60,
        "capacity_hold": 60,
        "quota_hold": 60,
        "max_uses": 0,
        "recycle_unclean": False,
        "on_demand_after": 0,
        "unhealthy_after": 3,
        "self_end_after": 1800,
        "rebalance": "drain",
        "maintenance": "drain",
        "resources": None,
        "labels": {},
        "offerings": (),
        "price_factor": 1.5,
    }
    assert LimitRules().model_dump() == {
        "instances_per_reservation": 10_000,
        "components_per_reservation": 100,
        "labels_per_reservation": 256,
        "pending_per_principal": 1_000_000,
        "instances_per_principal": 2_000_000,
        "pending_per_account": 1_000_000,
        "instances_per_account": 2_000_000,
        "work_per_tick": 20_000,
    }


def test_a_static_pool_needs_no_max_slots() -> None:
    rules = read_rules({"pools": {"hosts": {"system": "x", "provider": "static"}}})
    assert list(slot_ids("hosts", rules.pools["hosts"])) == []


def test_an_ec2_pool_has_numbered_slots() -> None:
    assert list(slot_ids("linux", read_rules(a_pool()).pools["linux"])) == ["linux-1", "linux-2"]


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert read_rules(a_pool(max_slots=3.0, max_leases_per_slot=2.0)) == read_rules(
        a_pool(max_slots=3, max_leases_per_slot=2)
    )


def test_on_demand_may_be_written_with_an_underscore() -> None:
    assert Offering.model_validate({"name": "a", "market": "on_demand"}).market == "on-demand"


@pytest.mark.parametrize(
    ("keys", "limit"),
    [
        ({}, 1),
        ({"max_leases_per_slot": 4}, 4),
        ({"resources": {"cpus": 4}}, float("inf")),
        ({"offerings": [{"name": "a"}]}, float("inf")),
        ({"resources": {"cpus": 4}, "max_leases_per_slot": 4}, 4),
    ],
)
def test_a_slot_takes_one_lease_unless_resources_decide(keys: dict[str, Any], limit: float) -> None:
    assert read_rules(a_pool(**keys)).pools["linux"].lease_limit == limit


def test_an_offering_has_the_shortest_key_that_is_its_own() -> None:
    offerings = [
        {"name": "small"},
        {"name": "large"},
        {"name": "large", "market": "on-demand", "zone": "a"},
        {"name": "large", "market": "on-demand"},
    ]
    pool = read_rules(a_pool(offerings=offerings)).pools["linux"]
    assert [offering_key(pool, offering) for offering in pool.offerings] == [
        "small",
        "large/spot",
        "large/on-demand/a",
        "large/on-demand/any",
    ]
    assert list(pool.offering_by_key) == [offering_key(pool, offering) for offering in pool.offerings]


def test_the_pools_of_a_system_are_in_the_order_of_the_configuration() -> None:
    pools = {name: {"system": "x", "max_slots": 1} for name in ("b", "a")}
    rules = read_rules({"pools": {**pools, "c": {"system": "y", "max_slots": 1}}})
    assert rules.serving_pools(None, "x") == ("b", "a")
    assert rules.serving_pools("a", None) == ("a",)
    assert rules.serving_pools("nobody", "x") == ()
    assert rules.serving_pools(None, None) == ()


def test_partial_rules_are_laid_over_table_by_table_and_lists_replaced() -> None:
    rules = {"scheduler": {"queue": "fifo", "backfill": True}, "pools": {"a": {"offerings": [1, 2], "min_slots": 1}}}
    changes = {"scheduler": {"queue": "size"}, "pools": {"a": {"offerings": [3]}, "b": {}}}
    assert merge_rules(rules, changes) == {
        "scheduler": {"queue": "size", "backfill": True},
        "pools": {"a": {"offerings": [3], "min_slots": 1}, "b": {}},
    }
    assert rules["pools"] == {"a": {"offerings": [1, 2], "min_slots": 1}}


def known_words() -> list[str]:
    models: list[type[Document]] = [Rules, Scheduler, Pool, Offering]
    return [key for model in models for key in model.model_fields] + ["linux", "ec2", "probe", "[key]", "", "\ud800"]


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(["30s", "fifo", "spot"])
)
keys = st.one_of(st.sampled_from(known_words()), st.text(max_size=5), st.integers(0, 3))
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=20,
)
pool_junk = st.dictionaries(st.sampled_from(list(Pool.model_fields)), junk, max_size=6)


# No deadline: how long an example takes depends on the machine.
@given(st.one_of(junk, st.builds(lambda keys: a_pool(**keys), pool_junk)))
def test_junk_is_read_or_refused_with_lines_that_can_be_printed(document: object) -> None:
    faults = list_refused(document)
    assert len("\n".join(faults).encode().split(b"\n")) == max(len(faults), 1)


def list_refused(document: object) -> list[str]:
    """Return the lines of a refusal, or []. Any other error is a fault of the product."""
    try:
        read_rules(document)
    except InvalidInputError as error:
        return [str(fault) for fault in error.faults]
    return []
