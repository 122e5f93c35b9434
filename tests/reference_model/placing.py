"""The queue, and the one pass over it: a lease, capacity in flight, a launch, or a code. Sources: Arvados, Zoe,
Orchard.
"""

from collections import Counter
from math import inf

from msgspec.structs import replace

from scheduler.model.reservations import Component, Reservation
from tests.reference_model.fitting import could_hold, find_need, fits, has_labels, has_room, is_declined
from tests.reference_model.gangs import Search
from tests.reference_model.guarding import Planned, estimate, make_twin, plan
from tests.reference_model.launching import (
    CODES,
    ROOM,
    Offer,
    find_code,
    list_eligible,
    list_fitting,
    may_probe,
    start,
    stop,
)
from tests.reference_model.picture import Picture, Site, list_essential, serving_pools, settings_of, system_of
from tests.reference_model.starting import find_start, start_stopped


def sort_queue(picture: Picture, reservations: list[Reservation]) -> list[Reservation]:
    """Rule: "`created_at` ascending, then order of submission"; before that under `priority` the higher one, under
    `size` the smaller one, under `dynsize` the one of smaller present size. A system with settings of its own has
    a queue of its own, behind the common one.
    """
    systems = ["", *picture.rules.scheduler.system]

    def rank(each: Reservation) -> tuple[float, ...]:
        system, settings = system_of(picture.rules, each), settings_of(picture.rules, each)
        first = {
            "fifo": 0.0,
            "priority": -each.priority,
            "size": each.request.size,
            "dynsize": find_present_size(picture, each, settings.dynsize_decay),
        }
        own = systems.index(system) if system in systems else 0
        return (own, first[settings.queue], each.created_at, each.sequence)

    return sorted(reservations, key=rank)


def find_present_size(picture: Picture, each: Reservation, decay: float) -> float:
    """Zoe: "max(0, S0 - `dynsize_decay` * seconds since `created_at`), S0 = (sum of `cpus`) * (sum of `memory_mib`)
    over all instances; a sum of 0 counts as 1". What a component omits comes from the
    defaults of the first pool.
    """
    pools = serving_pools(picture.rules, each)
    defaults = picture.rules.pools[pools[0]].default_resources if pools else {}
    wanted = [({**defaults, **component.resources}, component.count) for component in each.request.components]
    size = 1.0
    for name in ("cpus", "memory_mib"):
        asked = [amounts[name] * count for amounts, count in wanted if name in amounts]
        size *= sum(asked) if any(asked) else 1
    if decay and picture.now >= each.created_at + size / decay:  # what rounding leaves of it then counts for nothing
        return 0.0
    return max(0.0, size - decay * (picture.now - each.created_at))


def is_on_hold(reservation: Reservation) -> bool:
    """Rule: "Priority 0, or suspended"."""
    return reservation.suspended or reservation.priority == 0


