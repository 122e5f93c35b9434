"""Actions between two ticks on the plain scheduler: notices, accounts, producers and operators."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

from tests.reference_model.quota.nouns import UNSET, Account, Job, Lease, Place, World, read_levels
from tests.reference_model.quota.paragraphs import count_cost, end_lease, level_of


def submit(world: World, asked: list[dict[str, Any]]) -> None:
    """A known id, in any phase: nothing."""
    for each in asked:
        if each["id"] not in world.jobs:
            add_job(world, each, world.now)


def add_job(world: World, given: dict[str, Any], created_at: Fraction) -> Job:
    """A reservation as a scenario writes it."""
    kept = {name: given[name] for name in ("labels", "prefers", "account", "preemptible", "priority") if name in given}
    component, *elastic = given.get("components", [{}])
    job = Job(given["id"], len(world.jobs), given["system"], created_at, count=component.get("count", 1), **kept)
    job.labels_of_parts = sum(len(each["labels"]) for each in elastic)
    world.jobs[job.name] = job
    return job


def end(world: World, name: str, phase: str) -> None:
    """It is over; nothing is refunded when a lease ends by itself."""
    job = world.jobs.get(name)
    if job and job.phase in {"pending", "leased", "revoking"}:
        end_lease(world, job)
        job.phase = phase


def surrender(world: World, name: str) -> None:
    """The victim surrenders before its deadline."""
    job = world.jobs[name]
    if job.phase == "revoking":
        job.lease, job.phase = None, "pending"


def confirm(world: World, name: str, slot: str) -> None:
    """Authoritative: it runs there."""
    place, job = world.place(slot), world.jobs.get(name)
    if job and job.phase not in {"pending", "leased"}:
        return
    for other in world.on(place, "held"):
        if other is not job:
            end_lease(world, other)
            other.phase = "pending"
    if job is None:
        place.stranger = True
        return
    known = job.lease
    if known and place not in known.places:
        end_lease(world, job)
        count_cost(known, world.now)
        job.lease = Lease([place], known.level, known.cost, world.now, known.assigned_at)
    elif known is None:
        job.lease = Lease([place], level_of(world, job), read_levels(None), world.now, world.now)
    assert job.lease
    job.phase, job.lease.confirmed = "leased", True


def idle(world: World, slot: str, labels: dict[str, str] | None) -> None:
    """Authoritative: nothing runs on that slot; an assignment that is not confirmed yet is held."""
    place = world.place(slot)
    held = world.on(place, "held")
    if any(job.lease and not job.lease.confirmed for job in held):
        return
    for job in held:
        end(world, job.name, "released")
    place.stranger = False
    place.labels = place.labels if labels is None else labels


def change_account(world: World, given: dict[str, Any]) -> None:
    """Creates (balance 0 unless given) or changes; a change keeps the balance unless one is given."""
    name = given["id"]
    account = world.accounts.setdefault(name, Account(name, world.now))
    account.take_settings(given)
    if "balance" in given:
        account.balance = read_levels(given["balance"])


def forget_account(world: World, name: str) -> None:
    """Its leases run on unpaid, its pending reservations have no account; created again it starts from 0."""
    if world.accounts.pop(name, None):
        for job in world.jobs.values():
            job.account = None if job.account == name else job.account


def reset_account(world: World, name: str) -> None:
    """0s."""
    if name in world.accounts:
        world.accounts[name].balance = read_levels(None)


def change_rules(world: World, config: dict[str, Any]) -> None:
    """The present rules apply from now on."""
    scheduler = config.get("scheduler", {})
    world.preemption = scheduler.get("preemption", world.preemption)
    world.grace = Fraction(scheduler.get("preemption_grace", world.grace))
    world.min_run_time = Fraction(scheduler.get("min_run_time", world.min_run_time))
    world.confirm_timeout = Fraction(scheduler.get("confirm_timeout", world.confirm_timeout))
    for name, given in config.get("accounts", {}).items():
        change_table(world, name, given)


def change_table(world: World, name: str, given: dict[str, Any]) -> None:
    """Change a table: a key that it omits is unset, and a balance counts where it is new. Not a rule of the source."""
    old = world.tables.get(name, {})
    table = world.tables[name] = {**old, **given}
    settings = {key: value for key, value in table.items() if key != "balance"}
    is_new = "balance" in table and table["balance"] != old.get("balance")
    change_account(world, {"id": name, **UNSET, **settings, **({"balance": table["balance"]} if is_new else {})})


def put_place(world: World, given: dict[str, Any], pool: dict[str, Any]) -> None:
    """A slot record with its leases, which count as confirmed."""
    place = Place(given["id"], pool["system"], pool.get("max_leases_per_slot", 1), dict(given.get("labels", {})))
    world.places.append(place)
    for each in given.get("leases", []):
        job = world.jobs[each["reservation"]]
        cost, level = read_levels(each.get("cost")), each.get("level", 5)
        name = each.get("component", "main")
        if job.lease:  # another instance of the job
            job.lease.places.append(place)
            if name.startswith("help."):
                job.lease.parts[name] = place
            job.lease.cost = [a + b for a, b in zip(job.lease.cost, cost, strict=True)]
        else:
            job.phase, job.lease = "leased", Lease([place], level, cost, world.now, world.now, confirmed=True)


def set_priority(world: World, name: str, priority: float) -> None:
    """Only 0 counts: on hold. A job with a claim that is put on hold loses the claim."""
    job = world.jobs[name]
    job.priority = priority
    if priority == 0 and job.lease and job.lease.state == "claimed":
        end_lease(world, job)


def set_cordoned(world: World, slot: str, *, is_cordoned: bool) -> None:
    """An operator's action."""
    world.place(slot).cordoned = is_cordoned


WORDS: dict[str, Callable[[World, Any], None]] = {
    "submit": submit,
    "release": lambda world, name: end(world, name, "released"),
    "cancel": lambda world, name: end(world, name, "cancelled"),
    "surrender": lambda world, value: surrender(world, value["reservation"]),
    "confirm": lambda world, value: confirm(world, value["reservation"], value["slot"]),
    "absent": lambda world, name: end(world, name, "released"),
    "idle": lambda world, value: idle(world, value["slot"], value.get("labels")),
    "account": change_account,
    "forget_account": forget_account,
    "reset_account": reset_account,
    "rules": change_rules,
    "priority": lambda world, value: set_priority(world, value["reservation"], value["priority"]),
    "cordon": lambda world, slot: set_cordoned(world, slot, is_cordoned=True),
    "uncordon": lambda world, slot: set_cordoned(world, slot, is_cordoned=False),
}
"""The effect of each action of the contract."""
