"""What the client says twice, because it may not import the application, is the same in both places."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from leasehold import canaries
from leasehold.client import discovery, models, transport, view_reader
from scheduler.model import accounts, transitions
from scheduler.model import reservations as stored
from scheduler.model import slots as stored_slots
from scheduler.operations.commands.intake import describe_answer
from scheduler.policy.quota.accounting import settle
from scheduler.view import addresses, connection, redis_notifier
from scheduler.view.redis_view_cache import _ViewKeys
from tasks import queues
from tests.builders import a_lease, a_reservation
from workers import settings


def test_keys_channels_and_prefix_are_the_views() -> None:
    keys, theirs = view_reader.ViewKeys("x:"), _ViewKeys("x:view:")
    assert discovery.DEFAULT_PREFIX == addresses.DEFAULT_PREFIX
    assert keys.generation == theirs.generation
    assert keys.report == theirs.report
    ours = {"reservations": keys.reservations, "slots": keys.slots, "accounts": keys.accounts}
    assert ours == {kind: theirs.rows(kind) for kind in ours}


def test_answers_are_looked_for_where_the_bell_puts_them(redis_url: str) -> None:
    client = connection.make_redis(redis_url)
    notifier = redis_notifier.RedisNotifier(client, lambda: None)
    sender = transport.RequestTransport(redis_url)
    notifier.reply(sender.reply_address("a1b2"), {"ok": True})
    assert sender.redis.lpop(sender.reply_address("a1b2")) == b'{"ok":true}'
    sender.close()
    client.close()


def test_notices_are_heard_where_the_bell_rings(redis_url: str) -> None:
    client = connection.make_redis(redis_url)
    channel = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    channel.subscribe(view_reader.ViewKeys(discovery.DEFAULT_PREFIX).notice("r1"))
    channel.get_message(timeout=5)
    redis_notifier.RedisNotifier(client, lambda: None).notify("r1", {"event": "leased"})
    assert channel.get_message(timeout=5) is not None
    channel.close()
    client.close()


def test_queue_and_task_names_are_those_of_the_tasks() -> None:
    assert transport.QUEUE == queues.RESERVATIONS
    assert queues.task_name(queues.RESERVATIONS, "submit") == f"{transport.TASK_PREFIX}submit"
    assert set(canaries.QUEUES) == set(queues.QUEUE_NAMES)
    assert queues.task_name(queues.TICKS, queues.CANARY) == "leasehold.ticks.canary"
    assert queues.TICK == "leasehold.ticks.tick"


def test_the_variables_are_those_of_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(discovery.URL_VARIABLE, "redis://127.0.0.1:1/0")
    monkeypatch.setenv(discovery.VIEW_URL_VARIABLE, "redis://127.0.0.1:2/0")
    monkeypatch.setenv(discovery.PREFIX_VARIABLE, "other:")
    found = settings.read_settings({})
    assert (found.broker_url, found.view_url, found.view.prefix) == (
        "redis://127.0.0.1:1/0",
        "redis://127.0.0.1:2/0",
        "other:",
    )


def test_phases_are_those_of_the_model() -> None:
    assert models.ENDED == transitions.ENDED
    assert models.Phase == transitions.Phase


@pytest.mark.parametrize(
    ("ours", "theirs", "joined"),
    [
        # What is told of a new one comes with the answer.
        (models.Reservation, stored.Reservation, {"waiting", "notes"}),
        (models.Request, stored.Request, set()),
        (models.Component, stored.Component, set()),
        (models.Slot, stored_slots.Slot, set()),
        (models.Account, accounts.Account, set()),
        # A lease's machine is joined from its slot.
        (models.Placement, stored.Lease, {"instance_id", "address", "type", "zone"}),
    ],
)
def test_every_field_that_is_read_is_written(
    ours: type[msgspec.Struct], theirs: type[msgspec.Struct], joined: set[str]
) -> None:
    assert set(ours.__struct_fields__) - joined <= set(theirs.__struct_fields__)


def test_what_a_lease_has_used_is_counted_as_the_scheduler_does() -> None:
    lease = a_lease(level=1, cost=(3.0, 0.5, 0.0, 0.0, 0.0), charged_at=10.0, weight=0.25)
    for changed in (lease, msgspec.structs.replace(lease, level=5), msgspec.structs.replace(lease, charged_at=None)):
        ours = msgspec.convert(msgspec.to_builtins(changed), models.Placement)
        for now in (9.0, 10.0, 14.0):
            assert models.cost_until(ours, now) == settle(changed, now).cost


@pytest.mark.parametrize("balance", [(0.0,) * 5, (-1.0, 0.0, 2.0, 0.0, 0.0), (0.5, 0.0, 0.0, 0.0, 0.0)])
def test_the_level_of_an_account_is_the_schedulers(balance: models.Levels) -> None:
    assert models.Account(id="ci", balance=balance).level == accounts.level_of(balance)


def test_an_account_pays_for_those_whose_account_the_scheduler_takes_it_for() -> None:
    for forgotten, upto, name in ((False, 0, "ci"), (False, 7, "ci"), (True, 0, "ci"), (False, 0, "lab")):
        account = accounts.Account(id="ci", forgotten=forgotten, forgotten_upto=upto)
        row = a_reservation(sequence=7, account=name)
        expected = accounts.find_account({"ci": account}, name, 7) is not None
        ours = msgspec.convert(msgspec.to_builtins(account), models.Account)
        assert ours.owns(msgspec.convert(msgspec.to_builtins(row), models.Reservation)) is expected


def test_every_field_of_an_answer_is_read() -> None:
    written = {*describe_answer(stored.Reservation(id="r", request=stored.Request(components=()), created_at=0))}
    written |= {*describe_answer(stored_slots.Slot(id="s", pool="p"))}
    written |= {"ttl", "cores", "offline_timeout", "heartbeat", "errors", "waiting", "notes"}
    written |= {*describe_answer(accounts.Account(id="ci"))}
    assert set(models.Answer.__struct_fields__) == written


def test_importing_the_client_pulls_in_nothing_of_the_application() -> None:
    code = (
        "import sys; from leasehold import AsyncClient, Client, Refused; Client('redis://127.0.0.1:1/0')\n"
        "heavy = {'tasks', 'scheduler', 'workers', 'boto3', 'botocore', 'sqlalchemy', 'pydantic', 'celery'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_producers_own_tasks_module_is_no_hindrance(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('the wrong tasks')")
    code = (
        "from leasehold.client.transport import RequestTransport\n"
        f"transport = RequestTransport({redis_url!r})\n"
        "transport.send('release', {'reservation': 'r1', 'request': 'q'}); print('sent')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "sent"
