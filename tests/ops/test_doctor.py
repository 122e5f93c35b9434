"""The rules of the doctor, from observations to findings. On a stack: tests/system/test_doctor.py."""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from leasehold.doctor.examination import run_bounded
from leasehold.doctor.rules import (
    Finding,
    judge_access,
    judge_celery,
    judge_clock,
    judge_clocks,
    judge_console,
    judge_flower,
    judge_membership,
    judge_memory,
    judge_persistence,
    judge_queue,
    judge_redis_version,
    judge_rules,
    judge_schema,
    judge_ticks,
    judge_unread,
    list_outcomes,
    ok,
)
from scheduler.ports import ClusterRow, Remembered
from scheduler.protocol.clock import ProcessOffset
from tasks.app import make_app
from workers.settings import read_settings

ROW = ClusterRow(now=0.0, identity="a", term=7, token=9, restores=0, principals_version=1)


def outcomes(*findings: Finding) -> list[str]:
    return [finding.outcome for finding in findings]


@pytest.mark.parametrize(
    ("finding", "outcome"),
    [
        (judge_redis_version("v", {"redis_version": "6.2.14"}), "ok"),
        (judge_redis_version("v", {"redis_version": "10.0.0"}), "ok"),
        (judge_redis_version("v", {"redis_version": "6.0.16"}), "failure"),
        (judge_redis_version("v", {}), "failure"),
        # every Valkey is newer than Redis 6.2, whichever version it reports for old clients
        (judge_redis_version("v", {"redis_version": "6.0.0", "valkey_version": "9.1.2"}), "ok"),
        (judge_memory("m", {"maxmemory_policy": "noeviction", "maxmemory": 0}), "ok"),
        (judge_memory("m", {"maxmemory_policy": "volatile-ttl", "maxmemory": 100}), "failure"),
        (judge_persistence("p", {"aof_enabled": 1, "aof_last_write_status": "ok"}), "ok"),
        (judge_persistence("p", {"aof_enabled": 0}), "ok"),
        (judge_persistence("p", {"rdb_last_bgsave_status": "err"}), "failure"),
        (judge_access("a", "leasehold", None, needs_none=False), "ok"),
        (judge_access("a", "default", None, needs_none=False), "ok"),
        (judge_access("a", "default", "127.0.0.1 -::1", needs_none=True), "ok"),
        (judge_access("a", "default", "0.0.0.0", needs_none=True), "warning"),  # noqa: S104 - as Redis reports it
        # no bind: on all addresses
        (judge_access("a", "default", "", needs_none=True), "warning"),
        # other users do not help if the default user needs no password
        (judge_access("a", "leasehold", "*", needs_none=True), "warning"),
        # CONFIG is refused: the address is unknown
        (judge_access("a", "leasehold", None, needs_none=True), "warning"),
        (judge_unread("m", "producer", "INFO", "is it"), "warning"),
        # a second is allowed in both directions, and the duration of the measurement as well
        (judge_clock("c", 1.0, 0.0, "its"), "ok"),
        (judge_clock("c", 1.1, 0.0, "its"), "warning"),
        (judge_clock("c", -1.1, 0.0, "its"), "warning"),
        (judge_clock("c", 1.5, 0.6, "its"), "ok"),
        (judge_clocks([]), "ok"),
        (judge_clocks([ProcessOffset("beat", "alpha", -0.9)]), "ok"),
        (judge_clocks([ProcessOffset("beat", "alpha", 0.0), ProcessOffset("launch", "beta", -1.1)]), "failure"),
        (judge_ticks(14.9, 5), "ok"),
        (judge_ticks(15.1, 5), "failure"),
        (judge_ticks(None, 5), "failure"),
        # a report slightly in the future is accepted
        (judge_ticks(-0.2, 5), "ok"),
        (judge_membership(ROW, Remembered(identity="a", term=7, token=9)), "ok"),
        # an empty Redis joins the cluster of the database
        (judge_membership(ROW, Remembered()), "ok"),
        (judge_membership(ROW, Remembered(identity="b", term=1, token=1)), "failure"),
        (judge_membership(ROW, Remembered(identity="a", term=8, token=9)), "failure"),
        (judge_membership(ROW, Remembered(identity="a", term=7, token=10)), "failure"),
        (judge_membership(ROW, Remembered(identity="a", term=7, token=9, is_restoring=True)), "failure"),
        (judge_schema("0002", "0002"), "ok"),
        (judge_schema(None, "0002"), "failure"),
        (judge_schema("0003", "0002"), "failure"),
        (judge_schema("0001", "0002"), "failure"),
        (judge_rules(0, {}, None, {}), "failure"),
        (judge_rules(3, {"pools": {}}, None, {}), "ok"),
        (judge_rules(3, {"pools": {}}, "leasehold.toml", {"pools": {}}), "ok"),
        (judge_rules(3, {"pools": {}}, "leasehold.toml", {"pools": {"a": {}}}), "warning"),
        # a file with settings only contains no rules
        (judge_rules(3, {"pools": {}}, "leasehold.toml", {}), "ok"),
        (judge_console(refusal=None, has_way_in=True, trusts_loopback=False), "ok"),
        (judge_console(refusal=None, has_way_in=True, trusts_loopback=True), "warning"),
        (judge_console(refusal=None, has_way_in=False, trusts_loopback=False), "warning"),
        (judge_console(refusal="console.host: …", has_way_in=True, trusts_loopback=False), "failure"),
        (judge_flower(has_password=True, on_loopback=False, is_local_stack=False), "ok"),
        (judge_flower(has_password=False, on_loopback=True, is_local_stack=True), "ok"),
        # a worker's host, which runs no Flower
        (judge_flower(has_password=False, on_loopback=True, is_local_stack=False), "skipped"),
    ],
)
def test_observations_become_findings(finding: Finding, outcome: str) -> None:
    assert finding.outcome == outcome
    assert bool(finding.remedy) == (outcome in {"warning", "failure"})


