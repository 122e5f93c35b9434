"""What EC2's refusals hold back, for how long, and how many requests they let through in an hour."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec
import pytest

from scheduler.model.launch_backoff import Hold
from scheduler.model.slots import Machine
from scheduler.operations.explain import explain
from scheduler.ports import CloudError, LaunchAnswer, Refusal
from scheduler.ports.fleet import Category, Scope
from tests.generated import draw_some
from tests.operations.harness import CountingFleet, Harness
from workers.ec2.errors import OTHER, TABLE

CPU = {"name": "m5.large", "market": "spot", "price": 0.03, "resources": {"cpus": 2}}
CPU_ON_DEMAND = {"name": "m5.large", "market": "on-demand", "price": 0.1, "resources": {"cpus": 2}}
GPU = {"name": "g5.xlarge", "market": "spot", "price": 1, "resources": {"cpus": 4, "accelerators": 1}}


Where = Literal["call", "answer", "reason"]
"""Where EC2's code is: the error of a call, an error in the answer to a fleet, the reason of the end of a machine."""


class RefusingFleet(CountingFleet):
    """A cloud that refuses launches of some offerings."""

    def __init__(self, errors: Mapping[str, CloudError], where: Where = "call") -> None:
        super().__init__()
        self.requests: list[str] = []
        """The offering of each launch request."""
        self.refusing, self.where = dict(errors), where

    def launch(self, request: Mapping[str, Any]) -> LaunchAnswer:
        key = request["offerings"][0] if request["offerings"] else ""
        error = self._judge(key)
        if error is not None and self.where == "answer":
            return LaunchAnswer(machines=(), refusals=(error.refuse(key),))
        if error is not None and self.where == "call":
            raise error
        answer = super().launch(request)
        return msgspec.structs.replace(answer, machines=tuple(self._end(answer.machines, error)))

    def _judge(self, key: str | None) -> CloudError | None:
        self.requests.append(key or "")
        return self.refusing.get(key or "")

    def _end(self, machines: Sequence[Machine], error: CloudError | None) -> Sequence[Machine]:
        """Let EC2 end these machines for the reason of the error, after its answer to the launch."""
        if error is not None:
            reason = f"{error.code}: {error.message}"
            for each in machines:
                self.machines[each.id] = msgspec.structs.replace(
                    each, state="terminated", reason=reason, category=error.category, scope=error.scope
                )
        return machines


def a_harness(fleet: CountingFleet, *offerings: dict[str, Any], **pool: Any) -> Harness:
    rules = {"system": "x86_64-linux", "max_slots": 8, "max_leases_per_slot": 1, "lease_ttl": 0, "idle_scale_down": 30}
    pools = {"linux": rules | {"offerings": list(offerings)} | pool, "arm": rules | {"system": "aarch64-linux"}}
    return Harness({"scheduler": {"queue": "fifo"}, "pools": pools}, fleet=fleet)


def holds(harness: Harness) -> dict[str, Hold]:
    return {row.id: row for row in harness.store.read_rows() if isinstance(row, Hold)}


MOST_IN_HOUR: dict[tuple[Category, Scope], int] = {
    ("misconfigured", "offering"): 30,
    ("misconfigured", "place"): 30,
    ("auth", "caller"): 30,
    ("auth", "market"): 30,
    ("auth", "pool"): 30,
    ("auth", "offering"): 30,
    ("transient", "offering"): 30,
    ("unknown", "offering"): 30,
    ("token", "machine"): 30,
    ("gone", "machine"): 30,
    ("not_found", "machine"): 30,
    ("not_found", "offering"): 30,
    ("state", "machine"): 30,
    ("capacity", "offering"): 70,
    ("capacity", "place"): 70,
    ("quota", "class"): 70,
    ("quota", "pool"): 70,
    ("throttled", "pool"): 70,
}
"""(category, scope) -> the most launch requests in an hour of a pool with one offering in one place."""
SHAPES: list[tuple[Where, int]] = [("call", 1), ("call", 3), ("answer", 3), ("reason", 3)]
"""Where the code is, and how many reservations wait: the launch of one machine, or of a batch."""
OF_ENDS = frozenset({"capacity", "quota", "throttled", "auth", "misconfigured"})
"""Other reasons of an end concern the machine: its boot has failed."""


