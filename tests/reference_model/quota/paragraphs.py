"""qscheduler's rules as a program: a function for each paragraph, in its order, with plain loops."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import combinations
from math import ceil
from typing import Any

from tests.reference_model.quota.nouns import FREE, LEVELS, Account, Job, Lease, Place, World, has, read_levels

Line = dict[str, Any]


@dataclass
class Pass:
    """What one tick has found and done so far."""

    levels: dict[str, int] = field(default_factory=dict)
    """The level of each job that takes part, by name, in the order of the queue."""
    group_counts: dict[Any, int] = field(default_factory=dict)
    label_counts: dict[Any, int] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)
    """Jobs that take no part: the free level by balance, and their account disables it."""
    placed: set[str] = field(default_factory=set)
    preempted: set[str] = field(default_factory=set)
    """The places that were preempted in this tick."""
    gang_payers: set[str] = field(default_factory=set)
    """The accounts for which a job on several places has preempted in this tick."""
    lines: list[Line] = field(default_factory=list)


def tick(world: World) -> tuple[list[Line], dict[str, str]]:
    """One tick: its decisions, and the waits with their codes."""
    found = Pass()
    end_graces(world, found)
    end_parts(world, found)
    requeue_unconfirmed(world, found)
    charge(world)
    count_for_limits(world, found)
    assign_claims(world, found)
    queue = order(job for job in world.jobs.values() if job.phase == "pending" and not job.lease and job.priority > 0)
    for job in queue:
        account, level = world.account_of(job), level_of(world, job)
        if level == FREE and account and account.disable_free_tasks:
            found.left_out.add(job.name)
        else:
            found.levels[job.name] = level
    for level in LEVELS:
        place_all(world, found, level)
        relevel(world, found, level)
        if world.preemption:
            preempt(world, found, level)
    place_all(world, found, FREE)
    return found.lines, describe_waiting(world, found)


def end_graces(world: World, found: Pass) -> None:
    """A job that was preempted with a grace period is pending again when that is over."""
    for job in world.jobs.values():
        if job.lease and job.lease.state == "revoking" and job.lease.until <= world.now:
            job.lease, job.phase = None, "pending"
            found.lines.append({"do": "requeue", "reservation": job.name, "reason": "preempted"})


def end_parts(world: World, found: Pass) -> None:
    """An elastic instance that was preempted with a grace period ends when that is over."""
    for job, lease in world.leases():
        for name, place, until in sorted(lease.leaving, key=lambda each: each[0]):
            if lease.state == "held" and until <= world.now:
                line = {"do": "revoke", "reservation": job.name, "component": name, "slot": place.name}
                found.lines.append({**line, "reason": "preempted"})
                lease.leaving.remove((name, place, until))


def requeue_unconfirmed(world: World, found: Pass) -> None:
    """Unconfirmed for `confirm_timeout`: pending again; nothing refunded."""
    for job in world.jobs.values():
        lease = job.lease
        if not world.confirm_timeout or not lease or lease.state != "held" or lease.confirmed:
            continue
        if world.now - lease.assigned_at >= world.confirm_timeout:
            end_lease(world, job)
            job.phase = "pending"
            found.lines.append({"do": "requeue", "reservation": job.name, "reason": "unconfirmed"})


def charge(world: World) -> None:
    """Step 3, with w = the seconds that the account's leases ran at each level since its last charge."""
    for account in world.accounts.values():
        elapsed = world.now - account.charged_at
        if elapsed <= 0:
            continue
        used = list(account.used)
        for job, lease in world.running():
            if world.account_of(job) is account and lease.level < FREE:
                used[lease.level] += (world.now - max(lease.counted_to, account.charged_at)) * len(lease.places)
        for p in LEVELS:
            value = account.balance[p] - used[p]
            cap = account.charge_rate[p] * account.max_charge_seconds
            account.balance[p] = min(cap, value + elapsed * account.charge_rate[p]) if value < cap else value
        account.charged_at, account.used = world.now, read_levels(None)
    for _, lease in world.running():
        count_cost(lease, world.now)


def count_cost(lease: Lease, now: Fraction) -> None:
    """Each instance that is leased at p < 5 adds elapsed to cost[p]."""
    if lease.level < FREE:
        lease.cost[lease.level] += (now - lease.counted_to) * len(lease.places)
    lease.counted_to = now


