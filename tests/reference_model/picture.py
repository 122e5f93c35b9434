"""The view of the naive tick: every slot and every reservation in a list, and what was decided about each so far.

Nothing is grouped, cached or found by an index: each question walks the lists.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scheduler.model.accounts import Account
from scheduler.model.launch_backoff import Hold
from scheduler.model.pools import Pool, offering_key
from scheduler.model.reservations import Component, Request, Reservation
from scheduler.model.rules import Rules, SchedulerKeys
from scheduler.model.run_times import RunTimes
from scheduler.model.slots import Slot, slot_order
from scheduler.model.view import Row
from tests.reference_model.holding import History

Amounts = Mapping[str, float]

IN_FLIGHT = ("launching", "booting", "binding")
INACTIVE = ("empty", "error")
BUCKETS = {"standard": "acdhimrtz", "g": "g"}
"""The vCPU limits of EC2, each with the letters with which its types begin, as far as the stories use them."""
HOLDING = ("ready", "draining")


@dataclass(eq=False)
class Site:
    """One slot as this tick leaves it. `leases` are by reservation and component, with the amounts of each."""

    row: Slot
    name: str
    pool: Pool
    state: str
    capacity: Amounts | None
    labels: Mapping[str, str]
    idle_since: float
    market: str
    bucket: str = ""
    price: float = 0
    account: str = ""
    """The account for whose demand the machine was launched."""
    leases: dict[tuple[str, str], Amounts] = field(default_factory=dict)
    taken: list[Amounts] = field(default_factory=list)
    """The amounts that this tick gave out or reserved here."""
    came: list[tuple[str, str, Amounts]] = field(default_factory=list)
    """Leases that begin here in this tick: reservation, component, amounts."""
    planned: int = 0
    """The number of instances that are planned here for a protected reservation."""
    is_new: bool = False
    """Launched in this tick."""
    is_wanted: bool = False
    is_useless: bool = False
    """Interrupted, silent or past its timeout: no capacity."""
    is_unclean: bool = False
    unconfirmed: int = 0

    @property
    def id(self) -> str:
        """The slot's."""
        return self.row.id

    @property
    def load(self) -> int:
        """The number of leases that it has or is to have."""
        return len(self.leases) + len(self.taken)

    @property
    def is_coming(self) -> bool:
        """*In flight* = launching, booting or binding, not interrupted and not past its timeout."""
        return self.state in IN_FLIGHT and not self.is_useless

    @property
    def is_active(self) -> bool:
        """*Active* = neither `empty` nor `error`."""
        return self.state not in INACTIVE

    @property
    def is_in_tier(self) -> bool:
        """A stopped slot that counts: the cloud has confirmed the stop, and nothing ends it."""
        row = self.row
        is_quiet = row.power is None and not row.drain_reason and not row.cordoned
        return self.state == row.state == "stopped" and is_quiet and self.pool.stopped_slots > 0

    @property
    def is_serving(self) -> bool:
        """*Serving* = ready or in flight, not cordoned."""
        return (self.state == "ready" or self.is_coming) and not self.row.cordoned

    @property
    def is_idle(self) -> bool:
        """Ready, uncordoned, without a lease; one that takes a lease in this tick is not idle in it."""
        return self.state == "ready" and not self.row.cordoned and not self.leases and not self.is_in_use

    @property
    def is_in_use(self) -> bool:
        """Whether a reservation got a lease here in this tick, or waits for the slot."""
        return bool(self.taken) or self.is_wanted


