"""How the launches of a pool divide among the markets: the base, the share, the fallback to on-demand, and the return
to spot.
"""

from pathlib import Path
from typing import Any

import pytest

from scheduler.model.launch_backoff import Hold, hold_id
from scheduler.model.market import Price, StoredMarket
from scheduler.model.pools import MarketRules
from scheduler.model.rules import read_rules
from scheduler.model.slots import Slot
from scheduler.model.validation import InvalidInputError
from scheduler.model.view import Row, View
from scheduler.operations.market import resolve_rules
from scheduler.policy.plan import plan
from scheduler.policy.scaling.offerings import (
    MarketMix,
    count_mix,
    describe_turn,
    find_turn,
    list_alternatives,
    list_choices,
    list_eligible,
    list_fallback,
)
from scheduler.simulation.runner import play
from scheduler.simulation.scenario import load_scenario
from tests.builders import NOW, SYSTEM, a_reservation, a_slot, some_rules
from tests.reference_model.comparing import describe
from tests.reference_model.tick import tick
from tests.rules.playing import Played, a_scenario, play_out, submit
from tests.rules.playing import tick as at_once

SPOT = {"name": "m", "market": "spot", "price": 1, "resources": {"cpus": 4}}
ON_DEMAND = {"name": "m", "market": "on-demand", "price": 3, "resources": {"cpus": 4}}
SCENARIOS = Path(__file__).parent / "scenarios"


def markets(launches: list[str]) -> list[str]:
    """Return the markets of launched offerings, as `spot` and `on-demand`."""
    return [each.rpartition("/")[2] for each in launches]


def decide(
    *slots: Slot, market: dict[str, Any], waiting: int = 1, cpus: float = 1, holds: tuple[Hold, ...] = (), **pool: Any
) -> tuple[list[str], list[tuple[str, str]]]:
    """Plan one tick with eight slots; return its decisions, and the codes and sentences of the waits. The reference
    model decides the same.
    """
    table = {"system": SYSTEM, "max_slots": 8, "max_leases_per_slot": 1, "offerings": [SPOT, ON_DEMAND], **pool}
    rules = read_rules({"pools": {"linux": {**table, "market": market}}})
    empty = [a_slot(f"linux-{number}", state="empty") for number in range(len(slots) + 1, 9)]
    wishes = [a_reservation(f"r{number}", sequence=number + 1, resources={"cpus": cpus}) for number in range(waiting)]
    rows: list[Row] = [*slots, *empty, *wishes, *holds]
    planned = plan(View(rows), rules, NOW)
    assert describe(planned) == tick(rows, rules, NOW)
    return describe(planned).decisions, [(each.code, each.detail) for each in planned.waiting]


def launched(*slots: Slot, **given: Any) -> list[str]:
    """Return the markets of the launches that `decide` returns."""
    decisions, _ = decide(*slots, **given)
    return markets([each.split()[2] for each in decisions if each.startswith("launch")])


def busy(number: int, market: str, **changes: Any) -> Slot:
    fields = {"offering": f"m/{market}", "market": market, "price": 1.0, "resources": {"cpus": 4}, "cordoned": True}
    return a_slot(f"linux-{number}", **{**fields, **changes})


def short(market: str, *, streak: int = 1, ago: float = 0.0, lasts: float = 60.0) -> Hold:
    """Return the back-off after EC2 had no capacity for the pool's offering of this market."""
    key = f"m/{market}"
    return Hold(
        id=hold_id("linux", "capacity", key), pool="linux", kind="capacity", subject=key,
        refused_at=NOW - ago, until=NOW - ago + lasts, streak=streak,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("base", "share", "wanted"),
    [
        (2, None, "oo----"),  # above the base the price decides
        (0, 0.5, "ososos"),
        (2, 0.5, "ooosos"),
        (0, 0.25, "osssos"),
        (0, 0, "ssssss"),
        (1, 1, "oooooo"),
        (3, 0, "ooosss"),
    ],
)
def test_the_next_slot_is_on_demand_while_fewer_are_than_the_base_and_the_share_above_it(
    base: int, share: float | None, wanted: str
) -> None:
    rules, mix, found = MarketRules(on_demand_base=base, on_demand_share=share), MarketMix(), ""
    for _ in range(6):
        turn = find_turn(rules, mix)
        found += {"on-demand": "o", "spot": "s", None: "-"}[turn]
        mix.add(turn or "spot")
    assert found == wanted


def test_a_share_is_not_rounded_up_for_the_rounding_of_floats() -> None:
    """0.1 × 30 is 3.0000000000000004 as a float."""
    assert find_turn(MarketRules(on_demand_share=0.1), MarketMix(29, 3)) == "spot"
    assert find_turn(MarketRules(on_demand_share=0.1), MarketMix(30, 3)) == "on-demand"