def end_lease(world: World, job: Job) -> None:
    """One that ended between two ticks is charged for the part of the slice in which it ran."""
    lease, account = job.lease, world.account_of(job)
    if lease and lease.state != "revoking" and lease.level < FREE and account:
        account.used[lease.level] += (world.now - max(lease.counted_to, account.charged_at)) * len(lease.places)
    job.lease = None


def level_of(world: World, job: Job) -> int:
    """The lowest p with balance[p] > 0; none, no account, or an account that does not exist: 5."""
    account = world.account_of(job)
    return next((p for p in LEVELS if account and account.balance[p] > 0), FREE)


def order(jobs: Any) -> list[Job]:
    """Number of required labels descending, `created_at` ascending, order of submission."""
    return sorted(jobs, key=lambda job: (-len(job.labels) - job.labels_of_parts, job.created_at, job.number))


def count_for_limits(world: World, found: Pass) -> None:
    """Count the leases that run as the tick begins: a revoked one runs until it ends."""
    for job, lease in world.leases():
        count_lease(found, job, lease.list_all())


def count_lease(found: Pass, job: Job, places: list[Place]) -> None:
    """One more lease of this group for each place, and of this account on each label of the place."""
    found.group_counts[group_of(job)] = found.group_counts.get(group_of(job), 0) + len(places)
    for place in places:
        for label in place.labels.items():
            key = (job.account, label)
            found.label_counts[key] = found.label_counts.get(key, 0) + 1


def group_of(job: Job) -> Any:
    """Same account, same `labels` and same `prefers`."""
    return job.account, tuple(sorted(job.labels.items())), tuple(sorted(job.prefers.items()))


def is_at_fanout(world: World, found: Pass, job: Job) -> bool:
    """Its group has `max_fanout` leases or more."""
    account = world.account_of(job)
    return bool(account and account.max_fanout and found.group_counts.get(group_of(job), 0) >= account.max_fanout)


def is_refused_by_label(world: World, found: Pass, job: Job, place: Place, others: Sequence[Place] = ()) -> bool:
    """Whether any limit for a label that the place has, by exact name, is reached; `others`: the places that the job
    takes, too.
    """
    account = world.account_of(job)
    return account is not None and any(
        found.label_counts.get((job.account, (name, place.labels[name])), 0)
        + sum(other.labels.get(name) == place.labels[name] for other in others)
        >= limit
        for name, limit in account.per_label_task_limits.items()
        if name in place.labels
    )


def count_room(world: World, place: Place, *, later: bool = False) -> int:
    """How many more instances a place takes: none, unless it is ready and uncordoned. What is held or claimed is no
    room. `later`: when what is revoking there has ended.
    """
    if place.cordoned or place.stranger:
        return 0
    claimed = world.count_on(place, "claimed")
    leaving = 0 if later else world.count_on(place, "revoking")
    return place.room - world.count_on(place, "held") - max(leaving, claimed)


def is_idle(world: World, place: Place) -> bool:
    """It has room for one more."""
    return count_room(world, place) > 0


def may_be_at(world: World, found: Pass, job: Job, place: Place, others: Sequence[Place] = ()) -> bool:
    """Its labels and its account's per-label limits."""
    fits = job.system == place.system and has(place, job.labels)
    return fits and not is_refused_by_label(world, found, job, place, others)


def find_places(
    world: World, found: Pass, job: Job, first: Place, opened: Sequence[Place] = (), *, is_preferred: bool = False
) -> list[Place] | None:
    """The first instance goes on this place, each other one on the first idle place in slot order on which it may be.
    None: they have not all a place. `opened`: places that are idle as soon as what is revoking there has ended.
    """
    places: list[Place] = []
    for each in [first, *range(1, job.count)]:
        place = next(
            (
                place
                for place in ([first] if each is first else world.places)
                if (place in opened or is_idle(world, place))
                and count_room(world, place, later=bool(opened)) > places.count(place)
                and may_be_at(world, found, job, place, places)
                and (has(place, job.prefers) or not is_preferred)
            ),
            None,
        )
        if place is None:
            return None
        places.append(place)
    return places


