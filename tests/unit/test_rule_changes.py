"""Two documents of rules, compared key by key."""

from typing import Any

import pytest

from scheduler.operations.rules.history import list_changes

POOL: dict[str, Any] = {"system": "s", "max_slots": 4}
SMALL, LARGE = {"name": "small", "price": 1}, {"name": "large", "price": 4}


def rules(**changes: Any) -> dict[str, Any]:
    return {"pools": {"linux": {**POOL, **changes}}}


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        (rules(), rules(), []),
        (rules(), rules(max_slots=2), ["pools.linux.max_slots: 4 -> 2"]),
        # a default that is written out, and a duration in another form, are no change
        (rules(), rules(idle_scale_down="5m", price_factor=1.5), []),
        (rules(idle_scale_down=60), rules(), ["pools.linux.idle_scale_down: 60 -> 300"]),
        ({}, {"scheduler": {"queue": "quota"}}, ['scheduler.queue: "fifo" -> "quota"']),
        # whole tables
        ({}, rules(), ["pools.linux: added"]),
        (rules(), {}, ["pools.linux: removed"]),
        ({"accounts": {"ci": {}}}, {"accounts": {"lab": {}}}, ["accounts.ci: removed", "accounts.lab: added"]),
        ({}, {"scheduler": {"system": {"s": {"queue": "size"}}}}, ["scheduler.system.s: added"]),
        (
            {"accounts": {"ci": {"charge_rate": [1]}}},
            {"accounts": {"ci": {"charge_rate": [2], "balance": [5]}}},
            [
                "accounts.ci.balance: not set -> [5.0, 0.0, 0.0, 0.0, 0.0]",
                "accounts.ci.charge_rate: [1.0, 0.0, 0.0, 0.0, 0.0] -> [2.0, 0.0, 0.0, 0.0, 0.0]",
            ],
        ),
        # offerings by their keys, in any order
        (rules(offerings=[SMALL, LARGE]), rules(offerings=[LARGE, SMALL]), []),
        (
            rules(offerings=[SMALL, LARGE]),
            rules(offerings=[{**SMALL, "price": 2}]),
            ["pools.linux.offerings.large/spot: removed", "pools.linux.offerings.small/spot.price: 1 -> 2"],
        ),
        # its text does not fit on a line
        (
            rules(ec2={"user_data": "#!/bin/sh"}),
            rules(ec2={"user_data": "#!/bin/bash"}),
            ["pools.linux.ec2.user_data: 9 characters -> 11 characters"],
        ),
        # a new table is shown without the keys that have no value
        ({}, {"budgets": {"all": {"per_day": 40}}}, ['budgets.all: not set -> {"per_day": 40.0, "action": "stop"}']),
        # rules of another version of this program
        ({"pools": 3}, {"pools": {}}, ["pools: 3 -> {}", "scheduler: not set -> "]),
        (
            {"old": 1, "pools": {"linux": {}}},
            {"old": 1, "pools": {"linux": {"ec2": {"user_data": "secret"}}}},
            ['pools.linux.ec2: not set -> {"user_data": "6 characters"}'],
        ),
    ],
)
def test_each_key_that_differs_is_named_with_both_values(
    before: dict[str, Any], after: dict[str, Any], lines: list[str]
) -> None:
    found = [str(change) for change in list_changes(before, after)]
    if before == {"pools": 3}:
        # Keys that it cannot complete by defaults are compared as they are written.
        assert "pools: 3 -> {}" in found
    else:
        assert found == lines
