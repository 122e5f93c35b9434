"""What a mutant is: one rule of the code turned into a wrong one."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.mutations.anchor import Anchor


@dataclass(frozen=True)
class Mutant(Anchor):
    """`rule` describes what the change breaks."""

    rule: str


@dataclass(frozen=True)
class Change:
    """A mutant without its place: the rule that it breaks, the code, and its replacement. See `Anchor`."""

    rule: str
    old: str
    new: str


Changes = Mapping[str, Mapping[str, Sequence[Change]]]
"""Changes by module and function, so that each name stands in one place."""


def list_mutants(changes: Changes) -> Iterator[Mutant]:
    for module, functions in changes.items():
        for function, each in functions.items():
            yield from (Mutant(module, function, one.old, one.new, one.rule) for one in each)
