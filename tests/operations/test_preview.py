"""A preview of rules reports what the next tick then does, and writes nothing."""

from typing import Any

import pytest

from scheduler.model.decisions import Drain, Launch, Terminate
from scheduler.operations.rules.apply import RulesChangedError, apply_rules
from scheduler.operations.rules.preview import AccountLoss, Preview, preview_rules
from scheduler.operations.run_times import learn_run_times
from tests.operations.harness import Harness

SMALL: dict[str, Any] = {"name": "small", "price": 1, "resources": {"cpus": 2}}
LARGE: dict[str, Any] = {"name": "large", "price": 4, "resources": {"cpus": 8}}
LINUX: dict[str, Any] = {"system": "x86_64-linux", "max_slots": 3, "lease_ttl": 0, "offerings": [SMALL, LARGE]}
LAB: dict[str, Any] = {"system": "lab-linux", "provider": "static", "resources": {"cpus": 1}}
RULES: dict[str, Any] = {"pools": {"linux": LINUX, "lab": LAB}}


def a_harness(rules: dict[str, Any] | None = None) -> Harness:
    """Return a harness with a lease on a small machine, one on a large machine, and an idle static host."""
    harness = Harness(rules or RULES)
    harness.submit("on-small", resources={"cpus": 2})
    harness.submit("on-large", resources={"cpus": 8})
    harness.ask("register", slot="lab-1", pool="lab", machine="m1", resources={"cpus": 1})
    harness.tick()
    harness.play_tasks()
    harness.tick()
    assert (harness.phase("on-small"), harness.phase("on-large")) == ("leased", "leased")
    return harness


def slots_of(harness: Harness) -> dict[str, str]:
    return {slot.offering or slot.pool: slot.id for slot in harness.store.find_slots(states=["ready"])}


def preview(harness: Harness, rules: dict[str, Any]) -> Preview:
    """Return the preview of these rules, and check that it writes nothing."""
    before = (list(harness.store.read_rows()), harness.events, harness.store.load_rules())
    found = preview_rules(harness.store, rules)
    assert (list(harness.store.read_rows()), harness.events, harness.store.load_rules()) == before
    return found


def without(*offerings: str) -> dict[str, Any]:
    left = [each for each in (SMALL, LARGE) if each["name"] not in offerings]
    return {"pools": {**RULES["pools"], "linux": {**LINUX, "offerings": left}}}


def test_the_preview_of_a_pool_that_becomes_static_has_its_launched_machines() -> None:
    harness = a_harness()
    linux = {"system": "x86_64-linux", "provider": "static"}
    found = preview(harness, {"pools": {**RULES["pools"], "linux": linux}})
    assert {each.slot: (each.reason, each.reservations) for each in found.departures} == {
        slots_of(harness)["small"]: ("unconfigured", ("on-small",)),
        slots_of(harness)["large"]: ("unconfigured", ("on-large",)),
    }


def test_the_preview_of_the_current_rules_is_empty() -> None:
    harness = a_harness()
    assert preview(harness, RULES) == Preview(version=1, changed=False)


@pytest.mark.parametrize(
    ("rules", "drained", "leases"),
    [
        # rules without one offering
        (without("large"), "large", ("on-large",)),
        (without("small"), "small", ("on-small",)),
    ],
)
def test_machines_that_are_no_longer_configured_drain(
    rules: dict[str, Any], drained: str, leases: tuple[str, ...]
) -> None:
    harness = a_harness()
    (found,) = preview(harness, rules).departures
    assert (found.slot, found.action, found.reason) == (slots_of(harness)[drained], "drain", "unconfigured")
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
def test_a_preview_is_equal_to_the_decisions_of_the_next_tick(rules: dict[str, Any]) -> None:
    harness = a_harness()
    harness.submit("waits", resources={"cpus": 8}, labels={"disk": "none"})
    harness.tick()
    found = preview(harness, rules)
    apply_rules(harness.ports, rules)
    decided = harness.tick().plan
    gone = {each.slot for each in decided.decisions if isinstance(each, Drain | Terminate)}
    launched = [each for each in decided.decisions if isinstance(each, Launch)]
    assert {each.slot for each in found.departures} == gone
    assert sum(found.launches.values()) == len(launched)
    assert found.takes_away is bool(gone)