@pytest.mark.parametrize(("category", "scope"), MOST_IN_HOUR)
def test_a_refusal_lets_few_requests_through_in_an_hour(category: Category, scope: Scope) -> None:
    """Two of the shapes in each run of the tests, others each time."""
    shapes = [each for each in SHAPES if each[0] != "reason" or category in OF_ENDS]
    for number in draw_some(range(len(shapes)), 2):
        where, count = shapes[number % len(shapes)]
        fleet = RefusingFleet({"m5.large": CloudError(category, "Code", "EC2's sentence", scope)}, where)
        harness = a_harness(fleet, CPU)
        for index in range(count):
            harness.submit(f"r{index}", resources={"cpus": 2})
        harness.settle(3600, 5)
        assert 3 <= len(fleet.requests) <= MOST_IN_HOUR[category, scope], (where, count)


def test_every_meaning_of_a_code_is_played_for_an_hour() -> None:
    found = {(row.category, scope) for row in TABLE for scope in (row.scope, row.of_one) if scope}
    assert found | {(OTHER.category, OTHER.scope)} <= MOST_IN_HOUR.keys()


def test_a_refusal_is_kept_with_its_code_and_its_sentence() -> None:
    harness = a_harness(
        RefusingFleet({"m5.large": CloudError("misconfigured", "InvalidKeyPair.NotFound", "no key")}), CPU
    )
    harness.submit("r1", resources={"cpus": 2})
    harness.settle(4)
    found = holds(harness)["linux/misconfigured/m5.large"]
    assert (found.code, found.message) == ("InvalidKeyPair.NotFound", "no key")
    waits = explain(harness.ports, "r1")
    assert "InvalidKeyPair.NotFound: no key" in str(waits)


def test_misconfigured_pauses_grow_and_start_again_after_a_success() -> None:
    fleet = RefusingFleet({"m5.large": CloudError("misconfigured", "Code", "")})
    harness = a_harness(fleet, CPU)
    harness.submit("r1", resources={"cpus": 2})
    pauses: list[float] = []
    for _ in range(7):
        asked = len(fleet.requests)
        while len(fleet.requests) == asked:
            harness.settle(10, 10)
        found = holds(harness)["linux/misconfigured/m5.large"]
        pauses.append(found.until - found.refused_at)
    assert pauses == [60, 60, 120, 240, 480, 900, 900]
    fleet.refusing.clear()
    harness.settle(920, 10)
    assert harness.phase("r1") == "leased"
    assert holds(harness) == {}


def test_a_quota_of_one_class_holds_only_this_class() -> None:
    fleet = RefusingFleet({"g5.xlarge": CloudError("quota", "MaxSpotInstanceCountExceeded", "", "class")})
    harness = a_harness(fleet, CPU, GPU)
    harness.submit("gpu", resources={"accelerators": 1})
    harness.settle(4)
    assert list(holds(harness)) == ["linux/quota/spot:g"]
    for number in range(4):
        harness.submit(f"cpu-{number}", resources={"cpus": 2})
    harness.settle(6)
    assert [harness.phase(f"cpu-{number}") for number in range(4)] == ["leased"] * 4
    assert harness.phase("gpu") == "pending"


def test_idle_slots_of_another_class_do_not_go_for_a_launch_at_quota() -> None:
    fleet = RefusingFleet({"g5.xlarge": CloudError("quota", "VcpuLimitExceeded", "", "class")})
    harness = a_harness(fleet, CPU, GPU, idle_scale_down=300)
    harness.submit("cpu", resources={"cpus": 2})
    harness.settle(6)
    harness.ask("release", reservation="cpu", token=harness.token("cpu"))
    harness.submit("gpu", resources={"accelerators": 1})
    harness.settle(60)
    assert [slot.state for slot in harness.store.find_slots() if slot.state != "empty"] == ["ready"]


@pytest.mark.parametrize(
    ("category", "scope", "code"),
    [
        ("capacity", "offering", "InsufficientInstanceCapacity"),
        ("quota", "class", "MaxSpotInstanceCountExceeded"),
        ("auth", "market", "AuthFailure.ServiceLinkedRoleCreationNotPermitted"),
        ("auth", "offering", "UnauthorizedOperation"),
    ],
)
@pytest.mark.parametrize("where", ["call", "answer"])
def test_what_on_demand_avoids_counts_for_on_demand_after(
    category: Category, scope: Scope, code: str, where: Where
) -> None:
    fleet = RefusingFleet({"m5.large/spot": CloudError(category, code, "", scope)}, where)
    harness = a_harness(fleet, CPU, CPU_ON_DEMAND, on_demand_after=1)
    for name in ("r1", "r2"):
        harness.submit(name, resources={"cpus": 2})
    harness.settle(10)
    assert [harness.phase(name) for name in ("r1", "r2")] == ["leased", "leased"]