def those_of(world: World, found: Pass, level: int) -> list[Job]:
    """The unplaced jobs of one level in order; at the free level also those that a limit excludes from a paid one."""
    chosen = []
    for name, own in found.levels.items():
        job = world.jobs[name]
        account = world.account_of(job)
        at_fanout = own < FREE and is_at_fanout(world, found, job)
        joins_free = at_fanout and not (account and account.disable_free_tasks)
        takes_part = (own == FREE or joins_free) if level == FREE else (own == level and not at_fanout)
        if name not in found.placed and takes_part:
            chosen.append(job)
    return chosen


def place_all(world: World, found: Pass, level: int) -> None:
    """1 preferred, 2 any: each idle slot in slot order takes the first in the order, while it has room."""
    for is_preferred in (True, False):
        for place in world.places:
            while is_idle(world, place):
                match = find_match(world, found, level, place, is_preferred=is_preferred)
                if match is None:
                    break
                job, places = match
                assign(world, found, job, Lease(places, level, read_levels(None), world.now, world.now))


def find_match(
    world: World, found: Pass, level: int, place: Place, opened: Sequence[Place] = (), *, is_preferred: bool = False
) -> tuple[Job, list[Place]] | None:
    """The first job in the order that a place takes, and the places of all its instances."""
    for job in those_of(world, found, level):
        places = find_places(world, found, job, place, opened, is_preferred=is_preferred)
        if places is not None:
            return job, places
    return None


def assign(world: World, found: Pass, job: Job, lease: Lease) -> None:
    """The job runs there from now on."""
    job.phase, job.lease = "leased", lease
    found.placed.add(job.name)
    count_lease(found, job, lease.places)
    record_assigned(found, job, lease)


def record_assigned(found: Pass, job: Job, lease: Lease) -> None:
    """Add the decision of an assignment."""
    names = ["main"] if job.count == 1 else [f"main.{index}" for index in range(job.count)]
    leases = [{"component": name, "slot": place.name} for name, place in zip(names, lease.places, strict=True)]
    found.lines.append({"do": "assign", "reservation": job.name, "leases": leases, "level": lease.level})


def assign_claims(world: World, found: Pass) -> None:
    """With a grace period: a claim is assigned in the first tick after the victim or the grace period has ended."""
    claims = [(job, lease) for job, lease in world.leases() if lease.state == "claimed"]
    awaited: list[Place] = []
    for job, lease in sorted(claims, key=lambda each: (each[1].assigned_at, each[0].number)):
        room = {place: place.room - world.count_on(place, "held", "revoking") for place in lease.places}
        has_room = all(room[place] >= lease.places.count(place) for place in lease.places)
        is_open = not any(place.cordoned or place.stranger or place in awaited for place in lease.places)
        if has_room and is_open:
            job.phase, lease.state, lease.assigned_at = "leased", "held", world.now
            record_assigned(found, job, lease)
        else:
            awaited += lease.places


def relevel(world: World, found: Pass, p: int) -> None:
    """3: running work of each account is demoted or promoted."""
    for account in sorted(world.accounts.values(), key=lambda each: each.name):
        own = [(job, lease) for job, lease in world.running() if world.account_of(job) is account]
        balance = account.balance[p]
        net = account.charge_rate[p] - sum(len(lease.places) for _, lease in own if lease.level == p)
        movable = by_cost(world, [(job, lease) for job, lease in own if lease.state == "held"])
        if balance < -600 and net < 0:
            move([each for each in movable if each[1].level == p], ceil(-net), p + 1, found)
        if balance > 600 and net > 0:
            dearest = by_cost(world, [each for each in movable if each[1].level > p], dearest_first=True)
            move(dearest, ceil(net), p, found)


def by_cost(world: World, leases: list[tuple[Job, Lease]], *, dearest_first: bool = False) -> list[tuple[Job, Lease]]:
    """Cheapest cost first (lexicographic from level 0), then slot order."""
    ordered = sorted(leases, key=lambda each: (min(map(world.order, each[1].list_all())), each[0].number))
    return sorted(ordered, key=lambda each: each[1].cost, reverse=dearest_first)


def move(leases: list[tuple[Job, Lease]], least: int, to: int, found: Pass) -> None:
    """The first of them, until at least this many instances have moved. Relevel changes neither cost nor balance."""
    moved = 0
    for job, lease in leases:
        if moved >= least:
            return
        found.lines.append({"do": "relevel", "reservation": job.name, "from": lease.level, "to": to})
        lease.level = to
        moved += len(lease.places)


