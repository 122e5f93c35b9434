"""The legal changes of state of slots, reservations and leases, as tables. No other module defines legal changes.

A table maps a change (from, to) to the causes that may make it, each with the reason. Causes are `tick` (a decision of
a plan), `holder` (a producer or the holder of a lease), `operator` (a person) and `cloud` (a report of EC2 or a host).
docs/reference/states.md is generated from these tables.
"""

from collections.abc import Iterator
from typing import Final, Literal

from scheduler.protocol.states import PHASES, SLOT_STATES, Phase, SlotState

# Readers of the moves import the states from here, too.
__all__ = ["PHASES", "SLOT_STATES", "Phase", "SlotState"]

Cause = Literal["tick", "holder", "operator", "cloud"]

IN_FLIGHT: Final = frozenset[SlotState]({"launching", "booting", "binding"})
"""States of a slot whose machine is expected to become ready."""
INACTIVE: Final = frozenset[SlotState]({"empty", "error"})
"""States in which a slot does not count towards `max_slots`."""
UNPAID: Final = INACTIVE | frozenset[SlotState]({"stopped"})
"""States in which a slot has no machine that is paid by the hour."""
WITH_MACHINE: Final = frozenset[SlotState]({"booting", "binding", "ready", "draining"})
"""States in which a slot is assumed to have a running machine, whether or not the machine is ready."""
HOLDING: Final = frozenset[SlotState]({"ready", "draining"})
"""States in which a slot may have leases."""
ENDED: Final = frozenset[Phase]({"released", "cancelled", "expired", "failed"})
"""Phases of a reservation that has ended. Only a `failed` reservation may still be restarted."""

Edges = dict[tuple[str, str], dict[Cause, str]]

SLOT_MOVES: Final[Edges] = {
    ("empty", "launching"): {"tick": "a launch was decided"},
    ("empty", "booting"): {"cloud": "a machine with the tags of this slot, but without a row, was adopted"},
    ("empty", "ready"): {"cloud": "a static host registered"},
    ("launching", "booting"): {"cloud": "the cloud answered with a machine"},
    ("launching", "empty"): {"cloud": "the cloud refused: capacity, quota, throttled, auth"},
    ("launching", "error"): {"cloud": "the launch was misconfigured, or failed in an unknown way too often"},
    ("launching", "terminating"): {"tick": "timed out, interrupted or no longer needed"},
    ("booting", "binding"): {"cloud": "the machine runs"},
    ("booting", "terminating"): {
        "tick": "timed out, interrupted or no longer needed",
        "cloud": "its stopped machine cannot be started, or the cloud lacks other machines of its gang",
    },
    ("booting", "empty"): {"cloud": "its machine is gone"},
    ("binding", "ready"): {"cloud": "the probe found it ready to serve, or its agent has registered"},
    ("binding", "terminating"): {"tick": "timed out, interrupted or no longer needed"},
    ("binding", "empty"): {"cloud": "its machine is gone"},
    ("ready", "draining"): {
        "tick": "idle, interrupted, at quota, unhealthy or no longer configured",
        "operator": "drained by an operator",
        "cloud": "EC2 recommends to replace its machine (`rebalance`), or will stop it (`maintenance`)",
    },
    ("ready", "stopped"): {"tick": "not needed, and kept in the stopped tier of its pool"},
    ("ready", "terminating"): {"tick": "its machine is terminated at once"},
    ("ready", "empty"): {"cloud": "its machine is gone"},
    ("draining", "terminating"): {"tick": "drained, or drained for too long"},
    ("draining", "empty"): {"cloud": "its machine is gone", "tick": "a static host has drained"},
    ("terminating", "empty"): {"cloud": "its machine is gone"},
    ("error", "empty"): {"tick": "cooled down"},
    ("stopped", "booting"): {"tick": "the start of its machine was decided"},
    ("booting", "stopped"): {"cloud": "the cloud refused to start its machine: capacity, quota, throttled, auth"},
    ("stopped", "terminating"): {
        "tick": "old, drifted, drained, not configured or more than the tier needs, or its machine does not stop",
        "cloud": "its machine cannot be stopped",
    },
    ("stopped", "empty"): {"cloud": "its machine is gone"},
}