def test_a_silent_queue_is_reported_with_its_length() -> None:
    assert judge_queue("launch", 0, 0.12, 5) == ok("queue launch", "answered in 0.1 s, 0 messages waiting")
    silent = judge_queue("launch", 7, None, 5)
    assert (silent.outcome, silent.text) == ("failure", "no worker answered in 5 s, 7 messages waiting")
    assert silent.remedy == (
        "Start a worker: python -m tasks.worker launch (or wait until the running one has processed the messages)."
    )


def our_conf(**changes: Any) -> Mapping[str, Any]:
    conf = make_app(read_settings()).conf
    names = (
        "broker_transport_options",
        "task_time_limit",
        "accept_content",
        "task_serializer",
        "task_acks_late",
        "task_reject_on_worker_lost",
        "task_create_missing_queues",
        "worker_prefetch_multiplier",
        "result_backend",
    )
    return {name: conf[name] for name in names} | changes


def test_our_own_settings_of_celery_are_safe() -> None:
    assert judge_celery(our_conf(), "5.6.3", "5.7.0").outcome == "ok"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"broker_transport_options": {"visibility_timeout": 240}}, "visibility_timeout 240 is not above twice"),
        ({"task_time_limit": None}, "visibility_timeout 300"),
        ({"accept_content": ["json", "pickle"]}, "other formats than JSON"),
        ({"task_serializer": "pickle"}, "other formats than JSON"),
        ({"task_acks_late": False}, "task_acks_late is False, not True"),
        ({"task_reject_on_worker_lost": True}, "task_reject_on_worker_lost"),
        ({"task_create_missing_queues": True}, "task_create_missing_queues"),
        ({"worker_prefetch_multiplier": 4}, "worker_prefetch_multiplier is 4, not 1"),
        ({"result_backend": "redis://"}, "result_backend"),
    ],
)
def test_an_unsafe_setting_of_celery_fails(changes: dict[str, Any], text: str) -> None:
    found = judge_celery(our_conf(**changes), "5.6.3", "5.7.0")
    assert found.outcome == "failure"
    assert text in found.text


def test_versions_that_lose_workers_cause_a_warning() -> None:
    """Celery 5.7 ends if it loses Redis while it has a message; a kombu before 5.7 reconnects and consumes nothing."""
    assert outcomes(judge_celery(our_conf(), "5.7.0", "5.7.0"), judge_celery(our_conf(), "5.6.3", "5.6.2")) == [
        "warning",
        "warning",
    ]


def test_a_check_that_never_ends_is_a_failure_and_keeps_its_findings() -> None:
    never = threading.Event()

    def look() -> Iterator[Finding]:
        yield ok("name", "known")
        never.wait()

    try:
        found = list(run_bounded("slow", look, -1.9))
    finally:
        never.set()
    assert [(finding.check, finding.outcome) for finding in found] == [("name", "ok"), ("slow", "failure")]


def test_an_unexpected_error_is_raised() -> None:
    def look() -> Iterator[Finding]:
        yield ok("name", "known")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(run_bounded("broken", look, 5))


def test_outcomes_are_counted() -> None:
    assert list_outcomes([ok("a", ""), judge_ticks(None, 5)]) == {"ok": 1, "warning": 0, "failure": 1, "skipped": 0}


@pytest.mark.parametrize(
    ("current", "relation", "remedy"),
    [("0001", "older", "Run `leasehold migrate`"), ("0003", "newer", "Upgrade Leasehold on this host")],
)
def test_an_older_and_a_newer_schema_have_different_remedies(current: str, relation: str, remedy: str) -> None:
    found = judge_schema(current, "0002")
    assert f"{relation} than this program" in found.text
    assert found.remedy.startswith(remedy)


def test_the_finding_on_clocks_names_each_process_and_the_hosts_to_correct() -> None:
    offsets = [
        ProcessOffset("beat", "alpha", 0.1),
        ProcessOffset("launch", "beta", 21.0),
        ProcessOffset("ticks", "gamma", -11.5),
    ]
    found = judge_clocks(offsets)
    assert found.text == (
        "launch on beta: the wall clock is 21.00 s ahead of cluster time;"
        " ticks on gamma: the wall clock is 11.50 s behind cluster time"
    )
    assert found.remedy.startswith("Let beta, gamma follow a time service (NTP: chrony,")


def test_a_foreign_redis_and_an_older_database_are_different_failures() -> None:
    foreign = judge_membership(ROW, Remembered(identity="b"))
    assert foreign.text == "Redis belongs to cluster b, the database to cluster a"
    older = judge_membership(ROW, Remembered(identity="a", term=8, token=9))
    assert older.text == (
        "the database of cluster a is an older state: it has term 7 and token 9, Redis has seen term 8 and token 9"
    )
    assert older.remedy is not None
    assert older.remedy.startswith("Run `leasehold restore --in-place`")