def preempt(world: World, found: Pass, p: int) -> None:
    """4: for each victim slot in turn the first unplaced reservation that may and can pay takes it."""
    barred = {job.account for job, lease in world.running() if lease.level > p and job.account}
    tried = set(found.preempted)
    while choices := [
        (able[0], place)
        for place in world.places
        if place.name not in tried and (able := list_victims(world, place, p))
    ]:
        _, place = min(choices, key=lambda each: rank_of(world, *each))
        tried.add(place.name)
        for job in those_of(world, found, p):
            account = world.account_of(job)
            allowed = job.account not in barred and all(
                may_be_at(world, found, job, place, [place] * others) for others in range(job.count)
            )
            victims = choose_victims(world, job, place, p) if account and allowed else []
            if account and victims and sum_costs(victims) < account.balance:
                take_over(world, found, job, account, victims, place, p)
                break
    preempt_for_gangs(world, found, p, barred)


def preempt_for_gangs(world: World, found: Pass, p: int, barred: set[str]) -> None:
    """A job with instances on several slots preempts all or nothing, after those on one slot; at most one an account
    and tick.
    """
    for job in those_of(world, found, p):
        account = world.account_of(job)
        is_out = account is None or job.account in barred or account.name in found.gang_payers
        if job.count == 1 or is_out or account is None or job not in those_of(world, found, p):
            continue
        trial = Trial(world, found, job, account, p)
        if trial.run():
            found.gang_payers.add(account.name)
            take_over_all(world, found, job, account, trial, p)


@dataclass
class Trial:
    """What a job on several places would take: idle places first, then victim places in the order of the step."""

    world: World
    found: Pass
    job: Job
    account: Account
    p: int
    places: list[Place] = field(default_factory=list)
    victims: "list[Victim]" = field(default_factory=list)
    tried: list[Place] = field(default_factory=list)

    def run(self) -> bool:
        """Place each instance. A victim that need not end does not end."""
        for _ in range(self.job.count):
            place = self.find_free() or self.find_next()
            if place is None:
                return False
            self.places.append(place)
        for each in reversed(self.victims.copy()):
            self.victims.remove(each)
            if any(self.count_room(place) < 0 for place in each.places):
                self.victims.append(each)
        return bool(self.victims)

    def count_room(self, place: Place) -> int:
        """How many more instances of the job a place takes."""
        freed = sum(each.count_freed(place) for each in self.victims)
        return count_room(self.world, place, later=bool(self.world.grace)) + freed - self.places.count(place)

    def find_free(self) -> Place | None:
        """The first place that is idle, or that a victim frees."""
        for place in self.world.places:
            is_open = is_idle(self.world, place) or any(place in each.places for each in self.victims)
            if is_open and self.count_room(place) > 0 and self.may_be_at(place):
                return place
        return None

    def may_be_at(self, place: Place) -> bool:
        """Every slot of the job counts for the limits for labels."""
        return may_be_at(self.world, self.found, self.job, place, self.places)

    def list_victims(self, place: Place) -> "list[Victim]":
        """Without those that end already."""
        gone = {(each.job.name, each.part) for each in self.victims}
        able = list_victims(self.world, place, self.p)
        return [each for each in able if gone.isdisjoint({(each.job.name, None), (each.job.name, each.part)})]

    def find_next(self) -> Place | None:
        """The first victim place on which an instance fits then; each is tried once."""
        known = [*self.tried, *(place for place in self.world.places if place.name in self.found.preempted)]
        places = [place for place in self.world.places if place not in known and self.list_victims(place)]
        for place in sorted(places, key=self.rank):
            able = self.list_victims(place)
            is_paid_in_part = any(each.job is able[0].job for each in self.victims)
            if not sum_costs([*self.victims, able[0]]) < self.account.balance and not is_paid_in_part:
                return None
            chosen = self.choose(place, able) if self.may_be_at(place) else []
            if chosen and sum_costs([*self.victims, *chosen]) < self.account.balance:
                self.victims = merge([*self.victims, *chosen])
                self.tried.append(place)
                return place
        return None

    def rank(self, place: Place) -> Any:
        """As of the step, without the victims that end already."""
        first = self.list_victims(place)[0]
        return first.cost, first.size, self.world.order(place)

    def choose(self, place: Place, able: "list[Victim]") -> "list[Victim]":
        """The fewest and cheapest victims that make room there for one more instance."""
        return choose_set(able, place, 1 - self.count_room(place))


