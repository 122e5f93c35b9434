"""A command on a lease with real workers: submitted by a client, taken by a host, its outcome read by the client."""

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

import pytest

from leasehold.client.client import Client
from leasehold.errors import Refused
from scheduler.operations.principals import add_principal, change_right
from scheduler.ports import EventFilter
from scheduler.protocol.signing import RunFields, format_key_line, is_run_signed_by, read_key
from testbed.processes import wait_for
from testbed.stack import Stack

SECRET = f"s3cr3t-{uuid4().hex}"
POOLS = {"lab": {"system": "lab-linux", "provider": "static", "lease_ttl": 600, "offline_timeout": 60}}
NONCE = "n" * 32


class OpenStack(Stack):
    """A stack with `access.mode = open` that `leasehold up` has not started, so it is not its owner's own."""

    def sign_as(self, role: str, name: str, *rights: str) -> Client:
        """Add a principal and return a client that signs as this principal."""
        row = add_principal(self.services.ports.store, {"name": name, "role": role, "rights": [*rights]})
        self.keys = {**getattr(self, "keys", {}), name: read_key(row.key)}
        identity = self.services.ports.store.read_cluster().identity
        return Client(self.redis_url("leasehold"), key=format_key_line(name, row.key, identity), timeout=20)

    def unsigned(self) -> Client:
        return Client(self.redis_url("leasehold"), timeout=20)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStack]:
    with OpenStack(tmp_path_factory.mktemp("lab"), {"pools": POOLS}, ACCESS__MODE="open") as running:
        yield running


def test_a_command_goes_from_its_submitter_to_a_host_and_its_outcome_back(lab: OpenStack) -> None:
    run = {"argv": ["job", SECRET], "env": {"PASSWORD": SECRET}}
    document = {"id": "r1", "pool": "lab", "run": run}
    with lab.sign_as("producer", "night") as night, lab.sign_as("host", "lab-1") as host, lab.unsigned() as other:
        for client in (night, other):
            with pytest.raises(Refused, match="run: expected"):
                client.submit(document)
        change_right(lab.services.ports.store, "night", "run", has_it=True)
        wait_for(lambda: _submit(night, document), "the right, within a second")
        host.hosts.register("lab-1", pool="lab", machine="m1", run="agent-1")
        host.hosts.heartbeat("lab-1", "m1", None, "agent-1")
        leased = night.wait("r1", "leased", 60)
        (lease,) = host.hosts.leases("lab-1", "m1", run="agent-1").leases
        assert (lease.reservation, lease.token, lease.has_command) == ("r1", leased.token, True)
        named: dict[str, Any] = {
            "run": "agent-1",
            "reservation": "r1",
            "component": lease.component,
            "token": lease.token,
        }
        with pytest.raises(Refused, match="principal: expected"):
            other.hosts.take("lab-1", "m1", **named, nonce=NONCE)
        taken = host.hosts.take("lab-1", "m1", **named, nonce=NONCE)
        assert SECRET in taken.command
        digest = hashlib.sha256(taken.command.encode()).hexdigest()
        identity = lab.services.ports.store.read_cluster().identity
        fields = RunFields(
            identity, "lab-1", "lab-1", "m1", "agent-1", "r1", lease.component, str(lease.token), NONCE, digest
        )
        assert is_run_signed_by(lab.keys["lab-1"], fields, taken.signature)
        assert host.hosts.started("lab-1", "m1", **named).ok
        renewed = host.renew("r1", lease.token)
        assert renewed.ttl is not None
        report: Any = {**named, "tail": "half\n", "bytes": 5}
        del report["run"]
        assert [each.ok for each in host.hosts.output("lab-1", "m1", run="agent-1", reports=[report])] == [True]
        assert [each.tail for each in night.command("r1").executions] == ["half\n"]
        assert host.hosts.exited("lab-1", "m1", **named, why="exited", exit_code=3, tail="half\nend\n", bytes=9).ok
        found = night.command("r1")
        assert (found.phase, found.why, found.exit_code) == ("failed", "exited", 3)
        assert [each.tail for each in found.executions] == ["half\nend\n"]
        assert found.run["env"] == {"PASSWORD": "***"}
        assert "exited with the code 3" in str(night.explain("r1"))
        with pytest.raises(Refused, match="principal: expected"):
            other.command("r1")
    events = lab.services.ports.store.read_events(EventFilter())
    view = [lab.redis.hgetall(key) for key in lab.redis.scan_iter("leasehold:view:*", _type="hash")]
    for shown in (lab.read_logs(), str(events), str(view)):
        assert SECRET not in shown


def _submit(client: Client, document: Mapping[str, Any]) -> bool:
    try:
        return client.submit(document).id == "r1"
    except Refused:
        return False
