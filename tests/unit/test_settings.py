"""The settings of the processes and the environment: what is refused, the precedence, what is never shown."""

import os
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.model.validation import InvalidInputError
from workers.settings import Settings, read_settings

SECRET = "hunter2hunter2"
A_PERIOD = 'a duration > 0 (seconds, or like "30s", "15m", "1h")'


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable of the product."""
    for name in [name for name in os.environ if name.startswith("LEASEHOLD_")]:
        monkeypatch.delenv(name)


def refusal(document: dict[str, Any] | None = None) -> list[str]:
    with pytest.raises(InvalidInputError) as caught:
        read_settings(document)
    return str(caught.value).split("\n")


def test_the_defaults_are_those_of_the_protocols() -> None:
    found = read_settings()
    assert (found.ticks.interval, found.ticks.lock_seconds, found.ticks.expires) == (5, 15, 10)
    assert (found.recover_interval, found.sweep_interval) == (10, 2)
    assert (found.keep.events_days, found.keep.requests) == (30, 3600)
    assert (found.celery.visibility_timeout, found.celery.soft_shutdown) == (300, 5)
    assert (found.flower.host, found.flower.port, found.metrics.host) == ("127.0.0.1", 5555, "127.0.0.1")
    assert (found.broker_url, found.view_url) == (None, None)
    assert (found.database_url, found.view.prefix) == ("sqlite:///.leasehold/leasehold.db", "leasehold:")


def test_settings_cannot_be_changed() -> None:
    found = read_settings()
    with pytest.raises(AttributeError, match="frozen"):
        found.ticks.interval = 1.0  # type: ignore[misc]
    with pytest.raises(AttributeError, match="frozen"):
        found.sweep_interval = 1.0  # type: ignore[misc]


def test_the_view_is_in_the_brokers_redis_unless_it_has_its_own() -> None:
    assert read_settings({"broker": {"url": "redis://a"}}).view_url == "redis://a"
    assert read_settings({"broker": {"url": "redis://a"}, "view": {"url": "redis://b"}}).view_url == "redis://b"


@pytest.mark.parametrize(
    ("name", "text", "path", "value"),
    [
        ("LEASEHOLD_TICKS__INTERVAL", "2", "ticks.interval", 2.0),
        ("LEASEHOLD_TICKS__INTERVAL", "2.5", "ticks.interval", 2.5),
        ("LEASEHOLD_TICKS__INTERVAL", "250ms", "ticks.interval", 0.25),
        ("LEASEHOLD_SWEEP_INTERVAL", "1s", "sweep_interval", 1.0),
        ("LEASEHOLD_METRICS__PORT", "80", "metrics.port", 80),
        ("LEASEHOLD_LOG__FORMAT", "json", "log.format", "json"),
        # a text that looks like a number stays one
        ("LEASEHOLD_AWS__CLUSTER", "12", "aws.cluster", "12"),
        ("LEASEHOLD_CELERY__CONCURRENCY__LAUNCH", "3", "celery.concurrency.launch", 3),
        # a table as JSON
        ("LEASEHOLD_CELERY__CONCURRENCY", '{"launch": 3}', "celery.concurrency.launch", 3),
        # an empty variable sets nothing
        ("LEASEHOLD_TICKS__INTERVAL", "", "ticks.interval", 5.0),
        # a variable of a container platform
        ("LEASEHOLD_PORT", "tcp://10.0.0.1:80", "ticks.interval", 5.0),
    ],
)
def test_a_variable_sets_a_key(monkeypatch: pytest.MonkeyPatch, name: str, text: str, path: str, value: object) -> None:
    monkeypatch.setenv(name, text)
    found: object = read_settings()
    for part in path.split("."):
        found = getattr(found, part)
    assert (found, type(found)) == (value, type(value))


def test_a_variable_is_laid_over_a_table_given_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEASEHOLD_CELERY__CONCURRENCY__LAUNCH", "3")
    monkeypatch.setenv("LEASEHOLD_CELERY__CONCURRENCY", '{"launch": 1, "health": 2}')
    concurrency = read_settings().celery.concurrency
    assert (concurrency.launch, concurrency.health) == (3, 2)


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        # unknown: the key, the section, and what the environment cannot set
        (
            "LEASEHOLD_TICKS__INTERVALL",
            "2",
            'LEASEHOLD_TICKS__INTERVALL: expected a known key (did you mean "interval"?), got "intervall"',
        ),
        (
            "LEASEHOLD_TIKS__INTERVAL",
            "2",
            'LEASEHOLD_TIKS__INTERVAL: expected a known key (did you mean "ticks"?), got "tiks"',
        ),
        ("LEASEHOLD_SCHEDULER__QUEUE", "size", 'LEASEHOLD_SCHEDULER__QUEUE: expected a known key, got "scheduler"'),
        ("LEASEHOLD___", "2", 'LEASEHOLD___: expected a known key, got ""'),
        # an invalid value of the key
        ("LEASEHOLD_TICKS__INTERVAL", "soon", f'LEASEHOLD_TICKS__INTERVAL: expected {A_PERIOD}, got "soon"'),
        ("LEASEHOLD_METRICS__PORT", "99999", "LEASEHOLD_METRICS__PORT: expected a port of at most 65535, got 99999"),
        (
            "LEASEHOLD_CELERY__CONCURRENCY__LAUNCH",
            "true",
            'LEASEHOLD_CELERY__CONCURRENCY__LAUNCH: expected a whole number >= 1, got "true"',
        ),
        # a table in a table, named down to the key
        (
            "LEASEHOLD_CELERY__CONCURRENCY",
            '{"launch": true}',
            "LEASEHOLD_CELERY__CONCURRENCY.launch: expected a whole number >= 1, got true",
        ),
        # a key below a key
        ("LEASEHOLD_TICKS__INTERVAL__X", "2", f'LEASEHOLD_TICKS__INTERVAL__X: expected {A_PERIOD}, got {{"x": "2"}}'),
        # a value in place of a table is not shown: it may be a secret
        ("LEASEHOLD_AWS", SECRET, "LEASEHOLD_AWS: expected a table, got something else"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, line: str
) -> None:
    monkeypatch.setenv(name, text)
    assert refusal() == [line]


@pytest.mark.parametrize(
    ("document", "line"),
    [
        ({"tick": {}}, 'tick: expected a known key (did you mean "ticks"?), got "tick"'),
        ({"two\nlines": 1}, 'two\\nlines: expected a known key, got "two\\nlines"'),
        # an option of pydantic-settings, not of the product
        ({"_env_file": ".env"}, '_env_file: expected a known key, got "_env_file"'),
        (
            {"celery": {"concurrency": {"lunch": 1}}},
            'celery.concurrency.lunch: expected a known key (did you mean "launch"?), got "lunch"',
        ),
        ({"ticks": {"interval": 0}}, f"ticks.interval: expected {A_PERIOD}, got 0"),
        ({"ticks": {"interval": True}}, f"ticks.interval: expected {A_PERIOD}, got true"),
        (
            {"keep": {"events_days": "30d"}},
            'keep.events_days: expected a number of days > 0 and at most 100000, got "30d"',
        ),
        (
            {"log": {"level": "inf"}},
            'log.level: expected one of debug, info, warning, error (did you mean "info"?), got "inf"',
        ),
        ({"broker": {"url": "amqp://host"}}, 'broker.url: expected a URL like redis://host:6379/0, got "amqp://host"'),
        (
            {"broker": {"url": "redis://host:port"}},
            'broker.url: expected a URL like redis://host:6379/0, got "redis://host:port"',
        ),
        ({"broker": {"url": "redis://"}}, 'broker.url: expected a URL like redis://host:6379/0, got "redis://"'),
        (
            {"database": {"url": "postgresql://me@one:1,two:port/x"}},
            (
                "database.url: expected a URL like sqlite:///file.db or postgresql://user@host/name,"
                ' got "postgresql://two:port/x"'
            ),
        ),
        (
            {"database": {"url": "mysql://host/x"}},
            'database.url: expected a URL like sqlite:///file.db or postgresql://user@host/name, got "mysql://host/x"',
        ),
        (
            {"aws": {"endpoint_url": "localhost:5000"}},
            'aws.endpoint_url: expected a URL like http://host:port, got "(hidden)"',
        ),
        ({"metrics": {"host": "two words"}}, 'metrics.host: expected the name or address of a host, got "two words"'),
        # settings that exclude each other
        ({"ticks": {"interval": 10}}, "ticks.lock_seconds: expected at least 2 × ticks.interval (20), got 15"),
        ({"sweep_interval": 11}, "recover_interval: expected at least sweep_interval (11), got 10"),
        ({"keep": {"requests": 59}}, "keep.requests: expected at least an answer's minute (60), got 59"),
        (
            {"celery": {"soft_time_limit": 121}},
            "celery.hard_time_limit: expected at least celery.soft_time_limit (121), got 120",
        ),
        (
            {"celery": {"visibility_timeout": 240}},
            "celery.visibility_timeout: expected more than 2 × celery.hard_time_limit (240), got 240",
        ),
        ({"aws": {"access_key_id": "a"}}, "aws.secret_access_key: expected both keys or neither, got nothing"),
        ({"aws": {"secret_access_key": "a"}}, "aws.access_key_id: expected both keys or neither, got nothing"),
        (
            {"flower": {"host": "10.0.0.1"}},
            'flower.basic_auth: expected "user:password" (flower.host is "10.0.0.1"), got nothing',
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_one_line(document: dict[str, Any], line: str) -> None:
    assert refusal(document) == [line]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_flower_on_loopback_needs_no_password(host: str) -> None:
    assert read_settings({"flower": {"host": host}}).flower.basic_auth is None


def test_all_settings_that_exclude_each_other_are_reported() -> None:
    assert len(refusal({"ticks": {"interval": 10}, "sweep_interval": 11, "flower": {"host": "10.0.0.1"}})) == 3


@pytest.mark.parametrize(
    "document",
    [
        {"broker": {"url": f"redis://:{SECRET}@host"}},
        {"broker": {"url": f"redis://host?password={SECRET}"}},
        {"view": {"url": f"rediss://me:{SECRET}@host:1/0"}},
        {"database": {"url": f"postgresql://me:{SECRET}@host/x"}},
        {"aws": {"access_key_id": SECRET, "secret_access_key": SECRET}},
        {"flower": {"basic_auth": f"me:{SECRET}"}},
    ],
)
def test_a_secret_is_not_shown_by_what_is_printed_or_logged(document: dict[str, Any]) -> None:
    found = read_settings(document)
    assert SECRET not in f"{found!r} {found} {found.model_dump()} {found.model_dump(mode='json')}"


@pytest.mark.parametrize(
    "document",
    [
        {"broker": {"url": f"http://:{SECRET}@host"}},
        {"broker": {"url": f"http://me:a/{SECRET}@b@host"}},
        {"broker": {"url": f"http://host?password={SECRET}"}},
        {"broker": {"url": f"redis:{SECRET}"}},
        {"broker": {"url": [SECRET]}},
        {"broker": f"redis://:{SECRET}@host"},
        {"broker": [f"redis://{SECRET}@host"]},
        {"database": {"url": f"mysql://{SECRET}@host/x"}},
        {"aws": SECRET},
        {"aws": {"access_key_id": [SECRET]}},
        {"aws": {"secret_access_key": SECRET}},
        {"aws": {"secret_access_key": SECRET * 1000}},
        {"aws": {"secret_access_key": {"x": SECRET}}},
        {"aws": {"secret_access_keys": SECRET}},
        {"flower": {"basic_auth": SECRET}},
        {"flower": {"basic_auth": f"{SECRET}:"}},
        {"flower": {"basic_auth": f"me:{SECRET}\0"}},
    ],
)
def test_a_secret_is_not_shown_by_a_refusal(document: dict[str, Any]) -> None:
    assert SECRET not in "".join(refusal(document))
    with pytest.raises(ValueError, match="validation error") as caught:
        Settings(**document)
    assert SECRET not in str(caught.value)


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6))
keys = st.one_of(st.sampled_from(["url", "interval", "port", "concurrency", "_env_file", "self"]), st.text(max_size=5))
junk = st.recursive(
    scalars, lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(keys, inner, max_size=3))
)


# No deadline: how long an example takes depends on the machine.
@given(st.dictionaries(st.one_of(st.sampled_from(list(Settings.model_fields)), keys), junk, max_size=5))
def test_junk_in_settings_is_refused_with_our_messages_or_read(document: dict[str, Any]) -> None:
    lines = list_refused(document)
    assert len("\n".join(lines).encode().split(b"\n")) == max(len(lines), 1)


def list_refused(document: dict[str, Any]) -> list[str]:
    """Return the lines of a refusal, or []. Any other error is a fault of the product."""
    try:
        read_settings(document)
    except InvalidInputError as error:
        return [str(fault) for fault in error.faults]
    return []
