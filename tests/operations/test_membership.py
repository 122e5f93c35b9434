"""The check that database, Redis and machines belong to the same cluster."""

import json
from contextlib import closing
from pathlib import Path

import pytest
import redis

from leasehold.stack.configuration import find_free_port
from scheduler.operations.machines.reconcile import ORPHAN_SECONDS, reconcile
from scheduler.operations.membership import MembershipCheck, check_membership
from scheduler.ports import (
    CloudError,
    DatabaseWentBackError,
    ForeignClusterError,
    ForeignMachineError,
    Remembered,
    ViewUnavailableError,
)
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from scheduler.view.connection import make_redis
from scheduler.view.redis_ports import RedisRecord
from testbed.servers import find_redis, redis_client, redis_server, redis_url
from tests.operations.harness import NOW, Harness
from workers.services import find_foreign
from workers.settings import read_settings

__all__ = ["find_redis", "redis_client", "redis_server", "redis_url"]


@pytest.fixture
def record(redis_client: redis.Redis) -> RedisRecord:
    return RedisRecord(redis_client)


def with_record(record: RedisRecord) -> Harness:
    harness = Harness()
    harness.ports.record = record
    return harness


def test_an_empty_redis_is_taken_over_by_the_first_cluster(record: RedisRecord) -> None:
    harness = with_record(record)
    row = check_membership(harness.ports)
    assert record.read() == Remembered(identity=row.identity, term=row.term, token=row.token)


def test_a_redis_of_another_cluster_is_refused_with_both_names(record: RedisRecord) -> None:
    first, second = with_record(record), with_record(record)
    check_membership(first.ports)
    with pytest.raises(ForeignClusterError) as refused:
        check_membership(second.ports)
    for harness in (first, second):
        assert harness.store.read_cluster().identity in str(refused.value)
    with pytest.raises(ForeignClusterError):
        second.tick()
    assert record.read().identity == first.store.read_cluster().identity


def test_a_tick_writes_the_record_again_after_a_flush(record: RedisRecord, redis_client: redis.Redis) -> None:
    harness = with_record(record).leased()
    redis_client.flushall()
    harness.tick()
    row = harness.store.read_cluster()
    assert row.token > 0
    assert record.read() == Remembered(identity=row.identity, term=row.term, token=row.token)


@pytest.mark.parametrize("ahead", [(1, 0), (0, 1)])
def test_a_database_below_what_redis_remembers_is_refused_with_the_command(
    record: RedisRecord, ahead: tuple[int, int]
) -> None:
    harness = with_record(record).leased()
    row = harness.store.read_cluster()
    record.keep(row.identity, row.term + ahead[0], row.token + ahead[1])
    with pytest.raises(DatabaseWentBackError, match="`leasehold restore --in-place`"):
        harness.tick()


@pytest.mark.parametrize("text", [b"", b"garbage", b"\xff\xfe"])
def test_a_text_in_redis_that_is_no_identity_is_replaced_by_that_of_the_database(
    record: RedisRecord, redis_client: redis.Redis, text: bytes
) -> None:
    harness = with_record(record).leased()
    redis_client.set("leasehold:cluster", text)
    check_membership(harness.ports)
    assert record.read().identity == harness.store.read_cluster().identity
    harness.tick()


@pytest.mark.parametrize(
    "second",
    [
        pytest.param({"view": {"prefix": "second:"}}, id="another prefix"),
        pytest.param({"view": {"url": "SECOND"}}, id="another database of Redis for the view"),
    ],
)
def test_a_second_cluster_whose_queues_are_in_the_same_database_of_redis_is_refused_at_its_start(
    redis_url: str, tmp_path: Path, second: dict[str, dict[str, str]]
) -> None:
    own = json.loads(json.dumps(second).replace("SECOND", redis_url.replace("/0", "/1")))
    urls = [f"sqlite:///{tmp_path}/{name}.db" for name in ("first", "second")]
    for url in urls:
        migrate(url)
    common = {"broker": {"url": redis_url}}
    first, other = (
        read_settings({**common, "database": {"url": url}, **keys}) for url, keys in zip(urls, ({}, own), strict=True)
    )
    assert find_foreign(first) is None
    line = find_foreign(other)
    assert line is not None
    for url in urls:
        with closing(open_store(url)) as store:
            assert store.read_cluster().identity in line
    assert find_foreign(first) is None