def test_slots_that_leave_and_slots_without_a_machine_do_not_count() -> None:
    states = ("empty", "error", "draining", "terminating", "launching", "booting", "binding", "ready")
    mix = count_mix((state, "on-demand") for state in states)
    assert (mix.slots, mix.on_demand) == (4, 4)


def test_each_launch_of_a_tick_counts_for_the_next_one() -> None:
    assert launched(market={"on_demand_base": 1, "on_demand_share": 0.5}, waiting=5) == [
        *("on-demand", "on-demand", "spot", "on-demand", "spot")
    ]
    assert launched(market={"on_demand_base": 2}, waiting=3) == ["on-demand", "on-demand", "spot"]
    assert launched(market={}, waiting=3) == ["spot", "spot", "spot"]


def test_the_launches_of_a_gang_that_launches_none_in_the_end_do_not_count() -> None:
    pool = {"offerings": [SPOT, ON_DEMAND], "market": {"on_demand_base": 1}, "max_leases_per_slot": 1, "max_slots": 2}
    gang = submit(0, "gang", components=[{"name": "main", "count": 3}])
    played = play_out(a_scenario(gang, submit(0, "r1"), at_once(0), pool=pool))
    assert [each for each in played.decisions if " launch " in each] == ["0 launch linux-1 m/on-demand demand"]


def test_slots_that_are_there_count_by_their_market() -> None:
    share = {"on_demand_share": 0.5}
    assert launched(busy(1, "spot"), busy(2, "spot"), market=share, waiting=2) == ["on-demand", "on-demand"]
    assert launched(busy(1, "on-demand"), busy(2, "on-demand"), market=share, waiting=2) == ["spot", "spot"]
    leaving = busy(1, "on-demand", state="draining")
    assert launched(leaving, market={"on_demand_base": 1}) == ["on-demand"]
    assert launched(a_slot("linux-1", state="booting", market="on-demand"), market=share, waiting=2) == ["spot"]


def test_the_price_factor_compares_offerings_of_the_market_whose_turn_it_is() -> None:
    dear = {**ON_DEMAND, "name": "dear", "price": 9}
    offerings = [SPOT, ON_DEMAND, dear]
    holds = (short("on-demand"),)
    assert launched(market={"on_demand_base": 1}, offerings=offerings, holds=holds, price_factor=3) == ["dear"]
    assert launched(market={"on_demand_base": 1}, offerings=offerings, holds=holds, price_factor=2) == []


def test_a_reservation_waits_for_on_demand_instead_of_taking_spot() -> None:
    turn = "the next machine is to be on-demand: 0 of 0 slots are on-demand (on_demand_base 1)"
    decisions, [(code, detail)] = decide(market={"on_demand_base": 1}, holds=(short("on-demand"),))
    assert (decisions, code) == ([], "capacity")
    assert detail.endswith(f"; pool linux: {turn}")
    too_small = {**ON_DEMAND, "resources": {"cpus": 2}}
    decisions, [(code, detail)] = decide(market={"on_demand_base": 1}, offerings=[SPOT, too_small], cpus=4)
    assert (decisions, code) == ([], "no_capacity")
    assert detail.endswith(f"; pool linux: {turn}")


def test_spots_turn_goes_to_on_demand_only_by_on_demand_after() -> None:
    share = {"on_demand_share": 0.0}
    assert launched(market=share, holds=(short("spot"),)) == []
    assert launched(market=share, holds=(short("spot"),), on_demand_after=2) == []
    assert launched(market=share, holds=(short("spot", streak=2),), on_demand_after=2) == ["on-demand"]
    assert launched(market=share, holds=(short("spot"),), on_demand_after=2, price_factor=9) == []


def test_on_demand_serves_what_no_spot_offering_could_hold() -> None:
    """There is no spot machine to wait for."""
    offerings = [{**SPOT, "resources": {"cpus": 2}}, ON_DEMAND]
    assert launched(market={"on_demand_share": 0.0}, offerings=offerings, cpus=4) == ["on-demand"]
    assert launched(market={"on_demand_share": 0.0}, offerings=offerings, cpus=2) == ["spot"]


@pytest.mark.parametrize(("after", "found"), [(0, []), (3, ["on-demand"])])
def test_without_a_spot_offering_for_sale_on_demand_is_launched_only_with_on_demand_after(
    after: int, found: list[str]
) -> None:
    """EC2 is never asked for an offering that is not for sale, so no number of refusals would be reached."""
    document = {
        "system": SYSTEM, "max_slots": 2, "offerings": [SPOT, ON_DEMAND], "on_demand_after": after,
        "market": {"on_demand_share": 0.0, "spot_below": 0.1},
    }  # fmt: skip
    price = Price(type="m", zone="a", market="on-demand", price=3, seen_at=NOW, source="file")
    rules = resolve_rules(read_rules({"pools": {"linux": document}}), StoredMarket(prices=(price,)))
    rows: list[Row] = [a_slot("linux-1", state="empty"), a_reservation("r1", sequence=1)]
    planned = plan(View(rows), rules, NOW)
    assert describe(planned) == tick(rows, rules, NOW)
    assert markets([each.split()[2] for each in describe(planned).decisions if each.startswith("launch")]) == found


