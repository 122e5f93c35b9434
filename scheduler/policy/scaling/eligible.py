"""Which offerings a launch may choose at present, by the market that is next in each pool."""

from collections.abc import Iterator, Mapping
from functools import cached_property

from scheduler.model.slots import Market
from scheduler.policy.capacity.requests import Demand, InstanceRequest
from scheduler.policy.cycle.state import CycleState
from scheduler.policy.scaling.offerings import (
    Choice,
    PoolLaunches,
    describe_turn,
    find_turn,
    list_configured,
    list_eligible,
    list_fallback,
)


class EligibleOfferings:
    """The offerings that launches of one cycle may choose. What may prevent a launch is not tested (`LaunchLimits`).

    `pools`: the launches so far, which decide the market that is next.
    """

    def __init__(self, cycle: CycleState, pools: Mapping[str, PoolLaunches]) -> None:
        self._rules, self._holds, self._pools = cycle.rules, cycle.view.holds, pools
        self._known: dict[tuple[object, ...], list[tuple[str, Choice]]] = {}

    @cached_property
    def has_mix(self) -> bool:
        """Whether the rules of any pool divide its slots among the markets (spot and on-demand)."""
        return any(pool.market.has_mix for pool in self._rules.pools.values())

    def list_for(self, demand: Demand, need: InstanceRequest) -> list[tuple[str, Choice]]:
        """Return (pool, choice) of the offerings that a launch for one instance may choose, best first."""
        turns = tuple(map(self._find_turn, demand.pools)) if self.has_mix else ()
        wanted = (need, demand.impatient, turns)
        if wanted not in self._known:
            found = self._known[wanted] = []
            for name in demand.pools:
                fitting = self._pools[name].list_fitting(need) if self._rules.pools[name].is_elastic else []
                found += [(name, choice) for choice in self._list_launchable(name, fitting, demand, need)]
        return self._known[wanted]

    def _list_launchable(
        self, name: str, fitting: list[Choice], demand: Demand, need: InstanceRequest
    ) -> Iterator[Choice]:
        """Yield the choices in `fitting` that a launch for one instance may take, in the order in which they are tried.

        If no spot offering of the pool could hold the instance, on-demand ones serve it when it is spot's turn, too:
        there is no spot machine to wait for. The reverse does not hold, so that a pool never has fewer on-demand slots
        than its rules require.
        """
        pool, turn = self._rules.pools[name], self._find_turn(name)
        if turn == "spot" and not any(
            each.market == turn and need.could_hold(name, each.capacity, each.labels) for each in list_configured(pool)
        ):
            turn = None
        eligible = list_eligible(fitting, pool, turn)
        yield from eligible
        yield from list_fallback(
            name, pool, fitting, eligible, self._holds, turn, is_impatient=name in demand.impatient
        )

    def list_next(self, name: str) -> list[Choice]:
        """Return the choices for a launch that no reservation needs, for example of a warm slot, best first. Such a
        launch falls back to on-demand only in a pool that divides its slots among the markets.
        """
        pool, turn, choices = self._rules.pools[name], self._find_turn(name), self._pools[name].choices
        eligible = list_eligible(choices, pool, turn)
        if not pool.market.has_mix:
            return eligible
        return [*eligible, *list_fallback(name, pool, choices, eligible, self._holds, turn)]

    def _find_turn(self, name: str) -> Market | None:
        """Return the market that the next launch in a pool is to have; None if the price decides."""
        rules = self._rules.pools[name].market
        return find_turn(rules, self._pools[name].mix) if rules.has_mix else None

    def describe_turn(self, name: str) -> str | None:
        """Return a text about the market that the next launch of a pool is to have; None if the price decides."""
        text = describe_turn(self._rules.pools[name].market, self._pools[name].mix)
        return None if text is None else f"pool {name}: {text}"

    def imagine(self, name: str, market: str, count: int) -> None:
        """Add `count` slots of this market to the pool's mix, which decides the market of its next launch. A negative
        number takes slots out.
        """
        if self.has_mix:
            self._pools[name].mix.add(market, count)

    def have_fitting(self, demand: Demand, need: InstanceRequest) -> bool:
        """Return whether an offering of a pool of the demand could hold an instance, whether or not a launch for this
        instance may choose it.
        """
        return any(self._pools[name].list_fitting(need) for name in demand.pools)

    def may_change_turn(self, demand: Demand, need: InstanceRequest) -> bool:
        """Return whether launches for other instances may make a launch for this one possible, because it is then the
        turn of another market.
        """
        return self.has_mix and self.have_fitting(demand, need)