class Pass:
    """One pass over the queue, with the slots that are kept for protected reservations."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.closed: set[str] = set()
        """The pools where a launch is withheld from a reservation: they launch nothing for their tier or reserve."""
        self.kept: dict[str, list[Site]] = {}
        """Slots that the starvation guard keeps, by the protected reservation."""
        self.starts: list[list[Planned]] = []
        """The ready slots of each planned start."""
        self.claims: Counter[str] = Counter()
        """For each slot the number of reservations that got a planned start, or would have, and could use it."""
        self.blocked: list[str] = []
        """Queues that end at a reservation without a lease, because `backfill` is off."""
        self.behind_gang: list[str] = []
        """Those of them whose first one is a gang that neither ready slots nor slots in flight complete."""
        self.unserved: list[Reservation] = []
        self.uncovered: set[str] = set()
        """Those for which a search of all that exists found nothing."""
        self.awaited: list[Reservation] = []
        """Gangs that the guard protects and that no launch completes."""
        self.withheld: list[tuple[Reservation, list[Reservation]]] = []
        """Reservations that lack only headroom for a launch, each with the gangs in `awaited` before it."""

    @property
    def ready(self) -> list[Site]:
        """Rule: "Only ready, uncordoned slots", except the kept ones."""
        return [site for site in self.picture.sites if site.state == "ready" and site not in self.all_kept]

    @property
    def all_kept(self) -> list[Site]:
        """The kept slots of all reservations."""
        return [site for sites in self.kept.values() for site in sites]

    @property
    def coming(self) -> list[Site]:
        """In flight since before this tick."""
        return [site for site in self.picture.sites if site.is_coming and not site.is_new]

    @property
    def launched(self) -> list[Site]:
        """Launched in this tick so far; a launch that tries a quota for a gang belongs to the gang alone."""
        return [site for site in self.picture.sites if site.is_new and not site.is_wanted]

    def list_there(self, each: Reservation) -> list[list[Site]]:
        """Where it may find capacity without a launch, including what is kept for it."""
        return [self.ready, self.kept.get(each.id, []), self.coming]

    def run(self, queue: list[Reservation]) -> None:
        """First what is ready or in flight, in queue order, then launches, in queue order."""
        for each in queue:
            code = find_misfit(self.picture, each)
            if code:
                self.picture.waits[each.id] = code
            else:
                self.place(each)
        self.cover_returning()
        for each in sort_queue(self.picture, self.unserved):
            self.launch(each)

    def place(self, each: Reservation) -> None:
        """Rule: "A ready slot with room (at once a lease)"; else "room on a slot in flight: it waits with
        `booting` and spends that room"; a gang "keeps the ready room until it is complete".

        "With `backfill` false the first that gets no ready slot ends the placing: … the room that they would have
        taken is still kept for them." (Not before a gang, which "asks for launches of all that it lacks at once":
        what is ready is no part of that.)
        """
        queue = system_of(self.picture.rules, each)
        queue = queue if queue in self.picture.rules.scheduler.system else ""
        is_blocked = queue in self.blocked
        if queue in self.behind_gang:
            self.note_wait(each, "behind_queue")
            self.unserved.append(each)
            return
        found = Search(self.picture, each, [self.ready]).run()
        if found is None and not is_blocked:
            found = self.lend(each)
        if is_blocked or (found is None and self.is_kept_out(each)):
            self.note_wait(each, "behind_queue")
        if found is not None and not is_blocked:
            self.assign(each, found)
            return
        is_covered = found is not None or Search(self.picture, each, [self.ready, self.coming]).run() is not None
        if is_covered:
            self.note_wait(each, "booting")
        else:
            self.unserved.append(each)
            self.uncovered.add(each.id)
        if not settings_of(self.picture.rules, each).backfill:
            self.blocked.append(queue)
            if not is_covered and len(list_essential(each)) > 1:
                self.behind_gang.append(queue)
        else:
            self.guard(each)

    def assign(self, each: Reservation, sites: list[Site]) -> None:
        """Assign all its essential components; a lease lists the amounts that it was given."""
        names = [name for name, _ in list_essential(each)]
        components = [component for _, component in list_essential(each)]
        given = [find_need(component, site.pool) for component, site in zip(components, sites, strict=True)]
        words = [
            f"{name}={site.id}{dict(sorted(amounts.items()))}"
            for name, site, amounts in zip(names, sites, given, strict=True)
        ]
        self.picture.decide("assign", each.id, *words)
        for name, site, amounts in zip(names, sites, given, strict=True):
            site.came.append((each.id, name, amounts))

    def note_wait(self, each: Reservation, code: str) -> None:
        """Only a pending reservation waits; "the first that applies": `behind_queue` comes before later codes."""
        if self.picture.phases[each.id] == "pending":
            self.picture.waits.setdefault(each.id, code)

    def is_kept_out(self, each: Reservation) -> bool:
        """Whether it would have got a lease without the slots that the guard keeps for an earlier reservation."""
        return self.can_serve(each, [self.ready]) is False and self.can_serve(each, [self.ready, self.all_kept])

    def can_serve(self, each: Reservation, stages: list[list[Site]]) -> bool:
        """Whether there is capacity for all of it; nothing is used."""
        found = Search(self.picture, each, stages).run()
        for site in reversed(found or []):
            site.taken.pop()
        return found is not None

    def guard(self, each: Reservation) -> None:
        """Rule: "No backfilling past one that has been pending longer, on slots that could serve it, unless it
        waits with `on_hold`, `no_pool`, `never_fits`, `capacity` or `cordoned`." Those that it declined could not.
        """
        limit = settings_of(self.picture.rules, each).starvation_guard
        if not limit or self.picture.now <= each.created_at + limit:
            return
        is_covered = each not in self.unserved
        if not is_covered and self.foresee_code(each) in ("capacity", "cordoned"):
            return
        if settings_of(self.picture.rules, each).guard == "strict" or not self.picture.run_times:
            self.kept[each.id] = [site for site in self.ready if could_serve(self.picture, site, each)]
            return
        self.kept[each.id] = []
        if not is_covered:
            self.plan_start(each)

    def plan_start(self, each: Reservation) -> None:
        """Rule: "For each slot, the first `guard_depth` reservations in queue order that are protected and could use it
        get a planned start". It is noted at first. "If the start is not known", or the first one is over by more than
        10 minutes and 25 % of the wait, all of these slots are kept.
        """
        picture, depth = self.picture, settings_of(self.picture.rules, each).guard_depth
        parts = [component for _, component in list_essential(each)]
        own = [
            site
            for site in (*self.ready, *self.coming)
            if not site.row.cordoned and not site.is_useless and self.claims[site.id] < depth
            if any(could_hold(picture, site, each, part) for part in parts)
        ]
        self.claims.update(site.id for site in own)
        sites = [site for site in own if not is_declined(site, each)]
        noted = each.planned_start
        over = -inf if noted is None else picture.now - noted
        planned = None
        if own and not (over > 600 and over > (picture.now - each.created_at) / 4):
            planned = plan(picture, each, sites)
        if planned is None or planned[0].start <= picture.now:
            self.kept[each.id] = [site for site in sites if site.state == "ready"]
            return
        if noted is None:
            picture.decide("plan_start", each.id, f"{planned[0].start:.9g}")
        ready = [one for one in planned if one.site.state == "ready"]
        for one in ready:
            one.site.planned += one.count
        self.kept[each.id] = [one.site for one in ready]
        if ready:
            self.starts.append(ready)

    def lend(self, each: Reservation) -> list[Site] | None:
        """Rule: "Later work may use a planned slot if it is expected to end before the planned start, or if it leaves
        room for the planned instances then."
        """
        all_lent = [[one.site for one in start] for start in self.starts]
        if not all_lent or not self.can_serve(each, [self.ready, *all_lent]):
            return None
        twins = {make_twin(one): one for start in self.starts for one in start}
        found = Search(self.picture, each, [self.ready, list(twins)]).run()
        if found is not None:
            return [self.take_beside(each, at, site, twins.get(site)) for at, site in enumerate(found)]
        end = self.picture.now + estimate(self.picture, each, 0)
        lent = [[one.site for one in start] for start in self.starts if end <= start[0].start]
        return Search(self.picture, each, [self.ready, *lent]).run() if lent else None

    def take_beside(self, each: Reservation, at: int, site: Site, beside: Planned | None) -> Site:
        """Take what one instance needs from the slot for which a twin was found."""
        if beside is None:
            return site
        amounts = find_need(list_essential(each)[at][1], site.pool)
        beside.site.taken.append(amounts)
        beside.load += 1
        if beside.spare is not None:
            beside.spare = {name: max(0, has - amounts.get(name, 0)) for name, has in beside.spare.items()}
        return beside.site

    def foresee_code(self, each: Reservation) -> str:
        """Return the code with which it would wait if the launches were decided now; nothing is decided."""
        attempt = Attempt(self, each)
        code = attempt.run()
        attempt.undo()
        return code

    def cover_returning(self) -> None:
        """Rule: "With a longer [grace] its replacement is launched at once, and it is placed when the holder lets
        go".
        """
        picture = self.picture
        found = [each for each in picture.reservations if each.id in picture.returning and not is_on_hold(each)]
        for each in sort_queue(picture, found):
            is_covered = Search(picture, each, [self.ready, self.coming]).run() is not None
            if serving_pools(picture.rules, each) and not is_covered:
                self.unserved.append(each)

    def launch(self, each: Reservation) -> None:
        """Rule: "Then against slots launched earlier in this tick, and only then asks for a launch"; a gang "asks
        for launches of all that it lacks at once", and "one that cannot be completed so holds nothing". After a quota
        hold one start or launch goes alone, the first of a gang too.
        """
        attempt = Attempt(self, each)
        code = attempt.run()
        self.note_wait(each, code)
        if attempt.served:
            return
        first, site = (attempt.offers[0], attempt.first[0]) if attempt.offers else (None, None)
        attempt.undo()
        self.closed |= attempt.closed
        if attempt.held in ROOM:
            self.withheld.append((each, list(self.awaited)))
        if each.id in self.kept and len(list_essential(each)) > 1:
            self.awaited.append(each)
        if first is not None and code == "at_quota" and may_probe(self.picture, first):
            account = each.request.account or ""
            if site is not None and site.row.state == "stopped":
                start_stopped(self.picture, site, first, "demand", account).is_wanted = True
            else:
                start(self.picture, first, "demand", account).is_wanted = True


def give_back(sites: list[Site]) -> None:
    """Undo that a search took something from each of these slots."""
    for site in reversed(sites):
        site.taken.pop()


class Attempt:
    """The launches for one reservation, made if they serve it completely."""

    def __init__(self, placing: Pass, each: Reservation) -> None:
        self.placing, self.picture, self.each = placing, placing.picture, each
        self.offers: list[Offer] = []
        self.first: list[Site] = []
        """What was launched in the order of writing, with its offers in `offers`. These, `codes`, `lacks_one` and
        `held` are of that order.
        """
        self.is_first = True
        self.sites: list[Site] = []
        self.served: list[Site] = []
        self.codes: list[str] = []
        self.lacks_one = False
        self.held = ""
        """What holds back the launch that it lacks."""
        self.closed: set[str] = set()
        """The pools where `max_slots`, EC2's quota or a budget withholds this launch."""

    def run(self) -> str:
        """Return the code with which it waits then."""
        fresh: list[Site] = self.placing.launched
        stages = [*self.placing.list_there(self.each), fresh]

        def extend(component: Component) -> Site | None:
            site = self.open(component)
            if site is not None:
                fresh.append(site)
                fresh.sort(key=self.picture.sites.index)
            return site

        def retract(keep: int) -> None:
            self.is_first = False
            for site in reversed(self.sites[keep:]):
                stop(self.picture, site)
                fresh.remove(site)
            del self.sites[keep:]

        is_covered = self.each.id not in self.placing.uncovered or self.each.id in self.placing.kept or bool(fresh)
        found = Search(self.picture, self.each, stages, extend, retract).run()
        if found is not None and not is_covered and not self.sites:
            # Placement used up its steps, and what later reservations took since makes this search shorter. Here only
            # launches count; the next tick places the gang.
            give_back(found)
            found = Search(self.picture, self.each, stages, extend, retract, is_known=True).run()
            if found is not None and not self.sites:
                give_back(found)
                found = None
        if found is not None:
            self.served = found
            return "no_capacity" if all(site.state == "ready" for site in found) else "booting"
        if not self.lacks_one:
            return "gang_incomplete"
        self.held = next((code for code in CODES if code in self.codes), "")
        if self.held == "at_max_slots" and not self.first and self.has_room_on_cordoned():
            return "cordoned"
        return self.held or self.find_code_without_launch()

    def open(self, component: Component) -> Site | None:
        """Rule: "A stopped slot that fits is started, else the first eligible one without a hold is launched"."""
        account = self.each.request.account or ""

        def may_be(offer: Offer) -> bool:
            pool = self.picture.rules.pools[offer.pool]
            is_fitting = has_labels(dict(offer.labels), self.each, component) and fits(
                find_need(component, pool), offer.capacity
            )
            return is_fitting and not could_serve_any(self.picture, offer, self.placing.awaited)

        found = find_start(self.picture, serving_pools(self.picture.rules, self.each), may_be, account)
        if found is not None:
            return self.note(found[1], start_stopped(self.picture, *found, "demand", account))
        offers = list_eligible(self.picture, self.each, component)
        codes = [
            find_code(self.picture, offer, account)
            or ("behind_queue" if could_serve_any(self.picture, offer, self.placing.awaited) else "")
            for offer in offers
        ]
        for offer, code in zip(offers, codes, strict=True):
            if not code:
                return self.note(offer, start(self.picture, offer, "demand", account))
        if self.is_first:
            self.codes, self.lacks_one = codes, True
            for name in {offer.pool for offer in offers}:
                there = [code for offer, code in zip(offers, codes, strict=True) if offer.pool == name]
                if min(there, key=CODES.index) in (*ROOM, "over_budget"):
                    self.closed.add(name)
        return None

    def note(self, offer: Offer, site: Site) -> Site:
        """Record one more launch."""
        self.sites.append(site)
        if self.is_first:
            self.offers.append(offer)
            self.first.append(site)
        return site

    def undo(self) -> None:
        """Rule: "Whatever was tried for a reservation that is then not placed is undone completely"."""
        for site in self.served:
            site.taken.pop()
        for site in reversed(self.sites):
            stop(self.picture, site)

    def has_room_on_cordoned(self) -> bool:
        """Rule: "If only cordoned slots would have had room and no launch is possible, the code is `cordoned`"."""
        cordoned = [site for site in self.picture.sites if site.state == "ready"]
        found = Search(self.picture, self.each, [cordoned], are_cordoned=True).run()
        for site in reversed(found or []):
            site.taken.pop()
        return found is not None

    def find_code_without_launch(self) -> str:
        """Rule: "Some of its essential instances would have room, not all"; "only cordoned slots would have room";
        else `no_capacity`.
        """
        mine = {site.id for site in self.sites}
        others = [site for site in self.placing.launched if site.id not in mine]
        components = [component for _, component in list_essential(self.each)]
        for component in components:
            alone = _only(self.each, component)
            if self.placing.can_serve(alone, [*self.placing.list_there(self.each), others]):
                return "gang_incomplete"
        cordoned = [
            site
            for site in self.picture.sites
            if site.state == "ready" and site.row.cordoned and not is_declined(site, self.each)
        ]
        if all(any(has_room(self.picture, site, self.each, each) for site in cordoned) for each in components):
            return "cordoned"
        return "no_capacity"


