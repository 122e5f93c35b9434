"""A cluster that an older version left running is upgraded: its rows are read, its leases stay, its holders renew.

`recorded/` has the state of commit 7e014dc, the last one before modules and classes got their present names: the SQLite
file, the Redis keys as DUMP returned them, with their remaining times to live, and the rows as that version read them.
The revisions before release 0.1.0 brought the file to revision 0023, the last of them. The cluster has a lease that was
confirmed and renewed, a gang with elastic instances, a lease on a static host, one that an account pays for, one whose
machine will be interrupted, a released and two pending reservations.
"""

import base64
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import redis

from scheduler.model.reservations import Reservation, is_over
from scheduler.model.rules import merge_rules
from scheduler.model.view import ROW_TYPES, View
from scheduler.operations.membership import JUMP
from scheduler.store.migrating import migrate
from scheduler.store.opening import open_store
from scheduler.view.redis_ports import RedisHeartbeats, RedisLeaderLock, RedisRecord
from scheduler.view.redis_view_cache import RedisViewCache
from testbed.servers import redis_client, redis_server, redis_url
from tests.operations.harness import CountingFleet, Harness
from tests.store.test_migrating import read_schema
from tests.view.rows import as_in_view

__all__ = ["redis_client", "redis_server", "redis_url"]

RECORDED = Path(__file__).with_name("recorded")
HELD = {"single": 1, "gang": 5, "on-host": 1, "paid": 1}
"""Reservations with leases that must survive, and the number of their leases."""


class UpgradedCluster(Harness):
    """A process of this version on the recorded database and Redis, at the time of the recording."""

    def __init__(self, database: Path, client: redis.Redis) -> None:
        self.client = client
        self.document = json.loads((RECORDED / "redis.json").read_text(encoding="utf-8"))
        self.now = self.document["now"]
        store = open_store(f"sqlite:///{database}", self.clock)
        super().__init__(store.load_rules().document, store=store, fleet=_find_machines(store.find_slots()))

    def restart(self) -> None:
        """See Harness: a new process on the same Redis."""
        super().restart()
        self.ports.view_cache = RedisViewCache(self.client)
        self.ports.lock = RedisLeaderLock(self.client)
        self.ports.heartbeats = RedisHeartbeats(self.client)
        self.ports.record = RedisRecord(self.client)

    def rows(self) -> dict[str, dict[str, Any]]:
        """The rows in the database, as plain values."""
        store = self.store
        found: dict[str, list[Any]] = {
            "slots": [*store.find_slots()],
            "reservations": [*store.find_reservations()],
            "accounts": [*store.find_accounts()],
        }
        return {kind: {row.id: json.loads(msgspec.json.encode(row)) for row in rows} for kind, rows in found.items()}

    def reservation(self, name: str) -> Reservation:
        return self.store.find_reservations(ids=[name])[0]


def _find_machines(slots: Any) -> CountingFleet:
    fleet = CountingFleet()
    for slot in slots:
        if slot.instance_id is not None:
            fleet.appear(slot.instance_id, slot.id, pool=slot.pool, launch_id=slot.launch_id)
    return fleet


@pytest.fixture(params=["redis keeps running", "redis was restarted"])
def cluster(request: pytest.FixtureRequest, tmp_path: Path, redis_client: redis.Redis) -> Iterator[UpgradedCluster]:
    """The recorded cluster. If Redis keeps running, the recorded view stays valid: it names the run id of Redis."""
    database = tmp_path / "leasehold.db"
    database.write_bytes(gzip.decompress((RECORDED / "state.db.gz").read_bytes()))
    recorded = json.loads((RECORDED / "redis.json").read_text(encoding="utf-8"))
    for key, (ttl_ms, dumped) in recorded["keys"].items():
        redis_client.restore(key, ttl_ms, base64.b64decode(dumped))
    if request.param == "redis keeps running":
        run_id = redis_client.info("server")["run_id"]
        generation = cast("bytes", redis_client.get("leasehold:view:generation")).decode()
        redis_client.set("leasehold:view:generation", generation.replace(recorded["run_id"], run_id))
    migrate(f"sqlite:///{database}")
    upgraded = UpgradedCluster(database, redis_client)
    yield upgraded
    upgraded.store.close()


def test_the_schema_that_earlier_revisions_made_is_that_of_a_new_database(tmp_path: Path) -> None:
    recorded, new = tmp_path / "recorded.db", tmp_path / "new.db"
    recorded.write_bytes(gzip.decompress((RECORDED / "state.db.gz").read_bytes()))
    assert migrate(f"sqlite:///{new}")[0] == "0023"
    migrate(f"sqlite:///{recorded}")
    assert read_schema(f"sqlite:///{recorded}") == read_schema(f"sqlite:///{new}")


