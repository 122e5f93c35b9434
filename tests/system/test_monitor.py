"""The pages of Flower over HTTP, while the workers of all queues run."""

import base64
import json
import re
import urllib.request
from collections.abc import Iterator
from typing import Any, Final
from urllib.error import URLError
from uuid import uuid4

import pytest

from leasehold.stack.configuration import find_free_port
from scheduler.protocol.names import CANARY, QUEUE_NAMES, RESERVATIONS, task_name
from testbed.processes import Process, wait_for
from testbed.stack import Stack

pytestmark = pytest.mark.timeout(120)
BATCH: Final = 40
SECRET: Final = "swordfish"
TASK_PAGE: Final = "/tasks/datatable?draw=1&start=0&length=1000&order[0][column]=0&columns[0][data]=name"
USER: Final = "monitor:correct horse"
FOREIGN: Final = {
    "APP": "no_such_module",
    "BROKER_URL": "redis://127.0.0.1:1/0",
    "CELERY_BROKER_READ_URL": "redis://127.0.0.1:1/0",
    "CELERY_CONFIG_MODULE": "no_such_module",
    "FLOWER_BASIC_AUTH": "other:user",
    "FLOWER_URL_PREFIX": "elsewhere",
}
"""Variables for another Celery application and another Flower of the user."""
AUTHORIZATION: Final = {"Authorization": f"Basic {base64.b64encode(USER.encode()).decode()}"}

Tasks = dict[str, dict[str, Any]]


class Pages:
    """The pages of one Flower."""

    def __init__(self, port: int) -> None:
        self._address = f"http://127.0.0.1:{port}"

    def read(self, path: str) -> str:
        """Return one page. Raises URLError unless it is served, TimeoutError without an answer."""
        request = urllib.request.Request(f"{self._address}{path}", headers=AUTHORIZATION)  # noqa: S310 - loopback
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 - loopback
            text: str = answer.read().decode()
            return text

    def read_json(self, path: str) -> Any:
        return json.loads(self.read(path))

    def is_served(self) -> bool:
        """Return whether Flower answers."""
        try:
            return bool(self.read("/healthcheck"))
        except URLError:
            return False

    def list_workers(self) -> list[str]:
        """Return the names of the workers whose events Flower has received."""
        return sorted(self.read_json("/api/workers?status=1"))


@pytest.fixture(scope="module")
def port() -> int:
    return find_free_port()


@pytest.fixture(scope="module")
def flower(stack: Stack, port: int) -> Iterator[Process]:
    (stack.folder / "flowerconfig.py").write_text('url_prefix = "elsewhere"\n')
    environment = {
        **stack.environment,
        **FOREIGN,
        "LEASEHOLD_FLOWER__PORT": str(port),
        # Without a password Flower serves no page of its API.
        "LEASEHOLD_FLOWER__BASIC_AUTH": USER,
    }
    process = Process("flower", ["tasks.monitor"], environment, stack.folder)
    yield process
    process.stop()


@pytest.fixture(scope="module")
def pages(flower: Process, port: int) -> Pages:
    found = Pages(port)
    wait_for(found.is_served, "Flower")
    wait_for(lambda: len(found.list_workers()) == len(QUEUE_NAMES), "the events of all workers")
    return found


def test_flower_takes_no_settings_of_another_flower_or_application(pages: Pages) -> None:
    assert pages.is_served()


def test_the_page_of_each_worker_is_served_at_the_first_visit(pages: Pages) -> None:
    for worker in pages.list_workers():
        assert worker in pages.read(f"/worker/{worker}")


def test_a_refresh_of_the_workers_reports_what_each_consumes(pages: Pages) -> None:
    found = pages.read_json("/api/workers?refresh=1")
    assert sorted(queue["name"] for each in found.values() for queue in each["active_queues"]) == sorted(QUEUE_NAMES)
    listed = pages.read("/workers?refresh=1")
    assert all(worker in listed for worker in found)


def test_flower_sees_every_task_of_every_queue_to_its_end_without_arguments_or_results(
    stack: Stack, pages: Pages
) -> None:
    sent = {
        stack.app.send_task(task_name(queue, CANARY), args=[f"leasehold:reply:{SECRET}"], argsrepr=SECRET).id
        for _ in range(BATCH)
        for queue in QUEUE_NAMES
    }
    document = {"request": uuid4().hex, "reply_to": f"leasehold:reply:{SECRET}", "ids": [SECRET]}
    sent.add(stack.app.send_task(task_name(RESERVATIONS, "query"), args=[document]).id)
    sent.add(stack.app.send_task(task_name(RESERVATIONS, CANARY), kwargs={"reply_to": f"leasehold:reply:{SECRET}"}).id)

    def read_sent() -> Tasks:
        tasks: Tasks = pages.read_json("/api/tasks")
        return {id_: task for id_, task in tasks.items() if id_ in sent}

    def are_over() -> bool:
        found = read_sent()
        # A worker with threads sends the end of a task at once, and its receipt up to 0.2 s later.
        are_received = all(task["received"] is not None for task in found.values())
        return len(found) == len(sent) and are_received and all(task["state"] == "SUCCESS" for task in found.values())

    try:
        wait_for(are_over, "the ends of all tasks")
    except AssertionError:
        left = [task for task in read_sent().values() if task["state"] != "SUCCESS"]
        pytest.fail(f"{len(left)} of {len(sent)}: {sorted((task['name'], task['state']) for task in left)}")
    finally:
        stack.redis.delete(f"leasehold:reply:{SECRET}")
    assert {(task["args"], task["kwargs"], task["result"]) for task in read_sent().values()} == {("", "", None)}
    some = min(sent)
    assert "SUCCESS" in pages.read(f"/task/{some}")
    shown = [pages.read(path) for path in ("/tasks", "/api/tasks", TASK_PAGE.replace("[", "%5B"), f"/task/{some}")]
    shown += [pages.read(f"/worker/{worker}") for worker in pages.list_workers()]
    assert not [page for page in shown if re.search(SECRET, page)]


def test_flower_ends_on_sigterm(pages: Pages, flower: Process) -> None:
    flower.ask_to_end()
    wait_for(lambda: not flower.is_alive, "the end of Flower", patience=15)
