"""The placement of all instances of a reservation: in order of writing, by decreasing share, and by backtracking."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scheduler.model.reservations import Component, Reservation
from tests.reference_model.fitting import could_hold, find_free, find_need, has_room, is_declined, list_able, rank_site
from tests.reference_model.launching import list_eligible
from tests.reference_model.picture import Picture, Site, list_essential

MOST_STEPS, MOST_REQUESTS = 2000, 8
Extend = Callable[[Component], Site | None]


@dataclass
class Search:
    """The search for slots of one reservation. `stages`: one stage goes before the next. Without `extend` nothing is
    launched; `retract(n)` takes back all launches but the first n.
    """

    picture: Picture
    each: Reservation
    stages: Sequence[Sequence[Site]]
    extend: Extend | None = None
    retract: Callable[[int], None] = lambda _: None
    accept: Callable[[list[Site]], bool] = lambda _: True
    are_cordoned: bool = False
    is_known: bool = False
    """Whether an earlier search of what exists found nothing."""
    added: list[Site] = field(default_factory=list)
    steps: int = 0
    failed: set[object] = field(default_factory=set)

    @property
    def parts(self) -> list[Component]:
        """The instances, in order of writing."""
        return [component for _, component in list_essential(self.each)]

    @property
    def sites(self) -> list[Site]:
        """The slots of all stages."""
        found = [site for stage in self.stages for site in stage]
        return found + [site for site in self.added if site not in found]

    def run(self) -> list[Site] | None:
        """Rule: "First the order of writing. If that fails and the instances differ: by decreasing largest share. If
        that fails and there are at most 8 distinct requests: backtracking". No machine is launched while those that
        exist suffice.
        """
        written = list(range(len(self.parts)))
        differ = self.count_requests() > 1
        if self.extend is not None and differ and not self.is_known:
            found = Search(
                self.picture, self.each, self.stages, accept=self.accept, are_cordoned=self.are_cordoned
            ).run()
            if found is not None:
                return found
        found = self.try_in(written)
        if found is not None or not differ:
            return found
        order = self.sort_by_share()
        found = self.try_in(order)
        if found is not None or self.count_requests() > MOST_REQUESTS or len(written) > MOST_STEPS:
            return found
        return self.backtrack(order)

    def count_requests(self) -> int:
        """How many different requests the instances have: labels and amounts."""
        return len({self.describe(part) for part in self.parts})

    def describe(self, part: Component) -> object:
        """What is equal for equal requests."""
        pools = self.picture.rules.pools.items()
        needs = [(name, sorted(find_need(part, pool).items())) for name, pool in pools]
        return str((sorted(part.labels.items()), needs))

    def sort_by_share(self) -> list[int]:
        """Rule: "By decreasing largest share (request / greatest capacity of a slot that could serve, over the
        resources), ties by the number of slots that could hold the instance (fewest first), then by order". Slots count
        as if empty; of launches, what could be launched gives capacities.
        """
        return sorted(range(len(self.parts)), key=lambda index: (*self.find_share(self.parts[index]), index))

    def find_share(self, part: Component) -> tuple[float, int]:
        """Return its largest share, negative, and the number of slots."""
        able = [
            site
            for site in self.sites
            if site.row.cordoned == self.are_cordoned
            and not site.is_useless
            and not is_declined(site, self.each)
            and could_hold(self.picture, site, self.each, part)
        ]
        held = [(site.pool, site.capacity) for site in able]
        if self.extend is not None:
            offers = list_eligible(self.picture, self.each, part)
            held += [(self.picture.rules.pools[offer.pool], offer.capacity) for offer in offers]
        largest = 0.0
        known = [(find_need(part, pool), capacity) for pool, capacity in held if capacity is not None]
        for name in {name for need, _ in known for name in need}:
            asked = max(need.get(name, 0) for need, _ in known)
            most = max(capacity.get(name, 0) for need, capacity in known if need.get(name, 0) > 0) if asked > 0 else 0
            if most:
                largest = max(largest, asked / most)
        return -largest, len(able)

    def try_in(self, order: list[int]) -> list[Site] | None:
        """Rule: "Each essential instance in turn takes the first slot that fits; if one finds none, the whole
        reservation is taken out again"; with launches, "as many launched as it takes for all of them to find room once
        everything is ready, each in its turn".
        """
        stages = self.stages
        for _ in [*order, 0]:
            found = self.take_in(order, stages)
            if found is None:
                break
            if not self.added or self.count_requests() == 1 or self.hold_together(found):
                sites = [found[order.index(index)] for index in range(len(order))]
                if self.accept(sites):
                    return sites
                self.give_back(found)
                break
            stages = [self.sites]
            self.give_back(found)
        self.retract(0)
        self.added.clear()
        return None

    def take_in(self, order: list[int], stages: Sequence[Sequence[Site]]) -> list[Site] | None:
        """Return the slots in that order; if one finds none, give all back. Launched slots stay."""
        found: list[Site] = []
        for part in (self.parts[index] for index in order):
            stages = [*stages[:-1], [*stages[-1], *(site for site in self.added if site not in stages[-1])]]
            site = self.choose(part, stages)
            if site is None and self.extend is not None:
                site = self.extend(part)
                if site is not None:
                    self.added.append(site)
            if site is None:
                self.give_back(found)
                return None
            site.taken.append(find_need(part, site.pool))
            found.append(site)
        return found

    def choose(self, part: Component, stages: Sequence[Sequence[Site]]) -> Site | None:
        """Return the best slot of the first stage that has one."""
        for stage in stages:
            able = list_able(self.picture, stage, self.each, part, are_cordoned=self.are_cordoned)
            if able:
                return min(able, key=lambda site: rank_site(self.picture, site, self.each, part))
        return None

    def give_back(self, found: list[Site]) -> None:
        """Take back what these slots got last."""
        for site in reversed(found):
            site.taken.pop()

    def hold_together(self, found: list[Site]) -> bool:
        """Whether all instances are served when all these slots are ready."""
        given = [site.taken.pop() for site in reversed(found)]
        again = Search(self.picture, self.each, [self.sites]).run()
        self.give_back(again or [])
        for site, amounts in zip(found, reversed(given), strict=True):
            site.taken.append(amounts)
        return again is not None

    def backtrack(self, order: list[int]) -> list[Site] | None:
        """Rule: "Backtracking over classes of equal slots, at most 2,000 steps". A step places one instance; a state
        that failed is not tried again. With launches, the slots are those that the order of the shares launches, too;
        of these the last ones that are not used are not launched.
        """
        if self.extend is not None:
            self.give_back(self.take_in(order, self.stages) or [])
        found: list[Site] = []
        self.steps, self.failed = 0, set()
        if not self.go_on(order, found):
            self.give_back(found)
            self.retract(0)
            self.added.clear()
            return None
        while self.added and self.added[-1] not in found:
            self.added.pop()
        self.retract(len(self.added))
        sites = [found[order.index(index)] for index in range(len(order))]
        if self.accept(sites):
            return sites
        self.give_back(found)
        self.retract(0)
        self.added.clear()
        return None

    def go_on(self, order: list[int], found: list[Site]) -> bool:
        """Place what is left of the instances. The slots that they got are added to `found`."""
        if len(found) == len(order):
            return True
        part = self.parts[order[len(found)]]
        state = (len(found), str(sorted(str(self.show(site)) for site in self.sites)))
        if found and state in self.failed:
            return False
        able = [
            site
            for site in list_able(self.picture, self.sites, self.each, part, are_cordoned=self.are_cordoned)
            if has_room(self.picture, site, self.each, part)
        ]
        able.sort(key=lambda site: (self.find_stage(site), rank_site(self.picture, site, self.each, part)))
        seen: list[object] = []
        for site in able:
            if self.show(site) in seen:
                continue
            seen.append(self.show(site))
            if self.steps == MOST_STEPS:
                return False
            self.steps += 1
            site.taken.append(find_need(part, site.pool))
            found.append(site)
            if self.go_on(order, found):
                return True
            if self.steps == MOST_STEPS:
                return False  # the caller gives all back
            found.pop().taken.pop()
        self.failed.add(state)
        return False

    def find_stage(self, site: Site) -> int:
        """Return the number of its stage; a launched slot is in the last one."""
        return next((index for index, stage in enumerate(self.stages) if site in stage), len(self.stages) - 1)

    def show(self, site: Site) -> object:
        """What is equal for equal slots."""
        free = find_free(site)
        left = None if free is None else sorted(free.items())
        uses = site.row.uses if site.pool.max_uses else 0
        return (self.find_stage(site), site.name, sorted(site.labels.items()), left, site.load, uses)
