"""Wrong rules of quota accounts: what they pay, who may run by them, and what is told of them."""

from tests.mutations.mutant import Mutant

OF_QUOTA = (
    Mutant("charging", "what is above the cap stays", " if paid < cap else paid", ""),
    Mutant("relevel", "up to 600 saved a lease keeps its level", "SAVED: Final = 600.0", "SAVED: Final = 599.0"),
    Mutant(
        "relevel",
        "down to -600 overdrawn a lease keeps its level",
        "OVERDRAWN: Final = -600.0",
        "OVERDRAWN: Final = -599.0",
    ),
    Mutant(
        "preempt", "who has worse work running preempts nobody", "        if not barred[name]:\n", "        if True:\n"
    ),
    Mutant("preempt", "only worse levels are preempted", "run.level > level and", "run.level >= level and"),
    Mutant("fanout", "max_fanout itself is reached", "0 < account.max_fanout <= self", "0 < account.max_fanout < self"),
    Mutant("fanout", "a limit by label itself may be reached", "> limits[name]", ">= limits[name]"),
    Mutant(
        "quota", "those who prefer a slot come before others", "level, preferring=True)", "level, preferring=False)"
    ),
    Mutant("quota", "who has claimed a place gets it", "    assign_claims(tick, claimants)\n", ""),
    Mutant(
        "forecast",
        "an account that keeps nothing of what it earns cannot pay again",
        "account.charge_rate[level] * account.max_charge_seconds <= 0",
        "account.charge_rate[level] <= 0",
    ),
    Mutant("forecast", "what runs slows down what an account earns", " - found.use[level]\n", "\n"),
    Mutant(
        "changes_of_accounts",
        "a balance is asked for at a level at which the account earns",
        "(each not in earned, -each)",
        "-each",
    ),
    Mutant(
        "claims",
        "min_run_time counts from the assignment, not from the claim",
        'state="held", assigned_at=draft.now)',
        'state="held")',
    ),
)
