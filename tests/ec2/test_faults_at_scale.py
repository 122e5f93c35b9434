"""Many machines on an EC2 that fails: every tenth call fails, some answers are lost, and capacity runs out."""

import time
from collections import Counter
from typing import Any, Final

import pytest

from scheduler.model.rules import Rules
from scheduler.model.slots import Machine, Slot
from scheduler.model.transitions import INACTIVE
from scheduler.policy.scaling.budgets import TINY
from scheduler.ports import CloudError
from tests.ec2.conftest import IMAGE, Emulator
from tests.generated import TIMES
from tests.operations.harness import Harness
from workers.ec2.clients import Ec2Access, open_client
from workers.ec2.fleet import Ec2Fleet

SLOTS: Final = 100 * TIMES
MORE: Final = 30
"""Reservations that wait for a slot of another one."""
PRICES: Final = {"c5.large": 0.03, "m5.large": 0.04}
PER_HOUR: Final = 2.9 * TIMES
"""Dollars per hour: 96 machines of the cheaper type, or 72 of the other one."""
RULES: Final[dict[str, Any]] = {
    "budgets": {"all": {"per_hour": PER_HOUR}},
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": SLOTS,
            "max_leases_per_slot": 1,
            "lease_ttl": 0,
            "idle_scale_down": 20,
            "capacity_hold": 6,
            "probe": {"kind": "tcp", "port": 22},
            "offerings": [{"name": name, "price": price} for name, price in PRICES.items()],
            "ec2": {"image": IMAGE},
        }
    },
}
FAILING: Final = [
    {"code": "InternalError", "action": "any", "share": 0.05},
    {"code": "RequestLimitExceeded", "action": "any", "share": 0.05},
    {"lost": "500", "action": "any", "share": 0.05},
]


class ProbedFleet(Ec2Fleet):
    """The machines on the emulator, each of which serves as soon as it runs."""

    def is_ready(self, slot: Slot, machine: Machine, rules: Rules) -> bool:
        return machine.state == "running"


class Day(Harness):
    """A process whose cloud is the emulator. Its periodic jobs may fail, as tasks of a worker do, and run again."""

    def __init__(self, fleet: ProbedFleet) -> None:
        super().__init__(RULES, fleet=fleet)  # type: ignore[arg-type]
        # Machines have the time of the host, and so has this process.
        self.now = time.time()
        self.most_slots, self.most_dollars, self.failures = 0, 0.0, 0

    def step(self, seconds: float = 2.0) -> None:
        """Run the periodic jobs once, and look at the limits."""
        self.now += seconds
        for job in self.jobs():
            try:
                job()
            except CloudError:
                self.failures += 1
        slots = [slot for slot in self.store.find_slots() if slot.state not in INACTIVE]
        self.most_slots = max(self.most_slots, len(slots))
        self.most_dollars = max(self.most_dollars, sum(slot.price or 0.0 for slot in slots))

    def play_tasks(self) -> None:
        """Run the tasks of all messages. A task that fails is lost, and the others run."""
        while self.mailbox.tasks:
            try:
                super().play_tasks()
            except CloudError:
                self.failures += 1

    def release(self, share: int) -> None:
        """Release one of `share` reservations with a lease."""
        rows = self.store.find_reservations(phases=["leased"], limit=1000)
        for row in rows[::share]:
            self.ask("release", reservation=row.id, token=row.token)


def count(harness: Day, phase: str) -> int:
    return len(harness.store.find_reservations(phases=[phase], limit=1000))


@pytest.mark.timeout(300)
def test_faults_at_scale_launch_leak_and_exceed_nothing(emulator: Emulator, access: Ec2Access) -> None:
    emulator.steer(faults=FAILING)
    # A call is tried once, so that every fault reaches the operations.
    fleet = ProbedFleet(open_client("ec2", access, 30, attempts=1), "blue")
    day = Day(fleet)
    for number in range(SLOTS + MORE):
        day.submit(f"r{number}")
    # At first the cheaper type has room for a part of the machines, and the other one for few.
    room = {"c5.large": 40 * TIMES, "m5.large": 12 * TIMES}
    emulator.steer(capacity=[{"type": name, "machines": machines} for name, machines in room.items()])
    for _ in range(6):
        day.step()
    day.release(9)
    emulator.steer(capacity=[])
    for _ in range(6):
        day.step()
    for _ in range(30):
        day.step()
        day.release(2)
        if not count(day, "pending") and not count(day, "leased"):
            break
    assert (count(day, "pending"), count(day, "leased"), count(day, "released")) == (0, 0, SLOTS + MORE)

    faults = Counter(fault for call in emulator.calls() for fault in call["faults"])
    assert faults["lost:500"] > 0
    assert faults["error:InternalError"] + faults["error:RequestLimitExceeded"] > 0
    assert faults["capacity:InsufficientInstanceCapacity"] > 0
    assert day.failures > 0
    assert day.most_slots <= SLOTS
    assert day.most_dollars <= PER_HOUR + TINY

    # Without faults the machines that no slot has end, and those that are idle too.
    emulator.ask("PUT", "faults", [])
    day.now += 600
    while any(slot.state not in INACTIVE for slot in day.store.find_slots()):
        day.step(10)
    day.step()
    assert list(fleet.sweep()) == []
    calls = [*emulator.calls("CreateFleet"), *emulator.calls("RunInstances")]
    made = [call for call in calls if call["instances"] and not call["replayed"]]
    assert len(made) == len({call["token"] for call in made})
    machines = [name for call in made for name in call["instances"]]
    assert sorted(machines) == sorted(life["id"] for life in emulator.history())
    assert len(machines) == len(set(machines))
    assert all(life["terminated_at"] is not None for life in emulator.history())
    assert most_at_once(emulator) <= SLOTS


def most_at_once(emulator: Emulator) -> int:
    """Return the greatest number of machines that lived at the same time."""
    changes = [(life["launched_at"], 1) for life in emulator.history()]
    changes += [(life["terminated_at"], -1) for life in emulator.history()]
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most
