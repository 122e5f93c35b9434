"""A bad day of EC2 on a real stack: nothing is lost, leaked or exceeded, and the ledger has what the machines lived."""

import json
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from scheduler.model.transitions import INACTIVE
from testbed.processes import wait_for
from testbed.stack import Stack
from tests.system.bad_day import (
    MAX_SLOTS,
    PER_HOUR,
    RULES,
    Holders,
    apply,
    command,
    count_most,
    play_script,
    read_booked,
    read_log,
    read_waits,
    sum_seconds,
)
from workers.ec2.clients import Ec2Access, make_client

pytestmark = pytest.mark.timeout(240)
SAME = 0.1
"""Seconds by which the clocks of two processes of one host may seem to differ, because of rounding."""
LATE = 6.0
"""Most seconds by which a booked time may begin or end later than the machine: the interval of the sweep that finds a
machine whose answer was lost, or that died, with the time of its call and of the check on a busy host.
"""
WAVES = {1: 16, 3: 12, 5: 12, 6: 12, 8: 8}
"""Number of played steps of the script -> number of reservations that are submitted then."""


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose emulator plays the script; images, prices and machines without a slot are looked at often."""
    settings: dict[str, Any] = {"IMAGE_INTERVAL": 1, "MARKET__PRICE_INTERVAL": 1, "ORPHAN_AGE": 5}
    settings["AWS__CALLS_PER_SECOND"] = 100
    with Stack(tmp_path_factory.mktemp("bad-day"), {"pools": {}}, **settings) as running:
        play_script(running)
        apply(running, RULES)
        yield running


def find_new_image(stack: Stack) -> str:
    """Return the id of the image that the parameter names now."""
    return str(stack.services.images.find("ssm:/images/linux"))


def list_images(stack: Stack) -> set[str]:
    """Return the images of the running machines, as EC2 describes them."""
    aws = stack.settings.aws
    access = Ec2Access(
        region=aws.region, endpoint_url=aws.endpoint_url, access_key_id="testing", secret_access_key="testing"
    )
    running = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = make_client(access).describe_instances(Filters=running)["Reservations"]  # type: ignore[arg-type]
    return {each["ImageId"] for group in found for each in group["Instances"]}


def is_all_true(stack: Stack, holders: Holders) -> bool:
    """Return whether the fleet is settled, and every reservation that waits does so because a limit is reached."""
    slots = [slot for slot in holders.look() if slot.state not in INACTIVE]
    if any(slot.state != "ready" for slot in slots):
        return False
    waits = read_waits(stack, [row.id for row in holders.find_all() if row.phase == "pending"])
    running, cheapest = sum(slot.price or 0.0 for slot in slots), 0.030
    true = {"over_budget": running + cheapest > PER_HOUR, "at_max_slots": len(slots) == MAX_SLOTS}
    return bool(waits) and all(true.get(code or "", False) for code in waits.values())


def test_a_bad_day_loses_leaks_and_exceeds_nothing_and_the_ledger_has_every_second(stack: Stack) -> None:
    random, holders, waves = Random(7), Holders(stack), dict(WAVES)

    def work() -> bool:
        played = stack.control("script")["played"]
        for wave in [each for each in waves if each <= played]:
            holders.submit(wave, [random.uniform(0.5, 4.0) for _ in range(waves.pop(wave))])
        return holders.step() and not waves and bool(stack.control("script")["ended"])

    wait_for(work, "the end of the day and of all reservations", 120)
    assert {row.phase for row in holders.find_all()} == {"released"}

    wait_for(lambda: list_images(stack) <= {find_new_image(stack)}, "the end of the machines with the old image")
    # More reservations than the budget permits: those that wait have a true reason, and no machine has the old image.
    holders.submit(99, [1000.0] * (MAX_SLOTS + 6))
    wait_for(lambda: is_all_true(stack, holders), "a fleet at its limit", 20)
    assert list_images(stack) == {find_new_image(stack)}
    known = {slot.instance_id for slot in stack.slots() if slot.instance_id}
    wait_for(lambda: {each["id"] for each in stack.instances("pending", "running")} == known, "no stray machine")
    stack.let_go()
    wait_for(lambda: not stack.instances("pending", "running", "shutting-down"), "the end of all machines")

    lives = stack.control("history")["instances"]
    launches = read_log(stack.folder)
    assert len(launches) == len({call["token"] for call in launches})
    assert sorted(name for call in launches for name in call["instances"]) == sorted(life["id"] for life in lives)
    assert count_most(lives) <= MAX_SLOTS
    dearest = max(holders.prices.values())
    assert holders.most_running <= PER_HOUR + 1e-9
    assert count_most(lives, holders.prices) <= PER_HOUR + dearest

    # The ledger begins with the answer to a launch and ends with the check that sees the end.
    costs = json.loads(command(stack, "costs", "--by", "offering", "--since", "2h", "--json"))
    seconds = {each["name"]: each["seconds"] for each in costs["costs"]}
    booked, unbound = read_booked(stack), costs["total"]["seconds_by_kind"]["unbound"]
    bound = sum(seconds.values()) - unbound
    assert bound == pytest.approx(sum(end - begin for begin, end in booked.values()), abs=0.01)
    owned = [life for life in lives if life["id"] in holders.machines]
    for life in owned:
        begin, end = booked[holders.machines[life["id"]]]
        assert -SAME <= begin - life["launched_at"] <= LATE
        assert -SAME <= end - life["terminated_at"] <= LATE
    # Machines that no slot ever had were ended at once, or by the sweep. They are in the ledger, too.
    assert len(booked) == len(owned)
    alone = [life for life in lives if life["id"] not in holders.machines]
    assert {life["cause"] for life in alone} <= {"call"}
    lived = sum_seconds(lives)
    assert seconds.keys() == lived.keys()
    counts = Counter(f"linux/{life['type']}/{life['market']}" for life in lives)
    for offering, each in seconds.items():
        assert abs(each - lived[offering]) <= LATE * counts[offering]
