"""Generate the page docs/reference/states.md from the tables of transitions.

`python -m scheduler.model.states_page > docs/reference/states.md` writes the page.
"""

from collections.abc import Iterator

from scheduler.model.transitions import LEASE_MOVES, RESERVATION_MOVES, SLOT_MOVES, Edges

INTRODUCTION = """\
# States and legal moves

This page is generated from the tables in `scheduler/model/transitions.py` (`python -m scheduler.model.states_page`); a
test compares both. `python -m examples.draw_architecture` draws the pictures. States change by these tables alone: one
function makes a move, checks it and appends an event with its cause.

Causes: `tick` is a decision of a plan, `holder` a producer or the holder of a lease, `operator` a person, `cloud` a
report of EC2 or a host.
"""


def write_page() -> str:
    """Return the text of docs/reference/states.md: the states and legal moves of slots, reservations and leases."""
    tables = (("Slots", SLOT_MOVES), ("Reservations", RESERVATION_MOVES), ("Leases", LEASE_MOVES))
    parts = [INTRODUCTION, *("\n".join(_write_table(name, edges)) for name, edges in tables)]
    return "\n".join(parts)


def _write_table(name: str, edges: Edges) -> Iterator[str]:
    yield f"## {name}\n"
    yield f"![The moves of {name.lower()}](../pictures/{name.lower()}.svg)\n"
    yield "| from | to | cause | when |\n|---|---|---|---|"
    for (source, target), causes in edges.items():
        yield from (f"| `{source}` | `{target}` | {cause} | {reason} |" for cause, reason in causes.items())
    yield ""


if __name__ == "__main__":
    print(write_page(), end="")  # noqa: T201 (a page for a file)