def test_a_cluster_that_takes_the_record_over_also_takes_that_of_its_queues_over(redis_client: redis.Redis) -> None:
    queues = RedisRecord(redis_client)
    own = RedisRecord(redis_client, "own:", [queues])
    queues.keep("1" * 32, 5, 5)
    own.end_restore("2" * 32, 6, 6)
    assert [each.read().identity for each in (own, queues)] == ["2" * 32] * 2


def test_ticks_are_refused_during_a_restore(record: RedisRecord) -> None:
    harness = with_record(record)
    record.begin_restore()
    with pytest.raises(DatabaseWentBackError, match="is being restored"):
        harness.tick()


def test_without_redis_the_database_alone_is_checked() -> None:
    with make_redis(f"redis://127.0.0.1:{find_free_port()}/0") as client:
        harness = with_record(RedisRecord(client))
        assert check_membership(harness.ports) == harness.store.read_cluster()
        with pytest.raises(ViewUnavailableError):
            harness.ports.record.read()  # type: ignore[union-attr] # proves that Redis is unreachable


def test_a_successful_check_is_kept_for_a_second_and_a_failed_one_is_not(record: RedisRecord) -> None:
    clock = [0.0]
    harness, check = with_record(record), MembershipCheck(lambda: clock[0])
    check.ensure(harness.ports)
    record.begin_restore()
    check.ensure(harness.ports)
    clock[0] = 1.0
    for _ in range(2):
        with pytest.raises(DatabaseWentBackError):
            check.ensure(harness.ports)
    row = harness.store.read_cluster()
    record.end_restore(row.identity, row.term, row.token)
    check.ensure(harness.ports)


def test_a_launch_request_has_the_cluster_and_the_numbers_of_that_time() -> None:
    harness = Harness().leased()
    (machine,) = harness.fleet.machines.values()
    row = harness.store.read_cluster()
    assert (machine.cluster_id, machine.highest_term) == (row.identity, row.term)
    assert machine.highest_token <= row.token


def test_machines_of_another_cluster_are_not_changed_and_named_in_the_error() -> None:
    harness = Harness()
    harness.fleet.appear("i-foreign", "linux-1", launched_at=NOW - ORPHAN_SECONDS, cluster_id="another")
    harness.fleet.appear("i-orphan", "windows-1", pool="windows", launched_at=NOW - ORPHAN_SECONDS)
    with pytest.raises(ForeignMachineError) as refused:
        reconcile(harness.ports)
    assert "i-foreign" in str(refused.value)
    assert "another" in str(refused.value)
    assert harness.store.read_cluster().identity in str(refused.value)
    assert harness.fleet.terminations == ["i-orphan"]
    assert harness.slot().state == "empty"


def test_a_machine_without_identity_is_claimed_when_a_slot_knows_its_launch() -> None:
    harness = Harness().leased()
    (name,) = harness.fleet.running
    launch_id = harness.slot().launch_id
    harness.fleet.appear(name, harness.slot().id, launch_id=launch_id, launched_at=NOW)
    harness.fleet.appear("i-unknown", "linux-3", launched_at=NOW)
    reconcile(harness.ports)
    assert harness.fleet.machines[name].cluster_id == harness.store.read_cluster().identity
    assert harness.fleet.machines["i-unknown"].cluster_id is None


def test_without_permission_to_tag_the_sweep_continues(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness().leased()
    (name,) = harness.fleet.running
    harness.fleet.appear(name, harness.slot().id, launch_id=harness.slot().launch_id, launched_at=NOW)

    def refuse(machines: object, cluster_id: object) -> None:
        raise CloudError("auth", "UnauthorizedOperation", "no right to tag")

    monkeypatch.setattr(harness.fleet, "claim", refuse)
    assert reconcile(harness.ports).strangers == 0