def take_over_all(world: World, found: Pass, job: Job, account: Account, trial: Trial, p: int) -> None:
    """The sum of the costs is paid once and refunded to each victim. One line for each victim place, in slot order; a
    victim is named on the first.
    """
    paid, named = sum_costs(trial.victims), list[tuple[str, str | None]]()
    for place in world.places:
        there = [each for each in trial.victims if place in each.places and place in trial.places]
        if own := [each for each in there if (each.job.name, each.part) not in named]:
            named += [(each.job.name, each.part) for each in own]
            record_preempted(found, job, own, place, p)
        if there:
            found.preempted.add(place.name)
    pay(world, account, trial.victims)
    freed = [
        place
        for place in world.places
        if place not in trial.places and any(place in each.places for each in trial.victims)
    ]
    end_all(world, trial.victims)
    start(world, found, job, Lease(trial.places, p, paid, world.now, world.now))
    pass_on(world, found, freed, p)


def rank_of(world: World, first: "Victim", place: Place) -> Any:
    """The cost of the cheapest victim on a place; of equal ones the number of leases that end with it, then slot
    order.
    """
    return first.cost, first.size, world.order(place)


@dataclass(eq=False)
class Victim:
    """What a preemption may end: a whole job, or one elastic instance of it (`part`)."""

    job: Job
    lease: Lease
    part: str | None = None

    @property
    def places(self) -> list[Place]:
        return self.lease.list_all() if self.part is None else [self.lease.parts[self.part]]

    def count_freed(self, place: Place) -> int:
        """The number of leases there that are held and end."""
        return self.lease.places.count(place) if self.part is None else self.places.count(place)

    @property
    def size(self) -> int:
        """The number of leases that end."""
        return len(self.places)

    @property
    def cost(self) -> list[Fraction]:
        """The cost of the job; of an elastic instance, its share."""
        share = 1 if self.part is None else Fraction(1, len(self.lease.places))
        return [each * share for each in self.lease.cost]


def list_victims(world: World, place: Place, p: int) -> list[Victim]:
    """What may be preempted on a place: cheapest first, then with the fewest leases, then elastic instances, then in
    slot order; of one job the last elastic instance first.
    """
    if place.cordoned or place.stranger:
        return []
    found = list[Victim]()
    for job, lease in world.running():
        if place in lease.places and may_be_victim(world, job, p):
            found += [Victim(job, lease)] if lease.count_essential(place) else []
            found += [Victim(job, lease, name) for name, at in lease.parts.items() if at is place]

    def rank(each: Victim) -> Any:
        first = min(map(world.order, each.places))
        return each.cost, each.size, each.part is None, first, each.job.number, -int((each.part or ".0").split(".")[1])

    return sorted(found, key=rank)


def choose_victims(world: World, job: Job, place: Place, p: int) -> list[Victim]:
    """The victims whose end makes room there for all instances of the job."""
    room = count_room(world, place, later=bool(world.grace))
    return choose_set(list_victims(world, place, p), place, job.count - room)


def choose_set(able: list[Victim], place: Place, least: int) -> list[Victim]:
    """The fewest victims that free this number of leases there; of equally few the cheapest, of equally cheap ones
    those with the fewest leases, then those with the most elastic instances.
    """
    for size in range(1, len(able) + 1):
        sets = [
            list(each)
            for each in combinations(able, size)
            if sum(victim.count_freed(place) for victim in merge(each)) >= least
        ]
        if sets:
            return min(sets, key=rank_set)
    return []


def rank_set(victims: list[Victim]) -> Any:
    """The first set is chosen."""
    return sum_costs(victims), sum(each.size for each in victims), sum(each.part is None for each in victims)


def merge(victims: Sequence[Victim]) -> list[Victim]:
    """Without elastic instances of jobs that end as a whole."""
    whole = [each.job for each in victims if each.part is None]
    return [each for each in victims if each.part is None or each.job not in whole]


def sum_costs(victims: Sequence[Victim]) -> list[Fraction]:
    return [sum((each.cost[level] for each in merge(victims)), Fraction(0)) for level in LEVELS]


