"""A preview of rules says what the engine then does, and writes nothing."""

from typing import Any

import pytest

from scheduler.model.decisions import Drain, Launch, Terminate
from scheduler.operations.apply import RulesChangedError, apply_rules
from scheduler.operations.preview import AccountLoss, Preview, preview_rules
from tests.operations.harness import Harness

SMALL: dict[str, Any] = {"name": "small", "price": 1, "resources": {"cpus": 2}}
LARGE: dict[str, Any] = {"name": "large", "price": 4, "resources": {"cpus": 8}}
LINUX: dict[str, Any] = {"system": "x86_64-linux", "max_slots": 3, "lease_ttl": 0, "offerings": [SMALL, LARGE]}
LAB: dict[str, Any] = {"system": "lab-linux", "provider": "static", "resources": {"cpus": 1}}
RULES: dict[str, Any] = {"pools": {"linux": LINUX, "lab": LAB}}


def a_rig(rules: dict[str, Any] | None = None) -> Harness:
    """One lease on a small machine, one on a large one, and one host without."""
    rig = Harness(rules or RULES)
    rig.submit("on-small", resources={"cpus": 2})
    rig.submit("on-large", resources={"cpus": 8})
    rig.ask("register", slot="lab-1", pool="lab", machine="m1", resources={"cpus": 1})
    rig.tick()
    rig.play_tasks()
    rig.tick()
    assert (rig.phase("on-small"), rig.phase("on-large")) == ("leased", "leased")
    return rig


def slots_of(rig: Harness) -> dict[str, str]:
    return {slot.offering or slot.pool: slot.id for slot in rig.store.find_slots(states=["ready"])}


def look(rig: Harness, rules: dict[str, Any]) -> Preview:
    """The preview; nothing is written for it."""
    before = (list(rig.store.read_rows()), rig.events, rig.store.load_rules())
    found = preview_rules(rig.store, rules)
    assert (list(rig.store.read_rows()), rig.events, rig.store.load_rules()) == before
    return found


def without(*offerings: str) -> dict[str, Any]:
    left = [each for each in (SMALL, LARGE) if each["name"] not in offerings]
    return {"pools": {**RULES["pools"], "linux": {**LINUX, "offerings": left}}}


def test_the_rules_in_force_change_nothing() -> None:
    rig = a_rig()
    assert look(rig, RULES) == Preview(version=1, changed=False)


@pytest.mark.parametrize(
    ("rules", "drained", "leases"),
    [
        # an offering that is removed
        (without("large"), "large", ("on-large",)),
        (without("small"), "small", ("on-small",)),
    ],
)
def test_machines_that_are_no_longer_configured_drain(
    rules: dict[str, Any], drained: str, leases: tuple[str, ...]
) -> None:
    rig = a_rig()
    (found,) = look(rig, rules).departures
    assert (found.slot, found.action, found.reason) == (slots_of(rig)[drained], "drain", "unconfigured")
    assert found.reservations == leases


@pytest.mark.parametrize(
    "rules",
    [
        RULES,
        without("large"),
        without("small", "large"),
        {"pools": {}},
        {"pools": {"lab": LAB}},
        {"pools": {**RULES["pools"], "linux": {**LINUX, "max_slots": 1}}},
        {"pools": {**RULES["pools"], "linux": {**LINUX, "min_slots": 3}}},
        {"pools": {**RULES["pools"], "linux": {**LINUX, "max_uses": 1}}},
        {**RULES, "scheduler": {"queue": "quota"}, "accounts": {"ci": {"balance": [5]}}},
    ],
)
def test_what_is_foretold_is_what_the_next_tick_decides(rules: dict[str, Any]) -> None:
    rig = a_rig()
    rig.submit("waits", resources={"cpus": 8}, labels={"disk": "none"})
    rig.tick()
    found = look(rig, rules)
    apply_rules(rig.ports, rules)
    decided = rig.tick().plan
    gone = {each.slot for each in decided.decisions if isinstance(each, Drain | Terminate)}
    launched = [each for each in decided.decisions if isinstance(each, Launch)]
    assert {each.slot for each in found.departures} == gone
    assert sum(found.launches.values()) == len(launched)
    assert found.takes_away is bool(gone)


def test_a_machine_that_goes_anyway_is_no_consequence() -> None:
    rig = a_rig()
    rig.ask("release", reservation="on-small", token=rig.token("on-small"))
    rig.tick()
    rig.now += 301
    assert {each.slot for each in look(rig, without("large")).departures} == {slots_of(rig)["large"]}
    assert [each.slot for each in look(rig, without("small")).departures] == []


def test_pending_reservations_that_can_no_longer_be_served_are_named() -> None:
    """Not the one that no rules serve, and not the one that is leased."""
    rig = a_rig({"pools": {**RULES["pools"], "linux": {**LINUX, "max_slots": 2}}})
    rig.submit("large", resources={"cpus": 7})
    rig.submit("hopeless", resources={"cpus": 99})
    rig.ask("submit", id="elsewhere", system="lab-linux", resources={"cpus": 1})
    rig.tick()
    found = look(rig, {"pools": {"lab": LAB}})
    assert [(each.reservation, each.code) for each in found.unservable] == [("large", "no_pool")]
    assert "x86_64-linux" in found.unservable[0].detail


def test_reservations_that_lose_their_leases_are_named() -> None:
    rules = {**RULES, "scheduler": {"confirm_timeout": 10}}
    rig = a_rig()
    rig.settle(20)
    found = look(rig, rules)
    assert {each.reservation for each in found.endings} == {"on-small", "on-large"}
    assert found.takes_away
    apply_rules(rig.ports, rules)
    before = len(rig.events)
    rig.tick()
    lost = {event.reservation for event in rig.events[before:] if event.name == "reservation_pending"}
    assert lost == {"on-small", "on-large"}


def test_accounts_that_are_forgotten_or_have_less_are_named() -> None:
    tables = {"ci": {"balance": [5, 4]}, "lab": {"balance": [3]}, "stays": {"balance": [1]}}
    rig = Harness({**RULES, "accounts": tables})
    found = look(rig, {**RULES, "accounts": {"ci": {"balance": [9, 3]}, "stays": {"balance": [2]}}})
    assert found.accounts == (
        AccountLoss(account="ci", before=(5, 4, 0, 0, 0), after=(9, 3, 0, 0, 0)),
        AccountLoss(account="lab", before=(3, 0, 0, 0, 0), after=None),
    )
    assert found.takes_away


def test_rules_that_changed_since_the_preview_are_not_replaced() -> None:
    rig = a_rig()
    seen = look(rig, without("large")).version
    apply_rules(rig.ports, without("small"))
    with pytest.raises(RulesChangedError, match="version 2 is in force, not 1"):
        apply_rules(rig.ports, without("large"), expected=seen)
    assert rig.store.load_rules().document == without("small")
