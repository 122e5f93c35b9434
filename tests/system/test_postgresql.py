"""`leasehold up` on PostgreSQL instead of SQLite."""

from pathlib import Path

import pytest

from leasehold.stack import Stack
from scheduler.model.transitions import PHASES
from scheduler.store.migrating import schema_state
from testbed.postgresql_server import PostgresServer
from testbed.processes import wait_for
from testbed.proxy import Proxy
from testbed.stack import IMAGE

pytestmark = pytest.mark.timeout(120)
POOL = {"system": "x86_64-linux", "max_slots": 1, "max_leases_per_slot": 4, "ec2": {"image": IMAGE}}


def read_log(folder: Path, name: str) -> str:
    return "".join(path.read_text() for path in folder.rglob(f"*{name}*.log"))


def test_a_stack_on_postgresql_migrates_serves_and_survives_lost_connections(
    tmp_path: Path, postgresql_server: PostgresServer
) -> None:
    """The supervisor creates the tables. The configuration file names the database. Its address leads to a standby for
    a while.
    """
    name = postgresql_server.create_database()
    standby = postgresql_server.start_standby()
    try:
        with Proxy(postgresql_server.port) as proxy:
            url = postgresql_server.url(name).replace(f":{postgresql_server.port}/", f":{proxy.port}/")
            (tmp_path / "leasehold.toml").write_text(f'[database]\nurl = "{url}"\n')
            with Stack(tmp_path, rules={"pools": {"linux": POOL}}, emulator={"boot_seconds": 0.1}) as stack:
                with stack.client() as client:
                    with client.lease(id="first", system="x86_64-linux", wait=60):
                        assert postgresql_server.end_connections(name) > 0
                    with client.lease(id="second", system="x86_64-linux", wait=60):
                        proxy.target = standby.port
                        proxy.cut()
                        wait_for(lambda: "the server is a standby" in read_log(tmp_path, "ticks"), "a tick there")
                        proxy.target = postgresql_server.port
                    with client.lease(id="third", system="x86_64-linux", wait=60):
                        pass
                store, nothing = stack.open_store(), dict.fromkeys(PHASES, 0)
                wait_for(lambda: store.count_phases() == {**nothing, "released": 3}, "all to be released")
                store.close()
            assert schema_state(url).is_current
        assert not list(tmp_path.rglob("*.db"))
        logs = "".join(path.read_text() for path in tmp_path.rglob("*.log"))
        assert logs
        assert postgresql_server.password not in logs
    finally:
        standby.remove()
        postgresql_server.drop_database(name)