def test_the_minimum_and_the_warm_pool_follow_the_mix_and_fall_back_with_it() -> None:
    share = {"on_demand_base": 1, "on_demand_share": 0.0}
    assert launched(market=share, waiting=0, min_slots=3) == ["on-demand", "spot", "spot"]
    assert launched(market=share, waiting=0, target_warm_slots=2) == ["on-demand", "spot"]
    gone = (short("spot", streak=2),)
    assert launched(market=share, waiting=0, min_slots=3, holds=gone, on_demand_after=2) == ["on-demand"] * 3
    assert launched(market={}, waiting=0, min_slots=3, holds=gone, on_demand_after=2) == []


@pytest.mark.parametrize(
    ("streak", "ago", "found"), [(2, 599.0, "on-demand"), (2, 600.0, "spot"), (1, 61.0, "spot"), (5, 61.0, "on-demand")]
)
def test_spot_is_tried_again_when_the_time_has_passed_since_the_last_refusal(
    streak: int, ago: float, found: str
) -> None:
    holds = (short("spot", streak=streak, ago=ago),)
    assert launched(market={"spot_again_after": 600}, holds=holds, on_demand_after=2) == [found]
    assert launched(market={}, holds=holds, on_demand_after=2) == ["spot"]


def idle(number: int, market: str, price: float) -> Slot:
    return a_slot(
        f"linux-{number}",
        offering=f"m/{market}",
        market=market,
        price=price,
        resources={"cpus": 4},
        idle_since=NOW,
        launched_at=NOW,
    )


def test_only_as_many_on_demand_slots_are_consolidated_as_the_mix_does_not_need() -> None:
    pool: dict[str, Any] = {"replacement": {"min_saving": 0.2, "disruption_budget": "100%"}, "min_slots": 3}
    slots = [idle(number, "on-demand", 3.0) for number in (1, 2, 3)]
    assert decide(*slots, market={"on_demand_base": 2, "on_demand_share": 0.0}, waiting=0, **pool)[0] == [
        "drain linux-1 consolidated"
    ]
    assert decide(*slots, market={"on_demand_base": 3}, waiting=0, **pool)[0] == []
    assert len(decide(*slots, market={}, waiting=0, **pool)[0]) == 3


SPOT_ALONE, ON_DEMAND_ALONE = [{"name": "m"}], [{"name": "m", "market": "on-demand"}]


@pytest.mark.parametrize(
    ("pool", "line"),
    [
        ({"market": {"on_demand_base": 9}}, "market.on_demand_base: expected at most max_slots (8), got 9"),
        ({"market": {"on_demand_share": 1.5}}, "market.on_demand_share: expected a number from 0 to 1, got 1.5"),
        ({"market": {"on_demand_share": -0.1}}, "market.on_demand_share: expected a number from 0 to 1, got -0.1"),
        ({"market": {"on_demand_base": 1.5}}, "market.on_demand_base: expected a whole number >= 0, got 1.5"),
        (
            {"market": {"on_demand_base": 1}, "offerings": SPOT_ALONE},
            "market.on_demand_base: expected a pool with spot and on-demand offerings, got spot offerings only",
        ),
        (
            {"market": {"on_demand_share": 0.0}, "offerings": ON_DEMAND_ALONE},
            "market.on_demand_share: expected a pool with spot and on-demand offerings, got on-demand offerings only",
        ),
        (
            {"market": {"on_demand_share": 0.5}, "offerings": []},
            "market.on_demand_share: expected a pool with spot and on-demand offerings, got no offerings",
        ),
        (
            {"market": {"spot_again_after": "10m"}},
            "market.spot_again_after: expected 0 in a pool without `on_demand_after`, got 600",
        ),
    ],
)  # fmt: skip
def test_a_policy_that_contradicts_its_pool_is_refused_in_one_line(pool: dict[str, Any], line: str) -> None:
    table = {"system": SYSTEM, "max_slots": 8, "offerings": [SPOT, ON_DEMAND], **pool}
    with pytest.raises(InvalidInputError) as raised:
        read_rules({"pools": {"linux": table}}, "")
    assert str(raised.value) == f"pools.linux.{line}"