LATER: dict[str, dict[str, Any]] = {
    "accounts": {"enforce_max_runtime": False},
    "leases": {"revoke_reason": None},
    "reservations": {
        "run": None,
        "sender": None,
        "planned_start": None,
        "request": {"expected_runtime": None, "max_runtime": None},
    },
    "slots": dict.fromkeys(
        [
            "batch",
            "launched_for",
            "meter",
            "launched_at",
            "launch_digest",
            "gang",
            "power",
            "storage_price",
            "refusal",
            "subnet",
            "run",
        ]
    ),
}
"""Kind of row → the fields that were added after the recording, with the values that recorded rows get."""


def test_the_rows_are_read_as_the_older_version_read_them(cluster: UpgradedCluster) -> None:
    recorded = json.loads((RECORDED / "rows.json").read_text(encoding="utf-8"))
    expected = {
        kind: {name: merge_rules(row, LATER.get(kind, {})) for name, row in rows.items()}
        for kind, rows in recorded.items()
    }
    for row in expected["reservations"].values():
        row["leases"] = [lease | LATER["leases"] for lease in row["leases"]]
    assert cluster.rows() == expected


def test_the_view_is_valid_if_redis_keeps_running_and_is_rebuilt_after_a_restart(
    cluster: UpgradedCluster, request: pytest.FixtureRequest
) -> None:
    loaded = cluster.ports.view_cache.load()
    if "keeps running" in request.node.callspec.id:
        assert loaded is not None
        assert _list_live_rows(loaded) == _list_live_rows(View(cluster.store.read_rows()))
    else:
        assert loaded is None
    cluster.tick()
    view = cluster.ports.view_cache.load()
    assert view is not None
    # The view of the older version has user data, which the first tick has removed.
    assert _list_live_rows(view) == _list_live_rows(View(as_in_view(cluster.store.read_rows())))
    assert len(view.reservations) >= len(HELD) + 3


def _list_live_rows(view: View) -> dict[str, Any]:
    """The rows without ended reservations, which expire in Redis by its own clock."""
    rows: dict[str, Any] = {kind: dict(view.rows(kind)) for kind in ROW_TYPES if kind != "reservations"}
    return {**rows, "reservations": {name: row for name, row in view.reservations.items() if not is_over(row)}}


def test_a_tick_runs_with_a_higher_term_and_keeps_every_lease(cluster: UpgradedCluster) -> None:
    before = {name: cluster.reservation(name) for name in HELD}
    term = cluster.store.load_leader_term().term
    for _ in range(3):
        cluster.now += 5
        cluster.client.set("leasehold:heartbeat:lab-1", "machine-of-lab-1", ex=86400)
        cluster.tick()
        cluster.play_tasks()
    for name, row in before.items():
        now = cluster.reservation(name)
        assert (now.phase, now.token, len(now.leases)) == ("leased", row.token, HELD[name])
        assert [(each.slot, each.epoch, each.token) for each in now.leases] == [
            (each.slot, each.epoch, each.token) for each in row.leases
        ]
    assert term < cluster.store.load_leader_term().term < JUMP
    assert cluster.reservation("interrupted").phase == "revoking"
    assert cluster.fleet.terminations == []


def test_holders_renew_with_the_tokens_that_they_have(cluster: UpgradedCluster) -> None:
    cluster.now += 60
    for name in HELD:
        row = cluster.reservation(name)
        assert cluster.ask("renew", reservation=name, token=row.token)["ok"]
        assert cluster.reservation(name).expires_at == cluster.now + 600
        refused = cluster.ask("renew", reservation=name, token=row.token + 100)
        assert refused["errors"][0]["path"] == "token"


def test_a_repeated_request_gets_the_answer_that_the_older_version_stored(cluster: UpgradedCluster) -> None:
    answer = cluster.ask("renew", reservation="single", token=cluster.token("single"), request="renewal-of-single")
    assert answer["expires_at"] == cluster.reservation("single").expires_at == cluster.document["now"] - 3 + 600
    assert answer["ok"]


def test_a_released_slot_is_leased_again_with_a_higher_token(cluster: UpgradedCluster) -> None:
    highest = max(row["token"] or 0 for row in cluster.rows()["reservations"].values())
    assert cluster.ask("release", reservation="single", token=cluster.token("single"))["ok"]
    assert cluster.submit("next", resources={"cpus": 2})["ok"]
    cluster.now += 5
    cluster.tick()
    after = cluster.reservation("next")
    assert (after.phase, [each.slot for each in after.leases]) == ("leased", ["linux-1"])
    assert after.token > highest
