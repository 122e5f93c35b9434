"""Under `queue: quota`, what earlier plans left behind changes no later plan: generated sequences of changes."""

from collections import Counter
from math import fsum

import pytest

from scheduler.model.accounts import NOTHING, PAID, Account
from scheduler.model.decisions import Plan
from scheduler.model.view import Row, View
from scheduler.policy.plan import plan
from scheduler.policy.plan_cache import PlanCache
from scheduler.policy.quota.accounting import RunningUse, used_since_charge
from scheduler.policy.replan.kept_cycle import KeptCycle
from tests.builders import NOW, a_lease
from tests.generated import draw_some
from tests.reference_model.quota.sequences import Sequence, find_difference
from tests.rules.quotas import a_host, an_account, quota_rules, runs, waits

# Tracing triples their time, and the lines that they run are those of the scenarios.
pytestmark = pytest.mark.no_cover

SEQUENCES = sorted({3, 79, *draw_some(range(100), 35)})
"""The two that are always played meet everything that the first test counts."""


def test_a_plan_with_what_earlier_plans_left_behind_is_the_plan_of_a_new_view(monkeypatch: pytest.MonkeyPatch) -> None:
    met, go_on = Counter[str](), KeptCycle.go_on

    def count(cycle: KeptCycle, now: float) -> Plan | None:
        outcome = go_on(cycle, now)
        met["went on"] += outcome is not None
        met["went on and assigned"] += outcome is not None and len(outcome.decisions)
        return outcome

    monkeypatch.setattr(KeptCycle, "go_on", count)
    for seed in SEQUENCES:
        tick, found = find_difference(seed)
        assert tick is None, f"python -m tests.reference_model.quota.sequences {seed} 1"
        met += found
    assert (
        min(
            met[each]
            for each in ("kept", "went on", "went on and assigned", "Assign", "Relevel", "Preempt", "Claim", "Revoke")
        )
        > 0
    )


def test_the_use_of_an_account_is_the_exact_sum_over_its_leases() -> None:
    for seed in SEQUENCES:
        sequence, use = Sequence(seed), RunningUse()
        for _ in sequence.play(8):
            use.follow(sequence.view)
            for account in sequence.view.accounts.values():
                assert use.sum_used(account.id, sequence.now) == _sum_naively(sequence.view, account, sequence.now)


def test_the_use_is_summed_again_for_another_view_and_for_other_paying_accounts() -> None:
    """After `B` is forgotten and created again, `r2`, which was submitted before, has no account."""
    use = RunningUse()
    first: list[Row] = [
        runs("r1", a_lease("hosts-1", level=0, charged_at=NOW), account="A"),
        an_account("A"),
        an_account("B"),
    ]
    second: list[Row] = [
        runs("r2", a_lease("hosts-2", level=1, charged_at=NOW), account="B"),
        an_account("A"),
        an_account("B"),
    ]
    views = [View([a_host(1), *first]), View([a_host(2), *second])]
    for view in views:
        use.follow(view)
        sums = {name: use.sum_used(name, NOW + 10) for name in "AB"}
        assert sums == {name: _sum_naively(view, view.accounts[name], NOW + 10) for name in "AB"}
    views[1].apply(an_account("B", version=2, forgotten_upto=99))
    use.follow(views[1])
    assert use.sum_used("B", NOW + 10) == NOTHING


def _sum_naively(view: View, account: Account, now: float) -> tuple[float, ...]:
    rows = [row for row in view.reservations.values() if view.account_of(row) is account]
    used = [used_since_charge(account, lease, now) for row in rows for lease in row.leases]
    return tuple(fsum(each[level] for each in used) for level in PAID)


def test_charges_alone_keep_a_plan_until_an_account_comes_to_another_level() -> None:
    """The account earns nothing, and its lease uses up 10 worker-seconds."""
    rules = quota_rules()
    rows: list[Row] = [
        a_host(1),
        an_account("A", 10.0),
        runs("r1", a_lease("hosts-1", level=0, charged_at=NOW), account="A"),
    ]
    view, cache = View([*rows, waits("r2", account="A")]), PlanCache()
    first = plan(view, rules, NOW + 1, cache)
    kept = plan(view, rules, NOW + 5, cache)
    assert (kept.waiting is first.waiting, kept.charged) == (True, ("A",))
    view.apply(an_account("A", 4.0, charged_at=NOW + 6, version=2))
    assert plan(view, rules, NOW + 6, cache).waiting is first.waiting
    assert plan(view, rules, NOW + 6, cache).charged == ()
    assert plan(view, rules, NOW + 10, cache).waiting is not first.waiting


@pytest.mark.parametrize(
    "row",
    [
        an_account("A", 10.0, version=2, disable_free_tasks=True),
        an_account("B", 10.0),
        a_host(2),
        waits("r3"),
        runs("r1", a_lease("hosts-1", level=0, charged_at=NOW + 1), account="A", version=2),
    ],
)
def test_any_other_change_ends_a_kept_plan(row: Row) -> None:
    rules = quota_rules()
    rows: list[Row] = [
        a_host(1),
        an_account("A", 10.0),
        runs("r1", a_lease("hosts-1", level=0, charged_at=NOW), account="A"),
    ]
    view, cache = View([*rows, waits("r2", account="A")]), PlanCache()
    first = plan(view, rules, NOW + 1, cache)
    view.apply(row)
    assert plan(view, rules, NOW + 1, cache).waiting is not first.waiting
