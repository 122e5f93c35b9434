"""What a wrong rule is: a small change of one source file in `scheduler/policy/`."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """`old` stands exactly once in the module; `rule` says what is broken by `new`."""

    module: str
    rule: str
    old: str
    new: str
