"""A harness with quota accounts and hosts that take one lease each."""

from typing import Any

from scheduler.model.accounts import Account, Levels
from scheduler.model.reservations import Reservation
from scheduler.model.slots import Slot
from scheduler.ports import Store
from scheduler.view.memory import InMemoryRedis
from tests.operations.harness import CountingFleet, Harness

ACCOUNTS: dict[str, Any] = {"A": {"balance": [100]}, "B": {"balance": [50, 5]}}


def a_quota(grace: float = 0, accounts: dict[str, Any] | None = None, **scheduler: Any) -> dict[str, Any]:
    """Rules with the queue `quota` and one pool of hosts."""
    return {
        "scheduler": {"queue": "quota", "preemption_grace": grace, **scheduler},
        "pools": {"lab": {"system": "x86_64-linux", "provider": "static", "lease_ttl": 0, "offline_timeout": 1e9}},
        "accounts": ACCOUNTS if accounts is None else accounts,
    }


class QuotaHarness(Harness):
    """A harness with the hosts `lab-1` … `lab-N`."""

    def __init__(
        self,
        hosts: int = 1,
        *,
        grace: float = 0,
        store: Store | None = None,
        redis: InMemoryRedis | None = None,
        fleet: CountingFleet | None = None,
        **changes: Any,
    ) -> None:
        super().__init__(a_quota(grace, **changes), store=store, redis=redis, fleet=fleet)
        for number in range(1, hosts + 1):
            self.ask("register", slot=f"lab-{number}", pool="lab", machine=f"m{number}")

    def row(self, name: str) -> Reservation:
        return self.store.find_reservations(ids=[name])[0]

    def account(self, name: str) -> Account:
        return next(each for each in self.store.find_accounts() if each.id == name)

    def balance(self, name: str) -> Levels:
        return self.account(name).balance

    def with_leased(self, name: str, **fields: Any) -> "QuotaHarness":
        """Submit a reservation and run a tick, which has to lease it."""
        self.submit(name, **fields)
        self.tick()
        assert self.phase(name) == "leased"
        return self

    def host(self, name: str = "lab-1") -> Slot:
        return self.slot(name)

    def holders(self) -> dict[str, list[str]]:
        """Return host -> reservations with a lease on it; claims do not count."""
        found: dict[str, list[str]] = {}
        for row in self.store.find_reservations(limit=10_000):
            for lease in row.leases:
                if lease.state != "claimed":
                    found.setdefault(lease.slot, []).append(row.id)
        return found
