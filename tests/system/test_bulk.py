"""Many machines at once on a real stack: few calls launch, check and end them, and each is used once."""

from collections import Counter
from collections.abc import Iterator

import pytest

from testbed.processes import wait_for
from testbed.stack import Stack, a_pool

COUNT = 40
pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def bulk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack whose pool has room for as many machines as the test launches."""
    pool = a_pool(max_slots=COUNT, max_leases_per_slot=1, offerings=[{"name": "c5.large"}, {"name": "m5.large"}])
    with Stack(tmp_path_factory.mktemp("bulk"), {"pools": {"linux": pool}}) as running:
        yield running


def test_many_machines_are_launched_and_ended_by_few_calls(bulk: Stack) -> None:
    names = [f"bulk-{number}" for number in range(COUNT)]
    items = [{"id": name, "pool": "linux"} for name in names]
    assert bulk.ask("submit", {"items": items})["ok"]
    rows = bulk.await_phase(names, "leased")
    slots = {lease.slot for row in rows for lease in row.leases}
    assert len(slots) == COUNT
    launches = [call for call in bulk.calls("CreateFleet") if call["status"] == 200 and not call["replayed"]]
    machines = Counter(name for call in launches for name in call["instances"])
    assert (len(machines), set(machines.values())) == (COUNT, {1})
    # Reservations may arrive in several ticks; a launch of its own for each machine would be forty calls.
    assert len(launches) <= COUNT / 4
    bulk.ask("release", {"items": [{"reservation": row.id, "token": row.token} for row in rows]})
    bulk.await_empty()
    wait_for(lambda: not bulk.instances("pending", "running"), "the end of all machines")
    assert len(bulk.calls("TerminateInstances")) <= COUNT / 4