def test_a_machine_that_drains_anyway_is_not_in_the_preview() -> None:
    harness = a_harness()
    harness.ask("release", reservation="on-small", token=harness.token("on-small"))
    harness.tick()
    harness.now += 301
    assert {each.slot for each in preview(harness, without("large")).departures} == {slots_of(harness)["large"]}
    assert [each.slot for each in preview(harness, without("small")).departures] == []


def test_pending_reservations_that_can_no_longer_be_served_are_named() -> None:
    """A reservation that was never servable and one with a lease are not named."""
    harness = a_harness({"pools": {**RULES["pools"], "linux": {**LINUX, "max_slots": 2}}})
    harness.submit("large", resources={"cpus": 7})
    harness.submit("hopeless", resources={"cpus": 99})
    harness.ask("submit", id="elsewhere", system="lab-linux", resources={"cpus": 1})
    harness.tick()
    found = preview(harness, {"pools": {"lab": LAB}})
    assert [(each.reservation, each.code) for each in found.unservable] == [("large", "no_pool")]
    assert "x86_64-linux" in found.unservable[0].detail


def test_reservations_that_lose_their_leases_are_named() -> None:
    rules = {**RULES, "scheduler": {"confirm_timeout": 10}}
    harness = a_harness()
    harness.settle(20)
    found = preview(harness, rules)
    assert {each.reservation for each in found.endings} == {"on-small", "on-large"}
    assert found.takes_away
    apply_rules(harness.ports, rules)
    before = len(harness.events)
    harness.tick()
    lost = {event.reservation for event in harness.events[before:] if event.name == "reservation_pending"}
    assert lost == {"on-small", "on-large"}


def test_accounts_that_are_forgotten_or_have_less_are_named() -> None:
    tables = {"ci": {"balance": [5, 4]}, "lab": {"balance": [3]}, "stays": {"balance": [1]}}
    harness = Harness({**RULES, "accounts": tables})
    found = preview(harness, {**RULES, "accounts": {"ci": {"balance": [9, 3]}, "stays": {"balance": [2]}}})
    assert found.accounts == (
        AccountLoss(account="ci", before=(5, 4, 0, 0, 0), after=(9, 3, 0, 0, 0)),
        AccountLoss(account="lab", before=(3, 0, 0, 0, 0), after=None),
    )
    assert found.takes_away


def test_rules_that_changed_since_the_preview_are_not_replaced() -> None:
    harness = a_harness()
    version = preview(harness, without("large")).version
    apply_rules(harness.ports, without("small"))
    with pytest.raises(RulesChangedError, match="version 2 is in force, not 1"):
        apply_rules(harness.ports, without("large"), expected=version)
    assert harness.store.load_rules().document == without("small")


def test_a_preview_has_by_how_much_the_starts_of_an_account_move() -> None:
    pool = {"system": "x86_64-linux", "provider": "static", "max_leases_per_slot": 1, "lease_ttl": 0}
    rules: dict[str, Any] = {"pools": {"hosts": pool}, "accounts": {"ci": {}}}
    harness = Harness(rules)
    harness.ask("register", slot="hosts-1", pool="hosts", machine="m")
    for number in range(8):
        harness.submit(f"old-{number}", account="ci")
        harness.tick()
        (row,) = harness.store.find_reservations(phases=["leased"])
        harness.now += 600
        harness.ask("release", reservation=row.id, token=row.token)
    harness.now += 60
    learn_run_times(harness.ports)
    for number in range(9):
        harness.submit(f"new-{number}", account="ci")
    harness.tick()
    (wait,) = preview(harness, {**rules, "pools": {"hosts": {**pool, "max_leases_per_slot": 4}}}).waits
    assert (wait.account, wait.waiting) == ("ci", 8)
    assert wait.before is not None
    assert wait.after is not None
    assert wait.before > 4 * 600 - 100 > 2 * wait.after
    assert preview(harness, {**rules, "pools": {"hosts": {**pool, "idle_scale_down": 7}}}).waits == ()


def test_a_preview_plays_nothing_with_a_long_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.operations.rules.preview.MOST_WAITING", 1)
    harness = Harness({"pools": {"hosts": {"system": "x86_64-linux", "provider": "static"}}})
    for number in range(2):
        harness.submit(f"r{number}")
    other = {"system": "x86_64-linux", "provider": "static", "max_leases_per_slot": 1}
    monkeypatch.setattr("scheduler.operations.rules.preview._find_waits", lambda *_: pytest.fail("a play was begun"))
    assert preview(harness, {"pools": {"hosts": other}}).waits == ()