RESERVATION_MOVES: Final[Edges] = {
    ("pending", "leased"): {
        "tick": "assigned",
        "holder": "confirmed to run there",
        "operator": "confirmed to run there",
    },
    ("pending", "released"): {
        "holder": "its holder is done",
        "operator": "released, or it neither runs nor waits (`absent`)",
    },
    ("pending", "cancelled"): {"holder": "cancelled", "operator": "cancelled"},
    ("pending", "expired"): {"tick": "its ttl is over"},
    ("pending", "failed"): {
        "tick": "cannot be served",
        "holder": "reported as failed",
        "operator": "reported as failed",
    },
    ("leased", "released"): {
        "holder": "its holder is done",
        "operator": "released, or it runs no more (`absent`, `idle`)",
    },
    ("leased", "cancelled"): {"holder": "cancelled", "operator": "cancelled"},
    ("leased", "expired"): {"tick": "its ttl is over, or it is at its limit and has no grace period"},
    ("leased", "failed"): {
        "tick": "an essential component lost its slot, or died",
        "holder": "reported as failed",
        "operator": "reported as failed",
    },
    ("leased", "revoking"): {"tick": "preempted, interrupted, reclaimed or at its limit; its holder has a deadline"},
    ("leased", "pending"): {
        "tick": "taken back without a grace period, or never confirmed",
        "holder": "declined, suspended or contradicted",
        "operator": "suspended or contradicted",
    },
    ("revoking", "pending"): {
        "tick": "the grace period is over",
        "holder": "surrendered or contradicted",
        "operator": "suspended, surrendered or contradicted",
    },
    ("revoking", "released"): {"holder": "its holder is done", "operator": "released"},
    ("revoking", "cancelled"): {"holder": "cancelled", "operator": "cancelled"},
    ("revoking", "expired"): {
        "tick": "its ttl is over, or its grace period at its limit",
        "holder": "surrendered, suspended, failed or contradicted at its limit",
        "operator": "surrendered, suspended, failed or contradicted at its limit",
    },
    ("revoking", "failed"): {
        "tick": "it may not be requeued, or an essential component died",
        "holder": "reported as failed",
        "operator": "reported as failed",
    },
    ("failed", "pending"): {"tick": "restarted by its policy"},
    ("failed", "released"): {"operator": "absent while it waited for its restart"},
    ("failed", "cancelled"): {
        "holder": "cancelled while it waited for its restart",
        "operator": "cancelled while it waited for its restart",
    },
}

LEASE_MOVES: Final[Edges] = {
    ("claimed", "held"): {"tick": "the earlier leases of its slot have ended"},
    ("claimed", "ended"): {
        "tick": "its slot is gone, or its reservation expired",
        "holder": "the reservation was cancelled, or it runs on another slot",
        "operator": "the reservation was cancelled or suspended, or it runs on another slot",
    },
    ("held", "revoking"): {"tick": "has to be given back by a deadline"},
    ("held", "ended"): {
        "tick": "expired, failed or taken back",
        "holder": "given back",
        "operator": "cancelled or suspended",
    },
    ("revoking", "ended"): {
        "tick": "the deadline is over",
        "holder": "given back in time",
        "operator": "cancelled or suspended",
    },
}


class IllegalMoveError(Exception):
    """Raised for a change of state that is in none of the tables of permitted moves in this module. The cause is an
    error in the program, never a wrong input.
    """

    def __init__(self, kind: str, name: str, source: str, target: str, cause: str) -> None:
        self.kind, self.name, self.source, self.target, self.cause = kind, name, source, target, cause
        super().__init__(f"{kind} {name}: {source} -> {target} is no legal move for the cause {cause}")


def check_move(edges: Edges, kind: str, name: str, move: tuple[str, str], cause: Cause) -> None:
    """Raise IllegalMoveError unless the table `edges` permits the change `move` (from, to) for this cause. `kind` and
    `name` describe the row in the error.
    """
    if cause not in edges.get(move, ()):
        raise IllegalMoveError(kind, name, *move, cause)


_INTRODUCTION = """\
# States and legal moves

States change by these tables alone, and each change appends an event with its cause: `tick` is a decision of a plan,
`holder` a producer or the holder of a lease, `operator` a person, `cloud` a report of EC2 or a host.
`python -m scheduler.model.transitions` prints this page.
"""


def write_page() -> str:
    """Return the text of docs/reference/states.md: the states and legal moves of slots, reservations and leases."""
    # `python -m scheduler.model.transitions > docs/reference/states.md` writes the page.
    tables = (("Slots", SLOT_MOVES), ("Reservations", RESERVATION_MOVES), ("Leases", LEASE_MOVES))
    return "\n".join([_INTRODUCTION, *("\n".join(_write_table(name, edges)) for name, edges in tables)])


def _write_table(name: str, edges: Edges) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"![The moves of {name.lower()}](../pictures/{name.lower()}.svg)\n"
    yield "| from | to | cause | when |\n|---|---|---|---|"
    for (source, target), causes in edges.items():
        by_reason: dict[str, list[str]] = {}
        for cause, reason in causes.items():
            by_reason.setdefault(reason, []).append(cause)
        yield from (f"| `{source}` | `{target}` | {', '.join(each)} | {reason} |" for reason, each in by_reason.items())
    yield ""


if __name__ == "__main__":
    print(write_page(), end="")  # noqa: T201 (a page for a file)
