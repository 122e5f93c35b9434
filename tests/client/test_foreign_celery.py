"""A client sends the messages that Celery would send, without Celery. It runs within programs that use Celery: their
settings, signals and tasks have no effect on it.
"""

import base64
import json
from typing import Any

import pytest
from celery import Celery
from celery._state import get_current_app
from celery.signals import before_task_publish
from kombu.connection import Connection
from kombu.messaging import Producer

from leasehold.client.redis.task_forms import make_writer

TASK = "leasehold.reservations.submit"


def write() -> dict[str, Any]:
    """Return the first message of a client."""
    found: dict[str, Any] = json.loads(make_writer(None).write(TASK, "reservations", {"id": "r1"}, "r1", {}))
    return found


def write_with_celery() -> dict[str, Any]:
    """Return the message of Celery for the same task."""
    app = Celery("a-producer", set_as_current=False, fixups=[], loader="app")
    message = app.amqp.as_task_v2(
        "an-id", TASK, args=({"id": "r1"},), reply_to=app.thread_oid, ignore_result=True, argsrepr="r1"
    )
    with Connection("memory://") as connection:
        producer: Any = Producer(connection)
        producer.publish(
            message.body, routing_key="reservations", serializer="json", headers=message.headers, **message.properties
        )
        found: dict[str, Any] = producer.channel._get("reservations")
        return found


def test_a_clients_message_is_the_one_that_celery_would_send() -> None:
    ours, theirs = write(), write_with_celery()
    for each in (ours, theirs):
        each["body"] = json.loads(base64.b64decode(each["body"]))
        # Each message has other ids, and both have the same host and process in `origin`.
        for part, names in (
            ("headers", ("id", "root_id")),
            ("properties", ("correlation_id", "delivery_tag", "reply_to")),
        ):
            for name in names:
                assert isinstance(each[part].pop(name), str)
        each["properties"].pop("argsrepr", None)
    assert ours == json.loads(json.dumps(theirs))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CELERY_CONFIG_MODULE", "no_such_module"),
        ("CELERY_LOADER", "no_such_module:Loader"),
        # A URL whose library is missing.
        ("CELERY_BROKER_URL", "no-such-transport://"),
        ("CELERY_BROKER_WRITE_URL", "no-such-transport://"),
        ("CELERY_RESULT_BACKEND", "no-such-backend://"),
        ("DJANGO_SETTINGS_MODULE", "no_such_module"),
    ],
)
def test_a_clients_message_does_not_depend_on_the_variables_of_a_producers_own_celery(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    assert json.loads(base64.b64decode(write()["body"]))[0] == [{"id": "r1"}]


def test_a_clients_message_does_not_depend_on_the_task_and_the_signals_of_its_program() -> None:
    found: list[dict[str, Any]] = []
    published: list[object] = []

    def mark(sender: object, headers: dict[str, Any], **_signal: object) -> None:
        published.append(sender)
        headers["traceparent"] = "of the program"

    with Celery("a-producer", broker="memory://", set_as_current=False) as producer:
        producer.conf.update(task_serializer="pickle", task_inherit_parent_priority=True)

        @producer.task(shared=False)
        def of_the_producer() -> None:
            found.append(write())

        before_task_publish.connect(mark)
        try:
            of_the_producer.apply(throw=True)
        finally:
            before_task_publish.disconnect(mark)
    (message,) = found
    assert published == []
    assert message["content-type"] == "application/json"
    headers = message["headers"]
    assert (headers["parent_id"], headers["root_id"], "traceparent" in headers) == (None, headers["id"], False)


def test_a_client_does_not_change_the_current_app_of_its_program() -> None:
    before = get_current_app()
    write()
    assert get_current_app() is before
