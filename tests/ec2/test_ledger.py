"""The cost ledger against the emulator's record: it has the life of every machine, also of those without a slot."""

import time
from collections import Counter, defaultdict
from typing import Any, Final

import pytest
from leasehold_emulator.spot_prices import A_GB_MONTH, AN_ADDRESS

from scheduler.model.transitions import INACTIVE
from scheduler.operations.machines.check import recover, sweep
from scheduler.operations.machines.reconcile import reconcile
from scheduler.operations.market import refresh_on_demand
from scheduler.operations.tick.tick import tick
from scheduler.ports import CloudError, LaunchOrder
from scheduler.store.memory import MemoryStore
from testbed.processes import wait_for
from tests.ec2.conftest import IMAGE, Emulator
from tests.ec2.test_faults_at_scale import ProbedFleet
from tests.operations.harness import Harness
from workers.ec2.clients import Ec2Access, open_client
from workers.ec2.market import make_market

PRICES: Final = {"c5.large": 0.3, "m5.large": 0.4}
RULES: Final[dict[str, Any]] = {
    "pools": {
        "linux": {
            "system": "x86_64-linux",
            "max_slots": 5,
            "max_leases_per_slot": 1,
            "lease_ttl": 0,
            "idle_scale_down": 0.5,
            "probe": {"kind": "tcp", "port": 22},
            "offerings": [{"name": name, "price": price} for name, price in PRICES.items()],
            "ec2": {"image": IMAGE},
        }
    }
}
ORPHAN_SECONDS: Final = 4.0
MOST_GIB: Final = 16384
LATE: Final = 1.0
"""Seconds by which the times of a machine in the ledger and in EC2 may differ, beside the time between two looks of the
jobs at its begin and at its end: EC2 has whole seconds.
"""


class Real(Harness):
    """A process whose cloud is the emulator, and whose time is that of the host."""

    def __init__(self, fleet: ProbedFleet, rules: dict[str, Any] = RULES) -> None:
        super().__init__(rules, store=MemoryStore(time.time), fleet=fleet)  # type: ignore[arg-type]
        self.looked_at, self.longest = time.time(), 0.0
        """The begin of the last step, and the longest time between the begins of two steps."""

    def clock(self) -> float:
        return time.time()

    def step(self) -> None:
        """Run the periodic jobs once. One that fails runs again at the next step."""
        ports = self.ports
        now = time.time()
        self.looked_at, self.longest = now, max(self.longest, now - self.looked_at)
        for job in (
            lambda: tick(ports, self.leader),
            lambda: recover(ports, 0.1),
            lambda: sweep(ports, all_machines=True),
            lambda: reconcile(ports, ORPHAN_SECONDS),
            self.play_tasks,
        ):
            try:
                job()
            except CloudError:
                self.mailbox.tasks.clear()

    def is_at_rest(self) -> bool:
        """Run the periodic jobs once. Return whether no machine is left."""
        self.step()
        return not any(slot.state not in INACTIVE for slot in self.store.find_slots()) and not list(self.fleet.sweep())


@pytest.mark.timeout(120)
def test_the_ledger_has_the_lives_of_all_machines_also_of_those_without_a_slot(
    emulator: Emulator, access: Ec2Access
) -> None:
    fleet = ProbedFleet(open_client("ec2", access, 30, attempts=1), "blue")
    process = Real(fleet)
    rules = process.ports.rules()
    # Machines that no slot can have: those of an unknown batch beyond the empty slots, and one of a removed slot.
    identity = process.store.read_cluster().identity
    order = LaunchOrder(
        batch="unknown", pool="linux", count=7, offerings=("c5.large",), cluster_id=identity, highest="0.0"
    )
    fleet.launch(fleet.freeze(order, rules))
    lone = LaunchOrder(
        slot="linux-99", pool="linux", launch_id="lone", generation=1, offerings=("m5.large",), cluster_id=identity
    )
    fleet.launch(fleet.freeze(lone, rules))
    # The slots have work, and answers about ends are lost. The seconds until a launch is answered are not booked.
    emulator.steer(faults=[{"lost": "500", "action": "TerminateInstances", "share": 0.5}])
    for number in range(5):
        process.submit(f"r{number}")

    def work() -> bool:
        process.step()
        rows = process.store.find_reservations(phases=["leased"])
        for row in rows:
            process.ask("release", reservation=row.id, token=row.token)
        return not process.store.find_reservations(phases=["pending", "leased"])

    wait_for(work, "the end of the work", 30)
    emulator.steer(faults=[])
    wait_for(process.is_at_rest, "the end of all machines", 30)

    lives = emulator.history()
    costs = process.store.read_costs()
    assert any(cost.kind == "unbound" for cost in costs)
    lived, booked = defaultdict[str, float](float), defaultdict[str, float](float)
    counts = Counter(life["type"] for life in lives)
    for life in lives:
        lived[life["type"]] += life["terminated_at"] - life["launched_at"]
    for cost in costs:
        booked[cost.offering] += cost.seconds
        if cost.kind != "adjusted":
            assert cost.dollars == pytest.approx(cost.seconds / 3600 * PRICES[cost.offering])
    assert booked.keys() == lived.keys()
    for offering, seconds in booked.items():
        assert abs(seconds - lived[offering]) <= (LATE + 2 * process.longest) * counts[offering]
    without_slot = sum(cost.seconds for cost in costs if cost.kind == "unbound")
    assert without_slot >= 3 * (ORPHAN_SECONDS - LATE), "the machines without a slot are more than the tolerance"


def test_volumes_and_public_addresses_are_booked_at_the_prices_of_the_price_list(
    emulator: Emulator, access: Ec2Access
) -> None:
    """The offering has no price, so all dollars are those of the volume and of the address."""
    linux = RULES["pools"]["linux"]
    rules = {"offerings": [{"name": "m5.large"}], "ec2": {"image": IMAGE, "volume_gib": MOST_GIB}}
    process = Real(
        ProbedFleet(open_client("ec2", access, 30, attempts=1), "blue"), {"pools": {"linux": {**linux, **rules}}}
    )
    refresh_on_demand(process.store, make_market(access), process.ports.rules())
    volume = MOST_GIB * A_GB_MONTH / 730
    process.submit("r")

    def is_leased() -> bool:
        process.step()
        return bool(process.store.find_reservations(phases=["leased"]))

    wait_for(is_leased, "the lease", 30)
    [meter] = [slot.meter for slot in process.store.find_slots() if slot.meter is not None]
    assert (meter.volume, meter.address) == pytest.approx((volume, AN_ADDRESS))
    lasting = process.store.now() + 3 * LATE

    def has_lasted() -> bool:
        process.step()
        return process.store.now() >= lasting

    wait_for(has_lasted, "a life that is longer than the tolerance", 30)
    [row] = process.store.find_reservations(phases=["leased"])
    process.ask("release", reservation=row.id, token=row.token)
    wait_for(process.is_at_rest, "the end of all machines", 30)

    [life] = emulator.history()
    lived = life["terminated_at"] - life["launched_at"]
    costs = process.store.read_costs()
    assert {cost.kind for cost in costs if cost.dollars} == {"adjusted"}
    dollars = sum(cost.dollars for cost in costs)
    late = (LATE + 2 * process.longest) * (volume + AN_ADDRESS)
    # The volume is there from the launch until the end; the address is billed while the machine runs.
    assert lived * volume - late <= 3600 * dollars <= lived * (volume + AN_ADDRESS) + late
    assert not any(each.dollars for each in process.store.sum_costs(0.0)), "no budget counts them"