class Picture:
    """All that one tick knows and has decided."""

    def __init__(self, rows: Sequence[Row], rules: Rules, now: float, history: History) -> None:
        self.rules, self.now, self.history = rules, now, tuple(history)
        self.accounts = {row.id: row for row in rows if isinstance(row, Account)}
        self.holds = [row for row in rows if isinstance(row, Hold)]
        found = (row for row in rows if isinstance(row, Reservation))
        self.reservations = sorted(found, key=lambda each: each.sequence)
        self.phases: dict[str, str] = {each.id: each.phase for each in self.reservations}
        self.returning: list[str] = []
        """Interrupted ones whose holders have a grace to let go."""
        self.healed: set[str] = set()
        """Reservations whose leases this tick has ended: heal decides about each once."""
        self.failed_boots: list[str] = []
        """The pool of each boot that this tick ended."""
        self.run_times = {row.id: row for row in rows if isinstance(row, RunTimes)}
        self.decisions: list[str] = []
        self.waits: dict[str, str] = {}
        slots = [row for row in rows if isinstance(row, Slot)]
        self.sites = [self._open(slot) for name in rules.pools for slot in _in_order(slots, name)]

    def _open(self, slot: Slot) -> Site:
        pool = self.rules.pools[slot.pool]
        leases: dict[tuple[str, str], Amounts] = {
            (each.id, lease.component): lease.resources
            for each in self.reservations
            for lease in each.leases
            if lease.slot == slot.id and lease.epoch == slot.epoch and slot.state in HOLDING
        }
        return Site(
            row=slot,
            name=slot.pool,
            pool=pool,
            state=slot.state,
            capacity=find_capacity(slot, pool),
            labels=slot.labels,
            idle_since=slot.since if slot.idle_since is None else slot.idle_since,
            market=slot.market or "",
            bucket=find_bucket(pool, slot.offering or "", slot.market or ""),
            price=slot.price or 0,
            account=slot.launched_for or "",
            leases=leases,
            unconfirmed=slot.unconfirmed,
        )

    def decide(self, *words: str) -> None:
        """One more line of the plan."""
        self.decisions.append(" ".join(words))

    def find_account(self, reservation: Reservation) -> Account | None:
        return self.accounts.get(reservation.request.account or "")

    def list_in(self, phase: str) -> list[Reservation]:
        """The reservations that are in this phase now, in order of submission."""
        return [each for each in self.reservations if self.phases[each.id] == phase]

    def end_leases(self, reservation: Reservation) -> None:
        """Give back its leases; a slot without further leases is idle from now on. A lease that was only claimed leaves
        nothing on the machine.
        """
        claimed = {lease.component for lease in reservation.leases if lease.state == "claimed"}
        self.healed.add(reservation.id)
        if reservation.id in self.returning:
            self.returning.remove(reservation.id)
        for site in self.sites:
            mine = [key for key in site.leases if key[0] == reservation.id]
            for key in mine:
                del site.leases[key]
                site.idle_since = self.now
                site.is_unclean |= site.pool.recycle_unclean and key[1] not in claimed

    def find(self, slot_id: str, epoch: int) -> Site | None:
        """The slot if it still has the machine (epoch) for which a lease was given, and may have leases."""
        for site in self.sites:
            if site.id == slot_id and site.row.epoch == epoch and site.row.state in HOLDING:
                return site
        return None

    def find_order(self, site: Site) -> int:
        """The position of a slot in slot order."""
        return [each.row for each in self.sites].index(site.row)

    def list_in_pool(self, name: str) -> list[Site]:
        """The slots of one pool, in their order."""
        return [site for site in self.sites if site.name == name]


def _in_order(slots: list[Slot], pool: str) -> list[Slot]:
    """Slots have a fixed order: their number (`linux-2` before `linux-10`)."""
    return sorted((slot for slot in slots if slot.pool == pool), key=lambda slot: slot_order(slot.id))


def find_capacity(slot: Slot, pool: Pool) -> Amounts | None:
    """A slot record without `resources` takes its offering's, else its pool's; None: leases are counted only."""
    if slot.resources is not None:
        return slot.resources
    for offering in pool.offerings:
        if offering_key(pool, offering) == slot.offering and offering.resources is not None:
            return offering.resources
    return pool.resources


def find_bucket(pool: Pool, key: str, market: str) -> str:
    """Rule: EC2 limits vCPUs by market and class of the instance type; all unknown types share one class. "" if the
    machine has no offering.
    """
    if not key or not market:
        return ""
    types = [each.type or each.name for each in pool.offerings if offering_key(pool, each) == key]
    name = types[0] if types else key.split("/", maxsplit=1)[0]
    found = [bucket for bucket, letters in BUCKETS.items() if "." in name and name[0] in letters]
    return f"{market} {found[0] if found else 'other'}"


def system_of(rules: Rules, reservation: Reservation) -> str:
    """The system that it requests, or that of the pool that it names."""
    pool = rules.pools.get(reservation.request.pool or "")
    return pool.system if pool else reservation.request.system or ""


def settings_of(rules: Rules, reservation: Reservation) -> SchedulerKeys:
    """`system`: a table of the same keys per system, overriding."""
    own = rules.scheduler.system.get(system_of(rules, reservation))
    if own is None:
        return rules.scheduler
    return rules.scheduler.model_copy(update={key: getattr(own, key) for key in own.model_fields_set})


def serving_pools(rules: Rules, reservation: Reservation) -> list[str]:
    """The pool that it names, or all of its system. A command needs a host with an agent."""
    found = list_pools(rules, reservation.request)
    if reservation.run is None:
        return found
    return [name for name in found if rules.pools[name].agent or rules.pools[name].provider == "static"]


def list_pools(rules: Rules, request: Request) -> list[str]:
    if request.pool is not None:
        return [request.pool] if request.pool in rules.pools else []
    return [name for name, pool in rules.pools.items() if pool.system == request.system]


def list_essential(reservation: Reservation) -> list[tuple[str, Component]]:
    """A component's `count` instances are named `NAME` if 1, else `NAME.0`, `NAME.1`, …"""
    return [
        (each.name if each.count == 1 else f"{each.name}.{index}", each)
        for each in reservation.request.components
        if each.kind == "essential"
        for index in range(each.count)
    ]