def test_the_reason_names_the_counts_and_the_keys() -> None:
    rules = MarketRules(on_demand_base=2, on_demand_share=0.25)
    keys = "(on_demand_base 2, on_demand_share 0.25)"
    assert describe_turn(rules, MarketMix(3, 2)) == (
        f"the next machine is to be on-demand: 2 of 3 slots are on-demand {keys}"
    )
    assert describe_turn(rules, MarketMix(3, 3)) == f"the next machine is to be spot: 3 of 3 slots are on-demand {keys}"
    assert describe_turn(MarketRules(on_demand_base=1), MarketMix(1, 1)) is None


PLAYED: dict[str, list[str]] = {
    "behind_a_protected_gang": ["0 linux-1 small", "0 linux-2 small"],
    "on_demand_base": ["0 linux-1 small/on-demand", "0 linux-2 small/on-demand", "0 linux-3 small/spot"],
    "on_demand_share": [
        *("0 linux-1 small/on-demand", "0 linux-2 small/spot", "0 linux-3 small/on-demand"),
        "21 linux-1 small/on-demand",
    ],
    "wanted_market_paused": [
        *("0 linux-1 small/on-demand", "0 linux-2 small/spot"),
        *("30 linux-1 small/on-demand", "60 linux-1 small/on-demand"),
    ],
    "spot_again": [
        *("0 linux-1 small/spot", "30 linux-1 small/spot", "30 linux-1 small/on-demand"),
        "100 linux-2 small/on-demand",
        *("340 linux-3 small/spot", "340 linux-3 small/on-demand"),
        *("400 linux-4 small/on-demand", "700 linux-5 small/spot"),
    ],
    "started_slot": ["0 linux-2 small/on-demand", "0 linux-3 small/spot", "0 linux-4 small/on-demand"],
    "too_dear": ["200 linux-1 small", "300 linux-2 large"],
}
"""By scenario file: the launches, as `TIME SLOT OFFERING`."""


def test_every_scenario_file_is_played() -> None:
    assert {path.stem for path in SCENARIOS.glob("*.toml")} == set(PLAYED)


@pytest.mark.parametrize("name", PLAYED)
def test_the_launches_of_a_scenario_file(name: str) -> None:
    played = Played(list(play(load_scenario(SCENARIOS / f"{name}.toml"))))
    found = [each.split() for each in played.decisions if " launch " in each]
    assert [f"{at} {slot} {offering}" for at, _, slot, offering, _ in found] == PLAYED[name]


def test_a_fallback_has_no_spot_offering_that_is_too_expensive() -> None:
    offerings = [
        {"name": "cheap", "market": "spot", "price": 1},
        {"name": "dear", "market": "spot", "price": 9},
        {"name": "sure", "market": "on-demand", "price": 5},
    ]
    pool = some_rules({"pools": {"linux": {"offerings": offerings, "on_demand_after": 1}}}).pools["linux"]
    choices = list_choices(pool)
    eligible = list_eligible(choices, pool, "spot")
    hold = hold_id("linux", "capacity", eligible[0].key or "")
    row = Hold(id=hold, pool="linux", kind="capacity", subject="cheap", refused_at=NOW, until=NOW + 60, streak=1)
    found = list_fallback("linux", pool, choices, eligible, {hold: row}, "spot")
    assert ([each.price for each in eligible], [each.price for each in found]) == ([1], [5])


@pytest.mark.parametrize(
    ("chosen", "other", "is_listed"),
    [
        ({"resources": {"cpus": 2}}, {"resources": {"cpus": 2}}, True),
        ({"resources": {"cpus": 2}}, {"resources": {"cpus": 4, "gpus": 1}}, True),
        ({"resources": {"cpus": 2}}, {"resources": {"cpus": 1}}, False),
        ({"resources": {"cpus": 2, "gpus": 1}}, {"resources": {"cpus": 2}}, False),
        ({"resources": {"cpus": 2}}, {"resources": {"cpus": 2}, "labels": {"disk": "ssd"}}, True),
        ({"resources": {"cpus": 2}, "labels": {"disk": "ssd"}}, {"resources": {"cpus": 2}}, False),
        ({"labels": {"disk": "ssd"}}, {"labels": {"disk": "hdd"}}, False),
        # A slot without resources counts leases only.
        ({}, {}, True),
        ({}, {"resources": {"cpus": 2}}, False),
        ({"resources": {"cpus": 0}}, {}, False),
    ],
)
def test_an_alternative_has_at_least_the_resources_and_the_labels_of_the_chosen_offering(
    chosen: dict[str, Any], other: dict[str, Any], *, is_listed: bool
) -> None:
    named = [{"name": name, "price": 1, **keys} for name, keys in (("a", chosen), ("b", other))]
    pool = some_rules({"pools": {"linux": {"offerings": named}}}).pools["linux"]
    [first] = [each for each in list_choices(pool) if (each.key or "").startswith("a")]
    assert [each.key for each in list_alternatives(pool, first, ())] == (["a", "b"] if is_listed else ["a"])
    assert [each.key for each in list_alternatives(pool, first, {"a", "b"})] == ["a"]
