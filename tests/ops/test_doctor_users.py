"""The doctor as a Redis user with few rights: it reports what it may not read, and finds what it can."""

from collections.abc import Iterator

import pytest

from leasehold.doctor.examination import look_at_queues, look_at_redis
from leasehold.doctor.rules import Finding
from scheduler.view.connection import make_redis
from testbed.servers import redis_server, redis_url
from tests.redis_roles import RedisWithRoles
from workers.setting_types import SecretText
from workers.settings import BrokerSettings, Settings

__all__ = ["redis_server", "redis_url"]

ASPECTS = ("version", "memory", "persistence", "access", "clock")


@pytest.fixture(scope="module")
def roles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisWithRoles]:
    running = RedisWithRoles(tmp_path_factory.mktemp("roles"))
    yield running
    running.server.stop()


def look(url: str) -> dict[str, Finding]:
    return {finding.check: finding for finding in look_at_redis("redis", url, 10)}


def test_the_workers_user_needs_no_right_to_config(roles: RedisWithRoles) -> None:
    found = look(roles.url("leasehold"))
    assert {name: finding.outcome for name, finding in found.items()} == {
        "redis": "ok",
        **{f"redis {aspect}": "ok" for aspect in ASPECTS},
    }
    assert found["redis memory"].text.startswith("maxmemory-policy noeviction")
    assert found["redis access"].text == "as user leasehold; no client is served without a password"
    assert roles.read_refusals() == []


def test_a_user_may_be_given_in_the_query_of_the_url(roles: RedisWithRoles) -> None:
    url = f"redis://127.0.0.1:{roles.server.port}/0?username=leasehold&password=leasehold-password"
    assert look(url)["redis access"].text == "as user leasehold; no client is served without a password"


def test_a_missing_right_is_a_warning_with_the_necessary_question(roles: RedisWithRoles) -> None:
    # It may ping, but not read INFO or the time.
    found = look(roles.url("producer"))
    assert {name: finding.outcome for name, finding in found.items()} == {
        "redis": "ok",
        "redis version": "warning",
        "redis memory": "warning",
        "redis persistence": "warning",
        "redis access": "ok",
        "redis clock": "warning",
    }
    assert found["redis memory"].text == "could not be read as this user: producer may not use INFO"
    assert found["redis memory"].remedy == (
        "Ask an administrator: is maxmemory-policy noeviction (`INFO memory`)? Or let this user use INFO."
    )
    assert found["redis clock"].text == "could not be read as this user: producer may not use TIME"
    roles.read_refusals()


def test_the_remedy_for_queues_depends_on_why_redis_takes_no_message(roles: RedisWithRoles, redis_url: str) -> None:
    def find_remedies(url: str) -> set[str]:
        found = look_at_queues(Settings(broker=BrokerSettings(url=SecretText(url))), 5)
        return {finding.remedy for finding in found if finding.outcome == "failure"}

    assert find_remedies(roles.url("producer")) == {"Let this user push to the queues."}
    roles.read_refusals()
    with make_redis(redis_url) as administrator:
        administrator.config_set("maxmemory", 1)
        try:
            (remedy,) = find_remedies(redis_url)
        finally:
            administrator.config_set("maxmemory", 0)
    assert remedy.startswith("Let Redis take writes")


def test_a_default_user_without_a_password_is_a_warning_in_spite_of_other_users(redis_url: str) -> None:
    """Redis serves a client without a user name although the ACL defines other users."""
    with make_redis(redis_url) as administrator:
        administrator.acl_setuser(
            "some", enabled=True, passwords=["+secret"], commands=["+@all", "-config"], keys=["*"]
        )
        try:
            access = look(redis_url.replace("//", "//some:secret@"))["redis access"]
        finally:
            administrator.acl_deluser("some")
    assert access.outcome == "warning"
    assert access.text == (
        "clients need no password, and its addresses could not be read as this user: some may not use CONFIG"
    )
    assert "ask an administrator: does it listen on loopback only (`CONFIG GET bind`)?" in access.remedy
