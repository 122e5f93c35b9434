"""Changes of the rules of quota accounts: charges, levels, preemption and forecasts."""

from typing import Final

from tests.mutations.mutant import Change, Changes

OF_QUOTA: Final[Changes] = {
    "scheduler.policy.quota.run": {
        "fits_beside": [
            Change("what this tick has assigned is gone", "[usage.amounts, *given]", "[usage.amounts]"),
        ],
    },
    "scheduler.policy.quota.running": {
        "RunningWork.share_cost": [
            Change("elastic leases that end alone cost their share", "self._divided[2]", "1"),
        ],
    },
    "scheduler.policy.quota.accounting": {
        "_earn": [
            Change(
                "a balance above the cap stays",
                "min(cap, paid + elapsed * rate) if paid < cap else paid",
                "min(cap, paid + elapsed * rate)",
            ),
        ],
    },
    "scheduler.policy.quota.preempt": {
        "": [
            Change("up to 600 saved a lease keeps its level", "SAVED: Final = 600.0", "SAVED: Final = 599.0"),
            Change("down to -600 overdrawn a lease keeps its level", "-600.0", "-599.0"),
        ],
        "_find_preemptors": [
            Change("an account with worse work running preempts nothing", "not has_worse(payer, level)", "True"),
        ],
        "_find_targets": [
            Change(
                "only worse levels are preempted",
                "quota_run.running.list_worse(level)",
                "quota_run.running.list_worse(level - 1)",
            ),
        ],
        "_list_victims": [
            Change("only the slots of essential leases end a whole reservation", "lease.kind == 'essential'", "True"),
            Change(
                "min_run_time protects an elastic lease from its own start on",
                "lease.assigned_at + least",
                "run.leases[0].assigned_at + least",
            ),
        ],
        "_rank_set": [
            Change(
                "of equal victims the elastic lease ends first", "victim.key[1] is None", "victim.key[1] is not None"
            ),
        ],
        "_find_position": [
            Change(
                "of equal elastic leases the last instance ends first",
                "before + (find_number(each, lease.component) or 0)",
                "before - (find_number(each, lease.component) or 0)",
            ),
        ],
        "name_victims": [
            Change("a victim on several slots is named on the first one", "there[0]", "there[-1]"),
        ],
    },
    "scheduler.policy.quota.preempt_gangs": {
        "preempt_for_gangs": [
            Change(
                "at most one gang preempts for an account in a tick",
                "account.id in quota_run.gang_preemptors",
                "False",
            ),
        ],
    },
    "scheduler.policy.quota.account_limits": {
        "AccountLimits.is_fanned_out": [
            Change(
                "max_fanout itself is reached",
                "0 < account.max_fanout <= self._alike[group.likeness]",
                "0 < account.max_fanout < self._alike[group.likeness]",
            ),
        ],
        "TrialLeases.allows": [
            Change(
                "a limit by label itself may be reached",
                "self._present[key] + self._taken[key] < limits[key[1]]",
                "self._present[key] + self._taken[key] < limits[key[1]] - 1",
            ),
        ],
    },
    "scheduler.policy.quota.match_idle": {
        "_IdleSpace.find": [
            Change(
                "a gang passes over slots that a limit for a label refuses",
                "self._trial is None or self._trial.allows(slot_info)",
                "True",
            ),
        ],
    },
    "scheduler.policy.quota.reclaim": {
        "_Trial._allows": [
            Change(
                "a reclaim passes over slots that a limit for a label refuses",
                "self._limited is None or self._limited.allows(slot_info)",
                "True",
            ),
        ],
    },
    "scheduler.policy.quota.step": {
        "_place_at_each_level": [
            Change(
                "reservations that prefer a slot come before others",
                "match_idle(quota_run, candidates, level, preferring=True)",
                "match_idle(quota_run, candidates, level, preferring=False)",
            ),
        ],
    },
    "scheduler.explain.conditions": {
        "_seconds_until_paid": [
            Change(
                "an account that keeps nothing of what it earns cannot pay again",
                "account.charge_rate[level] * account.max_charge_seconds",
                "account.charge_rate[level]",
            ),
            Change(
                "what runs slows down what an account earns",
                "account.charge_rate[level] - found.use[level]",
                "account.charge_rate[level]",
            ),
        ],
    },
    "scheduler.explain.changes.accounts": {
        "grant_balance": [
            Change(
                "a balance is suggested at a level at which the account earns", "(each not in earned, -each)", "-each"
            ),
        ],
    },
}
