"""The warnings about fields of a request that its queue does not read."""

import pytest

from scheduler.model.rules import find_ignored


@pytest.mark.parametrize(
    ("queue", "priority", "account", "ignored"),
    [
        ("fifo", 1.0, None, []),  # the default
        ("fifo", 0.0, None, []),  # on hold in each queue
        ("fifo", 2.0, None, ["priority"]),
        ("priority", 2.0, None, []),
        ("fifo", 1.0, "A", ["account"]),
        ("quota", 1.0, "A", []),
        ("quota", 2.0, "A", ["priority"]),
        ("size", 2.0, "A", ["priority", "account"]),
    ],
)
def test_a_field_is_ignored_if_it_has_another_value_than_the_default_and_only_another_queue_reads_it(
    queue: str, priority: float, account: str | None, ignored: list[str]
) -> None:
    assert list(find_ignored(queue, priority=priority, account=account)) == ignored