def could_serve_any(picture: Picture, offer: Offer, gangs: list[Reservation]) -> bool:
    """Rule: a slot that could serve a gang which the guard protects is launched for no later reservation."""
    pool = picture.rules.pools[offer.pool]
    for gang in gangs:
        if offer.pool in serving_pools(picture.rules, gang):
            for _, component in list_essential(gang):
                is_fitting = has_labels(dict(offer.labels), gang, component)
                if is_fitting and fits(find_need(component, pool), offer.capacity):
                    return True
    return False


def _only(each: Reservation, component: Component) -> Reservation:
    """The same reservation with this one instance alone."""
    return replace(each, request=replace(each.request, components=(replace(component, count=1),)))


def could_serve(picture: Picture, site: Site, each: Reservation) -> bool:
    """Whether the slot, if it were empty, could hold one of its instances."""
    if site.row.cordoned or site.is_useless or is_declined(site, each):
        return False
    return any(could_hold(picture, site, each, component) for _, component in list_essential(each))


def find_misfit(picture: Picture, each: Reservation) -> str:
    """Why nothing is even tried: `on_hold`; "no pool serves its system"; "no slot or offering of them, even empty,
    could hold it". A static host that is away may come back.
    """
    if is_on_hold(each):
        return "on_hold"
    pools = serving_pools(picture.rules, each)
    if not pools:
        return "no_pool"
    there = [site for site in picture.sites if site.is_active or site.pool.provider == "static"]
    for _, component in list_essential(each):
        offering = picture.rules.pools
        is_offered = any(list_fitting(name, offering[name], each, component, sold=False) for name in pools)
        if not is_offered and not any(could_hold(picture, site, each, component) for site in there):
            return "never_fits"
    return ""
