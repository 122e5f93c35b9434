"""What the client and the workers agree on."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from leasehold.client import discovery, models
from leasehold.client.redis import transport
from scheduler.model import accounts
from scheduler.model import reservations as stored
from scheduler.model import slots as stored_slots
from scheduler.model.reservations import cost_until
from scheduler.operations.commands.submit import describe_answer
from scheduler.policy.quota.accounting import settle
from scheduler.protocol.names import RedisNames
from scheduler.view import connection, redis_ports
from tests.builders import a_lease, a_reservation
from workers import settings


def test_the_client_reads_answers_from_the_list_that_the_notifier_writes(redis_url: str) -> None:
    client = connection.make_redis(redis_url)
    notifier = redis_ports.RedisNotifier(client, lambda: None)
    sender = transport.RequestTransport(redis_url)
    notifier.reply(sender.reply_address("a1b2"), {"ok": True})
    assert sender.redis.lpop(sender.reply_address("a1b2")) == b'{"ok":true}'
    sender.close()
    client.close()


def test_the_client_subscribes_to_the_channel_that_the_notifier_publishes_on(redis_url: str) -> None:
    client = connection.make_redis(redis_url)
    channel = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    channel.subscribe(RedisNames().notice("r1"))
    channel.get_message(timeout=5)
    redis_ports.RedisNotifier(client, lambda: None).notify({"r1": {"event": "leased"}})
    assert channel.get_message(timeout=5) is not None
    channel.close()
    client.close()


def test_the_environment_variables_are_those_that_the_settings_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(discovery.URL_VARIABLE, "redis://127.0.0.1:1/0")
    monkeypatch.setenv(discovery.VIEW_URL_VARIABLE, "redis://127.0.0.1:2/0")
    monkeypatch.setenv(discovery.PREFIX_VARIABLE, "other:")
    found = settings.read_settings({})
    assert (found.broker_url, found.view_url, found.view.prefix) == (
        "redis://127.0.0.1:1/0",
        "redis://127.0.0.1:2/0",
        "other:",
    )


def test_clients_read_no_internal_field_of_a_row() -> None:
    internal = {"key_hash", "launch_request", "on_lease", "on_end", "due", "heartbeat"}
    rows = (models.Reservation, models.Request, models.Placement, models.Slot, models.Account)
    assert [name for row in rows for name in row.__struct_fields__ if name in internal] == []
    assert "run" not in models.Slot.__struct_fields__  # the run of the agent of a host


def test_a_client_reads_every_row_that_a_worker_writes() -> None:
    lease = a_lease(level=1, cost=(3.0, 0.5, 0.0, 0.0, 0.0), charged_at=10.0, weight=0.25)
    row = a_reservation(sequence=7, account="ci", phase="leased", leases=(lease,))
    ours = msgspec.json.decode(msgspec.json.encode(row), type=models.Reservation)
    shared = [
        name for name in ours.__struct_fields__ if name not in {"request", "leases", "waiting", "eta", "notes", "want"}
    ]
    assert [getattr(ours, name) for name in shared] == [getattr(row, name) for name in shared]
    assert cost_until(ours.leases[0], 14.0) == settle(lease, 14.0).cost
    assert models.Account(id="ci", forgotten_upto=6).owns(ours)
    assert not models.Account(id="ci", forgotten_upto=7).owns(ours)


def test_every_field_of_an_answer_is_read() -> None:
    written = {*describe_answer(stored.Reservation(id="r", request=stored.Request(components=()), created_at=0))}
    written |= {*describe_answer(stored_slots.Slot(id="s", pool="p"))}
    written |= {"ttl", "cores", "offline_timeout", "heartbeat", "run", "errors", "waiting", "eta", "notes"}
    written |= {*describe_answer(accounts.Account(id="ci"))}
    assert set(models.Answer.__struct_fields__) == written


def test_the_client_imports_rows_and_nothing_else_of_the_application_and_sends_without_celery() -> None:
    code = (
        "import sys; from leasehold import AsyncClient, Client, Refused; client = Client('redis://127.0.0.1:1/0')\n"
        "client._wire.write_request('submit', {}, None)\n"
        "heavy = {'tasks', 'workers', 'boto3', 'botocore', 'sqlalchemy', 'pydantic', 'celery', 'kombu'}\n"
        "shared = ('scheduler.model', 'scheduler.protocol')\n"
        "more = [each for each in sys.modules if each.startswith('scheduler.') and not each.startswith(shared)]\n"
        "print(sorted(heavy & set(sys.modules)), sorted(more))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"


def test_the_client_works_beside_a_producers_own_tasks_module(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('the wrong tasks')")
    code = (
        "from leasehold.client.redis.transport import RequestTransport\n"
        f"transport = RequestTransport({redis_url!r})\n"
        "transport.send('release', {'reservation': 'r1', 'request': 'q'}); print('sent')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "sent"