@pytest.mark.parametrize("category", ["misconfigured", "throttled", "auth"])
def test_what_on_demand_would_not_avoid_buys_nothing_on_demand(category: Category) -> None:
    scope: Scope = "caller" if category == "auth" else "pool" if category == "throttled" else "offering"
    fleet = RefusingFleet({"m5.large/spot": CloudError(category, "Code", "", scope)})
    harness = a_harness(fleet, CPU, CPU_ON_DEMAND, on_demand_after=1)
    harness.submit("r1", resources={"cpus": 2})
    harness.settle(50)
    assert harness.phase("r1") == "pending"


@pytest.mark.parametrize("scope", ["market", "pool", "offering"])
def test_a_refusal_of_one_pool_does_not_delay_another_pool(scope: Scope) -> None:
    harness = a_harness(RefusingFleet({"m5.large": CloudError("auth", "UnauthorizedOperation", "", scope)}), CPU)
    harness.submit("r1", resources={"cpus": 2})
    harness.settle(2)
    harness.ask("submit", id="arm-1", system="aarch64-linux")
    harness.settle(6)
    assert (harness.phase("r1"), harness.phase("arm-1")) == ("pending", "leased")


@pytest.mark.parametrize("scope", ["caller", "market"])
def test_a_refusal_beside_machines_reaches_no_other_pool(scope: Scope) -> None:
    class Partial(CountingFleet):
        def launch(self, request: Mapping[str, Any]) -> LaunchAnswer:
            answer = super().launch(request)
            refusal = CloudError("auth", "Blocked", "", scope).refuse("m5.large")
            return msgspec.structs.replace(answer, machines=answer.machines[:1], refusals=(refusal,))

    harness = a_harness(Partial(), CPU)
    for name in ("r1", "r2"):
        harness.submit(name, resources={"cpus": 2})
    harness.settle(2)
    assert list(holds(harness)) == ["linux/auth/m5.large"]


def test_a_refusal_of_the_caller_holds_every_pool() -> None:
    harness = a_harness(RefusingFleet({"m5.large": CloudError("auth", "ExpiredToken", "", "caller")}), CPU)
    harness.submit("r1", resources={"cpus": 2})
    harness.settle(2)
    harness.ask("submit", id="arm-1", system="aarch64-linux")
    harness.settle(6)
    assert harness.phase("arm-1") == "pending"
    assert list(holds(harness)) == ["*/auth/"]


def test_a_subnet_rests_alone_and_an_offering_when_all_its_places_rest() -> None:
    class Full(CountingFleet):
        """Every launch meets the next of these subnets, which has no addresses."""

        places = ["subnet-a", "subnet-b"]

        def launch(self, request: Mapping[str, Any]) -> LaunchAnswer:
            if not self.places:
                return super().launch(request)
            code, place = "InsufficientFreeAddressesInSubnet", self.places.pop(0)
            refusal = Refusal(offering="m5.large", category="capacity", code=code, scope="place", place=place)
            return LaunchAnswer(machines=(), refusals=(refusal,))

    fleet = Full()
    harness = a_harness(fleet, CPU, ec2={"subnets": ["subnet-a", "subnet-b"]})
    for name in ("r1", "r2"):
        harness.submit(name, resources={"cpus": 2})
    harness.settle(2)
    assert list(holds(harness)) == ["linux/capacity/@subnet-a"]
    harness.settle(2)
    assert list(holds(harness)) == ["linux/capacity/@subnet-a", "linux/capacity/@subnet-b"]
    harness.settle(20)
    assert fleet.machines == {}, "both places rest"
    harness.settle(60)
    assert len(fleet.machines) == 2


def test_a_back_off_of_an_earlier_version_holds_all_classes_of_its_market() -> None:
    harness = a_harness(CountingFleet(), CPU, GPU)
    now = harness.now
    old = Hold(id="linux/quota/spot", pool="linux", kind="quota", subject="spot", refused_at=now, until=now + 60)
    harness.put(old)
    harness.submit("r1", resources={"cpus": 2})
    harness.settle(30)
    assert harness.phase("r1") == "pending"
    harness.settle(40)
    assert harness.phase("r1") == "leased"
    assert holds(harness) == {}
