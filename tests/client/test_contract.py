"""Names and rules that the client repeats, because it must not import the scheduler, are equal in both places."""

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


def test_keys_and_prefix_are_equal_to_those_of_the_view_cache() -> None:
    keys, view_keys = view_reader.ViewKeys("x:"), _ViewKeys("x:view:")
    assert discovery.DEFAULT_PREFIX == addresses.DEFAULT_PREFIX
    assert keys.generation == view_keys.generation
    assert keys.report == view_keys.report
    hashes = {"reservations": keys.reservations, "slots": keys.slots, "accounts": keys.accounts}
    assert hashes == {kind: view_keys.rows(kind) for kind in hashes}


def test_the_client_reads_answers_from_the_list_that_the_notifier_writes(redis_url: str) -> None:
    client = connection.make_redis(redis_url)
    notifier = redis_notifier.RedisNotifier(client, lambda: None)
    sender = transport.RequestTransport(redis_url)
    notifier.reply(sender.reply_address("a1b2"), {"ok": True})
    assert sender.redis.lpop(sender.reply_address("a1b2")) == b'{"ok":true}'
    sender.close()
    client.close()


def test_the_client_subscribes_to_the_channel_that_the_notifier_publishes_on(redis_url: str) -> None:
    client = connection.make_redis(redis_url)
    channel = client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
    channel.subscribe(view_reader.ViewKeys(discovery.DEFAULT_PREFIX).notice("r1"))
    channel.get_message(timeout=5)
    redis_notifier.RedisNotifier(client, lambda: None).notify("r1", {"event": "leased"})
    assert channel.get_message(timeout=5) is not None
    channel.close()
    client.close()


def test_queue_and_task_names_are_equal_to_those_of_the_workers() -> None:
    assert transport.QUEUE == queues.RESERVATIONS
    assert queues.task_name(queues.RESERVATIONS, "submit") == f"{transport.TASK_PREFIX}submit"
    assert set(canaries.QUEUES) == set(queues.QUEUE_NAMES)
    assert queues.task_name(queues.TICKS, queues.CANARY) == "leasehold.ticks.canary"
    assert queues.TICK == "leasehold.ticks.tick"


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


def test_phases_are_equal_to_those_of_the_scheduler() -> None:
    assert models.ENDED == transitions.ENDED
    assert models.Phase == transitions.Phase


@pytest.mark.parametrize(
    ("model", "row", "joined"),
    [
        # These come with the answer to `submit`.
        (models.Reservation, stored.Reservation, {"waiting", "notes"}),
        (models.Request, stored.Request, set()),
        (models.Component, stored.Component, set()),
        (models.Slot, stored_slots.Slot, set()),
        (models.Account, accounts.Account, set()),
        # The facts of a lease's machine come from the row of its slot.
        (models.Placement, stored.Lease, {"instance_id", "address", "type", "zone"}),
    ],
)
def test_every_field_that_the_client_reads_is_a_field_of_the_row(
    model: type[msgspec.Struct], row: type[msgspec.Struct], joined: set[str]
) -> None:
    assert set(model.__struct_fields__) - joined <= set(row.__struct_fields__)


def test_the_cost_of_a_lease_is_equal_to_the_schedulers() -> None:
    lease = a_lease(level=1, cost=(3.0, 0.5, 0.0, 0.0, 0.0), charged_at=10.0, weight=0.25)
    for changed in (lease, msgspec.structs.replace(lease, level=5), msgspec.structs.replace(lease, charged_at=None)):
        placement = msgspec.convert(msgspec.to_builtins(changed), models.Placement)
        for now in (9.0, 10.0, 14.0):
            assert models.cost_until(placement, now) == settle(changed, now).cost


@pytest.mark.parametrize("balance", [(0.0,) * 5, (-1.0, 0.0, 2.0, 0.0, 0.0), (0.5, 0.0, 0.0, 0.0, 0.0)])
def test_the_level_of_an_account_is_equal_to_the_schedulers(balance: models.Levels) -> None:
    assert models.Account(id="ci", balance=balance).level == accounts.level_of(balance)


def test_an_account_owns_the_reservations_that_the_scheduler_charges_to_it() -> None:
    for forgotten, upto, name in ((False, 0, "ci"), (False, 7, "ci"), (True, 0, "ci"), (False, 0, "lab")):
        account = accounts.Account(id="ci", forgotten=forgotten, forgotten_upto=upto)
        row = a_reservation(sequence=7, account=name)
        expected = accounts.find_account({"ci": account}, name, 7) is not None
        shown = msgspec.convert(msgspec.to_builtins(account), models.Account)
        assert shown.owns(msgspec.convert(msgspec.to_builtins(row), models.Reservation)) is expected


def test_every_field_of_an_answer_is_read() -> None:
    written = {*describe_answer(stored.Reservation(id="r", request=stored.Request(components=()), created_at=0))}
    written |= {*describe_answer(stored_slots.Slot(id="s", pool="p"))}
    written |= {"ttl", "cores", "offline_timeout", "heartbeat", "errors", "waiting", "notes"}
    written |= {*describe_answer(accounts.Account(id="ci"))}
    assert set(models.Answer.__struct_fields__) == written


def test_the_client_imports_no_module_of_the_scheduler_and_no_heavy_library() -> None:
    code = (
        "import sys; from leasehold import AsyncClient, Client, Refused; Client('redis://127.0.0.1:1/0')\n"
        "heavy = {'tasks', 'scheduler', 'workers', 'boto3', 'botocore', 'sqlalchemy', 'pydantic', 'celery'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_client_works_beside_a_producers_own_tasks_module(tmp_path: Path, redis_url: str) -> None:
    (tmp_path / "tasks.py").write_text("raise SystemExit('the wrong tasks')")
    code = (
        "from leasehold.client.transport import RequestTransport\n"
        f"transport = RequestTransport({redis_url!r})\n"
        "transport.send('release', {'reservation': 'r1', 'request': 'q'}); print('sent')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.strip() == "sent"
