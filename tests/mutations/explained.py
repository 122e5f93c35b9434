"""Drawn mutants that no test can notice, each with the reason why nothing changes. See `tests.mutations.draw`."""

from typing import Final

from tests.mutations.mutant import Changes

EXPLAINED: Final[Changes] = {}
