"""A mutant with a reason: a change of the code that no test can notice, and why."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.mutations.anchor import Anchor


@dataclass(frozen=True)
class Mutant(Anchor):
    """`reason` states why the change changes nothing that a test can see."""

    reason: str


@dataclass(frozen=True)
class Change:
    """A mutant without its place: the reason, the code, and its replacement. See `Anchor`."""

    reason: str
    old: str
    new: str


Changes = Mapping[str, Mapping[str, Sequence[Change]]]
"""Changes by module and function, so that each name stands in one place."""


def list_mutants(changes: Changes) -> Iterator[Mutant]:
    for module, functions in changes.items():
        for function, each in functions.items():
            yield from (Mutant(module, function, one.old, one.new, one.reason) for one in each)