def may_be_victim(world: World, job: Job, p: int) -> bool:
    """Work of a worse level that holds its places, is preemptible, and has run for `min_run_time`."""
    lease = job.lease
    assert lease is not None
    holds = lease.level > p and lease.state == "held" and job.preemptible
    return holds and world.now - lease.assigned_at >= world.min_run_time


def take_over(
    world: World, found: Pass, job: Job, account: Account, victims: list[Victim], place: Place, p: int
) -> None:
    """The victims' accounts get the whole cost back, the new job's account pays it, and the new lease has it."""
    paid = sum_costs(victims)
    pay(world, account, victims)
    record_preempted(found, job, victims, place, p)
    found.preempted.add(place.name)
    freed = [each for each in world.places if each is not place and any(each in old.places for old in victims)]
    end_all(world, victims)
    start(world, found, job, Lease([place] * job.count, p, paid, world.now, world.now))
    pass_on(world, found, freed, p)


def pay(world: World, account: Account, victims: Sequence[Victim]) -> None:
    for level in LEVELS:
        for each in victims:
            account.balance[level] -= each.cost[level]
            if paid_back := world.account_of(each.job):
                paid_back.balance[level] += each.cost[level]


def record_preempted(found: Pass, job: Job, victims: Sequence[Victim], place: Place, p: int) -> None:
    """One line names the jobs; each elastic instance that ends alone has a line of its own after it."""
    names = list(dict.fromkeys(each.job.name for each in victims))
    found.lines.append({"do": "preempt", "reservation": job.name, "slot": place.name, "victims": names, "level": p})
    for each in (each for each in victims if each.part is not None):
        line = {"do": "revoke", "reservation": each.job.name, "component": each.part, "slot": place.name}
        found.lines.append({**line, "reason": "preempted"})


def end_all(world: World, victims: Sequence[Victim]) -> None:
    """Pending again; with a grace period revoking. An elastic instance ends alone, with its share of the cost."""
    for each in (each for each in victims if each.part is None):
        job, lease = each.job, each.lease
        if world.grace:
            lease.places, lease.leaving = lease.list_all(), []
            lease.state, lease.until, job.phase = "revoking", world.now + world.grace, "revoking"
        else:
            job.lease, job.phase = None, "pending"
    for each in (each for each in victims if each.part is not None):
        assert each.part is not None
        lease, left = each.lease, [a - b for a, b in zip(each.lease.cost, each.cost, strict=True)]
        place = lease.parts.pop(each.part)
        lease.places.remove(place)
        lease.cost = left
        if world.grace:
            lease.leaving.append((each.part, place, world.now + world.grace))


def start(world: World, found: Pass, job: Job, new: Lease) -> None:
    """Assigned at once; with a grace period a claim."""
    if not world.grace:
        assign(world, found, job, new)
        return
    new.state, job.lease = "claimed", new
    found.placed.add(job.name)
    count_lease(found, job, new.places)


def pass_on(world: World, found: Pass, freed: list[Place], p: int) -> None:
    """The other places of the victims are offered to the first job that could be matched to an idle place, free of
    cost; barred accounts, too.
    """
    opened = freed if world.grace else []
    for place in freed:
        while count_room(world, place, later=bool(opened)) > 0:
            match = find_match(world, found, p, place, opened)
            if match is None:
                break
            job, places = match
            start(world, found, job, Lease(places, p, read_levels(None), world.now, world.now))


def describe_waiting(world: World, found: Pass) -> dict[str, str]:
    """Every pending job, with the first code that applies."""
    return {job.name: waiting_code(world, found, job) for job in world.jobs.values() if job.phase == "pending"}


def waiting_code(world: World, found: Pass, job: Job) -> str:
    account = world.account_of(job)
    suited = [place for place in world.places if place.system == job.system and has(place, job.labels)]
    idle = [place for place in suited if is_idle(world, place)]
    if job.priority == 0:
        return "on_hold"
    if not suited:
        return "never_fits"
    if job.lease:
        return "no_capacity"
    if job.name in found.left_out:
        return "no_quota"
    if account and account.disable_free_tasks and is_at_fanout(world, found, job):
        return "account_limit"
    if idle and all(is_refused_by_label(world, found, job, place) for place in idle):
        return "account_limit"
    if any(place.cordoned and world.count_on(place, "held", "revoking") < place.room for place in suited):
        return "cordoned"
    return "no_capacity"
