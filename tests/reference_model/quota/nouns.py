"""The state of the plain scheduler: accounts, places, jobs and their leases, in exact fractions and plain lists.

Its words differ from the engine's on purpose: a *place* is a slot, a *job* a reservation. Nothing of the engine is
imported here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

FREE = 5
LEVELS = range(5)
Balance = list[Fraction]


def read_levels(given: list[float] | None) -> Balance:
    """Five numbers; shorter lists are padded with 0."""
    numbers = [Fraction(each) for each in given or []]
    return numbers + [Fraction(0)] * (len(LEVELS) - len(numbers))


@dataclass
class Account:
    """What a team earns and what is left of it."""

    name: str
    charged_at: Fraction
    charge_rate: Balance = field(default_factory=lambda: read_levels(None))
    max_charge_seconds: Fraction = Fraction(0)
    max_fanout: int = 0
    per_label_task_limits: dict[str, int] = field(default_factory=dict)
    disable_free_tasks: bool = False
    balance: Balance = field(default_factory=lambda: read_levels(None))
    used: Balance = field(default_factory=lambda: read_levels(None))
    """By leases that ended since the last charge."""

    def take_settings(self, given: dict[str, Any]) -> None:
        """Change the given fields."""
        for name, read in SETTINGS.items():
            if name in given:
                setattr(self, name, read(given[name]))


SETTINGS: dict[str, Callable[[Any], Any]] = {
    "charge_rate": read_levels,
    "max_charge_seconds": Fraction,
    "max_fanout": int,
    "per_label_task_limits": dict,
    "disable_free_tasks": bool,
}
"""The settings of an account, and how each is read."""
UNSET: dict[str, Any] = {
    "charge_rate": [],
    "max_charge_seconds": 0,
    "max_fanout": 0,
    "per_label_task_limits": {},
    "disable_free_tasks": False,
}


@dataclass(eq=False)
class Place:
    """A slot of a static pool, with room for this number of leases."""

    name: str
    system: str
    room: int
    labels: dict[str, str]
    cordoned: bool = False
    stranger: bool = False
    """An unknown occupant runs there: no job is placed on it."""


@dataclass
class Lease:
    """A job on its places. `state`: held, revoking (it ends at `until`) or claimed (it waits for another's end)."""

    places: list[Place]
    """The place of each instance of the job; a place may occur more than once."""
    level: int
    cost: Balance
    counted_to: Fraction
    """Until this time its use is included in its cost."""
    assigned_at: Fraction
    confirmed: bool = False
    state: str = "held"
    until: Fraction = Fraction(0)
    parts: dict[str, Place] = field(default_factory=dict)
    """The places of elastic instances that are held, by name; they are in `places`, too."""
    leaving: list[tuple[str, Place, Fraction]] = field(default_factory=list)
    """Elastic instances that were preempted alone, with the end of their grace period."""

    def list_all(self) -> list[Place]:
        """The places of all instances, also of those that leave."""
        return [*self.places, *(place for _, place, _ in self.leaving)]

    def count_essential(self, place: Place) -> int:
        """The number of instances there that are not elastic."""
        return self.places.count(place) - list(self.parts.values()).count(place)


@dataclass
class Job:
    """A reservation, with one lease for all its instances."""

    name: str
    number: int
    """Order of submission."""
    system: str
    created_at: Fraction
    labels: dict[str, str] = field(default_factory=dict)
    prefers: dict[str, str] = field(default_factory=dict)
    account: str | None = None
    preemptible: bool = True
    priority: float = 1
    count: int = 1
    """The number of its essential instances; they are alike."""
    labels_of_parts: int = 0
    """The number of labels that elastic instances require beside `labels`."""
    phase: str = "pending"
    lease: Lease | None = None


@dataclass
class World:
    """Everything at one time. Places are in slot order, jobs in order of submission."""

    now: Fraction = Fraction(0)
    preemption: bool = True
    grace: Fraction = Fraction(30)
    min_run_time: Fraction = Fraction(0)
    confirm_timeout: Fraction = Fraction(0)
    places: list[Place] = field(default_factory=list)
    jobs: dict[str, Job] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    tables: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The accounts as the rules list them."""

    def place(self, name: str) -> Place:
        return next(each for each in self.places if each.name == name)

    def order(self, place: Place) -> int:
        return self.places.index(place)

    def account_of(self, job: Job) -> Account | None:
        return self.accounts.get(job.account) if job.account is not None else None

    def on(self, place: Place, *states: str) -> list[Job]:
        return [job for job, lease in self.leases() if place in lease.places and lease.state in states]

    def count_on(self, place: Place, *states: str) -> int:
        """The number of instances there whose lease is in one of these states."""
        leaving = [part for _, lease in self.leases() for part in lease.leaving] if "revoking" in states else []
        count = sum(lease.places.count(place) for _, lease in self.leases() if lease.state in states)
        return count + sum(part[1] is place for part in leaving)

    def leases(self) -> list[tuple[Job, Lease]]:
        return [(job, job.lease) for job in self.jobs.values() if job.lease]

    def running(self) -> list[tuple[Job, Lease]]:
        """The jobs that are charged: holders, and jobs that have claimed a place and wait for its holder to end."""
        return [(job, lease) for job, lease in self.leases() if lease.state != "revoking"]


def has(place: Place, labels: dict[str, str]) -> bool:
    """A slot has a label when it has that name with an equal value."""
    return all(place.labels.get(name) == value for name, value in labels.items())
